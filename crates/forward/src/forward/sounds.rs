//! The stream before the first block of a model of sounds: what convolutions make of each sound, positions included.

use super::blueprint::{ConvolutionNorm, NormLayer, PositionConvolution, SoundConvolution, SoundLayers};
use super::error::ForwardError;
use super::ops::Hidden;
use super::pass::WIDE;
use super::run::{Front, Run};
use super::spans::Spans;
use kvant_data::sounds::{SoundInput, Sounds};
use kvant_model::family::Activation;
use kvant_weights::weight::WeightMatrix;
use std::sync::Arc;

/// Sounds that a model was given, whose rows have numbers one after the other.
#[derive(Clone, Debug)]
pub(super) struct GivenSounds {
    sounds: Arc<Sounds>,
    /// The number of the first row of each sound, and that behind the last.
    starts: Vec<u32>,
}

impl GivenSounds {
    /// Numbers the rows of sounds.
    pub(super) fn new(layers: &SoundLayers, sounds: Arc<Sounds>) -> Result<GivenSounds, ForwardError> {
        let mut starts = vec![0u32];
        for sound in 0..sounds.len() {
            let rows = layers.rows_of(sounds.length(sound)?);
            if rows == 0 {
                return Err(ForwardError::ShortSound { sound: sounds.name(sound) });
            }
            let end = u32::try_from(rows).ok().and_then(|rows| starts.last().copied()?.checked_add(rows));
            // The highest bit marks tokens of encoders.
            let end = end.filter(|end| *end <= i32::MAX as u32);
            starts.push(end.ok_or(ForwardError::TooManySounds { sounds: sounds.len() })?);
        }
        Ok(GivenSounds { sounds, starts })
    }

    /// The numbers of the rows of each sound.
    pub(super) fn sequences(&self) -> Vec<Vec<u32>> {
        self.starts.windows(2).map(|ends| (ends[0]..ends[1]).collect()).collect()
    }

    /// The sound whose rows these are.
    fn sound_of(&self, sequence: &[u32]) -> Option<usize> {
        let sound = self.starts.binary_search(sequence.first()?).ok()?;
        let rows = *self.starts.get(sound)?..*self.starts.get(sound + 1)?;
        sequence.iter().copied().eq(rows).then_some(sound)
    }
}

impl Run<'_, '_> {
    /// Rows of the stream for the tokens of sounds: see [`SoundLayers`].
    pub(super) fn embed_sounds(
        &self,
        layers: &SoundLayers,
        front: Front<'_>,
        tokens: &[u32],
    ) -> Result<Vec<f32>, ForwardError> {
        let given = self.decoder.sounds.as_ref().ok_or(ForwardError::NoSounds)?;
        let width = self.decoder.hidden();
        let mut x = Vec::with_capacity(tokens.len() * width);
        for sequence in tokens.chunks(self.length.max(1)) {
            let last = sequence.last().copied().unwrap_or(0);
            let vocabulary = given.starts.last().copied().unwrap_or(0) as usize;
            let sound = given.sound_of(sequence).ok_or(ForwardError::Token { token: last, vocabulary })?;
            let mut rows = self.rows_of_sound(layers, given.sounds.values(sound)?);
            if let Some(norm) = &layers.norm {
                let features = rows.len() / sequence.len();
                self.norm(norm, &mut rows, features);
            }
            if let Some(layer) = &self.blueprint().project_in {
                rows = self.linear_of(layer, &rows, Spans::Even(sequence.len()));
            }
            if let Some(positions) = &layers.positions {
                let added = self.positions_of(positions, &rows, width);
                self.ops.join(&mut rows, &added, 1.0);
            }
            x.extend(rows);
        }
        self.add_positions(front.positions, tokens, &mut x)?;
        self.norm_if_any(front.norm, &mut x);
        Ok(x)
    }

    /// The rows that all convolutions make of what is read of a sound.
    fn rows_of_sound(&self, layers: &SoundLayers, values: Vec<f32>) -> Vec<f32> {
        let mut x = match layers.input {
            SoundInput::Waveform => values,
            SoundInput::LogMel { bins, frames } => transposed(&values, bins, frames),
        };
        let precision = self.ops.precision();
        x.iter_mut().for_each(|value| *value = precision.round(*value));
        for convolution in &layers.convolutions {
            x = self.convolve(convolution, &x);
        }
        x
    }

    fn convolve(&self, convolution: &SoundConvolution, x: &[f32]) -> Vec<f32> {
        let SoundConvolution { layer, channels, taps, step, before, .. } = convolution;
        let rows = convolution.rows(x.len() / channels);
        // A quantizer of whole tensors sees all of them.
        let is_whole = self.input_quantizer(layer).is_some();
        let band = if is_whole { rows.max(1) } else { (WIDE / layer.columns.max(1)).max(1) };
        let mut out = Vec::with_capacity(rows * layer.rows);
        for first in (0..rows).step_by(band) {
            let end = rows.min(first + band);
            let reading = Patches { x, width: *channels, channels: 0..*channels, taps: *taps };
            let patches = reading.rows((first..end).map(|row| (row * step) as i64 - *before as i64));
            out.extend(self.linear_of(layer, &patches, Spans::Even(end - first)));
        }
        match &convolution.norm {
            None => {}
            Some(ConvolutionNorm::OfRows(norm)) => self.norm(norm, &mut out, layer.rows),
            Some(ConvolutionNorm::OfChannels(norm)) => self.norm_channels(norm, &mut out, layer.rows),
        }
        self.activate_in_place(convolution.activation, &mut out);
        out
    }

    /// The activation of as many values at a time as do not take much memory.
    fn activate_in_place(&self, activation: Activation, x: &mut [f32]) {
        for part in x.chunks_mut(WIDE) {
            let mut active = Vec::new();
            self.ops.activate(activation, Hidden::Plain(part), &mut active);
            part.copy_from_slice(&active);
        }
    }

    /// `(x - mean) / sqrt(var + eps) * w + b` over all rows of each channel.
    fn norm_channels(&self, norm: &NormLayer, x: &mut [f32], width: usize) {
        let weights = self.norm_weights(norm);
        let rows = (x.len() / width.max(1)) as f64;
        let precision = self.ops.precision();
        let (mut means, mut variances) = (vec![0.0f64; width], vec![0.0f64; width]);
        for row in x.chunks_exact(width) {
            means.iter_mut().zip(row).for_each(|(mean, value)| *mean += f64::from(*value) / rows);
        }
        for row in x.chunks_exact(width) {
            let both = variances.iter_mut().zip(row.iter().zip(&means));
            both.for_each(|(variance, (value, mean))| *variance += (f64::from(*value) - mean).powi(2) / rows);
        }
        for row in x.chunks_exact_mut(width) {
            for (channel, value) in row.iter_mut().enumerate() {
                let root = (variances[channel] + f64::from(norm.eps)).sqrt();
                let normed = (f64::from(*value) - means[channel]) / root;
                let bias = weights.bias.get(channel).copied().unwrap_or(0.0);
                *value = precision.round((normed * f64::from(weights.weight[channel])) as f32 + bias);
            }
        }
    }

    /// What a convolution gives for the positions of rows.
    fn positions_of(&self, positions: &PositionConvolution, x: &[f32], width: usize) -> Vec<f32> {
        let PositionConvolution { taps, groups, .. } = *positions;
        let (rows, of_group) = (x.len() / width.max(1), width / groups);
        let (weight, bias) = (self.normed_weight(positions), self.vector(Some(&positions.bias)));
        let columns = of_group * taps;
        let band = (WIDE / columns.max(1)).max(1);
        let mut out = vec![0.0; x.len()];
        for group in 0..groups {
            let channels = group * of_group..(group + 1) * of_group;
            let part = weight[channels.start * columns..channels.end * columns].to_vec();
            let matrix = WeightMatrix::values(Arc::new(part), of_group, columns);
            let reading = Patches { x, width, channels: channels.clone(), taps };
            for first in (0..rows).step_by(band) {
                let patches = reading.rows((first..rows.min(first + band)).map(|row| row as i64 - (taps / 2) as i64));
                let mut given = Vec::new();
                self.ops.linear(&patches, &matrix, Some(&bias[channels.clone()]), &mut given);
                for (row, values) in given.chunks_exact(of_group).enumerate() {
                    let start = (first + row) * width;
                    out[start + channels.start..start + channels.end].copy_from_slice(values);
                }
            }
        }
        self.activate_in_place(positions.activation, &mut out);
        out
    }

    /// `g_k V_k / |V_k|` for each tap `k`.
    fn normed_weight(&self, positions: &PositionConvolution) -> Vec<f32> {
        let (magnitudes, mut weight) =
            (self.vector(Some(&positions.magnitudes)), self.vector(Some(&positions.directions)));
        let precision = self.ops.precision();
        let mut squares = vec![0.0f64; positions.taps];
        for taps in weight.chunks_exact(positions.taps) {
            squares.iter_mut().zip(taps).for_each(|(sum, value)| *sum += f64::from(*value).powi(2));
        }
        for taps in weight.chunks_exact_mut(positions.taps) {
            for ((value, square), magnitude) in taps.iter_mut().zip(&squares).zip(&magnitudes) {
                *value = precision.round((f64::from(*value) * f64::from(*magnitude) / square.sqrt()) as f32);
            }
        }
        weight
    }
}

/// Rows as columns.
fn transposed(values: &[f32], rows: usize, columns: usize) -> Vec<f32> {
    (0..columns).flat_map(|column| (0..rows).map(move |row| values[row * columns + column])).collect()
}

/// What outputs of a convolution read: some channels of rows `x` of `width` elements.
struct Patches<'x> {
    x: &'x [f32],
    width: usize,
    channels: std::ops::Range<usize>,
    taps: usize,
}

impl Patches<'_> {
    /// A row for each of these first rows: the taps of a channel one after the other, 0 outside.
    fn rows(&self, firsts: impl Iterator<Item = i64>) -> Vec<f32> {
        let rows = (self.x.len() / self.width.max(1)) as i64;
        let value = |row: i64, channel: usize| {
            let inside = (0..rows).contains(&row);
            if inside { self.x[row as usize * self.width + channel] } else { 0.0 }
        };
        let mut patches = Vec::new();
        for first in firsts {
            for channel in self.channels.clone() {
                patches.extend((0..self.taps as i64).map(|tap| value(first + tap, channel)));
            }
        }
        patches
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patches_have_the_order_of_a_convolution() {
        let x = [1.0, 10.0, 2.0, 20.0, 3.0, 30.0];
        let reading = Patches { x: &x, width: 2, channels: 0..2, taps: 3 };
        assert_eq!(reading.rows([-1, 1].into_iter()), [0.0, 1.0, 2.0, 0.0, 10.0, 20.0, 2.0, 3.0, 0.0, 20.0, 30.0, 0.0]);
        assert_eq!(Patches { channels: 1..2, ..reading }.rows([0].into_iter()), [10.0, 20.0, 30.0]);
        assert_eq!(transposed(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 2, 3), [1.0, 4.0, 2.0, 5.0, 3.0, 6.0]);
    }
}
