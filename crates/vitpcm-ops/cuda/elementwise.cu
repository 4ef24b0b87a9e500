// Operations on single elements: GELU, dropout, bias, the scaled sum of a residual branch, casts.
#include "values.cuh"

// Calls `function(index, width)` for groups of four elements (width 4) or, where memory is not aligned and at the
// end, for single ones (width 1).
template <typename F> __device__ __forceinline__ void for_each_group(index_t count, bool aligned, F function) {
    index_t step = (index_t)gridDim.x * blockDim.x;
    index_t first = (index_t)blockIdx.x * blockDim.x + threadIdx.x;
    index_t groups = aligned ? count / 4 : 0;
    for (index_t group = first; group < groups; group += step) function.four(group * 4);
    for (index_t i = groups * 4 + first; i < count; i += step) function.one(i);
}

__device__ __forceinline__ float gelu(float x) { return 0.5f * x * (1.0f + erff(x * 0.70710678118654752f)); }

__device__ __forceinline__ float gelu_slope(float x) {
    float distribution = 0.5f * (1.0f + erff(x * 0.70710678118654752f));
    return distribution + x * 0.3989422804014327f * expf(-0.5f * x * x);
}

// y = f(index, x)
template <typename From, typename To, typename F> struct Unary {
    const From *x;
    To *y;
    F function;
    __device__ void four(index_t i) const {
        float values[4];
        load<4>(x + i, values);
#pragma unroll
        for (int k = 0; k < 4; k++) values[k] = function(i + k, values[k]);
        store<4>(y + i, values);
    }
    __device__ void one(index_t i) const { y[i] = from_float<To>(function(i, to_float(x[i]))); }
};

template <typename From, typename To, typename F>
__device__ __forceinline__ void unary(const From *x, To *y, index_t count, F function) {
    for_each_group(count, is_aligned<4>(x) && is_aligned<4>(y), Unary<From, To, F>{x, y, function});
}

struct Same {
    __device__ float operator()(index_t, float x) const { return x; }
};
struct Gelu {
    __device__ float operator()(index_t, float x) const { return gelu(x); }
};

// Number i of the stream is SplitMix64's, as on the CPU.
struct Dropout {
    uint64_t key, position;
    float rate, kept;
    __device__ float operator()(index_t i, float x) const {
        uint64_t z = key + (position + (uint64_t)i + 1) * 0x9E3779B97F4A7C15ull;
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
        z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
        z ^= z >> 31;
        float uniform = (float)(z >> 40) * (1.0f / 16777216.0f);
        return uniform >= rate ? x * kept : 0.0f;
    }
};

template <typename T> struct GeluBackward {
    const T *x, *grad_y;
    T *grad_x;
    __device__ void four(index_t i) const {
        float inputs[4], grads[4];
        load<4>(x + i, inputs);
        load<4>(grad_y + i, grads);
#pragma unroll
        for (int k = 0; k < 4; k++) grads[k] *= gelu_slope(inputs[k]);
        store<4>(grad_x + i, grads);
    }
    __device__ void one(index_t i) const { grad_x[i] = from_float<T>(to_float(grad_y[i]) * gelu_slope(to_float(x[i]))); }
};

// One block a row: y = f(x + bias).
template <typename T, typename F> __device__ void bias_rows(T *y, const float *bias, int columns, F function) {
    T *row = y + (index_t)blockIdx.x * columns;
    if (columns % 4 == 0) {
        for (int i = threadIdx.x * 4; i < columns; i += blockDim.x * 4) {
            float values[4], added[4];
            load<4>(row + i, values);
            load<4>(bias + i, added);
#pragma unroll
            for (int k = 0; k < 4; k++) values[k] = function(i, values[k] + added[k]);
            store<4>(row + i, values);
        }
    } else {
        for (int i = threadIdx.x; i < columns; i += blockDim.x)
            row[i] = from_float<T>(function(i, to_float(row[i]) + bias[i]));
    }
}

// One block a row: y = x + scale · branch; a scale that is null is one. `columns` is a multiple of N.
template <int N, typename T>
__device__ void add_scaled_rows(const float *x, const T *branch, const float *scale, float *y, int columns) {
    index_t start = (index_t)blockIdx.x * columns;
    for (int i = threadIdx.x * N; i < columns; i += blockDim.x * N) {
        float sums[N], added[N], factors[N];
        load<N>(x + start + i, sums);
        load<N>(branch + start + i, added);
        if (scale) load<N>(scale + i, factors);
#pragma unroll
        for (int k = 0; k < N; k++) sums[k] += added[k] * (scale ? factors[k] : 1.0f);
        store<N>(y + start + i, sums);
    }
}

template <int N, typename T>
__device__ void add_scaled_rows_backward(const float *grad_y, const float *scale, T *grad_branch, int columns) {
    index_t start = (index_t)blockIdx.x * columns;
    for (int i = threadIdx.x * N; i < columns; i += blockDim.x * N) {
        float grads[N], factors[N];
        load<N>(grad_y + start + i, grads);
        if (scale) load<N>(scale + i, factors);
#pragma unroll
        for (int k = 0; k < N; k++) grads[k] *= scale ? factors[k] : 1.0f;
        store<N>(grad_branch + start + i, grads);
    }
}

#define FOR_TYPE(T, name)                                                                                          \
    extern "C" __global__ void gelu_##name(const T *x, T *y, index_t count) { unary(x, y, count, Gelu{}); }        \
    extern "C" __global__ void gelu_backward_##name(const T *x, const T *grad_y, T *grad_x, index_t count) {       \
        bool aligned = is_aligned<4>(x) && is_aligned<4>(grad_y) && is_aligned<4>(grad_x);                         \
        for_each_group(count, aligned, GeluBackward<T>{x, grad_y, grad_x});                                        \
    }                                                                                                              \
    extern "C" __global__ void dropout_##name(const T *x, T *y, index_t count, uint64_t key, uint64_t position,    \
                                              float rate, float kept) {                                            \
        unary(x, y, count, Dropout{key, position, rate, kept});                                                    \
    }                                                                                                              \
    extern "C" __global__ void bias_##name(T *y, const float *bias, int columns) {                                 \
        bias_rows(y, bias, columns, Same{});                                                                       \
    }                                                                                                              \
    extern "C" __global__ void bias_gelu_##name(T *y, const float *bias, int columns) {                            \
        bias_rows(y, bias, columns, Gelu{});                                                                       \
    }                                                                                                              \
    extern "C" __global__ void add_scaled_##name(const float *x, const T *branch, const float *scale, float *y,    \
                                                 int columns) {                                                    \
        if (columns % 4 == 0)                                                                                      \
            add_scaled_rows<4>(x, branch, scale, y, columns);                                                      \
        else                                                                                                       \
            add_scaled_rows<1>(x, branch, scale, y, columns);                                                      \
    }                                                                                                              \
    extern "C" __global__ void add_scaled_backward_##name(const float *grad_y, const float *scale, T *grad_branch, \
                                                          int columns) {                                           \
        if (columns % 4 == 0)                                                                                      \
            add_scaled_rows_backward<4>(grad_y, scale, grad_branch, columns);                                      \
        else                                                                                                       \
            add_scaled_rows_backward<1>(grad_y, scale, grad_branch, columns);                                      \
    }
FOR_TYPE(float, f32)
FOR_TYPE(bf16, bf16)

extern "C" __global__ void cast_f32_bf16(const float *x, bf16 *y, index_t count) { unary(x, y, count, Same{}); }
extern "C" __global__ void cast_bf16_f32(const bf16 *x, float *y, index_t count) { unary(x, y, count, Same{}); }

// One step of Adam without weight decay, in place; the arguments are named as in the CPU's kernel.
extern "C" __global__ void adam(float *weight, float *mean, float *mean_square, const float *gradient, index_t count,
                                float beta1, float beta2, float rate, float root_correction2, float eps) {
    index_t step = (index_t)gridDim.x * blockDim.x;
    for (index_t i = (index_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
        float g = gradient[i];
        float m = mean[i] = mean[i] * beta1 + g * (1.0f - beta1);
        float v = mean_square[i] = mean_square[i] * beta2 + g * g * (1.0f - beta2);
        weight[i] -= m / (sqrtf(v) / root_correction2 + eps) * rate;
    }
}

// A mean that moves towards a value, in place.
extern "C" __global__ void follow(float *mean, const float *value, index_t count, float decay) {
    index_t step = (index_t)gridDim.x * blockDim.x;
    for (index_t i = (index_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step)
        mean[i] = mean[i] * decay + value[i] * (1.0f - decay);
}

// One step of SGD with momentum and weight decay, in place.
extern "C" __global__ void sgd(float *weight, float *velocity, const float *gradient, index_t count, float rate,
                               float momentum, float weight_decay) {
    index_t step = (index_t)gridDim.x * blockDim.x;
    for (index_t i = (index_t)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
        float v = velocity[i] = velocity[i] * momentum + (gradient[i] + weight[i] * weight_decay);
        weight[i] -= rate * v;
    }
}
