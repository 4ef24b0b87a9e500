//! What a training step takes: views, their geometry and the image's tags. There is no mask here and none can be
//! put in: that is what makes the training weakly supervised.

use candle_core::{Device, Tensor};
use rayon::prelude::*;
use vitpcm_data::Tags;
use vitpcm_data::views::{ViewMaker, Views, merged};
use vitpcm_nets::Normalisation;

use crate::error::Result;

/// A batch of tagged images as two views each. `S` pixels and `G` patches a side, `K + 1` classes.
#[derive(Debug, Clone)]
pub struct TaggedBatch {
    /// First views, normalised, `[B, 3, S, S]`.
    pub first_views: Tensor,
    /// Second views, four a picture in reading order, normalised, `[⌈B/4⌉, 3, S, S]`. Places left in the last picture
    /// are filled from the batch's start, and do not count in the loss.
    pub merged_views: Tensor,
    /// 1 for the classes that are in the image, 0 for the others, `[B, K + 1]`. The background always is.
    pub tags: Tensor,
    /// Takes a first view's map to its second view's grid, `[B, (G/2)², G²]`.
    pub second_from_first: Tensor,
    /// The images' names, for messages.
    pub names: Vec<String>,
}

/// One image on its way into a batch.
#[derive(Debug, Clone)]
pub struct TaggedViews {
    /// Its name, for messages.
    pub name: String,
    /// The classes in it.
    pub tags: Tags,
    /// Its views.
    pub views: Views,
}

impl TaggedBatch {
    /// Puts images together. At least one.
    pub fn new(
        images: &[TaggedViews],
        maker: &ViewMaker,
        normalisation: &Normalisation,
        num_classes: usize,
        device: &Device,
    ) -> Result<Self> {
        let count = images.len();
        let (grid, side) = (maker.grid, maker.first_side());
        let (view_len, matrix_len) = (3 * side * side, grid.pow(4) / 4);
        let mut tags = vec![0f32; count * num_classes];
        for (image, tags) in images.iter().zip(tags.chunks_exact_mut(num_classes)) {
            tags[0] = 1.0;
            image.tags.iter().for_each(|tag| tags[usize::from(tag)] = 1.0);
        }
        let mut first_views = vec![0f32; count * view_len];
        let mut second_from_first = vec![0f32; count * matrix_len];
        let places = first_views
            .par_chunks_exact_mut(view_len)
            .zip(second_from_first.par_chunks_exact_mut(matrix_len));
        places.zip(images).for_each(|((first_view, second_from_first), image)| {
            first_view.copy_from_slice(&image.views.first);
            normalisation.normalise_planes(first_view);
            second_from_first.copy_from_slice(&maker.second_from_first(&image.views.geometry));
        });
        let num_merged = count.div_ceil(4);
        let mut merged_views = vec![0f32; num_merged * view_len];
        merged_views.par_chunks_exact_mut(view_len).enumerate().for_each(|(picture, merged_view)| {
            let quarter = |i: usize| images[(4 * picture + i) % count].views.second.as_slice();
            merged_view.copy_from_slice(&merged([0, 1, 2, 3].map(quarter), maker.second_side()));
            normalisation.normalise_planes(merged_view);
        });
        Ok(Self {
            first_views: Tensor::from_vec(first_views, (count, 3, side, side), device)?,
            merged_views: Tensor::from_vec(merged_views, (num_merged, 3, side, side), device)?,
            tags: Tensor::from_vec(tags, (count, num_classes), device)?,
            second_from_first: Tensor::from_vec(
                second_from_first,
                (count, grid * grid / 4, grid * grid),
                device,
            )?,
            names: images.iter().map(|image| image.name.clone()).collect(),
        })
    }

    /// The same batch in another device's memory.
    pub fn to_device(self, device: &Device) -> Result<Self> {
        Ok(Self {
            first_views: self.first_views.to_device(device)?,
            merged_views: self.merged_views.to_device(device)?,
            tags: self.tags.to_device(device)?,
            second_from_first: self.second_from_first.to_device(device)?,
            names: self.names,
        })
    }

    /// Number of images.
    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// Whether there is no image.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }
}
