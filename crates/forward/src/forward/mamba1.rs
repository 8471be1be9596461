//! The Mamba mixer of one block: project, convolve, choose steps and what is written and read, update the state token by token, gate,
//! project back.

use super::blueprint::Mamba1Layer;
use super::heads::{HeadLayout, Heads};
use super::ops::{Gate, GatedNorm, Hidden, SelectiveScan};
use super::options::{Flow, StopAt};
use super::recurrent::softplus;
use super::recurrent_state::RecurrentState;
use super::run::Run;
use kvant_model::model_config::Mamba1Config;
use kvant_numeric::linalg::exp;
use std::ops::ControlFlow;

impl Run<'_, '_> {
    /// The branch of a Mamba mixer on normed rows `x`, up to its output projection.
    pub(super) fn mamba1_heads(&self, block: usize, layer: &Mamba1Layer, x: &[f32]) -> Flow<Vec<f32>> {
        self.enter(StopAt::AttentionInput, &[&layer.input], x, self.spans())?;
        let rows = self.linear(&layer.input, x);
        let count = rows.len() / layer.input.rows;
        let mut flow = ControlFlow::Continue(());
        let heads = self.with_states(block, count, |lengths, states| {
            match self.selective_scan(layer, &rows, lengths, states) {
                ControlFlow::Continue(heads) => heads,
                ControlFlow::Break(()) => {
                    flow = ControlFlow::Break(());
                    Vec::new()
                }
            }
        });
        self.buffers.give(rows);
        flow?;
        ControlFlow::Continue(heads)
    }

    /// The gated outputs of all channels. `rows` are those of the first layer.
    fn selective_scan(
        &self,
        layer: &Mamba1Layer,
        rows: &[f32],
        lengths: &[usize],
        states: &mut [RecurrentState],
    ) -> Flow<Vec<f32>> {
        let Mamba1Config { inner, state, rank, .. } = layer.sizes;
        let part = |start: usize| Heads {
            data: rows,
            row_width: 2 * inner,
            layout: HeadLayout { start, ..HeadLayout::row(inner) },
        };
        let mixed = part(0).gather();
        let convolved = self.convolved(&layer.convolution, &mixed, lengths, states);
        let mut activated = mixed;
        self.ops.activate(layer.activation, Hidden::Plain(&convolved), &mut activated);
        self.buffers.give(convolved);
        self.enter(StopAt::Convolved, &[&layer.choice], &activated, self.spans())?;
        let mut chosen = self.linear(&layer.choice, &activated);
        let width = rank + 2 * state;
        let places = [(0, rank), (rank, state), (rank + state, state)];
        let layout = |(start, width): (usize, usize)| HeadLayout { start, ..HeadLayout::row(width) };
        for (norm, place) in layer.norms.iter().flatten().zip(places) {
            self.ops.normalise(&self.norm_weights(norm), &mut chosen, width, layout(place));
        }
        let view = |place| Heads { data: &chosen, row_width: width, layout: layout(place) };
        let latents = view(places[0]).gather();
        self.enter(StopAt::StepLatent, &[&layer.step], &latents, self.spans())?;
        let mut steps = self.linear(&layer.step, &latents);
        steps.iter_mut().for_each(|step| *step = softplus(*step));
        let rates: Vec<f32> = self.rounded(&layer.decay_log).into_iter().map(exp).collect();
        let scan = SelectiveScan {
            inputs: Heads { data: &activated, row_width: inner, layout: HeadLayout::row(inner) },
            writes: view(places[1]),
            reads: view(places[2]),
            steps: &steps,
            rates: &rates,
            skips: &self.rounded(&layer.skip),
            lengths,
        };
        let mut out = self.buffers.take(steps.len());
        self.ops.selective_scan(&scan, states, &mut out);
        let gate =
            GatedNorm { gates: part(inner), function: Gate::Silu, weight: &[], eps: 0.0, parts: 1, gate_last: false };
        self.ops.gated_norm(&gate, &mut out);
        [activated, chosen, steps].into_iter().for_each(|buffer| self.buffers.give(buffer));
        ControlFlow::Continue(out)
    }
}
