// The sum over 3×3 neighbours, `dilation` apart, of what each contributes through its tap: [B, H, W, classes, 9] to
// [B, H, W, classes]. A thread an element of the result.
#include "values.cuh"

template <typename T>
__device__ __forceinline__ void sums_of(const T *products, float *sums, int height, int width, int classes,
                                        int dilation, index_t count) {
    index_t step = (index_t)gridDim.x * blockDim.x;
    for (index_t i = (index_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
        int c = (int)(i % classes);
        index_t pixel = i / classes;
        int column = (int)(pixel % width);
        index_t line = pixel / width;
        int row = (int)(line % height);
        index_t image = line / height;
        float sum = 0.0f;
        for (int tap = 0; tap < 9; tap++) {
            int y = row + (tap / 3 - 1) * dilation, x = column + (tap % 3 - 1) * dilation;
            if (y < 0 || y >= height || x < 0 || x >= width) continue;
            index_t neighbour = (image * height + y) * width + x;
            sum += to_float(products[(neighbour * classes + c) * 9 + tap]);
        }
        sums[i] = sum;
    }
}

template <typename T>
__device__ __forceinline__ void sums_backward(const float *grad_sums, T *grad_products, int height, int width,
                                              int classes, int dilation, index_t count) {
    index_t step = (index_t)gridDim.x * blockDim.x;
    for (index_t i = (index_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
        int tap = (int)(i % 9);
        index_t place = i / 9;
        int c = (int)(place % classes);
        index_t pixel = place / classes;
        int column = (int)(pixel % width);
        index_t line = pixel / width;
        int row = (int)(line % height);
        index_t image = line / height;
        // Whom this pixel is a neighbour to.
        int y = row - (tap / 3 - 1) * dilation, x = column - (tap % 3 - 1) * dilation;
        float grad = 0.0f;
        if (y >= 0 && y < height && x >= 0 && x < width)
            grad = grad_sums[((image * height + y) * width + x) * classes + c];
        grad_products[i] = from_float<T>(grad);
    }
}

#define FOR_TYPE(T, name)                                                                                          \
    extern "C" __global__ void neighbour_sums_##name(const T *products, float *sums, int height, int width,        \
                                                     int classes, int dilation, index_t count) {                   \
        sums_of(products, sums, height, width, classes, dilation, count);                                          \
    }                                                                                                              \
    extern "C" __global__ void neighbour_sums_backward_##name(const float *grad_sums, T *grad_products, int height, \
                                                              int width, int classes, int dilation,                \
                                                              index_t count) {                                     \
        sums_backward(grad_sums, grad_products, height, width, classes, dilation, count);                          \
    }
FOR_TYPE(float, f32)
FOR_TYPE(bf16, bf16)
