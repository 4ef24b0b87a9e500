//! Polygons along pixel edges, as COCO's tools fill them: outlines simplified within an error bound, with shared
//! borders between neighbours, and holes joined to the outer ring for formats without holes.

use crate::filling::num_common_pixels;
use crate::outlines::{Arc, Corner, Ring, rings_of};
use vitpcm_masks::{Components, IGNORE, LabelMap};

/// Minimum IoU of a component's polygons with its pixels by the rule of `filling`, however large the error bound. Other
/// tools fill by other rules; the margin over the promised 0.98 is for them.
const MIN_IOU: f64 = 0.985;

/// Below half a pixel no corner of a staircase can go: the outline is exact.
const EXACT_BELOW: f64 = 0.5;

/// Factor on the error bound of a component that lost too much.
const FINER: f64 = 0.75;

/// The search for short bridges between rings takes time quadratic in this.
const MAX_CORNERS_FOR_SHORT_WAYS: usize = 10_000;

/// One connected component of one class as polygons: over pixel corners, from `(0, 0)` at the image's upper left to
/// `(width, height)` at its lower right, or over pixels (`pixel_polygons`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PolygonPart {
    /// Its number among all components of the map.
    pub(crate) part: u32,
    /// The class.
    pub(crate) label: u8,
    /// Number of pixels.
    pub(crate) area: u32,
    pub(crate) outer: Vec<Corner>,
    pub(crate) holes: Vec<Vec<Corner>>,
}

impl PolygonPart {
    /// Outer ring and holes as one outline that goes to each hole and back the same way. The bridges have no area, so
    /// filling by the even-odd rule gives the component with its holes.
    pub(crate) fn bridged(&self) -> Vec<Corner> {
        let num_corners = self.outer.len() + self.holes.iter().map(Vec::len).sum::<usize>();
        if num_corners > MAX_CORNERS_FOR_SHORT_WAYS {
            return self.bridged_in_a_row();
        }
        let mut outline = self.outer.clone();
        // For each remaining hole: its shortest bridge to the outline, as (squared length, from, index in the hole).
        let nearest = |hole: &[Corner], outline: &[Corner]| {
            let ways = hole
                .iter()
                .enumerate()
                .flat_map(|(j, &to)| outline.iter().map(move |&from| (squared_distance(from, to), from, j)));
            ways.min().expect("rings have corners")
        };
        let mut left: Vec<_> = self.holes.iter().map(|hole| (nearest(hole, &outline), hole)).collect();
        // The shortest bridge first: it crosses no other ring.
        while let Some(next) = (0..left.len()).min_by_key(|&i| left[i].0) {
            let ((_, from, j), hole) = left.swap_remove(next);
            let i = outline.iter().position(|&corner| corner == from).expect("the way starts on the outline");
            let detour: Vec<Corner> = hole[j..].iter().chain(&hole[..=j]).copied().chain([from]).collect();
            outline.splice(i + 1..i + 1, detour);
            for (way, other) in &mut left {
                *way = (*way).min(nearest(other, hole));
            }
        }
        outline
    }

    /// From hole to hole in order and back, if there are too many corners to search for short bridges.
    fn bridged_in_a_row(&self) -> Vec<Corner> {
        let starts: Vec<Corner> =
            [self.outer[0]].into_iter().chain(self.holes.iter().map(|hole| hole[0])).collect();
        // First to the last hole; then, from there, around each hole and back to the previous one.
        let mut outline = starts.clone();
        for (i, hole) in self.holes.iter().enumerate().rev() {
            outline.extend(&hole[1..]);
            outline.extend([hole[0], starts[i]]);
        }
        outline.extend(&self.outer[1..]);
        outline
    }
}

/// All components of all classes except background and 255, in the order of their first pixels. No corner of a true
/// outline is further than `max_error` pixels from its polygon; the remaining corners are true ones.
pub(crate) fn polygon_parts(map: &LabelMap, max_error: f64) -> Vec<PolygonPart> {
    let parts = Components::of(map);
    let is_wanted = |part: u32| !matches!(parts.labels[part as usize], 0 | IGNORE);
    let rings = rings_of(&parts, is_wanted);
    let mut errors = vec![max_error; parts.labels.len()];
    loop {
        let polygons = simplified(&parts, &rings, &errors);
        let iou = |polygon: &PolygonPart| {
            let (common, filled) = num_common_pixels(&parts, polygon);
            common as f64 / (filled + u64::from(polygon.area) - common) as f64
        };
        // A component with error 0 is exact, so this terminates.
        let to_refine: Vec<usize> = polygons
            .iter()
            .filter(|polygon| errors[polygon.part as usize] > 0.0 && iou(polygon) < MIN_IOU)
            .map(|polygon| polygon.part as usize)
            .collect();
        if to_refine.is_empty() {
            return polygons;
        }
        for part in to_refine {
            errors[part] = finer(errors[part]);
        }
    }
}

/// The next smaller error to try.
pub(crate) fn finer(error: f64) -> f64 {
    if error * FINER < EXACT_BELOW { 0.0 } else { error * FINER }
}

fn simplified(parts: &Components, rings: &[Ring], errors: &[f64]) -> Vec<PolygonPart> {
    let mut polygons: Vec<PolygonPart> = Vec::new();
    for ring in rings {
        let part = ring.part as usize;
        let mut outline: Vec<Corner> = Vec::new();
        for arc in &ring.arcs {
            let other = arc.neighbour.map_or(f64::INFINITY, |neighbour| errors[neighbour as usize]);
            let corners = simplified_arc(arc, errors[part].min(other));
            outline.extend(&corners[..corners.len() - 1]);
        }
        match polygons.last_mut().filter(|last| last.part == ring.part) {
            None => {
                let (label, area) = (parts.labels[part], parts.areas[part]);
                polygons.push(PolygonPart {
                    part: ring.part,
                    label,
                    area,
                    outer: outline,
                    holes: Vec::new(),
                });
            }
            // A hole with two remaining corners has no area.
            Some(polygon) if outline.len() > 2 => polygon.holes.push(outline),
            Some(_) => {}
        }
    }
    polygons
}

/// The arc with fewer corners and the same ends. Independent of its direction, so that both sides of a border match.
fn simplified_arc(arc: &Arc, max_error: f64) -> Vec<Corner> {
    let corners = &arc.corners;
    let (start, end) = (corners[0], corners[corners.len() - 1]);
    if max_error <= 0.0 || start != end {
        return simplified_either_way(corners, max_error);
    }
    // A loop needs a second fixed corner: the farthest.
    let farthest = (1..corners.len() - 1)
        .max_by_key(|&i| (squared_distance(start, corners[i]), std::cmp::Reverse(corners[i])))
        .expect("a loop has at least four corners");
    let mut there = simplified_either_way(&corners[..=farthest], max_error);
    let back = simplified_either_way(&corners[farthest..], max_error);
    there.extend(&back[1..]);
    there
}

fn simplified_either_way(corners: &[Corner], max_error: f64) -> Vec<Corner> {
    if max_error <= 0.0 || corners[0] <= corners[corners.len() - 1] {
        return douglas_peucker(corners, max_error);
    }
    let reversed: Vec<Corner> = corners.iter().rev().copied().collect();
    let mut simplified = douglas_peucker(&reversed, max_error);
    simplified.reverse();
    simplified
}

/// The corner farthest from the line between the ends stays if it is further than `max_error`; then both halves
/// likewise.
pub(crate) fn douglas_peucker(corners: &[Corner], max_error: f64) -> Vec<Corner> {
    if max_error <= 0.0 || corners.len() < 3 {
        return corners.to_vec();
    }
    let mut keep = vec![false; corners.len()];
    (keep[0], keep[corners.len() - 1]) = (true, true);
    let mut stack = vec![(0, corners.len() - 1)];
    while let Some((from, to)) = stack.pop() {
        let mut farthest = (max_error * max_error, None);
        for i in from + 1..to {
            let distance = squared_distance_to_segment(corners[i], corners[from], corners[to]);
            if distance > farthest.0 {
                farthest = (distance, Some(i));
            }
        }
        if let Some(i) = farthest.1 {
            keep[i] = true;
            stack.extend([(from, i), (i, to)]);
        }
    }
    corners.iter().zip(keep).filter(|(_, keep)| *keep).map(|(&corner, _)| corner).collect()
}

pub(crate) fn squared_distance(a: Corner, b: Corner) -> i64 {
    let (dx, dy) = (i64::from(a.0 - b.0), i64::from(a.1 - b.1));
    dx * dx + dy * dy
}

fn squared_distance_to_segment(p: Corner, a: Corner, b: Corner) -> f64 {
    let (ab, ap) = ((b.0 - a.0, b.1 - a.1), (p.0 - a.0, p.1 - a.1));
    let [abx, aby, apx, apy] = [ab.0, ab.1, ap.0, ap.1].map(f64::from);
    let length = abx * abx + aby * aby;
    let t = if length > 0.0 { ((apx * abx + apy * aby) / length).clamp(0.0, 1.0) } else { 0.0 };
    (apx - t * abx).powi(2) + (apy - t * aby).powi(2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::filling::for_each_span;

    /// Blobs of several labels that touch, nest and reach the border; the same on every machine.
    fn blobs(side: usize, seed: u32) -> LabelMap {
        let mut state = seed;
        let mut random = |below: usize| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 16) as usize % below
        };
        let mut labels = vec![0u8; side * side];
        for _ in 0..12 {
            let (cx, cy) = (random(side) as f64, random(side) as f64);
            let (rx, ry) = ((2 + random(side / 3)) as f64, (2 + random(side / 3)) as f64);
            let label = [0, 1, 1, 2, 3, 255][random(6)];
            for y in 0..side {
                for x in 0..side {
                    let (u, v) = ((x as f64 + 0.5 - cx) / rx, (y as f64 + 0.5 - cy) / ry);
                    if u * u + v * v < 1.0 {
                        labels[y * side + x] = label;
                    }
                }
            }
        }
        LabelMap::new(side, side, labels).unwrap()
    }

    fn real(ring: &[Corner]) -> Vec<(f64, f64)> {
        ring.iter().map(|&(x, y)| (f64::from(x), f64::from(y))).collect()
    }

    /// Paints polygons, given as lists of rings, over an empty map.
    fn painted(map: &LabelMap, polygons: impl Iterator<Item = (u8, Vec<Vec<(f64, f64)>>)>) -> Vec<u8> {
        let mut labels = vec![0; map.labels().len()];
        for (label, rings) in polygons {
            for_each_span(map.size(), &rings, |y, columns| {
                for x in columns {
                    assert_eq!(labels[y * map.width() + x], 0, "two polygons cover one pixel");
                    labels[y * map.width() + x] = label;
                }
            });
        }
        labels
    }

    fn foreground(map: &LabelMap) -> Vec<u8> {
        map.labels().iter().map(|&label| if label == IGNORE { 0 } else { label }).collect()
    }

    #[test]
    fn without_error_the_polygons_are_the_mask_holes_apart_or_joined() {
        for seed in 0..40 {
            let map = blobs(48, seed);
            let parts = polygon_parts(&map, 0.0);
            let apart = parts.iter().map(|part| {
                let rings = [&part.outer].into_iter().chain(&part.holes);
                (part.label, rings.map(|ring| real(ring)).collect())
            });
            assert_eq!(painted(&map, apart), foreground(&map), "seed {seed}");
            let joined = parts.iter().map(|part| (part.label, vec![real(&part.bridged())]));
            assert_eq!(painted(&map, joined), foreground(&map), "seed {seed}");
            let in_a_row = parts.iter().map(|part| (part.label, vec![real(&part.bridged_in_a_row())]));
            assert_eq!(painted(&map, in_a_row), foreground(&map), "seed {seed}");
        }
    }

    #[test]
    fn simplified_polygons_do_not_overlap_and_every_part_keeps_its_iou() {
        let (mut num_exact, mut num_simplified) = (0, 0);
        for seed in 0..20 {
            let map = blobs(256, seed);
            let parts = Components::of(&map);
            let polygons = polygon_parts(&map, 1.0);
            let num_corners =
                |parts: &[PolygonPart]| parts.iter().map(|part| part.bridged().len()).sum::<usize>();
            num_exact += num_corners(&polygon_parts(&map, 0.0));
            num_simplified += num_corners(&polygons);
            for polygon in &polygons {
                let (common, filled) = num_common_pixels(&parts, polygon);
                let union = filled + u64::from(polygon.area) - common;
                assert!(common as f64 / union as f64 >= MIN_IOU);
            }
            painted(&map, polygons.iter().map(|part| (part.label, vec![real(&part.bridged())])));
        }
        assert!(num_simplified * 2 < num_exact, "{num_simplified} corners of {num_exact}");
    }

    #[test]
    fn a_part_of_ten_thousand_holes_takes_no_time_worth_mentioning() {
        let (width, height) = (300, 300);
        let is_hole = |at: usize| (at % width) % 3 == 1 && (at / width) % 3 == 1;
        let labels = (0..width * height).map(|at| u8::from(!is_hole(at))).collect();
        let map = LabelMap::new(width, height, labels).unwrap();
        let parts = polygon_parts(&map, 1.0);
        assert_eq!((parts.len(), parts[0].holes.len()), (1, 10_000));
        let joined = parts.iter().map(|part| (part.label, vec![real(&part.bridged())]));
        assert_eq!(painted(&map, joined), foreground(&map));
    }

    #[test]
    fn no_corner_is_further_away_than_the_error() {
        let map = blobs(96, 7);
        let rings = rings_of(&Components::of(&map), |_| true);
        for arc in rings.iter().flat_map(|ring| &ring.arcs) {
            let simple = simplified_arc(arc, 2.0);
            for &corner in &arc.corners {
                let to_segment = |ends: &[Corner]| squared_distance_to_segment(corner, ends[0], ends[1]);
                let nearest = simple.windows(2).map(to_segment).fold(f64::INFINITY, f64::min);
                assert!(nearest <= 4.0, "{corner:?} is {} away", nearest.sqrt());
            }
        }
    }
}
