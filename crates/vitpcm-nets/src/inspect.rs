//! Identifies a file: a vitpcm model, backbone weights, or other arrays. Reads names and shapes, no data.

use std::fmt;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::deeplab_model::{self, DeepLabInfo, DeepLabModel};
use crate::error::Result;
use crate::import::{BackboneSummary, Plan};
use crate::model_file::{self, ModelInfo};
use crate::normalisation::Normalisation;
use crate::resnet_import::{self, ResNetSummary};
use crate::weight_file::{Container, ElementType, WeightFile};
use crate::xception::XceptionConfig;
use crate::xception_import;

/// What a file holds.
#[derive(Debug, Clone, Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum FileSummary {
    /// A vitpcm model, ready to segment.
    Model(ModelSummary),
    /// A vitpcm verification network, ready to segment without tags.
    DeepLab(DeepLabSummary),
    /// Weights of a ViT, to train from.
    Backbone(BackboneSummary),
    /// Weights of a ResNet, for a verification network or to train from.
    ResNet(ResNetSummary),
    /// Weights of an Xception, to train from.
    Xception(XceptionSummary),
    /// Other arrays.
    Arrays {
        /// The file.
        path: PathBuf,
        /// Its container format.
        container: Container,
        /// Why it is neither a model nor a backbone.
        reason: String,
        /// Its arrays, by name.
        arrays: Vec<ArraySummary>,
    },
}

/// Summary of a model file.
#[derive(Debug, Clone, Serialize)]
pub struct ModelSummary {
    /// The file.
    pub path: PathBuf,
    /// The backbone's name, or `custom`.
    pub variant: String,
    /// Number of parameters.
    pub num_parameters: usize,
    /// Their number format.
    pub element_type: String,
    /// The file's description of itself.
    pub info: ModelInfo,
}

/// Summary of a verification network's model file.
#[derive(Debug, Clone, Serialize)]
pub struct DeepLabSummary {
    /// The file.
    pub path: PathBuf,
    /// The backbone's name, or `custom`.
    pub variant: String,
    /// Number of parameters.
    pub num_parameters: usize,
    /// The file's description of itself.
    pub info: DeepLabInfo,
}

/// Summary of a file of Xception weights.
#[derive(Debug, Clone, Serialize)]
pub struct XceptionSummary {
    /// The file.
    pub path: PathBuf,
    /// The variant's name, or `custom`.
    pub variant: String,
    /// Its configuration.
    pub config: XceptionConfig,
}

/// One array of a file.
#[derive(Debug, Clone, Serialize)]
pub struct ArraySummary {
    /// Its name.
    pub name: String,
    /// The type of its elements.
    pub element_type: ElementType,
    /// Its shape, outermost dimension first.
    pub shape: Vec<usize>,
}

/// Identifies a file.
pub fn inspect(path: impl AsRef<Path>) -> Result<FileSummary> {
    let file = WeightFile::open(path)?;
    if model_file::is_model(&file) {
        let info = model_file::read_info(&file)?;
        model_file::compare(&info, &file).into_result()?;
        return Ok(FileSummary::Model(ModelSummary {
            path: file.path().to_owned(),
            variant: info.network.backbone.name().to_owned(),
            num_parameters: info.network.num_parameters(),
            element_type: file
                .entries()
                .next()
                .map(|entry| entry.element_type.to_string())
                .unwrap_or_default(),
            info,
        }));
    }
    if DeepLabModel::is_in(&file) {
        let info = deeplab_model::read_info(&file)?;
        let variant = info.network.backbone.name().to_owned();
        let shapes = info.network.parameter_shapes();
        model_file::compare_parameters(&variant, &shapes, &file).into_result()?;
        let (path, num_parameters) = (file.path().to_owned(), info.network.num_parameters());
        return Ok(FileSummary::DeepLab(DeepLabSummary { path, variant, num_parameters, info }));
    }
    if let Ok(summary) = resnet_import::summarise(&file, None) {
        return Ok(FileSummary::ResNet(summary));
    }
    if xception_import::is_xception(&file)
        && let Ok(config) = xception_import::summarise(&file, None)
    {
        let (path, variant) = (file.path().to_owned(), config.name().to_owned());
        return Ok(FileSummary::Xception(XceptionSummary { path, variant, config }));
    }
    match Plan::new(&file, None) {
        Ok(plan) => Ok(FileSummary::Backbone(plan.summary)),
        Err(error) => Ok(FileSummary::Arrays {
            path: file.path().to_owned(),
            container: file.container(),
            reason: error.to_string(),
            arrays: file
                .entries()
                .map(|entry| ArraySummary {
                    name: entry.name.clone(),
                    element_type: entry.element_type.clone(),
                    shape: entry.shape.clone(),
                })
                .collect(),
        }),
    }
}

impl fmt::Display for FileSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FileSummary::Model(model) => model.fmt(f),
            FileSummary::DeepLab(model) => model.fmt(f),
            FileSummary::Backbone(backbone) => backbone.fmt(f),
            FileSummary::ResNet(resnet) => resnet.fmt(f),
            FileSummary::Xception(xception) => xception.fmt(f),
            FileSummary::Arrays { path, container, reason, arrays } => {
                writeln!(
                    f,
                    "{}: {container}, {} arrays; neither a model nor a backbone",
                    path.display(),
                    arrays.len()
                )?;
                writeln!(f, "{reason}")?;
                for array in arrays {
                    writeln!(
                        f,
                        "  {:<8} {:<24} {}",
                        array.element_type.to_string(),
                        format!("{:?}", array.shape),
                        array.name
                    )?;
                }
                Ok(())
            }
        }
    }
}

impl fmt::Display for ModelSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let info = &self.info;
        writeln!(f, "{}: vitpcm model", self.path.display())?;
        writeln!(f, "  backbone        {}", self.variant)?;
        writeln!(f, "  localisation    {}", serde_text(&info.network.localisation))?;
        writeln!(f, "  conditioning    {}", serde_text(&info.network.conditioning))?;
        if info.network.tag_head {
            writeln!(f, "  tags            checked by a tag head")?;
        }
        writeln!(f, "  parameters      {:.2} M, {}", self.num_parameters as f64 / 1e6, self.element_type)?;
        writeln!(f, "  classes         {}: {}", info.classes.len(), info.classes.join(", "))?;
        writeln!(f, "  trained at      {} px", info.train_size)?;
        writeln!(f, "  to be run at    {} px", info.inference_size)?;
        writeln!(
            f,
            "  normalisation   mean {:?}, std {:?}",
            info.normalisation.mean, info.normalisation.std
        )?;
        writeln!(f, "  resampling      {}", info.alignment)?;
        writeln!(f, "  preset          {}", info.preset)?;
        info.provenance.iter().try_for_each(|(key, value)| writeln!(f, "  {key:<15} {value}"))
    }
}

impl fmt::Display for DeepLabSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let info = &self.info;
        writeln!(f, "{}: vitpcm verification network (DeepLabV2), which needs no tags", self.path.display())?;
        writeln!(f, "  backbone        {}", self.variant)?;
        writeln!(f, "  parameters      {:.2} M", self.num_parameters as f64 / 1e6)?;
        writeln!(f, "  classes         {}: {}", info.classes.len(), info.classes.join(", "))?;
        writeln!(f, "  trained on      crops of {} px", info.crop)?;
        let Normalisation { mean, std } = info.normalisation;
        writeln!(f, "  normalisation   mean {mean:?}, std {std:?}")?;
        info.provenance.iter().try_for_each(|(key, value)| writeln!(f, "  {key:<15} {value}"))
    }
}

impl fmt::Display for XceptionSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}: weights of an Xception", self.path.display())?;
        writeln!(f, "  variant         {}", self.variant)?;
        writeln!(f, "  names           Keras")?;
        let XceptionConfig { middle_blocks, width, .. } = self.config;
        writeln!(f, "  middle flow     {middle_blocks} blocks; entrance of {width} features")
    }
}

impl fmt::Display for ResNetSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (config, Normalisation { mean, std }) = (&self.config, self.normalisation);
        writeln!(f, "{}: weights of a ResNet", self.path.display())?;
        writeln!(f, "  variant         {}", self.variant)?;
        writeln!(f, "  names           {}", self.naming)?;
        writeln!(f, "  blocks          {:?}, width {}", config.blocks, config.width)?;
        writeln!(f, "  stride on       {} convolution", serde_text(&config.stride_on))?;
        writeln!(f, "  norm epsilon    {:e}", config.norm_eps)?;
        writeln!(f, "  normalisation   mean {mean:?}, std {std:?}")?;
        if !self.left_over.is_empty() {
            writeln!(f, "  not needed      {}", self.left_over.join(", "))?;
        }
        Ok(())
    }
}

impl fmt::Display for BackboneSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let config = &self.config;
        writeln!(f, "{}: weights of a backbone", self.path.display())?;
        writeln!(f, "  variant         {}", self.variant)?;
        writeln!(f, "  container       {}, {}", self.container, self.element_types.join(", "))?;
        writeln!(f, "  names           {}", self.naming)?;
        writeln!(f, "  parameters      {:.2} M", self.num_parameters as f64 / 1e6)?;
        writeln!(f, "  patch           {} px", config.patch)?;
        writeln!(f, "  width, depth    {}, {} ({} heads)", config.width, config.depth, config.heads)?;
        writeln!(f, "  positions       {0} x {0}", config.position_grid)?;
        writeln!(f, "  registers       {}", config.registers)?;
        writeln!(f, "  LayerScale      {}", if config.layer_scale { "yes" } else { "no" })?;
        match self.num_head_classes {
            Some(classes) => writeln!(f, "  head            {classes} classes")?,
            None => writeln!(f, "  head            none")?,
        }
        let likely = self.likely_normalisation;
        writeln!(f, "  normalisation   mean {:?}, std {:?} (likely)", likely.mean, likely.std)?;
        if !self.left_over.is_empty() {
            writeln!(f, "  not needed      {}", self.left_over.join(", "))?;
        }
        Ok(())
    }
}

fn serde_text(value: &impl Serialize) -> String {
    let text = serde_json::to_string(value).unwrap_or_default();
    text.replace(['{', '}', '"'], "").replace(':', " ")
}
