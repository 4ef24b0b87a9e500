// Attention of bf16 queries, keys and values with 64 features a head, from packed qkv and without the matrix of tokens by
// tokens: a block of 128 queries meets the keys in tiles of 64, softmax is carried along (running maximum and sum).
//
// Four warps of 32 queries each. Products are mma.m16n8k16; a warp's scores stay in registers and are, rounded to bf16,
// the left factor of the product with the values. Tiles go through shared memory in two stages, their 16-byte pieces
// permuted within a row so that eight rows' pieces lie in different banks.
#include "values.cuh"

namespace {
const int QUERIES = 128, KEYS = 64, FEATURES = 64, THREADS = 128, PIECES = FEATURES / 8;

__device__ __forceinline__ unsigned piece_address(unsigned tile, int row, int piece) {
    return tile + (row * PIECES + (piece ^ (row & 7))) * 16;
}

// 16 bytes from global to shared memory, or zeros.
__device__ __forceinline__ void copy_piece(unsigned to, const bf16 *from, bool exists) {
    int bytes = exists ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes));
}
__device__ __forceinline__ void end_of_copies() { asm volatile("cp.async.commit_group;"); }
template <int PENDING> __device__ __forceinline__ void wait_for_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING));
}

__device__ __forceinline__ void load_matrices(unsigned (&to)[4], unsigned address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(address));
}
__device__ __forceinline__ void load_transposed(unsigned (&to)[4], unsigned address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(address));
}
__device__ __forceinline__ void multiply_add(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ __forceinline__ float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
__device__ __forceinline__ unsigned pair(float low, float high) {
    __nv_bfloat162 both = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<unsigned *>(&both);
}
} // namespace

// qkv [B, N, 3, heads, 64], y [B, N, heads, 64]; blocks: (queries / 128, B · heads).
extern "C" __global__ void __launch_bounds__(THREADS, 2)
    flash_attention(const bf16 *qkv, bf16 *y, int tokens, int heads, float scale_log2) {
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
            bf16 *row = y + ((index_t)(image * tokens + token) * heads + head) * FEATURES + lane % 4 * 2;
#pragma unroll
            for (int n = 0; n < 8; n++)
                *reinterpret_cast<unsigned *>(row + n * 8) =
                    pair(out[m][n][2 * half] * inverse, out[m][n][2 * half + 1] * inverse);
        }
}
