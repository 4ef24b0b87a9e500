//! Which images of a step are this rank's, and what all ranks know of a step.
//!
//! A step takes the next `schedule.effective_batch` places of the epoch's order and cuts them into batches; ranks get
//! whole batches, neighbours together. So the images that are merged four by four are the same on any number of
//! ranks, as long as batches are of multiples of four.

use std::ops::Range;

use crate::config::ScheduleConfig;
use crate::error::{Result, TrainError};
use crate::losses::Losses;
use crate::ranks::Ranks;

/// This rank's part of the work.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Shares {
    rank: usize,
    size: usize,
    /// Images of a step, on all ranks together.
    effective_batch: usize,
    /// Images that go through the network at a time.
    batch: usize,
}

impl Shares {
    pub(crate) fn new(schedule: &ScheduleConfig, ranks: &Ranks) -> Result<Self> {
        Self::of(schedule, ranks.rank(), ranks.size())
    }

    fn of(schedule: &ScheduleConfig, rank: usize, size: usize) -> Result<Self> {
        let effective_batch = schedule.effective_batch;
        let even = effective_batch / size;
        let batch = match size {
            1 => schedule.batch,
            _ => schedule.batch.min((even - even % 4).max(4)),
        };
        if effective_batch.div_ceil(batch) < size {
            return Err(TrainError::Config(format!(
                "schedule.effective_batch: {effective_batch} images a step are too few for {size} ranks, each of which \
                 takes {batch} or more; give at least {}, or start fewer ranks",
                batch * size
            )));
        }
        Ok(Self { rank, size, effective_batch, batch })
    }

    /// What a user may want to know: some ranks wait for others.
    pub(crate) fn unevenness(&self) -> Option<String> {
        let (Self { size, effective_batch, batch, .. }, count) =
            (self, self.num_batches(self.effective_batch));
        (!count.is_multiple_of(*size)).then(|| {
            format!(
                "{effective_batch} images a step are {count} batches of {batch}, which {size} ranks cannot share \
                 evenly: some will wait for others"
            )
        })
    }

    /// Places that the next step takes of so many that an epoch still has.
    pub(crate) fn step_places(&self, num_left: usize) -> usize {
        self.effective_batch.min(num_left)
    }

    /// Batches of a step that takes so many places, on all ranks together.
    pub(crate) fn num_batches(&self, num_places: usize) -> usize {
        num_places.div_ceil(self.batch)
    }

    /// This rank's batches of such a step.
    pub(crate) fn own_batches(&self, num_places: usize) -> Range<usize> {
        let count = self.num_batches(num_places);
        count * self.rank / self.size..count * (self.rank + 1) / self.size
    }

    /// Where a batch begins, counted from its step's first place.
    pub(crate) fn batch_start(&self, batch: usize) -> usize {
        batch * self.batch
    }

    /// How many places a batch of such a step has.
    pub(crate) fn batch_places(&self, batch: usize, num_places: usize) -> usize {
        self.batch.min(num_places - batch * self.batch)
    }

    /// Whether a place is this rank's, of so many that an epoch still has, counted from the next step's first.
    pub(crate) fn is_own(&self, place: usize, num_left: usize) -> bool {
        let step_start = place - place % self.effective_batch;
        let num_places = self.step_places(num_left - step_start);
        self.own_batches(num_places).contains(&((place - step_start) / self.batch))
    }
}

/// What all ranks know of a step.
pub(crate) struct StepOfAll {
    /// Means over all images.
    pub(crate) losses: Losses,
    pub(crate) num_images: usize,
    /// Whether any of them was asked to stop.
    pub(crate) stop: bool,
}

impl StepOfAll {
    /// From what each rank knows of its share; a mean over no images counts for nothing.
    pub(crate) fn sum(ranks: &Ranks, mut losses: Losses, num_images: usize, stop: bool) -> Self {
        let flag = if stop { 1.0 } else { 0.0 };
        let weighted = losses.columns().map(|(_, loss)| f64::from(loss) * num_images as f64);
        let mut sums: Vec<f64> = [num_images as f64, flag].into_iter().chain(weighted).collect();
        ranks.sum(&mut sums);
        let (num_images, stop) = (sums[0], sums[1]);
        losses.values_mut().zip(&sums[2..]).for_each(|(loss, sum)| *loss = (sum / num_images) as f32);
        Self { losses, num_images: num_images as usize, stop: stop > 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::TrainConfig;

    fn shares(effective_batch: usize, batch: usize, size: usize) -> Vec<Shares> {
        let schedule = ScheduleConfig { effective_batch, batch, ..TrainConfig::default().schedule };
        (0..size).map(|rank| Shares::of(&schedule, rank, size).unwrap()).collect()
    }

    #[test]
    fn every_place_belongs_to_one_rank_and_comes_in_the_order_of_batches() {
        for (effective_batch, batch, size) in [(64, 16, 1), (64, 16, 4), (64, 16, 3), (20, 16, 2), (6, 2, 3)]
        {
            for num_left in [1, 5, effective_batch, 3 * effective_batch + 7] {
                let ranks = shares(effective_batch, batch, size);
                let owners = |place| ranks.iter().filter(move |rank| rank.is_own(place, num_left)).count();
                assert!((0..num_left).all(|place| owners(place) == 1));
                for rank in &ranks {
                    let mut own = (0..num_left).filter(|&place| rank.is_own(place, num_left));
                    for start in (0..num_left).step_by(effective_batch) {
                        let num_places = effective_batch.min(num_left - start);
                        for batch in rank.own_batches(num_places) {
                            let first = start + batch * rank.batch;
                            for place in first..first + rank.batch_places(batch, num_places) {
                                assert_eq!(own.next(), Some(place));
                            }
                        }
                    }
                    assert_eq!(own.next(), None);
                }
            }
        }
    }

    #[test]
    fn batches_shrink_to_fours_before_a_rank_goes_without() {
        let batch = |effective_batch, batch, size| shares(effective_batch, batch, size)[0].batch;
        assert_eq!([batch(64, 16, 4), batch(18, 18, 1), batch(16, 16, 2), batch(16, 16, 3)], [16, 18, 8, 4]);
        assert_eq!([64, 48].map(|all| shares(all, 16, 3)[0].unevenness().is_some()), [true, false]);
        let schedule = ScheduleConfig { effective_batch: 16, batch: 16, ..TrainConfig::default().schedule };
        let message = Shares::of(&schedule, 0, 5).unwrap_err().to_string();
        assert!(message.contains("at least 20"), "{message}");
    }
}
