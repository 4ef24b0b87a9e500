// The sum over 3×3 neighbours of what each contributes through its tap, over all rates at which neighbours may lie:
// [B, H, W, columns], of which [rates, classes, 9] are taken, to [B, H, W, classes]. A thread an element of the result.
#include "values.cuh"

// The members of NeighbourShape in Rust.
struct Geometry {
    int height, width, columns, classes, num_rates, rates[4];
};

template <typename T>
__device__ __forceinline__ void sums_of(const T *products, float *sums, const Geometry &g, index_t count) {
    index_t step = (index_t)gridDim.x * blockDim.x;
    for (index_t i = (index_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
        int c = (int)(i % g.classes);
        index_t pixel = i / g.classes;
        int column = (int)(pixel % g.width);
        index_t line = pixel / g.width;
        int row = (int)(line % g.height);
        index_t image = line / g.height;
        float sum = 0.0f;
        for (int index = 0; index < g.num_rates; index++) {
            int rate = g.rates[index];
#pragma unroll
            for (int tap = 0; tap < 9; tap++) {
                int y = row + (tap / 3 - 1) * rate, x = column + (tap % 3 - 1) * rate;
                if (y < 0 || y >= g.height || x < 0 || x >= g.width) continue;
                index_t neighbour = (image * g.height + y) * g.width + x;
                sum += to_float(products[neighbour * g.columns + (index * g.classes + c) * 9 + tap]);
            }
        }
        sums[i] = sum;
    }
}

template <typename T>
__device__ __forceinline__ void sums_backward(const float *grad_sums, T *grad_products, const Geometry &g,
                                              index_t count) {
    index_t step = (index_t)gridDim.x * blockDim.x;
    for (index_t i = (index_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
        int product = (int)(i % g.columns);
        index_t pixel = i / g.columns;
        int tap = product % 9, c = product / 9 % g.classes, index = product / 9 / g.classes;
        float grad = 0.0f;
        if (index < g.num_rates) {
            int column = (int)(pixel % g.width);
            index_t line = pixel / g.width;
            int row = (int)(line % g.height);
            index_t image = line / g.height;
            // Whom this pixel is a neighbour to.
            int y = row - (tap / 3 - 1) * g.rates[index], x = column - (tap % 3 - 1) * g.rates[index];
            if (y >= 0 && y < g.height && x >= 0 && x < g.width)
                grad = grad_sums[((image * g.height + y) * g.width + x) * g.classes + c];
        }
        grad_products[i] = from_float<T>(grad);
    }
}

#define FOR_TYPE(T, name)                                                                                          \
    extern "C" __global__ void neighbour_sums_##name(const T *products, float *sums, Geometry g, index_t count) {  \
        sums_of(products, sums, g, count);                                                                         \
    }                                                                                                              \
    extern "C" __global__ void neighbour_sums_backward_##name(const float *grad_sums, T *grad_products,            \
                                                              Geometry g, index_t count) {                         \
        sums_backward(grad_sums, grad_products, g, count);                                                         \
    }
FOR_TYPE(float, f32)
FOR_TYPE(bf16, bf16)
