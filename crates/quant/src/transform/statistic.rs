//! Statistics of a layer's inputs and weights for transforms, channel by channel. Not the scales that follow.

use kvant_numeric::simd::{Isa, Loop, dispatch};
use rayon::prelude::*;

/// Channels that one thread takes at a time.
const STRETCH: usize = 1024;

/// The sums of magnitudes and the largest magnitude of each input channel.
///
/// Statistics of parts of the data [merge](Self::merge) into that of the whole; sums are in f64 and in the order of the rows,
/// so that the same data gives the same bits for any number of threads. NaN and infinities show in both.
#[derive(Clone, Debug, PartialEq)]
pub struct ChannelStatistic {
    abs_sum: Vec<f64>,
    /// Bits of magnitudes, which order as the magnitudes do, with NaN above all.
    abs_max: Vec<u32>,
    tokens: u64,
}

impl ChannelStatistic {
    /// The statistic of no tokens.
    pub fn new(channels: usize) -> ChannelStatistic {
        ChannelStatistic { abs_sum: vec![0.0; channels], abs_max: vec![0; channels], tokens: 0 }
    }

    /// The statistic again that was taken apart into [`tokens`](Self::tokens), [`abs_sum`](Self::abs_sum) and
    /// [`abs_max`](Self::abs_max); `None` where the two are not of the same channels.
    pub fn from_parts(tokens: u64, abs_sum: Vec<f64>, abs_max: &[f32]) -> Option<ChannelStatistic> {
        let abs_max = abs_max.iter().map(|max| magnitude(*max)).collect::<Vec<u32>>();
        (abs_sum.len() == abs_max.len()).then_some(ChannelStatistic { abs_sum, abs_max, tokens })
    }

    /// Adds rows of inputs, one a token. All threads of the current rayon pool take part.
    ///
    /// # Panics
    /// If the last row is incomplete.
    pub fn update(&mut self, rows: &[f32]) {
        let channels = self.abs_sum.len();
        assert!(rows.is_empty() || channels > 0 && rows.len().is_multiple_of(channels), "rows of {channels} inputs");
        let isa = Isa::best();
        let stretches = self.abs_sum.par_chunks_mut(STRETCH).zip(self.abs_max.par_chunks_mut(STRETCH));
        stretches.enumerate().for_each(|(stretch, (sums, maxima))| {
            dispatch(isa, InputRows { rows, channels, first: stretch * STRETCH, sums, maxima });
        });
        self.tokens += rows.len().checked_div(channels).unwrap_or(0) as u64;
    }

    /// Adds what other tokens gave.
    ///
    /// # Panics
    /// If the numbers of channels differ.
    pub fn merge(&mut self, other: &ChannelStatistic) {
        assert_eq!(self.channels(), other.channels(), "statistics of different channels");
        self.abs_sum.iter_mut().zip(&other.abs_sum).for_each(|(sum, more)| *sum += more);
        join_maxima(&mut self.abs_max, &other.abs_max);
        self.tokens += other.tokens;
    }

    /// Input channels.
    pub fn channels(&self) -> usize {
        self.abs_sum.len()
    }

    /// Tokens seen.
    pub fn tokens(&self) -> u64 {
        self.tokens
    }

    /// `sum |x_j|` of each channel.
    pub fn abs_sum(&self) -> &[f64] {
        &self.abs_sum
    }

    /// `max |x_j|` of each channel; NaN where one was seen.
    pub fn abs_max(&self) -> Vec<f32> {
        self.abs_max.iter().copied().map(f32::from_bits).collect()
    }

    /// The mean of `|x_j|` of each channel; zeros where no token was seen.
    pub fn abs_mean(&self) -> Vec<f32> {
        let tokens = self.tokens.max(1) as f64;
        self.abs_sum.iter().map(|sum| (sum / tokens) as f32).collect()
    }
}

/// Magnitudes of the columns of weights that read the same inputs, read band by band.
#[derive(Clone, Debug, PartialEq)]
pub struct WeightStatistic {
    group: usize,
    abs_max: Vec<u32>,
    /// Sums of `|w| / (max |w| of its row's group)`.
    relative_sum: Vec<f64>,
    rows: u64,
}

impl WeightStatistic {
    /// The statistic of no rows. `group` is the number of columns that share a scale, over which weights are normalised.
    pub fn new(columns: usize, group: usize) -> WeightStatistic {
        let (abs_max, relative_sum) = (vec![0; columns], vec![0.0; columns]);
        WeightStatistic { group: group.clamp(1, columns.max(1)), abs_max, relative_sum, rows: 0 }
    }

    /// Adds rows, of one weight or of another that reads the same inputs.
    ///
    /// # Panics
    /// If the last row is incomplete.
    pub fn update(&mut self, rows: &[f32]) {
        let columns = self.abs_max.len();
        assert!(rows.is_empty() || columns > 0 && rows.len().is_multiple_of(columns), "rows of {columns} weights");
        let (isa, group) = (Isa::best(), self.group);
        // Whole groups, so that a group's maximum is found where it is needed.
        let stretch = group * (STRETCH / group).max(1);
        let stretches = self.relative_sum.par_chunks_mut(stretch).zip(self.abs_max.par_chunks_mut(stretch));
        stretches.enumerate().for_each(|(index, (sums, maxima))| {
            dispatch(isa, Columns { rows, columns, first: index * stretch, group, sums, maxima });
        });
        self.rows += rows.len().checked_div(columns).unwrap_or(0) as u64;
    }

    /// Adds what other rows gave.
    ///
    /// # Panics
    /// If the numbers of columns differ.
    pub fn merge(&mut self, other: &WeightStatistic) {
        assert_eq!(self.abs_max.len(), other.abs_max.len(), "statistics of different columns");
        self.relative_sum.iter_mut().zip(&other.relative_sum).for_each(|(sum, more)| *sum += more);
        join_maxima(&mut self.abs_max, &other.abs_max);
        self.rows += other.rows;
    }

    /// `max_i |W_ij|` of each column; NaN where one was seen.
    pub fn abs_max(&self) -> Vec<f32> {
        self.abs_max.iter().copied().map(f32::from_bits).collect()
    }

    /// The mean over rows of `|W_ij|`, each relative to the largest magnitude of its row's group; zeros where there are no
    /// rows. Groups of zeros count as zeros.
    pub fn relative_mean(&self) -> Vec<f32> {
        let rows = self.rows.max(1) as f64;
        self.relative_sum.iter().map(|sum| (sum / rows) as f32).collect()
    }
}

#[inline(always)]
fn magnitude(value: f32) -> u32 {
    value.to_bits() & (u32::MAX >> 1)
}

fn join_maxima(maxima: &mut [u32], others: &[u32]) {
    maxima.iter_mut().zip(others).for_each(|(max, other)| *max = (*max).max(*other));
}

/// Some channels of all rows.
struct InputRows<'a> {
    rows: &'a [f32],
    channels: usize,
    first: usize,
    sums: &'a mut [f64],
    maxima: &'a mut [u32],
}

impl Loop for InputRows<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        for row in self.rows.chunks_exact(self.channels.max(1)) {
            let values = &row[self.first..self.first + self.sums.len()];
            for ((sum, max), value) in self.sums.iter_mut().zip(self.maxima.iter_mut()).zip(values) {
                *sum += f64::from(value.abs());
                *max = (*max).max(magnitude(*value));
            }
        }
    }
}

/// Some groups of columns of all rows.
struct Columns<'a> {
    rows: &'a [f32],
    columns: usize,
    first: usize,
    group: usize,
    sums: &'a mut [f64],
    maxima: &'a mut [u32],
}

impl Loop for Columns<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Columns { group, sums, maxima, first, .. } = self;
        for row in self.rows.chunks_exact(self.columns.max(1)) {
            let groups = row[first..first + sums.len()].chunks(group);
            for ((values, sums), maxima) in groups.zip(sums.chunks_mut(group)).zip(maxima.chunks_mut(group)) {
                let largest = values.iter().fold(0, |max, value| magnitude(*value).max(max));
                let inverse = 1.0 / f32::from_bits(largest.max(f32::MIN_POSITIVE.to_bits()));
                for ((sum, max), value) in sums.iter_mut().zip(maxima).zip(values) {
                    *sum += f64::from(value.abs() * inverse);
                    *max = (*max).max(magnitude(*value));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(count: usize, seed: usize) -> Vec<f32> {
        (0..count).map(|i| ((i * 37 + seed * 11) % 23) as f32 * 0.25 - 2.75).collect()
    }

    #[test]
    fn channel_statistics_match_the_definition_and_merge() {
        for (tokens, channels) in [(1, 1), (5, 7), (9, 2500)] {
            let x = values(tokens * channels, 1);
            let mut whole = ChannelStatistic::new(channels);
            whole.update(&x);
            let (mut first, mut second) = (ChannelStatistic::new(channels), ChannelStatistic::new(channels));
            first.update(&x[..channels]);
            second.update(&x[channels..]);
            first.merge(&second);
            assert_eq!(first, whole);
            assert_eq!(whole.tokens(), tokens as u64);
            for j in 0..channels {
                let column = || x.iter().skip(j).step_by(channels).map(|v| v.abs());
                assert_eq!(whole.abs_max()[j], column().fold(0.0, f32::max));
                assert_eq!(whole.abs_sum()[j], column().map(f64::from).sum::<f64>());
            }
            let parts = (whole.tokens(), whole.abs_sum().to_vec(), whole.abs_max());
            assert_eq!(ChannelStatistic::from_parts(parts.0, parts.1, &parts.2), Some(whole));
        }
    }

    #[test]
    fn non_finite_inputs_show_in_channel_statistics() {
        for bad in [f32::NAN, f32::NEG_INFINITY] {
            let mut statistic = ChannelStatistic::new(3);
            statistic.update(&[1.0, bad, 2.0, 1.0, 3.0, 0.5]);
            let finite = |values: &[f32]| values.iter().map(|v| v.is_finite()).collect::<Vec<_>>();
            assert_eq!(finite(&statistic.abs_max()), [true, false, true]);
            assert_eq!(finite(&statistic.abs_mean()), [true, false, true]);
        }
    }

    #[test]
    fn weight_statistics_are_relative_to_their_group() {
        let mut statistic = WeightStatistic::new(5, 2);
        statistic.update(&[1.0, -2.0, 0.0, 0.0, 3.0]);
        statistic.update(&[-4.0, 1.0, 2.0, 0.5, -6.0]);
        assert_eq!(statistic.abs_max(), [4.0, 2.0, 2.0, 0.5, 6.0]);
        assert_eq!(statistic.relative_mean(), [0.75, 0.625, 0.5, 0.125, 1.0]);
    }

    #[test]
    fn weight_statistics_do_not_depend_on_bands_or_threads() {
        let (rows, columns) = (33, 3000);
        let w = values(rows * columns, 3);
        let mut whole = WeightStatistic::new(columns, 48);
        whole.update(&w);
        let pool = rayon::ThreadPoolBuilder::new().num_threads(3).build().unwrap();
        let banded = pool.install(|| {
            let mut banded = WeightStatistic::new(columns, 48);
            w.chunks(5 * columns).for_each(|band| banded.update(band));
            banded
        });
        assert_eq!(banded, whole);
    }
}
