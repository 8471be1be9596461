//! A block on rows of the stream that hold more than the residual stream: what its parts are taken from, and where they go back to.

use super::blueprint::{Block, LaneMixer, Lanes};
use super::options::Flow;
use super::run::Run;
use std::ops::ControlFlow;
use std::sync::{Mutex, PoisonError};

/// The keys, then the values, that several blocks attend to, a row per token: written by the block that makes them.
pub(super) type SharedKeyRows = Mutex<Vec<f32>>;

/// What experts give of the tokens of a run, a row per token: written by their block, and read by that behind which it joins the stream.
pub(super) type ShortcutRows = Mutex<Vec<f32>>;

impl Run<'_, '_> {
    /// Block `index`, on rows `x` of the stream.
    pub(super) fn block(&self, index: usize, x: &mut [f32]) -> Flow<()> {
        match &self.blueprint().stacks {
            Some(stacks) => self.block_of_stacks(stacks, index, x),
            None => self.block_of_stack(index, x),
        }
    }

    /// The same on rows of the block's own stack.
    pub(super) fn block_of_stack(&self, index: usize, x: &mut [f32]) -> Flow<()> {
        let (block, layout) = (&self.blueprint().blocks[index], &self.blueprint().stream);
        if layout.is_plain() {
            self.branches(index, block, x)?;
            self.scale_block(block, x);
            self.add_further_rows(index, x);
            return ControlFlow::Continue(());
        }
        let keys = block.mixer.attention().and_then(|layer| layout.keys_of(layer.key_block));
        let rows = keys.clone().map_or_else(Vec::new, |place| layout.gather(x, place));
        let shared = SharedKeyRows::new(rows);
        let crosses = block.shortcut.is_some() || block.joins_shortcut;
        let shortcut = ShortcutRows::new(if crosses { layout.gather(x, layout.shortcut()) } else { Vec::new() });
        let run = Run {
            shared_keys: keys.is_some().then_some(&shared),
            shortcut: crosses.then_some(&shortcut),
            ..self.clone()
        };
        let tokens = layout.gather_tokens(x);
        let run = Run { tokens: (!tokens.is_empty()).then_some(&tokens[..]), ..run };
        let flow = match (&block.lane_mixer, &self.blueprint().lanes) {
            _ if block.hyper.is_some() => run.block_of_hyper_streams(index, block, x),
            (Some(mixer), Some(lanes)) => run.block_of_lanes(index, block, (mixer, lanes), x),
            _ => {
                let mut residual = layout.gather(x, layout.lane(0));
                let flow = run.whole_block(index, block, x, &mut residual);
                // Where the run ends in the block, another one continues from what it left.
                layout.scatter(&residual, layout.lane(0), x);
                flow
            }
        };
        drop(run);
        if block.shortcut.is_some() {
            let rows = shortcut.into_inner().unwrap_or_else(PoisonError::into_inner);
            layout.scatter(&rows, layout.shortcut(), x);
        }
        if let Some(place) = keys {
            layout.scatter(&shared.into_inner().unwrap_or_else(PoisonError::into_inner), place, x);
        }
        flow
    }

    /// A block on several residual streams. Where the run ends in it, the streams are as they were.
    fn block_of_lanes(
        &self,
        index: usize,
        block: &Block,
        (mixer, lanes): (&LaneMixer, &Lanes),
        rows: &mut [f32],
    ) -> Flow<()> {
        let (layout, active) = (&self.blueprint().stream, lanes.active);
        let mut streams = self.predicted(mixer, active, &layout.gather_lanes(rows));
        let mut computed = streams[active].clone();
        self.branches(index, block, &mut computed)?;
        self.correct(mixer, active, &mut streams, &computed);
        if let Some(layer) = &block.layer_input {
            let mut read = streams[active].clone();
            let (precision, scale) = (self.ops.precision(), self.vector(mixer.output_scale.as_ref()));
            let factors = scale.iter().cycle();
            read.iter_mut().zip(factors).for_each(|(value, factor)| *value = precision.round(*value * factor));
            let added = self.layer_input(layer, &layout.gather(rows, layout.input_of(index)), &read)?;
            streams.iter_mut().skip(1).for_each(|stream| self.ops.join(stream, &added, 1.0));
        }
        for (lane, stream) in streams.iter().enumerate() {
            layout.scatter(stream, layout.lane(lane), rows);
        }
        ControlFlow::Continue(())
    }

    /// A block whose branches mix all residual streams. Where the run ends in it, the streams are as they were.
    fn block_of_hyper_streams(&self, index: usize, block: &Block, rows: &mut [f32]) -> Flow<()> {
        let (layout, streams) = (&self.blueprint().stream, &self.blueprint().hyper);
        let (Some(streams), Some([of_mixer, of_network])) = (streams, &block.hyper) else {
            return ControlFlow::Continue(());
        };
        let mut all = layout.gather(rows, layout.all_lanes());
        let (x, factors) = self.read_streams(streams, of_mixer, &all);
        let branch = self.mix(index, &block.mixer, &self.normed(block.attention_input.as_ref(), &x))?;
        self.write_streams(&branch, &factors, &mut all);
        let (x, factors) = self.read_streams(streams, of_network, &all);
        let branch =
            self.feed_forward(index, &block.feed_forward, &self.normed(block.feed_forward_input.as_ref(), &x))?;
        self.write_streams(&branch, &factors, &mut all);
        layout.scatter(&all, layout.all_lanes(), rows);
        ControlFlow::Continue(())
    }

    /// The branches of a block, and its own input from `rows` of the stream, on the residual stream.
    fn whole_block(&self, index: usize, block: &Block, rows: &[f32], residual: &mut [f32]) -> Flow<()> {
        self.branches(index, block, residual)?;
        if let Some(layer) = &block.layer_input {
            let layout = &self.blueprint().stream;
            let input = layout.gather(rows, layout.input_of(index));
            let added = self.layer_input(layer, &input, residual)?;
            self.ops.join(residual, &added, 1.0);
        }
        self.scale_block(block, residual);
        ControlFlow::Continue(())
    }
}
