// Max pooling of 3×3 pixels of [B, H, W, C]: a thread an element. Windows are `stride` apart (the same along both axes),
// the first begins `before_y` and `before_x` before the edge.
#include "values.cuh"

struct Windows {
    int height, width, channels, stride, before_y, before_x;

    __device__ int out_height() const { return (height + stride - 1) / stride; }
    __device__ int out_width() const { return (width + stride - 1) / stride; }
    __device__ int first_row(int out_y) const { return max(out_y * stride - before_y, 0); }
    __device__ int end_row(int out_y) const { return min(out_y * stride - before_y + 3, height); }
    __device__ int first_column(int out_x) const { return max(out_x * stride - before_x, 0); }
    __device__ int end_column(int out_x) const { return min(out_x * stride - before_x + 3, width); }
    // The first window that sees a position `before` behind the first window's begin.
    __device__ int first_seer(int position) const { return (max(position - 2, 0) + stride - 1) / stride; }
};

template <typename T>
__device__ __forceinline__ void pool(const T *x, T *pooled, Windows windows, index_t count) {
    int height = windows.height, width = windows.width, channels = windows.channels;
    int out_height = windows.out_height(), out_width = windows.out_width();
    index_t step = (index_t)gridDim.x * blockDim.x;
    for (index_t i = (index_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
        int channel = (int)(i % channels);
        index_t pixel = i / channels;
        int out_x = (int)(pixel % out_width);
        index_t line = pixel / out_width;
        int out_y = (int)(line % out_height);
        const T *image = x + line / out_height * height * width * channels + channel;
        float best = -INFINITY;
        for (int y = windows.first_row(out_y); y < windows.end_row(out_y); y++)
            for (int column = windows.first_column(out_x); column < windows.end_column(out_x); column++)
                best = fmaxf(best, to_float(image[((index_t)y * width + column) * channels]));
        pooled[i] = from_float<T>(best);
    }
}

// A thread gathers what comes back to its pixel: from every window that it is the first largest of.
template <typename T>
__device__ __forceinline__ void pool_backward(const T *x, const T *pooled, const T *grad_pooled, T *grad_x,
                                              Windows windows, index_t count) {
    int height = windows.height, width = windows.width, channels = windows.channels, stride = windows.stride;
    int out_height = windows.out_height(), out_width = windows.out_width();
    index_t step = (index_t)gridDim.x * blockDim.x;
    for (index_t i = (index_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
        int channel = (int)(i % channels);
        index_t pixel = i / channels;
        int column = (int)(pixel % width);
        index_t line = pixel / width;
        int row = (int)(line % height);
        index_t image_index = line / height;
        const T *image = x + image_index * height * width * channels + channel;
        int from_y = row + windows.before_y, from_x = column + windows.before_x;
        float own = to_float(x[i]), sum = 0.0f;
        for (int out_y = windows.first_seer(from_y); out_y <= min(from_y / stride, out_height - 1); out_y++)
            for (int out_x = windows.first_seer(from_x); out_x <= min(from_x / stride, out_width - 1); out_x++) {
                index_t seer = ((image_index * out_height + out_y) * out_width + out_x) * channels + channel;
                if (to_float(pooled[seer]) != own) continue;
                bool is_first = true;
                for (int y = windows.first_row(out_y); is_first && y <= row; y++) {
                    int end = y == row ? column : windows.end_column(out_x);
                    for (int c = windows.first_column(out_x); is_first && c < end; c++)
                        is_first = to_float(image[((index_t)y * width + c) * channels]) != own;
                }
                if (is_first) sum += to_float(grad_pooled[seer]);
            }
        grad_x[i] = from_float<T>(sum);
    }
}

#define FOR_TYPE(T, name)                                                                                          \
    extern "C" __global__ void max_pool_##name(const T *x, T *pooled, int height, int width, int channels,         \
                                               int stride, int before_y, int before_x, index_t count) {            \
        pool(x, pooled, Windows{height, width, channels, stride, before_y, before_x}, count);                      \
    }                                                                                                              \
    extern "C" __global__ void max_pool_backward_##name(const T *x, const T *pooled, const T *grad_pooled,         \
                                                        T *grad_x, int height, int width, int channels,            \
                                                        int stride, int before_y, int before_x, index_t count) {   \
        pool_backward(x, pooled, grad_pooled, grad_x,                                                              \
                      Windows{height, width, channels, stride, before_y, before_x}, count);                        \
    }
FOR_TYPE(float, f32)
FOR_TYPE(bf16, bf16)
