//! Untrained models of every kind that can be exported. Their weights are random, but large enough that classes differ.

use candle_core::Tensor;
use std::collections::BTreeMap;
use vitpcm::{DeepLabModel, Device, Model};
use vitpcm_nets::{
    BackboneConfig, DeepLabConfig, DeepLabInfo, GridAlignment, Initialisation, ModelInfo, Normalisation,
    PatchConditioning, PcmConfig, ResNetVariant, Stream, VitConfig,
};

pub(crate) const CLASSES: [&str; 4] = ["background", "circle", "square", "star"];

/// A ViT with everything that one may have: registers, LayerScale, a tag head.
pub(crate) fn small_vit() -> PcmConfig {
    let vit = VitConfig {
        patch: 8,
        width: 128,
        depth: 2,
        heads: 2,
        registers: 2,
        layer_scale: true,
        position_grid: 5,
    };
    let paper = PcmConfig::paper(vit, CLASSES.len());
    PcmConfig { conditioning: PatchConditioning::HvBilstm { units: 12 }, tag_head: true, ..paper }
}

/// A ResNet without patch conditioning.
pub(crate) fn small_resnet() -> PcmConfig {
    let resnet = ResNetVariant::named("resnet-nano").unwrap().config();
    let paper = PcmConfig::paper(BackboneConfig::ResNet(resnet), CLASSES.len());
    PcmConfig { conditioning: PatchConditioning::None, ..paper }
}

pub(crate) fn model(network: PcmConfig, alignment: GridAlignment, size: usize) -> Model {
    let parameters = Initialisation::paper(3).network(&network, &Device::Cpu).unwrap();
    let mut model = Model {
        info: ModelInfo {
            network,
            classes: CLASSES.map(str::to_owned).to_vec(),
            train_size: size,
            inference_size: size,
            normalisation: Normalisation::IMAGENET,
            alignment,
            preset: "default".to_owned(),
            provenance: BTreeMap::from([("weights".to_owned(), "random".to_owned())]),
        },
        parameters,
    };
    // Biases are zero and scales equal in new networks, which would hide an error.
    let names: Vec<String> = model.parameters.iter().map(|(name, _)| name.to_owned()).collect();
    for name in
        names.iter().filter(|name| ["bias", "gamma", "running"].iter().any(|part| name.contains(part)))
    {
        let noise = Stream::named(7, name);
        let values = model.parameters.values(name).unwrap();
        let changed: Vec<f32> =
            (0..).zip(values).map(|(i, value)| value + 0.2 * noise.normal(i).abs()).collect();
        let shape = model.parameters.get(name).unwrap().shape().clone();
        model.parameters.insert(name, Tensor::from_vec(changed, shape, &Device::Cpu).unwrap());
    }
    model.info.check().unwrap();
    model
}

pub(crate) fn deeplab() -> DeepLabModel {
    let resnet = ResNetVariant::named("resnet-nano").unwrap().config();
    let network = DeepLabConfig::new(resnet, CLASSES.len());
    let mut parameters = network.initial_backbone(1, &Device::Cpu).unwrap();
    parameters.extend(network.initial_head(1, &Device::Cpu).unwrap());
    let info = DeepLabInfo {
        network,
        classes: CLASSES.map(str::to_owned).to_vec(),
        crop: 65,
        normalisation: Normalisation::HALF,
        provenance: BTreeMap::new(),
    };
    DeepLabModel { info, parameters }
}
