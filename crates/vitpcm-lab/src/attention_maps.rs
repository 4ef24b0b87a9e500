//! Foreground without tags or training: the attention of a ViT's class token in the last block. The baseline of the
//! paper's foreground table, after DINO (Caron et al., ICCV 2021).

use candle_core::{Device, Tensor};
use image::RgbImage;
use vitpcm::SegmentError;
use vitpcm_masks::LabelMap;
use vitpcm_masks::resampling::{Alignment, Part, nearest_indices, resize_rgb8};
use vitpcm_nets::{BackboneConfig, ImportedBackbone, Model, Normalisation, Precision, Vit};

/// A ViT and the settings of its attention maps.
#[derive(Debug)]
pub(crate) struct AttentionMapper {
    vit: Vit,
    normalisation: Normalisation,
    device: Device,
    /// Patches per side.
    cells: usize,
}

/// The attention maps of one image.
#[derive(Clone, Debug)]
pub(crate) struct AttentionMaps {
    /// One row-major map per head: the class token's attention to each patch.
    pub(crate) heads: Vec<Vec<f32>>,
    /// Width and height of the grid.
    pub(crate) grid: (usize, usize),
    /// Width and height of the image.
    pub(crate) image_size: (usize, usize),
}

impl AttentionMapper {
    /// Uses pretrained weights as they are. Images are resized to `size` pixels per side, in whole patches.
    pub(crate) fn of_backbone(
        backbone: &ImportedBackbone,
        size: usize,
        precision: Precision,
        device: &Device,
    ) -> Result<Self, SegmentError> {
        let vit = Vit::new(&backbone.summary.config, &backbone.parameters)?;
        Self::new(vit, backbone.summary.likely_normalisation, size, precision, device)
    }

    /// Uses the ViT of a model trained from tags.
    pub(crate) fn of_model(
        model: &Model,
        size: usize,
        precision: Precision,
        device: &Device,
    ) -> Result<Self, SegmentError> {
        let BackboneConfig::Vit(config) = &model.info.network.backbone else {
            let problem = "the model's backbone is a convolutional network; attention is a ViT's".to_owned();
            return Err(SegmentError::BadOptions(problem));
        };
        let vit = Vit::new(config, &model.parameters)?;
        Self::new(vit, model.info.normalisation, size, precision, device)
    }

    fn new(
        vit: Vit,
        normalisation: Normalisation,
        size: usize,
        precision: Precision,
        device: &Device,
    ) -> Result<Self, SegmentError> {
        let patch = vit.config().patch;
        let cells = (size as f64 / patch as f64).round() as usize;
        if !(1..=256).contains(&cells) {
            let problem = format!("size {size}: a grid of {cells} patches per side, expected 1 to 256");
            return Err(SegmentError::BadOptions(problem));
        }
        let vit = vit.with_precision(precision).for_inference()?;
        Ok(Self { vit, normalisation, device: device.clone(), cells })
    }

    /// Number of heads, which is the number of maps per image.
    pub(crate) fn num_heads(&self) -> usize {
        self.vit.config().heads
    }

    /// Runs the ViT on one image, which is resized to a square.
    pub(crate) fn attend(&self, image: &RgbImage) -> Result<AttentionMaps, SegmentError> {
        let image_size = (image.width() as usize, image.height() as usize);
        let side = self.cells * self.vit.config().patch;
        let to = (side, side);
        let mut planes = resize_rgb8(image.as_raw(), image_size, to, Part::whole(to), Alignment::HalfPixel);
        self.normalisation.normalise_planes(&mut planes);
        let pixels = Tensor::from_vec(planes, (1, 3, side, side), &self.device)?;
        let maps = vitpcm_nets::on_worker(|| self.vit.class_attention(&pixels))?;
        let heads = maps.squeeze(0)?.flatten_from(1)?.to_vec2()?;
        Ok(AttentionMaps { heads, grid: (self.cells, self.cells), image_size })
    }
}

impl AttentionMaps {
    /// The mean of all heads' maps.
    pub(crate) fn mean(&self) -> Vec<f32> {
        let num_heads = self.heads.len() as f32;
        let cell = |at: usize| self.heads.iter().map(|head| head[at]).sum::<f32>() / num_heads;
        (0..self.grid.0 * self.grid.1).map(cell).collect()
    }

    /// DINO's mask of a map: 1 for the patches with the largest `mass` (0..1) of its attention, 0 for the others, each
    /// patch as a block of image pixels.
    pub(crate) fn foreground(&self, map: &[f32], mass: f32) -> Result<LabelMap, SegmentError> {
        let kept = &largest_mass(map, mass);
        let columns = nearest_indices(self.grid.0, self.image_size.0, Alignment::HalfPixel);
        let rows = nearest_indices(self.grid.1, self.image_size.1, Alignment::HalfPixel);
        let row = |y: usize| columns.iter().map(move |x| u8::from(kept[y * self.grid.0 + x]));
        let pixels = rows.into_iter().flat_map(row);
        Ok(LabelMap::new(self.image_size.0, self.image_size.1, pixels.collect())?)
    }
}

/// Which values make up the largest `mass` of their sum: in ascending order, those whose cumulative fraction of the sum
/// is above 1 − mass. Ties keep their order.
fn largest_mass(values: &[f32], mass: f32) -> Vec<bool> {
    let sum: f64 = values.iter().map(|&value| f64::from(value)).sum();
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|&a, &b| values[a].total_cmp(&values[b]));
    let mut kept = vec![false; values.len()];
    let mut running = 0.0;
    for at in order {
        running += f64::from(values[at]);
        kept[at] = running > (1.0 - f64::from(mass)) * sum;
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_values_up_to_the_mass_are_kept() {
        // Ascending: 1, 2, 3, 4 of 10; cumulative fractions 0.1, 0.3, 0.6, 1.
        let values = [3.0, 1.0, 4.0, 2.0];
        assert_eq!(largest_mass(&values, 0.65), [true, false, true, false]);
        assert_eq!(largest_mass(&values, 0.35), [false, false, true, false]);
        assert_eq!(largest_mass(&values, 1.0), [true; 4]);
        assert_eq!(largest_mass(&[0.0; 3], 0.6), [false; 3]);
    }

    #[test]
    fn a_mask_is_the_grid_in_blocks_of_pixels() {
        let maps = AttentionMaps { heads: vec![vec![0.1, 0.5, 0.3, 0.1]], grid: (2, 2), image_size: (4, 3) };
        let mask = maps.foreground(&maps.heads[0], 0.6).unwrap();
        // Three rows of two cells: the middle one belongs to the second.
        assert_eq!(mask.labels(), [0, 0, 1, 1, 1, 1, 0, 0, 1, 1, 0, 0]);
        assert_eq!(maps.mean(), maps.heads[0]);
    }
}
