//! Chooses the images that training holds out by default to measure the model: stratified by tags, and determined by
//! names, tags and seed.

use crate::TaggedImage;
use crate::split::unit_hash;
use std::collections::BTreeMap;

/// With fewer images, none are held out.
pub const LEAST_IMAGES: usize = 100;
/// Of a class with fewer images, none is held out: they are all needed for training.
const LEAST_OF_CLASS: usize = 15;
/// Minimum for any other class: with fewer, nothing could be said about it.
const LEAST_HELD_OUT: usize = 3;

/// The names of the held-out images, in the order of `images`: about a fraction `share` of every class; none with fewer
/// than [`LEAST_IMAGES`].
///
/// Each image counts for its rarest tag; images without tags form a group of their own.
pub fn choose_held_out(images: &[TaggedImage], share: f64, seed: u64) -> Vec<String> {
    if images.len() < LEAST_IMAGES || share <= 0.0 {
        return Vec::new();
    }
    let mut class_sizes = [0usize; 256];
    for tag in images.iter().flat_map(|image| image.tags.iter()) {
        class_sizes[usize::from(tag)] += 1;
    }
    let mut groups: BTreeMap<Option<u8>, Vec<usize>> = BTreeMap::new();
    for (index, image) in images.iter().enumerate() {
        let rarest = image.tags.iter().min_by_key(|&tag| class_sizes[usize::from(tag)]);
        groups.entry(rarest).or_default().push(index);
    }
    let mut chosen = Vec::new();
    for (rarest, mut group) in groups {
        if rarest.is_some_and(|tag| class_sizes[usize::from(tag)] < LEAST_OF_CLASS) {
            continue;
        }
        let least = if group.len() < LEAST_OF_CLASS { 0 } else { LEAST_HELD_OUT };
        let count = ((share * group.len() as f64).round() as usize).max(least);
        let place = |index: usize| unit_hash(&images[index].name, seed);
        group.sort_by(|&a, &b| place(a).total_cmp(&place(b)).then(a.cmp(&b)));
        chosen.extend(group.into_iter().take(count));
    }
    chosen.sort_unstable();
    chosen.into_iter().map(|index| images[index].name.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    /// Images with tags from a function.
    fn images(count: usize, tags: impl Fn(usize) -> Vec<u8>) -> Vec<TaggedImage> {
        let image = |i: usize| TaggedImage {
            name: format!("{i}.jpg"),
            path: PathBuf::new(),
            tags: tags(i).into_iter().collect(),
        };
        (0..count).map(image).collect()
    }

    fn num_with(images: &[TaggedImage], chosen: &[String], tag: u8) -> usize {
        let is_chosen = |image: &&TaggedImage| chosen.contains(&image.name);
        images.iter().filter(is_chosen).filter(|image| image.tags.contains(tag)).count()
    }

    #[test]
    fn a_tenth_of_every_class_is_set_aside_and_rare_classes_keep_their_images() {
        // Class 1 is everywhere, 2 in every fifth image, 3 in 20, 4 in 10; some have no tag.
        let images = images(200, |i| match i {
            0..20 => vec![1, 3],
            20..30 => vec![1, 4],
            30..40 => vec![],
            _ if i % 4 == 0 => vec![1, 2],
            _ => vec![1],
        });
        let chosen = choose_held_out(&images, 0.1, 0);
        assert_eq!([2, 3, 4].map(|tag| num_with(&images, &chosen, tag)), [4, 3, 0]);
        assert_eq!(chosen.len(), 4 + 3 + 12 + 1);
    }

    #[test]
    fn the_choice_is_the_seeds_and_few_images_are_all_trained_on() {
        let images = images(300, |i| vec![1 + (i % 3) as u8]);
        let chosen = choose_held_out(&images, 0.1, 7);
        assert_eq!((chosen.len(), &chosen), (30, &choose_held_out(&images, 0.1, 7)));
        assert_ne!(chosen, choose_held_out(&images, 0.1, 8));
        assert!(choose_held_out(&images, 0.0, 7).is_empty());
        assert!(choose_held_out(&images[..LEAST_IMAGES - 1], 0.1, 7).is_empty());
    }
}
