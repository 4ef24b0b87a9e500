// Between packed queries, keys and values [B, N, 3, heads, d] and what strided products take: [3, B, heads, P, d],
// where P is N rounded up and the rows behind N are zero.
#include "values.cuh"

// `parts` is 3 for qkv and 1 for the output of attention and its gradient. A bias [parts, heads, d] that is not null is
// added on the way. Vectors of four are counted in 32 bits: the
// matrix of all pairs bounds an image batch long before that.
template <typename T>
__device__ void split_heads(const T *packed, const float *bias, T *split, int batch, int tokens, int padded, int parts, int heads, int d) {
    unsigned count = (unsigned)parts * batch * heads * padded * (d / 4), step = gridDim.x * blockDim.x;
    for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
        unsigned within = i % (d / 4) * 4, rest = i / (d / 4);
        unsigned token = rest % padded;
        rest /= padded;
        unsigned head = rest % heads;
        rest /= heads;
        unsigned image = rest % batch, part = rest / batch;
        float values[4] = {};
        if (token < (unsigned)tokens) {
            load<4>(packed + ((((index_t)image * tokens + token) * parts + part) * heads + head) * d + within, values);
            if (bias) {
                float added[4];
                load<4>(bias + (part * heads + head) * d + within, added);
#pragma unroll
                for (int k = 0; k < 4; k++) values[k] += added[k];
            }
        }
        store<4>(split + (index_t)i * 4, values);
    }
}

template <typename T>
__device__ void join_heads(const T *split, T *packed, int batch, int tokens, int padded, int parts, int heads, int d) {
    unsigned count = (unsigned)parts * batch * heads * tokens * (d / 4), step = gridDim.x * blockDim.x;
    for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
        unsigned within = i % (d / 4) * 4, rest = i / (d / 4);
        unsigned head = rest % heads;
        rest /= heads;
        unsigned part = rest % parts;
        rest /= parts;
        unsigned token = rest % tokens, image = rest / tokens;
        float values[4];
        load<4>(split + ((((index_t)part * batch + image) * heads + head) * padded + token) * d + within, values);
        store<4>(packed + (index_t)i * 4, values);
    }
}

#define FOR_TYPE(T, name)                                                                                          \
    extern "C" __global__ void split_heads_##name(const T *packed, const float *bias, T *split, int batch,         \
                                                  int tokens, int padded, int parts, int heads, int d) {           \
        split_heads(packed, bias, split, batch, tokens, padded, parts, heads, d);                                        \
    }                                                                                                              \
    extern "C" __global__ void join_heads_##name(const T *split, T *packed, int batch, int tokens, int padded,     \
                                                 int parts, int heads, int d) {                                    \
        join_heads(split, packed, batch, tokens, padded, parts, heads, d);                                         \
    }
FOR_TYPE(float, f32)
FOR_TYPE(bf16, bf16)
