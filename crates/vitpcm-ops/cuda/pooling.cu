// The maximum of each class over the grid, and its gradient: a warp a class of an image.
#include "values.cuh"

extern "C" __global__ void max_over_grid(const float *scores, float *pooled, unsigned *where, int cells, int classes) {
    int image = blockIdx.x, lane = threadIdx.x;
    for (int c = threadIdx.y; c < classes; c += blockDim.y) {
        const float *values = scores + (index_t)image * cells * classes + c;
        float best = -INFINITY;
        int best_cell = cells;
        for (int cell = lane; cell < cells; cell += 32) {
            float value = values[(index_t)cell * classes];
            if (value > best) best = value, best_cell = cell;
        }
#pragma unroll
        for (int offset = 16; offset > 0; offset /= 2) {
            float other = __shfl_xor_sync(0xffffffff, best, offset);
            int other_cell = __shfl_xor_sync(0xffffffff, best_cell, offset);
            // Among equals the first cell counts.
            if (other > best || (other == best && other_cell < best_cell)) best = other, best_cell = other_cell;
        }
        if (lane == 0) {
            pooled[image * classes + c] = best;
            where[image * classes + c] = best_cell;
        }
    }
}

// `grad_scores` holds zeros before.
extern "C" __global__ void max_over_grid_backward(const float *grad_pooled, const unsigned *where, float *grad_scores,
                                                  int cells, int classes, int count) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    int image = i / classes, c = i % classes;
    if (where[i] < (unsigned)cells) grad_scores[((index_t)image * cells + where[i]) * classes + c] = grad_pooled[i];
}
