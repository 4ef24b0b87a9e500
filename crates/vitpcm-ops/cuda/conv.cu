// Convolutions of [B, H, W, C] around cuBLAS's products: columns and back, and what follows a convolution in a ResNet.
#include "values.cuh"

// The members of ConvShape in Rust that kernels need.
struct Geometry {
    int height, width, channels, out_height, out_width, kernel, stride, padding, dilation;
};

// The columns of output pixels from `first` on, `rows` of them: a warp a pixel, its threads copy N channels of a tap each.
template <int N, typename T>
__device__ __forceinline__ void unfold(const T *x, T *columns, const Geometry &g, index_t first, index_t rows) {
    int groups = g.channels / N, count = g.kernel * g.kernel * groups;
    index_t step = (index_t)gridDim.x * blockDim.y;
    for (index_t place = (index_t)blockIdx.x * blockDim.y + threadIdx.y; place < rows; place += step) {
        index_t row = first + place;
        int out_x = (int)(row % g.out_width);
        index_t line = row / g.out_width;
        int out_y = (int)(line % g.out_height);
        const T *image = x + line / g.out_height * g.height * g.width * g.channels;
        int top = out_y * g.stride - g.padding, left = out_x * g.stride - g.padding;
        Vector<T, N> *to = reinterpret_cast<Vector<T, N> *>(columns) + place * count;
        for (int i = threadIdx.x; i < count; i += 32) {
            int tap = i / groups, group = i - tap * groups;
            int y = top + tap / g.kernel * g.dilation, column = left + tap % g.kernel * g.dilation;
            Vector<T, N> values;
            if (y >= 0 && y < g.height && column >= 0 && column < g.width) {
                const T *from = image + ((index_t)y * g.width + column) * g.channels + group * N;
                values = *reinterpret_cast<const Vector<T, N> *>(from);
            } else {
#pragma unroll
                for (int k = 0; k < N; k++) values.values[k] = from_float<T>(0.0f);
            }
            to[i] = values;
        }
    }
}

// The way back, for whole images: a thread sums N channels of one input pixel over all taps that see it.
template <int N, typename T>
__device__ __forceinline__ void fold(const T *columns, T *x, Geometry g, index_t pixels) {
    int groups = g.channels / N;
    index_t column_len = (index_t)g.kernel * g.kernel * g.channels;
    index_t count = pixels * groups, step = (index_t)gridDim.x * blockDim.x;
    for (index_t i = (index_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
        int group = (int)(i % groups);
        index_t pixel = i / groups;
        int column = (int)(pixel % g.width);
        index_t line = pixel / g.width;
        int row = (int)(line % g.height);
        index_t image = line / g.height;
        float sums[N] = {};
        for (int tap_y = 0; tap_y < g.kernel; tap_y++) {
            int start_y = row + g.padding - tap_y * g.dilation;
            if (start_y < 0 || start_y % g.stride != 0 || start_y / g.stride >= g.out_height) continue;
            for (int tap_x = 0; tap_x < g.kernel; tap_x++) {
                int start_x = column + g.padding - tap_x * g.dilation;
                if (start_x < 0 || start_x % g.stride != 0 || start_x / g.stride >= g.out_width) continue;
                index_t seer = (image * g.out_height + start_y / g.stride) * g.out_width + start_x / g.stride;
                float values[N];
                load<N>(columns + seer * column_len + (tap_y * g.kernel + tap_x) * g.channels + group * N, values);
#pragma unroll
                for (int k = 0; k < N; k++) sums[k] += values[k];
            }
        }
        store<N>(x + i * N, sums);
    }
}

// N neighbouring factors of channels; vectors of floats are of four at most.
template <int N> __device__ __forceinline__ void load_floats(const float *from, float (&to)[N]) {
    constexpr int V = N < 4 ? N : 4;
#pragma unroll
    for (int start = 0; start < N; start += V) {
        float part[V];
        load<V>(from + start, part);
#pragma unroll
        for (int k = 0; k < V; k++) to[start + k] = part[k];
    }
}

// y = relu(scale · y + shift + residual) in place; a residual that is null is none. `channels` is a multiple of N.
template <int N, typename T>
__device__ __forceinline__ void finish(T *y, const float *scale, const float *shift, const T *residual, int relu,
                                       int channels, index_t count) {
    index_t step = (index_t)gridDim.x * blockDim.x * N;
    for (index_t i = ((index_t)blockIdx.x * blockDim.x + threadIdx.x) * N; i < count; i += step) {
        int channel = (int)(i % channels);
        float values[N], factors[N], summands[N], added[N];
        load<N>(y + i, values);
        load_floats(scale + channel, factors);
        load_floats(shift + channel, summands);
        if (residual) load<N>(residual + i, added);
#pragma unroll
        for (int k = 0; k < N; k++) {
            values[k] = values[k] * factors[k] + summands[k];
            if (residual) values[k] += added[k];
            // What is not a number stays, so that it is found.
            if (relu && values[k] < 0.0f) values[k] = 0.0f;
        }
        store<N>(y + i, values);
    }
}

// The gradients of the residual, where it is not null, and of what `scale` multiplied.
template <int N, typename T>
__device__ __forceinline__ void finish_backward(const T *y, const T *grad_y, const float *scale, T *grad_residual,
                                                T *grad_product, int relu, int channels, index_t count) {
    index_t step = (index_t)gridDim.x * blockDim.x * N;
    for (index_t i = ((index_t)blockIdx.x * blockDim.x + threadIdx.x) * N; i < count; i += step) {
        int channel = (int)(i % channels);
        float values[N], grads[N], factors[N];
        load<N>(y + i, values);
        load<N>(grad_y + i, grads);
        load_floats(scale + channel, factors);
#pragma unroll
        for (int k = 0; k < N; k++)
            if (relu && !(values[k] > 0.0f)) grads[k] = 0.0f;
        if (grad_residual) store<N>(grad_residual + i, grads);
#pragma unroll
        for (int k = 0; k < N; k++) grads[k] *= factors[k];
        store<N>(grad_product + i, grads);
    }
}

// Memory of whole arrays begins on 16 bytes and more; parts of a batch do where the channels are a multiple of W.
#define FOR_TYPE(T, name, W)                                                                                       \
    extern "C" __global__ void unfold_##name(const T *x, T *columns, Geometry g, index_t first, index_t rows) {    \
        if (g.channels % W == 0 && is_aligned<W>(x) && is_aligned<W>(columns))                                     \
            unfold<W>(x, columns, g, first, rows);                                                                 \
        else                                                                                                       \
            unfold<1>(x, columns, g, first, rows);                                                                 \
    }                                                                                                              \
    extern "C" __global__ void fold_##name(const T *columns, T *x, Geometry g, index_t pixels) {                   \
        if (g.channels % W == 0 && is_aligned<W>(x) && is_aligned<W>(columns))                                     \
            fold<W>(columns, x, g, pixels);                                                                        \
        else                                                                                                       \
            fold<1>(columns, x, g, pixels);                                                                        \
    }                                                                                                              \
    extern "C" __global__ void finish_##name(T *y, const float *scale, const float *shift, const T *residual,      \
                                             int relu, int channels, index_t count) {                              \
        if (channels % W == 0 && is_aligned<W>(y) && is_aligned<W>(residual) && is_aligned<4>(scale) &&            \
            is_aligned<4>(shift))                                                                                  \
            finish<W>(y, scale, shift, residual, relu, channels, count);                                           \
        else                                                                                                       \
            finish<1>(y, scale, shift, residual, relu, channels, count);                                           \
    }                                                                                                              \
    extern "C" __global__ void finish_backward_##name(const T *y, const T *grad_y, const float *scale,             \
                                                      T *grad_residual, T *grad_product, int relu, int channels,   \
                                                      index_t count) {                                             \
        if (channels % W == 0 && is_aligned<W>(y) && is_aligned<W>(grad_y) && is_aligned<4>(scale) &&              \
            is_aligned<W>(grad_residual) && is_aligned<W>(grad_product))                                           \
            finish_backward<W>(y, grad_y, scale, grad_residual, grad_product, relu, channels, count);              \
        else                                                                                                       \
            finish_backward<1>(y, grad_y, scale, grad_residual, grad_product, relu, channels, count);              \
    }
FOR_TYPE(float, f32, 4)
FOR_TYPE(bf16, bf16, 8)
