//! Cross entropy of rows of class scores, row by row.

use rayon::prelude::*;

/// The largest of a row's scores, and `ln Σ exp` of their distances to it.
fn log_sum(logits: &[f32]) -> (f32, f32) {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    (largest, logits.iter().map(|logit| (logit - largest).exp()).sum::<f32>().ln())
}

/// `losses` has an element for every `classes` of the others.
pub(crate) fn forward(classes: usize, logits: &[f32], targets: &[f32], losses: &mut [f32]) {
    let rows = logits.par_chunks_exact(classes).zip(targets.par_chunks_exact(classes));
    losses.par_iter_mut().with_min_len(64).zip(rows).for_each(|(loss, (logits, targets))| {
        let (largest, log_sum) = log_sum(logits);
        let of_class = |(logit, target): (&f32, &f32)| target * (log_sum - (logit - largest));
        *loss = logits.iter().zip(targets).map(of_class).sum();
    });
}

/// The gradient of the logits.
pub(crate) fn backward(
    classes: usize,
    logits: &[f32],
    targets: &[f32],
    grad_losses: &[f32],
    grad_logits: &mut [f32],
) {
    let rows = logits.par_chunks_exact(classes).zip(targets.par_chunks_exact(classes)).zip(grad_losses);
    grad_logits.par_chunks_exact_mut(classes).with_min_len(64).zip(rows).for_each(
        |(grads, ((logits, targets), grad_loss))| {
            let (largest, log_sum) = log_sum(logits);
            let total: f32 = targets.iter().sum();
            for ((grad, logit), target) in grads.iter_mut().zip(logits).zip(targets) {
                *grad = grad_loss * (total * (logit - largest - log_sum).exp() - target);
            }
        },
    );
}
