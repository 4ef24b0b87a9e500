//! One training step: frozen blocks once and without a graph, the training pass and the target pass from there, the
//! losses, and the gradients of one or several batches. It takes a type without masks; the optimiser is left to the
//! loop.

use std::sync::Arc;

use candle_core::{Tensor, Var};
use vitpcm_nets::{
    Activations, Dropout, Grid, Localisation, Mode, ParameterGradients, Parameters, PcmConfig, PcmNetwork,
    PcmOutput, Precision,
};

use crate::batch::TaggedBatch;
use crate::config::{EtTarget, LossConfig};
use crate::error::Result;
use crate::feature_cache::FeatureCache;
use crate::losses::{self, LossSum, Losses, OF_TAGS};
use crate::schedule::Trained;

/// The network as it is trained: some parameters are variables, the others constants.
#[derive(Debug)]
pub struct PcmStep {
    config: PcmConfig,
    losses: LossConfig,
    trained: Trained,
    parameters: Parameters,
    /// Built on the variables: its passes leave a graph.
    network: PcmNetwork,
    /// The same values without a graph, for targets.
    constant_network: PcmNetwork,
    classifier_weight: Tensor,
    variables: Vec<(String, Var)>,
    features: Option<Arc<FeatureCache>>,
}

impl PcmStep {
    /// Makes variables of the parameters that are trained now.
    pub fn new(
        config: &PcmConfig,
        losses: &LossConfig,
        trained: Trained,
        precision: Precision,
        mut parameters: Parameters,
    ) -> Result<Self> {
        let variables = parameters.make_trainable(|name| trained.includes(name, &config.backbone))?;
        let constants: Parameters =
            parameters.iter().map(|(name, tensor)| (name.to_owned(), tensor.detach())).collect();
        let num_frozen_blocks = trained.num_frozen_blocks(config.backbone.depth()).unwrap_or(0);
        Ok(Self {
            network: PcmNetwork::new(config, &parameters)?.with_precision(precision),
            constant_network: PcmNetwork::new(config, &constants)?
                .with_precision(precision)
                .with_frozen_blocks(num_frozen_blocks)?,
            classifier_weight: parameters.get(config.classifier_weight())?.clone(),
            config: config.clone(),
            losses: losses.clone(),
            trained,
            parameters,
            variables,
            features: None,
        })
    }

    /// The same step, which takes frozen features from a cache for batches that have a place there.
    pub fn with_features(self, features: Option<Arc<FeatureCache>>) -> Self {
        Self { features, ..self }
    }

    /// The parameters that are trained, in the order of their names.
    pub fn variables(&self) -> &[(String, Var)] {
        &self.variables
    }

    /// All parameters as they are now, without a graph. They change with the next step: copy them to keep them.
    pub fn parameters(&self) -> Parameters {
        self.parameters.iter().map(|(name, tensor)| (name.to_owned(), tensor.detach())).collect()
    }

    /// The losses and the gradient of every variable, averaged over all images of all batches: several batches give
    /// the same as one large batch (up to rounding, and to dropout, which draws anew for each).
    pub fn gradients(&self, batches: &[TaggedBatch], dropout: &mut Dropout) -> Result<(Losses, Vec<Tensor>)> {
        vitpcm_ops::on_worker(|| self.accumulated(batches, dropout))
    }

    fn accumulated(&self, batches: &[TaggedBatch], dropout: &mut Dropout) -> Result<(Losses, Vec<Tensor>)> {
        let num_images: usize = batches.iter().map(TaggedBatch::len).sum();
        let mut sums: Option<Vec<Tensor>> = None;
        let mut losses = Losses::zero(&OF_TAGS);
        for batch in batches {
            dropout.begin_batch();
            let share = batch.len() as f64 / num_images as f64;
            let of_blocks = ParameterGradients::default();
            let sum = self.loss_sum(batch, dropout, &of_blocks)?;
            let store = (sum.total() * share)?.backward()?;
            let variables = self.variables.iter().map(|(_, variable)| variable.as_tensor());
            let gradients = of_blocks.take_all(&store, variables)?;
            sums = Some(match sums {
                None => gradients,
                Some(sums) => sums
                    .iter()
                    .zip(&gradients)
                    .map(|(sum, more)| sum + more)
                    .collect::<candle_core::Result<_>>()?,
            });
            losses.add(share as f32, &sum.values(&OF_TAGS)?);
        }
        Ok((losses, sums.unwrap_or_default()))
    }

    /// The losses of a batch without dropout and without a gradient: what validation without masks compares.
    pub fn validation_losses(&self, batch: &TaggedBatch) -> Result<Losses> {
        let pixels = self.pictures(batch)?;
        let output = self.constant_network.forward(&pixels, &mut Mode::Inference)?;
        self.losses_of(batch, &output, || Ok(output.scores_on_grid.clone()))?.values(&OF_TAGS)
    }

    /// Both views go through the network as one batch: `[B + ⌈B/4⌉, 3, S, S]`.
    fn pictures(&self, batch: &TaggedBatch) -> Result<Tensor> {
        Ok(match self.sees_both_views(batch) {
            false => batch.first_views.clone(),
            true => Tensor::cat(&[&batch.first_views, &batch.merged_views], 0)?,
        })
    }

    fn sees_both_views(&self, batch: &TaggedBatch) -> bool {
        self.losses.et_target != EtTarget::None || batch.pseudo_masks.is_some()
    }

    /// `of_blocks` gets the gradients of the transformer's blocks when the losses go backward.
    fn loss_sum(
        &self,
        batch: &TaggedBatch,
        dropout: &mut Dropout,
        of_blocks: &ParameterGradients,
    ) -> Result<LossSum> {
        let tokens = match self.trained.num_frozen_blocks(self.config.backbone.depth()) {
            Some(num_blocks) => self.frozen_tokens(batch, num_blocks)?,
            None => self.network.backbone().embed(&self.pictures(batch)?)?,
        };
        let rates = dropout.rates;
        let output = self.network.continue_from(&tokens, &mut Mode::Training(dropout, of_blocks))?;
        self.losses_of(batch, &output, || {
            if rates.backbone <= 0.0 && rates.conditioning <= 0.0 && rates.classifier <= 0.0 {
                // Without dropout the target pass would compute the training pass again.
                return Ok(output.scores_on_grid.detach());
            }
            // Only first views teach merged ones.
            let num_targets = match self.losses.et_target {
                EtTarget::Main => batch.len(),
                EtTarget::None | EtTarget::Merged | EtTarget::Symmetric => tokens.values.dim(0)?,
            };
            let values = tokens.values.detach().narrow(0, 0, num_targets)?;
            let tokens = Activations { values, ..tokens };
            let output = self.constant_network.continue_from(&tokens, &mut Mode::Inference)?;
            Ok(output.scores_on_grid)
        })
    }

    /// The pictures behind the frozen blocks: what is kept of them, through those that follow.
    fn frozen_tokens(&self, batch: &TaggedBatch, num_blocks: usize) -> Result<Activations> {
        let network = &self.constant_network;
        let (Some(cache), Some(place)) = (&self.features, batch.place) else {
            return Ok(network.run_frozen_blocks(&self.pictures(batch)?, num_blocks)?);
        };
        let device = batch.first_views.device();
        // Both views, whether this round needs them or not: another one may.
        let values = cache.features(batch, place, device, || {
            let pixels = Tensor::cat(&[&batch.first_views, &batch.merged_views], 0)?;
            Ok(network.run_frozen_blocks(&pixels, cache.num_blocks())?.values)
        })?;
        let values = match self.sees_both_views(batch) {
            true => values,
            false => values.narrow(0, 0, batch.len())?.contiguous()?,
        };
        let side = batch.first_views.dim(2)? / self.config.backbone.patch();
        let grid = Grid { rows: side, columns: side };
        let tokens = Activations { values, grid, num_blocks_run: cache.num_blocks() };
        let tokens = network.backbone().run_blocks_to(num_blocks, &tokens, &mut Mode::Inference)?;
        Ok(Activations { values: tokens.values.detach(), ..tokens })
    }

    /// `target_maps` gives the maps of first views, and of merged ones where these teach, without dropout and without
    /// gradient.
    fn losses_of(
        &self,
        batch: &TaggedBatch,
        output: &PcmOutput,
        target_maps: impl FnOnce() -> Result<Tensor>,
    ) -> Result<LossSum> {
        let num_images = batch.len();
        // Activation maps do not score the background.
        let first_class = match self.config.localisation {
            Localisation::Pcm => 0,
            Localisation::Cam { .. } => 1,
        };
        let num_classes = self.config.num_classes - first_class;
        let mut sum = LossSum::default();
        let mce = losses::multi_label_loss(
            &output.tag_probabilities.narrow(0, 0, num_images)?.narrow(1, first_class, num_classes)?,
            &batch.tags.narrow(1, first_class, num_classes)?,
        )?;
        sum.add(losses::MCE, mce, self.losses.mce_weight)?;
        let penalty = losses::classifier_penalty(&self.classifier_weight)?;
        sum.add(losses::L2, (penalty * self.losses.classifier_l2)?, 1.0)?;
        let maps = &output.scores_on_grid;
        let et = match self.losses.et_target {
            EtTarget::None => None,
            EtTarget::Main => Some(self.first_teaches_merged(batch, maps, &target_maps()?)?),
            EtTarget::Merged => Some(self.merged_teaches_first(batch, maps, &target_maps()?)?),
            EtTarget::Symmetric => {
                let targets = target_maps()?;
                let main = self.first_teaches_merged(batch, maps, &targets)?;
                Some(((main + self.merged_teaches_first(batch, maps, &targets)?)? * 0.5)?)
            }
        };
        if let Some(et) = et {
            sum.add(losses::ET, et, self.losses.et_weight)?;
        }
        if let Some(masks) = &batch.pseudo_masks {
            sum.add(losses::MASKS, self.masks_teach_both(batch, maps, masks)?, self.losses.mask_weight)?;
        }
        Ok(sum)
    }

    /// An earlier round's masks teach the maps of both views.
    fn masks_teach_both(&self, batch: &TaggedBatch, maps: &Tensor, masks: &Tensor) -> Result<Tensor> {
        let first = losses::map_loss(masks, &first_maps(maps, batch.len())?)?;
        let on_second_grid = batch.second_from_first.matmul(masks)?;
        let second = losses::map_loss(&on_second_grid, &second_maps(maps, batch.len())?)?;
        Ok(((first + second)? * 0.5)?)
    }

    /// The first view's map teaches the merged view's.
    fn first_teaches_merged(&self, batch: &TaggedBatch, maps: &Tensor, targets: &Tensor) -> Result<Tensor> {
        let first = first_maps(targets, batch.len())?;
        let target =
            losses::target_from_first(&first, &batch.second_from_first, &batch.tags, self.losses.et_peak)?;
        losses::map_loss(&target, &second_maps(maps, batch.len())?)
    }

    /// The merged view's map, conditioned on the tags, teaches the first view's, cropped, scaled and flipped alike.
    fn merged_teaches_first(&self, batch: &TaggedBatch, maps: &Tensor, targets: &Tensor) -> Result<Tensor> {
        let second = second_maps(targets, batch.len())?;
        let target = losses::conditioned(&second, &batch.tags, &second.max(1)?)?;
        let first = first_maps(maps, batch.len())?;
        losses::map_loss(&target, &batch.second_from_first.matmul(&first)?)
    }
}

/// Maps of all pictures `[B + M, G, G, C]` to those of the first views, `[B, G², C]`.
fn first_maps(maps: &Tensor, num_images: usize) -> Result<Tensor> {
    Ok(maps.narrow(0, 0, num_images)?.flatten(1, 2)?)
}

/// Maps of all pictures `[B + M, G, G, C]` to those of the second views, taken apart again, `[B, (G/2)², C]`.
fn second_maps(maps: &Tensor, num_images: usize) -> Result<Tensor> {
    let (num_pictures, grid, _, classes) = maps.dims4()?;
    let (num_merged, half) = (num_pictures - num_images, grid / 2);
    let quarters = maps
        .narrow(0, num_images, num_merged)?
        .reshape(vec![num_merged, 2, half, 2, half, classes])?
        .permute(vec![0, 1, 3, 2, 4, 5])?
        .reshape((4 * num_merged, half * half, classes))?;
    Ok(quarters.narrow(0, 0, num_images)?)
}
