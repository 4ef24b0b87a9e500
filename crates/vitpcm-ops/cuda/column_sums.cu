// Sums over rows for every column, in two stages so that the result does not depend on the order in which blocks run.
#include "values.cuh"

// Stage one: block (x, y) sums 64 columns of every gridDim.y-th group of four rows. `value(row, column)` is summed.
template <int N, typename F>
__device__ __forceinline__ void partial_sums(float *partial, int rows, int columns, F value) {
    __shared__ float shared[N][4][64];
    int column = blockIdx.x * 64 + threadIdx.x;
    float sums[N] = {};
    if (column < columns)
        for (int row = blockIdx.y * 4 + threadIdx.y; row < rows; row += gridDim.y * 4) value(row, column, sums);
#pragma unroll
    for (int n = 0; n < N; n++) shared[n][threadIdx.y][threadIdx.x] = sums[n];
    __syncthreads();
    if (threadIdx.y == 0 && column < columns)
#pragma unroll
        for (int n = 0; n < N; n++)
            partial[((index_t)blockIdx.y * N + n) * columns + column] =
                shared[n][0][threadIdx.x] + shared[n][1][threadIdx.x] + shared[n][2][threadIdx.x] +
                shared[n][3][threadIdx.x];
}

template <typename T> struct Plain {
    const T *x;
    index_t columns;
    __device__ void operator()(int row, int column, float (&sums)[1]) const {
        sums[0] += to_float(x[row * columns + column]);
    }
};

template <typename T> struct Product {
    const float *x;
    const T *y;
    index_t columns;
    __device__ void operator()(int row, int column, float (&sums)[1]) const {
        index_t i = row * columns + column;
        sums[0] += x[i] * to_float(y[i]);
    }
};

// The gradients of layer norm's weight and bias; `statistics` holds mean and 1/deviation of every row.
template <typename T> struct Norm {
    const float *x;
    const float *statistics;
    const T *grad_y;
    index_t columns;
    __device__ void operator()(int row, int column, float (&sums)[2]) const {
        index_t i = row * columns + column;
        float grad = to_float(grad_y[i]);
        sums[0] += grad * (x[i] - statistics[2 * row]) * statistics[2 * row + 1];
        sums[1] += grad;
    }
};

#define FOR_TYPE(T, name)                                                                                          \
    extern "C" __global__ void column_sums_##name(const T *x, float *partial, int rows, int columns) {             \
        partial_sums<1>(partial, rows, columns, Plain<T>{x, columns});                                             \
    }                                                                                                              \
    extern "C" __global__ void product_sums_##name(const float *x, const T *y, float *partial, int rows,           \
                                                   int columns) {                                                  \
        partial_sums<1>(partial, rows, columns, Product<T>{x, y, columns});                                        \
    }                                                                                                              \
    extern "C" __global__ void norm_sums_##name(const float *x, const float *statistics, const T *grad_y,          \
                                                float *partial, int rows, int columns) {                           \
        partial_sums<2>(partial, rows, columns, Norm<T>{x, statistics, grad_y, columns});                          \
    }
FOR_TYPE(float, f32)
FOR_TYPE(bf16, bf16)

// Stage two: `sums[i]` of all stripes' `partial[stripe][i]`.
extern "C" __global__ void add_stripes(const float *partial, float *sums, int stripes, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    float sum = 0;
    for (int stripe = 0; stripe < stripes; stripe++) sum += partial[(index_t)stripe * count + i];
    sums[i] = sum;
}
