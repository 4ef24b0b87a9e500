//! `vitpcm model fit-tags`: adds a tag head to a model, so that objects of unknown classes get no tag.

use crate::embedded_model;
use crate::model_path;
use crate::outcome::{Outcome, usage};
use crate::session::Session;
use crate::tagged_photographs::{Origin, PhotographArgs, Photographs};
use anyhow::anyhow;
use std::path::PathBuf;
use vitpcm::{Device, Model, Segmenter, SegmenterOptions, Storage};
use vitpcm_heads::{TagExample, fit_tag_head};

#[derive(clap::Args)]
#[command(after_help = "Example, to paste (all but the last command make files to try it on):\n  \
    vitpcm demo --data-only scenes\n  \
    mkdir -p few/disc other\n  \
    cp scenes/images/scene-000[0-2].png few/disc\n  \
    cp scenes/images/scene-000[3-5].png other\n  \
    vitpcm train --data scenes --out run --preset demo --epochs 2\n  \
    vitpcm model fit-tags --model run/model.safetensors --data few \\\n    \
    --others other --out checked.safetensors\n\n\
    A few hundred tagged images and as many of other things are enough. Masks with given tags stay the same. \
    To measure it on other images: vitpcm model check-tags")]
pub(crate) struct Args {
    /// The model, as `train` writes it: file or run folder [default: the embedded one]
    #[arg(long, value_name = "FILE|RUN", value_parser = model_path::parser())]
    model: Option<PathBuf>,
    #[command(flatten)]
    photographs: PhotographArgs,
    /// The model file to write
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
}

pub(crate) fn fit_tags(args: &Args, session: &Session) -> anyhow::Result<Outcome> {
    let (device, precision) = session.open_device()?;
    let mut model = match &args.model {
        Some(path) => Model::load(path, &Device::Cpu).map_err(usage)?,
        None => embedded_model::load(&Device::Cpu, "--model FILE")?,
    };
    model.info.network.tag_head = false; // a fitted one is replaced
    let mut info = model.info.clone();
    info.network.tag_head = true;
    info.check().map_err(usage)?;
    let options = SegmenterOptions { precision, ..SegmenterOptions::default() };
    let on_device = Model { parameters: model.parameters.to_device(&device)?, ..model.clone() };
    let segmenter = Segmenter::new(&on_device, &device, options)?;
    let photographs = Photographs::find(&args.photographs, segmenter.classes(), session)?;
    session.check_outputs(photographs.files.iter().chain(&args.model), [args.out.clone()])?;
    if args.photographs.others.is_empty() {
        return Err(usage(anyhow!("--others: expected photographs that show none of the model's classes")));
    }

    let (mut examples, mut num_others) = (Vec::new(), 0);
    let visited = photographs.visit(session, |photograph, image| {
        let evidence = segmenter.tag_evidence(image)?;
        examples.push(TagExample::of(&evidence, |class| Some(photograph.tags.contains(&class)))?);
        num_others += usize::from(photograph.origin == Origin::Others);
        Ok(())
    })?;
    let Some(num_failed) = visited else { return Ok(Outcome::Interrupted) };
    let head = fit_tag_head(&examples, model.info.classes.len()).map_err(usage)?;
    model.info = info;
    model.parameters.extend(head);
    let num_tagged = examples.len() - num_others;
    let origin = format!("fitted on {num_tagged} tagged images and {num_others} of other things");
    model.info.provenance.insert("tag_head".to_owned(), origin);
    // Finishes writing after the first signal; a second one ends the program.
    let _interrupt = session.interrupt();
    model.save(&args.out, Storage::F32)?;
    session.messages.note(format!(
        "{}: tags checked by a head that was fitted on {num_tagged} tagged images and {num_others} of other things",
        args.out.display()
    ));
    Ok(if num_failed == 0 { Outcome::Done } else { Outcome::SomeFailed })
}
