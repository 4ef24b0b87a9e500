//! HEIC, AVIF and GIF files against the pixels that libheif, libavif and Pillow read from them (reference/data/make_photos.py).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use vitpcm_data::{ImageLimits, decode_image, find_images, read_image, read_image_header};

const REFERENCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../reference/data");

#[derive(serde::Deserialize)]
struct Expected {
    width: u32,
    height: u32,
    /// Pixels between those that are compared, across and down.
    step: u32,
    /// RGB rows in hexadecimal.
    rgb: String,
}

fn expected() -> BTreeMap<String, Expected> {
    let text = std::fs::read_to_string(format!("{REFERENCE}/photos.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

fn photo(name: &str) -> PathBuf {
    Path::new(REFERENCE).join("photos").join(name)
}

fn is_read(name: &str) -> bool {
    cfg!(feature = "avif") || !name.ends_with(".avif")
}

#[test]
fn phone_and_web_formats_give_the_pixels_of_other_decoders() {
    let all = expected();
    assert!(all.len() >= 30);
    for (name, expected) in all.iter().filter(|(name, _)| is_read(name)) {
        let pixels = read_image(&photo(name), &ImageLimits::default()).unwrap();
        assert_eq!(pixels.dimensions(), (expected.width, expected.height), "{name}");
        let header = read_image_header(&photo(name), &ImageLimits::default()).unwrap();
        assert_eq!((header.width, header.height), (expected.width, expected.height), "{name}");
        assert_eq!(header.format, name.rsplit_once('.').unwrap().1.to_uppercase(), "{name}");
        let step = expected.step as usize;
        let compared = (0..expected.height).step_by(step).flat_map(|y| {
            let pixels = &pixels;
            (0..expected.width).step_by(step).flat_map(move |x| pixels.get_pixel(x, y).0)
        });
        let wanted = (0..expected.rgb.len() / 2)
            .map(|i| u8::from_str_radix(&expected.rgb[2 * i..2 * i + 2], 16).unwrap());
        let largest = compared.zip(wanted).map(|(a, b)| a.abs_diff(b)).max().unwrap();
        let tolerance = match name.as_str() {
            gif if gif.ends_with(".gif") => 0,
            // Decoders differ in where halved colours lie between the pixels.
            "halved.heic" | "odd.heic" | "halved.avif" | "odd.avif" => 6,
            // Rounding of colours, and of a blend with white.
            _ => 3,
        };
        assert!(largest <= tolerance, "{name}: a channel differs by {largest}");
    }
}

#[test]
#[cfg(not(feature = "avif"))]
fn avif_without_its_feature_is_refused_with_what_to_do() {
    for outcome in [
        read_image(&photo("plain.avif"), &ImageLimits::default()).err(),
        read_image_header(&photo("plain.avif"), &ImageLimits::default()).err(),
    ] {
        let message = outcome.unwrap().to_string();
        assert!(message.contains("plain.avif: AVIF") && message.contains("--features avif"), "{message}");
        assert!(message.contains("avifdec"), "{message}");
    }
}

#[test]
fn photographs_are_found_in_folders_whatever_their_formats_case() {
    let folder = tempfile::tempdir().unwrap();
    for (from, to) in [
        ("plain.heic", "IMG_1.HEIC"),
        ("plain.heic", "b.heif"),
        ("plain.gif", "c.gif"),
        ("plain.avif", "d.avif"),
    ] {
        std::fs::copy(photo(from), folder.path().join(to)).unwrap();
    }
    std::fs::copy(photo("plain.heic"), folder.path().join("without-extension")).unwrap();
    let (images, problems) = find_images(folder.path());
    let names: Vec<&str> = images.iter().map(|image| image.name.as_str()).collect();
    assert_eq!(names, ["IMG_1.HEIC", "b.heif", "c.gif", "d.avif", "without-extension"]);
    assert!(problems.is_empty());
}

#[test]
fn a_photograph_larger_than_the_limit_is_refused_before_it_is_decoded() {
    for name in ["plain.heic", "plain.gif", "grid.heic"] {
        let message = read_image(&photo(name), &ImageLimits { max_pixels: 383 }).unwrap_err().to_string();
        assert!(message.ends_with("pixels, more than the 383 that are read"), "{message}");
    }
}

#[test]
fn truncated_photographs_are_refused() {
    // Of an animation the first picture is read, whatever becomes of the others.
    for name in expected().keys().filter(|name| is_read(name) && *name != "animated.gif") {
        let whole = std::fs::read(photo(name)).unwrap();
        // The last bytes of a GIF file only say that it ends.
        for length in (0..whole.len() - 3).step_by(7) {
            let outcome = decode_image(name, &whole[..length], &ImageLimits::default());
            assert!(outcome.is_err(), "{length} of {} bytes of {name} were accepted", whole.len());
        }
    }
}

#[test]
fn damaged_photographs_give_pixels_or_an_error_that_names_the_file() {
    let limits = ImageLimits { max_pixels: 1 << 20 };
    // AVIF is left out: rav1d 1.1.0 panics on some damaged files, which ends the program (see av1_picture.rs).
    for name in expected().keys().filter(|name| !name.ends_with(".avif")) {
        let whole = std::fs::read(photo(name)).unwrap();
        let every = if name.starts_with("grid") { 23 } else { 1 };
        for position in (0..whole.len()).step_by(every) {
            let mut damaged = whole.clone();
            damaged[position] ^= [0x01, 0x80, 0xff][position % 3];
            match decode_image("damaged", &damaged, &limits) {
                Ok(pixels) => assert!(u64::from(pixels.width()) * u64::from(pixels.height()) <= 1 << 20),
                Err(error) => assert!(error.to_string().contains("damaged: "), "{error}"),
            }
        }
    }
}
