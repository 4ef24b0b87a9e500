//! The model embedded in the program: the 20 classes of PASCAL VOC, trained from tags alone. `model/MODEL_CARD.md`
//! describes its training data, accuracy and limits.

use candle_core::Device;
use vitpcm_nets::{Model, WeightFile};

use crate::SegmentError;

static BYTES: &[u8] = include_bytes!("../model/voc20.safetensors");

/// Name of the embedded model in the provenance of models fine-tuned from it.
pub const EMBEDDED_NAME: &str = "voc20";

/// The embedded model's backbone, for people to read.
pub const EMBEDDED_BACKBONE: &str = "DINOv2 ViT-S/14 (learned on VOC tags)";

/// Loads the embedded model.
pub fn embedded_model(device: &Device) -> Result<Model, SegmentError> {
    let file = WeightFile::from_bytes("the embedded model", BYTES)?;
    Ok(Model::from_weight_file(&file, device)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_embedded_model_knows_the_classes_of_voc() {
        let model = embedded_model(&Device::Cpu).unwrap();
        assert_eq!(model.info.classes, vitpcm_masks::Classes::voc().names());
        assert!(model.info.provenance.contains_key("val_miou_tags_given"));
    }
}
