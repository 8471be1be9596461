//! What an encoder makes of its last hidden states.

use super::blueprint::{AttentionPool, HiddenRows, ImageLayers, ReadoutLayer, ReadoutLayers};
use super::heads::Heads;
use super::hook::ActivationPoint;
use super::ops::{Attention, Hidden};
use super::run::Run;
use super::spans::Spans;
use kvant_numeric::linalg::{ScoreBias, tanh};
use std::ops::Range;

impl Run<'_, '_> {
    /// What the last layer of a readout reads of last hidden states of `tokens`, quantized where that is; if it ends in another step, its
    /// result.
    pub(super) fn readout_rows(&self, readout: &ReadoutLayers, tokens: &[u32], hidden: &[f32]) -> Vec<f32> {
        let spans = match readout.rows {
            HiddenRows::All => self.spans(),
            _ => Spans::Even(1),
        };
        let (steps, last) = readout.parts();
        let mut width = self.decoder.hidden();
        let mut x = match &readout.pool {
            Some(pool) => self.attended(pool, hidden),
            None => self.hidden_rows(readout.rows, tokens, hidden, width),
        };
        if readout.rows == HiddenRows::FirstAndMeanOfPatches {
            width *= 2;
        }
        let x = self.readout_steps(steps, &mut x, &mut width, spans);
        let Some(layer) = last else { return x };
        self.show(ActivationPoint::Input(&layer.module), &x, width, spans);
        match self.input_quantizer(layer) {
            Some(input) => self.quantized(input, x, width, spans),
            None => x,
        }
    }

    /// Steps on rows of `width` elements, which then is the width of what they give.
    fn readout_steps(&self, steps: &[ReadoutLayer], x: &mut Vec<f32>, width: &mut usize, spans: Spans<'_>) -> Vec<f32> {
        for step in steps {
            match step {
                ReadoutLayer::Linear(layer) => {
                    *x = self.linear_of(layer, x, spans);
                    *width = layer.rows;
                }
                ReadoutLayer::Norm(norm) => self.norm(norm, x, *width),
                ReadoutLayer::Activation(activation) => {
                    let mut out = Vec::new();
                    self.ops.activate(*activation, Hidden::Plain(x), &mut out);
                    *x = out;
                }
                ReadoutLayer::Tanh => {
                    let precision = self.ops.precision();
                    x.iter_mut().for_each(|value| *value = precision.round(tanh(*value)));
                }
                ReadoutLayer::Added(inner) => {
                    let mut inner_width = *width;
                    let added = self.readout_steps(inner, &mut x.clone(), &mut inner_width, spans);
                    self.ops.join(x, &added, 1.0);
                }
            }
        }
        std::mem::take(x)
    }

    /// What a learned query gives that attends to all hidden states of a sequence, a row for each.
    fn attended(&self, pool: &AttentionPool, hidden: &[f32]) -> Vec<f32> {
        let width = self.decoder.hidden();
        let sequences = hidden.len() / (self.length * width).max(1);
        let precision = self.ops.precision();
        let probe: Vec<f32> = self.vector(Some(&pool.probe)).into_iter().map(|value| precision.round(value)).collect();
        let [query, key, value] = &pool.inputs;
        let queries = self.linear_of(query, &probe.repeat(sequences), Spans::Even(1));
        let (keys, values) = (self.linear(key, hidden), self.linear(value, hidden));
        let heads = |data| Heads { data, row_width: width, layout: pool.heads };
        let attention = Attention {
            queries: heads(&queries),
            keys: heads(&keys),
            values: heads(&values),
            length: 1,
            past: self.length - 1,
            foreign: None,
            scale: 1.0 / (pool.heads.width as f32).sqrt(),
            cap: None,
            window: None,
            ahead: 0,
            ends: &[],
            chunk: None,
            sinks: &[],
            bias: ScoreBias::OfKeys(&[]),
            index: None,
            further: None,
        };
        let mut out = Vec::new();
        self.ops.attend(&attention, &mut out);
        self.linear_of(&pool.output, &out, Spans::Even(1))
    }

    /// The elements `range` of what a readout gives, for every row of [`Run::readout_rows`].
    pub(super) fn readout_values(&self, readout: &ReadoutLayers, rows: &[f32], range: Range<usize>) -> Vec<f32> {
        match readout.parts().1 {
            Some(layer) => self.slice_of_linear(layer, rows, range),
            None => rows.chunks_exact(readout.width).flat_map(|row| &row[range.clone()]).copied().collect(),
        }
    }

    /// The hidden states that are read of those of `tokens`, of rows of `width` elements.
    fn hidden_rows(&self, rows: HiddenRows, tokens: &[u32], hidden: &[f32], width: usize) -> Vec<f32> {
        let sequences = || hidden.chunks_exact(self.length * width);
        let row = |sequence: &'_ [f32], at: usize| sequence[at * width..(at + 1) * width].to_vec();
        let found_in = |find: &dyn Fn(&[u32]) -> usize| {
            let both = sequences().zip(tokens.chunks_exact(self.length));
            both.flat_map(|(sequence, tokens)| row(sequence, find(tokens))).collect()
        };
        match rows {
            HiddenRows::All => hidden.to_vec(),
            // What attends to all is not a choice of rows.
            HiddenRows::First | HiddenRows::Attended => sequences().flat_map(|sequence| row(sequence, 0)).collect(),
            HiddenRows::Last => sequences().flat_map(|sequence| row(sequence, self.length - 1)).collect(),
            HiddenRows::Mean => sequences().flat_map(|sequence| mean(sequence, width)).collect(),
            HiddenRows::FirstAndMeanOfPatches => {
                let learned = self.blueprint().images.as_ref().map_or(0, ImageLayers::learned_rows);
                let both = |sequence: &[f32]| [&sequence[..width], &mean(&sequence[learned * width..], width)].concat();
                sequences().flat_map(both).collect()
            }
            HiddenRows::FirstOf(token) => {
                found_in(&|tokens| tokens.iter().position(|found| *found == token).unwrap_or(0))
            }
            HiddenRows::FirstOfLargest => found_in(&|tokens| {
                let largest = tokens.iter().max();
                tokens.iter().position(|found| Some(found) == largest).unwrap_or(0)
            }),
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
