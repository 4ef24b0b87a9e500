//! Images of all formats, through our reader with a low limit on pixels.

use super::{MEMORY, Target, repair_png, said};
use image::ImageFormat;
use std::io::Cursor;
use vitpcm_data::{DrawnScenes, ImageLimits, decode_image};

/// Low, so that a header soon claims too much: the reader then allows a decoder 80 MB at once, and TIFF's may request
/// that three times.
const MAX_PIXELS: u64 = 1 << 20;

pub(super) const IMAGE: Target = Target {
    name: "image",
    what: "images: JPEG, PNG, WebP, TIFF, BMP",
    dictionary: &[
        "\u{0}", "IHDR", "PLTE", "IDAT", "IEND", "tRNS", "eXIf", "iCCP", "RIFF", "WEBP", "VP8 ", "VP8L",
        "VP8X", "ALPH", "ANIM", "EXIF", "II*\0", "MM\0*", "BM", "Exif\0\0", "JFIF", "Adobe", "ICC_PROFILE\0",
    ],
    seeds: || {
        let scene = DrawnScenes { seed: 3, side: 24 }.scene(1).image;
        let formats =
            [ImageFormat::Jpeg, ImageFormat::Png, ImageFormat::WebP, ImageFormat::Tiff, ImageFormat::Bmp];
        let encoded = |format| {
            let mut bytes = Cursor::new(Vec::new());
            scene.write_to(&mut bytes, format).expect("memory takes all");
            bytes.into_inner()
        };
        let mut seeds: Vec<Vec<u8>> = formats.map(encoded).into();
        let grey = image::DynamicImage::from(scene.clone()).into_luma_alpha16();
        let mut bytes = Cursor::new(Vec::new());
        grey.write_to(&mut bytes, ImageFormat::Png).expect("memory takes all");
        seeds.push(bytes.into_inner());
        seeds
    },
    subject: |_| Box::new(decoded),
    repair: Some(|bytes| {
        if bytes.starts_with(b"\x89PNG") {
            repair_png(bytes);
        }
    }),
    max_bytes: MEMORY,
};

/// Made by other encoders (reference/data/make_photos.py). AVIF is no seed: the default build only parses its container
/// and refuses it.
pub(super) const PHOTO: Target = Target {
    name: "photo",
    what: "images: HEIC, GIF",
    dictionary: &[
        "\u{0}", "ftyp", "heic", "avif", "mif1", "meta", "hdlr", "pitm", "iloc", "iinf", "infe", "iref",
        "iprp", "ipco", "ipma", "ispe", "hvcC", "av1C", "irot", "imir", "clap", "colr", "nclx", "auxC",
        "auxl", "dimg", "grid", "iovl", "iden", "hvc1", "av01", "idat", "mdat", "GIF89a",
    ],
    seeds: || {
        macro_rules! photographs {
            ($($name:literal)*) => {
                vec![$(include_bytes!(concat!("../../../../reference/data/photos/", $name)).to_vec()),*]
            };
        }
        photographs!(
            "plain.heic" "halved.heic" "alpha.heic" "ten-bits.heic" "orientation-6.heic" "grid.heic"
            "plain.gif" "animated.gif"
        )
    },
    subject: |_| Box::new(decoded),
    repair: None,
    max_bytes: MEMORY,
};

fn decoded(bytes: &[u8]) -> String {
    let picture = decode_image("input", bytes, &ImageLimits { max_pixels: MAX_PIXELS });
    if let Ok(picture) = &picture {
        assert!(u64::from(picture.width()) * u64::from(picture.height()) <= MAX_PIXELS);
    }
    said(picture)
}
