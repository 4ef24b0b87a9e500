// Layer norm, a warp a row. The input is f32 (the residual stream), the output what the next product takes.
#include "values.cuh"

// A warp's share of a row: `STEPS` groups of N neighbours a lane. Rows of up to 32 · N · STEPS values stay in registers.
template <int N, int STEPS> struct Row {
    float values[STEPS][N];

    __device__ __forceinline__ static int start(int step) { return (step * 32 + threadIdx.x) * N; }

    template <typename T> __device__ __forceinline__ void read(const T *from, int columns) {
#pragma unroll
        for (int step = 0; step < STEPS; step++)
            if (start(step) < columns)
                load<N>(from + start(step), values[step]);
            else
#pragma unroll
                for (int k = 0; k < N; k++) values[step][k] = 0;
    }

    template <typename T> __device__ __forceinline__ void write(T *to, int columns) const {
#pragma unroll
        for (int step = 0; step < STEPS; step++)
            if (start(step) < columns) store<N>(to + start(step), values[step]);
    }

    // Calls `function(column, value)` for every value of the lane.
    template <typename F> __device__ __forceinline__ void for_each(int columns, F function) {
#pragma unroll
        for (int step = 0; step < STEPS; step++)
            if (start(step) < columns)
#pragma unroll
                for (int k = 0; k < N; k++) function(start(step) + k, values[step][k]);
    }

    // To mean 0; returns the mean and 1/deviation.
    __device__ __forceinline__ float2 centre(int columns, float eps) {
        float sum = 0, squares = 0;
        for_each(columns, [&](int, float &x) { sum += x; });
        float mean = warp_sum(sum) / columns;
        for_each(columns, [&](int, float &x) {
            x -= mean;
            squares += x * x;
        });
        return make_float2(mean, rsqrtf(warp_sum(squares) / columns + eps));
    }
};

template <int N, int STEPS, typename T>
__device__ void forward(const float *x, const float *weight, const float *bias, T *y, int rows, int columns, float eps) {
    int row = blockIdx.x * blockDim.y + threadIdx.y;
    if (row >= rows) return;
    Row<N, STEPS> values;
    values.read(x + (index_t)row * columns, columns);
    float scale = values.centre(columns, eps).y;
    values.for_each(columns, [&](int i, float &value) { value = value * scale * weight[i] + bias[i]; });
    values.write(y + (index_t)row * columns, columns);
}

// The gradient of x, plus `around` where that is not null, and the rows' statistics for the gradients of weight and bias.
template <int N, int STEPS, typename T>
__device__ void backward(const float *x, const float *weight, const T *grad_y, const float *around, float *grad_x,
                         float *statistics, int rows, int columns, float eps) {
    int row = blockIdx.x * blockDim.y + threadIdx.y;
    if (row >= rows) return;
    Row<N, STEPS> values, grads;
    values.read(x + (index_t)row * columns, columns);
    grads.read(grad_y + (index_t)row * columns, columns);
    float2 found = values.centre(columns, eps);
    float scale = found.y, sum = 0, along = 0;
#pragma unroll
    for (int step = 0; step < STEPS; step++)
#pragma unroll
        for (int k = 0; k < N; k++) {
            int i = values.start(step) + k;
            if (i >= columns) continue;
            float &g = grads.values[step][k];
            g *= weight[i];
            sum += g;
            along += g * values.values[step][k];
        }
    sum = warp_sum(sum) / columns;
    along = warp_sum(along) * scale * scale / columns;
#pragma unroll
    for (int step = 0; step < STEPS; step++) {
        float added[N] = {};
        if (around && values.start(step) < columns) load<N>(around + (index_t)row * columns + values.start(step), added);
#pragma unroll
        for (int k = 0; k < N; k++)
            grads.values[step][k] = scale * (grads.values[step][k] - sum - values.values[step][k] * along) + added[k];
    }
    grads.write(grad_x + (index_t)row * columns, columns);
    if (threadIdx.x == 0) {
        statistics[2 * row] = found.x;
        statistics[2 * row + 1] = scale;
    }
}

// A kernel for each number of registers that a row may need.
#define FOR_WIDTH(N, STEPS, T, name)                                                                               \
    extern "C" __global__ void layer_norm_##name(const float *x, const float *weight, const float *bias, T *y,     \
                                                 int rows, int columns, float eps) {                               \
        forward<N, STEPS>(x, weight, bias, y, rows, columns, eps);                                                 \
    }                                                                                                              \
    extern "C" __global__ void layer_norm_backward_##name(const float *x, const float *weight, const T *grad_y,    \
                                                          const float *around, float *grad_x, float *statistics,   \
                                                          int rows, int columns, float eps) {                      \
        backward<N, STEPS>(x, weight, grad_y, around, grad_x, statistics, rows, columns, eps);                     \
    }
FOR_WIDTH(4, 3, float, 384_f32)
FOR_WIDTH(4, 3, bf16, 384_bf16)
FOR_WIDTH(4, 8, float, 1024_f32)
FOR_WIDTH(4, 8, bf16, 1024_bf16)
FOR_WIDTH(1, 128, float, any_f32)
FOR_WIDTH(1, 128, bf16, any_bf16)
