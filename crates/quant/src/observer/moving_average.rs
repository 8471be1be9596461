//! Averages of the ranges of batches: the moving average, as PyTorch's moving-average observers define it, and the mean, as
//! ONNX Runtime's quantizer defines its own. Of activations only: weights come in one batch.

use super::registry::{ObserverRow, plain};
use super::{Grid, Needs, ObservedTensor, ObservedValues, Observer};
use kvant_numeric::kernel::Range;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

pub(super) const ROW: ObserverRow = ObserverRow {
    name: "ema",
    aliases: &["moving-average", "movingaverage"],
    example: "ema0.99",
    about: "of activations: the average of the batches' ranges, every new one weighing 1 - 0.99; any number below 1",
    make: |settings| {
        let decay = if settings.is_empty() { Decay::DEFAULT } else { settings.parse().ok()? };
        Some(Box::new(MovingAverage(decay)))
    },
};

pub(super) const MEAN: ObserverRow = ObserverRow {
    name: "mean",
    aliases: &[],
    example: "mean",
    about: "of activations: the mean of the batches' ranges",
    make: |settings| plain(settings, Mean),
};

/// The moving average.
#[derive(Clone, Copy, Debug)]
pub(super) struct MovingAverage(Decay);

impl MovingAverage {
    pub(super) const DEFAULT: MovingAverage = MovingAverage(Decay::DEFAULT);
}

impl Observer for MovingAverage {
    fn spelling(&self) -> String {
        format!("{}{}", ROW.name, self.0)
    }

    fn needs(&self, _: &dyn Grid) -> Needs {
        Needs::average(Averaging::Decaying(self.0))
    }

    fn refusal(&self, tensor: &ObservedTensor) -> Option<&'static str> {
        refusal(tensor)
    }

    fn range(&self, seen: &ObservedValues<'_>, _: &dyn Grid) -> Range {
        seen.average()
    }
}

/// The mean.
#[derive(Clone, Copy, Debug)]
struct Mean;

impl Observer for Mean {
    fn spelling(&self) -> String {
        MEAN.name.to_owned()
    }

    fn needs(&self, _: &dyn Grid) -> Needs {
        Needs::average(Averaging::Equal)
    }

    fn refusal(&self, tensor: &ObservedTensor) -> Option<&'static str> {
        refusal(tensor)
    }

    fn range(&self, seen: &ObservedValues<'_>, _: &dyn Grid) -> Range {
        seen.average()
    }
}

fn refusal(tensor: &ObservedTensor) -> Option<&'static str> {
    tensor.is_weight.then_some("it averages batches, and a weight is one batch")
}

/// The weights of batches in an average of their ranges.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Averaging {
    /// What stays of the average with every new batch.
    Decaying(Decay),
    /// All batches weigh the same.
    Equal,
}

/// The parts into which 1 is divided, so that a decay is an exact, comparable number.
const PARTS: f64 = 1e9;

/// How much of the average stays with every new batch: above 0 and below 1, in parts of 10^-9.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Decay(u32);

impl Decay {
    /// The weight of a new batch, in f32.
    pub(super) fn weight_of_new(self) -> f32 {
        (1.0 - self.value()) as f32
    }

    /// 0.99, as PyTorch's observers have it.
    pub const DEFAULT: Decay = Decay(990_000_000);

    fn value(self) -> f64 {
        f64::from(self.0) / PARTS
    }
}

impl fmt::Display for Decay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.value())
    }
}

impl FromStr for Decay {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let value: f64 = text.parse().map_err(|_| ())?;
        let parts = (value * PARTS).round();
        if parts > 0.0 && parts < PARTS { Ok(Decay(parts as u32)) } else { Err(()) }
    }
}

/// The average over the batches so far. Decaying, it is the first batch's range, then `average = decay * average +
/// (1 - decay) * range`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct MovingRange {
    average: [f64; 2],
    /// The range of the first batch, which a part of the data that others come before must give back.
    first: [f64; 2],
    batches: u32,
}

impl MovingRange {
    /// The average of one batch.
    pub(crate) fn new(range: Range) -> MovingRange {
        let ends = [f64::from(range.min), f64::from(range.max)];
        MovingRange { average: ends, first: ends, batches: 1 }
    }

    /// The average with one more batch.
    pub(crate) fn update(&mut self, averaging: Averaging, range: Range) {
        self.merge(averaging, &MovingRange::new(range));
    }

    /// The average over these batches and then those of `later`.
    pub(crate) fn merge(&mut self, averaging: Averaging, later: &MovingRange) {
        match averaging {
            Averaging::Decaying(decay) => self.decay_to(decay, later),
            Averaging::Equal => self.add(later),
        }
        self.batches = self.batches.saturating_add(later.batches);
    }

    /// What `later` began with its first batch at full weight, it would have begun with the average so far.
    fn decay_to(&mut self, decay: Decay, later: &MovingRange) {
        let kept = decay.value().powi(later.batches.min(i32::MAX as u32) as i32);
        for ((average, first), end) in self.average.iter_mut().zip(later.first).zip(later.average) {
            *average = kept * (*average - first) + end;
        }
    }

    fn add(&mut self, later: &MovingRange) {
        let share = f64::from(later.batches) / (f64::from(self.batches) + f64::from(later.batches));
        for (average, end) in self.average.iter_mut().zip(later.average) {
            *average += share * (end - *average);
        }
    }

    pub(crate) fn range(&self) -> Range {
        Range { min: self.average[0] as f32, max: self.average[1] as f32 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decaying() -> Averaging {
        Averaging::Decaying("0.9".parse().unwrap())
    }

    fn averaged(averaging: Averaging, ranges: &[(f32, f32)]) -> MovingRange {
        let mut ranges = ranges.iter().map(|(min, max)| Range { min: *min, max: *max });
        let mut moving = MovingRange::new(ranges.next().unwrap());
        ranges.for_each(|range| moving.update(averaging, range));
        moving
    }

    #[test]
    fn moving_average_matches_pytorch() {
        let range = averaged(decaying(), &[(-1.0, 2.0), (-3.0, 1.0), (0.0, 4.0)]).range();
        // torch.ao's MovingAverageMinMaxObserver with averaging_constant 0.1
        assert!((range.min - -1.08).abs() < 1e-6 && (range.max - 2.11).abs() < 1e-6, "{range:?}");
    }

    #[test]
    fn batches_weigh_the_same_in_a_mean() {
        let range = averaged(Averaging::Equal, &[(-1.0, 2.0), (-3.0, 1.0), (1.0, 4.5)]).range();
        assert_eq!(range, Range { min: -1.0, max: 2.5 });
    }

    #[test]
    fn averages_of_parts_merge_to_the_whole() {
        let all = [(-1.0, 2.0), (-3.0, 1.0), (0.0, 4.0), (-0.5, 9.0), (-7.0, 0.25)];
        for averaging in [decaying(), Averaging::Equal] {
            let whole = averaged(averaging, &all).range();
            for cut in 1..all.len() {
                let mut merged = averaged(averaging, &all[..cut]);
                merged.merge(averaging, &averaged(averaging, &all[cut..]));
                let merged = merged.range();
                assert!((merged.min - whole.min).abs() < 1e-6 && (merged.max - whole.max).abs() < 1e-6);
            }
        }
    }
}
