//! The fuzzing targets: one entry per parser, with valid inputs to start from and a dictionary.

mod data_sets;
mod exports;
mod http;
mod masks;
mod pictures;
mod resnets;
mod settings;
mod weights;

use std::fmt::Display;
use std::io::{Cursor, Write};
use std::path::Path;
use zip::CompressionMethod;
use zip::write::SimpleFileOptions;

/// A prepared parser: bytes in, message out. The message starts with `ok` if it accepted them.
pub(crate) type Subject = Box<dyn FnMut(&[u8]) -> String>;

/// One parser of untrusted bytes.
pub struct Target {
    /// Its name on the command line.
    pub name: &'static str,
    /// What it reads, in a few words.
    pub what: &'static str,
    /// Words of its language.
    pub(crate) dictionary: &'static [&'static str],
    /// Valid inputs.
    pub(crate) seeds: fn() -> Vec<Vec<u8>>,
    /// Prepares it, with an empty folder to work in.
    pub(crate) subject: fn(&Path) -> Subject,
    /// Fixes checksums, so that mutations get past them.
    pub(crate) repair: Option<fn(&mut Vec<u8>)>,
    /// Most memory it may allocate above the level before.
    pub(crate) max_bytes: usize,
}

/// Default memory limit of a target.
const MEMORY: usize = 256 << 20;

/// All of them.
pub static TARGETS: &[Target] = &[
    weights::SAFETENSORS,
    weights::TORCH_ZIP,
    weights::PICKLE,
    weights::NPZ,
    weights::NPY,
    weights::TFJS,
    weights::MODEL,
    weights::STATE,
    resnets::RESNET,
    resnets::RESNET_TFJS,
    resnets::XCEPTION,
    data_sets::COCO,
    data_sets::VOC_XML,
    data_sets::TAGS_CSV,
    data_sets::TAGS_XLSX,
    data_sets::TAGS_JSON,
    data_sets::TAGS_JSONL,
    data_sets::LABEL_STUDIO,
    data_sets::CVAT,
    data_sets::LISTS,
    settings::TRAIN_CONFIG,
    settings::VERIFY_CONFIG,
    settings::CLI_CONFIG,
    masks::LABEL_PNG,
    masks::SCORE_FILE,
    masks::SCORE_ARRAYS,
    masks::RUN_LENGTHS,
    pictures::IMAGE,
    pictures::PHOTO,
    exports::COCO,
    exports::LABEL_STUDIO,
    exports::LABELME,
    exports::CVAT,
    exports::YOLO,
    http::HTTP,
];

impl Target {
    /// The target of this name.
    pub fn named(name: &str) -> Option<&'static Target> {
        TARGETS.iter().find(|target| target.name == name)
    }
}

/// A parser's message.
fn said<T, E: Display>(result: Result<T, E>) -> String {
    match result {
        Ok(_) => "ok".to_string(),
        Err(error) => error.to_string(),
    }
}

/// A zip file with these entries.
fn zipped(entries: &[(&str, &[u8])], method: CompressionMethod) -> Vec<u8> {
    let mut writer = zip::ZipWriter::new(Cursor::new(Vec::new()));
    for (name, bytes) in entries {
        let options = SimpleFileOptions::default().compression_method(method);
        writer.start_file(*name, options).expect("memory takes all");
        writer.write_all(bytes).expect("memory takes all");
    }
    writer.finish().expect("memory takes all").into_inner()
}

/// Fixes the checksums of a PNG file's chunks, as far as chunks can be found.
fn repair_png(bytes: &mut [u8]) {
    let mut at = 8;
    while let Some(head) = bytes.get(at..at + 8) {
        let length = u32::from_be_bytes([head[0], head[1], head[2], head[3]]) as usize;
        let Some(end) = at.checked_add(8 + length).filter(|end| end + 4 <= bytes.len()) else { return };
        let crc = crc32fast::hash(&bytes[at + 4..end]);
        bytes[end..end + 4].copy_from_slice(&crc.to_be_bytes());
        at = end + 4;
    }
}
