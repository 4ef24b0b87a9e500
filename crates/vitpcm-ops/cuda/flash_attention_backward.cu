// Backward of attention of bf16 queries, keys and values with 64 features a head, without the matrix of tokens by tokens:
// weights are computed again from the logarithms of their rows' sums, which forward has kept.
//
// Two passes over all pairs, one for the gradients of keys and values and one for that of the queries, so that every
// number is summed by one warp and in one order. In either a block owns 64 rows, 16 to each of four warps, and the
// other side's rows come by in tiles of 64. With rows X₁, X₂ (keys, values; or queries, grad_y) and tiles Y₁, Y₂ (queries,
// grad_y; or keys, values) both compute scores = X₁·Y₁ᵀ and grad_weights = X₂·Y₂ᵀ, from which come the weights and
// grad_scores = weights · (grad_weights − along), then grad X₁ += grad_scores·Y₁ and, of keys and values, grad X₂ += weights·Y₂.
#include "attention_tiles.cuh"

namespace {
const int ROWS = 64, THREADS = 128;
const unsigned TILE = ROWS * FEATURES * sizeof(bf16);

// Whose rows a block owns.
enum Side { QUERIES, KEYS };

// The weights a tile's factor needs, rounded to bf16, as left factor of a product: columns 16 k to 16 k + 15.
__device__ __forceinline__ void left_factor(unsigned (&to)[4], const float (&values)[8][4], int k) {
    to[0] = pair(values[2 * k][0], values[2 * k][1]);
    to[1] = pair(values[2 * k][2], values[2 * k][3]);
    to[2] = pair(values[2 * k + 1][0], values[2 * k + 1][1]);
    to[3] = pair(values[2 * k + 1][2], values[2 * k + 1][3]);
}

// product += rows · tileᵀ
__device__ __forceinline__ void multiply_by_rows(float (&product)[8][4], const unsigned (&rows)[4][4], unsigned tile) {
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int k = 0; k < 4; k++)
#pragma unroll
        for (int n = 0; n < 4; n++) {
            unsigned b[4];
            load_matrices(b, piece_address(tile, n * 16 + lane % 8 + lane / 16 * 8, k * 2 + lane / 8 % 2));
            multiply_add(product[2 * n], rows[k], b[0], b[1]);
            multiply_add(product[2 * n + 1], rows[k], b[2], b[3]);
        }
}

// product += left · tile
__device__ __forceinline__ void multiply_by_tile(float (&product)[8][4], const float (&left)[8][4], unsigned tile) {
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int k = 0; k < 4; k++) {
        unsigned a[4];
        left_factor(a, left, k);
#pragma unroll
        for (int n = 0; n < 4; n++) {
            unsigned b[4];
            load_transposed(b, piece_address(tile, k * 16 + lane % 16, n * 2 + lane / 16));
            multiply_add(product[2 * n], a, b[0], b[1]);
            multiply_add(product[2 * n + 1], a, b[2], b[3]);
        }
    }
}

// 64 rows, those behind the last token zero.
__device__ __forceinline__ void copy_tile(unsigned to, const bf16 *from, index_t stride, int first, int tokens) {
#pragma unroll
    for (int i = threadIdx.x; i < ROWS * PIECES; i += THREADS) {
        int row = i / PIECES, piece = i % PIECES, token = first + row;
        bool exists = token < tokens;
        copy_piece(piece_address(to, row, piece), from + (exists ? token : 0) * stride + piece * 8, exists);
    }
}

__device__ __forceinline__ void store_rows(bf16 *to, index_t stride, int first, int tokens, const float (&values)[8][4],
                                           float scale) {
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int token = first + threadIdx.x / 32 * 16 + half * 8 + lane / 4;
        if (token >= tokens) continue;
        bf16 *row = to + token * stride + lane % 4 * 2;
#pragma unroll
        for (int n = 0; n < 8; n++)
            *reinterpret_cast<unsigned *>(row + n * 8) =
                pair(values[n][2 * half] * scale, values[n][2 * half + 1] * scale);
    }
}
} // namespace

// log_sums and along are [B, heads, N]; blocks: (rows / 64, B · heads).
template <Side OWN>
__device__ __forceinline__ void backward(const bf16 *qkv, const bf16 *grad_y, const float *log_sums, const float *along,
                                         bf16 *grad_qkv, int tokens, int heads, float scale, float scale_log2) {
    __shared__ __align__(128) bf16 shared[2][2][ROWS * FEATURES];
    __shared__ float shared_log_sums[2][ROWS], shared_along[2][ROWS];
    int image = blockIdx.y / heads, head = blockIdx.y % heads;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32, first = blockIdx.x * ROWS;
    index_t qkv_stride = 3 * (index_t)heads * FEATURES, y_stride = (index_t)heads * FEATURES;
    index_t qkv_start = image * tokens * qkv_stride + head * FEATURES;
    const bf16 *queries = qkv + qkv_start, *keys = queries + y_stride, *values = keys + y_stride;
    const bf16 *grads = grad_y + image * tokens * y_stride + head * FEATURES;
    log_sums += (index_t)blockIdx.y * tokens;
    along += (index_t)blockIdx.y * tokens;
    unsigned base = (unsigned)__cvta_generic_to_shared(&shared[0][0][0]);

    // The block's own rows pass through the first stage's memory into registers.
    copy_tile(base, OWN == KEYS ? keys : queries, qkv_stride, first, tokens);
    copy_tile(base + TILE, OWN == KEYS ? values : grads, OWN == KEYS ? qkv_stride : y_stride, first, tokens);
    end_of_copies();
    wait_for_copies<0>();
    __syncthreads();
    unsigned rows1[4][4], rows2[4][4];
#pragma unroll
    for (int k = 0; k < 4; k++) {
        load_matrices(rows1[k], piece_address(base, warp * 16 + lane % 16, k * 2 + lane / 16));
        load_matrices(rows2[k], piece_address(base + TILE, warp * 16 + lane % 16, k * 2 + lane / 16));
    }
    __syncthreads();
    // Of the lane's two rows, where rows are queries.
    float own_log_sums[2] = {}, own_along[2] = {};
    if (OWN == QUERIES)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int token = first + warp * 16 + half * 8 + lane / 4;
            if (token >= tokens) continue;
            own_log_sums[half] = log_sums[token];
            own_along[half] = along[token];
        }

    auto fetch = [&](int tile, int stage) {
        unsigned to = base + stage * 2 * TILE;
        copy_tile(to, OWN == KEYS ? queries : keys, qkv_stride, tile * ROWS, tokens);
        copy_tile(to + TILE, OWN == KEYS ? grads : values, OWN == KEYS ? y_stride : qkv_stride, tile * ROWS, tokens);
        end_of_copies();
        if (OWN == KEYS && threadIdx.x < ROWS) {
            int token = tile * ROWS + threadIdx.x;
            // A query that is not there gives no weight to any key.
            shared_log_sums[stage][threadIdx.x] = token < tokens ? log_sums[token] : INFINITY;
            shared_along[stage][threadIdx.x] = token < tokens ? along[token] : 0.0f;
        }
    };

    float grad1[8][4] = {}, grad2[8][4] = {};
    int num_tiles = (tokens + ROWS - 1) / ROWS;
    fetch(0, 0);
    for (int tile = 0; tile < num_tiles; tile++) {
        int stage = tile % 2;
        if (tile + 1 < num_tiles) {
            fetch(tile + 1, 1 - stage);
            wait_for_copies<1>();
        } else {
            wait_for_copies<0>();
        }
        __syncthreads();
        unsigned tile1 = base + stage * 2 * TILE, tile2 = tile1 + TILE;

        float scores[8][4] = {}, grad_scores[8][4] = {};
        multiply_by_rows(scores, rows1, tile1);
        multiply_by_rows(grad_scores, rows2, tile2);
#pragma unroll
        for (int n = 0; n < 8; n++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                int column = n * 8 + lane % 4 * 2 + i;
                bool exists = OWN == KEYS || tile * ROWS + column < tokens;
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    float log_sum = OWN == KEYS ? shared_log_sums[stage][column] : own_log_sums[half];
                    float offset = OWN == KEYS ? shared_along[stage][column] : own_along[half];
                    float &score = scores[n][2 * half + i], &grad = grad_scores[n][2 * half + i];
                    score = exists ? exp2_fast(score * scale_log2 - log_sum) : 0.0f;
                    grad = score * (grad - offset);
                }
            }
        if (OWN == KEYS) multiply_by_tile(grad2, scores, tile2);
        multiply_by_tile(grad1, grad_scores, tile1);
        __syncthreads();
    }

    bf16 *to = grad_qkv + qkv_start;
    store_rows(OWN == KEYS ? to + y_stride : to, qkv_stride, first, tokens, grad1, scale);
    if (OWN == KEYS) store_rows(to + 2 * y_stride, qkv_stride, first, tokens, grad2, 1.0f);
}

extern "C" __global__ void __launch_bounds__(THREADS, 3)
    grad_keys_and_values(const bf16 *qkv, const bf16 *grad_y, const float *log_sums, const float *along, bf16 *grad_qkv,
                         int tokens, int heads, float scale, float scale_log2) {
    backward<KEYS>(qkv, grad_y, log_sums, along, grad_qkv, tokens, heads, scale, scale_log2);
}
extern "C" __global__ void __launch_bounds__(THREADS, 3)
    grad_queries(const bf16 *qkv, const bf16 *grad_y, const float *log_sums, const float *along, bf16 *grad_qkv,
                 int tokens, int heads, float scale, float scale_log2) {
    backward<QUERIES>(qkv, grad_y, log_sums, along, grad_qkv, tokens, heads, scale, scale_log2);
}

// along = Σ y · grad_y over the features of a head, from [B, N, heads, 64] to [B, heads, N]; eight lanes a sum.
extern "C" __global__ void features_along(const bf16 *y, const bf16 *grad_y, float *along, int count, int tokens,
                                          int heads) {
    int index = blockIdx.x * blockDim.x + threadIdx.x, row = index / 8;
    float sum = 0;
    if (row < count) {
        float a[8], b[8];
        load<8>(y + (index_t)index * 8, a);
        load<8>(grad_y + (index_t)index * 8, b);
#pragma unroll
        for (int k = 0; k < 8; k++) sum += a[k] * b[k];
    }
#pragma unroll
    for (int offset = 4; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffff, sum, offset);
    if (row >= count || index % 8 > 0) return;
    int head = row % heads, token = row / heads % tokens, image = row / heads / tokens;
    along[((index_t)image * heads + head) * tokens + token] = sum;
}
