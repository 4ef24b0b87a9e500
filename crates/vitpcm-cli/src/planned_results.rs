//! The files that `segment`, `refine` and `export` will write, known before they start: none may be an input, and no
//! two images may share one.

use crate::class_names::CLASS_LIST;
use crate::file_guard;
use crate::mask_exports::{CVAT_FILE, ExportArgs, Finished};
use crate::mask_formats::Format;
use crate::outcome::usage;
use crate::session::Session;
use anyhow::anyhow;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use vitpcm_exports::ExportFormat;
use vitpcm_masks::Classes;

/// An image to make results for.
pub(crate) struct Planned<'a> {
    /// For messages: the image or its mask.
    pub(crate) input: &'a Path,
    /// Its path below the output folder, with `/` as separator and an extension.
    pub(crate) file_name: String,
    /// The photograph, which exports may place next to their labels.
    pub(crate) photograph: Option<&'a Path>,
}

impl<'a> Planned<'a> {
    pub(crate) fn of(image: &'a Finished<'_>, args: &ExportArgs) -> Planned<'a> {
        Planned {
            input: image.photograph.unwrap_or(Path::new(&image.file_name)),
            file_name: image.file_name.clone(),
            photograph: image.photograph.filter(|_| args.places_images()),
        }
    }
}

/// The planned results of many images.
pub(crate) struct PlannedResults<'a> {
    pub(crate) out: &'a Path,
    /// Written per image.
    pub(crate) formats: &'a [Format],
    pub(crate) exports: &'a [ExportFormat],
    pub(crate) classes: &'a Classes,
    /// Files outside the folder or for all images: `--json`, reports.
    pub(crate) others: Vec<PathBuf>,
    pub(crate) images: Vec<Planned<'a>>,
}

impl PlannedResults<'_> {
    /// Refuses results that would replace one of `inputs` or another result.
    pub(crate) fn check(
        &self,
        inputs: impl IntoIterator<Item = impl AsRef<Path>>,
        session: &Session,
    ) -> anyhow::Result<()> {
        self.check_names()?;
        if self.may_cross() {
            self.check_files()?;
        }
        self.check_others()?;
        let of_images = self.images.iter().flat_map(|image| {
            let placed = self.placed(image).filter(|place| {
                // A photograph that is already in place as a hard link is left alone.
                image.photograph.is_none_or(|photograph| !file_guard::is_same_file(photograph, place))
            });
            self.labels(image).chain(placed).collect::<Vec<_>>()
        });
        session.check_outputs(inputs, of_images.chain(self.shared()).chain(self.others.iter().cloned()))
    }

    /// Two images with the same name would share files in every format.
    fn check_names(&self) -> anyhow::Result<()> {
        let mut by_name: HashMap<String, &Planned<'_>> = HashMap::with_capacity(self.images.len());
        for image in &self.images {
            let name = stem(&image.file_name);
            if let Some(first) = by_name.insert(name.to_lowercase(), image)
                && (stem(&first.file_name) == name || folds_case(self.out))
            {
                return Err(shared(first.input, image.input, &self.out.join(name)));
            }
        }
        Ok(())
    }

    /// Whether one image's results can fall into another format's subfolder.
    fn may_cross(&self) -> bool {
        let own = self.formats.iter().filter_map(|format| format.folder());
        let folders: Vec<&str> = own.chain(self.exports.iter().map(|format| format.name())).collect();
        let is_in_one = |image: &Planned<'_>| {
            let first = image.file_name.split('/').next().unwrap_or_default();
            folders.iter().any(|folder| folder.eq_ignore_ascii_case(first))
        };
        self.images.iter().any(is_in_one)
    }

    fn check_files(&self) -> anyhow::Result<()> {
        let mut written: HashMap<String, (PathBuf, &Path)> = HashMap::new();
        for image in &self.images {
            for file in self.labels(image).chain(self.placed(image)) {
                let key = file.to_string_lossy().to_lowercase();
                match written.get(&key) {
                    Some((same, first)) if *same == file || folds_case(self.out) => {
                        return Err(shared(first, image.input, &file));
                    }
                    _ => _ = written.insert(key, (file, image.input)),
                }
            }
        }
        Ok(())
    }

    /// `--json` and similar options must not name a result.
    fn check_others(&self) -> anyhow::Result<()> {
        for (i, other) in self.others.iter().enumerate() {
            let mut results = self.shared().chain(self.images.iter().flat_map(|image| self.labels(image)));
            let is_it = |file: &PathBuf| {
                file.file_name() == other.file_name() && file_guard::is_same_place(file, other)
            };
            if results.any(|file| is_it(&file)) || self.others[..i].iter().any(is_it) {
                return Err(usage(anyhow!(
                    "{}: another result will be written there; choose another name",
                    other.display()
                )));
            }
        }
        Ok(())
    }

    fn shared(&self) -> impl Iterator<Item = PathBuf> {
        let class_list = (!self.formats.is_empty()).then(|| self.out.join(CLASS_LIST));
        let of_exports = self.exports.iter().flat_map(|&format| {
            let folder = export_folder(self.out, format);
            let files = match format {
                ExportFormat::Cvat => &[CVAT_FILE],
                _ => format.shared_files(),
            };
            files.iter().map(move |file| folder.join(file))
        });
        class_list.into_iter().chain(of_exports)
    }

    fn labels(&self, image: &Planned<'_>) -> impl Iterator<Item = PathBuf> {
        let name = stem(&image.file_name).to_owned();
        let of_exports = self.exports.iter().filter(|format| **format != ExportFormat::Cvat);
        let of_exports = of_exports.flat_map({
            let name = name.clone();
            move |&format| {
                let folder = export_folder(self.out, format);
                format.label_files(&name).into_iter().map(move |file| folder.join(file))
            }
        });
        let own = self.formats.iter().flat_map(move |format| format.files(self.out, &name, self.classes));
        own.chain(of_exports)
    }

    fn placed(&self, image: &Planned<'_>) -> impl Iterator<Item = PathBuf> {
        let file_name = image.photograph.map(|_| image.file_name.clone());
        self.exports.iter().filter_map(move |&format| {
            Some(export_folder(self.out, format).join(format.image_file(file_name.as_deref()?)?))
        })
    }
}

fn stem(file_name: &str) -> &str {
    let start = file_name.rfind('/').map_or(0, |slash| slash + 1);
    file_name[start..].rfind('.').filter(|&dot| dot > 0).map_or(file_name, |dot| &file_name[..start + dot])
}

/// The subfolder of a format; masks go directly into the output folder.
pub(crate) fn export_folder(out: &Path, format: ExportFormat) -> PathBuf {
    match format {
        ExportFormat::Png => out.to_path_buf(),
        _ => out.join(format.name()),
    }
}

fn shared(first: &Path, second: &Path, file: &Path) -> anyhow::Error {
    usage(anyhow!(
        "{} and {} would both be written to {}; rename one of them, or use two output folders",
        first.display(),
        second.display(),
        file.display()
    ))
}

/// Whether a folder's file system ignores case. Creates the folder to find out.
fn folds_case(folder: &Path) -> bool {
    let name = |case: &str| folder.join(format!(".vitpcm-{case}-{}", std::process::id()));
    let folds = || {
        std::fs::create_dir_all(folder)?;
        std::fs::write(name("case"), "")?;
        let folds = name("CASE").exists();
        std::fs::remove_file(name("case"))?;
        Ok::<bool, std::io::Error>(folds)
    };
    folds().unwrap_or(false)
}
