//! Class colours. In mask files: PASCAL VOC's, defined for all 256 labels, which readers expect. Over photographs, in
//! reports and in the viewer: colours with good contrast to skin, leaves and steel.

use crate::IGNORE;

/// Colours of the first classes over photographs. Each was chosen as the colour furthest in CIELAB from those before
/// it, at a distance of at least 42 from leaves, skin, soil and greys, with greens moved to the end. Tests check the
/// distances.
const DISPLAY_COLOURS: [[u8; 3]; 24] = [
    [255, 0, 195],
    [0, 150, 255],
    [255, 210, 15],
    [30, 255, 225],
    [255, 0, 0],
    [0, 0, 255],
    [0, 255, 0],
    [105, 45, 180],
    [255, 165, 255],
    [150, 0, 60],
    [210, 0, 255],
    [225, 120, 15],
    [195, 255, 90],
    [255, 0, 90],
    [0, 210, 105],
    [150, 0, 120],
    [165, 15, 0],
    [255, 105, 165],
    [0, 75, 255],
    [225, 105, 255],
    [45, 75, 165],
    [165, 135, 255],
    [75, 195, 0],
    [120, 0, 210],
];

/// Colour of a label in overlays, reports and the viewer. Background is grey, "ignore" is white.
pub fn display_colour(label: u8) -> [u8; 3] {
    match label {
        0 => [110, 116, 114],
        IGNORE => [255; 3],
        _ => match DISPLAY_COLOURS.get(usize::from(label) - 1) {
            Some(&colour) => colour,
            None => further_colour(label),
        },
    }
}

/// For more classes than people can tell apart by colour: hues at the golden angle, in three strengths.
fn further_colour(label: u8) -> [u8; 3] {
    let sector = (f32::from(label) * 137.508 % 360.0) / 60.0;
    let (saturation, value) = [(1.0, 1.0), (0.6, 0.95), (1.0, 0.7)][usize::from(label) % 3];
    [5.0, 3.0, 1.0].map(|shift: f32| {
        let k = (shift + sector) % 6.0;
        let strength = value * (1.0 - saturation * k.min(4.0 - k).clamp(0.0, 1.0));
        (255.0 * strength).round() as u8
    })
}

/// Colour of a label, as in the VOC devkit: the label's bits, three at a time, become the high bits of red, green and
/// blue.
pub const fn voc_colour(label: u8) -> [u8; 3] {
    let mut colour = [0u8; 3];
    let mut bits = label;
    let mut shift = 7;
    while bits != 0 {
        colour[0] |= (bits & 1) << shift;
        colour[1] |= ((bits >> 1) & 1) << shift;
        colour[2] |= ((bits >> 2) & 1) << shift;
        bits >>= 3;
        shift -= 1;
    }
    colour
}

/// The whole palette as PNG stores it: red, green, blue of label 0, of label 1, …
pub fn voc_palette() -> Vec<u8> {
    (0..=255).flat_map(voc_colour).collect()
}

/// The label of a colour, if the palette has it, for masks saved as RGB.
pub fn voc_label(colour: [u8; 3]) -> Option<u8> {
    // Inverse of `voc_colour`: bit 7 - i of each channel is bit 3 i + channel of the label.
    let mut label = 0u32;
    for (channel, value) in colour.into_iter().enumerate() {
        for i in 0..3 {
            label |= u32::from(value >> (7 - i) & 1) << (3 * i + channel);
        }
    }
    u8::try_from(label).ok().filter(|&label| voc_colour(label) == colour)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_are_those_of_the_devkit() {
        // From the colour table in VOC's devkit documentation: aeroplane, bicycle, person, tvmonitor, void.
        assert_eq!(voc_colour(0), [0, 0, 0]);
        assert_eq!(voc_colour(1), [128, 0, 0]);
        assert_eq!(voc_colour(2), [0, 128, 0]);
        assert_eq!(voc_colour(15), [192, 128, 128]);
        assert_eq!(voc_colour(20), [0, 64, 128]);
        assert_eq!(voc_colour(255), [224, 224, 192]);
    }

    /// CIELAB of an sRGB colour, D65.
    fn lab(colour: [u8; 3]) -> [f64; 3] {
        let linear = colour.map(|value| match f64::from(value) / 255.0 {
            dark if dark <= 0.04045 => dark / 12.92,
            value => ((value + 0.055) / 1.055).powf(2.4),
        });
        let to_xyz = [
            [0.4124564, 0.3575761, 0.1804375],
            [0.2126729, 0.7151522, 0.0721750],
            [0.0193339, 0.1191920, 0.9503041],
        ];
        let white = [0.95047, 1.0, 1.08883];
        let [x, y, z] = [0, 1, 2].map(|row| {
            let value: f64 = to_xyz[row].iter().zip(linear).map(|(weight, value)| weight * value).sum();
            match value / white[row] {
                small if small <= 216.0 / 24389.0 => (24389.0 / 27.0 * small + 16.0) / 116.0,
                value => value.cbrt(),
            }
        });
        [116.0 * y - 16.0, 500.0 * (x - y), 200.0 * (y - z)]
    }

    fn distance(first: [u8; 3], second: [u8; 3]) -> f64 {
        lab(first).iter().zip(lab(second)).map(|(a, b)| (a - b).powi(2)).sum::<f64>().sqrt()
    }

    #[test]
    fn every_class_stands_out_on_leaves_skin_soil_and_steel() {
        let surfaces = [
            [62, 92, 38],
            [96, 134, 62],
            [142, 172, 84],
            [236, 196, 174],
            [200, 140, 108],
            [110, 72, 52],
            [120, 96, 70],
            [60, 60, 60],
            [110, 112, 114],
            [160, 160, 162],
            [200, 202, 204],
        ];
        for label in 1..=24 {
            for surface in surfaces {
                let distance = distance(display_colour(label), surface);
                assert!(distance >= 40.0, "class {label} on {surface:?}: {distance:.0}");
            }
        }
        // The palette of mask files would not do: its third class is nearly leaf green.
        assert!(surfaces.iter().any(|&surface| distance(voc_colour(3), surface) < 40.0));
    }

    #[test]
    fn classes_are_told_apart_from_each_other() {
        for (count, least) in [(8, 50.0), (20, 30.0), (24, 25.0)] {
            for first in 1..=count {
                for second in first + 1..=count {
                    let distance = distance(display_colour(first), display_colour(second));
                    assert!(distance >= least, "classes {first} and {second}: {distance:.0}");
                }
            }
        }
        let all: std::collections::HashSet<[u8; 3]> = (0..=255).map(display_colour).collect();
        assert_eq!(all.len(), 256);
    }

    #[test]
    fn every_colour_leads_back_to_its_label_and_no_other_does() {
        for label in 0..=255 {
            assert_eq!(voc_label(voc_colour(label)), Some(label));
        }
        assert_eq!(voc_label([128, 0, 1]), None);
        assert_eq!(voc_label([255, 255, 255]), None);
    }
}
