//! `vitpcm_masks::resampling` as operators: for each axis the matrix of its weights, made from the sizes while the graph
//! runs, and one matrix product. The operator `Resize` would do it only in some runtimes: few know its antialiasing.

use vitpcm_nets::{GridAlignment, Normalisation};

use crate::graph_builder::{GraphBuilder, Value};

/// The size of a picture: two whole numbers in the graph.
#[derive(Clone, Debug)]
pub(crate) struct PictureSize {
    pub(crate) height: Value,
    pub(crate) width: Value,
}

impl PictureSize {
    /// Of planes `[N, channels, height, width]`.
    pub(crate) fn of(graph: &mut GraphBuilder, planes: &Value) -> PictureSize {
        let [height, width] = [2, 3].map(|axis| graph.size_of(planes, axis));
        PictureSize { height, width }
    }

    pub(crate) fn square(graph: &mut GraphBuilder, side: usize) -> PictureSize {
        let side = graph.integer(side as i64);
        PictureSize { height: side.clone(), width: side }
    }
}

/// Planes resampled bilinearly to another size.
///
/// # Shapes
/// planes `[N, channels, from.height, from.width]`; result `[N, channels, to.height, to.width]`
pub(crate) fn resampled(
    graph: &mut GraphBuilder,
    planes: &Value,
    (from, to): (&PictureSize, &PictureSize),
    alignment: GridAlignment,
) -> Value {
    let columns = axis_weights(graph, &from.width, &to.width, alignment);
    let columns = graph.transpose(&columns, &[1, 0]);
    let rows = axis_weights(graph, &from.height, &to.height, alignment);
    let narrow = graph.matmul(planes, &columns);
    graph.matmul(&rows, &narrow)
}

/// The weights of one axis, `[to, from]`; both sizes are whole numbers. See `vitpcm_masks::resampling::Axis`.
fn axis_weights(graph: &mut GraphBuilder, from: &Value, to: &Value, alignment: GridAlignment) -> Value {
    let [zero, one] = [0.0, 1.0].map(|number| graph.float(number));
    let [from, to] = [from, to].map(|size| graph.cast_to_f32(size));
    let inputs = graph.node("Range", &[&zero, &from, &one], &[]);
    let outputs = graph.node("Range", &[&zero, &to, &one], &[]);
    let outputs = graph.reshape(&outputs, &[-1, 1]);
    match alignment {
        GridAlignment::HalfPixel => {
            // A triangle around the output's centre, never narrower than the input's pixels.
            let scale = graph.div(&from, &to);
            let support = graph.max(&scale, &one);
            let half = graph.float(0.5);
            let [inputs, outputs] = [inputs, outputs].map(|samples| graph.add(&samples, &half));
            let centres = graph.mul(&outputs, &scale);
            let distances = graph.sub(&inputs, &centres);
            let distances = graph.div(&distances, &support);
            let weights = triangle(graph, &distances, &one);
            let sums = graph.reduce("ReduceSum", &weights, &[1]);
            graph.div(&weights, &sums)
        }
        GridAlignment::AlignCorners => {
            let [last_input, last_output] = [&from, &to].map(|size| graph.sub(size, &one));
            let last_output = graph.max(&last_output, &one);
            let scale = graph.div(&last_input, &last_output);
            let positions = graph.mul(&outputs, &scale);
            let distances = graph.sub(&inputs, &positions);
            triangle(graph, &distances, &one)
        }
    }
}

/// `max(0, 1 - |x|)`.
fn triangle(graph: &mut GraphBuilder, x: &Value, one: &Value) -> Value {
    let distance = graph.node("Abs", &[x], &[]);
    let rest = graph.sub(one, &distance);
    graph.node("Relu", &[&rest], &[])
}

/// The size at which DeepLab gets an image: its own or the one asked for, but at most `longest` pixels along the
/// longer side; each side is a multiple of 8 plus one, so that the corners of image and grid coincide
/// (`vitpcm::Segmenter`). In whole numbers, so that rounding is the same everywhere.
pub(crate) fn deeplab_size(
    graph: &mut GraphBuilder,
    image: &PictureSize,
    wanted: Option<usize>,
    longest: usize,
) -> PictureSize {
    let own = graph.max(&image.height, &image.width);
    let longest = graph.integer(longest as i64);
    let wanted = match wanted {
        Some(wanted) => graph.integer(wanted as i64),
        None => own.clone(),
    };
    let wanted = graph.node("Min", &[&wanted, &longest], &[]);
    let [one, three, eight] = [1, 3, 8].map(|number| graph.integer(number));
    // Cells less one: (side · wanted / own - 1) / 8, rounded.
    let half = graph.mul(&own, &three);
    let divisor = graph.mul(&own, &eight);
    let [height, width] = [&image.height, &image.width].map(|side| {
        let scaled = graph.mul(side, &wanted);
        let raised = graph.add(&scaled, &half);
        let cells = graph.div(&raised, &divisor);
        let pixels = graph.mul(&cells, &eight);
        graph.add(&pixels, &one)
    });
    PictureSize { height, width }
}

/// Pixels of 0..255 to network input: `vitpcm_nets::Normalisation`.
pub(crate) fn normalised(graph: &mut GraphBuilder, normalisation: &Normalisation, pixels: &Value) -> Value {
    let [mean, scale] =
        [normalisation.mean.map(|mean| mean * 255.0), normalisation.std.map(|std| std * 255.0)]
            .map(|of_channels| graph.floats(&of_channels, &[1, 3, 1, 1]));
    let centred = graph.sub(pixels, &mean);
    graph.div(&centred, &scale)
}
