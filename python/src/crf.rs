//! The dense CRF: its settings, and refinement of score maps by an image.

use crate::arrays;
use crate::{UsageError, raised};
use pyo3::prelude::*;
use vitpcm::{CrfParams, CrfPreset, refined_label_map, refined_scores};
use vitpcm_masks::resampling::Alignment;

/// Settings of the dense CRF: a preset, and every parameter on top of it.
///
/// Presets: "vit-pcm" (the default), "deeplab" and "irn", as papers report them.
///
/// >>> import vitpcm
/// >>> vitpcm.Crf("irn", iterations=5)
/// Crf(iterations=5, gaussian_weight=3, gaussian_sigma=3, bilateral_weight=10, bilateral_sigma_xy=80, bilateral_sigma_rgb=13, floor=0.00001)
#[pyclass(frozen, module = "vitpcm", from_py_object)]
#[derive(Clone, Copy)]
pub(crate) struct Crf(pub(crate) CrfParams);

#[pymethods]
impl Crf {
    #[new]
    #[pyo3(signature = (preset = "vit-pcm", *, iterations = None, gaussian_weight = None, gaussian_sigma = None,
                        bilateral_weight = None, bilateral_sigma_xy = None, bilateral_sigma_rgb = None, floor = None))]
    #[allow(clippy::too_many_arguments)] // keywords in Python
    fn new(
        preset: &str,
        iterations: Option<usize>,
        gaussian_weight: Option<f32>,
        gaussian_sigma: Option<f32>,
        bilateral_weight: Option<f32>,
        bilateral_sigma_xy: Option<f32>,
        bilateral_sigma_rgb: Option<f32>,
        floor: Option<f32>,
    ) -> PyResult<Self> {
        let found = CrfPreset::NAMED.into_iter().find(|(name, _)| *name == preset);
        let known = || CrfPreset::NAMED.map(|(name, _)| name).join(", ");
        let (_, found) = found
            .ok_or_else(|| UsageError::new_err(format!("preset `{preset}`: expected one of {}", known())))?;
        let preset = found.params();
        Ok(Crf(CrfParams {
            iterations: iterations.unwrap_or(preset.iterations),
            gaussian_weight: gaussian_weight.unwrap_or(preset.gaussian_weight),
            gaussian_sigma: gaussian_sigma.unwrap_or(preset.gaussian_sigma),
            bilateral_weight: bilateral_weight.unwrap_or(preset.bilateral_weight),
            bilateral_sigma_xy: bilateral_sigma_xy.unwrap_or(preset.bilateral_sigma_xy),
            bilateral_sigma_rgb: bilateral_sigma_rgb.unwrap_or(preset.bilateral_sigma_rgb),
            floor: floor.unwrap_or(preset.floor),
            normalization: preset.normalization,
        }))
    }

    fn __repr__(&self) -> String {
        let CrfParams {
            iterations,
            gaussian_weight,
            gaussian_sigma,
            bilateral_weight,
            bilateral_sigma_xy,
            bilateral_sigma_rgb,
            floor,
            normalization: _,
        } = self.0;
        format!(
            "Crf(iterations={iterations}, gaussian_weight={gaussian_weight}, gaussian_sigma={gaussian_sigma}, \
             bilateral_weight={bilateral_weight}, bilateral_sigma_xy={bilateral_sigma_xy}, \
             bilateral_sigma_rgb={bilateral_sigma_rgb}, floor={floor})"
        )
    }
}

/// Refine class scores along the edges of an image by a dense CRF.
///
/// scores: floats of shape (classes, rows, columns), probabilities, class 0 the background; resized bilinearly where rows and
/// columns are not the image's. image: uint8 of shape (height, width, 3).
///
/// Returns the mask, uint8 of shape (height, width); with marginals=True instead the probabilities, float32 of shape (classes,
/// height, width). Classes whose scores are 0 everywhere take no part.
///
/// >>> import numpy as np, vitpcm
/// >>> image = np.full((48, 64, 3), 40, np.uint8)
/// >>> image[:, 30:] = 200                               # the edge is at column 30
/// >>> scores = np.full((2, 6, 8), 0.2, np.float32)
/// >>> scores[0, :, :4] = scores[1, :, 4:] = 0.8         # the scores change at column 32
/// >>> mask = vitpcm.refine(scores, image, vitpcm.Crf(bilateral_sigma_rgb=20))
/// >>> int(mask[0, 29]), int(mask[0, 30])
/// (0, 1)
#[pyfunction]
#[pyo3(signature = (scores, image, crf = None, *, alignment = "half-pixel", marginals = false))]
pub(crate) fn refine<'py>(
    scores: &Bound<'py, PyAny>,
    image: &Bound<'py, PyAny>,
    crf: Option<Crf>,
    alignment: &str,
    marginals: bool,
) -> PyResult<Bound<'py, PyAny>> {
    let py = scores.py();
    let alignment = Alignment::from_name(alignment).ok_or_else(|| {
        UsageError::new_err(format!("alignment `{alignment}`: expected half-pixel or align-corners"))
    })?;
    let params = crf.map_or_else(CrfParams::default, |crf| crf.0);
    let (scores, image) = (arrays::score_map(scores)?, arrays::rgb_image(image)?);
    if marginals {
        let refined = py.detach(|| refined_scores(&scores, &image, alignment, &params)).map_err(raised)?;
        return Ok(arrays::score_array(py, refined).into_any());
    }
    let refined = py.detach(|| refined_label_map(&scores, &image, alignment, &params)).map_err(raised)?;
    Ok(arrays::mask_array(py, refined).into_any())
}
