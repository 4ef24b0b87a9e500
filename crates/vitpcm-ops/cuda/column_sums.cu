// Sums over rows for every column, alone or beside the pass that makes what is summed, in two stages so that the result
// does not depend on the order in which blocks run.
#include "dropout.cuh"
#include "gelu.cuh"
#include "values.cuh"

// Stage one, by blocks of 32 × 8 threads: block (x, y) visits 128 columns of every gridDim.y-th group of eight rows, four
// neighbours at a time where memory is aligned. `function.visit<V>(row, column, sums)` adds to N sums a column.
template <int N, typename F>
__device__ __forceinline__ void partial_sums(float *partial, int rows, int columns, bool aligned, F function) {
    __shared__ float shared[N][8][128];
    int first_row = blockIdx.y * 8 + threadIdx.y, row_step = gridDim.y * 8, first_column = blockIdx.x * 128;
    if (aligned && columns % 4 == 0) {
        int within = threadIdx.x * 4;
        float sums[N][4] = {};
        if (first_column + within < columns)
            for (int row = first_row; row < rows; row += row_step)
                function.template visit<4>(row, first_column + within, sums);
#pragma unroll
        for (int n = 0; n < N; n++) store<4>(&shared[n][threadIdx.y][within], sums[n]);
    } else {
        for (int within = threadIdx.x; within < 128; within += 32) {
            float sums[N][1] = {};
            if (first_column + within < columns)
                for (int row = first_row; row < rows; row += row_step)
                    function.template visit<1>(row, first_column + within, sums);
#pragma unroll
            for (int n = 0; n < N; n++) shared[n][threadIdx.y][within] = sums[n][0];
        }
    }
    __syncthreads();
    for (int i = threadIdx.y * 32 + threadIdx.x; i < N * 128; i += 256) {
        int n = i / 128, within = i % 128;
        if (first_column + within >= columns) continue;
        float sum = 0;
#pragma unroll
        for (int y = 0; y < 8; y++) sum += shared[n][y][within];
        partial[((index_t)blockIdx.y * N + n) * columns + first_column + within] = sum;
    }
}

template <typename T> struct Plain {
    const T *x;
    index_t columns;
    template <int V> __device__ __forceinline__ void visit(int row, int column, float (&sums)[1][V]) const {
        float values[V];
        load<V>(x + row * columns + column, values);
#pragma unroll
        for (int k = 0; k < V; k++) sums[0][k] += values[k];
    }
};

template <typename T> struct Product {
    const float *x;
    const T *y;
    index_t columns;
    template <int V> __device__ __forceinline__ void visit(int row, int column, float (&sums)[1][V]) const {
        index_t i = row * columns + column;
        float a[V], b[V];
        load<V>(x + i, a);
        load<V>(y + i, b);
#pragma unroll
        for (int k = 0; k < V; k++) sums[0][k] += a[k] * b[k];
    }
};

// The gradients of layer norm's weight and bias; `statistics` holds mean and 1/deviation of every row.
template <typename T> struct Norm {
    const float *x;
    const float *statistics;
    const T *grad_y;
    index_t columns;
    template <int V> __device__ __forceinline__ void visit(int row, int column, float (&sums)[2][V]) const {
        index_t i = row * columns + column;
        float mean = statistics[2 * row], scale = statistics[2 * row + 1], values[V], grads[V];
        load<V>(x + i, values);
        load<V>(grad_y + i, grads);
#pragma unroll
        for (int k = 0; k < V; k++) {
            sums[0][k] += grads[k] * (values[k] - mean) * scale;
            sums[1][k] += grads[k];
        }
    }
};

// The end of a residual branch, y = x + scale · b with b = dropout(branch + bias): the branch's gradient, and the sums
// that are those of bias and scale. Without a scale, b is not read.
template <typename T> struct BranchBackward {
    const float *grad_y, *scale;
    const T *b;
    T *grad_branch;
    index_t columns;
    Dropout dropout;
    template <int V> __device__ __forceinline__ void visit(int row, int column, float (&sums)[2][V]) const {
        index_t i = row * columns + column;
        float grads[V];
        load<V>(grad_y + i, grads);
        if (scale) {
            float factors[V], values[V];
            load<V>(scale + column, factors);
            load<V>(b + i, values);
#pragma unroll
            for (int k = 0; k < V; k++) {
                sums[1][k] += grads[k] * values[k];
                grads[k] *= factors[k];
            }
        }
        dropout.apply(i, grads);
#pragma unroll
        for (int k = 0; k < V; k++) sums[0][k] += grads[k];
        store<V>(grad_branch + i, grads);
    }
};

// activated = dropout(GELU(hidden)), computed again; `grad` comes as that of `activated` and becomes that of `hidden`,
// whose sums are the gradient of the bias before.
template <typename T> struct ActivateBackward {
    const T *hidden;
    T *grad, *activated;
    index_t columns;
    Dropout dropout;
    template <int V> __device__ __forceinline__ void visit(int row, int column, float (&sums)[1][V]) const {
        index_t i = row * columns + column;
        float inputs[V], grads[V], factors[V];
        load<V>(hidden + i, inputs);
        load<V>(grad + i, grads);
#pragma unroll
        for (int k = 0; k < V; k++) factors[k] = 1.0f;
        dropout.apply(i, factors);
        float values[V];
#pragma unroll
        for (int k = 0; k < V; k++) {
            float distribution = normal_distribution(inputs[k]);
            values[k] = inputs[k] * distribution * factors[k];
            grads[k] *= factors[k] * gelu_slope(inputs[k], distribution);
            sums[0][k] += grads[k];
        }
        store<V>(activated + i, values);
        store<V>(grad + i, grads);
    }
};

#define FOR_TYPE(T, name)                                                                                          \
    extern "C" __global__ void column_sums_##name(const T *x, float *partial, int rows, int columns) {             \
        partial_sums<1>(partial, rows, columns, is_aligned<4>(x), Plain<T>{x, columns});                           \
    }                                                                                                              \
    extern "C" __global__ void product_sums_##name(const float *x, const T *y, float *partial, int rows,           \
                                                   int columns) {                                                  \
        bool aligned = is_aligned<4>(x) && is_aligned<4>(y);                                                       \
        partial_sums<1>(partial, rows, columns, aligned, Product<T>{x, y, columns});                               \
    }                                                                                                              \
    extern "C" __global__ void norm_sums_##name(const float *x, const float *statistics, const T *grad_y,          \
                                                float *partial, int rows, int columns) {                           \
        bool aligned = is_aligned<4>(x) && is_aligned<4>(grad_y);                                                  \
        partial_sums<2>(partial, rows, columns, aligned, Norm<T>{x, statistics, grad_y, columns});                 \
    }                                                                                                              \
    extern "C" __global__ void branch_backward_##name(const float *grad_y, const float *scale, const T *b,         \
                                                      T *grad_branch, uint64_t key, uint64_t position, float rate, \
                                                      float kept, float *partial, int rows, int columns) {         \
        bool aligned =                                                                                             \
            is_aligned<4>(grad_y) && is_aligned<4>(scale) && is_aligned<4>(b) && is_aligned<4>(grad_branch);       \
        Dropout dropout{key, position, rate, kept};                                                                \
        partial_sums<2>(partial, rows, columns, aligned,                                                           \
                        BranchBackward<T>{grad_y, scale, b, grad_branch, columns, dropout});                       \
    }                                                                                                              \
    extern "C" __global__ void activate_backward_##name(const T *hidden, T *grad, T *activated, uint64_t key,      \
                                                        uint64_t position, float rate, float kept, float *partial, \
                                                        int rows, int columns) {                                   \
        bool aligned = is_aligned<4>(hidden) && is_aligned<4>(grad) && is_aligned<4>(activated);                   \
        Dropout dropout{key, position, rate, kept};                                                                \
        partial_sums<1>(partial, rows, columns, aligned,                                                           \
                        ActivateBackward<T>{hidden, grad, activated, columns, dropout});                           \
    }
FOR_TYPE(float, f32)
FOR_TYPE(bf16, bf16)

// Stage two, by blocks of 32 × 8 threads: `sums[i]` of all stripes' `partial[stripe][i]`, 32 numbers a block.
extern "C" __global__ void add_stripes(const float *partial, float *sums, int stripes, int count) {
    __shared__ float shared[8][32];
    int i = blockIdx.x * 32 + threadIdx.x;
    float sum = 0;
    if (i < count)
        for (int stripe = threadIdx.y; stripe < stripes; stripe += 8) sum += partial[(index_t)stripe * count + i];
    shared[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y > 0 || i >= count) return;
    sum = 0;
#pragma unroll
    for (int y = 0; y < 8; y++) sum += shared[y][threadIdx.x];
    sums[i] = sum;
}
