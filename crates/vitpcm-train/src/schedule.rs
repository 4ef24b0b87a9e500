//! What is trained when, and at which rate: a warm-up with the backbone frozen, then the last blocks or everything.

use std::f64::consts::PI;

use vitpcm_nets::{BackboneConfig, ParameterPlace};

use crate::config::{Decay, ScheduleConfig, Unfreeze};

/// The part of the network that is trained.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trained {
    /// What stands on the backbone.
    Head,
    /// That, the final norm and so many last blocks.
    LastBlocks(usize),
    /// Everything.
    Everything,
}

impl Trained {
    /// Whether a parameter is trained, by its name. Batch norms never are.
    pub fn includes(self, name: &str, backbone: &BackboneConfig) -> bool {
        if ["hv_bilstm.", "patch_classifier.", "image_classifier."].iter().any(|head| name.starts_with(head))
        {
            return true;
        }
        match (self, backbone.place_of(name)) {
            (Trained::Head, _) | (_, ParameterPlace::FrozenNorm) => false,
            (Trained::Everything, _) => true,
            (Trained::LastBlocks(_), ParameterPlace::Entrance) => false,
            (Trained::LastBlocks(_), ParameterPlace::FinalNorm) => true,
            (Trained::LastBlocks(count), ParameterPlace::Block(index)) => index + count >= backbone.depth(),
        }
    }

    /// The blocks that run without a graph, or none where even the embeddings are trained.
    pub fn num_frozen_blocks(self, depth: usize) -> Option<usize> {
        match self {
            Trained::Head => Some(depth),
            Trained::LastBlocks(count) => Some(depth.saturating_sub(count)),
            Trained::Everything => None,
        }
    }
}

impl ScheduleConfig {
    /// What is trained in an epoch, counted from 0.
    pub fn trained(&self, epoch: usize) -> Trained {
        match self.unfreeze {
            _ if epoch < self.warmup_epochs => Trained::Head,
            Unfreeze::LastBlocks(count) => Trained::LastBlocks(count),
            Unfreeze::All => Trained::Everything,
        }
    }

    /// The learning rate. `epochs_done` counts fractions of the running epoch; `steps_of_phase` are those taken since
    /// the optimiser is new.
    pub fn rate_at(&self, epochs_done: f64, steps_of_phase: u64) -> f64 {
        let warmup = self.warmup_epochs as f64;
        if epochs_done < warmup {
            return self.warmup_rate;
        }
        let ramp = match self.ramp_steps {
            0 => 1.0,
            ramp_steps => ((steps_of_phase + 1) as f64 / ramp_steps as f64).min(1.0),
        };
        let progress = (epochs_done - warmup) / (self.epochs as f64 - warmup).max(1.0);
        let decay = match self.decay {
            Decay::Constant => 1.0,
            Decay::Cosine => 0.5 * (1.0 + (PI * progress.clamp(0.0, 1.0)).cos()),
        };
        self.rate * ramp * decay
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::TrainConfig;

    #[test]
    fn the_released_code_trains_the_head_then_five_blocks_and_the_norm() {
        let schedule = TrainConfig::official().schedule;
        assert_eq!(schedule.trained(0), Trained::Head);
        let trained = schedule.trained(1);
        assert_eq!(trained, Trained::LastBlocks(5));
        assert_eq!(trained.num_frozen_blocks(12), Some(7));
        let vit = BackboneConfig::named("vit-s16").unwrap();
        for (name, expected) in [
            ("blocks.6.mlp.fc1.weight", false),
            ("blocks.7.norm1.bias", true),
            ("blocks.11.attn.qkv.weight", true),
            ("norm.weight", true),
            ("pos_embed", false),
            ("hv_bilstm.rows.weight_ih_l0", true),
            ("patch_classifier.weight", true),
        ] {
            assert_eq!(trained.includes(name, &vit), expected, "{name}");
        }
        assert!(!Trained::Head.includes("norm.weight", &vit));
        assert!(Trained::Everything.includes("pos_embed", &vit));
    }

    #[test]
    fn of_a_resnet_convolutions_are_trained_and_norms_are_not() {
        let resnet = BackboneConfig::named("resnet50").unwrap();
        for (name, everything, last_blocks) in [
            ("conv1.weight", true, false),
            ("bn1.weight", false, false),
            ("layer1.0.conv1.weight", true, false),
            ("layer3.4.conv3.weight", true, false),
            ("layer3.5.conv3.weight", true, true),
            ("layer4.0.downsample.0.weight", true, true),
            ("layer4.0.downsample.1.weight", false, false),
            ("layer4.2.bn3.bias", false, false),
            ("image_classifier.weight", true, true),
        ] {
            assert_eq!(Trained::Everything.includes(name, &resnet), everything, "{name}");
            assert_eq!(Trained::LastBlocks(4).includes(name, &resnet), last_blocks, "{name}");
            assert_eq!(Trained::Head.includes(name, &resnet), name.starts_with("image"), "{name}");
        }
    }

    #[test]
    fn the_rate_is_that_of_the_warm_up_then_ramps_and_decays() {
        let mut schedule = TrainConfig::official().schedule;
        assert_eq!(schedule.rate_at(0.9, 5), 1e-3);
        assert_eq!(schedule.rate_at(40.0, 0), 1e-4);
        (schedule.decay, schedule.epochs, schedule.ramp_steps) = (Decay::Cosine, 11, 10);
        assert!((schedule.rate_at(1.0, 0) - 1e-5).abs() < 1e-12);
        assert!((schedule.rate_at(6.0, 100) - 0.5e-4).abs() < 1e-12);
        assert!(schedule.rate_at(11.0, 100).abs() < 1e-12);
    }
}
