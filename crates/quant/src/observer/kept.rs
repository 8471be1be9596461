//! Statistics of a tensor's values besides their range, as needed by an observer. They are updated batch by batch in bounded
//! memory.

use super::growing::GrowingNeeds;
use super::moving_average::Averaging;
use super::{Histogram, Moments, Sample};
use serde::{Deserialize, Serialize};

/// The statistics that an observer needs besides the range.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Needs {
    pub(crate) average: Option<Averaging>,
    pub(super) histogram: bool,
    pub(super) moments: bool,
    pub(super) sample: bool,
    pub(super) growing: GrowingNeeds,
}

const NOTHING: Needs =
    Needs { average: None, histogram: false, moments: false, sample: false, growing: GrowingNeeds::NONE };

impl Needs {
    /// Nothing but the range.
    pub const RANGE: Needs = NOTHING;
    /// A [`Histogram`].
    pub const HISTOGRAM: Needs = Needs { histogram: true, ..NOTHING };
    /// [`Moments`].
    pub const MOMENTS: Needs = Needs { moments: true, ..NOTHING };
    /// A [`Sample`] of the values.
    pub const SAMPLE: Needs = Needs { sample: true, ..NOTHING };

    /// An average of the ranges of batches.
    pub const fn average(averaging: Averaging) -> Needs {
        Needs { average: Some(averaging), ..NOTHING }
    }

    /// Histograms whose bins grow as those of ONNX Runtime, for tensors of graphs.
    pub(super) const fn growing(growing: GrowingNeeds) -> Needs {
        Needs { growing, ..NOTHING }
    }

    /// Both; of two averages the first.
    pub fn and(self, other: Needs) -> Needs {
        Needs {
            average: self.average.or(other.average),
            histogram: self.histogram || other.histogram,
            moments: self.moments || other.moments,
            sample: self.sample || other.sample,
            growing: self.growing.and(other.growing),
        }
    }

    /// Returns whether the ranges of batches suffice.
    pub(crate) fn is_range_of_batches(self) -> bool {
        !(self.histogram || self.moments || self.sample)
    }
}

/// The kept statistics of the values.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Kept {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) histogram: Option<Histogram>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) moments: Option<Moments>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) sample: Option<Sample>,
}

impl Kept {
    /// Empty statistics of the needed kinds.
    pub(crate) fn new(needs: Needs) -> Kept {
        Kept {
            histogram: needs.histogram.then(Histogram::new),
            moments: needs.moments.then(Moments::default),
            sample: needs.sample.then(Sample::default),
        }
    }

    /// Takes in a batch.
    pub(crate) fn update(&mut self, values: &[f32]) {
        if let Some(histogram) = &mut self.histogram {
            histogram.update(values);
        }
        if let Some(moments) = &mut self.moments {
            moments.update(values);
        }
        if let Some(sample) = &mut self.sample {
            sample.update(values);
        }
    }

    /// Merges the statistics of later data.
    pub(crate) fn merge(&mut self, later: &Kept) {
        if let (Some(own), Some(later)) = (&mut self.histogram, &later.histogram) {
            own.merge(later);
        }
        if let (Some(own), Some(later)) = (&mut self.moments, &later.moments) {
            own.merge(later);
        }
        if let (Some(own), Some(later)) = (&mut self.sample, &later.sample) {
            own.merge(later);
        }
    }
}
