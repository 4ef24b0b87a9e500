//! A score map's confidence in its mask as one number, to sort images for review.

use crate::ScoreMap;

impl ScoreMap {
    /// The mean margin (best score minus second best) over the foreground cells, or over all cells if there are none.
    /// From 0 (ties everywhere) to 1.
    ///
    /// It only measures the map: a network that is confidently wrong scores high.
    pub fn confidence(&self) -> f32 {
        let num_cells = self.width() * self.height();
        let (mut best, mut second, mut label) =
            (self.plane(0).to_vec(), vec![0.0f32; num_cells], vec![0; num_cells]);
        for class in 1..self.num_classes() {
            for (cell, &score) in self.plane(class).iter().enumerate() {
                if score > best[cell] {
                    (second[cell], best[cell], label[cell]) = (best[cell], score, class);
                } else if score > second[cell] {
                    second[cell] = score;
                }
            }
        }
        let margin = |cell: usize| f64::from((best[cell] - second[cell]).clamp(0.0, 1.0));
        let mean = |cells: &mut dyn Iterator<Item = usize>| {
            let (count, sum) =
                cells.fold((0usize, 0.0), |(count, sum), cell| (count + 1, sum + margin(cell)));
            (count > 0).then(|| (sum / count as f64) as f32)
        };
        let of_foreground = mean(&mut (0..num_cells).filter(|&cell| label[cell] != 0));
        of_foreground.or_else(|| mean(&mut (0..num_cells))).unwrap_or(0.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_cells_of_the_foreground_count_where_there_are_any() {
        // Cells: background by 0.8, class 1 by 0.2 over background, class 2 by 0.4 over class 1.
        let scores = vec![0.9, 0.4, 0.1, 0.1, 0.6, 0.25, 0.0, 0.0, 0.65];
        let map = ScoreMap::new(3, 3, 1, scores).unwrap();
        assert!((map.confidence() - 0.3).abs() < 1e-6, "{}", map.confidence());
    }

    #[test]
    fn a_map_of_background_is_as_sure_as_its_background() {
        let map = ScoreMap::new(2, 2, 1, vec![0.9, 0.7, 0.1, 0.3]).unwrap();
        assert!((map.confidence() - 0.6).abs() < 1e-6, "{}", map.confidence());
        assert_eq!(ScoreMap::new(1, 1, 1, vec![1.0]).unwrap().confidence(), 1.0);
        assert_eq!(ScoreMap::new(2, 1, 1, vec![0.0, 0.0]).unwrap().confidence(), 0.0);
    }
}
