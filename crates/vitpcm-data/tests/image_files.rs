//! Image files of every kind against the pixels that Pillow reads from them (reference/data/make.py).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use vitpcm_data::{ImageLimits, decode_image, read_image, read_image_header};

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

const JPEGS: [&str; 4] = ["rgb.jpg", "progressive.jpg", "orientation-6.jpg", "cmyk.jpg"];

/// Where a JPEG's segments lie: a progressive one that is cut there, with an end marker added, is a valid file of fewer
/// scans.
fn segments(jpeg: &[u8]) -> Vec<std::ops::RangeInclusive<usize>> {
    let is_marker = |pair: &[u8]| pair[0] == 0xff && !matches!(pair[1], 0 | 0xd0..=0xd9 | 0xff);
    let starts = (0..jpeg.len() - 3).filter(|&at| is_marker(&jpeg[at..]));
    starts.map(|at| at..=at + 2 + usize::from(u16::from_be_bytes([jpeg[at + 2], jpeg[at + 3]]))).collect()
}

#[test]
fn every_truncation_of_a_jpeg_is_refused_with_an_end_marker_or_without() {
    for name in JPEGS {
        let whole = std::fs::read(image(name)).unwrap();
        for length in 2..whole.len() - 2 {
            let cut = &whole[..length];
            for half in [cut.to_vec(), [cut, b"\xff\xd9"].concat()] {
                let outcome = decode_image(name, &half, &ImageLimits::default());
                let is_between_scans = name == "progressive.jpg"
                    && half.len() > length
                    && segments(&whole).iter().any(|segment| segment.contains(&length));
                assert!(
                    outcome.is_err() || is_between_scans,
                    "{length} of {} bytes of {name} were accepted",
                    whole.len()
                );
            }
        }
    }
}

#[test]
fn a_jpeg_without_its_end_marker_or_with_garbage_behind_it_is_read() {
    for name in JPEGS {
        let whole = std::fs::read(image(name)).unwrap();
        let pixels = |bytes: &[u8]| decode_image(name, bytes, &ImageLimits::default()).unwrap();
        let expected = pixels(&whole);
        assert_eq!(pixels(&whole[..whole.len() - 2]), expected, "{name}");
        assert_eq!(pixels(&[&whole[..whole.len() - 2], b"\0\0\0"].concat()), expected, "{name}");
        assert_eq!(pixels(&[&whole[..], b"garbage \xff\xd8\xff\xda"].concat()), expected, "{name}");
    }
}

#[test]
fn damaged_images_give_pixels_or_an_error_that_names_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("damaged");
    let limits = ImageLimits { max_pixels: 1 << 20 };
    for name in expected().keys() {
        let whole = std::fs::read(image(name)).unwrap();
        for position in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[position] ^= [0x01, 0x80, 0xff][position % 3];
            std::fs::write(&path, damaged).unwrap();
            match read_image(&path, &limits) {
                Ok(pixels) => assert!(u64::from(pixels.width()) * u64::from(pixels.height()) <= 1 << 20),
                Err(error) => assert!(error.to_string().contains("damaged: "), "{error}"),
            }
        }
    }
}

#[test]
fn the_name_of_a_file_says_nothing_about_its_kind() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("photo.jpg");
    std::fs::copy(image("lossless.webp"), &path).unwrap();
    assert_eq!(read_image_header(&path, &ImageLimits::default()).unwrap().format, "WebP");
    assert_eq!(read_image(&path, &ImageLimits::default()).unwrap().dimensions(), (24, 16));
}

#[test]
fn an_image_larger_than_the_limit_is_refused_with_both_numbers() {
    let message = read_image(&image("rgb.png"), &ImageLimits { max_pixels: 383 }).unwrap_err().to_string();
    assert!(message.ends_with("rgb.png: 24×16 pixels, more than the 383 that are read"), "{message}");
    assert!(read_image(&image("rgb.png"), &ImageLimits { max_pixels: 384 }).is_ok());
}

#[test]
fn what_is_no_regular_file_is_refused() {
    let message = |path: &Path| read_image(path, &ImageLimits::default()).unwrap_err().to_string();
    assert!(message(Path::new(REFERENCE)).contains("a folder"));
    assert!(message(&image("none.jpg")).contains("No such file"));
    #[cfg(unix)]
    assert!(message(Path::new("/dev/zero")).contains("not a regular file"));
}
