//! Pooling of scores over the cells of a grid: the mean of the `k` largest of each class, and the largest alone.

/// Calls `take(image, class, cell)` for each of the `k` largest cells of each class; among equals the first counts.
fn for_each_of_largest(
    cells: usize,
    classes: usize,
    scores: &[f32],
    k: usize,
    mut take: impl FnMut(usize, usize, usize),
) {
    if cells == 0 || classes == 0 {
        return;
    }
    let mut best = vec![0; classes];
    let mut order: Vec<usize> = Vec::new();
    for (image, scores) in scores.chunks_exact(cells * classes).enumerate() {
        if k == 1 {
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
            continue;
        }
        for class in 0..classes {
            order.clear();
            order.extend(0..cells);
            let score = |cell: usize| scores[cell * classes + class];
            if k < cells {
                order.select_nth_unstable_by(k - 1, |&a, &b| score(b).total_cmp(&score(a)).then(a.cmp(&b)));
            }
            for &cell in &order[..k] {
                take(image, class, cell);
            }
        }
    }
}

/// The mean of the `k` largest scores of each class.
///
/// # Shapes
/// scores `[images, cells, classes]`; output `[images, classes]`.
pub(crate) fn forward(cells: usize, classes: usize, k: usize, scores: &[f32], output: &mut [f32]) {
    output.fill(0.0);
    for_each_of_largest(cells, classes, scores, k, |image, class, cell| {
        output[image * classes + class] += scores[(image * cells + cell) * classes + class] / k as f32;
    });
}

/// Spreads each gradient over the cells that made the mean.
pub(crate) fn backward(
    cells: usize,
    classes: usize,
    k: usize,
    scores: &[f32],
    grad_output: &[f32],
    grad_scores: &mut [f32],
) {
    grad_scores.fill(0.0);
    for_each_of_largest(cells, classes, scores, k, |image, class, cell| {
        grad_scores[(image * cells + cell) * classes + class] =
            grad_output[image * classes + class] / k as f32;
    });
}
