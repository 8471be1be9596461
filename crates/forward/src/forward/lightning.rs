//! The lightning attention of one block: project, activate, update the state token by token, normalise, gate, project back.

use super::blueprint::{DecayRates, LightningLayer};
use super::heads::{HeadLayout, Heads};
use super::ops::{Gate, Hidden, StateSpace};
use super::options::{Flow, StopAt};
use super::recurrent_state::RecurrentState;
use super::run::Run;
use kvant_numeric::linalg::exp;
use std::ops::ControlFlow;

impl Run<'_, '_> {
    /// The branch of lightning attention on normed rows `x`, up to its output projection.
    pub(super) fn lightning_heads(&self, block: usize, layer: &LightningLayer, x: &[f32]) -> Flow<Vec<f32>> {
        self.enter(StopAt::AttentionInput, &[&layer.input, &layer.gate], x, self.spans())?;
        let [rows, gates] = [&layer.input, &layer.gate].map(|layer| self.linear(layer, x));
        let mut activated = self.buffers.take(rows.len());
        self.ops.activate(layer.activation, Hidden::Plain(&rows), &mut activated);
        let count = rows.len() / layer.input.rows;
        let mut heads =
            self.with_states(block, count, |lengths, states| self.decaying_sums(layer, &activated, lengths, states));
        let width = layer.heads * layer.width;
        self.norm(&layer.norm, &mut heads, width);
        let gates_of_rows = Heads { data: &gates, row_width: width, layout: HeadLayout::row(width) };
        self.ops.gate(Gate::Sigmoid, &gates_of_rows, &mut heads);
        [rows, gates, activated].into_iter().for_each(|buffer| self.buffers.give(buffer));
        ControlFlow::Continue(heads)
    }

    /// What queries read of the states, all heads side by side: a state-space layer whose inputs are values, which keys write and queries
    /// read. `rows` hold the query, the key and the value of each head.
    fn decaying_sums(
        &self,
        layer: &LightningLayer,
        rows: &[f32],
        lengths: &[usize],
        states: &mut [RecurrentState],
    ) -> Vec<f32> {
        let (count, width) = (layer.heads, layer.width);
        let part = |which: usize| Heads {
            data: rows,
            row_width: layer.input.rows,
            layout: HeadLayout { start: which * width, step: 3 * width, width, count },
        };
        let tokens = rows.len() / layer.input.rows;
        let decays: Vec<f32> = self.lightning_rates(layer).iter().map(|rate| exp(-rate)).collect();
        let task = StateSpace {
            inputs: part(2),
            writes: part(1),
            reads: part(0),
            steps: &vec![1.0; tokens * count],
            decays: &decays.repeat(tokens),
            skips: &vec![0.0; count],
            lengths,
        };
        let mut out = self.buffers.take(tokens * count * width);
        self.ops.state_space(&task, states, &mut out);
        let precision = self.ops.precision();
        out.iter_mut().for_each(|value| *value = precision.round(*value));
        out
    }

    /// The rate at which the state of each head decays.
    pub(super) fn lightning_rates(&self, layer: &LightningLayer) -> Vec<f32> {
        match &layer.rates {
            DecayRates::Stored(rates) => self.vector(Some(rates)),
            DecayRates::Computed(rates) => rates.clone(),
        }
    }
}
