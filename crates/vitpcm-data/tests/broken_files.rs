//! A folder of deliberately broken files: each is named with its reason, nothing panics, nothing is allocated that a
//! header merely claims, and the report does not depend on the number of threads.

#![cfg(unix)] // links, and names that are not UTF-8

mod folders;

use folders::{Folder, demand, picture, problems};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use vitpcm_data::{ImageLimits, InspectOptions, Inspection, ProblemKind, inspect};
use vitpcm_masks::{LabelMap, write_label_png};

/// A PNG whose header claims a size and whose pixels are missing.
fn png_header(width: u32, height: u32) -> Vec<u8> {
    let mut bytes = picture("header", "png");
    bytes[16..20].copy_from_slice(&width.to_be_bytes());
    bytes[20..24].copy_from_slice(&height.to_be_bytes());
    let checksum = crc32(&bytes[12..29]);
    bytes[29..33].copy_from_slice(&checksum.to_be_bytes());
    bytes
}

/// The checksum of PNG's chunks, bit by bit.
fn crc32(bytes: &[u8]) -> u32 {
    let step = |crc: u32, _: u32| if crc & 1 == 1 { crc >> 1 ^ 0xedb8_8320 } else { crc >> 1 };
    !bytes.iter().fold(!0, |crc, &byte| (0..8).fold(crc ^ u32::from(byte), step))
}

fn half(bytes: Vec<u8>) -> Vec<u8> {
    bytes[..bytes.len() / 2].to_vec()
}

/// A folder of twenty-odd broken files, and a few sound ones.
fn broken_folder() -> Folder {
    let folder = Folder::new();
    // What is wrong with images.
    let photo =
        std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/../../reference/data/images/rgb.jpg")).unwrap();
    folder.file("truncated.jpg", &photo[..photo.len() - 60]);
    folder.file("headless.jpg", &photo[..30]);
    folder.file("empty.jpg", "");
    folder.file("text.jpg", "this is no image\r\n");
    folder.file("animation.gif", b"GIF89a\x01\x00\x01\x00");
    folder.file("huge.png", png_header(60_000, 60_000));
    folder.file("nearly.png", png_header(9_999, 9_999));
    folder.file("half.png", half(picture("half", "png")));
    folder.file("half.webp", half(picture("half", "webp")));
    folder.file("half.tif", half(picture("half", "tif")));
    folder.file("half.bmp", half(picture("half", "bmp")));
    folder.file("wrong.webp", b"RIFF\xff\xff\xff\xffWEBPVP8 \xff\xff\xff\xff");
    folder.file("wrong.tif", b"II*\0\x08\0\0\0\xff\xff");
    folder.file(OsStr::from_bytes(b"caf\xe9.jpg"), "not UTF-8, and no image");
    std::fs::create_dir(folder.at("folder.jpg")).unwrap();
    // Links.
    symlink(folder.path(), folder.at("sub/loop")).unwrap();
    symlink("self.jpg", folder.at("self.jpg")).unwrap();
    symlink("nowhere.jpg", folder.at("dangling.jpg")).unwrap();
    // Sound images with odd names, and duplicates.
    folder.images(["semi;colon \"quoted\".jpg", "sound.jpg", "unlisted.jpg"]);
    folder.file("copy.jpg", std::fs::read(folder.at("sound.jpg")).unwrap());
    // Masks.
    for name in ["no-mask", "index-90", "other-size", "bad-mask", "huge-mask"] {
        folder.image(format!("{name}.jpg"));
    }
    folder.mask("masks/sound.png", 1);
    folder.mask("masks/index-90.png", 90);
    write_label_png(&folder.at("masks/other-size.png"), &LabelMap::filled(4, 6, 1).unwrap()).unwrap();
    folder.file("masks/bad-mask.png", "not a mask");
    folder.file("masks/huge-mask.png", png_header(60_000, 60_000));
    folder.mask("masks/stray.png", 1);

    folder.file("classes.txt", "cat\ndog\n");
    let mut rows = b"\xef\xbb\xbfimage,tags\r\n".to_vec();
    let names = [
        "truncated.jpg",
        "headless.jpg",
        "empty.jpg",
        "text.jpg",
        "animation.gif",
        "huge.png",
        "nearly.png",
        "half.png",
        "half.webp",
        "half.tif",
        "half.bmp",
        "wrong.webp",
        "wrong.tif",
        "folder.jpg",
        "sound.jpg",
        "sound.jpg",
        "copy.jpg",
        "no-mask.jpg",
        "index-90.jpg",
        "other-size.jpg",
        "bad-mask.jpg",
        "huge-mask.jpg",
        "gone.jpg",
        "../outside.jpg",
        "\"semi;colon \"\"quoted\"\".jpg\"",
    ];
    for name in names {
        rows.extend(format!("{name},cat\r\n").bytes());
    }
    rows.extend(b"caf\xe9.jpg,cat;unicorn\r\n");
    folder.file("tags.csv", rows);
    folder
}

fn inspect_with(num_threads: usize, folder: &Folder) -> Inspection {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(num_threads).build().unwrap();
    pool.install(|| inspect(&folder.open(), &InspectOptions::default()))
}

#[test]
fn every_broken_file_is_named_with_its_reason_within_500_megabytes() {
    use ProblemKind::*;
    let folder = broken_folder();
    let inspection = inspect_with(4, &folder);
    let found = problems(&folder, &inspection.problems);
    demand(&found, UnreadableImage, "truncated.jpg", "truncated or damaged: its data ends at row 0 of 16");
    demand(&found, UnreadableImage, "headless.jpg", "the file is truncated");
    demand(&found, UnreadableImage, "empty.jpg", "the file is empty");
    demand(&found, UnreadableImage, "text.jpg", "the file holds text");
    demand(&found, UnreadableImage, "animation.gif", "End of File");
    demand(&found, UnreadableImage, "huge.png", "60000×60000 pixels, more than");
    demand(&found, UnreadableImage, "nearly.png", "its header claims 299950002 bytes");
    demand(&found, UnreadableImage, "half.png", "the file ends early");
    demand(&found, UnreadableImage, "half.webp", "Corrupt");
    demand(&found, UnreadableImage, "half.tif", "the file ends early");
    demand(&found, UnreadableImage, "half.bmp", "the file ends early");
    demand(&found, UnreadableImage, "wrong.webp", "the file ends early");
    demand(&found, UnreadableImage, "wrong.tif", "the file ends early");
    demand(&found, UnreadableImage, "caf\u{fffd}.jpg", "the file holds text");
    demand(&found, UnreadableImage, "dangling.jpg", "a dangling link");
    demand(&found, SymlinkLoop, "sub/loop", "leads back to");
    demand(&found, SymlinkLoop, "self.jpg", "leads back to itself");
    demand(&found, TagWithoutImage, "folder.jpg", "which is a folder");
    demand(&found, TagWithoutImage, "gone.jpg", "line 24 of tags.csv");
    demand(&found, OutsideRoot, "tags.csv", "line 25 names `../outside.jpg`");
    assert!(
        inspection.notes.iter().any(|note| note.to_string().contains("unlisted.jpg")),
        "{:?}",
        inspection.notes
    );
    demand(&found, UnknownClass, "tags.csv", "`unicorn` of caf\u{fffd}.jpg");
    demand(&found, DuplicateEntry, "sound.jpg", "line 17 of tags.csv repeats");
    demand(&found, DuplicateImage, "sound.jpg", "same content as copy.jpg");
    demand(&found, MaskMissing, "no-mask.jpg", "no mask");
    demand(&found, MaskMissing, "semi;colon \"quoted\".jpg", "no mask");
    demand(
        &found,
        MaskIndex,
        "masks/index-90.png",
        "class index 90 at column 0, row 0; expected 0 to 2 or 255",
    );
    demand(&found, MaskSize, "masks/other-size.png", "4×6 pixels, its image 6×4");
    demand(&found, UnreadableMask, "masks/bad-mask.png", "not a readable PNG");
    demand(&found, MaskSize, "masks/huge-mask.png", "60000×60000");
    demand(&found, MaskWithoutImage, "masks/stray.png", "");
    let readable: usize = inspection.formats.values().sum();
    assert_eq!((inspection.images, readable), (22, 8));

    assert_eq!(inspect_with(1, &folder), inspection);
    let json = serde_json::to_string(&inspection).unwrap();
    assert!(json.contains("\"kind\":\"mask-index\"") && json.contains("caf\u{fffd}.jpg"));

    if let Ok(status) = std::fs::read_to_string("/proc/self/status") {
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap().trim();
        println!("peak memory {peak}");
        let kilobytes: u64 = peak.trim_end_matches(" kB").parse().unwrap();
        assert!(kilobytes < 500_000, "{peak}");
    }
}

#[test]
fn coco_annotations_cannot_ask_for_more_pixels_than_are_read() {
    // Found by the fuzzer (`coco`): 630 bytes that took 360 MB.
    let folder = Folder::new();
    folder.images(["a.jpg"]);
    folder.file(
        "instances_default.json",
        r#"{"images": [{"id": 1, "file_name": "a.jpg", "width": 44967295, "height": 8}],
            "categories": [{"id": 3, "name": "dog"}],
            "annotations": [{"id": 1, "image_id": 1, "category_id": 3, "segmentation": [[1, 1, 6, 1, 6, 6]]}]}"#,
    );
    let dataset = folder.open();
    let truth = dataset.truth(0).unwrap();
    let limits = ImageLimits { max_pixels: 100_000_000 };
    let message = truth.read(dataset.classes(), &limits).unwrap_err().to_string();
    assert!(message.contains("a.jpg") && message.contains("44967295×8"), "{message}");
}
