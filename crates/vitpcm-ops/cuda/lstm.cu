// The element-wise half of the HV-BiLSTM's recurrence; the products between its steps are cuBLAS's.
//
// Cells of the grid are [B, H, W]; `gates` is [cells, 4 directions, 4 gates, U], `states` [cells, 4 directions, U].
// A step of a direction runs over its sequences: rows for directions 0 and 1, columns for 2 and 3; odd directions run
// backwards.
#include "values.cuh"

struct Walk {
    int batch, height, width, units, first_direction, num_directions, num_sequences, step;
};

// The cell of `sequence` at `step` of `direction`.
__device__ __forceinline__ index_t cell_of(const Walk &walk, int direction, int sequence, int step) {
    bool along_rows = direction < 2;
    int length = along_rows ? walk.width : walk.height;
    int position = direction % 2 ? length - 1 - step : step;
    if (along_rows) return (index_t)sequence * walk.width + position;
    int image = sequence / walk.width, column = sequence % walk.width;
    return ((index_t)image * walk.height + position) * walk.width + column;
}

__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

// `recurrent` [directions, sequences, 4, U] is h·W of the step before (nothing at step 0). Gates become their
// activations in place; `hidden_now` [directions, sequences, U] is what the next product takes.
extern "C" __global__ void lstm_step(float *gates, const float *recurrent, float *cells, float *hidden,
                                     float *hidden_now, Walk walk) {
    int units = walk.units;
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= walk.num_directions * walk.num_sequences * units) return;
    int unit = i % units;
    int pair = i / units;
    int direction = walk.first_direction + pair / walk.num_sequences;
    int sequence = pair % walk.num_sequences;
    index_t cell = cell_of(walk, direction, sequence, walk.step);
    float *gate = gates + (cell * 4 + direction) * 4 * units + unit;
    float sums[4];
#pragma unroll
    for (int k = 0; k < 4; k++) sums[k] = gate[k * units];
    float before = 0;
    if (walk.step > 0) {
        const float *added = recurrent + (index_t)pair * 4 * units + unit;
#pragma unroll
        for (int k = 0; k < 4; k++) sums[k] += added[k * units];
        before = cells[(cell_of(walk, direction, sequence, walk.step - 1) * 4 + direction) * units + unit];
    }
    float input = sigmoid(sums[0]), forget = sigmoid(sums[1]), candidate = tanhf(sums[2]), output = sigmoid(sums[3]);
    float state = forget * before + input * candidate;
    float out = output * tanhf(state);
    gate[0] = input;
    gate[units] = forget;
    gate[2 * units] = candidate;
    gate[3 * units] = output;
    index_t at = (cell * 4 + direction) * units + unit;
    cells[at] = state;
    hidden[at] = out;
    hidden_now[i] = out;
}

// `carried` [directions, sequences, U] is the gradient of h that comes from the step behind (nothing at the last
// step), `grad_state` the one of c, moved one step back in place.
extern "C" __global__ void lstm_step_backward(const float *gates, const float *cells, const float *grad_hidden,
                                              const float *carried, float *grad_state, float *grad_gates,
                                              float *grad_gates_now, int is_last, Walk walk) {
    int units = walk.units;
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= walk.num_directions * walk.num_sequences * units) return;
    int unit = i % units;
    int pair = i / units;
    int direction = walk.first_direction + pair / walk.num_sequences;
    int sequence = pair % walk.num_sequences;
    index_t cell = cell_of(walk, direction, sequence, walk.step);
    index_t at = (cell * 4 + direction) * units + unit;
    index_t gate = (cell * 4 + direction) * 4 * units + unit;
    float input = gates[gate], forget = gates[gate + units], candidate = gates[gate + 2 * units],
          output = gates[gate + 3 * units];
    float before = 0;
    if (walk.step > 0)
        before = cells[(cell_of(walk, direction, sequence, walk.step - 1) * 4 + direction) * units + unit];
    float squashed = tanhf(cells[at]);
    float grad_h = grad_hidden[at] + (is_last ? 0.0f : carried[i]);
    float grad_c = (is_last ? 0.0f : grad_state[i]) + grad_h * output * (1.0f - squashed * squashed);
    grad_state[i] = grad_c * forget;
    float grads[4] = {grad_c * candidate * input * (1.0f - input), grad_c * before * forget * (1.0f - forget),
                      grad_c * input * (1.0f - candidate * candidate),
                      grad_h * squashed * output * (1.0f - output)};
#pragma unroll
    for (int k = 0; k < 4; k++) {
        grad_gates[gate + k * units] = grads[k];
        grad_gates_now[(index_t)pair * 4 * units + k * units + unit] = grads[k];
    }
}

// For every cell and direction, the hidden state of the step before: what the recurrent weights were multiplied with.
extern "C" __global__ void hidden_before(const float *hidden, float *before, Walk walk) {
    int units = walk.units;
    index_t count = (index_t)walk.batch * walk.height * walk.width * 4 * units;
    index_t i = (index_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    int direction = i / units % 4;
    index_t cell = i / units / 4;
    int column = cell % walk.width, row = cell / walk.width % walk.height;
    int length = direction < 2 ? walk.width : walk.height;
    int position = direction < 2 ? column : row;
    int stride = direction < 2 ? 1 : walk.width;
    bool backwards = direction % 2;
    bool is_first = backwards ? position == length - 1 : position == 0;
    index_t neighbour = i + (index_t)(backwards ? stride : -stride) * 4 * units;
    before[i] = is_first ? 0.0f : hidden[neighbour];
}
