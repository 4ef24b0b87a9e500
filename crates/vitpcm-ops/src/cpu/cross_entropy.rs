//! Cross entropy of logits on a grid with finer labels: a line of labels at a time, whose logits are first mixed of two
//! lines of the grid.

use rayon::prelude::*;

use super::resize::Between;

/// Sizes of a grid of logits and of its labels.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LabelledGrid {
    /// Rows and columns of the grid.
    pub(crate) grid: [usize; 2],
    /// Rows and columns of the labels.
    pub(crate) size: [usize; 2],
    pub(crate) classes: usize,
}

fn between_all(labels: usize, points: usize) -> Vec<Between> {
    (0..labels).map(|label| Between::corners(label, labels, points)).collect()
}

/// The values, `mixed.len()` a point, of a sample.
fn mix(between: Between, values: &[f32], mixed: &mut [f32]) {
    let (len, share) = (mixed.len(), between.share as f32);
    let [first, second] = [between.first, between.second].map(|point| &values[point * len..][..len]);
    for ((mixed, first), second) in mixed.iter_mut().zip(first).zip(second) {
        *mixed = first + share * (second - first);
    }
}

/// The way back of [`mix`].
fn add(between: Between, grads: &[f32], values: &mut [f32]) {
    let share = between.share as f32;
    for (point, weight) in [(between.first, 1.0 - share), (between.second, share)] {
        let values = values[point * grads.len()..].iter_mut();
        values.zip(grads).for_each(|(value, grad)| *value += weight * grad);
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
    let (across, line_len) = (between_all(columns, width), width * classes);
    let lines = losses.par_chunks_exact_mut(columns).zip(labels.par_chunks_exact(columns));
    lines.enumerate().for_each(|(index, (losses, labels))| {
        let image = &logits[index / rows * height * line_len..][..height * line_len];
        let (mut line, mut scores) = (vec![0f32; line_len], vec![0f32; classes]);
        mix(Between::corners(index % rows, rows, height), image, &mut line);
        for ((loss, &label), between) in losses.iter_mut().zip(labels).zip(&across) {
            *loss = 0.0;
            if usize::from(label) < classes {
                mix(*between, &line, &mut scores);
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
    let (down, across) = (between_all(rows, height), between_all(columns, width));
    let line_len = width * classes;
    let images = logits.par_chunks_exact(height * line_len).zip(labels.par_chunks_exact(rows * columns));
    let images = images.zip(grad_losses.par_chunks_exact(rows * columns));
    grad_logits.par_chunks_exact_mut(height * line_len).zip(images).for_each(
        |(grad_image, ((image, labels), grad_losses))| {
            let (mut line, mut grad_line) = (vec![0f32; line_len], vec![0f32; line_len]);
            let mut scores = vec![0f32; classes];
            let lines = labels.chunks_exact(columns).zip(grad_losses.chunks_exact(columns));
            for ((labels, grad_losses), between_rows) in lines.zip(&down) {
                mix(*between_rows, image, &mut line);
                grad_line.fill(0.0);
                for ((&label, grad_loss), between) in labels.iter().zip(grad_losses).zip(&across) {
                    let label = usize::from(label);
                    if label < classes {
                        mix(*between, &line, &mut scores);
                        softmax(&mut scores, label);
                        scores[label] -= 1.0;
                        scores.iter_mut().for_each(|grad| *grad *= grad_loss);
                        add(*between, &scores, &mut grad_line);
                    }
                }
                add(*between_rows, &grad_line, grad_image);
            }
        },
    );
}
