// Cross entropy of logits on a grid with labels that may be finer: logits are resized bilinearly, the corners of both
// grids coincide. A warp a label forward, a warp a point of the grid backward, its lanes the classes.
#include "values.cuh"

// The members of LabelledGrid in Rust.
struct LabelledGrid {
    int height, width, rows, columns, classes;
};

// Where a label lies along an axis of the grid.
__device__ __forceinline__ float position(int label, int labels, int points) {
    return labels > 1 ? label * ((float)(points - 1) / (float)(labels - 1)) : 0.0f;
}

// The logits of a label, STEPS · 32 classes; −infinity beyond them.
template <int STEPS>
__device__ __forceinline__ void logits_at(const float *image, const LabelledGrid &g, float y, float x,
                                          float (&values)[STEPS]) {
    int top = min((int)y, g.height - 1), left = min((int)x, g.width - 1);
    int bottom = min(top + 1, g.height - 1), right = min(left + 1, g.width - 1);
    float down = y - top, across = x - left;
    const float *corners[4] = {image + ((index_t)top * g.width + left) * g.classes,
                               image + ((index_t)top * g.width + right) * g.classes,
                               image + ((index_t)bottom * g.width + left) * g.classes,
                               image + ((index_t)bottom * g.width + right) * g.classes};
#pragma unroll
    for (int step = 0; step < STEPS; step++) {
        int c = step * 32 + threadIdx.x;
        values[step] = -INFINITY;
        if (c < g.classes) {
            float upper = corners[0][c] + across * (corners[1][c] - corners[0][c]);
            float lower = corners[2][c] + across * (corners[3][c] - corners[2][c]);
            values[step] = upper + down * (lower - upper);
        }
    }
}

// The largest of them, and Σ exp of their distances to it.
template <int STEPS> __device__ __forceinline__ float2 largest_and_sum(const float (&values)[STEPS]) {
    float largest = -INFINITY, sum = 0.0f;
#pragma unroll
    for (int step = 0; step < STEPS; step++) largest = fmaxf(largest, values[step]);
    largest = warp_max(largest);
#pragma unroll
    for (int step = 0; step < STEPS; step++) sum += __expf(values[step] - largest);
    return make_float2(largest, warp_sum(sum));
}

template <int STEPS>
__device__ __forceinline__ void forward(const float *logits, const uint8_t *labels, float *losses, LabelledGrid g,
                                        index_t count) {
    index_t index = (index_t)blockIdx.x * blockDim.y + threadIdx.y;
    if (index >= count) return;
    int label = labels[index];
    float loss = 0.0f;
    if (label < g.classes) {
        index_t line = index / g.columns;
        float y = position((int)(line % g.rows), g.rows, g.height);
        float x = position((int)(index % g.columns), g.columns, g.width);
        float values[STEPS];
        logits_at(logits + line / g.rows * g.height * g.width * g.classes, g, y, x, values);
        float2 found = largest_and_sum(values);
#pragma unroll
        for (int step = 0; step < STEPS; step++)
            if (step * 32 + threadIdx.x == label) loss = logf(found.y) - (values[step] - found.x);
        loss = warp_sum(loss);
    }
    if (threadIdx.x == 0) losses[index] = loss;
}

// The labels that a point of an axis has a part in: first and last.
__device__ __forceinline__ int2 labels_of(int point, int labels, int points) {
    if (points == 1 || labels == 1) return make_int2(0, labels - 1);
    float step = (float)(labels - 1) / (float)(points - 1);
    return make_int2(max((int)floorf((point - 1) * step), 0), min((int)ceilf((point + 1) * step), labels - 1));
}

template <int STEPS>
__device__ __forceinline__ void backward(const float *logits, const uint8_t *labels, const float *grad_losses,
                                         float *grad_logits, LabelledGrid g, index_t count) {
    index_t point = (index_t)blockIdx.x * blockDim.y + threadIdx.y;
    if (point >= count) return;
    int point_x = (int)(point % g.width);
    index_t line = point / g.width;
    int point_y = (int)(line % g.height);
    index_t image = line / g.height;
    const float *of_image = logits + image * g.height * g.width * g.classes;
    int2 rows = labels_of(point_y, g.rows, g.height), columns = labels_of(point_x, g.columns, g.width);
    float sums[STEPS] = {};
    for (int row = rows.x; row <= rows.y; row++) {
        float y = position(row, g.rows, g.height), weight_y = 1.0f - fabsf(y - point_y);
        if (weight_y <= 0.0f) continue;
        for (int column = columns.x; column <= columns.y; column++) {
            float x = position(column, g.columns, g.width), weight = weight_y * (1.0f - fabsf(x - point_x));
            index_t index = (image * g.rows + row) * g.columns + column;
            int label = labels[index];
            if (weight <= 0.0f || label >= g.classes) continue;
            weight *= grad_losses[index];
            float values[STEPS];
            logits_at(of_image, g, y, x, values);
            float2 found = largest_and_sum(values);
#pragma unroll
            for (int step = 0; step < STEPS; step++) {
                float probability = __expf(values[step] - found.x) / found.y;
                sums[step] += weight * (probability - (step * 32 + threadIdx.x == label ? 1.0f : 0.0f));
            }
        }
    }
#pragma unroll
    for (int step = 0; step < STEPS; step++)
        if (step * 32 + threadIdx.x < g.classes) grad_logits[point * g.classes + step * 32 + threadIdx.x] = sums[step];
}

// Labels are bytes: 256 classes at most.
#define FOR_STEPS(function, ...)                                                                                   \
    if (g.classes <= 32)                                                                                           \
        function<1>(__VA_ARGS__);                                                                                  \
    else if (g.classes <= 96)                                                                                      \
        function<3>(__VA_ARGS__);                                                                                  \
    else                                                                                                           \
        function<8>(__VA_ARGS__);

extern "C" __global__ void cross_entropy(const float *logits, const uint8_t *labels, float *losses, LabelledGrid g,
                                         index_t count) {
    FOR_STEPS(forward, logits, labels, losses, g, count)
}
extern "C" __global__ void cross_entropy_backward(const float *logits, const uint8_t *labels, const float *grad_losses,
                                                  float *grad_logits, LabelledGrid g, index_t count) {
    FOR_STEPS(backward, logits, labels, grad_losses, grad_logits, g, count)
}
