//! Outlines along pixel edges: every connected component of a label map as closed rings over pixel corners, outer ring
//! first, then its holes. Filling them gives back exactly the pixels.

use vitpcm_masks::Components;

/// A pixel corner: `(x, y)` is the upper left corner of pixel `(x, y)`.
pub(crate) type Corner = (i32, i32);

/// A section of outline between two fixed corners, along which the same two components meet.
#[derive(Clone, Debug)]
pub(crate) struct Arc {
    /// Corners where the outline turns, including both ends.
    pub(crate) corners: Vec<Corner>,
    /// The component on the other side; `None` at the image's border.
    pub(crate) neighbour: Option<u32>,
}

/// A closed outline with the component on its right, y pointing down: outer rings run clockwise, holes
/// counterclockwise.
#[derive(Clone, Debug)]
pub(crate) struct Ring {
    pub(crate) part: u32,
    /// Each starts where the previous one ends. A ring that meets no third component is a single closed arc.
    pub(crate) arcs: Vec<Arc>,
}

/// A step along an outline: a corner and a direction, an index into `STEPS`.
type Edge = (Corner, usize);

/// Right, down, left, up.
const STEPS: [Corner; 4] = [(1, 0), (0, 1), (-1, 0), (0, -1)];
/// The pixel ahead on the right and on the left of a corner, for each direction.
const RIGHT_AHEAD: [Corner; 4] = [(0, 0), (-1, 0), (-1, -1), (0, -1)];
const LEFT_AHEAD: [Corner; 4] = [(0, -1), (0, 0), (-1, 0), (-1, -1)];

/// All rings of all components that are `is_wanted`, in the order of the components' first pixels; a component's outer
/// ring comes first.
pub(crate) fn rings_of(parts: &Components, is_wanted: impl Fn(u32) -> bool) -> Vec<Ring> {
    let outlines = outlines_of(parts, is_wanted);
    outlines.into_iter().map(|(part, edges)| Ring { part, arcs: arcs_of(parts, &edges) }).collect()
}

/// The same rings as chains of the component's own outermost pixels, in the same order. Neighbours in a chain touch at
/// least at a corner; in thin parts the chain goes there and back the same way.
pub(crate) fn pixel_chains_of(
    parts: &Components,
    is_wanted: impl Fn(u32) -> bool,
) -> Vec<(u32, Vec<Corner>)> {
    let chain = |edges: Vec<Edge>| {
        let mut pixels: Vec<Corner> =
            edges.iter().map(|&(at, direction)| offset(at, RIGHT_AHEAD[direction])).collect();
        pixels.dedup();
        if pixels.len() > 1 && pixels.first() == pixels.last() {
            pixels.pop();
        }
        pixels
    };
    outlines_of(parts, is_wanted).into_iter().map(|(part, edges)| (part, chain(edges))).collect()
}

fn outlines_of(parts: &Components, is_wanted: impl Fn(u32) -> bool) -> Vec<(u32, Vec<Edge>)> {
    let mut outlines = Vec::new();
    // Every outline passes some pixel's upper edge from left to right, where it is found.
    let mut is_seen = vec![false; parts.component_of_pixel.len()];
    for y in 0..parts.height as i32 {
        for x in 0..parts.width as i32 {
            let at = y as usize * parts.width + x as usize;
            let part = parts.component_of_pixel[at];
            if !is_seen[at] && parts.at(x, y - 1) != Some(part) && is_wanted(part) {
                outlines.push((part, follow(parts, part, (x, y), &mut is_seen)));
            }
        }
    }
    outlines.sort_by_key(|(part, _)| *part);
    outlines
}

/// Follows a component's outline once around, starting to the right from the upper left corner of one of its pixels.
fn follow(parts: &Components, part: u32, start: Corner, is_seen: &mut [bool]) -> Vec<Edge> {
    let is_own = |corner: Corner, ahead: Corner| {
        let (x, y) = offset(corner, ahead);
        parts.at(x, y) == Some(part)
    };
    let mut edges = Vec::new();
    let (mut at, mut direction) = (start, 0);
    loop {
        if direction == 0 {
            is_seen[at.1 as usize * parts.width + at.0 as usize] = true;
        }
        edges.push((at, direction));
        at = offset(at, STEPS[direction]);
        // Components are 4-connected, so at a corner the outline first goes around its own pixel.
        if !is_own(at, RIGHT_AHEAD[direction]) {
            direction = (direction + 1) % 4;
        } else if is_own(at, LEFT_AHEAD[direction]) {
            direction = (direction + 3) % 4;
        }
        if (at, direction) == (start, 0) {
            return edges;
        }
    }
}

fn offset(corner: Corner, by: Corner) -> Corner {
    (corner.0 + by.0, corner.1 + by.1)
}

/// Cuts an outline at its fixed corners. One without any starts at its smallest corner, so that both sides of a border
/// start at the same place.
fn arcs_of(parts: &Components, edges: &[Edge]) -> Vec<Arc> {
    let num_edges = edges.len();
    let turns = |i: usize| edges[i].1 != edges[(i + num_edges - 1) % num_edges].1;
    let first_fixed = (0..num_edges).find(|&i| is_fixed(parts, edges[i].0));
    let least = || (0..num_edges).filter(|&i| turns(i)).min_by_key(|&i| edges[i].0).expect("outlines turn");
    let start = first_fixed.unwrap_or_else(least);
    let mut arcs: Vec<Arc> = Vec::new();
    for i in (start..num_edges).chain(0..start) {
        let (at, direction) = edges[i];
        let is_fixed = is_fixed(parts, at);
        if let Some(arc) = arcs.last_mut().filter(|_| turns(i) || is_fixed) {
            arc.corners.push(at);
        }
        if i == start || is_fixed {
            let (x, y) = offset(at, LEFT_AHEAD[direction]);
            arcs.push(Arc { corners: vec![at], neighbour: parts.at(x, y) });
        }
    }
    arcs.last_mut().expect("it begins somewhere").corners.push(edges[start].0);
    arcs
}

/// Whether a corner must not move: three components meet there, two meet twice, or it is the image's corner.
fn is_fixed(parts: &Components, (x, y): Corner) -> bool {
    let [a, b, c, d] = [(x - 1, y - 1), (x, y - 1), (x, y), (x - 1, y)].map(|(x, y)| parts.at(x, y));
    let num_changes = [a != b, b != c, c != d, d != a].into_iter().filter(|&change| change).count();
    let num_outside = [a, b, c, d].iter().filter(|part| part.is_none()).count();
    num_changes > 2 || num_outside == 3
}

#[cfg(test)]
mod tests {
    use super::*;
    use vitpcm_masks::LabelMap;

    fn rings(width: usize, labels: &[u8]) -> Vec<Vec<Corner>> {
        let map = LabelMap::new(width, labels.len() / width, labels.to_vec()).unwrap();
        let parts = Components::of(&map);
        let rings = rings_of(&parts, |part| parts.labels[part as usize] != 0);
        let corners = |ring: Ring| {
            let arcs = ring.arcs.iter().flat_map(|arc| &arc.corners[..arc.corners.len() - 1]);
            arcs.copied().collect()
        };
        rings.into_iter().map(corners).collect()
    }

    #[test]
    fn a_pixel_has_four_corners_and_a_hole_runs_the_other_way() {
        assert_eq!(rings(3, &[0, 0, 0, 0, 1, 0, 0, 0, 0]), [[(1, 1), (2, 1), (2, 2), (1, 2)]]);
        let frame = rings(5, &[0, 0, 0, 0, 0, 0, 1, 1, 1, 0, 0, 1, 0, 1, 0, 0, 1, 1, 1, 0, 0, 0, 0, 0, 0]);
        assert_eq!(frame, [[(1, 1), (4, 1), (4, 4), (1, 4)], [(2, 2), (2, 3), (3, 3), (3, 2)]]);
    }

    #[test]
    fn corners_that_touch_are_two_rings_and_third_parts_fix_corners() {
        assert_eq!(rings(2, &[1, 0, 0, 1]).len(), 2);
        // Where 1, 2 and the image's border meet, both keep a corner although neither turns there.
        let halves = rings(2, &[1, 2, 1, 2]);
        assert_eq!(halves, [[(0, 0), (1, 0), (1, 2), (0, 2)], [(1, 0), (2, 0), (2, 2), (1, 2)]]);
    }
}
