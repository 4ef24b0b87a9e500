// Max pooling of 3×3 pixels every second pixel, of [B, H, W, C]: a thread an element.
#include "values.cuh"

template <typename T>
__device__ __forceinline__ void pool(const T *x, T *pooled, int height, int width, int channels, index_t count) {
    int out_height = (height + 1) / 2, out_width = (width + 1) / 2;
    index_t step = (index_t)gridDim.x * blockDim.x;
    for (index_t i = (index_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
        int channel = (int)(i % channels);
        index_t pixel = i / channels;
        int out_x = (int)(pixel % out_width);
        index_t line = pixel / out_width;
        int out_y = (int)(line % out_height);
        const T *image = x + line / out_height * height * width * channels + channel;
        float best = -INFINITY;
        for (int y = max(2 * out_y - 1, 0); y < min(2 * out_y + 2, height); y++)
            for (int column = max(2 * out_x - 1, 0); column < min(2 * out_x + 2, width); column++)
                best = fmaxf(best, to_float(image[((index_t)y * width + column) * channels]));
        pooled[i] = from_float<T>(best);
    }
}

// A thread gathers what comes back to its pixel: from every window that it is the first largest of.
template <typename T>
__device__ __forceinline__ void pool_backward(const T *x, const T *grad_pooled, T *grad_x, int height, int width,
                                              int channels, index_t count) {
    int out_height = (height + 1) / 2, out_width = (width + 1) / 2;
    index_t step = (index_t)gridDim.x * blockDim.x;
    for (index_t i = (index_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
        int channel = (int)(i % channels);
        index_t pixel = i / channels;
        int column = (int)(pixel % width);
        index_t line = pixel / width;
        int row = (int)(line % height);
        index_t image_index = line / height;
        const T *image = x + image_index * height * width * channels + channel;
        float sum = 0.0f;
        for (int out_y = row / 2; out_y <= min((row + 1) / 2, out_height - 1); out_y++)
            for (int out_x = column / 2; out_x <= min((column + 1) / 2, out_width - 1); out_x++) {
                float best = -INFINITY;
                int best_y = -1, best_x = -1;
                for (int y = max(2 * out_y - 1, 0); y < min(2 * out_y + 2, height); y++)
                    for (int c = max(2 * out_x - 1, 0); c < min(2 * out_x + 2, width); c++) {
                        float value = to_float(image[((index_t)y * width + c) * channels]);
                        if (value > best) best = value, best_y = y, best_x = c;
                    }
                if (best_y == row && best_x == column) {
                    index_t seer = (image_index * out_height + out_y) * out_width + out_x;
                    sum += to_float(grad_pooled[seer * channels + channel]);
                }
            }
        grad_x[i] = from_float<T>(sum);
    }
}

#define FOR_TYPE(T, name)                                                                                          \
    extern "C" __global__ void max_pool_##name(const T *x, T *pooled, int height, int width, int channels,         \
                                               index_t count) {                                                    \
        pool(x, pooled, height, width, channels, count);                                                           \
    }                                                                                                              \
    extern "C" __global__ void max_pool_backward_##name(const T *x, const T *grad_pooled, T *grad_x, int height,   \
                                                        int width, int channels, index_t count) {                  \
        pool_backward(x, grad_pooled, grad_x, height, width, channels, count);                                     \
    }
FOR_TYPE(float, f32)
FOR_TYPE(bf16, bf16)
