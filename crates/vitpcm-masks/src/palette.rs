//! The colours of PASCAL VOC's masks, defined for all 256 labels.

/// Colour of a label, as the VOC devkit computes it: the label's bits, three at a time, become the high bits of
/// red, green and blue.
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

/// The whole palette as a PNG file stores it: red, green, blue of label 0, of label 1, …
pub fn voc_palette() -> Vec<u8> {
    (0..=255).flat_map(voc_colour).collect()
}

/// The label of a colour, if the palette has it. Used for masks saved as colour pictures.
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

    #[test]
    fn every_colour_leads_back_to_its_label_and_no_other_does() {
        for label in 0..=255 {
            assert_eq!(voc_label(voc_colour(label)), Some(label));
        }
        assert_eq!(voc_label([128, 0, 1]), None);
        assert_eq!(voc_label([255, 255, 255]), None);
    }
}
