//! What a training step takes: views, their geometry and the image's tags. There is no truth mask here and none can be
//! put in: that is what makes the training weakly supervised. Pseudo-masks, made by an earlier round, can.

use candle_core::{Device, Tensor};
use rayon::prelude::*;
use vitpcm_data::Tags;
use vitpcm_data::views::{ViewMaker, Views, merged};
use vitpcm_nets::Normalisation;
use vitpcm_ops::Uploader;

use crate::error::Result;
use crate::feature_cache::BatchPlace;

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
    /// Pseudo-masks on the first views' grids, as shares of the classes, `[B, G², K + 1]`; zeros where an image has none.
    /// Only in a second round of training.
    pub pseudo_masks: Option<Tensor>,
    /// The images' names, for messages.
    pub names: Vec<String>,
    /// Where its frozen features are kept; `None` where its views are drawn only once.
    pub place: Option<BatchPlace>,
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
        let has_masks = images.iter().any(|image| image.views.pseudo_mask.is_some());
        let pseudo_masks = has_masks.then(|| {
            let rows_len = grid * grid * num_classes;
            let mut rows = vec![0f32; count * rows_len];
            for (image, rows) in images.iter().zip(rows.chunks_exact_mut(rows_len)) {
                image.views.pseudo_mask.iter().for_each(|shares| shares.write_rows(num_classes, rows));
            }
            Tensor::from_vec(rows, (count, grid * grid, num_classes), device)
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
            pseudo_masks: pseudo_masks.transpose()?,
            names: images.iter().map(|image| image.name.clone()).collect(),
            place: None,
        })
    }

    /// The same batch in another device's memory.
    pub fn uploaded(self, uploader: &mut Uploader) -> Result<Self> {
        let mut upload = |tensor: &Tensor| uploader.upload(tensor);
        Ok(Self {
            first_views: upload(&self.first_views)?,
            merged_views: upload(&self.merged_views)?,
            tags: upload(&self.tags)?,
            second_from_first: upload(&self.second_from_first)?,
            pseudo_masks: self.pseudo_masks.as_ref().map(upload).transpose()?,
            names: self.names,
            place: self.place,
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
