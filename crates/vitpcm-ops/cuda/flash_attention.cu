// Attention of bf16 queries, keys and values with 64 features a head, from packed qkv and without the matrix of tokens by
// tokens: a block of 128 queries meets the keys in tiles of 64, softmax is carried along (running maximum and sum).
//
// Four warps of 32 queries each. Products are mma.m16n8k16; a warp's scores stay in registers and are, rounded to bf16,
// the left factor of the product with the values. Tiles go through shared memory in two stages.
//
// The bias of queries, keys and values may still be missing from qkv: that of the queries is added to registers, that of
// the values to the result, since a row's weights sum to one; that of the keys adds the same to all scores of a row,
// which softmax does not see.
#include "attention_tiles.cuh"

namespace {
const int QUERIES = 128, KEYS = 64, THREADS = 128;
}

// qkv [B, N, 3, heads, 64], bias [3, heads, 64] or null, y [B, N, heads, 64]; log_sums, for backward or null, is
// [B, heads, N]: the logarithms to base 2 of the sums over keys of exp(score); blocks: (queries / 128, B · heads).
extern "C" __global__ void __launch_bounds__(THREADS, 2)
    flash_attention(const bf16 *qkv, const float *bias, bf16 *y, float *log_sums, int tokens, int heads,
                    float scale_log2) {
    __shared__ __align__(128) bf16 shared[2][2][KEYS * FEATURES];
    int image = blockIdx.y / heads, head = blockIdx.y % heads;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int first_query = blockIdx.x * QUERIES;
    index_t token_stride = 3 * (index_t)heads * FEATURES;
    const bf16 *queries = qkv + image * tokens * token_stride + head * FEATURES;
    const bf16 *keys = queries + heads * FEATURES, *values = keys + heads * FEATURES;
    unsigned base = (unsigned)__cvta_generic_to_shared(&shared[0][0][0]);
    const unsigned TILE = KEYS * FEATURES * sizeof(bf16);

    // The queries pass through the first stage's memory into registers.
    for (int i = threadIdx.x; i < QUERIES * PIECES; i += THREADS) {
        int row = i / PIECES, piece = i % PIECES, token = first_query + row;
        bool exists = token < tokens;
        copy_piece(piece_address(base, row, piece), queries + (exists ? token : 0) * token_stride + piece * 8, exists);
    }
    end_of_copies();
    wait_for_copies<0>();
    __syncthreads();
    unsigned q[2][4][4];
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
        for (int k = 0; k < 4; k++)
            load_matrices(q[m][k], piece_address(base, warp * 32 + m * 16 + lane % 16, k * 2 + lane / 16));
    if (bias) {
#pragma unroll
        for (int k = 0; k < 4; k++)
#pragma unroll
            for (int right = 0; right < 2; right++) {
                float added[2];
                load<2>(bias + head * FEATURES + k * 16 + right * 8 + lane % 4 * 2, added);
#pragma unroll
                for (int m = 0; m < 2; m++)
#pragma unroll
                    for (int i = 2 * right; i < 2 * right + 2; i++) {
                        float2 both = __bfloat1622float2(*reinterpret_cast<__nv_bfloat162 *>(&q[m][k][i]));
                        q[m][k][i] = pair(both.x + added[0], both.y + added[1]);
                    }
            }
    }
    __syncthreads();

    auto fetch = [&](int tile, int stage) {
        unsigned to = base + stage * 2 * TILE;
#pragma unroll
        for (int i = threadIdx.x; i < KEYS * PIECES; i += THREADS) {
            int row = i / PIECES, piece = i % PIECES, token = tile * KEYS + row;
            bool exists = token < tokens;
            index_t from = (exists ? token : 0) * token_stride + piece * 8;
            copy_piece(piece_address(to, row, piece), keys + from, exists);
            copy_piece(piece_address(to + TILE, row, piece), values + from, exists);
        }
        end_of_copies();
    };

    float out[2][8][4] = {};
    float largest[2][2] = {{-INFINITY, -INFINITY}, {-INFINITY, -INFINITY}};
    float sum[2][2] = {};
    int num_tiles = (tokens + KEYS - 1) / KEYS;
    fetch(0, 0);
    for (int tile = 0; tile < num_tiles; tile++) {
        if (tile + 1 < num_tiles) {
            fetch(tile + 1, (tile + 1) % 2);
            wait_for_copies<1>();
        } else {
            wait_for_copies<0>();
        }
        __syncthreads();
        unsigned key_tile = base + (tile % 2) * 2 * TILE, value_tile = key_tile + TILE;

        float scores[2][8][4] = {};
#pragma unroll
        for (int k = 0; k < 4; k++)
#pragma unroll
            for (int n = 0; n < 4; n++) {
                unsigned b[4];
                int row = n * 16 + lane % 8 + lane / 16 * 8, piece = k * 2 + lane / 8 % 2;
                load_matrices(b, piece_address(key_tile, row, piece));
#pragma unroll
                for (int m = 0; m < 2; m++) {
                    multiply_add(scores[m][2 * n], q[m][k], b[0], b[1]);
                    multiply_add(scores[m][2 * n + 1], q[m][k], b[2], b[3]);
                }
            }
        if ((tile + 1) * KEYS > tokens) {
#pragma unroll
            for (int n = 0; n < 8; n++)
#pragma unroll
                for (int i = 0; i < 2; i++)
                    if (tile * KEYS + n * 8 + lane % 4 * 2 + i >= tokens)
#pragma unroll
                        for (int m = 0; m < 2; m++) scores[m][n][i] = scores[m][n][i + 2] = -INFINITY;
        }
#pragma unroll
        for (int m = 0; m < 2; m++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                float now = largest[m][half];
#pragma unroll
                for (int n = 0; n < 8; n++)
                    now = fmaxf(now, fmaxf(scores[m][n][2 * half], scores[m][n][2 * half + 1]));
                now = fmaxf(now, __shfl_xor_sync(0xffffffff, now, 1));
                now = fmaxf(now, __shfl_xor_sync(0xffffffff, now, 2));
                float shrink = exp2_fast((largest[m][half] - now) * scale_log2);
                largest[m][half] = now;
                float offset = now * scale_log2, total = 0;
#pragma unroll
                for (int n = 0; n < 8; n++)
#pragma unroll
                    for (int i = 2 * half; i < 2 * half + 2; i++) {
                        scores[m][n][i] = exp2_fast(scores[m][n][i] * scale_log2 - offset);
                        total += scores[m][n][i];
                        out[m][n][i] *= shrink;
                    }
                sum[m][half] = sum[m][half] * shrink + total;
            }
#pragma unroll
        for (int k = 0; k < 4; k++) {
            unsigned weights[2][4];
#pragma unroll
            for (int m = 0; m < 2; m++) {
                weights[m][0] = pair(scores[m][2 * k][0], scores[m][2 * k][1]);
                weights[m][1] = pair(scores[m][2 * k][2], scores[m][2 * k][3]);
                weights[m][2] = pair(scores[m][2 * k + 1][0], scores[m][2 * k + 1][1]);
                weights[m][3] = pair(scores[m][2 * k + 1][2], scores[m][2 * k + 1][3]);
            }
#pragma unroll
            for (int n = 0; n < 4; n++) {
                unsigned b[4];
                load_transposed(b, piece_address(value_tile, k * 16 + lane % 16, n * 2 + lane / 16));
#pragma unroll
                for (int m = 0; m < 2; m++) {
                    multiply_add(out[m][2 * n], weights[m], b[0], b[1]);
                    multiply_add(out[m][2 * n + 1], weights[m], b[2], b[3]);
                }
            }
        }
        __syncthreads();
    }

#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float total = sum[m][half];
            total += __shfl_xor_sync(0xffffffff, total, 1);
            total += __shfl_xor_sync(0xffffffff, total, 2);
            float inverse = 1.0f / total;
            int token = first_query + warp * 32 + m * 16 + half * 8 + lane / 4;
            if (token >= tokens) continue;
            if (log_sums && lane % 4 == 0)
                log_sums[(index_t)blockIdx.y * tokens + token] = largest[m][half] * scale_log2 + log2f(total);
            bf16 *row = y + ((index_t)(image * tokens + token) * heads + head) * FEATURES + lane % 4 * 2;
#pragma unroll
            for (int n = 0; n < 8; n++) {
                float added[2] = {};
                if (bias) load<2>(bias + (2 * heads + head) * FEATURES + n * 8 + lane % 4 * 2, added);
                *reinterpret_cast<unsigned *>(row + n * 8) = pair(out[m][n][2 * half] * inverse + added[0],
                                                                  out[m][n][2 * half + 1] * inverse + added[1]);
            }
        }
}
