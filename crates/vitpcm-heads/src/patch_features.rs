//! The projected features of all patches of all images of one source, kept in half precision.

use half::f16;
use half::slice::HalfFloatSliceExt;
use vitpcm_nets::Grid;

use crate::error::{Result, check_length};
use crate::tagged_images::TaggedImages;

/// Features of every patch, `[images, patches, width]`, patches in row-major order.
#[derive(Debug, Clone)]
pub struct PatchFeatures {
    grid: Grid,
    width: usize,
    values: Vec<f16>,
}

impl PatchFeatures {
    /// From all values, `[images, rows · columns, width]`.
    pub fn new(grid: Grid, width: usize, values: Vec<f16>) -> Result<Self> {
        let an_image = (grid.num_cells() * width).max(1);
        check_length("features of whole images", values.len(), values.len() / an_image * an_image)?;
        Ok(Self { grid, width, values })
    }

    /// The patch grid of an image.
    pub fn grid(&self) -> Grid {
        self.grid
    }

    /// Patches per image.
    pub fn num_patches(&self) -> usize {
        self.grid.num_cells()
    }

    /// Features per patch.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Number of images.
    pub fn num_images(&self) -> usize {
        self.values.len() / (self.num_patches() * self.width)
    }

    /// The features of an image, `[patches, width]`.
    pub fn image(&self, image: usize) -> &[f16] {
        let an_image = self.num_patches() * self.width;
        &self.values[image * an_image..][..an_image]
    }

    /// The features of a patch.
    pub(crate) fn patch(&self, image: usize, patch: usize) -> &[f16] {
        &self.image(image)[patch * self.width..][..self.width]
    }

    pub(crate) fn check_fits(&self, images: &TaggedImages) -> Result<()> {
        check_length("images with features", self.num_images(), images.num_images())
    }
}

/// Converts rows of `width` features to `[rows, width + 1]` in f32. The last column is 1, so that a bias is one more
/// weight and the sum of the rows is one more column of their Gram matrix.
pub(crate) fn widen<'a>(rows: impl Iterator<Item = &'a [f16]>, width: usize, widened: &mut Vec<f32>) {
    widened.clear();
    for row in rows {
        let start = widened.len();
        widened.resize(start + width + 1, 1.0);
        row.convert_to_f32_slice(&mut widened[start..start + width]);
    }
}
