//! Options of the dense CRF: a preset, and changes of single parameters.

use crate::number_bounds;
use clap::ValueEnum;
use std::str::FromStr;
use vitpcm::{CrfNormalization, CrfParams, CrfPreset};

/// Published settings.
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
    crf_preset: Preset,
    /// Change one setting: iterations, gaussian-weight, gaussian-sigma (pixels), bilateral-weight, bilateral-sigma-xy (pixels),
    /// bilateral-sigma-rgb (grey levels), floor (of probabilities) or normalization (none, before, after, symmetric); may be
    /// repeated
    #[arg(long = "crf-set", value_name = "KEY=VALUE", help_heading = "Dense CRF")]
    crf_set: Vec<Setting>,
}

/// One parameter with its value.
#[derive(Clone, Copy, Debug)]
enum Setting {
    Iterations(usize),
    GaussianWeight(f32),
    GaussianSigma(f32),
    BilateralWeight(f32),
    BilateralSigmaXy(f32),
    BilateralSigmaRgb(f32),
    Floor(f32),
    Normalization(CrfNormalization),
}

impl FromStr for Setting {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (key, value) = text.split_once('=').ok_or("expected KEY=VALUE, such as iterations=5")?;
        let weight = || number_bounds::crf_weight(value);
        let sigma = || number_bounds::crf_sigma(value);
        let setting = match key.trim() {
            "iterations" => number_bounds::crf_iterations(value).map(Setting::Iterations),
            "gaussian-weight" => weight().map(Setting::GaussianWeight),
            "gaussian-sigma" => sigma().map(Setting::GaussianSigma),
            "bilateral-weight" => weight().map(Setting::BilateralWeight),
            "bilateral-sigma-xy" => sigma().map(Setting::BilateralSigmaXy),
            "bilateral-sigma-rgb" => sigma().map(Setting::BilateralSigmaRgb),
            "floor" => number_bounds::fraction_above_zero(value).map(Setting::Floor),
            "normalization" => normalization(value).map(Setting::Normalization),
            _ => return Err(format!("unknown key `{key}`; see --help")),
        };
        setting.map_err(|expected| format!("{key}: {expected}"))
    }
}

fn normalization(name: &str) -> Result<CrfNormalization, String> {
    match name {
        "none" => Ok(CrfNormalization::None),
        "before" => Ok(CrfNormalization::Before),
        "after" => Ok(CrfNormalization::After),
        "symmetric" => Ok(CrfNormalization::Symmetric),
        _ => Err("expected none, before, after or symmetric".to_owned()),
    }
}

impl CrfOptions {
    pub(crate) fn params(&self) -> CrfParams {
        let mut params = CrfPreset::from(self.crf_preset).params();
        for setting in &self.crf_set {
            match *setting {
                Setting::Iterations(value) => params.iterations = value,
                Setting::GaussianWeight(value) => params.gaussian_weight = value,
                Setting::GaussianSigma(value) => params.gaussian_sigma = value,
                Setting::BilateralWeight(value) => params.bilateral_weight = value,
                Setting::BilateralSigmaXy(value) => params.bilateral_sigma_xy = value,
                Setting::BilateralSigmaRgb(value) => params.bilateral_sigma_rgb = value,
                Setting::Floor(value) => params.floor = value,
                Setting::Normalization(value) => params.normalization = value,
            }
        }
        params
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(clap::Parser)]
    struct Cli {
        #[command(flatten)]
        options: CrfOptions,
    }

    #[test]
    fn the_default_is_the_librarys() {
        let cli: Cli = clap::Parser::parse_from(["vitpcm"]);
        assert_eq!(cli.options.params(), CrfPreset::default().params());
    }

    #[test]
    fn a_setting_changes_its_parameter_of_the_preset_alone() {
        let set = ["iterations=5", "bilateral-sigma-rgb=13", "normalization=after"];
        let set = set.map(|text| text.parse().unwrap()).to_vec();
        let expected = CrfParams {
            iterations: 5,
            bilateral_sigma_rgb: 13.0,
            normalization: CrfNormalization::After,
            ..CrfPreset::Deeplab.params()
        };
        assert_eq!(CrfOptions { crf_preset: Preset::Deeplab, crf_set: set }.params(), expected);
    }

    #[test]
    fn every_setting_is_refused_outside_its_bounds_with_its_name() {
        let keys = ["iterations", "gaussian-weight", "gaussian-sigma", "bilateral-weight"];
        let more = ["bilateral-sigma-xy", "bilateral-sigma-rgb", "floor", "normalization"];
        for key in keys.into_iter().chain(more) {
            for value in ["-1", "nan", "inf", "1e308", "", "x"] {
                let refusal = format!("{key}={value}").parse::<Setting>().unwrap_err();
                assert!(refusal.starts_with(&format!("{key}: expected")), "{refusal}");
            }
        }
        assert!("iteration=5".parse::<Setting>().unwrap_err().contains("unknown key `iteration`"));
        assert!("5".parse::<Setting>().unwrap_err().contains("KEY=VALUE"));
    }
}
