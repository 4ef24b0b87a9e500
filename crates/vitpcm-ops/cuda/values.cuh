// What all kernels share: element types, vectors of four, sums over a warp. Arithmetic is always in f32; bf16 is
// only how values are stored.
#pragma once
#include <cuda_bf16.h>
#include <stdint.h>

typedef __nv_bfloat16 bf16;
typedef long long index_t;

__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(bf16 x) { return __bfloat162float(x); }
template <typename T> __device__ __forceinline__ T from_float(float x);
template <> __device__ __forceinline__ float from_float<float>(float x) { return x; }
template <> __device__ __forceinline__ bf16 from_float<bf16>(float x) { return __float2bfloat16(x); }

// N neighbouring elements, read and written as one.
template <typename T, int N> struct alignas(sizeof(T) * N) Vector {
    T values[N];
};

template <int N, typename T> __device__ __forceinline__ void load(const T *from, float (&to)[N]) {
    Vector<T, N> vector = *reinterpret_cast<const Vector<T, N> *>(from);
#pragma unroll
    for (int i = 0; i < N; i++) to[i] = to_float(vector.values[i]);
}

template <int N, typename T> __device__ __forceinline__ void store(T *to, const float (&from)[N]) {
    Vector<T, N> vector;
#pragma unroll
    for (int i = 0; i < N; i++) vector.values[i] = from_float<T>(from[i]);
    *reinterpret_cast<Vector<T, N> *>(to) = vector;
}

template <int N, typename T> __device__ __forceinline__ bool is_aligned(const T *pointer) {
    return reinterpret_cast<uintptr_t>(pointer) % (sizeof(T) * N) == 0;
}

__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) x += __shfl_xor_sync(0xffffffff, x, offset);
    return x;
}

__device__ __forceinline__ float warp_max(float x) {
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffff, x, offset));
    return x;
}
