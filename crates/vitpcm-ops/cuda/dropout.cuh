// Dropout by a mask that is a function of a key and a position, as on the CPU.
#pragma once
#include "values.cuh"

// A rate of zero drops nothing and costs nothing.
struct Dropout {
    uint64_t key, position;
    float rate, kept;

    // To the N neighbouring values from element `first` on. Number i of the stream is SplitMix64's; its last step leaves
    // the 24 bits that are used as they are. Compared as whole numbers: bits · 2⁻²⁴ ≥ rate.
    template <int N> __device__ __forceinline__ void apply(index_t first, float (&values)[N]) const {
        if (rate <= 0.0f) return;
        const uint64_t GOLDEN = 0x9E3779B97F4A7C15ull;
        unsigned threshold = (unsigned)ceilf(rate * 16777216.0f);
        uint64_t state = key + (position + (uint64_t)first + 1) * GOLDEN;
#pragma unroll
        for (int k = 0; k < N; k++) {
            uint64_t z = state + k * GOLDEN;
            z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
            z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
            values[k] = (unsigned)(z >> 40) >= threshold ? values[k] * kept : 0.0f;
        }
    }
};
