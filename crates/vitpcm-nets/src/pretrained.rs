//! Import of a backbone of any kind, told by its names: what training from tags starts from. How the files of each
//! kind are read is left to `import` (ViTs), `resnet_import`
//! and `xception_import`.

use std::path::Path;

use candle_core::Device;

use crate::backbone::BackboneConfig;
use crate::error::{NetsError, Result};
use crate::import::ImportedBackbone;
use crate::normalisation::Normalisation;
use crate::parameters::Parameters;
use crate::resnet::ResNetVariant;
use crate::resnet_import::{ImportedResNet, ResNetNaming};
use crate::variants::Variant;
use crate::weight_file::WeightFile;
use crate::xception::XceptionVariant;
use crate::xception_import::{import_xception, is_xception};

/// The weights of a backbone of any kind.
#[derive(Debug, Clone)]
pub struct PretrainedBackbone {
    /// Its numbers.
    pub config: BackboneConfig,
    /// Whose names the file uses.
    pub naming: String,
    /// What its pixels went through, as far as names and shapes tell.
    pub normalisation: Normalisation,
    /// Its parameters, f32, in our layout.
    pub parameters: Parameters,
}

impl PretrainedBackbone {
    /// Imports the backbone of a file. With `expected`, it must be the variant of that name.
    pub fn import(path: impl AsRef<Path>, expected: Option<&str>, device: &Device) -> Result<Self> {
        Self::from_weight_file(&WeightFile::open(path)?, expected, device)
    }

    /// [`import`](Self::import) from a file that is open.
    pub fn from_weight_file(file: &WeightFile, expected: Option<&str>, device: &Device) -> Result<Self> {
        let names = || file.entries().map(|entry| entry.name.as_str());
        if ResNetNaming::recognise(names()).is_some() {
            let imported =
                ImportedResNet::from_weight_file(file, named(expected, ResNetVariant::named)?, device)?;
            return Ok(Self {
                config: imported.summary.config.into(),
                naming: imported.summary.naming.to_string(),
                normalisation: imported.summary.normalisation,
                parameters: imported.parameters,
            });
        }
        if is_xception(file) {
            let expected = named(expected, XceptionVariant::named)?.map(|variant| variant.config());
            let (config, parameters) = import_xception(file, expected, device)?;
            return Ok(Self {
                config: config.into(),
                naming: "Keras".to_owned(),
                // Keras' `tf` mode.
                normalisation: Normalisation::HALF,
                parameters,
            });
        }
        let imported = ImportedBackbone::from_weight_file(file, named(expected, Variant::named)?, device)?;
        Ok(Self {
            config: imported.summary.config.into(),
            naming: imported.summary.naming.to_string(),
            normalisation: imported.summary.likely_normalisation,
            parameters: imported.parameters,
        })
    }
}

/// The variant of a name, which must be one of the file's kind.
fn named<T>(name: Option<&str>, find: fn(&str) -> Result<T>) -> Result<Option<T>> {
    let Some(name) = name else { return Ok(None) };
    BackboneConfig::named(name)?;
    find(name).map(Some).map_err(|_| NetsError::BadConfig {
        reason: format!("a {name} was asked for, but the weights are those of another kind of network"),
    })
}
