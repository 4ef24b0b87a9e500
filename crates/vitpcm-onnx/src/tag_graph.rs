//! Tags: what pooling and the tag head say of an image, and scores conditioned on the classes that an image may show
//! (`vitpcm_nets::tag_head`, `vitpcm_masks::ScoreMap::conditioned`).

use vitpcm_nets::{Parameters, tag_head};

use crate::error::Result;
use crate::graph_builder::{Attribute, GraphBuilder, Value};

/// Pooled probabilities are clamped this far from 0 and 1, as in the tag head.
const LEAST_PROBABILITY: f32 = 1e-6;

/// The maximum of each class over the grid.
///
/// # Shapes
/// scores `[N, K + 1, rows, columns]`; result `[N, K + 1, 1, 1]`
pub(crate) fn peaks(graph: &mut GraphBuilder, scores: &Value) -> Value {
    graph.begin_part("pooling");
    graph.reduce("ReduceMax", scores, &[2, 3])
}

/// The probability of every tag from pooling alone.
///
/// # Shapes
/// peaks `[N, K + 1, 1, 1]`; result `[N, K]`, without the background
pub(crate) fn pooled_tags(graph: &mut GraphBuilder, peaks: &Value, num_classes: usize) -> Value {
    let foreground = graph.slice(peaks, 1, 1, num_classes as i64);
    graph.reshape(&foreground, &[0, num_classes as i64 - 1])
}

/// The tag head: the minimum of the pooled probability and its own.
///
/// # Shapes
/// pooled `[N, K]`, scores `[N, K + 1, side, side]`, features `[N, side, side, F]`, from the backbone; result `[N, K]`
pub(crate) fn tag_head_graph(
    graph: &mut GraphBuilder,
    parameters: &Parameters,
    [num_classes, side, num_features]: [usize; 3],
    pooled: &Value,
    (scores, features): (&Value, &Value),
) -> Result<Value> {
    graph.begin_part("tag_head");
    let (num_tags, num_cells) = (num_classes - 1, side * side);
    let cells = graph.reshape(features, &[0, num_cells as i64, num_features as i64]);
    let of_tags = graph.slice(scores, 1, 1, num_classes as i64);
    let of_tags = graph.reshape(&of_tags, &[0, num_tags as i64, num_cells as i64]);
    let best =
        graph.node("ArgMax", &[&of_tags], &[("axis", Attribute::Int(2)), ("keepdims", Attribute::Int(1))]); // [N, K, 1]
    let shape = graph.integers(&[1, 1, num_features as i64]);
    let best = graph.node("Expand", &[&best, &shape], &[]);
    let best = graph.node("GatherElements", &[&cells, &best], &[("axis", Attribute::Int(1))]); // [N, K, F]

    let mut weights =
        |name: &str, shape: &[usize]| -> Result<Value> { Ok(graph.floats(&parameters.values(name)?, shape)) };
    let mean_weight = weights(tag_head::MEAN_WEIGHT, &[num_features, 1])?;
    let patch_weight = weights(tag_head::PATCH_WEIGHT, &[num_features, 1])?;
    let centres = weights(tag_head::CENTRES, &[num_tags, num_features])?;
    let distance_weight = weights(tag_head::DISTANCE_WEIGHT, &[num_features, 1])?;
    let scale_and_bias = parameters.values(tag_head::SCALE_AND_BIAS)?;

    let mean = graph.reduce("ReduceMean", &cells, &[1]); // [N, 1, F]
    let of_image = graph.matmul(&mean, &mean_weight); // [N, 1, 1]
    let differences = graph.sub(&best, &centres);
    let distances = graph.mul(&differences, &differences);
    let of_distance = graph.matmul(&distances, &distance_weight);
    let of_patch = graph.matmul(&best, &patch_weight);
    let evidence = graph.add(&of_distance, &of_patch);
    let evidence = graph.add(&evidence, &of_image); // [N, K, 1]
    let evidence = graph.reshape(&evidence, &[0, num_tags as i64]);

    let [least, most, one] =
        [LEAST_PROBABILITY, 1.0 - LEAST_PROBABILITY, 1.0].map(|number| graph.float(number));
    let clamped = graph.node("Clip", &[pooled, &least, &most], &[]);
    let rest = graph.sub(&one, &clamped);
    let odds = graph.div(&clamped, &rest);
    let log_odds = graph.node("Log", &[&odds], &[]);
    let [scale, bias] = [scale_and_bias[0], scale_and_bias[1]].map(|number| graph.float(number));
    let scaled = graph.mul(&log_odds, &scale);
    let logits = graph.add(&scaled, &bias);
    let logits = graph.add(&logits, &evidence);
    let probabilities = graph.node("Sigmoid", &[&logits], &[]);
    Ok(graph.node("Min", &[&probabilities, pooled], &[]))
}

/// Scores conditioned on tags: absent classes become 0, each present class is divided by its peak, and each cell is
/// renormalised to sum 1. The background counts as present.
///
/// # Shapes
/// tags `[N, K]`, 1 for a class that is present, else 0; scores `[N, K + 1, rows, columns]`, as the result
pub(crate) fn conditioned(
    graph: &mut GraphBuilder,
    tags: &Value,
    (scores, peaks): (&Value, &Value),
) -> Value {
    graph.begin_part("conditioning");
    // Divisors of zero stand for planes and cells of zeros.
    let tiny = graph.float(f32::MIN_POSITIVE);
    let background = graph.slice(tags, 1, 0, 1);
    let zero = graph.float(0.0);
    let background = graph.mul(&background, &zero);
    let one = graph.float(1.0);
    let background = graph.add(&background, &one); // ones, one an image
    let present = graph.concat(&[&background, tags], 1);
    let present = graph.reshape(&present, &[0, -1, 1, 1]);
    let divisors = graph.max(peaks, &tiny);
    let relative = graph.div(scores, &divisors);
    let kept = graph.mul(&relative, &present);
    let sums = graph.reduce("ReduceSum", &kept, &[1]);
    let sums = graph.max(&sums, &tiny);
    graph.div(&kept, &sums)
}

/// 1 for every tag whose probability reaches the threshold, else 0.
pub(crate) fn reached(graph: &mut GraphBuilder, tag_probabilities: &Value, threshold: f32) -> Value {
    graph.begin_part("prediction");
    let threshold = graph.float(threshold);
    let reached = graph.node("GreaterOrEqual", &[tag_probabilities, &threshold], &[]);
    graph.cast_to_f32(&reached)
}
