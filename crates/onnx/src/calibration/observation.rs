//! Ranges of many tensors at once, as a model runs over samples.

use std::collections::{BTreeMap, BTreeSet};

use crate::calibration_method::Settings;
use crate::masks::HUGE;
use crate::placement::{Channels, Placement};
use crate::quantization::{Range, ZERO};
use crate::solution::Ranges;
use kvant_numeric::simd::Isa;
use kvant_quant::distribution::Distribution;
use kvant_quant::observer::{GraphStatistic, SampleView};

/// The observation of a tensor.
#[derive(Debug, Clone, Copy)]
pub struct Watched {
    /// The quantization of its values.
    pub settings: Settings,
    /// The channels that each have a range.
    pub channels: Option<Channels>,
}

impl From<Settings> for Watched {
    fn from(settings: Settings) -> Self {
        Self { settings, channels: None }
    }
}

/// The mean squares of the channels of a tensor along an axis, which is counted from the end where it is negative.
#[derive(Debug)]
struct ChannelSquares {
    axis: i64,
    sums: Vec<f64>,
    /// Values of each channel.
    count: f64,
}

impl ChannelSquares {
    /// Adds the values of a sample. Nothing is known of tensors whose number of channels varies.
    fn see(&mut self, shape: &[usize], values: &[f32]) {
        let rank = shape.len() as i64;
        let axis = usize::try_from(if self.axis < 0 { self.axis + rank } else { self.axis });
        let Some(&channels) = axis.ok().and_then(|axis| shape.get(axis)) else { return self.forget() };
        if self.count == 0.0 {
            self.sums = vec![0.0; channels];
        }
        if channels == 0 || self.sums.len() != channels {
            return self.forget();
        }
        let inner: usize = shape[axis.map_or(0, |axis| axis + 1)..].iter().product();
        for (run, values) in values.chunks(inner.max(1)).enumerate() {
            self.sums[run % channels] += values.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>();
        }
        self.count += (values.len() / channels) as f64;
    }

    fn forget(&mut self) {
        (self.sums, self.count) = (Vec::new(), f64::NAN);
    }

    fn means(&self) -> Option<Vec<f32>> {
        let means: Vec<f32> = self.sums.iter().map(|sum| (sum / self.count) as f32).collect();
        (!means.is_empty() && means.iter().all(|mean| mean.is_finite())).then_some(means)
    }
}

/// The result of a pass over the data.
#[derive(Debug, Clone, Default)]
pub struct Observed {
    /// The ranges.
    pub ranges: Ranges,
    /// The mean squares of channels of tensors that layers read.
    pub mean_squares: BTreeMap<String, Vec<f32>>,
    /// The tensors with values that no code can represent beside the others: attention masks. They must stay in float.
    pub mask_like: BTreeSet<String>,
    /// The tensors without a value in any sample. They have no range, and must stay in float.
    pub without_values: BTreeSet<String>,
    /// The tensors with NaN values, which the float model computes in them.
    pub non_finite: BTreeSet<String>,
    /// The tensors whose number of channels varied.
    pub varying_channels: BTreeSet<String>,
    /// The observers that lose least, for tensors with automatic methods.
    pub methods: BTreeMap<String, &'static str>,
    /// The distributions of tensors that a report shows.
    pub distributions: BTreeMap<String, Distribution>,
    /// Samples seen.
    pub samples: usize,
}

/// A statistic for each tensor that needs a range.
pub struct Observation {
    statistics: BTreeMap<String, Watch>,
    squares: BTreeMap<String, ChannelSquares>,
    distributions: BTreeMap<String, Distribution>,
    with_values: BTreeSet<String>,
    mask_like: BTreeSet<String>,
    non_finite: BTreeSet<String>,
    varying_channels: BTreeSet<String>,
    samples: usize,
}

/// The statistics of a tensor.
enum Watch {
    Whole(Box<GraphStatistic>),
    Each(Channels, Vec<GraphStatistic>),
}

impl Watch {
    fn start(watched: Watched) -> Self {
        match watched.channels {
            None => Self::Whole(Box::new(watched.settings.start())),
            Some(channels) => Self::Each(channels, (0..channels.number).map(|_| watched.settings.start()).collect()),
        }
    }

    /// The range of all values.
    fn range(&self) -> Range {
        match self {
            Self::Whole(statistic) => statistic.range(),
            Self::Each(..) => self.ranges().into_iter().flatten().reduce(Range::join).unwrap_or(ZERO),
        }
    }

    /// The method taken for all values, or for most channels, where it was looked for.
    fn chosen(&self) -> Option<&'static str> {
        match self {
            Self::Whole(statistic) => statistic.chosen(),
            Self::Each(_, statistics) => {
                let mut counts = BTreeMap::new();
                statistics.iter().filter_map(|s| s.chosen()).for_each(|method| *counts.entry(method).or_insert(0) += 1);
                counts.into_iter().rev().max_by_key(|(_, count)| *count).map(|(method, _)| method)
            }
        }
    }

    /// The range of each channel.
    fn ranges(&self) -> Option<Vec<Range>> {
        match self {
            Self::Whole(_) => None,
            Self::Each(_, statistics) => Some(statistics.iter().map(|statistic| statistic.range()).collect()),
        }
    }
}

/// Shows each statistic the values of its channel. False where there are not as many channels.
fn each(channels: Channels, statistics: &mut [GraphStatistic], shape: &[usize], values: &[f32]) -> bool {
    if shape.get(channels.axis) != Some(&channels.number) {
        return false;
    }
    let inner: usize = shape[channels.axis + 1..].iter().product();
    let mut gathered = Vec::with_capacity(values.len() / channels.number.max(1));
    for (channel, statistic) in statistics.iter_mut().enumerate() {
        gathered.clear();
        let rows = values.chunks_exact((inner * channels.number).max(1));
        rows.for_each(|row| gathered.extend_from_slice(&row[channel * inner..(channel + 1) * inner]));
        statistic.observe(&SampleView::new(&gathered));
    }
    true
}

impl Observation {
    /// For the given tensors.
    pub fn new<W: Into<Watched>>(wanted: impl IntoIterator<Item = (String, W)>) -> Self {
        let statistics = wanted.into_iter().map(|(name, watched)| (name, Watch::start(watched.into()))).collect();
        let (with_values, mask_like, non_finite, varying_channels) = Default::default();
        let (squares, distributions) = Default::default();
        Self { statistics, squares, distributions, with_values, mask_like, non_finite, varying_channels, samples: 0 }
    }

    /// The same, with the mean squares of the channels of tensors along an axis each.
    pub fn with_squares(self, wanted: impl IntoIterator<Item = (String, i64)>) -> Self {
        let squares =
            wanted.into_iter().map(|(name, axis)| (name, ChannelSquares { axis, sums: Vec::new(), count: 0.0 }));
        Self { squares: squares.collect(), ..self }
    }

    /// The same, with the distributions of tensors that need a range, or of as many of them as `most`, evenly spread.
    pub fn with_distributions(mut self, most: usize) -> Self {
        let names: Vec<&String> = self.statistics.keys().collect();
        let shown = names.len().min(most);
        let spread = (0..shown).map(|index| names[index * names.len() / shown]);
        self.distributions = spread.map(|name| (name.clone(), Distribution::default())).collect();
        self
    }

    /// The tensors observed, in order.
    pub fn tensors(&self) -> Vec<String> {
        self.statistics.keys().chain(self.squares.keys()).collect::<BTreeSet<_>>().into_iter().cloned().collect()
    }

    /// Takes in the values of a tensor in one sample.
    pub fn see(&mut self, tensor: &str, shape: &[usize], values: &[f32]) {
        if let Some(squares) = self.squares.get_mut(tensor) {
            squares.see(shape, values);
        }
        let Some(watch) = self.statistics.get_mut(tensor) else { return };
        if !values.is_empty() && !self.with_values.contains(tensor) {
            self.with_values.insert(tensor.to_owned());
        }
        if let Some(distribution) = self.distributions.get_mut(tensor) {
            distribution.update(Isa::best(), values);
        }
        let seen = SampleView::new(values);
        match watch {
            Watch::Whole(statistic) => statistic.observe(&seen),
            Watch::Each(channels, statistics) => {
                if !each(*channels, statistics, shape, values) {
                    self.varying_channels.insert(tensor.to_owned());
                }
            }
        }
        if seen.magnitude().is_some_and(|magnitude| magnitude >= HUGE) {
            self.mask_like.insert(tensor.to_owned());
        }
        if seen.has_nan() {
            self.non_finite.insert(tensor.to_owned());
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

    /// The range of every tensor, and what else was found.
    pub fn observed(&self) -> Observed {
        use rayon::prelude::*;
        let all: Vec<(&String, &Watch)> = self.statistics.iter().collect();
        let whole = all.par_iter().map(|(name, watch)| ((*name).clone(), watch.range())).collect();
        let channels = all.par_iter().filter_map(|(name, watch)| Some(((*name).clone(), watch.ranges()?))).collect();
        let methods = all.par_iter().filter_map(|(name, watch)| Some(((*name).clone(), watch.chosen()?))).collect();
        let without_values = all.iter().map(|(name, _)| *name).filter(|name| !self.with_values.contains(*name));
        Observed {
            without_values: without_values.filter(|_| self.samples > 0).cloned().collect(),
            methods,
            ranges: Ranges { whole, channels },
            mean_squares: self.squares.iter().filter_map(|(name, s)| Some((name.clone(), s.means()?))).collect(),
            mask_like: self.mask_like.clone(),
            non_finite: self.non_finite.clone(),
            varying_channels: self.varying_channels.clone(),
            distributions: self.distributions.clone(),
            samples: self.samples,
        }
    }
}

impl Placement {
    /// Takes tensors out: they stay in float, and so does what has their scale.
    pub fn remove(&mut self, tensors: &BTreeSet<String>) {
        let gone = |name: &str, provider: Option<&str>| {
            tensors.contains(name) || provider.is_some_and(|p| tensors.contains(p))
        };
        self.activations.retain(|name, a| !gone(name, a.provider.as_deref()));
        for biases in [&mut self.biases, &mut self.float_biases] {
            biases.retain(|_, bias| !tensors.contains(&bias.input));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::element::Element;
    use crate::quantization::ScaleKind;
    use kvant_quant::observer::ObserverRef;

    #[test]
    fn channel_ranges_are_observed_separately() {
        let settings = Settings::new(ObserverRef::MIN_MAX, Element::Int8, true, ScaleKind::Float);
        let channels = Some(Channels { axis: 1, number: 3 });
        let mut observation = Observation::new([("x".to_owned(), Watched { settings, channels })]);
        observation.see("x", &[2, 3, 2], &[1.0, 2.0, -3.0, 0.0, 9.0, 8.0, 5.0, 0.5, 7.0, -4.0, 1.0, 1.0]);
        let found = observation.observed();
        let range = |min, max| Range { min, max };
        assert_eq!(found.ranges.channels["x"], [range(0.5, 5.0), range(-4.0, 7.0), range(1.0, 9.0)]);
        assert_eq!((found.ranges.whole["x"], found.varying_channels.len()), (range(-4.0, 9.0), 0));
        observation.see("x", &[1, 2, 2], &[1.0; 4]);
        assert_eq!(observation.observed().varying_channels.len(), 1);
    }

    #[test]
    fn mean_squares_of_channels_are_those_of_all_samples() {
        let none: [(String, Watched); 0] = [];
        let wanted = [("x".to_owned(), 1), ("y".to_owned(), -1), ("z".to_owned(), 1)];
        let mut observation = Observation::new(none).with_squares(wanted);
        assert_eq!(observation.tensors(), ["x", "y", "z"]);
        for value in [1.0, 3.0] {
            observation.see("x", &[2, 2, 2], &[value, value, 2.0, 0.0, value, value, 0.0, 2.0]);
            observation.see("y", &[2, 2], &[value, 2.0, -value, -2.0]);
            observation.see("z", &[1, value as usize], &vec![1.0; value as usize]);
        }
        let found = observation.observed().mean_squares;
        assert_eq!((&found["x"], &found["y"], found.len()), (&vec![5.0, 2.0], &vec![5.0, 4.0], 2));
    }
}
