//! A linear head as a model file: the ViT up to the head's block, a plain norm, and the head as patch classifier. It
//! segments any image like a trained network.

use std::collections::BTreeMap;

use candle_core::{Device, Tensor};
use vitpcm_nets::patch_classifier::CLASSIFIER_WEIGHT;
use vitpcm_nets::{
    BackboneConfig, GridAlignment, Localisation, Model, ModelInfo, Parameters, PatchConditioning, PcmConfig,
    PretrainedBackbone, VitConfig,
};

use crate::error::{HeadsError, Result, check_length};
use crate::features::{GRID_SIDE, Source, Tiles};
use crate::head::LinearHead;
use crate::projection::Projection;

/// The model of a head on the projected features of `source`. `classes` are the names, background first.
///
/// The patch classifier has no bias. The norm's bias is 1 for every feature instead: normalised features sum to 0, so what
/// is added to all weights of a class alike only adds a constant to its logits.
pub fn head_model(
    backbone: &PretrainedBackbone,
    source: Source,
    projection: &Projection,
    head: &LinearHead,
    classes: &[String],
) -> Result<Model> {
    let BackboneConfig::Vit(vit) = backbone.config else {
        return Err(HeadsError::BadRequest("the model of a head needs a ViT".to_owned()));
    };
    if source.tiles != Tiles::Whole {
        return Err(HeadsError::BadRequest(format!("a head on {source} cannot be one network")));
    }
    let head = head.before(projection)?;
    let width = vit.width;
    check_length("classes of a head", head.num_classes() + 1, classes.len())?;
    // The background's logit is 0.
    let mut weight = vec![0.0f32; width];
    for row in head.rows() {
        let (of_features, bias) = (&row[..width], row[width]);
        let shift = (bias - of_features.iter().sum::<f32>()) / width as f32;
        weight.extend(of_features.iter().map(|weight| weight + shift));
    }

    let config = VitConfig { depth: source.block, ..vit };
    let mut parameters = Parameters::new();
    for shape in config.parameter_shapes() {
        let parameter = backbone.parameters.get(&shape.name)?.to_device(&Device::Cpu)?;
        parameters.insert(shape.name, parameter);
    }
    let ones = Tensor::new(vec![1.0f32; width], &Device::Cpu)?;
    parameters.insert("norm.weight", ones.clone());
    parameters.insert("norm.bias", ones);
    parameters.insert(CLASSIFIER_WEIGHT, Tensor::from_vec(weight, (classes.len(), width), &Device::Cpu)?);
    let info = ModelInfo {
        network: PcmConfig {
            backbone: config.into(),
            conditioning: PatchConditioning::None,
            num_classes: classes.len(),
            localisation: Localisation::Pcm,
            tag_head: false,
        },
        classes: classes.to_vec(),
        train_size: GRID_SIDE * vit.patch,
        inference_size: GRID_SIDE * vit.patch,
        normalisation: backbone.normalisation,
        alignment: GridAlignment::HalfPixel,
        preset: "linear-head".to_owned(),
        provenance: BTreeMap::new(),
    };
    info.check()?;
    Ok(Model { info, parameters })
}
