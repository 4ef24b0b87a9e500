//! Colour jitter: brightness, contrast, saturation, hue, greyscale. Images are three planes (red, green, blue) of
//! 0..=255.

use crate::random::Random;
use serde::{Deserialize, Serialize};

/// Brightness and overflow in colour jitter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Brightness {
    /// ±0.2 of the whole range, clipped to 0..=255.
    #[default]
    Scaled,
    /// As in the released code: ±0.2 added to 0..=255, which has no effect, and nothing is clipped.
    Unscaled,
}

/// Settings of colour jitter; the ranges are those of the released code.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ColourChange {
    /// Largest brightness shift, as a fraction of the whole range.
    pub brightness: f32,
    /// Unit of the brightness shift.
    pub brightness_unit: Brightness,
    /// Range of the factor on the deviation from each channel's mean.
    pub contrast: (f32, f32),
    /// Range of the saturation factor.
    pub saturation: (f32, f32),
    /// Largest hue rotation; 1 is a full turn.
    pub hue: f32,
    /// Probability of a greyscale image.
    pub grey_probability: f32,
}

impl Default for ColourChange {
    fn default() -> Self {
        ColourChange {
            brightness: 0.2,
            brightness_unit: Brightness::Scaled,
            contrast: (0.5, 2.0),
            saturation: (0.5, 1.5),
            hue: 0.1,
            grey_probability: 0.1,
        }
    }
}

impl ColourChange {
    /// Changes an image in place; always consumes the same number of random numbers.
    pub fn apply(&self, planes: &mut [f32], random: &mut Random) {
        let shift = random.range(-self.brightness, self.brightness);
        let contrast = random.range(self.contrast.0, self.contrast.1);
        let saturation = random.range(self.saturation.0, self.saturation.1);
        let turn = random.range(-self.hue, self.hue);
        let turn = turn - turn.round(); // whole turns change nothing
        let grey = random.chance(self.grey_probability);

        let shift = match self.brightness_unit {
            Brightness::Scaled => 255.0 * shift,
            Brightness::Unscaled => shift,
        };
        let num_pixels = planes.len() / 3;
        for plane in planes.chunks_exact_mut(num_pixels) {
            let mean = plane.iter().map(|&value| f64::from(value)).sum::<f64>() / num_pixels as f64;
            let mean = mean as f32 + shift;
            plane.iter_mut().for_each(|value| *value = (*value + shift - mean) * contrast + mean);
        }
        let (red, rest) = planes.split_at_mut(num_pixels);
        let (green, blue) = rest.split_at_mut(num_pixels);
        for ((red, green), blue) in red.iter_mut().zip(green).zip(blue) {
            let rgb = turned([*red, *green, *blue], saturation, turn);
            let rgb = if grey { [luma(rgb); 3] } else { rgb };
            [*red, *green, *blue] = match self.brightness_unit {
                Brightness::Scaled => rgb.map(|value| value.clamp(0.0, 255.0)),
                Brightness::Unscaled => rgb,
            };
        }
    }
}

/// ITU-R BT.601, as TensorFlow's `rgb_to_grayscale`.
fn luma([red, green, blue]: [f32; 3]) -> f32 {
    0.2989 * red + 0.587 * green + 0.114 * blue
}

/// Scales the saturation (clamped to 0..=1) and rotates the hue, in HSV.
fn turned(rgb: [f32; 3], saturation: f32, turn: f32) -> [f32; 3] {
    let [red, green, blue] = rgb;
    let value = red.max(green).max(blue);
    let chroma = value - red.min(green).min(blue);
    if chroma <= 0.0 || value <= 0.0 {
        return rgb; // grey has neither
    }
    let sixths = if value == red {
        (green - blue) / chroma
    } else if value == green {
        2.0 + (blue - red) / chroma
    } else {
        4.0 + (red - green) / chroma
    };
    let chroma = value * (chroma / value * saturation).clamp(0.0, 1.0);
    let sixths = within_circle(sixths + 6.0 * turn);
    // A channel's value follows from its distance to the hue, in sixths of the circle.
    let channel = |offset: f32| {
        let position = within_circle(offset + sixths);
        value - chroma * position.min(4.0 - position).clamp(0.0, 1.0)
    };
    [channel(5.0), channel(3.0), channel(1.0)]
}

/// Wraps a hue in sixths, off by at most one turn, into [0, 6). `rem_euclid` calls `fmodf`, which took a third of the
/// time of making a view.
fn within_circle(sixths: f32) -> f32 {
    let sixths = if sixths < 0.0 { sixths + 6.0 } else { sixths };
    if sixths >= 6.0 { sixths - 6.0 } else { sixths }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(rgb: [f32; 3], saturation: f32, turn: f32, expected: [f32; 3]) {
        let result = turned(rgb, saturation, turn);
        let close = result.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-3);
        assert!(close, "{rgb:?} became {result:?} instead of {expected:?}");
    }

    #[test]
    fn hue_turns_and_saturation_scales() {
        check([200.0, 50.0, 50.0], 1.0, 0.0, [200.0, 50.0, 50.0]);
        check([13.0, 190.0, 77.0], 1.0, 0.0, [13.0, 190.0, 77.0]);
        check([200.0, 50.0, 50.0], 1.0, 1.0 / 3.0, [50.0, 200.0, 50.0]); // red to green
        check([200.0, 50.0, 50.0], 1.0, -1.0 / 3.0, [50.0, 50.0, 200.0]); // red to blue
        check([200.0, 100.0, 100.0], 0.5, 0.0, [200.0, 150.0, 150.0]); // saturation 0.5 to 0.25
        check([200.0, 100.0, 100.0], 9.0, 0.0, [200.0, 0.0, 0.0]); // not beyond 1
        check([70.0, 70.0, 70.0], 1.5, 0.3, [70.0, 70.0, 70.0]);
    }

    #[test]
    fn the_default_clips_and_the_released_code_does_not() {
        let mut random = Random::new(&[3]);
        let picture: Vec<f32> = (0..300).map(|i| (i % 256) as f32).collect();
        let mut high = f32::MIN;
        for _ in 0..20 {
            let mut planes = picture.clone();
            ColourChange::default().apply(&mut planes, &mut random);
            assert!(planes.iter().all(|value| (0.0..=255.0).contains(value)));
            let mut planes = picture.clone();
            let unscaled = ColourChange { brightness_unit: Brightness::Unscaled, ..ColourChange::default() };
            unscaled.apply(&mut planes, &mut random);
            high = planes.iter().copied().fold(high, f32::max);
        }
        assert!(high > 255.0);
    }

    #[test]
    fn no_change_asked_for_is_none_made() {
        let none = ColourChange {
            brightness: 0.0,
            contrast: (1.0, 1.0),
            saturation: (1.0, 1.0),
            hue: 0.0,
            grey_probability: 0.0,
            ..ColourChange::default()
        };
        let picture: Vec<f32> = (0..48).map(|i| (i * 5 % 256) as f32).collect();
        let mut planes = picture.clone();
        none.apply(&mut planes, &mut Random::new(&[1]));
        assert!(planes.iter().zip(&picture).all(|(a, b)| (a - b).abs() < 1e-3));
    }
}
