//! The largest score of each class over the cells of a grid.

/// Calls `take(image, class, cell)` for the largest cell of each class; among equals the first counts.
fn for_each_largest(cells: usize, classes: usize, scores: &[f32], mut take: impl FnMut(usize, usize, usize)) {
    if cells == 0 || classes == 0 {
        return;
    }
    let mut best = vec![0; classes];
    for (image, scores) in scores.chunks_exact(cells * classes).enumerate() {
        best.fill(0);
        for (cell, scores_of_cell) in scores.chunks_exact(classes).enumerate().skip(1) {
            for (class, &score) in scores_of_cell.iter().enumerate() {
                if score > scores[best[class] * classes + class] {
                    best[class] = cell;
                }
            }
        }
        for (class, &cell) in best.iter().enumerate() {
            take(image, class, cell);
        }
    }
}

/// The largest score of each class.
///
/// # Shapes
/// scores `[images, cells, classes]`; output `[images, classes]`.
pub(crate) fn forward(cells: usize, classes: usize, scores: &[f32], output: &mut [f32]) {
    output.fill(0.0);
    for_each_largest(cells, classes, scores, |image, class, cell| {
        output[image * classes + class] = scores[(image * cells + cell) * classes + class];
    });
}

/// Hands each gradient to the cell that was largest.
pub(crate) fn backward(
    cells: usize,
    classes: usize,
    scores: &[f32],
    grad_output: &[f32],
    grad_scores: &mut [f32],
) {
    grad_scores.fill(0.0);
    for_each_largest(cells, classes, scores, |image, class, cell| {
        grad_scores[(image * cells + cell) * classes + class] = grad_output[image * classes + class];
    });
}
