//! `vitpcm-lab attention`: foreground masks from a ViT's own attention, one folder per head. They need neither tags nor
//! training and serve as a baseline.

use crate::attention_maps::AttentionMapper;
use anyhow::{Context, bail};
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use vitpcm::{Model, embedded_model};
use vitpcm_cli::class_names::CLASS_LIST;
use vitpcm_cli::compared_masks::read_names;
use vitpcm_cli::counting::images;
use vitpcm_cli::image_inputs::{self, Input};
use vitpcm_cli::model_path;
use vitpcm_cli::number_bounds;
use vitpcm_cli::outcome::{Outcome, described, usage};
use vitpcm_cli::output;
use vitpcm_cli::session::Session;
use vitpcm_data::{ImageLimits, read_image};
use vitpcm_masks::write_label_png;
use vitpcm_nets::{FileSummary, ImportedBackbone, WeightFile, inspect};

#[derive(clap::Args)]
#[command(after_help = "Example, to paste (the first line draws images to try it on):\n  \
    vitpcm demo --data-only scenes\n  \
    vitpcm-lab attention scenes/images/scene-0001.png --out attention\n\n\
    DINO's measure on PASCAL VOC, with weights that learned without labels:\n  \
    vitpcm-lab attention JPEGImages --list val.txt --weights dinov2s.pt --out attention\n  \
    vitpcm-lab foreground --pred attention/head-* --truth SegmentationClass --list val.txt")]
pub(crate) struct Args {
    /// Images, or folders of images (at any depth)
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// Folder for the masks (1: foreground): head-1, head-2, … and mean, the heads' mean attention
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Weights of a ViT, or a vitpcm model or its run folder [default: the embedded model's ViT]
    #[arg(long, value_name = "FILE|RUN", value_parser = model_path::parser())]
    weights: Option<PathBuf>,
    /// Only the images whose names are listed in this file (a split)
    #[arg(long, value_name = "FILE")]
    list: Option<PathBuf>,
    /// Side in pixels to which images are resized, in whole patches
    #[arg(long, value_name = "N", value_parser = number_bounds::network_side, default_value_t = 448)]
    size: usize,
    /// Fraction of a head's attention that the foreground holds
    #[arg(long, value_name = "0..1", value_parser = number_bounds::fraction_above_zero, default_value_t = 0.6)]
    mass: f32,
}

pub(crate) fn attention(args: &Args, session: &Session) -> anyhow::Result<Outcome> {
    let messages = &session.messages;
    let mapper = open_mapper(args, session).map_err(usage)?;
    let mut inputs = image_inputs::collect(&args.paths, |_| false, messages)?;
    if let Some(list) = &args.list {
        let names: HashSet<String> = read_names(list).map_err(usage)?.into_iter().collect();
        let is_listed = |input: &Input| {
            let stem = Path::new(&input.name).file_name();
            stem.is_some_and(|stem| names.contains(&*stem.to_string_lossy()))
        };
        inputs.images.retain(is_listed);
        if inputs.images.is_empty() {
            bail!("none of the images is listed in {}", list.display());
        }
    }
    let folders: Vec<PathBuf> = (1..=mapper.num_heads())
        .map(|head| args.out.join(format!("head-{head}")))
        .chain([args.out.join("mean")])
        .collect();
    let masks = |folder: &PathBuf| {
        let mask = |input: &Input| mask_path(folder, input);
        inputs.images.iter().map(mask).chain([folder.join(CLASS_LIST)]).collect::<Vec<_>>()
    };
    let read = inputs.images.iter().map(|input| &input.path).chain(&args.weights).chain(&args.list);
    session.check_outputs(read, folders.iter().flat_map(masks))?;
    let _lock = output::lock_folder(&args.out, "attention")?;
    for folder in &folders {
        std::fs::create_dir_all(folder).with_context(|| format!("{}", folder.display()))?;
        output::write_file(&folder.join(CLASS_LIST), b"foreground\n")?;
    }

    let bar = messages.progress_bar(inputs.images.len(), "attending");
    let limits = session.image_limits();
    let mut num_failed = inputs.num_failed;
    for input in &inputs.images {
        if let Err(error) = write_masks(args, &limits, &mapper, &folders, input) {
            num_failed += 1;
            let path = input.path.display().to_string();
            bar.suspend(|| messages.failure(format!("{path}: {}", described(&error))));
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    let num_done = inputs.images.len() + inputs.num_failed - num_failed;
    messages.note(format!(
        "{}, {} heads, {num_failed} failed; masks are in {}",
        images(num_done),
        mapper.num_heads(),
        args.out.display()
    ));
    if num_done == 0 {
        bail!("no mask could be made of any image");
    }
    Ok(if num_failed == 0 { Outcome::Done } else { Outcome::SomeFailed })
}

fn open_mapper(args: &Args, session: &Session) -> anyhow::Result<AttentionMapper> {
    let (device, precision) = session.open_device()?;
    let of_model = |model: &Model| AttentionMapper::of_model(model, args.size, precision, &device);
    let Some(path) = &args.weights else { return Ok(of_model(&embedded_model(&device)?)?) };
    let file = WeightFile::open(path)?;
    Ok(match inspect(path)? {
        FileSummary::Model(_) => of_model(&Model::from_weight_file(&file, &device)?)?,
        FileSummary::DeepLab(_) | FileSummary::ResNet(_) | FileSummary::Xception(_) => {
            bail!("{}: a convolutional network has no attention; expected a ViT", path.display())
        }
        // Files without a ViT are reported by the import.
        FileSummary::Backbone(_) | FileSummary::Arrays { .. } => {
            let backbone = ImportedBackbone::from_weight_file(&file, None, &device)?;
            AttentionMapper::of_backbone(&backbone, args.size, precision, &device)?
        }
    })
}

fn mask_path(folder: &Path, input: &Input) -> PathBuf {
    folder.join(format!("{}.png", input.name))
}

fn write_masks(
    args: &Args,
    limits: &ImageLimits,
    mapper: &AttentionMapper,
    folders: &[PathBuf],
    input: &Input,
) -> anyhow::Result<()> {
    let maps = mapper.attend(&read_image(&input.path, limits)?)?;
    let mean = maps.mean();
    for (map, folder) in maps.heads.iter().chain([&mean]).zip(folders) {
        let path = mask_path(folder, input);
        std::fs::create_dir_all(path.parent().unwrap_or(folder))?;
        write_label_png(&path, &maps.foreground(map, args.mass)?)?;
    }
    Ok(())
}
