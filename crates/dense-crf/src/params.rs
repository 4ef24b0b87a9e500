//! The usual two-term CRF over an RGB image in one call, with published settings.

use crate::{Compatibility, DenseCrf, Error, Layout, Marginals, Normalization};

/// Settings of the usual CRF: a smoothness and an appearance term, both Potts.
///
/// The defaults are those of ViT-PCM (Rossetti et al., ECCV 2022).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Params {
    /// Mean-field iterations.
    pub iterations: usize,
    /// Weight of the smoothness term; 0 leaves it out.
    pub gaussian_weight: f32,
    /// Reach of the smoothness term, in pixels.
    pub gaussian_sigma: f32,
    /// Weight of the appearance term; 0 leaves it out.
    pub bilateral_weight: f32,
    /// Reach of the appearance term, in pixels.
    pub bilateral_sigma_xy: f32,
    /// Tolerance of the appearance term, in grey levels of 0..=255.
    pub bilateral_sigma_rgb: f32,
    /// Lower bound of probabilities in the unary `−ln p`.
    pub floor: f32,
    /// How both kernels are normalised.
    pub normalization: Normalization,
}

impl Default for Params {
    fn default() -> Self {
        Self {
            iterations: 10,
            gaussian_weight: 3.0,
            gaussian_sigma: 1.0,
            bilateral_weight: 4.0,
            bilateral_sigma_xy: 67.0,
            bilateral_sigma_rgb: 3.0,
            floor: 1e-5,
            normalization: Normalization::Symmetric,
        }
    }
}

impl Params {
    /// The CRF with these settings for an image (RGB, HWC, 0..=255) and the probabilities of `num_classes` classes.
    ///
    /// # Errors
    /// As [`DenseCrf::from_probabilities`], [`DenseCrf::add_gaussian`] and [`DenseCrf::add_bilateral`].
    pub fn build(
        &self,
        width: usize,
        height: usize,
        rgb: &[u8],
        num_classes: usize,
        probabilities: &[f32],
        layout: Layout,
    ) -> Result<DenseCrf, Error> {
        let mut crf =
            DenseCrf::from_probabilities(width, height, num_classes, probabilities, layout, self.floor)?;
        if self.gaussian_weight != 0.0 {
            let potts = Compatibility::Potts(self.gaussian_weight);
            crf.add_gaussian([self.gaussian_sigma; 2], potts, self.normalization)?;
        }
        if self.bilateral_weight != 0.0 {
            let potts = Compatibility::Potts(self.bilateral_weight);
            let (sigma_xy, sigma_rgb) = ([self.bilateral_sigma_xy; 2], [self.bilateral_sigma_rgb; 3]);
            crf.add_bilateral(rgb, sigma_xy, &sigma_rgb, potts, self.normalization)?;
        }
        Ok(crf)
    }

    /// The marginals of [`build`](Self::build) after [`iterations`](Self::iterations).
    ///
    /// # Errors
    /// As [`build`](Self::build).
    pub fn refine(
        &self,
        width: usize,
        height: usize,
        rgb: &[u8],
        num_classes: usize,
        probabilities: &[f32],
        layout: Layout,
    ) -> Result<Marginals, Error> {
        Ok(self.build(width, height, rgb, num_classes, probabilities, layout)?.infer(self.iterations))
    }
}
