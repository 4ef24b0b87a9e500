//! Pictures for people: a mask over its image, and a class's scores as a heat map with a colour bar.

use crate::palette::display_colour;
use crate::resampling::{Alignment, resize_plane};
use crate::{LabelMap, MaskError, ScoreMap, atomic_file};
use std::io::Write;
use std::path::Path;

/// An 8-bit RGB picture, interleaved, row by row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Picture {
    /// Pixels per row.
    pub width: usize,
    /// Number of rows.
    pub height: usize,
    /// Red, green, blue of each pixel.
    pub rgb: Vec<u8>,
}

impl Picture {
    /// Encodes the picture as PNG.
    ///
    /// # Panics
    /// If `rgb` does not hold three values for each of `width × height` pixels, or a side does not fit in 32 bits.
    pub fn png(&self) -> Vec<u8> {
        png_bytes((self.width, self.height), png::ColorType::Rgb, &self.rgb)
    }

    /// Writes a PNG atomically.
    pub fn write_png(&self, path: &Path) -> Result<(), MaskError> {
        let bytes = self.png();
        atomic_file::write(path, |file| file.write_all(&bytes)).map_err(|source| MaskError::io(path, source))
    }

    fn set(&mut self, x: usize, y: usize, colour: [u8; 3]) {
        if x < self.width && y < self.height {
            self.rgb[3 * (y * self.width + x)..][..3].copy_from_slice(&colour);
        }
    }
}

/// Class colours ([`display_colour`]) over the image with this opacity, and the outlines of all regions at full
/// opacity. Background is unchanged; ignored pixels turn white.
///
/// # Panics
/// If `image_rgb` (interleaved) does not have the mask's size.
pub fn overlay(image_rgb: &[u8], mask: &LabelMap, opacity: f32) -> Picture {
    let (width, height) = mask.size();
    assert_eq!(image_rgb.len(), 3 * width * height, "image and mask have one size");
    let mut picture = Picture { width, height, rgb: image_rgb.to_vec() };
    for (i, colour, strength) in coloured_pixels(mask, opacity) {
        for (value, colour) in picture.rgb[3 * i..3 * i + 3].iter_mut().zip(colour) {
            *value = (f32::from(*value) * (1.0 - strength) + f32::from(colour) * strength).round() as u8;
        }
    }
    picture
}

/// The layer that [`overlay`] draws, as a PNG that is transparent elsewhere, for pages that can show and hide it.
pub fn mask_layer_png(mask: &LabelMap, opacity: f32) -> Vec<u8> {
    let mut rgba = vec![0; 4 * mask.labels().len()];
    for (i, [red, green, blue], strength) in coloured_pixels(mask, opacity) {
        rgba[4 * i..4 * i + 4].copy_from_slice(&[red, green, blue, (255.0 * strength).round() as u8]);
    }
    png_bytes(mask.size(), png::ColorType::Rgba, &rgba)
}

/// The non-background pixels of a mask: index, colour and opacity.
fn coloured_pixels(mask: &LabelMap, opacity: f32) -> impl Iterator<Item = (usize, [u8; 3], f32)> + '_ {
    let ((width, height), labels) = (mask.size(), mask.labels());
    labels.iter().enumerate().filter(|(_, label)| **label != 0).map(move |(i, &label)| {
        let (x, y) = (i % width, i / width);
        let differs = |j: usize| labels[j] != label;
        let is_edge = (x > 0 && differs(i - 1))
            || (y > 0 && differs(i - width))
            || (x + 1 < width && differs(i + 1))
            || (y + 1 < height && differs(i + width));
        (i, display_colour(label), if is_edge { 1.0 } else { opacity })
    })
}

fn png_bytes((width, height): (usize, usize), kind: png::ColorType, pixels: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut encoder = png::Encoder::new(&mut bytes, width as u32, height as u32);
    encoder.set_color(kind);
    let written = encoder.write_header().and_then(|mut writer| writer.write_image_data(pixels));
    written.expect("memory takes all");
    bytes
}

/// Height of the colour bar, its distance from the picture and the height of its labels.
const BAR: [usize; 3] = [10, 6, 12];

/// One class's scores as colours (0 dark violet, 1 yellow, as in the paper's figure), enlarged to `size` = (width,
/// height), with a colour bar from 0 to 1 below.
pub fn heat_map(scores: &ScoreMap, class: usize, size: (usize, usize)) -> Picture {
    let (width, height) = size;
    let plane = resize_plane(scores.plane(class), scores.size(), size, Alignment::HalfPixel);
    let [bar, gap, figures] = BAR;
    let total = height + gap + bar + figures;
    let mut picture = Picture { width, height: total, rgb: vec![255; 3 * width * total] };
    for (pixel, &score) in picture.rgb.chunks_exact_mut(3).zip(&plane) {
        pixel.copy_from_slice(&viridis(score));
    }
    for x in 0..width {
        let colour = viridis(x as f32 / (width.max(2) - 1) as f32);
        (height + gap..height + gap + bar).for_each(|y| picture.set(x, y, colour));
    }
    let baseline = height + gap + bar + 3;
    put_text(&mut picture, "0", 1, baseline);
    put_text(&mut picture, "0.5", (width / 2).saturating_sub(6), baseline);
    put_text(&mut picture, "1", width.saturating_sub(6), baseline);
    picture
}

/// Matplotlib's viridis (CC0) at 9 points, interpolated.
pub fn viridis(value: f32) -> [u8; 3] {
    const POINTS: [[f32; 3]; 9] = [
        [68.0, 1.0, 84.0],
        [71.0, 44.0, 122.0],
        [59.0, 81.0, 139.0],
        [44.0, 113.0, 142.0],
        [33.0, 144.0, 141.0],
        [39.0, 173.0, 129.0],
        [92.0, 200.0, 99.0],
        [170.0, 220.0, 50.0],
        [253.0, 231.0, 37.0],
    ];
    let position = value.clamp(0.0, 1.0) * (POINTS.len() - 1) as f32;
    let first = (position as usize).min(POINTS.len() - 2);
    let t = position - first as f32;
    [0, 1, 2].map(|c| (POINTS[first][c] * (1.0 - t) + POINTS[first + 1][c] * t).round() as u8)
}

/// Digits of 3 × 5 dots, for the colour bar.
fn put_text(picture: &mut Picture, text: &str, x: usize, y: usize) {
    for (i, character) in text.chars().enumerate() {
        let dots: [u8; 5] = match character {
            '0' => [0b111, 0b101, 0b101, 0b101, 0b111],
            '1' => [0b010, 0b110, 0b010, 0b010, 0b111],
            '5' => [0b111, 0b100, 0b111, 0b001, 0b111],
            _ => [0, 0, 0, 0, 0b010],
        };
        for (row, bits) in dots.into_iter().enumerate() {
            for column in (0..3).filter(|column| bits >> (2 - column) & 1 == 1) {
                picture.set(x + 4 * i + column, y + row, [40, 40, 40]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_overlay_leaves_the_background_and_draws_outlines() {
        let mask = LabelMap::new(5, 3, vec![0, 1, 1, 1, 0, 0, 1, 1, 1, 0, 0, 1, 1, 1, 0]).unwrap();
        let picture = overlay(&[100; 45], &mask, 0.5);
        assert_eq!(picture.rgb[..3], [100, 100, 100]);
        assert_eq!(picture.rgb[3..6], [255, 0, 195]); // an edge in full colour
        assert_eq!(picture.rgb[3 * 7..3 * 7 + 3], [178, 50, 148]); // inside: half of each
    }

    #[test]
    fn a_layer_over_the_image_looks_like_the_overlay() {
        let mask = LabelMap::new(5, 3, vec![0, 1, 1, 1, 0, 0, 1, 1, 1, 0, 0, 1, 1, 1, 255]).unwrap();
        let bytes = mask_layer_png(&mask, 0.5);
        let mut reader = png::Decoder::new(std::io::Cursor::new(bytes)).read_info().unwrap();
        let mut rgba = vec![0; reader.output_buffer_size().unwrap()];
        reader.next_frame(&mut rgba).unwrap();
        let flat = overlay(&[100; 45], &mask, 0.5);
        for (layer, expected) in rgba.chunks_exact(4).zip(flat.rgb.chunks_exact(3)) {
            let alpha = f32::from(layer[3]) / 255.0;
            for (&colour, &expected) in layer.iter().zip(expected) {
                let value = 100.0 * (1.0 - alpha) + f32::from(colour) * alpha;
                assert!((value - f32::from(expected)).abs() < 1.0, "{layer:?} {expected}");
            }
        }
    }

    #[test]
    fn a_heat_map_goes_from_violet_to_yellow_and_has_its_bar() {
        let scores = ScoreMap::new(1, 2, 1, vec![0.0, 1.0]).unwrap();
        let picture = heat_map(&scores, 0, (40, 30));
        assert_eq!((picture.width, picture.height), (40, 58));
        assert_eq!(picture.rgb[..3], [68, 1, 84]);
        assert_eq!(picture.rgb[3 * 39..3 * 40], [253, 231, 37]);
        let bar_start = 3 * (40 * 37);
        assert_eq!(picture.rgb[bar_start..bar_start + 3], [68, 1, 84]);
        assert_eq!(picture.rgb.len(), 3 * 40 * 58);
    }

    #[test]
    fn tiny_heat_maps_do_not_panic() {
        let scores = ScoreMap::new(1, 1, 1, vec![0.5]).unwrap();
        assert_eq!(heat_map(&scores, 0, (1, 1)).width, 1);
    }
}
