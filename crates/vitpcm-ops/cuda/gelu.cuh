// The exact GELU.
#pragma once

// Φ(x), the normal distribution function.
__device__ __forceinline__ float normal_distribution(float x) { return 0.5f * (1.0f + erff(x * 0.70710678118654752f)); }

__device__ __forceinline__ float gelu(float x) { return x * normal_distribution(x); }

__device__ __forceinline__ float gelu_slope(float x, float distribution) {
    return distribution + x * 0.3989422804014327f * expf(-0.5f * x * x);
}
