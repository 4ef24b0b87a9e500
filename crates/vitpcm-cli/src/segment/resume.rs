//! Which images a resumed `vitpcm segment` can skip: by the record of the output folder or, where an earlier version
//! wrote none, by the results that exist.

use super::{Args, TagSource};
use crate::folder_record::{FolderRecord, ImageState, Known, Settings, sha256_of_file};
use crate::image_inputs::Input;
use crate::outcome::usage;
use crate::results_folder::ResultsFolder;
use crate::session::Session;
use anyhow::{Context, anyhow};
use std::path::{Path, PathBuf};

/// Options that do not affect the mask of an image. Tags of a tag file are recorded per image; the model is identified
/// by its content.
const NOT_OF_RESULTS: [&str; 21] = [
    "PATHS", "--config", "--device", "--format", "--json", "--max-file-gigabytes", "--max-megapixels",
    "--model", "--no-report", "--out", "--precision", "--quiet", "--resume", "--seed", "--skip-difficult",
    "--split", "--tags-file", "--threads", "--truth", "--predict-tags", "--verbose",
];

/// The settings that determine the masks: the model and the options.
pub(super) fn settings(args: &Args, session: &Session) -> anyhow::Result<Settings> {
    let options = session.invocation.options.iter();
    let options = options.filter(|option| !NOT_OF_RESULTS.contains(&option.name.as_str()));
    let mut settings: Settings = options.map(|option| (option.name.clone(), option.value.clone())).collect();
    let model = match &args.model {
        Some(path) => sha256_of_file(path).with_context(|| format!("{}", path.display()))?,
        None => format!("embedded in vitpcm {}", env!("CARGO_PKG_VERSION")),
    };
    settings.insert("--model".to_owned(), model);
    Ok(settings)
}

/// Refuses to continue with settings that differ from the recorded ones.
pub(super) fn check_settings(args: &Args, record: &FolderRecord, settings: &Settings) -> anyhow::Result<()> {
    let differences = record.differences("segment", settings);
    if differences.is_empty() {
        return Ok(());
    }
    Err(usage(anyhow!(
        "{}: its results were made with other settings: {}; resume with the same settings, choose another --out, or \
         leave out --resume to segment every image again",
        args.out.display(),
        differences.join("; ")
    )))
}

/// Recognises results of earlier runs if the output folder lies among the images.
pub(super) struct OwnResults<'a> {
    out: Option<PathBuf>,
    record: &'a FolderRecord,
}

impl<'a> OwnResults<'a> {
    pub(super) fn new(out: &Path, record: &'a FolderRecord) -> Self {
        OwnResults { out: out.canonicalize().ok().filter(|_| record.exists()), record }
    }

    pub(super) fn is_one(&self, path: &Path) -> bool {
        let Some(out) = &self.out else { return false };
        let Ok(path) = path.canonicalize() else { return false };
        path.strip_prefix(out).is_ok_and(|name| self.record.has_written(&name.to_string_lossy()))
    }
}

/// Which images are to be done and which are not.
#[derive(Default)]
pub(super) struct Progress<'a> {
    pub(super) todo: Vec<&'a Input>,
    num_done: usize,
    num_changed: usize,
    /// Done, judging by their results alone.
    found: Vec<&'a Input>,
}

impl<'a> Progress<'a> {
    /// A new run: all images are to be done.
    pub(super) fn fresh(images: impl Iterator<Item = &'a Input>) -> Progress<'a> {
        Progress { todo: images.collect(), ..Progress::default() }
    }

    /// A resumed run: sorts the images.
    pub(super) fn resumed(
        images: impl Iterator<Item = &'a Input>,
        record: &FolderRecord,
        tags: &TagSource,
        is_there: impl Fn(&Input) -> bool,
    ) -> Progress<'a> {
        let mut progress = Progress::default();
        for input in images {
            let known = record.image(&input.name, &input.path, tags.recorded(input));
            if known == Known::Changed {
                progress.num_changed += 1;
            }
            match known {
                Known::Same if is_there(input) => progress.num_done += 1,
                Known::No if !record.exists() && is_there(input) => progress.found.push(input),
                _ => progress.todo.push(input),
            }
        }
        progress
    }

    /// Numbers of images done, changed since, and done judging by their results alone.
    pub(super) fn counts(&self) -> [usize; 3] {
        [self.num_done + self.found.len(), self.num_changed, self.found.len()]
    }

    /// Records the images found without a record, so that later changes are noticed.
    pub(super) fn note_found(&self, results: &ResultsFolder, tags: &TagSource) -> anyhow::Result<()> {
        self.found.iter().try_for_each(|input| {
            let state = ImageState::without_content(&input.path, tags.recorded(input));
            let state = state.with_context(|| format!("{}", input.path.display()))?;
            results.image_is_done(&input.name, state)
        })
    }
}
