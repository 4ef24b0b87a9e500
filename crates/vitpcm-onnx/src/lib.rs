//! ONNX files of vitpcm's networks, for other runtimes: from image tensor to class probabilities at the image's size,
//! with preprocessing, predicted tags and conditioning on tags inside the graph.
//!
//! [`OnnxFile::of_model`] takes a model trained from tags, [`OnnxFile::of_deeplab`] one trained on masks. The files
//! follow the block diagram: `vit_graph` or `resnet_graph` → `bilstm_graph` → `tag_graph`, joined in `model_graph`;
//! `deeplab_graph` for models trained on masks. [`onnx_proto`] is the file format.
//!
//! ```
//! use vitpcm_onnx::{GraphOptions, OnnxFile, TagConditioning};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // Or `vitpcm_nets::Model::load("model.safetensors", &Device::Cpu)`.
//! let model = vitpcm::random_model("vit-nano16", &["dog", "person"], 1)?;
//! let tags = TagConditioning::Predicted { threshold: 0.5 };
//! let file = OnnxFile::of_model(&model, &GraphOptions { tags, ..GraphOptions::default() })?;
//! assert!(file.to_bytes().len() > 4_000_000);
//! # Ok(())
//! # }
//! ```

mod bilstm_graph;
mod deeplab_graph;
mod error;
mod graph_builder;
mod model_graph;
mod model_metadata;
pub mod onnx_proto;
mod resampling_graph;
mod resnet_graph;
mod stored_weights;
mod tag_graph;
mod vit_graph;

pub use error::{OnnxError, Result};
pub use model_graph::{
    GraphOptions, IMAGE, PIXELS, PROBABILITIES, Preprocessing, TAG_PROBABILITIES, TAGS, TagConditioning,
};
pub use stored_weights::WeightNumbers;

use model_graph::{ModelGraph, deeplab_model_graph, pcm_graph};
use model_metadata::{Description, metadata};
use onnx_proto::{ModelProto, OperatorSetIdProto};
use prost::Message;
use vitpcm_nets::{DeepLabModel, GridAlignment, Model};

/// Version of the file format: the lowest that fits the operators, so that older runtimes read it.
const IR_VERSION: i64 = 8;

/// Version of the operators: the first in which all reductions take their axes as an input.
const OPERATOR_SET: i64 = 18;

/// Bytes of the largest protobuf file, 2 GiB less one.
const MOST_BYTES: usize = i32::MAX as usize;

/// A network as ONNX.
#[derive(Clone, Debug, PartialEq)]
pub struct OnnxFile {
    model: ModelProto,
}

impl OnnxFile {
    /// Of a model trained from tags.
    pub fn of_model(model: &Model, options: &GraphOptions) -> Result<OnnxFile> {
        let ModelGraph { graph, side } = pcm_graph(model, options)?;
        let info = &model.info;
        let description = Description {
            network: info.network.backbone.name().to_owned(),
            classes: &info.classes,
            normalisation: &info.normalisation,
            resampling: info.alignment.to_string(),
            size: side.unwrap_or(info.inference_size).to_string(),
            provenance: &info.provenance,
        };
        Self::new(graph, &description, options)
    }

    /// Of a model trained on masks.
    pub fn of_deeplab(model: &DeepLabModel, options: &GraphOptions) -> Result<OnnxFile> {
        let ModelGraph { graph, .. } = deeplab_model_graph(model, options)?;
        let info = &model.info;
        let size = match options.size {
            Some(side) => format!("longer side {side}"),
            None => "of the image".to_owned(),
        };
        let description = Description {
            network: format!("DeepLabV2 on {}", info.network.backbone.name()),
            classes: &info.classes,
            normalisation: &info.normalisation,
            resampling: GridAlignment::AlignCorners.to_string(),
            size: format!("{size}, each side a multiple of 8 plus 1"),
            provenance: &info.provenance,
        };
        Self::new(graph, &description, options)
    }

    fn new(
        graph: onnx_proto::GraphProto,
        description: &Description<'_>,
        options: &GraphOptions,
    ) -> Result<OnnxFile> {
        let model = ModelProto {
            ir_version: IR_VERSION,
            producer_name: "vitpcm".to_owned(),
            producer_version: env!("CARGO_PKG_VERSION").to_owned(),
            doc_string: "Class probabilities of every pixel. The metadata have the classes.".to_owned(),
            graph: Some(graph),
            opset_import: vec![OperatorSetIdProto { domain: String::new(), version: OPERATOR_SET }],
            metadata_props: metadata(description, options),
        };
        let bytes = model.encoded_len();
        match bytes > MOST_BYTES {
            true => Err(OnnxError::TooLarge { bytes }),
            false => Ok(OnnxFile { model }),
        }
    }

    /// What the file holds.
    pub fn model(&self) -> &ModelProto {
        &self.model
    }

    /// The file's bytes. The same model and options give the same bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        self.model.encode_to_vec()
    }
}
