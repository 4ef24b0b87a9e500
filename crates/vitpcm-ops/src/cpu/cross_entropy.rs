//! Cross entropy of logits on a grid with finer labels: a line of labels at a time, whose logits are first mixed of two
//! lines of the grid.

use rayon::prelude::*;

/// Sizes of a grid of logits and of its labels.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LabelledGrid {
    /// Rows and columns of the grid.
    pub(crate) grid: [usize; 2],
    /// Rows and columns of the labels.
    pub(crate) size: [usize; 2],
    pub(crate) classes: usize,
}

/// The two points of an axis between which a label lies, and its share of the second.
#[derive(Clone, Copy)]
struct Between {
    first: usize,
    second: usize,
    share: f32,
}

impl Between {
    fn new(label: usize, labels: usize, points: usize) -> Self {
        let step = if labels > 1 { (points - 1) as f64 / (labels - 1) as f64 } else { 0.0 };
        let position = label as f64 * step;
        let first = (position.floor() as usize).min(points - 1);
        Self { first, second: (first + 1).min(points - 1), share: (position - first as f64) as f32 }
    }

    fn all(labels: usize, points: usize) -> Vec<Self> {
        (0..labels).map(|label| Self::new(label, labels, points)).collect()
    }

    fn mix(&self, values: &[f32], len: usize, mixed: &mut [f32]) {
        let [first, second] = [self.first, self.second].map(|point| &values[point * len..][..len]);
        for ((mixed, first), second) in mixed.iter_mut().zip(first).zip(second) {
            *mixed = first + self.share * (second - first);
        }
    }

    /// The way back of [`Between::mix`].
    fn add(&self, grads: &[f32], values: &mut [f32]) {
        for (point, weight) in [(self.first, 1.0 - self.share), (self.second, self.share)] {
            let values = values[point * grads.len()..].iter_mut();
            values.zip(grads).for_each(|(value, grad)| *value += weight * grad);
        }
    }
}

/// Turns logits into probabilities and returns −ln of that of `label`.
fn softmax(logits: &mut [f32], label: usize) -> f32 {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let of_label = logits[label] - largest;
    let mut sum = 0.0;
    for logit in logits.iter_mut() {
        *logit = (*logit - largest).exp();
        sum += *logit;
    }
    logits.iter_mut().for_each(|value| *value /= sum);
    sum.ln() - of_label
}

/// # Shapes
/// logits `[B, grid, classes]`; labels and losses `[B, size]`.
pub(crate) fn forward(shape: LabelledGrid, logits: &[f32], labels: &[u8], losses: &mut [f32]) {
    let LabelledGrid { grid: [height, width], size: [rows, columns], classes } = shape;
    let (across, line_len) = (Between::all(columns, width), width * classes);
    let lines = losses.par_chunks_exact_mut(columns).zip(labels.par_chunks_exact(columns));
    lines.enumerate().for_each(|(index, (losses, labels))| {
        let image = &logits[index / rows * height * line_len..][..height * line_len];
        let (mut line, mut scores) = (vec![0f32; line_len], vec![0f32; classes]);
        Between::new(index % rows, rows, height).mix(image, line_len, &mut line);
        for ((loss, &label), between) in losses.iter_mut().zip(labels).zip(&across) {
            *loss = 0.0;
            if usize::from(label) < classes {
                between.mix(&line, classes, &mut scores);
                *loss = softmax(&mut scores, usize::from(label));
            }
        }
    });
}

/// The gradient of the logits; `grad_logits` holds zeros.
pub(crate) fn backward(
    shape: LabelledGrid,
    logits: &[f32],
    labels: &[u8],
    grad_losses: &[f32],
    grad_logits: &mut [f32],
) {
    let LabelledGrid { grid: [height, width], size: [rows, columns], classes } = shape;
    let (down, across) = (Between::all(rows, height), Between::all(columns, width));
    let line_len = width * classes;
    let images = logits.par_chunks_exact(height * line_len).zip(labels.par_chunks_exact(rows * columns));
    let images = images.zip(grad_losses.par_chunks_exact(rows * columns));
    grad_logits.par_chunks_exact_mut(height * line_len).zip(images).for_each(
        |(grad_image, ((image, labels), grad_losses))| {
            let (mut line, mut grad_line) = (vec![0f32; line_len], vec![0f32; line_len]);
            let mut scores = vec![0f32; classes];
            let lines = labels.chunks_exact(columns).zip(grad_losses.chunks_exact(columns));
            for ((labels, grad_losses), between_rows) in lines.zip(&down) {
                between_rows.mix(image, line_len, &mut line);
                grad_line.fill(0.0);
                for ((&label, grad_loss), between) in labels.iter().zip(grad_losses).zip(&across) {
                    let label = usize::from(label);
                    if label < classes {
                        between.mix(&line, classes, &mut scores);
                        softmax(&mut scores, label);
                        scores[label] -= 1.0;
                        scores.iter_mut().for_each(|grad| *grad *= grad_loss);
                        between.add(&scores, &mut grad_line);
                    }
                }
                between_rows.add(&grad_line, grad_image);
            }
        },
    );
}
