// Softmax over rows, a warp a row: of attention's scores in place, with rows padded, and of class scores.
#include "values.cuh"

// Rows of `columns` values, `stride` apart. What lies between is set to zero.
template <typename From, typename To>
__device__ void forward(const From *x, To *y, index_t rows, int columns, int stride) {
    index_t row = (index_t)blockIdx.x * blockDim.y + threadIdx.y;
    if (row >= rows) return;
    const From *input = x + row * stride;
    To *output = y + row * stride;
    float largest = -INFINITY;
    for (int i = threadIdx.x; i < columns; i += 32) largest = fmaxf(largest, to_float(input[i]));
    largest = warp_max(largest);
    float sum = 0;
    for (int i = threadIdx.x; i < columns; i += 32) sum += __expf(to_float(input[i]) - largest);
    float inverse = 1.0f / warp_sum(sum);
    for (int i = threadIdx.x; i < stride; i += 32)
        output[i] = from_float<To>(i < columns ? __expf(to_float(input[i]) - largest) * inverse : 0.0f);
}

// The same with a row in registers, 8 neighbours a lane and step; `stride` is a multiple of 8.
template <int STEPS, typename T> __device__ void forward_in_registers(T *scores, index_t rows, int columns, int stride) {
    index_t row = (index_t)blockIdx.x * blockDim.y + threadIdx.y;
    if (row >= rows) return;
    T *values = scores + row * stride;
    float x[STEPS][8];
    float largest = -INFINITY;
#pragma unroll
    for (int step = 0; step < STEPS; step++) {
        int start = (step * 32 + threadIdx.x) * 8;
        if (start < stride) load<8>(values + start, x[step]);
#pragma unroll
        for (int k = 0; k < 8; k++) {
            if (start + k >= columns) x[step][k] = -INFINITY;
            largest = fmaxf(largest, x[step][k]);
        }
    }
    largest = warp_max(largest);
    float sum = 0;
#pragma unroll
    for (int step = 0; step < STEPS; step++)
#pragma unroll
        for (int k = 0; k < 8; k++) sum += x[step][k] = __expf(x[step][k] - largest);
    float inverse = 1.0f / warp_sum(sum);
#pragma unroll
    for (int step = 0; step < STEPS; step++) {
        int start = (step * 32 + threadIdx.x) * 8;
#pragma unroll
        for (int k = 0; k < 8; k++) x[step][k] *= inverse;
        if (start < stride) store<8>(values + start, x[step]);
    }
}

// grad_x = scale · y · (grad_y − Σ y · grad_y); grad_x may lie where grad_y does.
template <typename T>
__device__ void backward(const T *y, const T *grad_y, T *grad_x, index_t rows, int columns, int stride, float scale) {
    index_t row = (index_t)blockIdx.x * blockDim.y + threadIdx.y;
    if (row >= rows) return;
    const T *values = y + row * stride;
    const T *grads = grad_y + row * stride;
    float along = 0;
    for (int i = threadIdx.x; i < columns; i += 32) along += to_float(values[i]) * to_float(grads[i]);
    along = warp_sum(along);
    for (int i = threadIdx.x; i < columns; i += 32)
        grad_x[row * stride + i] = from_float<T>(scale * to_float(values[i]) * (to_float(grads[i]) - along));
}

template <int STEPS, typename T>
__device__ void backward_in_registers(const T *y, T *grad, index_t rows, int stride, float scale) {
    index_t row = (index_t)blockIdx.x * blockDim.y + threadIdx.y;
    if (row >= rows) return;
    const T *values = y + row * stride;
    T *grads = grad + row * stride;
    float p[STEPS][8], g[STEPS][8];
    float along = 0;
#pragma unroll
    for (int step = 0; step < STEPS; step++) {
        int start = (step * 32 + threadIdx.x) * 8;
        if (start < stride) {
            load<8>(values + start, p[step]);
            load<8>(grads + start, g[step]);
#pragma unroll
            for (int k = 0; k < 8; k++) along += p[step][k] * g[step][k];
        }
    }
    along = warp_sum(along);
#pragma unroll
    for (int step = 0; step < STEPS; step++) {
        int start = (step * 32 + threadIdx.x) * 8;
#pragma unroll
        for (int k = 0; k < 8; k++) g[step][k] = scale * p[step][k] * (g[step][k] - along);
        if (start < stride) store<8>(grads + start, g[step]);
    }
}

extern "C" __global__ void class_softmax(const float *x, float *y, index_t rows, int columns) {
    forward(x, y, rows, columns, columns);
}
extern "C" __global__ void class_softmax_backward(const float *y, const float *grad_y, float *grad_x, index_t rows,
                                                  int columns) {
    backward(y, grad_y, grad_x, rows, columns, columns, 1.0f);
}

// Padding holds zeros in y and, multiplied by them, in the gradient.
#define FOR_TYPE(T, name)                                                                                          \
    extern "C" __global__ void attention_softmax_##name(T *scores, index_t rows, int columns, int stride) {        \
        if (stride <= 768)                                                                                         \
            forward_in_registers<3>(scores, rows, columns, stride);                                                \
        else if (stride <= 1280)                                                                                   \
            forward_in_registers<5>(scores, rows, columns, stride);                                                \
        else                                                                                                       \
            forward(scores, scores, rows, columns, stride);                                                        \
    }                                                                                                              \
    extern "C" __global__ void attention_softmax_backward_##name(const T *y, T *grad, index_t rows, int columns,   \
                                                                 int stride, float scale) {                        \
        if (stride <= 768)                                                                                         \
            backward_in_registers<3>(y, grad, rows, stride, scale);                                                \
        else                                                                                                       \
            backward(y, grad, grad, rows, columns, stride, scale);                                                     \
    }
FOR_TYPE(float, f32)
FOR_TYPE(bf16, bf16)

// A row in the registers of a whole block: what inference at large sizes takes.
template <int STEPS, typename T> __device__ void forward_by_block(T *scores, int columns, int stride) {
    __shared__ float largest_of_warps[8], sum_of_warps[8];
    T *values = scores + (index_t)blockIdx.x * stride;
    int warp = threadIdx.x / 32;
    float x[STEPS][8];
    float largest = -INFINITY;
#pragma unroll
    for (int step = 0; step < STEPS; step++) {
        int start = (step * 256 + threadIdx.x) * 8;
        if (start < stride) load<8>(values + start, x[step]);
#pragma unroll
        for (int k = 0; k < 8; k++) {
            if (start + k >= columns) x[step][k] = -INFINITY;
            largest = fmaxf(largest, x[step][k]);
        }
    }
    largest = warp_max(largest);
    if (threadIdx.x % 32 == 0) largest_of_warps[warp] = largest;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 8; i++) largest = fmaxf(largest, largest_of_warps[i]);
    float sum = 0;
#pragma unroll
    for (int step = 0; step < STEPS; step++)
#pragma unroll
        for (int k = 0; k < 8; k++) sum += x[step][k] = __expf(x[step][k] - largest);
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) sum_of_warps[warp] = sum;
    __syncthreads();
    sum = 0;
#pragma unroll
    for (int i = 0; i < 8; i++) sum += sum_of_warps[i];
    float inverse = 1.0f / sum;
#pragma unroll
    for (int step = 0; step < STEPS; step++) {
        int start = (step * 256 + threadIdx.x) * 8;
#pragma unroll
        for (int k = 0; k < 8; k++) x[step][k] *= inverse;
        if (start < stride) store<8>(values + start, x[step]);
    }
}
extern "C" __global__ void wide_attention_softmax_f32(float *scores, int columns, int stride) {
    forward_by_block<2>(scores, columns, stride);
}
extern "C" __global__ void wide_attention_softmax_bf16(bf16 *scores, int columns, int stride) {
    forward_by_block<2>(scores, columns, stride);
}
