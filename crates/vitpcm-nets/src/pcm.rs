//! The whole network: backbone, patch conditioning, patch classifier and pooling over the grid; or, as a baseline,
//! backbone and class activation maps. Normalised pixels in, score map on the grid (Z) and tag probabilities (y) out.

use candle_core::Tensor;
use serde::{Deserialize, Serialize};

use crate::activations::Activations;
use crate::backbone::{Backbone, BackboneConfig};
use crate::cam::{ClassActivation, IMAGE_CLASSIFIER_WEIGHT};
use crate::dropout::Mode;
use crate::error::{NetsError, Result};
use crate::hv_bilstm::{DEFAULT_LSTM_UNITS, HvBiLstm};
use crate::parameters::Parameters;
use crate::patch_classifier::{CLASSIFIER_WEIGHT, PatchClassifier};
use crate::tag_head::{TagEvidence, TagHead};
use crate::variants::ParameterShape;
use crate::vit::Precision;

/// How patches exchange information between backbone and classifier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum PatchConditioning {
    /// Not at all: the paper's ablation.
    None,
    /// Two bidirectional LSTMs, along rows and columns.
    HvBilstm {
        /// Units per direction.
        units: usize,
    },
}

/// How features on the grid become scores and tags.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Localisation {
    /// Patch-class mapping (the paper's method): every patch is classified, with background as a class, and pooled.
    #[default]
    Pcm,
    /// Class activation maps: the image is classified by its mean features, see [`crate::cam`].
    Cam {
        /// The score that a class must exceed, relative to its peak of 1; below is background.
        background_threshold: f32,
    },
}

impl Localisation {
    fn is_pcm(&self) -> bool {
        *self == Localisation::Pcm
    }
}

/// Configuration of a network.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PcmConfig {
    /// The backbone.
    pub backbone: BackboneConfig,
    /// The layer between backbone and classifier.
    pub conditioning: PatchConditioning,
    /// Number of classes including background (K + 1).
    pub num_classes: usize,
    /// How features become scores. Files name it only if it is not PCM.
    #[serde(default, skip_serializing_if = "Localisation::is_pcm")]
    pub localisation: Localisation,
    /// Whether a [`TagHead`], fitted after training, gives the tag probabilities. Files name it only if so.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub tag_head: bool,
}

impl PcmConfig {
    /// The paper's network on a backbone: HV-BiLSTM of 192 units, max pooling. `num_classes` includes the background.
    pub fn paper(backbone: impl Into<BackboneConfig>, num_classes: usize) -> Self {
        Self {
            backbone: backbone.into(),
            conditioning: PatchConditioning::HvBilstm { units: DEFAULT_LSTM_UNITS },
            num_classes,
            localisation: Localisation::Pcm,
            tag_head: false,
        }
    }

    /// Checks that the numbers describe a possible network.
    pub fn check(&self) -> Result<()> {
        self.backbone.check()?;
        let bad = |reason: String| Err(NetsError::BadConfig { reason });
        if !(2..=1 << 16).contains(&self.num_classes) {
            return bad(format!(
                "{} classes; expected the background and at least one more",
                self.num_classes
            ));
        }
        if let PatchConditioning::HvBilstm { units } = self.conditioning
            && !(1..=1 << 12).contains(&units)
        {
            return bad(format!("{units} LSTM units; expected 1 to 4096"));
        }
        if let Localisation::Cam { background_threshold } = self.localisation {
            if !(0.0..=1.0).contains(&background_threshold) {
                return bad(format!("a background threshold of {background_threshold}; expected 0 to 1"));
            }
            if self.conditioning != PatchConditioning::None {
                return bad("class activation maps after patch conditioning; expected none".to_owned());
            }
            if self.tag_head {
                return bad("a tag head after class activation maps; expected patch scores".to_owned());
            }
        }
        Ok(())
    }

    /// Names and shapes of all parameters.
    pub fn parameter_shapes(&self) -> Vec<ParameterShape> {
        let mut shapes = self.backbone.parameter_shapes();
        shapes.extend(self.head_parameter_shapes());
        shapes
    }

    /// Names and shapes of the parameters after the backbone.
    pub fn head_parameter_shapes(&self) -> Vec<ParameterShape> {
        let backbone_features = self.backbone.num_features();
        let (mut shapes, num_features) = match self.conditioning {
            PatchConditioning::None => (Vec::new(), backbone_features),
            PatchConditioning::HvBilstm { units } => {
                (HvBiLstm::parameter_shapes(backbone_features, units), 4 * units)
            }
        };
        shapes.extend(match self.localisation {
            Localisation::Pcm => PatchClassifier::parameter_shapes(num_features, self.num_classes),
            Localisation::Cam { .. } => ClassActivation::parameter_shapes(num_features, self.num_classes),
        });
        if self.tag_head {
            shapes.extend(TagHead::parameter_shapes(backbone_features, self.num_classes));
        }
        shapes
    }

    /// Name of the classifier's weight, the only parameter with the L2 penalty.
    pub fn classifier_weight(&self) -> &'static str {
        match self.localisation {
            Localisation::Pcm => CLASSIFIER_WEIGHT,
            Localisation::Cam { .. } => IMAGE_CLASSIFIER_WEIGHT,
        }
    }

    /// Number of trainable parameters.
    pub fn num_parameters(&self) -> usize {
        self.parameter_shapes().iter().map(ParameterShape::num_elements).sum()
    }
}

/// The network's output for a batch of images.
#[derive(Debug, Clone)]
pub struct PcmOutput {
    /// Z: class probabilities of every patch, `[B, rows, columns, K + 1]`.
    pub scores_on_grid: Tensor,
    /// y: probability of every tag, `[B, K + 1]`; from pooling and, if there is one, the tag head.
    pub tag_probabilities: Tensor,
}

/// The network built from stored parameters.
#[derive(Debug, Clone)]
pub struct PcmNetwork {
    config: PcmConfig,
    backbone: Backbone,
    hv_bilstm: Option<HvBiLstm>,
    head: Head,
    tag_head: Option<TagHead>,
    precision: Precision,
}

#[derive(Debug, Clone)]
enum Head {
    Patches(PatchClassifier),
    ClassActivation { layer: ClassActivation, background_threshold: f32 },
}

impl PcmNetwork {
    /// Builds the network; `parameters` must hold all of [`PcmConfig::parameter_shapes`].
    pub fn new(config: &PcmConfig, parameters: &Parameters) -> Result<Self> {
        config.check()?;
        parameters.check(&config.head_parameter_shapes())?;
        Ok(Self {
            config: config.clone(),
            backbone: Backbone::new(&config.backbone, parameters)?,
            hv_bilstm: match config.conditioning {
                PatchConditioning::None => None,
                PatchConditioning::HvBilstm { .. } => Some(HvBiLstm::new(parameters)?),
            },
            head: match config.localisation {
                Localisation::Pcm => Head::Patches(PatchClassifier::new(parameters)?),
                Localisation::Cam { background_threshold } => {
                    Head::ClassActivation { layer: ClassActivation::new(parameters)?, background_threshold }
                }
            },
            tag_head: config.tag_head.then(|| TagHead::new(parameters)).transpose()?,
            precision: Precision::F32,
        })
    }

    /// The same network with another compute precision.
    pub fn with_precision(self, precision: Precision) -> Self {
        Self { backbone: self.backbone.with_precision(precision), precision, ..self }
    }

    /// The same network for inference, in its current precision: all blocks are frozen and prepared once.
    pub fn for_inference(self) -> Result<Self> {
        let depth = self.config.backbone.depth();
        self.with_frozen_blocks(depth)
    }

    /// The same network with the backbone's first blocks frozen: they are prepared once, in the current precision, and
    /// record no graph.
    pub fn with_frozen_blocks(self, num_blocks: usize) -> Result<Self> {
        Ok(Self { backbone: self.backbone.with_frozen_blocks(num_blocks)?, ..self })
    }

    /// Its configuration.
    pub fn config(&self) -> &PcmConfig {
        &self.config
    }

    /// Its backbone.
    pub fn backbone(&self) -> &Backbone {
        &self.backbone
    }

    /// Pixels to scores and tags.
    ///
    /// # Shapes
    /// pixels `[B, 3, H, W]`, RGB, normalised as the weights expect; H and W multiples of the patch size.
    pub fn forward(&self, pixels: &Tensor, mode: &mut Mode<'_>) -> Result<PcmOutput> {
        self.continue_from(&self.backbone.embed(pixels)?, mode)
    }

    /// The part that training leaves frozen: embedding and the first `num_blocks` blocks, without dropout. Its
    /// activations carry no graph, and any number of passes can continue from them.
    pub fn run_frozen_blocks(&self, pixels: &Tensor, num_blocks: usize) -> Result<Activations> {
        let embedded = self.backbone.embed(pixels)?;
        let mut activations = self.backbone.run_blocks_to(num_blocks, &embedded, &mut Mode::Inference)?;
        activations.values = activations.values.detach();
        Ok(activations)
    }

    /// Continues from activations between two blocks to scores and tags.
    pub fn continue_from(&self, activations: &Activations, mode: &mut Mode<'_>) -> Result<PcmOutput> {
        let grid_features = self.grid_features_from(activations, mode)?;
        let output = self.pooled(&grid_features, mode)?;
        let Some(tag_head) = &self.tag_head else { return Ok(output) };
        let evidence = TagEvidence::new(&output.tag_probabilities, &output.scores_on_grid, &grid_features)?;
        Ok(PcmOutput { tag_probabilities: tag_head.forward(&evidence)?, ..output })
    }

    /// The inputs of a [`TagHead`], to fit or apply it. Pixels as for [`forward`](Self::forward).
    pub fn tag_evidence(&self, pixels: &Tensor) -> Result<TagEvidence> {
        let mode = &mut Mode::Inference;
        let grid_features = self.grid_features_from(&self.backbone.embed(pixels)?, mode)?;
        let output = self.pooled(&grid_features, mode)?;
        TagEvidence::new(&output.tag_probabilities, &output.scores_on_grid, &grid_features)
    }

    /// As [`forward`](Self::forward) without training, with features by which patches can be compared: of a ViT those
    /// after half of its blocks and after the last one, else those after the last one.
    ///
    /// # Shapes
    /// features `[B, rows, columns, D]` each, f32
    pub fn forward_with_features(&self, pixels: &Tensor) -> Result<(PcmOutput, Vec<Tensor>)> {
        let mode = &mut Mode::Inference;
        let depth = self.config.backbone.depth();
        let embedded = self.backbone.embed(pixels)?;
        let (activations, features) = match &self.backbone {
            Backbone::Vit(vit) => {
                let halfway = vit.run_blocks_to(depth / 2, &embedded, mode)?;
                let last = vit.run_blocks_to(depth, &halfway, mode)?;
                let features = vec![vit.plain_features(&halfway)?, vit.plain_features(&last)?];
                (last, features)
            }
            Backbone::ResNet(_) | Backbone::Xception(_) => {
                let last = self.backbone.run_blocks_to(depth, &embedded, mode)?;
                let features = vec![self.backbone.grid_features(&last)?];
                (last, features)
            }
        };
        Ok((self.continue_from(&activations, mode)?, features))
    }

    fn grid_features_from(&self, activations: &Activations, mode: &mut Mode<'_>) -> Result<Tensor> {
        let activations = self.backbone.run_blocks_to(self.config.backbone.depth(), activations, mode)?;
        self.backbone.grid_features(&activations)
    }

    /// Scores, and tags from pooling alone.
    ///
    /// # Shapes
    /// grid_features `[B, rows, columns, features]`, from the backbone
    fn pooled(&self, grid_features: &Tensor, mode: &mut Mode<'_>) -> Result<PcmOutput> {
        let conditioned;
        let features = match &self.hv_bilstm {
            None => grid_features,
            Some(hv_bilstm) => {
                conditioned = hv_bilstm.forward(grid_features, self.precision.products(), mode)?;
                &conditioned
            }
        };
        let classifier = match &self.head {
            Head::Patches(classifier) => classifier,
            Head::ClassActivation { layer, background_threshold } => {
                return layer.forward(features, *background_threshold, mode);
            }
        };
        let scores_on_grid = classifier.forward(features, mode)?;
        // Global max pooling.
        let tag_probabilities = vitpcm_ops::max_over_grid(&scores_on_grid)?;
        Ok(PcmOutput { scores_on_grid, tag_probabilities })
    }
}
