//! Import of a backbone of any kind, to train from. A vitpcm model is detected by its metadata and gives only its
//! backbone; published weights are detected by their names. `model_file`, `deeplab_model`, `import` (ViTs),
//! `resnet_import` and `xception_import` read the files.

use std::path::Path;

use candle_core::Device;

use crate::backbone::BackboneConfig;
use crate::deeplab_model::DeepLabModel;
use crate::error::{Fault, Result};
use crate::import::ImportedBackbone;
use crate::model_file::{Model, is_model};
use crate::normalisation::Normalisation;
use crate::parameters::Parameters;
use crate::resnet::ResNetVariant;
use crate::resnet_import::{ImportedResNet, ResNetNaming};
use crate::variants::{ParameterShape, Variant};
use crate::weight_file::WeightFile;
use crate::xception::XceptionVariant;
use crate::xception_import::{import_xception, is_xception};

/// The weights of a backbone of any kind.
#[derive(Debug, Clone)]
pub struct PretrainedBackbone {
    /// Its configuration.
    pub config: BackboneConfig,
    /// The file's naming scheme, or the kind of vitpcm model.
    pub naming: String,
    /// Normalisation of its input pixels: stored in vitpcm models, otherwise inferred from names and shapes.
    pub normalisation: Normalisation,
    /// Side in pixels of a vitpcm model's square training images.
    pub train_size: Option<usize>,
    /// Its parameters, f32, in our layout.
    pub parameters: Parameters,
}

impl PretrainedBackbone {
    /// Imports the backbone of a file. With `expected`, it must be the variant of that name.
    pub fn import(path: impl AsRef<Path>, expected: Option<&str>, device: &Device) -> Result<Self> {
        Self::from_weight_file(&WeightFile::open(path)?, expected, device)
    }

    /// The backbone of a model trained from tags.
    pub fn of_model(model: &Model) -> Result<Self> {
        let config = model.info.network.backbone;
        Ok(Self {
            config,
            naming: "vitpcm model".to_owned(),
            normalisation: model.info.normalisation,
            train_size: Some(model.info.train_size),
            parameters: parameters_of(&config, &model.parameters)?,
        })
    }

    /// The ResNet of a verification network, without its classifiers.
    fn of_deeplab(model: &DeepLabModel) -> Result<Self> {
        let config = model.info.network.backbone.into();
        Ok(Self {
            config,
            naming: "vitpcm verification network".to_owned(),
            normalisation: model.info.normalisation,
            train_size: None,
            parameters: parameters_of(&config, &model.parameters)?,
        })
    }

    /// [`import`](Self::import) from an open file.
    pub fn from_weight_file(file: &WeightFile, expected: Option<&str>, device: &Device) -> Result<Self> {
        if is_model(file) || DeepLabModel::is_in(file) {
            let found = match is_model(file) {
                true => Self::of_model(&Model::from_weight_file(file, device)?)?,
                false => Self::of_deeplab(&DeepLabModel::from_weight_file(file, device)?)?,
            };
            let name = found.config.name();
            return match expected {
                Some(expected) if expected != name => {
                    BackboneConfig::named(expected)?;
                    let reason = format!("the model's backbone is {name}; expected {expected}");
                    Err(Fault::from(reason).at(file.path()))
                }
                _ => Ok(found),
            };
        }
        let names = || file.entries().map(|entry| entry.name.as_str());
        if ResNetNaming::recognise(names()).is_some() {
            let expected = named(expected, ResNetVariant::named, file)?;
            let imported = ImportedResNet::from_weight_file(file, expected, device)?;
            return Ok(Self {
                config: imported.summary.config.into(),
                naming: imported.summary.naming.to_string(),
                normalisation: imported.summary.normalisation,
                train_size: None,
                parameters: imported.parameters,
            });
        }
        if is_xception(file) {
            let expected = named(expected, XceptionVariant::named, file)?.map(|variant| variant.config());
            let (config, parameters) = import_xception(file, expected, device)?;
            return Ok(Self {
                config: config.into(),
                naming: "Keras".to_owned(),
                // Keras' `tf` mode.
                normalisation: Normalisation::HALF,
                train_size: None,
                parameters,
            });
        }
        let expected = named(expected, Variant::named, file)?;
        let imported = ImportedBackbone::from_weight_file(file, expected, device)?;
        Ok(Self {
            config: imported.summary.config.into(),
            naming: imported.summary.naming.to_string(),
            normalisation: imported.summary.likely_normalisation,
            train_size: None,
            parameters: imported.parameters,
        })
    }
}

/// The variant of a name, which must be of the file's kind.
fn named<T>(name: Option<&str>, find: fn(&str) -> Result<T>, file: &WeightFile) -> Result<Option<T>> {
    let Some(name) = name else { return Ok(None) };
    BackboneConfig::named(name)?;
    find(name).map(Some).map_err(|_| {
        Fault::from(format!("weights of another kind of network; expected those of {name}")).at(file.path())
    })
}

/// The backbone's parameters among a network's.
fn parameters_of(backbone: &BackboneConfig, network: &Parameters) -> Result<Parameters> {
    let one = |ParameterShape { name, .. }| Ok((name.clone(), network.get(&name)?.clone()));
    backbone.parameter_shapes().into_iter().map(one).collect()
}
