//! What an encoder makes of its last hidden states.

use super::blueprint::{HiddenRows, ReadoutLayer, ReadoutLayers};
use super::hook::ActivationPoint;
use super::ops::Hidden;
use super::run::Run;
use super::spans::Spans;
use kvant_numeric::linalg::tanh;
use std::ops::Range;

impl Run<'_, '_> {
    /// What the last layer of a readout reads of last hidden states, quantized where that is; if it ends in another step, its result.
    pub(super) fn readout_rows(&self, readout: &ReadoutLayers, hidden: &[f32]) -> Vec<f32> {
        let spans = match readout.rows {
            HiddenRows::All => self.spans(),
            HiddenRows::First | HiddenRows::Mean => Spans::Even(1),
        };
        let (steps, last) = readout.parts();
        let mut width = self.decoder.hidden();
        let mut x = self.hidden_rows(readout.rows, hidden, width);
        for step in steps {
            match step {
                ReadoutLayer::Linear(layer) => {
                    x = self.linear_of(layer, &x, spans);
                    width = layer.rows;
                }
                ReadoutLayer::Norm(norm) => self.norm(norm, &mut x, width),
                ReadoutLayer::Activation(activation) => {
                    let mut out = Vec::new();
                    self.ops.activate(*activation, Hidden::Plain(&x), &mut out);
                    x = out;
                }
                ReadoutLayer::Tanh => {
                    let precision = self.ops.precision();
                    x.iter_mut().for_each(|value| *value = precision.round(tanh(*value)));
                }
            }
        }
        let Some(layer) = last else { return x };
        self.show(ActivationPoint::Input(&layer.module), &x, width, spans);
        match self.input_quantizer(layer) {
            Some(input) => self.quantized(input, x, width, spans),
            None => x,
        }
    }

    /// The elements `range` of what a readout gives, for every row of [`Run::readout_rows`].
    pub(super) fn readout_values(&self, readout: &ReadoutLayers, rows: &[f32], range: Range<usize>) -> Vec<f32> {
        match readout.parts().1 {
            Some(layer) => self.slice_of_linear(layer, rows, range),
            None => rows.chunks_exact(readout.width).flat_map(|row| &row[range.clone()]).copied().collect(),
        }
    }

    /// The hidden states that are read, of rows of `width` elements.
    fn hidden_rows(&self, rows: HiddenRows, hidden: &[f32], width: usize) -> Vec<f32> {
        let sequences = || hidden.chunks_exact(self.length * width);
        match rows {
            HiddenRows::All => hidden.to_vec(),
            HiddenRows::First => sequences().flat_map(|sequence| &sequence[..width]).copied().collect(),
            HiddenRows::Mean => sequences().flat_map(|sequence| mean(sequence, width)).collect(),
        }
    }
}

/// The mean of rows of `width` elements.
pub(crate) fn mean(rows: &[f32], width: usize) -> Vec<f32> {
    let mut sums = vec![0.0f64; width];
    for row in rows.chunks_exact(width) {
        sums.iter_mut().zip(row).for_each(|(sum, value)| *sum += f64::from(*value));
    }
    let count = (rows.len() / width.max(1)) as f64;
    sums.into_iter().map(|sum| (sum / count) as f32).collect()
}
