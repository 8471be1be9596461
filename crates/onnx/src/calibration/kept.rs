//! Results of calibration, kept for resuming. Floats are kept as their bits: a resumed run gives identical output.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use kvant_container::unfinished::KeptResults;
use kvant_quant::distribution::Distribution;
use kvant_quant::observer::observers;
use serde::{Deserialize, Serialize};

use super::observation::Observed;
use crate::quantization::Range;
use crate::solution::Ranges;

/// The name of the result.
const NAME: &str = "observation";

/// The bits of both ends of a range.
type Bits = [u32; 2];

#[derive(Serialize, Deserialize)]
struct StoredObservation {
    engine: String,
    samples: usize,
    whole: BTreeMap<String, Bits>,
    channels: BTreeMap<String, Vec<Bits>>,
    mean_squares: BTreeMap<String, Vec<u32>>,
    huge: BTreeSet<String>,
    empty: BTreeSet<String>,
    odd: BTreeSet<String>,
    uneven: BTreeSet<String>,
    methods: BTreeMap<String, String>,
    #[serde(default)]
    distributions: BTreeMap<String, Distribution>,
}

fn bits(range: &Range) -> Bits {
    [range.min.to_bits(), range.max.to_bits()]
}

fn range([min, max]: Bits) -> Range {
    Range { min: f32::from_bits(min), max: f32::from_bits(max) }
}

impl Observed {
    /// Keeps it, with the name of the engine that ran the model.
    ///
    /// # Errors
    /// System errors.
    pub fn keep(&self, engine: &str, kept: &KeptResults) -> io::Result<()> {
        let (channels, squares) = (self.ranges.channels.iter(), self.mean_squares.iter());
        let stored = StoredObservation {
            engine: engine.to_owned(),
            samples: self.samples,
            whole: self.ranges.whole.iter().map(|(name, range)| (name.clone(), bits(range))).collect(),
            channels: channels.map(|(name, all)| (name.clone(), all.iter().map(bits).collect())).collect(),
            mean_squares: squares
                .map(|(name, all)| (name.clone(), all.iter().map(|s| s.to_bits()).collect()))
                .collect(),
            huge: self.mask_like.clone(),
            empty: self.without_values.clone(),
            odd: self.non_finite.clone(),
            uneven: self.varying_channels.clone(),
            distributions: self.distributions.clone(),
            methods: self.methods.iter().map(|(name, method)| (name.clone(), (*method).to_owned())).collect(),
        };
        kept.put(NAME, &stored, &[])
    }

    /// The results kept by an interrupted run, and the name of its engine.
    pub fn kept(kept: &KeptResults) -> Option<(Observed, String)> {
        let (stored, _): (StoredObservation, _) = kept.get(NAME)?;
        let whole = stored.whole.into_iter().map(|(name, bits)| (name, range(bits))).collect();
        let channels = stored.channels.into_iter();
        let channels = channels.map(|(name, all)| (name, all.into_iter().map(range).collect())).collect();
        let squares = stored.mean_squares.into_iter();
        let squares = squares.map(|(name, all)| (name, all.into_iter().map(f32::from_bits).collect()));
        let observers = observers();
        let named = |method: String| observers.iter().find(|row| row.name == method).map(|row| row.name);
        let methods = stored.methods.into_iter().map(|(name, method)| Some((name, named(method)?)));
        let observed = Observed {
            ranges: Ranges { whole, channels },
            mean_squares: squares.collect(),
            mask_like: stored.huge,
            without_values: stored.empty,
            non_finite: stored.odd,
            varying_channels: stored.uneven,
            methods: methods.collect::<Option<_>>()?,
            distributions: stored.distributions,
            samples: stored.samples,
        };
        Some((observed, stored.engine))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvant_numeric::simd::Isa;
    use kvant_quant::observer::OBSERVERS;

    #[test]
    fn kept_observations_round_trip_bit_for_bit() {
        let dir = tempfile::tempdir().unwrap();
        let kept = KeptResults::new(dir.path(), "plan");
        assert!(Observed::kept(&kept).is_none());
        let mut observed = Observed { samples: 3, ..Observed::default() };
        for (at, row) in OBSERVERS.iter().enumerate() {
            let range = Range { min: -0.1 / (at + 1) as f32, max: f32::INFINITY };
            observed.methods.insert(row.name.to_owned(), row.name);
            observed.ranges.whole.insert(row.name.to_owned(), range);
            observed.ranges.channels.insert(row.name.to_owned(), vec![range; at]);
        }
        observed.mean_squares.insert("x".to_owned(), vec![0.1, 0.3]);
        let mut distribution = Distribution::default();
        distribution.update(Isa::best(), &[0.5, -2.0, f32::NAN]);
        observed.distributions.insert("x".to_owned(), distribution);
        observed.mask_like.insert("mask".to_owned());
        observed.without_values.insert("cache".to_owned());
        observed.keep("rten", &kept).unwrap();
        let (found, engine) = Observed::kept(&kept).unwrap();
        assert_eq!((format!("{found:?}"), engine.as_str()), (format!("{observed:?}"), "rten"));
    }
}
