//! The ViT-PCM network and its weights: vision transformer, HV-BiLSTM, patch classifier, import of published
//! backbones, and model files.
//!
//! Knows tensors and files, but no data set and no image format. The files follow the block diagram: [`vit`] →
//! [`hv_bilstm`] → [`patch_classifier`], joined in [`pcm`]; for verification [`resnet`] → [`deeplab`]; for comparison,
//! other backbones ([`backbone`]) and class activation maps ([`cam`]).
//!
//! ```
//! use candle_core::{DType, Device, Tensor};
//! use vitpcm_nets::{Initialisation, Mode, PcmConfig, PcmNetwork, Variant};
//!
//! # fn main() -> Result<(), vitpcm_nets::NetsError> {
//! let config = PcmConfig::paper(Variant::named("vit-nano16")?.config(), 21);
//! let parameters = Initialisation::official(1).network(&config, &Device::Cpu)?;
//! let network = PcmNetwork::new(&config, &parameters)?;
//!
//! let pixels = Tensor::zeros((1, 3, 64, 96), DType::F32, &Device::Cpu)?;
//! let output = network.forward(&pixels, &mut Mode::Inference)?;
//! assert_eq!(output.scores_on_grid.dims(), [1, 4, 6, 21]);
//! assert_eq!(output.tag_probabilities.dims(), [1, 21]);
//! # Ok(())
//! # }
//! ```

mod activations;
pub mod backbone;
pub mod cam;
pub mod deeplab;
mod deeplab_model;
mod dropout;
mod error;
pub mod hv_bilstm;
mod import;
mod initialisation;
mod inspect;
mod model_file;
mod normalisation;
mod parameters;
pub mod patch_classifier;
pub mod pcm;
mod position_embedding;
mod pretrained;
mod random;
pub mod resnet;
mod resnet_import;
mod safetensors_writer;
pub mod tag_head;
mod variants;
pub mod vit;
mod weight_file;
mod weight_names;
mod weight_shrink;
pub mod xception;
mod xception_import;

pub use activations::Activations;
pub use backbone::{Backbone, BackboneConfig, ParameterPlace};
pub use deeplab::{DeepLab, DeepLabConfig, class_probabilities};
pub use deeplab_model::{DeepLabInfo, DeepLabModel};
pub use dropout::{Dropout, DropoutRates, Mode};
pub use error::{NetsError, Result};
pub use import::{BackboneSummary, DifferentTensor, ImportedBackbone, Mismatch, import_backbone};
pub use initialisation::{Initialisation, random_linear};
pub use inspect::{ArraySummary, DeepLabSummary, FileSummary, ModelSummary, XceptionSummary, inspect};
pub use model_file::{GridAlignment, Model, ModelInfo, Storage};
pub use normalisation::Normalisation;
pub use parameters::Parameters;
pub use pcm::{Localisation, PatchConditioning, PcmConfig, PcmNetwork, PcmOutput};
pub use position_embedding::resize_position_embedding;
pub use pretrained::PretrainedBackbone;
pub use random::Stream;
pub use resnet::{OutputStride, RESNETS, ResNet, ResNetBlock, ResNetConfig, ResNetVariant, StrideOn};
pub use resnet_import::{ImportedResNet, ResNetNaming, ResNetSummary, import_resnet};
pub use safetensors_writer::{PlannedTensor, SafetensorsWriter};
pub use tag_head::{TagEvidence, TagHead};
pub use variants::{Grid, LAYER_NORM_EPS, MLP_RATIO, ParameterShape, VARIANTS, Variant, VitConfig};
pub use vit::{ClassificationHead, Precision, Vit};
#[cfg(feature = "cuda")]
pub use vitpcm_ops::open_cuda;
pub use vitpcm_ops::{ParameterGradients, has_fast_bf16, has_fast_int8, on_worker};
pub use weight_file::{ArrayEntry, Container, ElementType, WeightFile, raise_weight_limit};
pub use weight_names::Naming;
pub use weight_shrink::shrink_weights;
pub use xception::{XCEPTIONS, Xception, XceptionConfig, XceptionVariant};
