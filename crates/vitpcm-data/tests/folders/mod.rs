//! Folders of small files for tests.
#![allow(dead_code)] // each test file uses some of it

use image::{Rgb, RgbImage};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use vitpcm_data::{Dataset, OpenOptions, Problem, ProblemKind};
use vitpcm_masks::{LabelMap, write_label_png};

/// A folder that goes away with the test.
pub(crate) struct Folder(tempfile::TempDir);

impl Folder {
    pub(crate) fn new() -> Self {
        Folder(tempfile::tempdir().unwrap())
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }

    pub(crate) fn at(&self, relative: impl AsRef<Path>) -> PathBuf {
        let path = self.path().join(relative);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        path
    }

    pub(crate) fn file(&self, relative: impl AsRef<Path>, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.at(relative);
        std::fs::write(&path, content).unwrap();
        path
    }

    /// An image of 6×4 pixels whose content follows from its path; the format from the extension.
    pub(crate) fn image(&self, relative: impl AsRef<Path>) -> PathBuf {
        let relative = relative.as_ref();
        let extension = relative.extension().unwrap_or_default().to_string_lossy().into_owned();
        let content = picture(&relative.to_string_lossy(), &extension);
        self.file(relative, content)
    }

    pub(crate) fn images<const N: usize>(&self, relative: [&str; N]) {
        for path in relative {
            self.image(path);
        }
    }

    /// A mask of 6×4 pixels, all of one label.
    pub(crate) fn mask(&self, relative: &str, label: u8) -> PathBuf {
        let path = self.at(relative);
        write_label_png(&path, &LabelMap::filled(6, 4, label).unwrap()).unwrap();
        path
    }

    pub(crate) fn open(&self) -> Dataset {
        self.open_with(&OpenOptions::default())
    }

    pub(crate) fn open_with(&self, options: &OpenOptions) -> Dataset {
        Dataset::open(self.path(), options).unwrap()
    }
}

/// An encoded image of 6×4 pixels; other names give other pixels.
pub(crate) fn picture(name: &str, extension: &str) -> Vec<u8> {
    let seed = name.bytes().fold(7u8, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte));
    let pixels = RgbImage::from_fn(6, 4, |x, y| Rgb([seed, (x * 40) as u8, (y * 60) as u8]));
    let format = image::ImageFormat::from_extension(extension).unwrap_or(image::ImageFormat::Png);
    let mut bytes = std::io::Cursor::new(Vec::new());
    pixels.write_to(&mut bytes, format).unwrap();
    bytes.into_inner()
}

/// Image names with the names of their tags.
pub(crate) fn tags(dataset: &Dataset) -> BTreeMap<&str, Vec<&str>> {
    let names = |image: &vitpcm_data::TaggedImage| {
        let indices: Vec<u8> = image.tags.iter().collect();
        indices.into_iter().map(|tag| dataset.classes().name(tag.into()).unwrap()).collect()
    };
    dataset.images().iter().map(|image| (image.name.as_str(), names(image))).collect()
}

/// Split names with the names of their images.
pub(crate) fn splits(dataset: &Dataset) -> BTreeMap<&str, Vec<&str>> {
    let names = |indices: &[usize]| indices.iter().map(|&i| dataset.images()[i].name.as_str()).collect();
    dataset.splits().iter().map(|split| (split.name.as_str(), names(&split.indices))).collect()
}

/// Problems as (kind, path below the folder, detail).
pub(crate) fn problems<'a>(folder: &Folder, problems: &'a [Problem]) -> Vec<(ProblemKind, String, &'a str)> {
    let below = |path: &Path| path.strip_prefix(folder.path()).unwrap_or(path).to_string_lossy().into_owned();
    problems.iter().map(|p| (p.kind, below(&p.path), p.detail.as_str())).collect()
}

/// How the tags were read, one note a line.
pub(crate) fn notes(dataset: &Dataset) -> String {
    dataset.notes().iter().map(|note| format!("{note}\n")).collect()
}

/// Demands a problem of this kind, with this path and these words in its detail.
#[track_caller]
pub(crate) fn demand(found: &[(ProblemKind, String, &str)], kind: ProblemKind, path: &str, words: &str) {
    let fits =
        |(k, p, detail): &(ProblemKind, String, &str)| *k == kind && p == path && detail.contains(words);
    assert!(found.iter().any(fits), "no {kind:?} of {path} saying `{words}` among\n{found:#?}");
}
