//! The dense CRF's settings as options: a preset, and every parameter on top of it.

use crate::number_bounds;
use clap::ValueEnum;
use vitpcm::{CrfNormalization, CrfParams, CrfPreset};

/// Settings that papers report.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Preset {
    /// ViT-PCM (our default): Gaussian 3, σ 1; bilateral 4, σ 67 px, σ 3 grey levels; 10 iterations
    VitPcm,
    /// DeepLab v1/v2 on VOC: Gaussian 3, σ 3; bilateral 4, σ 121 px, σ 5; 10 iterations
    Deeplab,
    /// PSA, IRN, SEAM and others after pydensecrf's example: Gaussian 3, σ 3; bilateral 10, σ 80 px, σ 13; 10 iterations
    Irn,
}

impl From<Preset> for CrfPreset {
    fn from(preset: Preset) -> Self {
        match preset {
            Preset::VitPcm => Self::VitPcm,
            Preset::Deeplab => Self::Deeplab,
            Preset::Irn => Self::Irn,
        }
    }
}

/// The CRF's options, as typed.
#[derive(clap::Args)]
pub(crate) struct CrfOptions {
    /// Settings to start from
    #[arg(long = "crf-preset", value_enum, default_value = "vit-pcm", help_heading = "Dense CRF")]
    preset: Preset,
    /// Mean-field iterations
    #[arg(long = "crf-iterations", value_name = "N", value_parser = number_bounds::crf_iterations, help_heading = "Dense CRF")]
    iterations: Option<usize>,
    /// Weight of the smoothness term (0: without it)
    #[arg(long = "crf-gaussian-weight", value_name = "X", value_parser = number_bounds::crf_weight, help_heading = "Dense CRF")]
    gaussian_weight: Option<f32>,
    /// Reach of the smoothness term, in pixels
    #[arg(long = "crf-gaussian-sigma", value_name = "X", value_parser = number_bounds::crf_sigma, help_heading = "Dense CRF")]
    gaussian_sigma: Option<f32>,
    /// Weight of the appearance term (0: without it)
    #[arg(long = "crf-bilateral-weight", value_name = "X", value_parser = number_bounds::crf_weight, help_heading = "Dense CRF")]
    bilateral_weight: Option<f32>,
    /// Reach of the appearance term, in pixels
    #[arg(long = "crf-bilateral-sigma-xy", value_name = "X", value_parser = number_bounds::crf_sigma, help_heading = "Dense CRF")]
    bilateral_sigma_xy: Option<f32>,
    /// Tolerance of the appearance term, in grey levels of 0 to 255
    #[arg(long = "crf-bilateral-sigma-rgb", value_name = "X", value_parser = number_bounds::crf_sigma, help_heading = "Dense CRF")]
    bilateral_sigma_rgb: Option<f32>,
    /// Probabilities below this count as this
    #[arg(long = "crf-floor", value_name = "X", value_parser = number_bounds::fraction_above_zero, help_heading = "Dense CRF")]
    floor: Option<f32>,
    /// How filtered values are scaled by the number of pixels that count
    #[arg(long = "crf-normalization", value_enum, value_name = "NAME", help_heading = "Dense CRF")]
    normalization: Option<Normalization>,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Normalization {
    /// Not at all
    None,
    /// Before filtering
    Before,
    /// After filtering: a weighted mean
    After,
    /// By the root before and after, as all presets do
    Symmetric,
}

impl From<Normalization> for CrfNormalization {
    fn from(normalization: Normalization) -> Self {
        match normalization {
            Normalization::None => Self::None,
            Normalization::Before => Self::Before,
            Normalization::After => Self::After,
            Normalization::Symmetric => Self::Symmetric,
        }
    }
}

impl CrfOptions {
    pub(crate) fn params(&self) -> CrfParams {
        let preset = CrfPreset::from(self.preset).params();
        CrfParams {
            iterations: self.iterations.unwrap_or(preset.iterations),
            gaussian_weight: self.gaussian_weight.unwrap_or(preset.gaussian_weight),
            gaussian_sigma: self.gaussian_sigma.unwrap_or(preset.gaussian_sigma),
            bilateral_weight: self.bilateral_weight.unwrap_or(preset.bilateral_weight),
            bilateral_sigma_xy: self.bilateral_sigma_xy.unwrap_or(preset.bilateral_sigma_xy),
            bilateral_sigma_rgb: self.bilateral_sigma_rgb.unwrap_or(preset.bilateral_sigma_rgb),
            floor: self.floor.unwrap_or(preset.floor),
            normalization: self.normalization.map_or(preset.normalization, CrfNormalization::from),
        }
    }
}
