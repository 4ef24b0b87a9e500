//! The model that comes with the program: the 20 classes of PASCAL VOC, trained from tags alone. `model/MODEL_CARD.md`
//! says on what, how well it does and where it fails. `build.rs` finds its file.

use candle_core::Device;
use vitpcm_nets::{Model, WeightFile};

use crate::SegmentError;

#[cfg(has_embedded_model)]
static BYTES: Option<&[u8]> = Some(include_bytes!(env!("VITPCM_EMBEDDED_MODEL")));
#[cfg(not(has_embedded_model))]
static BYTES: Option<&[u8]> = None;

/// Whether this build has the embedded model: the feature `embedded-model` is on, and the build found the file.
pub const HAS_EMBEDDED_MODEL: bool = cfg!(has_embedded_model);

/// Name of the embedded model in the provenance of models fine-tuned from it.
pub const EMBEDDED_NAME: &str = "voc20";

/// The embedded model's backbone, for people to read.
pub const EMBEDDED_BACKBONE: &str = "DINOv2 ViT-S/14 (learned on VOC tags)";

/// The embedded model; [`SegmentError::NoEmbeddedModel`] in a build without it.
pub fn embedded_model(device: &Device) -> Result<Model, SegmentError> {
    let bytes = BYTES.ok_or(SegmentError::NoEmbeddedModel)?;
    let file = WeightFile::from_bytes("the embedded model", bytes)?;
    Ok(Model::from_weight_file(&file, device)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(not(has_embedded_model))]
    fn a_build_without_the_embedded_model_says_so() {
        let error = embedded_model(&Device::Cpu).unwrap_err().to_string();
        assert!(error.contains("no embedded model"), "{error}");
    }

    #[test]
    #[cfg(has_embedded_model)]
    fn the_embedded_model_knows_the_classes_of_voc() {
        let model = embedded_model(&Device::Cpu).unwrap();
        assert_eq!(model.info.classes, vitpcm_masks::Classes::voc().names());
        assert!(model.info.provenance.contains_key("val_miou_tags_given"));
    }
}
