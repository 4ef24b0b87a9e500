//! The model file of the verification network: one safetensors file with the parameters and, in its metadata,
//! everything needed to run them. Its metadata differ from those of models trained from tags, so the two cannot be
//! confused.

use std::collections::BTreeMap;
use std::path::Path;

use candle_core::Device;
use serde::{Deserialize, Serialize};

use crate::deeplab::{DeepLab, DeepLabConfig};
use crate::error::{Fault, Parsed, Result};
use crate::model_file::{
    Storage, check_number_of_names, compare_parameters, json, mean_of_alike, metadata_value, read_parameters,
    write_parameters,
};
use crate::normalisation::Normalisation;
use crate::parameters::Parameters;
use crate::weight_file::WeightFile;

/// The format's name in the metadata.
const FORMAT: &str = "vitpcm-deeplab";
/// The format version written, and the only one read.
const FORMAT_VERSION: &str = "1";

/// A model file's description of its network.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DeepLabInfo {
    /// The network.
    pub network: DeepLabConfig,
    /// Class names, background first.
    pub classes: Vec<String>,
    /// Side in pixels of the crops it was trained on.
    pub crop: usize,
    /// Normalisation of its input pixels.
    pub normalisation: Normalisation,
    /// Provenance: the command, the data, the scores. Free keys.
    pub provenance: BTreeMap<String, String>,
}

impl DeepLabInfo {
    /// Checks the description for contradictions.
    pub fn check(&self) -> Result<()> {
        self.network.check()?;
        check_number_of_names(&self.classes, self.network.num_classes)?;
        self.normalisation.check()
    }
}

/// A verification network: its description and its parameters.
#[derive(Debug, Clone)]
pub struct DeepLabModel {
    /// The network's description and provenance.
    pub info: DeepLabInfo,
    /// All parameters, f32.
    pub parameters: Parameters,
}

impl DeepLabModel {
    /// Whether a file is one, by its metadata.
    pub fn is_in(file: &WeightFile) -> bool {
        file.metadata().get("format").is_some_and(|format| format == FORMAT)
    }

    /// Reads a model from an open file.
    pub fn from_weight_file(file: &WeightFile, device: &Device) -> Result<Self> {
        let info = read_info(file)?;
        let name = info.network.backbone.name();
        compare_parameters(name, &info.network.parameter_shapes(), file).into_result()?;
        Ok(Self { info, parameters: read_parameters(file, device)? })
    }

    /// The network, sharing the model's parameters.
    pub fn network(&self) -> Result<DeepLab> {
        DeepLab::new(&self.info.network, &self.parameters)
    }

    /// The model with the mean parameters of several models, which must agree in all but their provenance; it gets the
    /// first one's. At least one.
    pub fn mean(models: &[Self]) -> Result<Self> {
        let plain = |model: &Self| DeepLabInfo { provenance: BTreeMap::new(), ..model.info.clone() };
        let parameters = mean_of_alike(models.iter().map(|model| (plain(model), &model.parameters)))?;
        Ok(Self { info: models[0].info.clone(), parameters })
    }

    /// Writes the model file atomically.
    pub fn save(&self, path: impl AsRef<Path>, storage: Storage) -> Result<()> {
        let info = &self.info;
        info.check()?;
        let json = |value: serde_json::Value| value.to_string();
        let metadata = BTreeMap::from([
            ("format", FORMAT.to_owned()),
            ("format_version", FORMAT_VERSION.to_owned()),
            ("variant", info.network.backbone.name().to_owned()),
            ("network", json(serde_json::json!(info.network))),
            ("classes", json(serde_json::json!(info.classes))),
            ("crop", info.crop.to_string()),
            ("normalisation", json(serde_json::json!(info.normalisation))),
            ("provenance", json(serde_json::json!(info.provenance))),
        ]);
        let shapes = info.network.parameter_shapes();
        write_parameters(path.as_ref(), &metadata, shapes, &self.parameters, storage)
    }
}

/// Reads a model's description from its file's metadata.
pub(crate) fn read_info(file: &WeightFile) -> Result<DeepLabInfo> {
    let info = parse_info(file.metadata()).map_err(|fault| fault.at(file.path()))?;
    info.check().map_err(|error| Fault::from(error.to_string()).at(file.path()))?;
    Ok(info)
}

fn parse_info(metadata: &BTreeMap<String, String>) -> Parsed<DeepLabInfo> {
    let get = |key: &str| metadata_value(metadata, key);
    if get("format")? != FORMAT || get("format_version")? != FORMAT_VERSION {
        return Err(format!("expected a {FORMAT} of version {FORMAT_VERSION}").into());
    }
    Ok(DeepLabInfo {
        network: json("network", get("network")?)?,
        classes: json("classes", get("classes")?)?,
        crop: json("crop", get("crop")?)?,
        normalisation: json("normalisation", get("normalisation")?)?,
        provenance: json("provenance", get("provenance")?)?,
    })
}
