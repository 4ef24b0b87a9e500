//! A simulated annotator, who knows the true masks: clicks into the middle of the largest mistake of a mask.

use vitpcm::Hint;
use vitpcm_masks::{Components, IGNORE, LabelMap};

/// The next click, if there is a mistake; `offset` pixels beside the place meant.
pub(crate) fn next_click(mask: &LabelMap, truth: &LabelMap, offset: (f32, f32)) -> Option<Hint> {
    let (width, height) = mask.size();
    // Where the mask is wrong, the true class.
    let pixels = mask.labels().iter().zip(truth.labels());
    let mistakes = pixels.map(|(&label, &truth)| if label == truth { IGNORE } else { truth });
    let components = Components::of(&LabelMap::new(width, height, mistakes.collect()).ok()?);
    let mistakes = (0..components.labels.len()).filter(|&component| components.labels[component] != IGNORE);
    let largest = mistakes.max_by_key(|&component| components.areas[component])?;
    let inside = components.component_of_pixel.iter().map(|&component| component as usize == largest);
    let depths = depths(&inside.collect::<Vec<_>>(), width);
    let middle = (0..depths.len()).max_by_key(|&pixel| depths[pixel])?;
    // Not beyond the image.
    let place =
        |pixel: usize, offset: f32, side: usize| (pixel as f32 + 0.5 + offset).clamp(0.5, side as f32 - 0.5);
    let point = (place(middle % width, offset.0, width), place(middle / width, offset.1, height));
    Some(Hint { class: usize::from(components.labels[largest]), line: vec![point] })
}

/// Steps (straight or diagonal) from each pixel of a set to the next one outside; what is beyond the image is outside.
fn depths(set: &[bool], width: usize) -> Vec<u32> {
    let height = set.len() / width;
    let mut depths = vec![0u32; set.len()];
    let mut settle = |pixel: usize, from_start: bool| {
        if !set[pixel] {
            return;
        }
        let (x, y) = (pixel % width, pixel / width);
        let at_edge = x == 0 || y == 0 || x + 1 == width || y + 1 == height;
        let least = match (at_edge, from_start) {
            (true, _) => 0,
            (false, true) => [pixel - width - 1, pixel - width, pixel - width + 1, pixel - 1]
                .map(|before| depths[before])
                .into_iter()
                .fold(u32::MAX - 1, u32::min),
            (false, false) => [pixel + width + 1, pixel + width, pixel + width - 1, pixel + 1]
                .map(|after| depths[after])
                .into_iter()
                .fold(depths[pixel] - 1, u32::min),
        };
        depths[pixel] = least + 1;
    };
    (0..set.len()).for_each(|pixel| settle(pixel, true));
    (0..set.len()).rev().for_each(|pixel| settle(pixel, false));
    depths
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_of_the_largest_mistake_is_clicked() {
        // Class 2 is missed in a block of 7 by 5 pixels, class 1 in one of 3 by 3.
        let at = |i: usize| (i % 20, i / 20);
        let truth = (0..20 * 10).map(|i| match at(i) {
            (2..9, 3..8) => 2,
            (12..15, 1..4) => 1,
            (18, _) => IGNORE,
            _ => 0,
        });
        let truth = LabelMap::new(20, 10, truth.collect()).unwrap();
        let nothing = LabelMap::filled(20, 10, 0).unwrap();
        let click = next_click(&nothing, &truth, (0.0, 0.0)).unwrap();
        let (x, y) = click.line[0];
        assert_eq!((click.class, y), (2, 5.5));
        assert!((4.0..7.0).contains(&x), "{x}");
        assert_eq!(next_click(&nothing, &truth, (-100.0, 2.0)).unwrap().line, [(0.5, 7.5)]);
        // Pixels to ignore are no mistakes.
        let perfect = truth.labels().iter().map(|&label| label % IGNORE).collect();
        assert_eq!(next_click(&LabelMap::new(20, 10, perfect).unwrap(), &truth, (0.0, 0.0)), None);
    }

    #[test]
    fn depths_count_steps_to_the_outside() {
        let set: Vec<bool> =
            (0..49).map(|i| (1..6).contains(&(i % 7)) && (1..6).contains(&(i / 7))).collect();
        let depths = depths(&set, 7);
        assert_eq!(depths[21..28], [0, 1, 2, 3, 2, 1, 0]);
        assert_eq!(super::depths(&[true; 9], 3), [1, 1, 1, 1, 2, 1, 1, 1, 1]);
    }
}
