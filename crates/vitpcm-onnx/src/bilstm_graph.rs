//! HV-BiLSTM: two bidirectional LSTMs, along the rows of the grid and along its columns (`vitpcm_nets::hv_bilstm`).

use vitpcm_nets::Parameters;

use crate::error::Result;
use crate::graph_builder::{Attribute, GraphBuilder, Value};
use crate::stored_weights::LayerWeights;

/// The concatenated recurrences: rows forward, rows backward, columns forward, columns backward.
///
/// # Shapes
/// features `[N, side, side, D]`; result `[N, side, side, 4·units]`
pub(crate) fn bilstm_graph(
    graph: &mut GraphBuilder,
    parameters: &Parameters,
    [side, width, units]: [usize; 3],
    features: &Value,
) -> Result<Value> {
    // An LSTM runs along the first dimension; the lines of all images are its batch. Its result is
    // [steps, directions, N · lines, units].
    graph.begin_part("hv_bilstm.rows");
    let rows = graph.transpose(features, &[2, 0, 1, 3]);
    let rows = both_directions(graph, parameters, "rows", [side, width, units], &rows)?;
    let rows = graph.transpose(&rows, &[2, 3, 0, 1, 4]);
    graph.begin_part("hv_bilstm.columns");
    let columns = graph.transpose(features, &[1, 0, 2, 3]);
    let columns = both_directions(graph, parameters, "columns", [side, width, units], &columns)?;
    let columns = graph.transpose(&columns, &[2, 0, 3, 1, 4]);

    graph.begin_part("hv_bilstm");
    let side = side as i64;
    let [rows, columns] =
        [rows, columns].map(|lines| graph.reshape(&lines, &[-1, side, side, 2 * units as i64]));
    Ok(graph.concat(&[&rows, &columns], 3))
}

/// Both directions along the first dimension.
///
/// # Shapes
/// steps `[side, N, side, D]`; result `[side, 2, N, side, units]`
fn both_directions(
    graph: &mut GraphBuilder,
    parameters: &Parameters,
    module: &str,
    [side, width, units]: [usize; 3],
    steps: &Value,
) -> Result<Value> {
    let steps = graph.reshape(steps, &[side as i64, -1, width as i64]);
    let of_both = |part: &str| -> Result<Vec<f32>> {
        let one = |suffix: &str| -> Result<Vec<f32>> {
            let values = parameters.values(&format!("hv_bilstm.{module}.{part}_l0{suffix}"))?;
            Ok(in_order_of_onnx(&values, units))
        };
        Ok([one("")?, one("_reverse")?].concat())
    };
    // Stored as matrices of all gates of both directions, so that each gate of a unit has its own scale.
    let mut weights = |part: &str, inputs: usize| -> Result<Value> {
        let layer = LayerWeights { values: of_both(part)?, shape: vec![8 * units, inputs] };
        let stored = graph.layer(&format!("hv_bilstm.{module}.{part}"), &layer)?;
        Ok(graph.reshape(&stored, &[2, 4 * units as i64, inputs as i64]))
    };
    let input = weights("weight_ih", width)?;
    let recurrent = weights("weight_hh", units)?;
    let [of_input, of_recurrence] = [of_both("bias_ih")?, of_both("bias_hh")?];
    let biases = of_input.chunks_exact(4 * units).zip(of_recurrence.chunks_exact(4 * units));
    let biases: Vec<f32> = biases.flat_map(|(input, recurrent)| [input, recurrent].concat()).collect();
    let biases = graph.floats(&biases, &[2, 8 * units]);
    let settings =
        [("hidden_size", Attribute::Int(units as i64)), ("direction", Attribute::Text("bidirectional"))];
    let hidden = graph.node("LSTM", &[&steps, &input, &recurrent, &biases], &settings);
    Ok(graph.reshape(&hidden, &[side as i64, 2, -1, side as i64, units as i64]))
}

/// PyTorch's order of gates is input, forget, cell, output; ONNX's is input, output, forget, cell.
fn in_order_of_onnx(values: &[f32], units: usize) -> Vec<f32> {
    let of_gate = values.len() / 4;
    debug_assert!(of_gate.is_multiple_of(units), "rows of units");
    [0, 3, 1, 2].iter().flat_map(|gate| &values[gate * of_gate..][..of_gate]).copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gates_are_put_into_the_order_of_onnx() {
        // Two units with one input each: input, forget, cell, output.
        let values = [0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5];
        assert_eq!(in_order_of_onnx(&values, 2), [0.0, 0.5, 3.0, 3.5, 1.0, 1.5, 2.0, 2.5]);
    }
}
