// Operations on single elements: GELU, dropout, bias, the scaled sum of a residual branch, casts.
#include "dropout.cuh"
#include "gelu.cuh"
#include "values.cuh"

// Calls `function.at<N>(index)` for groups of four elements or, where memory is not aligned and at the end, for single
// ones.
template <typename F> __device__ __forceinline__ void for_each_group(index_t count, bool aligned, F function) {
    index_t step = (index_t)gridDim.x * blockDim.x;
    index_t first = (index_t)blockIdx.x * blockDim.x + threadIdx.x;
    index_t groups = aligned ? count / 4 : 0;
    for (index_t group = first; group < groups; group += step) function.template at<4>(group * 4);
    for (index_t i = groups * 4 + first; i < count; i += step) function.template at<1>(i);
}

// y = f(index, x)
template <typename From, typename To, typename F> struct Unary {
    const From *x;
    To *y;
    F function;
    template <int N> __device__ __forceinline__ void at(index_t i) const {
        float values[N];
        load<N>(x + i, values);
        function(i, values);
        store<N>(y + i, values);
    }
};

template <typename From, typename To, typename F>
__device__ __forceinline__ void unary(const From *x, To *y, index_t count, F function) {
    for_each_group(count, is_aligned<4>(x) && is_aligned<4>(y), Unary<From, To, F>{x, y, function});
}

struct Same {
    template <int N> __device__ __forceinline__ void operator()(index_t, float (&)[N]) const {}
};
struct Gelu {
    template <int N> __device__ __forceinline__ void operator()(index_t, float (&values)[N]) const {
#pragma unroll
        for (int k = 0; k < N; k++) values[k] = gelu(values[k]);
    }
};
struct Drop {
    Dropout dropout;
    template <int N> __device__ __forceinline__ void operator()(index_t i, float (&values)[N]) const {
        dropout.apply(i, values);
    }
};

template <typename T> struct GeluBackward {
    const T *x, *grad_y;
    T *grad_x;
    template <int N> __device__ __forceinline__ void at(index_t i) const {
        float inputs[N], grads[N];
        load<N>(x + i, inputs);
        load<N>(grad_y + i, grads);
#pragma unroll
        for (int k = 0; k < N; k++) grads[k] *= gelu_slope(inputs[k], normal_distribution(inputs[k]));
        store<N>(grad_x + i, grads);
    }
};

// One block a row: calls `function.at<N>(index, column)` for all of its elements, four at a time where that goes.
template <typename F> __device__ __forceinline__ void for_each_in_row(int columns, F function) {
    index_t start = (index_t)blockIdx.x * columns;
    if (columns % 4 == 0)
        for (int i = threadIdx.x * 4; i < columns; i += blockDim.x * 4) function.template at<4>(start + i, i);
    else
        for (int i = threadIdx.x; i < columns; i += blockDim.x) function.template at<1>(start + i, i);
}

template <int N> __device__ __forceinline__ void add(float (&values)[N], const float *more) {
    float added[N];
    load<N>(more, added);
#pragma unroll
    for (int k = 0; k < N; k++) values[k] += added[k];
}

// y = f(y + bias)
template <typename T, typename F> struct AddBias {
    T *y;
    const float *bias;
    F function;
    template <int N> __device__ __forceinline__ void at(index_t i, int column) const {
        float values[N];
        load<N>(y + i, values);
        add(values, bias + column);
        function(i, values);
        store<N>(y + i, values);
    }
};

// hidden += bias, which backward needs, and activated = dropout(GELU(hidden)), which the next product takes.
template <typename T> struct Activate {
    T *hidden;
    const float *bias;
    T *activated;
    Dropout dropout;
    template <int N> __device__ __forceinline__ void at(index_t i, int column) const {
        float values[N];
        load<N>(hidden + i, values);
        add(values, bias + column);
        store<N>(hidden + i, values);
        // As backward will read it.
#pragma unroll
        for (int k = 0; k < N; k++) values[k] = gelu(to_float(from_float<T>(values[k])));
        dropout.apply(i, values);
        store<N>(activated + i, values);
    }
};

// y = x + scale · b with b = dropout(branch + bias). A bias that is null is zero, a scale that is null is one. Where
// `kept` is not null b is stored there; it may lie where the branch does.
template <typename T> struct AddScaled {
    const float *x;
    const T *branch;
    const float *bias, *scale;
    float *y;
    T *kept;
    Dropout dropout;
    template <int N> __device__ __forceinline__ void at(index_t i, int column) const {
        float values[N];
        load<N>(branch + i, values);
        if (bias) add(values, bias + column);
        dropout.apply(i, values);
        if (kept) store<N>(kept + i, values);
        if (scale) {
            float factors[N];
            load<N>(scale + column, factors);
#pragma unroll
            for (int k = 0; k < N; k++) values[k] *= factors[k];
        }
        add(values, x + i);
        store<N>(y + i, values);
    }
};

template <typename T> struct AddScaledBackward {
    const float *grad_y, *scale;
    T *grad_branch;
    template <int N> __device__ __forceinline__ void at(index_t i, int column) const {
        float grads[N];
        load<N>(grad_y + i, grads);
        if (scale) {
            float factors[N];
            load<N>(scale + column, factors);
#pragma unroll
            for (int k = 0; k < N; k++) grads[k] *= factors[k];
        }
        store<N>(grad_branch + i, grads);
    }
};

#define FOR_TYPE(T, name)                                                                                          \
    extern "C" __global__ void gelu_##name(const T *x, T *y, index_t count) { unary(x, y, count, Gelu{}); }        \
    extern "C" __global__ void gelu_backward_##name(const T *x, const T *grad_y, T *grad_x, index_t count) {       \
        bool aligned = is_aligned<4>(x) && is_aligned<4>(grad_y) && is_aligned<4>(grad_x);                         \
        for_each_group(count, aligned, GeluBackward<T>{x, grad_y, grad_x});                                        \
    }                                                                                                              \
    extern "C" __global__ void dropout_##name(const T *x, T *y, index_t count, uint64_t key, uint64_t position,    \
                                              float rate, float kept) {                                            \
        unary(x, y, count, Drop{{key, position, rate, kept}});                                                     \
    }                                                                                                              \
    extern "C" __global__ void bias_##name(T *y, const float *bias, int columns) {                                 \
        for_each_in_row(columns, AddBias<T, Same>{y, bias, Same{}});                                               \
    }                                                                                                              \
    extern "C" __global__ void bias_gelu_##name(T *y, const float *bias, int columns) {                            \
        for_each_in_row(columns, AddBias<T, Gelu>{y, bias, Gelu{}});                                               \
    }                                                                                                              \
    extern "C" __global__ void activate_##name(T *hidden, const float *bias, T *activated, int columns,            \
                                               uint64_t key, uint64_t position, float rate, float kept) {          \
        for_each_in_row(columns, Activate<T>{hidden, bias, activated, {key, position, rate, kept}});               \
    }                                                                                                              \
    extern "C" __global__ void add_scaled_##name(const float *x, const T *branch, const float *bias,               \
                                                 const float *scale, float *y, T *branch_kept, int columns,        \
                                                 uint64_t key, uint64_t position, float rate, float kept) {        \
        Dropout dropout{key, position, rate, kept};                                                                \
        for_each_in_row(columns, AddScaled<T>{x, branch, bias, scale, y, branch_kept, dropout});                   \
    }                                                                                                              \
    extern "C" __global__ void add_scaled_backward_##name(const float *grad_y, const float *scale, T *grad_branch, \
                                                          int columns) {                                           \
        for_each_in_row(columns, AddScaledBackward<T>{grad_y, scale, grad_branch});                                \
    }
FOR_TYPE(float, f32)
FOR_TYPE(bf16, bf16)

extern "C" __global__ void cast_f32_bf16(const float *x, bf16 *y, index_t count) { unary(x, y, count, Same{}); }
extern "C" __global__ void cast_bf16_f32(const bf16 *x, float *y, index_t count) { unary(x, y, count, Same{}); }

// Parameters of one launch, with their means and gradients; as many as kernels' arguments have room for.
const int MAX_PARAMETERS = 96;
struct AdamParameters {
    float *weight[MAX_PARAMETERS], *mean[MAX_PARAMETERS], *mean_square[MAX_PARAMETERS];
    const float *gradient[MAX_PARAMETERS];
    index_t count[MAX_PARAMETERS];
};

struct Adam {
    float *weight, *mean, *mean_square;
    const float *gradient;
    float beta1, beta2, rate, root_correction2, eps;
    template <int N> __device__ __forceinline__ void at(index_t i) const {
        float w[N], m[N], v[N], g[N];
        load<N>(weight + i, w);
        load<N>(mean + i, m);
        load<N>(mean_square + i, v);
        load<N>(gradient + i, g);
#pragma unroll
        for (int k = 0; k < N; k++) {
            m[k] = m[k] * beta1 + g[k] * (1.0f - beta1);
            v[k] = v[k] * beta2 + g[k] * g[k] * (1.0f - beta2);
            w[k] -= m[k] / (sqrtf(v[k]) / root_correction2 + eps) * rate;
        }
        store<N>(mean + i, m);
        store<N>(mean_square + i, v);
        store<N>(weight + i, w);
    }
};

// One step of Adam without weight decay, in place, on parameter blockIdx.y; the arguments are named as in the CPU's kernel.
extern "C" __global__ void adam(const __grid_constant__ AdamParameters parameters, float beta1, float beta2, float rate,
                                float root_correction2, float eps) {
    int p = blockIdx.y;
    Adam step{parameters.weight[p], parameters.mean[p], parameters.mean_square[p], parameters.gradient[p],
              beta1, beta2, rate, root_correction2, eps};
    bool aligned = is_aligned<4>(step.weight) && is_aligned<4>(step.mean) && is_aligned<4>(step.mean_square) &&
                   is_aligned<4>(step.gradient);
    for_each_group(parameters.count[p], aligned, step);
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
