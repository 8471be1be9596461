//! Ranges of many tensors at once, as a model runs over samples.

use std::collections::{BTreeMap, BTreeSet};

use super::method::{Seen, Settings, Statistic};
use crate::placement::{Placement, masks::HUGE};
use crate::quantization::Range;

/// A statistic for each tensor that needs a range.
pub struct Observation {
    statistics: BTreeMap<String, Box<dyn Statistic>>,
    huge: BTreeSet<String>,
    odd: BTreeSet<String>,
    samples: usize,
}

impl Observation {
    /// For the given tensors.
    pub fn new(wanted: impl IntoIterator<Item = (String, Settings)>) -> Self {
        let statistics = wanted.into_iter().map(|(name, settings)| (name, settings.start())).collect();
        Self { statistics, huge: BTreeSet::new(), odd: BTreeSet::new(), samples: 0 }
    }

    /// The tensors observed, in order.
    pub fn tensors(&self) -> Vec<String> {
        self.statistics.keys().cloned().collect()
    }

    /// Takes in the values of a tensor in one sample.
    pub fn see(&mut self, tensor: &str, values: &[f32]) {
        let Some(statistic) = self.statistics.get_mut(tensor) else { return };
        let seen = Seen::new(values);
        statistic.observe(&seen);
        if seen.magnitude().is_some_and(|magnitude| magnitude >= HUGE) {
            self.huge.insert(tensor.to_owned());
        }
        if seen.has_nan() {
            self.odd.insert(tensor.to_owned());
        }
    }

    /// Says that a sample is over.
    pub fn end_sample(&mut self) {
        self.samples += 1;
    }

    /// Samples seen.
    pub fn samples(&self) -> usize {
        self.samples
    }

    /// The tensors that had values no code can stand for beside the others: attention masks. They must stay in float.
    pub fn huge(&self) -> &BTreeSet<String> {
        &self.huge
    }

    /// The tensors that had values which are no numbers: the float model computes NaN in them.
    pub fn odd(&self) -> &BTreeSet<String> {
        &self.odd
    }

    /// The range of every tensor.
    pub fn ranges(&self) -> BTreeMap<String, Range> {
        use rayon::prelude::*;
        let all: Vec<(&String, &Box<dyn Statistic>)> = self.statistics.iter().collect();
        all.into_par_iter().map(|(name, statistic)| (name.clone(), statistic.range())).collect()
    }
}

impl Placement {
    /// Takes tensors out: they stay in float, and so does what has their scale.
    pub fn remove(&mut self, tensors: &BTreeSet<String>) {
        let gone = |name: &str, provider: Option<&str>| {
            tensors.contains(name) || provider.is_some_and(|p| tensors.contains(p))
        };
        self.activations.retain(|name, a| !gone(name, a.provider.as_deref()));
        self.biases.retain(|_, bias| !tensors.contains(&bias.input));
    }
}
