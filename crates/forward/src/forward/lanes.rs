//! Several residual streams side by side: their start, what a block does with them, and their end. Rows hold all streams of a token.

use super::blueprint::{LaneMixer, Lanes, LowRank};
use super::options::{Flow, StopAt};
use super::run::Run;
use super::tensors::Projection;
use kvant_numeric::linalg::tanh;
use std::ops::ControlFlow;

/// The least mean square that a projected stream is divided by the root of.
const LEAST: f32 = 1e-5;

impl Run<'_, '_> {
    /// The streams of embeddings `x`: these, and projections of them with the same magnitude.
    pub(super) fn lanes_of(&self, lanes: &Lanes, x: Vec<f32>) -> Vec<Vec<f32>> {
        let target = magnitudes(&x, self.decoder.hidden());
        let others: Vec<Vec<f32>> = lanes.inputs.iter().map(|layer| self.like(layer, &x, &target)).collect();
        std::iter::once(x).chain(others).collect()
    }

    /// The mean of the streams, those behind the first projected to its magnitude.
    pub(super) fn lanes_merged(&self, lanes: &Lanes, streams: &[Vec<f32>]) -> Vec<f32> {
        let Some((first, others)) = streams.split_first() else { return Vec::new() };
        let target = magnitudes(first, self.decoder.hidden());
        let mut sum = first.clone();
        for (layer, stream) in lanes.outputs.iter().zip(others) {
            let projected = self.like(layer, stream, &target);
            sum.iter_mut().zip(&projected).for_each(|(sum, value)| *sum += value);
        }
        let precision = self.ops.precision();
        sum.iter_mut().for_each(|value| *value = precision.round(*value / lanes.count as f32));
        sum
    }

    /// What a layer gives, every row scaled to a magnitude.
    fn like(&self, layer: &Projection, x: &[f32], target: &[f32]) -> Vec<f32> {
        let mut out = self.linear(layer, x);
        let precision = self.ops.precision();
        for (row, target) in out.chunks_exact_mut(layer.rows).zip(target) {
            let own = (row.iter().map(|value| value * value).sum::<f32>() / row.len() as f32).max(LEAST).sqrt();
            row.iter_mut().for_each(|value| *value = precision.round(*value * target / own));
        }
        out
    }

    /// The streams as a block predicts them.
    pub(super) fn predicted(&self, mixer: &LaneMixer, active: usize, streams: &[Vec<f32>]) -> Vec<Vec<f32>> {
        let (width, count) = (self.decoder.hidden(), streams.len());
        let modes = self.modes(mixer, &streams[active]);
        let factors = self.linear(&mixer.prediction, &modes);
        let precision = self.ops.precision();
        let predict = |to: usize| {
            let mut out = streams[to].clone();
            let rows = out.chunks_exact_mut(width).zip(factors.chunks_exact(count * count)).enumerate();
            for (row, (out, factors)) in rows {
                let mut sum = vec![0.0; width];
                for (stream, factor) in streams.iter().zip(&factors[to * count..(to + 1) * count]) {
                    let values = &stream[row * width..(row + 1) * width];
                    sum.iter_mut().zip(values).for_each(|(sum, value)| *sum += factor * value);
                }
                out.iter_mut().zip(sum).for_each(|(out, sum)| *out = precision.round(*out + precision.round(sum)));
            }
            out
        };
        (0..count).map(predict).collect()
    }

    /// Moves predicted streams by what the block has changed its stream to, `computed`.
    pub(super) fn correct(&self, mixer: &LaneMixer, active: usize, streams: &mut [Vec<f32>], computed: &[f32]) {
        let (width, count) = (self.decoder.hidden(), streams.len());
        let modes = self.modes(mixer, computed);
        let factors = self.linear(&mixer.correction, &modes);
        let precision = self.ops.precision();
        let moved: Vec<f32> =
            computed.iter().zip(&streams[active]).map(|(new, old)| precision.round(new - old)).collect();
        for (which, stream) in streams.iter_mut().enumerate() {
            let rows = stream.chunks_exact_mut(width).zip(moved.chunks_exact(width)).enumerate();
            for (row, (values, moved)) in rows {
                let factor = precision.round(factors[row * count + which] + 1.0);
                let both = values.iter_mut().zip(moved);
                both.for_each(|(value, moved)| *value = precision.round(*value + precision.round(factor * moved)));
            }
        }
    }

    /// `tanh(router(norm(x) / width))`, a row per token.
    fn modes(&self, mixer: &LaneMixer, x: &[f32]) -> Vec<f32> {
        let width = self.decoder.hidden();
        let mut normed = self.buffers.copy(x);
        self.norm(&mixer.norm, &mut normed, width);
        self.scale(1.0 / width as f32, &mut normed);
        let mut modes = self.linear(&mixer.router, &normed);
        let precision = self.ops.precision();
        modes.iter_mut().for_each(|mode| *mode = precision.round(tanh(*mode)));
        self.buffers.give(normed);
        modes
    }

    /// What the narrow layers beside attention add for normed rows `x`: these, and a norm of the product.
    pub(super) fn low_rank(&self, layer: &LowRank, x: &[f32]) -> Flow<Vec<f32>> {
        self.enter(StopAt::AttentionInput, &[&layer.down], x, self.spans())?;
        let latent = self.linear(&layer.down, x);
        self.enter(StopAt::LowRankLatent, &[&layer.up], &latent, self.spans())?;
        let mut out = self.linear(&layer.up, &latent);
        self.norm(&layer.norm, &mut out, layer.up.rows);
        self.ops.join(&mut out, x, 1.0);
        self.buffers.give(latent);
        ControlFlow::Continue(out)
    }
}

/// The root of the mean square of every row.
fn magnitudes(x: &[f32], width: usize) -> Vec<f32> {
    let rows = x.chunks_exact(width.max(1));
    rows.map(|row| (row.iter().map(|value| value * value).sum::<f32>() / row.len() as f32).sqrt()).collect()
}
