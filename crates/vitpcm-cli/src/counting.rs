//! Counts for people: `1 image`, `12 images`, `1 234 classes`.

use crate::table::grouped;

/// A count with its noun in the singular or plural.
pub fn counted(count: usize, one: &str, several: &str) -> String {
    format!("{} {}", grouped(count as u64), if count == 1 { one } else { several })
}

/// A number of images.
pub fn images(count: usize) -> String {
    counted(count, "image", "images")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_singular_and_every_other_count_is_plural() {
        assert_eq!(counted(1, "class", "classes"), "1 class");
        assert_eq!([0, 1, 1234].map(images), ["0 images", "1 image", "1 234 images"]);
    }
}
