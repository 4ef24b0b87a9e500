// Depthwise 3×3 convolutions of [B, H, W, C] with weights [3, 3, C].
#include "values.cuh"

// A thread an element. Backward, taps count from the other end.
template <typename T>
__device__ __forceinline__ void convolve(const T *x, const float *weight, T *y, int height, int width, int channels,
                                         int dilation, int backward, index_t count) {
    index_t step = (index_t)gridDim.x * blockDim.x;
    for (index_t i = (index_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
        int channel = (int)(i % channels);
        index_t pixel = i / channels;
        int column = (int)(pixel % width);
        int row = (int)(pixel / width % height);
        float sum = 0.0f;
#pragma unroll
        for (int tap = 0; tap < 9; tap++) {
            int dy = (tap / 3 - 1) * dilation, dx = (tap % 3 - 1) * dilation;
            if (row + dy < 0 || row + dy >= height || column + dx < 0 || column + dx >= width) continue;
            float value = to_float(x[i + ((index_t)dy * width + dx) * channels]);
            sum += value * weight[(backward ? 8 - tap : tap) * channels + channel];
        }
        y[i] = from_float<T>(sum);
    }
}

// Block (x, y) takes 32 channels of every gridDim.y-th group of eight pixels, and leaves nine sums a channel. The
// stripes are added up behind, so that the result does not depend on the order in which blocks run.
template <typename T>
__device__ __forceinline__ void weight_gradient(const T *x, const T *grad_y, float *partial, int height, int width,
                                                int channels, int dilation, int pixels) {
    __shared__ float shared[8][9][32];
    int channel = blockIdx.x * 32 + threadIdx.x;
    float sums[9] = {};
    if (channel < channels)
        for (int pixel = blockIdx.y * 8 + threadIdx.y; pixel < pixels; pixel += gridDim.y * 8) {
            int column = pixel % width, row = pixel / width % height;
            index_t i = (index_t)pixel * channels + channel;
            float grad = to_float(grad_y[i]);
#pragma unroll
            for (int tap = 0; tap < 9; tap++) {
                int dy = (tap / 3 - 1) * dilation, dx = (tap % 3 - 1) * dilation;
                if (row + dy < 0 || row + dy >= height || column + dx < 0 || column + dx >= width) continue;
                sums[tap] += grad * to_float(x[i + ((index_t)dy * width + dx) * channels]);
            }
        }
#pragma unroll
    for (int tap = 0; tap < 9; tap++) shared[threadIdx.y][tap][threadIdx.x] = sums[tap];
    __syncthreads();
    if (channel >= channels) return;
    for (int tap = threadIdx.y; tap < 9; tap += 8) {
        float sum = 0.0f;
        for (int group = 0; group < 8; group++) sum += shared[group][tap][threadIdx.x];
        partial[((index_t)blockIdx.y * 9 + tap) * channels + channel] = sum;
    }
}

#define FOR_TYPE(T, name)                                                                                          \
    extern "C" __global__ void depthwise_##name(const T *x, const float *weight, T *y, int height, int width,      \
                                                int channels, int dilation, int backward, index_t count) {         \
        convolve(x, weight, y, height, width, channels, dilation, backward, count);                                \
    }                                                                                                              \
    extern "C" __global__ void depthwise_weight_##name(const T *x, const T *grad_y, float *partial, int height,    \
                                                       int width, int channels, int dilation, int pixels) {        \
        weight_gradient(x, grad_y, partial, height, width, channels, dilation, pixels);                            \
    }
FOR_TYPE(float, f32)
FOR_TYPE(bf16, bf16)
