//! The connected components of a label map as objects. Small ones can be merged into their neighbours.

use crate::format::Objects;
use std::collections::HashMap;
use vitpcm_masks::{Components, IGNORE, LabelMap};

/// Objects made of components.
#[derive(Clone, Debug)]
pub(crate) struct Grouping {
    pub(crate) label_of_object: Vec<u8>,
    pub(crate) object_of_part: Vec<Option<u32>>,
}

/// Which components form an object; background and 255 form none. Objects are in the order of their first pixels.
pub(crate) fn grouped(parts: &Components, objects: Objects) -> Grouping {
    let mut grouping = Grouping { label_of_object: Vec::new(), object_of_part: Vec::new() };
    let mut object_of_label: [Option<u32>; 256] = [None; 256];
    for &label in &parts.labels {
        let known = match objects {
            Objects::Parts => None,
            Objects::Classes => object_of_label[usize::from(label)],
        };
        let object = (!matches!(label, 0 | IGNORE)).then(|| {
            known.unwrap_or_else(|| {
                grouping.label_of_object.push(label);
                grouping.label_of_object.len() as u32 - 1
            })
        });
        object_of_label[usize::from(label)] = object;
        grouping.object_of_part.push(object);
    }
    grouping
}

/// The map with every component of fewer than `min_area` pixels merged into the neighbour with the longest common
/// border: specks vanish and pinholes close. Pixels of label 255 stay as they are and absorb nothing.
pub fn without_specks(map: &LabelMap, min_area: u32) -> LabelMap {
    let mut map = map.clone();
    // A speck among specks joins the largest of them first, so a few rounds settle everything.
    while let Some(next) = with_specks_given_away(&map, min_area) {
        map = next;
    }
    map
}

/// One round; `None` if nothing changes.
fn with_specks_given_away(map: &LabelMap, min_area: u32) -> Option<LabelMap> {
    let parts = Components::of(map);
    let is_speck = |part: u32| parts.labels[part as usize] != IGNORE && parts.areas[part as usize] < min_area;
    // Border lengths between specks and components that may absorb them: larger ones, or equal ones that come first.
    let mut borders: HashMap<(u32, u32), u32> = HashMap::new();
    let mut count = |one: u32, other: u32| {
        let rank = |part: u32| (parts.areas[part as usize], std::cmp::Reverse(part));
        if one != other && is_speck(one) && parts.labels[other as usize] != IGNORE && rank(other) > rank(one)
        {
            *borders.entry((one, other)).or_default() += 1;
        }
    };
    for (i, &part) in parts.component_of_pixel.iter().enumerate() {
        let right = (i % parts.width + 1 < parts.width).then(|| i + 1);
        let below = (i + parts.width < parts.component_of_pixel.len()).then(|| i + parts.width);
        for neighbour in right.into_iter().chain(below) {
            count(part, parts.component_of_pixel[neighbour]);
            count(parts.component_of_pixel[neighbour], part);
        }
    }
    // Several components of one label count together; the lower label wins a tie.
    let mut by_label: HashMap<u32, [u32; 256]> = HashMap::new();
    for ((speck, other), length) in borders {
        by_label.entry(speck).or_insert([0; 256])[usize::from(parts.labels[other as usize])] += length;
    }
    if by_label.is_empty() {
        return None;
    }
    let mut labels = parts.labels.clone();
    for (speck, lengths) in by_label {
        let longest = (0..=255u8).rev().max_by_key(|&label| lengths[usize::from(label)]).expect("256 labels");
        labels[speck as usize] = longest;
    }
    let pixels = parts.component_of_pixel.iter().map(|&part| labels[part as usize]).collect();
    Some(LabelMap::new(parts.width, parts.height, pixels).expect("the size of the map it came from"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(rows: &[&str]) -> LabelMap {
        let labels = rows.iter().flat_map(|row| row.bytes()).map(|byte| match byte {
            b'?' => IGNORE,
            digit => digit - b'0',
        });
        LabelMap::new(rows[0].len(), rows.len(), labels.collect()).unwrap()
    }

    #[test]
    fn specks_vanish_pinholes_close_and_what_is_large_enough_stays() {
        let before = map(&["000000", "011110", "010110", "011110", "000003", "020033"]);
        let after = map(&["000000", "011110", "011110", "011110", "000003", "000033"]);
        assert_eq!(without_specks(&before, 3), after);
        assert_eq!(without_specks(&before, 1), before);
    }

    #[test]
    fn unsure_pixels_neither_vanish_nor_grow() {
        let before = map(&["0000", "0?10", "0000"]);
        assert_eq!(without_specks(&before, 5), map(&["0000", "0?00", "0000"]));
        let only = map(&["?1?"]);
        assert_eq!(without_specks(&only, 5), only);
    }

    #[test]
    fn specks_among_specks_settle() {
        let noise: Vec<u8> = (0..64u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 29) as u8).collect();
        let clean = without_specks(&LabelMap::new(8, 8, noise).unwrap(), 10);
        assert!(Components::of(&clean).areas.iter().all(|&area| area >= 10));
    }
}
