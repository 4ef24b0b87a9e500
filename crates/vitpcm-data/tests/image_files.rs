//! Image files of every kind against the pixels that Pillow reads from them (reference/data/make.py).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use vitpcm_data::{ImageLimits, read_image, read_image_header};

const REFERENCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../reference/data");

#[derive(serde::Deserialize)]
struct Expected {
    width: u32,
    height: u32,
    /// RGB rows in hexadecimal.
    rgb: String,
}

fn expected() -> BTreeMap<String, Expected> {
    let text = std::fs::read_to_string(format!("{REFERENCE}/images.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

fn image(name: &str) -> PathBuf {
    Path::new(REFERENCE).join("images").join(name)
}

#[test]
fn every_kind_of_image_gives_the_pixels_that_pillow_gives() {
    let all = expected();
    assert!(all.len() >= 33);
    for (name, expected) in &all {
        let pixels = read_image(&image(name), &ImageLimits::default()).unwrap();
        assert_eq!(pixels.dimensions(), (expected.width, expected.height), "{name}");
        let header = read_image_header(&image(name), &ImageLimits::default()).unwrap();
        assert_eq!((header.width, header.height), (expected.width, expected.height), "{name}");
        let wanted = (0..expected.rgb.len() / 2)
            .map(|i| u8::from_str_radix(&expected.rgb[2 * i..2 * i + 2], 16).unwrap());
        let differences = pixels.as_raw().iter().zip(wanted).map(|(&a, b)| a.abs_diff(b));
        let largest = differences.max().unwrap();
        let tolerance = match name.as_str() {
            // Two decoders differ in the rounding of the cosine transform and of colour.
            lossy if lossy.ends_with(".jpg") || lossy == "lossy.webp" => 4,
            // Rounding of a blend with white.
            alpha if alpha.contains("alpha") || alpha.contains("rgba") => 1,
            _ => 0,
        };
        assert!(largest <= tolerance, "{name}: a channel differs by {largest}");
    }
}
