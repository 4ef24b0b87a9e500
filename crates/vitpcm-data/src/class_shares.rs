//! A pseudo-mask on the patch grid: the fraction of each cell that each class covers. A second training round learns
//! from it; true masks are never used here.

use crate::{DataError, ImageLimits, MaskSource};
use std::path::{Path, PathBuf};
use vitpcm_masks::resampling::{Alignment, resize_plane};
use vitpcm_masks::{Classes, IGNORE, LabelMap, Symmetry};

/// The pseudo-masks of a data set, as `vitpcm segment` wrote them: `NAME.png` for the image `NAME`.
#[derive(Clone, Debug, PartialEq)]
pub struct PseudoMasks {
    /// Where they are.
    pub folder: PathBuf,
    /// The classes they may contain.
    pub classes: Classes,
}

impl PseudoMasks {
    /// The pseudo-mask of an image by its [`TaggedImage::mask_name`](crate::TaggedImage::mask_name).
    pub fn path(&self, mask_name: &Path) -> PathBuf {
        self.folder.join(mask_name)
    }

    /// Reads one; `None` if there is none.
    pub(crate) fn read(&self, mask_name: &Path, limits: &ImageLimits) -> Result<Option<LabelMap>, DataError> {
        let path = self.path(mask_name);
        if !path.exists() {
            return Ok(None);
        }
        MaskSource::Png(path).read(&self.classes, limits).map(Some)
    }
}

/// The fraction of each class in every cell of a square grid. Ignored pixels count for no class, so fractions may sum
/// to less than 1.
#[derive(Clone, Debug, PartialEq)]
pub struct ClassShares {
    grid: usize,
    /// The classes that occur.
    classes: Vec<u8>,
    /// One grid plane per class.
    planes: Vec<f32>,
}

impl ClassShares {
    /// From a mask of any size.
    pub fn of(mask: &LabelMap, grid: usize, alignment: Alignment) -> Self {
        let histogram = mask.histogram();
        let classes: Vec<u8> = (0..IGNORE).filter(|&class| histogram[usize::from(class)] > 0).collect();
        let plane = |&class: &u8| {
            let labels = mask.labels().iter();
            let pixels: Vec<f32> = labels.map(|&label| f32::from(u8::from(label == class))).collect();
            resize_plane(&pixels, mask.size(), (grid, grid), alignment)
        };
        let planes = classes.iter().flat_map(plane).collect();
        ClassShares { grid, classes, planes }
    }

    /// The fractions of the transformed mask.
    pub fn turned(&self, symmetry: Symmetry) -> Self {
        let planes = symmetry.apply(&self.planes, (self.grid, self.grid));
        ClassShares { planes, classes: self.classes.clone(), ..*self }
    }

    /// Writes one row of `num_classes` numbers per cell over zeros.
    pub fn write_rows(&self, num_classes: usize, rows: &mut [f32]) {
        let planes = self.planes.chunks_exact(self.grid * self.grid);
        for (&class, plane) in self.classes.iter().zip(planes) {
            for (row, &share) in rows.chunks_exact_mut(num_classes).zip(plane) {
                row[usize::from(class)] = share;
            }
        }
    }

    /// Memory in bytes.
    pub(crate) fn num_bytes(&self) -> usize {
        size_of_val(self.planes.as_slice()) + self.classes.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_those_of_the_pixels_and_turn_with_the_view() {
        // 4 × 4 pixels on a grid of 2: left half class 3, right half background, one pixel unknown.
        let mut labels = [3, 3, 0, 0].repeat(4);
        labels[15] = IGNORE;
        let mask = LabelMap::new(4, 4, labels).unwrap();
        let shares = ClassShares::of(&mask, 2, Alignment::HalfPixel);
        let rows = |shares: &ClassShares| {
            let mut rows = vec![0.0; 4 * 5];
            shares.write_rows(5, &mut rows);
            rows
        };
        let upright = rows(&shares);
        for cell in upright.chunks_exact(5) {
            assert_eq!((cell[1], cell[2], cell[4]), (0.0, 0.0, 0.0));
        }
        assert!(upright[3] > 0.8 && upright[5] > 0.8, "{upright:?}");
        let sums: Vec<f32> = upright.chunks_exact(5).map(|cell| cell.iter().sum()).collect();
        assert!((sums[0] - 1.0).abs() < 1e-6 && sums[3] < 0.95, "{sums:?}");

        for symmetry in Symmetry::ALL {
            let labels: Vec<f32> = mask.labels().iter().map(|&label| label.into()).collect();
            let labels = symmetry.apply(&labels, (4, 4)).into_iter().map(|label| label as u8).collect();
            let turned_mask = LabelMap::new(4, 4, labels).unwrap();
            let expected = ClassShares::of(&turned_mask, 2, Alignment::HalfPixel);
            let turned = rows(&shares.turned(symmetry));
            let close = |(a, b): (&f32, f32)| (a - b).abs() < 1e-6;
            assert!(turned.iter().zip(rows(&expected)).all(close), "{symmetry:?}");
        }
    }
}
