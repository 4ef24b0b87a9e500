//! Morphological opening of a label's pixels with a disc.

use crate::LabelMap;

impl LabelMap {
    /// Morphological opening with a disc: the pixels of this label that discs of this radius, lying within the label,
    /// cover. Areas beyond the map's edge do not restrict a disc. Radius 0 gives all pixels; a radius above 65,534 is
    /// clamped.
    pub fn wide_areas(&self, label: u8, radius: f64) -> Vec<bool> {
        let outside: Vec<bool> = self.labels().iter().map(|&other| other != label).collect();
        let centres: Vec<bool> = near(&outside, self.width(), radius).iter().map(|&near| !near).collect();
        near(&centres, self.width(), radius)
    }
}

/// Whether a pixel of `set` is within `radius`, measured between pixel centres.
fn near(set: &[bool], width: usize, radius: f64) -> Vec<bool> {
    let radius = radius.min(f64::from(u16::MAX - 1));
    let distances = distances_in_columns(set, width);
    let mut result = Vec::with_capacity(set.len());
    let mut changes = vec![0i32; width + 1];
    for row in distances.chunks_exact(width) {
        changes.fill(0);
        // A pixel this far above or below reaches this far to both sides.
        for (x, &distance) in row.iter().enumerate().filter(|(_, distance)| f64::from(**distance) <= radius) {
            let reach = (radius * radius - f64::from(distance).powi(2)).sqrt().min(width as f64) as usize;
            changes[x.saturating_sub(reach)] += 1;
            changes[(x + reach + 1).min(width)] -= 1;
        }
        result.extend(changes[..width].iter().scan(0, |reached_by, change| {
            *reached_by += change;
            Some(*reached_by > 0)
        }));
    }
    result
}

/// Distance to the next pixel of `set` in the same column; `u16::MAX` if it is farther or there is none.
fn distances_in_columns(set: &[bool], width: usize) -> Vec<u16> {
    let mut distances: Vec<u16> = set.iter().map(|&inside| if inside { 0 } else { u16::MAX }).collect();
    for i in width..distances.len() {
        distances[i] = distances[i].min(distances[i - width].saturating_add(1));
    }
    for i in (0..distances.len().saturating_sub(width)).rev() {
        distances[i] = distances[i].min(distances[i + width].saturating_add(1));
    }
    distances
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Straight from the definition: every disc, every pixel.
    fn covered_by_discs(set: &[bool], width: usize, radius: f64) -> Vec<bool> {
        let within = |a: usize, b: usize| {
            let (dx, dy) = ((a % width).abs_diff(b % width), (a / width).abs_diff(b / width));
            (dx * dx + dy * dy) as f64 <= radius * radius
        };
        let pixels = 0..set.len();
        let is_centre = |c: usize| pixels.clone().all(|i| set[i] || !within(c, i));
        let centres: Vec<usize> = pixels.clone().filter(|&c| is_centre(c)).collect();
        pixels.clone().map(|i| centres.iter().any(|&c| within(c, i))).collect()
    }

    #[test]
    fn wide_areas_are_what_discs_within_cover() {
        let (width, height) = (23, 17);
        let set: Vec<bool> = (0..width * height)
            .map(|i| {
                let (x, y) = ((i % width) as f64, (i / width) as f64);
                (x * 0.45).sin() + (y * 0.6 + x * 0.1).cos() > -0.4
            })
            .collect();
        let map =
            LabelMap::new(width, height, set.iter().map(|&inside| 7 * u8::from(inside)).collect()).unwrap();
        assert_eq!(map.wide_areas(7, 0.0), set);
        for radius in [1.0, 1.5, 2.9, 4.0, 40.0] {
            let wide = map.wide_areas(7, radius);
            assert_eq!(wide, covered_by_discs(&set, width, radius), "radius {radius}");
        }
    }

    #[test]
    fn a_label_without_edge_is_wide_however_large_the_disc() {
        let map = LabelMap::new(4, 3, vec![1; 12]).unwrap();
        assert_eq!(map.wide_areas(1, 1e300), [true; 12]);
        assert_eq!(map.wide_areas(0, 0.0), [false; 12]);
    }
}
