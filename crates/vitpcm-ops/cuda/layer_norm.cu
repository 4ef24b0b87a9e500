// Layer norm, a warp a row. The input is f32 (the residual stream), the output what the next product takes.
#include "values.cuh"

__device__ __forceinline__ void row_statistics(const float *row, int columns, int lane, float eps, float &mean,
                                               float &scale) {
    float sum = 0;
    for (int i = lane; i < columns; i += 32) sum += row[i];
    mean = warp_sum(sum) / columns;
    float squares = 0;
    for (int i = lane; i < columns; i += 32) {
        float centred = row[i] - mean;
        squares += centred * centred;
    }
    scale = rsqrtf(warp_sum(squares) / columns + eps);
}

template <typename T>
__device__ void forward(const float *x, const float *weight, const float *bias, T *y, int rows, int columns, float eps) {
    int row = blockIdx.x * blockDim.y + threadIdx.y;
    if (row >= rows) return;
    const float *input = x + (index_t)row * columns;
    T *output = y + (index_t)row * columns;
    float mean, scale;
    row_statistics(input, columns, threadIdx.x, eps, mean, scale);
    for (int i = threadIdx.x; i < columns; i += 32)
        output[i] = from_float<T>((input[i] - mean) * scale * weight[i] + bias[i]);
}

// The gradient of x, and the rows' statistics for the gradients of weight and bias.
template <typename T>
__device__ void backward(const float *x, const float *weight, const T *grad_y, float *grad_x, float *statistics,
                         int rows, int columns, float eps) {
    int row = blockIdx.x * blockDim.y + threadIdx.y;
    if (row >= rows) return;
    const float *input = x + (index_t)row * columns;
    const T *grad = grad_y + (index_t)row * columns;
    float *output = grad_x + (index_t)row * columns;
    float mean, scale;
    row_statistics(input, columns, threadIdx.x, eps, mean, scale);
    float sum = 0, along = 0;
    for (int i = threadIdx.x; i < columns; i += 32) {
        float g = to_float(grad[i]) * weight[i];
        sum += g;
        along += g * (input[i] - mean);
    }
    sum = warp_sum(sum) / columns;
    along = warp_sum(along) * scale * scale / columns;
    for (int i = threadIdx.x; i < columns; i += 32) {
        float g = to_float(grad[i]) * weight[i];
        output[i] = scale * (g - sum - (input[i] - mean) * along);
    }
    if (threadIdx.x == 0) {
        statistics[2 * row] = mean;
        statistics[2 * row + 1] = scale;
    }
}

#define FOR_TYPE(T, name)                                                                                          \
    extern "C" __global__ void layer_norm_##name(const float *x, const float *weight, const float *bias, T *y,     \
                                                 int rows, int columns, float eps) {                               \
        forward(x, weight, bias, y, rows, columns, eps);                                                           \
    }                                                                                                              \
    extern "C" __global__ void layer_norm_backward_##name(const float *x, const float *weight, const T *grad_y,    \
                                                          float *grad_x, float *statistics, int rows, int columns, \
                                                          float eps) {                                             \
        backward(x, weight, grad_y, grad_x, statistics, rows, columns, eps);                                       \
    }
FOR_TYPE(float, f32)
FOR_TYPE(bf16, bf16)
