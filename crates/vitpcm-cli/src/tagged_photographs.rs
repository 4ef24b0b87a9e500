//! Photographs with known tags: those of a data set, and others that show none of the model's classes.

use crate::image_inputs;
use crate::outcome::{described, usage};
use crate::session::Session;
use anyhow::{Context, anyhow, bail};
use image::RgbImage;
use std::path::{Path, PathBuf};
use vitpcm_data::{Dataset, Difficult, ImageLimits, OpenOptions, read_image};
use vitpcm_masks::Classes;

#[derive(clap::Args)]
pub(crate) struct PhotographArgs {
    /// Tagged images: a data set, as `train` takes it
    #[arg(long, value_name = "DIR")]
    pub(crate) data: PathBuf,
    /// The split of --data, or `training` for what `train` learns from [default: all images]
    #[arg(long, value_name = "NAME")]
    split: Option<String>,
    /// Skip objects that VOC's annotations mark as difficult
    #[arg(long)]
    skip_difficult: bool,
    /// Photographs that show none of the model's classes: images or folders
    #[arg(long, value_name = "PATH", num_args = 1..)]
    pub(crate) others: Vec<PathBuf>,
}

/// Where a photograph comes from.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    Data,
    Others,
}

pub(crate) struct Photograph {
    path: PathBuf,
    pub(crate) origin: Origin,
    /// The model's classes it shows, from 1 on.
    pub(crate) tags: Vec<usize>,
}

pub(crate) struct Photographs {
    list: Vec<Photograph>,
    /// The files that photographs and tags are read from.
    pub(crate) files: Vec<PathBuf>,
    limits: ImageLimits,
    num_failed: usize,
}

impl Photographs {
    pub(crate) fn find(args: &PhotographArgs, classes: &Classes, session: &Session) -> anyhow::Result<Self> {
        let difficult = if args.skip_difficult { Difficult::Exclude } else { Difficult::Include };
        let dataset = Dataset::open(&args.data, &OpenOptions { difficult, ..OpenOptions::default() })?;
        let mut class_of = Vec::new();
        for name in dataset.classes().names() {
            class_of.push(classes.index_of(name).ok_or_else(|| {
                let known = classes.names()[1..].join(", ");
                usage(anyhow!("{}: the model does not know `{name}`; it knows {known}", args.data.display()))
            })?);
        }
        let mut list = Vec::new();
        for index in indices(&dataset, args).map_err(usage)? {
            let image = &dataset.images()[index];
            let tags = image.tags.iter().map(|tag| class_of[usize::from(tag)]).collect();
            list.push(Photograph { path: image.path.clone(), origin: Origin::Data, tags });
        }
        let mut num_failed = 0;
        if !args.others.is_empty() {
            let others = image_inputs::collect(&args.others, |_| false, &session.messages)?;
            num_failed = others.num_failed;
            let other = |path| Photograph { path, origin: Origin::Others, tags: Vec::new() };
            list.extend(others.images.into_iter().map(|input| other(input.path)));
        }
        let sources = dataset.sources().map(Path::to_path_buf);
        let files = sources.chain(list.iter().map(|photograph| photograph.path.clone())).collect();
        Ok(Photographs { list, files, limits: session.image_limits(), num_failed })
    }

    /// Calls `look` with every readable photograph. Returns how many failed, or `None` if the user asked to stop.
    pub(crate) fn visit(
        &self,
        session: &Session,
        mut look: impl FnMut(&Photograph, &RgbImage) -> anyhow::Result<()>,
    ) -> anyhow::Result<Option<usize>> {
        let interrupt = session.interrupt();
        let bar = session.messages.progress_bar(self.list.len(), "photographs");
        let mut num_failed = self.num_failed;
        for photograph in &self.list {
            if interrupt.is_asked() {
                return Ok(None);
            }
            match read_image(&photograph.path, &self.limits) {
                Ok(image) => {
                    look(photograph, &image).with_context(|| photograph.path.display().to_string())?;
                }
                Err(error) => {
                    num_failed += 1;
                    bar.suspend(|| session.messages.failure(described(&error.into())));
                }
            }
            bar.inc(1);
        }
        bar.finish_and_clear();
        if num_failed >= self.list.len() {
            bail!("none of the photographs could be read");
        }
        Ok(Some(num_failed))
    }
}

fn indices(dataset: &Dataset, args: &PhotographArgs) -> anyhow::Result<Vec<usize>> {
    let Some(name) = &args.split else { return Ok((0..dataset.images().len()).collect()) };
    let training = || (name == "training").then(|| dataset.training());
    let Some(split) = dataset.split(name).cloned().or_else(training) else {
        let known: Vec<&str> = dataset.splits().iter().map(|split| split.name.as_str()).collect();
        bail!(
            "{}: no split `{name}`; expected `training` or one of: {}",
            args.data.display(),
            known.join(", ")
        );
    };
    Ok(split.indices.clone())
}
