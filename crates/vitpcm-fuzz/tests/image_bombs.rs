//! Small image files made to take all memory or time: profiles and texts that inflate to gigabytes, headers of gigapixels,
//! thousands of segments and scans. What is held is bounded by the picture that is really there, by every reader of images.
//! One test at a time, because memory is counted for the whole program.

use image::{DynamicImage, ImageEncoder, ImageFormat, RgbImage};
use std::io::{Cursor, Write};
use std::sync::{Mutex, MutexGuard};
use vitpcm_data::{ImageLimits, decode_image, read_image_header};
use vitpcm_fuzz::allocation::{CountingAllocator, peak_of};
use vitpcm_masks::{LabelMap, encode_label_png, read_label_png};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Decoders' own tables and buffers, whatever the picture.
const OVERHEAD: usize = 2 << 20;

fn photograph() -> RgbImage {
    RgbImage::from_fn(64, 48, |x, y| image::Rgb([(x * 4) as u8, (y * 5) as u8, (x * y) as u8]))
}

fn encoded(format: ImageFormat) -> Vec<u8> {
    let mut bytes = Cursor::new(Vec::new());
    photograph().write_to(&mut bytes, format).unwrap();
    bytes.into_inner()
}

/// The picture is read in the memory of a few files and pictures.
#[track_caller]
fn check_read(bytes: &[u8], expected: &RgbImage) {
    let (pixels, peak) = peak_of(|| decode_image("bomb", bytes, &ImageLimits::default()));
    assert_eq!(&pixels.unwrap(), expected);
    let most = 3 * bytes.len() + 8 * expected.as_raw().len() + OVERHEAD;
    assert!(peak <= most, "{peak} bytes for a file of {}, expected at most {most}", bytes.len());
}

/// The file is refused in the memory of a few files.
#[track_caller]
fn check_refused(bytes: &[u8], reason: &str) {
    let (pixels, peak) = peak_of(|| decode_image("bomb", bytes, &ImageLimits::default()));
    let message = pixels.unwrap_err().to_string();
    assert!(message.contains(reason), "{message}");
    let most = 3 * bytes.len() + OVERHEAD;
    assert!(peak <= most, "{peak} bytes for a file of {}, expected at most {most}", bytes.len());
}

/// Zeros, deflated: 4 GiB in 4 MB. Blocks that were flushed may be repeated.
fn inflating(num_bytes: usize) -> Vec<u8> {
    const BLOCK: usize = 16 << 20;
    let mut encoder = flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::best());
    encoder.write_all(&vec![0; BLOCK]).unwrap();
    encoder.flush().unwrap();
    let blocks = encoder.get_ref().repeat(num_bytes / BLOCK);
    // The header of zlib, and an empty last block.
    [b"\x78\xda", &blocks[..], b"\x03\0"].concat()
}

fn chunk(kind: &[u8; 4], content: &[u8]) -> Vec<u8> {
    let mut crc = flate2::Crc::new();
    crc.update(kind);
    crc.update(content);
    let length = (content.len() as u32).to_be_bytes();
    [&length[..], kind, content, &crc.sum().to_be_bytes()].concat()
}

/// A PNG file with more chunks behind its header.
fn with_chunks(png: &[u8], chunks: &[u8]) -> Vec<u8> {
    let (head, rest) = png.split_at(8 + 25);
    [head, chunks, rest].concat()
}

/// Chunks that inflate to `num_bytes` each.
fn png_bombs(num_bytes: usize) -> Vec<Vec<u8>> {
    let zeros = inflating(num_bytes);
    vec![
        chunk(b"iCCP", &[b"icc\0\0", &zeros[..]].concat()),
        chunk(b"zTXt", &[b"Raw profile type iptc\0\0", &zeros[..]].concat()),
        chunk(b"iTXt", &[b"XML:com.adobe.xmp\0\x01\0\0\0", &zeros[..]].concat()),
    ]
}

#[test]
fn profiles_and_texts_of_a_png_are_never_inflated() {
    let _alone = alone();
    let png = encoded(ImageFormat::Png);
    for bomb in png_bombs(4 << 30) {
        assert!(bomb.len() < 5 << 20);
        check_read(&with_chunks(&png, &bomb), &photograph());
    }
    let text = chunk(b"tEXt", &[b"Comment\0", &[b'a'; 8 << 20][..]].concat());
    check_read(&with_chunks(&png, &text), &photograph());
}

#[test]
fn masks_are_read_without_their_profiles() {
    let _alone = alone();
    let map = LabelMap::filled(8, 8, 3).unwrap();
    let mut png = Vec::new();
    encode_label_png(&mut png, &map).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mask.png");
    for bomb in png_bombs(1 << 30) {
        std::fs::write(&path, with_chunks(&png, &bomb)).unwrap();
        let (read, peak) = peak_of(|| read_label_png(&path).unwrap());
        assert_eq!(read, map);
        assert!(peak < OVERHEAD, "{peak} bytes");
        let (header, peak) = peak_of(|| read_image_header(&path, &ImageLimits::default()).unwrap());
        assert_eq!((header.width, header.height), (8, 8));
        assert!(peak < OVERHEAD, "{peak} bytes");
    }
}

#[test]
fn of_an_animated_png_the_first_picture_is_read() {
    let _alone = alone();
    let mut bytes = Vec::new();
    let mut encoder = png::Encoder::new(&mut bytes, 64, 48);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_animated(500, 0).unwrap();
    let mut writer = encoder.write_header().unwrap();
    writer.write_image_data(photograph().as_raw()).unwrap();
    for _ in 1..500 {
        writer.write_image_data(&[7; 64 * 48 * 3]).unwrap();
    }
    writer.finish().unwrap();
    check_read(&bytes, &photograph());
}

#[test]
fn headers_that_promise_more_than_the_file_holds_are_refused() {
    let _alone = alone();
    let mut png = encoded(ImageFormat::Png);
    png[16..24].copy_from_slice(&[0, 0, 0x27, 0, 0, 0, 0x27, 0]);
    let header = chunk(b"IHDR", &png[16..29]);
    png[8..33].copy_from_slice(&header);
    check_refused(&png, "its header claims");

    let mut bmp = encoded(ImageFormat::Bmp);
    bmp.truncate(60);
    bmp[18..26].copy_from_slice(&[0, 0x27, 0, 0, 0, 0x27, 0, 0]);
    check_refused(&bmp, "its header claims 9984×9984 pixels");

    let mut jpeg = encoded(ImageFormat::Jpeg);
    let frame = jpeg.windows(2).position(|pair| pair == [0xff, 0xc0]).unwrap();
    jpeg[frame + 5..frame + 9].copy_from_slice(&[0x27, 0, 0x27, 0]);
    check_refused(&jpeg, "truncated or damaged: its data ends at row");
}

/// A TIFF file of one grey strip, uncompressed unless said otherwise: `entries` are tag, type and value.
fn tiff(entries: &[(u16, u16, u32)], data: &[u8]) -> Vec<u8> {
    let mut bytes = b"II*\0\x08\0\0\0".to_vec();
    bytes.extend((entries.len() as u16).to_le_bytes());
    for &(tag, kind, value) in entries {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(kind.to_le_bytes());
        bytes.extend(1u32.to_le_bytes());
        bytes.extend(value.to_le_bytes());
    }
    bytes.extend([0; 4]);
    bytes.extend(data);
    bytes
}

#[test]
fn strips_and_tiles_of_a_tiff_are_bounded_by_its_picture() {
    let _alone = alone();
    let plain = |width, rows_per_strip, strip_bytes| {
        let offset = 8 + 2 + 9 * 12 + 4;
        let entries = [
            (256, 4, width),
            (257, 4, width),
            (258, 3, 8),
            (259, 3, 1),
            (262, 3, 1),
            (273, 4, offset),
            (277, 3, 1),
            (278, 4, rows_per_strip),
            (279, 4, strip_bytes),
        ];
        tiff(&entries, &[9; 64])
    };
    let grey = RgbImage::from_pixel(8, 8, image::Rgb([9; 3]));
    check_read(&plain(8, 8, 64), &grey);
    let declared = [plain(8, u32::MAX, 64), plain(8, 8, u32::MAX), plain(8, u32::MAX, u32::MAX)];
    for bytes in declared {
        let (outcome, peak) = peak_of(|| decode_image("bomb", &bytes, &ImageLimits::default()));
        assert!(outcome.is_err() || outcome.unwrap() == grey);
        assert!(peak < OVERHEAD, "{peak} bytes");
    }
    check_refused(&plain(9984, 9984, 99_680_256), "its header claims 9984×9984 pixels");
    let tile = 60_000;
    let entries = [
        (256, 4, 8),
        (257, 4, 8),
        (258, 3, 8),
        (259, 3, 1),
        (262, 3, 1),
        (277, 3, 1),
        (322, 4, tile),
        (323, 4, tile),
        (324, 4, 8),
        (325, 4, 64),
    ];
    check_refused(&tiff(&entries, &[]), "");
}

/// A WebP file with a chunk of metadata.
fn webp_with(kind: &[u8; 4], flag: u8, declared: u32, content: &[u8]) -> Vec<u8> {
    let plain = encoded(ImageFormat::WebP);
    let picture = &plain[12..];
    let mut chunks = [b"VP8X\x0a\0\0\0", &[flag, 0, 0, 0, 63, 0, 0, 47, 0, 0][..]].concat();
    chunks.extend_from_slice(picture);
    chunks.extend_from_slice(kind);
    chunks.extend(declared.to_le_bytes());
    chunks.extend_from_slice(content);
    let length = (chunks.len() as u32 + 4).to_le_bytes();
    [b"RIFF", &length[..], b"WEBP", &chunks].concat()
}

#[test]
fn metadata_of_a_webp_is_bounded() {
    let _alone = alone();
    let large = vec![0; 32 << 20];
    for (kind, flag) in [(b"ICCP", 0x20), (b"EXIF", 0x08), (b"XMP ", 0x04)] {
        let bytes = webp_with(kind, flag, large.len() as u32, &large);
        let (pixels, peak) = peak_of(|| decode_image("bomb", &bytes, &ImageLimits::default()).unwrap());
        assert_eq!(pixels, photograph());
        assert!(peak < OVERHEAD, "{peak} bytes of {}", kind.escape_ascii());
    }
    let bytes = webp_with(b"EXIF", 0x08, u32::MAX - 1, &[]);
    let (_, peak) = peak_of(|| decode_image("bomb", &bytes, &ImageLimits::default()));
    assert!(peak < OVERHEAD, "{peak} bytes");
}

/// A JPEG file with more segments behind its start.
fn jpeg_with(segments: &[u8]) -> Vec<u8> {
    let jpeg = encoded(ImageFormat::Jpeg);
    [&jpeg[..2], segments, &jpeg[2..]].concat()
}

fn segment(marker: u8, content: &[u8]) -> Vec<u8> {
    let length = (content.len() as u16 + 2).to_be_bytes();
    [&[0xff, marker], &length[..], content].concat()
}

#[test]
fn segments_of_a_jpeg_are_passed_over_whatever_their_number() {
    let _alone = alone();
    let expected = decode_image("jpeg", &encoded(ImageFormat::Jpeg), &ImageLimits::default()).unwrap();
    let profile = segment(0xe2, &[b"ICC_PROFILE\0\x01\x01", &[0; 60_000][..]].concat());
    check_read(&jpeg_with(&profile.repeat(300)), &expected);
    // Parts of one long text, each of which would be sorted among all others.
    let mut parts = Vec::new();
    for offset in 0..60_000u32 {
        let head = [b"http://ns.adobe.com/xmp/extension/\0", &[b'A'; 32][..]].concat();
        let place = [u32::MAX.to_be_bytes(), offset.to_be_bytes()].concat();
        parts.extend(segment(0xe1, &[head, place, vec![0]].concat()));
    }
    check_read(&jpeg_with(&parts), &expected);
    check_read(&jpeg_with(&segment(0xfe, b"comment").repeat(200_000)), &expected);
}

/// A grey progressive JPEG file: the means of all blocks in one scan, then `num_scans` scans that say nothing new.
fn progressive(blocks_a_side: u16, num_scans: usize) -> Vec<u8> {
    let [y1, y0] = (8 * blocks_a_side).to_be_bytes();
    let mut bytes = vec![0xff, 0xd8];
    bytes.extend(segment(0xdb, &[&[0][..], &[1; 64]].concat()));
    bytes.extend(segment(0xc2, &[8, y1, y0, y1, y0, 1, 1, 0x11, 0]));
    // One code of a bit each: no difference to the block before; all coefficients of 2¹⁴ blocks are zero.
    let one_code = |kind: u8, value: u8| {
        let mut table = vec![kind, 1];
        table.resize(17, 0);
        table.push(value);
        segment(0xc4, &table)
    };
    bytes.extend(one_code(0x00, 0));
    bytes.extend(one_code(0x10, 0xe0));
    let num_blocks = usize::from(blocks_a_side) * usize::from(blocks_a_side);
    bytes.extend(segment(0xda, &[1, 1, 0, 0, 0, 0]));
    bytes.extend(vec![0; num_blocks.div_ceil(8)]);
    for _ in 0..num_scans {
        bytes.extend(segment(0xda, &[1, 1, 0, 1, 63, 0]));
        bytes.extend(vec![0; (num_blocks.div_ceil(1 << 14) * 15).div_ceil(8)]);
    }
    bytes.extend([0xff, 0xd9]);
    bytes
}

#[test]
fn a_jpeg_of_thousands_of_scans_is_refused() {
    let _alone = alone();
    let grey = RgbImage::from_pixel(64, 64, image::Rgb([128; 3]));
    check_read(&progressive(8, 3), &grey);
    check_refused(&progressive(512, 5000), "a JPEG of more than 100 scans");
}

#[test]
fn orientation_is_still_applied() {
    let _alone = alone();
    // Orientation 6: turned by a quarter.
    let exif = b"II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x06\0\0\0\0\0\0\0";
    let turned = DynamicImage::from(photograph()).rotate90().into_rgb8();
    let png = with_chunks(&encoded(ImageFormat::Png), &chunk(b"eXIf", exif));
    check_read(&png, &turned);
    check_read(&webp_with(b"EXIF", 0x08, exif.len() as u32, exif), &turned);
    let jpeg = jpeg_with(&segment(0xe1, &[b"Exif\0\0", &exif[..]].concat()));
    let pixels = decode_image("jpeg", &jpeg, &ImageLimits::default()).unwrap();
    assert_eq!(pixels.dimensions(), turned.dimensions());
    let mut tiff = Vec::new();
    let encoder = image::codecs::tiff::TiffEncoder::new(Cursor::new(&mut tiff));
    encoder.write_image(photograph().as_raw(), 64, 48, image::ExtendedColorType::Rgb8).unwrap();
    check_read(&tiff, &photograph());
}

/// A HEIC file of tiles whose grid says that it is of another size: the 32-bit numbers of all sizes are replaced.
fn resized_grid(from: [u32; 2], to: [u32; 2]) -> Vec<u8> {
    let mut bytes = include_bytes!("../../../reference/data/photos/grid.heic").to_vec();
    let mut num_replaced = 0;
    for (from, to) in [from[0].to_be_bytes(), from[1].to_be_bytes()].iter().zip(to.map(u32::to_be_bytes)) {
        while let Some(at) = bytes.windows(4).position(|four| four == from) {
            bytes[at..at + 4].copy_from_slice(&to);
            num_replaced += 1;
        }
    }
    assert!(num_replaced >= 2, "the grid's size was not found");
    bytes
}

#[test]
fn a_heic_of_gigapixels_is_refused_by_its_header() {
    let _alone = alone();
    check_refused(&resized_grid([600, 520], [60_000, 52_000]), "60000×52000 pixels, more than");
    // Within the limit, but more than its tiles cover: one tile of 512 × 512 pixels may be decoded to see it.
    let bytes = resized_grid([600, 520], [9_000, 9_001]);
    let (outcome, peak) = peak_of(|| decode_image("bomb", &bytes, &ImageLimits::default()));
    assert!(outcome.is_err());
    assert!(peak < 16 << 20, "{peak} bytes");
}

#[test]
fn a_gif_of_gigapixels_is_refused_by_its_header() {
    let _alone = alone();
    let mut gif = include_bytes!("../../../reference/data/photos/plain.gif").to_vec();
    gif[6..10].copy_from_slice(&[0xff; 4]);
    check_refused(&gif, "65535×65535 pixels, more than");
    gif[6..10].copy_from_slice(&[0, 0x27, 0, 0x27]);
    check_refused(&gif, "its header claims 9984×9984 pixels");
}
