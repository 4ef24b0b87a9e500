//! The tags of one image: which classes it shows, not where.

use vitpcm_masks::IGNORE;

/// A sorted set of class indices, each from 1 to 254. Background (0) is always present and is no tag.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, serde::Serialize)]
pub struct Tags(Vec<u8>);

impl Tags {
    /// Number of tags.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether the image is a negative, without any of the classes.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a class is in the image.
    pub fn contains(&self, class: u8) -> bool {
        self.0.binary_search(&class).is_ok()
    }

    /// The class indices in ascending order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = u8> + '_ {
        self.0.iter().copied()
    }

    /// The class indices in ascending order.
    pub fn as_slice(&self) -> &[u8] {
        &self.0
    }
}

/// Collects class indices in any order; duplicates, 0 (background) and 255 (ignore) are dropped.
impl FromIterator<u8> for Tags {
    fn from_iter<I: IntoIterator<Item = u8>>(indices: I) -> Self {
        let mut sorted: Vec<u8> =
            indices.into_iter().filter(|&index| index != 0 && index != IGNORE).collect();
        sorted.sort_unstable();
        sorted.dedup();
        Tags(sorted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_a_sorted_set_without_background_and_ignore() {
        let tags: Tags = [7, 0, 3, 255, 7].into_iter().collect();
        assert_eq!(tags.as_slice(), [3, 7]);
        assert!(tags.contains(7) && !tags.contains(0));
    }
}
