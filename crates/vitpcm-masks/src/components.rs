//! The connected components of a label map (4-connected).

use crate::LabelMap;

/// The components of a label map, numbered by their first pixel in row-major order.
#[derive(Clone, Debug)]
pub struct Components {
    /// Width of the map.
    pub width: usize,
    /// Height of the map.
    pub height: usize,
    /// The component of each pixel.
    pub component_of_pixel: Vec<u32>,
    /// The label of each component.
    pub labels: Vec<u8>,
    /// Number of pixels of each component.
    pub areas: Vec<u32>,
}

impl Components {
    /// Finds them.
    pub fn of(map: &LabelMap) -> Components {
        let (width, height) = map.size();
        let labels = map.labels();
        // Union-find over provisional numbers; a root is its own parent and the smallest of its set.
        let mut parent: Vec<u32> = Vec::new();
        let mut component_of_pixel = vec![0u32; labels.len()];
        for i in 0..labels.len() {
            let left = (i % width > 0 && labels[i - 1] == labels[i]).then(|| component_of_pixel[i - 1]);
            let above = (i >= width && labels[i - width] == labels[i]).then(|| component_of_pixel[i - width]);
            component_of_pixel[i] = match (left, above) {
                (Some(left), Some(above)) => join(&mut parent, left, above),
                (Some(one), None) | (None, Some(one)) => one,
                (None, None) => {
                    parent.push(parent.len() as u32);
                    parent.len() as u32 - 1
                }
            };
        }
        let mut components =
            Components { width, height, component_of_pixel, labels: Vec::new(), areas: Vec::new() };
        let mut number_of_root = vec![u32::MAX; parent.len()];
        for (component, &label) in components.component_of_pixel.iter_mut().zip(labels) {
            let number = &mut number_of_root[root(&mut parent, *component) as usize];
            if *number == u32::MAX {
                *number = components.labels.len() as u32;
                components.labels.push(label);
                components.areas.push(0);
            }
            *component = *number;
            components.areas[*number as usize] += 1;
        }
        components
    }

    /// The component of a pixel; `None` outside the map.
    pub fn at(&self, x: i32, y: i32) -> Option<u32> {
        let inside = x >= 0 && y >= 0 && (x as usize) < self.width && (y as usize) < self.height;
        inside.then(|| self.component_of_pixel[y as usize * self.width + x as usize])
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

#[cfg(test)]
mod tests {
    use super::*;

    fn map(rows: &[&str]) -> LabelMap {
        let labels = rows.iter().flat_map(|row| row.bytes()).map(|digit| digit - b'0');
        LabelMap::new(rows[0].len(), rows.len(), labels.collect()).unwrap()
    }

    #[test]
    fn pixels_that_touch_at_a_corner_only_are_two_components() {
        let components = Components::of(&map(&["1001", "0110", "1001"]));
        assert_eq!(components.labels, [1, 0, 1, 0, 1, 0, 1, 0, 1]);
        assert_eq!(components.areas, [1, 2, 1, 1, 2, 1, 1, 2, 1]);
        let spiral = Components::of(&map(&["11111", "00001", "11101", "10001", "11111"]));
        assert_eq!((spiral.labels, spiral.areas), (vec![1, 0], vec![17, 8]));
    }
}
