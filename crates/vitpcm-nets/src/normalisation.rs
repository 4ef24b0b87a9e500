//! The one place where pixel values become network input.

use serde::{Deserialize, Serialize};

use crate::error::{NetsError, Result};

/// Mean and standard deviation per channel (R, G, B), for pixel values scaled to 0..1.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Normalisation {
    /// Subtracted.
    pub mean: [f32; 3],
    /// Divided by.
    pub std: [f32; 3],
}

impl Normalisation {
    /// (x − 127.5) / 127.5: Google's and timm's ViTs.
    pub const HALF: Self = Self { mean: [0.5; 3], std: [0.5; 3] };
    /// ImageNet's statistics: DINO and DINOv2.
    pub const IMAGENET: Self = Self { mean: [0.485, 0.456, 0.406], std: [0.229, 0.224, 0.225] };
    /// Pixels of 0..255 minus ImageNet's mean, without division: Caffe and Keras.
    pub const CAFFE: Self = Self {
        mean: [123.68 / 255.0, 116.779 / 255.0, 103.939 / 255.0],
        std: [1.0 / 255.0, 1.0 / 255.0, 1.0 / 255.0],
    };

    /// Checks that pixels can be divided by the deviations.
    pub(crate) fn check(&self) -> Result<()> {
        let is_finite = self.mean.iter().chain(&self.std).all(|value| value.is_finite());
        if !is_finite || self.std.iter().any(|&std| std <= 0.0) {
            let reason = "a normalisation with a deviation that is not positive".to_owned();
            return Err(NetsError::BadConfig { reason });
        }
        Ok(())
    }

    /// Normalises one channel value, usually 0..255 (augmented views may exceed it).
    pub fn normalise(&self, channel: usize, value: f32) -> f32 {
        (value / 255.0 - self.mean[channel]) / self.std[channel]
    }

    /// Three planes (R, G, B) of 0..255, in place.
    pub fn normalise_planes(&self, planes: &mut [f32]) {
        let num_pixels = planes.len() / 3;
        for (channel, plane) in planes.chunks_exact_mut(num_pixels.max(1)).enumerate().take(3) {
            plane.iter_mut().for_each(|value| *value = self.normalise(channel, *value));
        }
    }

    /// RGB pixels, HWC, u8, to network input, CHW. An incomplete last pixel is dropped.
    pub fn network_input_from_rgb(&self, rgb: &[u8]) -> Vec<f32> {
        let num_pixels = rgb.len() / 3;
        let mut input = Vec::with_capacity(3 * num_pixels);
        for channel in 0..3 {
            input.extend(rgb.chunks_exact(3).map(|pixel| self.normalise(channel, f32::from(pixel[channel]))));
        }
        input
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_maps_the_pixel_range_to_minus_one_to_one() {
        let input = Normalisation::HALF.network_input_from_rgb(&[0, 255, 0, 255, 0, 0]);
        assert_eq!(input, [-1.0, 1.0, 1.0, -1.0, -1.0, -1.0]);
    }
}
