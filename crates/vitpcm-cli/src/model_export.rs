//! `vitpcm model export`: a model as ONNX, for other runtimes.

use crate::embedded_model;
use crate::model_path;
use crate::number_bounds;
use crate::outcome::{Outcome, usage};
use crate::output;
use crate::session::Session;
use std::path::PathBuf;
use vitpcm::{DeepLabModel, Device, Model};
use vitpcm_nets::WeightFile;
use vitpcm_onnx::{GraphOptions, OnnxError, OnnxFile, Preprocessing, TagConditioning, WeightNumbers};

#[derive(clap::Args)]
#[command(after_help = "Example, to paste (the first lines make a model to try it on):\n  \
    vitpcm demo --data-only scenes\n  \
    vitpcm train --data scenes --out run --preset demo --epochs 2\n  \
    vitpcm model export run --format onnx --out model.onnx\n\n\
    The embedded model, with predicted tags, as a small file:\n  \
    vitpcm model export embedded --tags predicted --store i8 --out voc20.onnx")]
pub(crate) struct Args {
    /// A vitpcm model, its run folder, or `embedded`
    #[arg(value_name = "MODEL|RUN|embedded", value_parser = model_path::parser_with_words())]
    model: PathBuf,
    /// File format
    #[arg(long, value_enum, default_value_t = Format::Onnx)]
    format: Format,
    /// The file to write
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// How weights are stored; the graph computes in f32
    #[arg(long, value_enum, default_value_t = Store::F32)]
    store: Store,
    /// Side in pixels to which images are resized for the network [default: the model's own]
    #[arg(long, value_name = "PIXELS", value_parser = number_bounds::network_side)]
    size: Option<usize>,
    /// Which classes the probabilities may show
    #[arg(long, value_enum, default_value_t = Tags::None)]
    tags: Tags,
    /// With `--tags predicted`: classes whose probability reaches this are present
    #[arg(long, value_name = "0..1", value_parser = number_bounds::fraction, default_value_t = 0.5)]
    tag_threshold: f32,
    /// Who resizes and normalises images
    #[arg(long, value_enum, default_value_t = Images::Inside)]
    preprocessing: Images,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Format {
    /// ONNX, operator set 18
    Onnx,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Store {
    /// 32-bit floats, as trained
    F32,
    /// Half the space
    F16,
    /// A quarter of the space: layers as 8-bit integers with one scale per output
    I8,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Tags {
    /// All classes, as `segment --no-tags`
    None,
    /// Those of a second input, as `segment --tags`
    Given,
    /// Those that the network recognises, as `segment --predict-tags`
    Predicted,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Images {
    /// The graph: it takes RGB images of any size, 0..255
    Inside,
    /// You: the graph takes resized, normalised pixels
    Outside,
}

impl Args {
    fn options(&self) -> GraphOptions {
        GraphOptions {
            size: self.size,
            preprocessing: match self.preprocessing {
                Images::Inside => Preprocessing::Inside,
                Images::Outside => Preprocessing::Outside,
            },
            tags: match self.tags {
                Tags::None => TagConditioning::None,
                Tags::Given => TagConditioning::Given,
                Tags::Predicted => TagConditioning::Predicted { threshold: self.tag_threshold },
            },
            weights: match self.store {
                Store::F32 => WeightNumbers::F32,
                Store::F16 => WeightNumbers::F16,
                Store::I8 => WeightNumbers::I8,
            },
        }
    }
}

pub(crate) fn export(args: &Args, session: &Session) -> anyhow::Result<Outcome> {
    let Format::Onnx = args.format;
    let is_embedded = args.model.as_os_str() == "embedded";
    let inputs = if is_embedded { None } else { Some(&args.model) };
    session.check_outputs(inputs, [args.out.clone()])?;
    let options = args.options();
    let file = match is_embedded {
        true => OnnxFile::of_model(&embedded_model::load(&Device::Cpu, "a model file")?, &options),
        false => {
            let file = WeightFile::open(&args.model)?;
            match DeepLabModel::is_in(&file) {
                true => OnnxFile::of_deeplab(&DeepLabModel::from_weight_file(&file, &Device::Cpu)?, &options),
                false => OnnxFile::of_model(&Model::from_weight_file(&file, &Device::Cpu)?, &options),
            }
        }
    };
    let name = args.model.display();
    let file = file.map_err(|error| match error {
        OnnxError::Network(_) => error.into(),
        // The model or the options are at fault, and others would do.
        _ => usage(anyhow::Error::from(error).context(format!("{name}"))),
    });
    let bytes = file?.to_bytes();
    // Finishes writing after the first signal; a second one ends the program.
    let _interrupt = session.interrupt();
    output::write_file(&args.out, &bytes)?;
    session.messages.note(format!("{}: {:.1} MB", args.out.display(), bytes.len() as f64 / 1e6));
    Ok(Outcome::Done)
}
