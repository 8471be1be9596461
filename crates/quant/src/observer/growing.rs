//! Histograms of tensors of graphs: counts of values in bins of equal width, and the three ways in which they grow. They depend
//! on the order of the samples and do not merge, unlike [`Histogram`](super::Histogram).
//!
//! The bins equal numpy's bit for bit: the results of ONNX Runtime and Quark depend on their edges. A bin holds its lower
//! edge and not its upper one, the last bin both.

use kvant_numeric::kernel::{Bins, Counted, count_in_bins};
use kvant_numeric::simd::Isa;
use rayon::prelude::*;

use super::sample_view::{LARGEST, SampleView, is_shared};
use kvant_numeric::kernel::Range;

/// The range of nothing but zeros.
const ZERO: Range = Range { min: 0.0, max: 0.0 };

/// Values counted by one thread at a time, at least.
const CHUNK: usize = 1 << 16;

/// Counts between edges. There is one edge more than there are counts.
#[derive(Debug, Clone, Default)]
pub(super) struct EqualBins {
    /// Values per bin.
    pub(super) counts: Vec<u64>,
    /// Ascending edges. Those of f32 data are f32 numbers unless said otherwise.
    pub(super) edges: Vec<f64>,
}

/// `number + 1` edges from `first` to `last`, computed in f32 as f32 data demand it.
pub(super) fn edges_f32(first: f32, last: f32, number: usize) -> Vec<f64> {
    let step = (last - first) / number as f32;
    let mut edges: Vec<f64> = (0..=number).map(|i| f64::from(i as f32 * step + first)).collect();
    edges[number] = f64::from(last);
    edges
}

/// `number + 1` edges from `first` to `last` in f64.
pub(super) fn edges_f64(first: f64, last: f64, number: usize) -> Vec<f64> {
    let step = (last - first) / number as f64;
    let mut edges: Vec<f64> = (0..=number).map(|i| i as f64 * step + first).collect();
    edges[number] = last;
    edges
}

fn added(mut sum: Vec<u64>, part: Vec<u64>) -> Vec<u64> {
    sum.iter_mut().zip(part).for_each(|(sum, part)| *sum += part);
    sum
}

/// Infinities as the largest values that are counted.
fn limited(value: f32) -> Option<f32> {
    (!value.is_nan()).then(|| value.clamp(-LARGEST, LARGEST))
}

impl EqualBins {
    /// Empty bins.
    pub(super) fn new(edges: Vec<f64>) -> Self {
        Self { counts: vec![0; edges.len().saturating_sub(1)], edges }
    }

    /// Counts values, or their magnitudes; those outside of the edges are not counted. The odd ones, NaN and what is beyond
    /// `LARGEST`, are counted as mapped by `odd`. Many values are counted by all threads: integer sums do not depend on the order.
    pub(super) fn count(&mut self, values: &[f32], absolute: bool, odd: impl Fn(f32) -> Option<f32> + Sync) {
        let bins = self.counts.len();
        let Ok(number) = u32::try_from(bins) else { return };
        if number == 0 {
            return;
        }
        let (first, last) = (self.edges[0], self.edges[bins]);
        let equal = Bins { first, last, number, margin: self.margin() };
        let part = |chunk: &[f32]| self.counted(chunk, absolute, &equal, &odd);
        let chunk = CHUNK.max(4 * bins);
        let found = match is_shared(values) {
            true => values.par_chunks(chunk).map(part).reduce(|| vec![0; bins], added),
            false => part(values),
        };
        self.counts = added(std::mem::take(&mut self.counts), found);
    }

    /// The distance, in bins, of an edge from its position with equal bins.
    fn margin(&self) -> f64 {
        let bins = self.counts.len();
        let width = (self.edges[bins] - self.edges[0]) / bins as f64;
        let place = |(i, edge): (usize, &f64)| ((edge - self.edges[0]) / width - i as f64).abs();
        self.edges.iter().enumerate().map(place).fold(0.0, f64::max) + 1e-6
    }

    /// Counts by the bins' equal width, and compares with the edges where that is inconclusive.
    fn counted(&self, values: &[f32], absolute: bool, equal: &Bins, odd: &impl Fn(f32) -> Option<f32>) -> Vec<u64> {
        let mut unsure = Vec::new();
        let Counted { mut bins, zeros } = count_in_bins(Isa::best(), values, absolute, equal, &mut unsure);
        let mut count = |value: f64, times: u64| {
            if value >= equal.first && value <= equal.last {
                let guess = (value - equal.first) / (equal.last - equal.first) * bins.len() as f64;
                let bin = self.bin(value, (guess as usize).min(bins.len() - 1));
                bins[bin] += times;
            }
        };
        count(0.0, zeros);
        let replaced = |value: f32| if value.abs() <= LARGEST { Some(value) } else { odd(value) };
        unsure.into_iter().filter_map(replaced).for_each(|value| count(value.into(), 1));
        bins
    }

    /// The bin of a value between the edges, looked for from a guess that is close.
    fn bin(&self, value: f64, guess: usize) -> usize {
        let mut bin = guess;
        while bin > 0 && value < self.edges[bin] {
            bin -= 1;
        }
        while bin + 1 < self.counts.len() && value >= self.edges[bin + 1] {
            bin += 1;
        }
        bin
    }

    /// The counts in other bins, each where the centre of its own lies; those beyond the edges in the outermost.
    fn rebinned(&self, edges: Vec<f64>) -> Self {
        let mut other = Self::new(edges);
        let bins = other.counts.len();
        let (first, last) = (other.edges[0], other.edges[bins]);
        for (centre, count) in self.centres().zip(&self.counts) {
            let guess = ((centre - first) / (last - first) * bins as f64) as usize;
            let bin = other.bin(centre, guess.min(bins - 1));
            other.counts[bin] += count;
        }
        other
    }

    /// Number of values counted.
    pub(super) fn total(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// The middle of every bin.
    pub(super) fn centres(&self) -> impl Iterator<Item = f64> {
        self.edges.windows(2).map(|pair| (pair[0] + pair[1]) / 2.0)
    }

    /// The first bin up to which at least a share of all values lies; the last edge's position if none does.
    pub(super) fn quantile_edge(&self, share: f64) -> usize {
        let total = self.total() as f64;
        let mut sum = 0.0;
        let reached = self.counts.iter().position(|&count| {
            sum += count as f64 / total;
            sum >= share
        });
        reached.unwrap_or(self.counts.len())
    }
}

/// Most bins a histogram grows to. Data whose later samples are thousands of times larger than the first would need more
/// memory than they are worth; then neighbouring bins are merged.
const MOST_BINS: usize = 1 << 18;

/// A histogram of absolute values: bins of the first sample's width are added above.
#[derive(Debug, Clone, Default)]
pub(super) struct AbsoluteHistogram(pub(super) EqualBins);

impl AbsoluteHistogram {
    /// Takes in a sample. The first makes `bins` bins from its smallest to its largest absolute value.
    pub(super) fn observe(&mut self, seen: &SampleView<'_>, bins: usize) {
        let smallest = || seen.values().iter().map(|v| v.abs()).fold(f32::INFINITY, f32::min);
        self.observe_from(smallest, seen, bins);
    }

    /// Takes in a sample. The first makes `bins` bins from zero to its largest absolute value.
    pub(super) fn observe_from_zero(&mut self, seen: &SampleView<'_>, bins: usize) {
        self.observe_from(|| 0.0, seen, bins);
    }

    fn observe_from(&mut self, smallest: impl Fn() -> f32, seen: &SampleView<'_>, bins: usize) {
        let Some(largest) = seen.magnitude() else { return };
        if self.0.counts.is_empty() {
            let (first, last) = apart(smallest().min(largest), largest);
            self.0 = EqualBins::new(edges_f32(first, last, bins));
        } else {
            self.widen(largest);
        }
        self.0.count(seen.values(), true, limited);
        // Counting is done with edges in f64, but they are kept as f32.
        self.0.edges.iter_mut().for_each(|edge| *edge = f64::from(*edge as f32));
    }

    /// Adds bins up to the one that holds `largest`, and perhaps one more.
    fn widen(&mut self, largest: f32) {
        let edges = &self.0.edges;
        let last = edges[edges.len() - 1] as f32;
        if largest <= last {
            return;
        }
        let width = edges[1] as f32 - edges[0] as f32;
        let (start, stop) = (f64::from(last + width), f64::from(largest + width));
        // The second edge is computed in f32, and its distance from the first is the step of all that follow.
        let delta = f64::from(last + width + width) - start;
        let number = ((stop - start) / f64::from(width)).ceil().max(0.0);
        if !number.is_finite() || number + self.0.counts.len() as f64 > MOST_BINS as f64 || delta <= 0.0 {
            self.0 = self.0.rebinned(edges_f32(0.0, largest, self.0.counts.len()));
            return;
        }
        self.0.edges.extend((0..number as usize).map(|i| start + i as f64 * delta));
        self.0.counts.resize(self.0.edges.len() - 1, 0);
    }
}

/// Two bounds of which the second is larger, as numpy makes them of equal ones.
fn apart(low: f32, high: f32) -> (f32, f32) {
    if low < high { (low, high) } else { (low - 0.5, high + 0.5) }
}

/// A histogram over `[-t, t]`: later samples add as many bins below as above.
#[derive(Debug, Clone, Default)]
pub(super) struct CentredHistogram {
    /// The counts.
    pub(super) histogram: EqualBins,
    bound: f32,
}

impl CentredHistogram {
    /// Takes in a sample; the first makes `bins` bins.
    pub(super) fn observe(&mut self, seen: &SampleView<'_>, bins: usize) {
        let Some(bound) = seen.magnitude() else { return };
        if self.histogram.counts.is_empty() {
            self.start(bound, bins);
        } else if bound > self.bound {
            self.widen(bound);
        }
        self.histogram.count(seen.values(), false, limited);
    }

    fn start(&mut self, bound: f32, bins: usize) {
        let (first, last) = apart(-bound, bound);
        (self.histogram, self.bound) = (EqualBins::new(edges_f32(first, last, bins)), bound);
    }

    fn widen(&mut self, bound: f32) {
        let bins = self.histogram.counts.len();
        if self.bound == 0.0 {
            let old = std::mem::take(&mut self.histogram.counts);
            self.start(bound, bins);
            self.histogram.counts = old;
            return;
        }
        let stride = 2.0 * self.bound / bins as f32;
        let more = ((bound - self.bound) / stride).floor() + 1.0;
        if bins as f32 + 2.0 * more > MOST_BINS as f32 {
            (self.histogram, self.bound) = (self.histogram.rebinned(edges_f32(-bound, bound, bins)), bound);
            return;
        }
        let old = std::mem::take(&mut self.histogram.counts);
        let bound = more * stride + self.bound;
        self.start(bound, bins + 2 * more as usize);
        self.histogram.counts[more as usize..more as usize + bins].copy_from_slice(&old);
    }
}

/// A histogram of signed values in f64: whole bins of the first sample's width are added on either side.
#[derive(Debug, Clone, Default)]
pub(super) struct SignedHistogram(pub(super) EqualBins);

impl SignedHistogram {
    /// Takes in a sample; the first makes `bins` bins from its smallest to its largest value. NaN counts as zero.
    pub(super) fn observe(&mut self, seen: &SampleView<'_>, bins: usize) {
        if seen.values().is_empty() {
            return;
        }
        let mut range = seen.range().unwrap_or(ZERO);
        if seen.has_nan() {
            range = range.join(ZERO);
        }
        let (low, high) = (range.min, range.max);
        if self.0.counts.is_empty() {
            let (low, high) = (f64::from(low), f64::from(high));
            let (first, last) = if low < high { (low, high) } else { (low - 0.5, high + 0.5) };
            self.0 = EqualBins::new(edges_f64(first, last, bins));
        } else {
            self.widen(f64::from(low), f64::from(high));
        }
        self.0.count(seen.values(), false, |v| limited(v).or(Some(0.0)));
    }

    fn widen(&mut self, low: f64, high: f64) {
        let edges = &self.0.edges;
        let (first, last, width) = (edges[0], edges[edges.len() - 1], edges[1] - edges[0]);
        if low >= first && high <= last {
            return;
        }
        let extra = |distance: f64| (distance / width).ceil().max(0.0);
        let (left, right) = (extra(first - low), extra(high - last));
        if left + right + self.0.counts.len() as f64 > MOST_BINS as f64 {
            self.0 = self.0.rebinned(edges_f64(first.min(low), last.max(high), self.0.counts.len()));
            return;
        }
        let bins = self.0.counts.len() + left as usize + right as usize;
        let mut wide = EqualBins::new(edges_f64(first - left * width, last + right * width, bins));
        wide.counts[left as usize..left as usize + self.0.counts.len()].copy_from_slice(&self.0.counts);
        self.0 = wide;
    }
}

/// Which of these histograms an observer needs, for a tensor of a graph.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct GrowingNeeds {
    pub(super) magnitudes: bool,
    pub(super) from_zero: bool,
    pub(super) centred: bool,
    pub(super) signed: bool,
}

impl GrowingNeeds {
    pub(super) const NONE: GrowingNeeds =
        GrowingNeeds { magnitudes: false, from_zero: false, centred: false, signed: false };

    pub(super) fn and(self, other: GrowingNeeds) -> GrowingNeeds {
        GrowingNeeds {
            magnitudes: self.magnitudes || other.magnitudes,
            from_zero: self.from_zero || other.from_zero,
            centred: self.centred || other.centred,
            signed: self.signed || other.signed,
        }
    }
}

/// The histograms that are needed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Growing {
    /// Of magnitudes, from the smallest of the first sample.
    pub(super) magnitudes: Option<AbsoluteHistogram>,
    /// Of magnitudes, from zero.
    pub(super) from_zero: Option<AbsoluteHistogram>,
    /// Of values, symmetric about zero.
    pub(super) centred: Option<CentredHistogram>,
    /// Of values, from the smallest to the largest.
    pub(super) signed: Option<SignedHistogram>,
}

/// Bins of the first sample.
pub(super) const BINS: usize = 2048;

impl Growing {
    pub(super) fn new(needs: GrowingNeeds) -> Growing {
        Growing {
            magnitudes: needs.magnitudes.then(AbsoluteHistogram::default),
            from_zero: needs.from_zero.then(AbsoluteHistogram::default),
            centred: needs.centred.then(CentredHistogram::default),
            signed: needs.signed.then(SignedHistogram::default),
        }
    }

    /// Takes in a sample.
    pub(super) fn observe(&mut self, sample: &SampleView<'_>) {
        if let Some(histogram) = &mut self.magnitudes {
            histogram.observe(sample, BINS);
        }
        if let Some(histogram) = &mut self.from_zero {
            histogram.observe_from_zero(sample, BINS);
        }
        if let Some(histogram) = &mut self.centred {
            histogram.observe(sample, BINS);
        }
        if let Some(histogram) = &mut self.signed {
            histogram.observe(sample, BINS);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bins_are_closed_below_and_the_last_above() {
        let mut histogram = EqualBins::new(vec![0.0, 1.0, 2.0]);
        histogram.count(&[0.0, 0.999, 1.0, 2.0, 2.001, -0.001, f32::NAN], false, |_| None);
        assert_eq!(histogram.counts, [2, 2]);
    }

    #[test]
    fn absolute_histogram_grows_upwards_only() {
        let mut histogram = AbsoluteHistogram::default();
        histogram.observe(&SampleView::new(&[-1.0, 0.0, 0.25]), 4);
        histogram.observe(&SampleView::new(&[2.1, -0.5]), 4);
        assert_eq!(histogram.0.edges[..9], [0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0]);
        assert_eq!((histogram.0.total(), *histogram.0.edges.last().unwrap()), (5, 2.25));
    }

    #[test]
    fn centred_histogram_keeps_old_counts_in_the_middle() {
        let mut histogram = CentredHistogram::default();
        histogram.observe(&SampleView::new(&[-1.0, 1.0, 0.1]), 4);
        histogram.observe(&SampleView::new(&[-2.0]), 4);
        assert_eq!(histogram.histogram.counts, [0, 1, 0, 1, 0, 1, 1, 0, 0, 0][..histogram.histogram.counts.len()]);
    }

    #[test]
    fn signed_histogram_grows_by_whole_bins() {
        let mut histogram = SignedHistogram::default();
        histogram.observe(&SampleView::new(&[0.0, 4.0]), 4);
        histogram.observe(&SampleView::new(&[-1.5, 4.5]), 4);
        assert_eq!(histogram.0.edges, [-2.0, -1.0, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
        assert_eq!(histogram.0.counts, [1, 0, 1, 0, 0, 1, 1]);
    }

    #[test]
    fn wild_growth_is_bounded_in_memory() {
        let mut absolute = AbsoluteHistogram::default();
        let mut centred = CentredHistogram::default();
        let mut signed = SignedHistogram::default();
        for sample in [[1e-30f32, 2e-30], [1e30, -1e30]] {
            absolute.observe(&SampleView::new(&sample), 2048);
            centred.observe(&SampleView::new(&sample), 2048);
            signed.observe(&SampleView::new(&sample), 2048);
        }
        assert_eq!([absolute.0.total(), centred.histogram.total(), signed.0.total()], [4, 4, 4]);
        assert!(absolute.0.counts.len().max(centred.histogram.counts.len()).max(signed.0.counts.len()) <= MOST_BINS);
    }

    /// How many values lie up to a magnitude, by the centres of bins.
    fn within(histogram: &EqualBins, bound: f64) -> u64 {
        let inside = histogram.centres().zip(&histogram.counts).filter(|(centre, _)| centre.abs() <= bound);
        inside.map(|(_, count)| count).sum()
    }

    #[test]
    fn merged_bins_keep_their_counts() {
        // The bins of the first sample are so narrow that the last asks for more than there may be.
        let mut absolute = AbsoluteHistogram::default();
        let mut centred = CentredHistogram::default();
        let mut signed = SignedHistogram::default();
        for sample in [[0.02f32, -0.02], [1.0, -1.0], [0.5, -0.5], [70.0, -70.0]] {
            absolute.observe(&SampleView::new(&sample), 2048);
            centred.observe(&SampleView::new(&sample), 2048);
            signed.observe(&SampleView::new(&sample), 2048);
        }
        for histogram in [&absolute.0, &centred.histogram, &signed.0] {
            assert!(histogram.counts.len() <= MOST_BINS);
            let found = [0.2, 0.7, 1.2, 69.0, 71.0].map(|bound| within(histogram, bound));
            assert_eq!(found, [2, 4, 6, 6, 8]);
        }
    }
}
