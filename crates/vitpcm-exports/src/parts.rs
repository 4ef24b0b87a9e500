//! The connected components of a label map (4-connected). Small ones can be merged into their neighbours.

use crate::format::Objects;
use std::collections::HashMap;
use vitpcm_masks::{IGNORE, LabelMap};

/// The components of a label map, numbered by their first pixel in row-major order.
#[derive(Clone, Debug)]
pub(crate) struct Parts {
    pub(crate) width: usize,
    pub(crate) height: usize,
    /// The component of each pixel.
    pub(crate) part_of_pixel: Vec<u32>,
    /// The label of each component.
    pub(crate) labels: Vec<u8>,
    /// Number of pixels of each component.
    pub(crate) areas: Vec<u32>,
}

/// Objects made of components.
#[derive(Clone, Debug)]
pub(crate) struct Grouping {
    pub(crate) label_of_object: Vec<u8>,
    pub(crate) object_of_part: Vec<Option<u32>>,
}

impl Parts {
    pub(crate) fn of(map: &LabelMap) -> Parts {
        let (width, height) = map.size();
        let labels = map.labels();
        // Union-find over provisional numbers; a root is its own parent and the smallest of its set.
        let mut parent: Vec<u32> = Vec::new();
        let mut part_of_pixel = vec![0u32; labels.len()];
        for i in 0..labels.len() {
            let left = (i % width > 0 && labels[i - 1] == labels[i]).then(|| part_of_pixel[i - 1]);
            let above = (i >= width && labels[i - width] == labels[i]).then(|| part_of_pixel[i - width]);
            part_of_pixel[i] = match (left, above) {
                (Some(left), Some(above)) => join(&mut parent, left, above),
                (Some(one), None) | (None, Some(one)) => one,
                (None, None) => {
                    parent.push(parent.len() as u32);
                    parent.len() as u32 - 1
                }
            };
        }
        let mut parts = Parts { width, height, part_of_pixel, labels: Vec::new(), areas: Vec::new() };
        let mut number_of_root = vec![u32::MAX; parent.len()];
        for (part, &label) in parts.part_of_pixel.iter_mut().zip(labels) {
            let number = &mut number_of_root[root(&mut parent, *part) as usize];
            if *number == u32::MAX {
                *number = parts.labels.len() as u32;
                parts.labels.push(label);
                parts.areas.push(0);
            }
            *part = *number;
            parts.areas[*number as usize] += 1;
        }
        parts
    }

    /// Which components form an object; background and 255 form none. Objects are in the order of their first pixels.
    pub(crate) fn grouped(&self, objects: Objects) -> Grouping {
        let mut grouping = Grouping { label_of_object: Vec::new(), object_of_part: Vec::new() };
        let mut object_of_label: [Option<u32>; 256] = [None; 256];
        for &label in &self.labels {
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

    /// The component of a pixel; `None` outside the map.
    pub(crate) fn at(&self, x: i32, y: i32) -> Option<u32> {
        let inside = x >= 0 && y >= 0 && (x as usize) < self.width && (y as usize) < self.height;
        inside.then(|| self.part_of_pixel[y as usize * self.width + x as usize])
    }
}

fn root(parent: &mut [u32], mut at: u32) -> u32 {
    while parent[at as usize] != at {
        // Path halving keeps the trees flat.
        parent[at as usize] = parent[parent[at as usize] as usize];
        at = parent[at as usize];
    }
    at
}

fn join(parent: &mut [u32], one: u32, other: u32) -> u32 {
    let (one, other) = (root(parent, one), root(parent, other));
    let (first, second) = (one.min(other), one.max(other));
    parent[second as usize] = first;
    first
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
    let parts = Parts::of(map);
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
    for (i, &part) in parts.part_of_pixel.iter().enumerate() {
        let right = (i % parts.width + 1 < parts.width).then(|| i + 1);
        let below = (i + parts.width < parts.part_of_pixel.len()).then(|| i + parts.width);
        for neighbour in right.into_iter().chain(below) {
            count(part, parts.part_of_pixel[neighbour]);
            count(parts.part_of_pixel[neighbour], part);
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
    let pixels = parts.part_of_pixel.iter().map(|&part| labels[part as usize]).collect();
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
    fn pixels_that_touch_at_a_corner_only_are_two_parts() {
        let parts = Parts::of(&map(&["1001", "0110", "1001"]));
        assert_eq!(parts.labels, [1, 0, 1, 0, 1, 0, 1, 0, 1]);
        assert_eq!(parts.areas, [1, 2, 1, 1, 2, 1, 1, 2, 1]);
        let spiral = Parts::of(&map(&["11111", "00001", "11101", "10001", "11111"]));
        assert_eq!((spiral.labels, spiral.areas), (vec![1, 0], vec![17, 8]));
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
        assert!(Parts::of(&clean).areas.iter().all(|&area| area >= 10));
    }
}
