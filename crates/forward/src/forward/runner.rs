//! Single blocks of a decoder, run as often and as differently as a caller likes. Keeps no activations: that is
//! [`super::Pass`]'s.

use super::Decoder;
use super::blueprint::{Block, ReadoutLayers};
use super::buffers::Buffers;
use super::error::ForwardError;
use super::layout::{ImageSpan, SequenceLayout};
use super::ops::Ops;
use super::options::{Flow, ForwardOptions};
use super::pass::Chunk;
use super::rope::Angles;
use super::run::Run;
use super::spans::Spans;
use super::tensors::Projection;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;

/// Runs parts of a decoder. For one thread, which computes on all of the current rayon pool.
///
/// Activations are rows, one per token, of sequences of one length one after the other, or of one sequence with images: see
/// [`SequenceLayout`].
pub struct Runner<'r, 'a> {
    decoder: &'r Decoder<'a>,
    ops: &'r dyn Ops,
    angles: RefCell<BTreeMap<usize, Arc<Vec<Angles>>>>,
    /// Those of the last sequence with images.
    placed: RefCell<Option<PlacedAngles>>,
    buffers: Buffers,
}

/// The angles of a sequence, which depend on the images in it.
struct PlacedAngles {
    length: usize,
    images: Vec<ImageSpan>,
    angles: Arc<Vec<Angles>>,
}

impl<'r, 'a> Runner<'r, 'a> {
    /// For a decoder.
    pub fn new(decoder: &'r Decoder<'a>, ops: &'r dyn Ops) -> Runner<'r, 'a> {
        Runner { decoder, ops, angles: RefCell::default(), placed: RefCell::default(), buffers: Buffers::default() }
    }

    /// The decoder.
    pub fn decoder(&self) -> &'r Decoder<'a> {
        self.decoder
    }

    /// Embeddings of tokens, positions included: what the first block reads.
    ///
    /// # Errors
    ///
    /// Tokens outside the vocabulary, sequences longer than learned positions.
    pub fn embed<'l>(
        &self,
        v: ForwardOptions<'_, 'a>,
        tokens: &[u32],
        layout: impl Into<SequenceLayout<'l>>,
    ) -> Result<Vec<f32>, ForwardError> {
        self.run(v, layout.into()).embed(tokens)
    }

    /// Leads the stream `x` through a block; [`ControlFlow::Break`] where the variation ended it, when `x` is what another
    /// run can resume with: see [`StartFrom`](super::StartFrom).
    pub fn block<'l>(
        &self,
        v: ForwardOptions<'_, 'a>,
        block: usize,
        layout: impl Into<SequenceLayout<'l>>,
        x: &mut [f32],
    ) -> ControlFlow<()> {
        self.run(v, layout.into()).block(block, x)
    }

    /// The branch of a block's token mixer on what its first layers read, to its end.
    pub fn mix<'l>(
        &self,
        v: ForwardOptions<'_, 'a>,
        block: usize,
        layout: impl Into<SequenceLayout<'l>>,
        normed: &[f32],
    ) -> Vec<f32> {
        let mixer = &self.decoder.blueprint.blocks[block].mixer;
        whole(self.run(ForwardOptions { from: None, until: None, ..v }, layout.into()).mix(block, mixer, normed))
    }

    /// The feed-forward branch of a block, dense or a mixture, on what its first layers read, to its end; with what experts add to the
    /// stream behind a later block.
    pub fn feed_forward<'l>(
        &self,
        v: ForwardOptions<'_, 'a>,
        block: usize,
        layout: impl Into<SequenceLayout<'l>>,
        normed: &[f32],
    ) -> Vec<f32> {
        let Block { feed_forward, shortcut, .. } = &self.decoder.blueprint.blocks[block];
        let run = self.run(ForwardOptions { from: None, until: None, ..v }, layout.into());
        let mut out = whole(run.feed_forward(block, feed_forward, normed));
        if let Some(mixture) = shortcut {
            let beside = whole(run.mixture(block, mixture, normed, normed));
            self.ops.join(&mut out, &beside, 1.0);
        }
        out
    }

    /// A linear layer on rows, which are one sequence to quantizers of whole tensors.
    pub fn linear(&self, v: ForwardOptions<'_, 'a>, layer: &Projection, x: &[f32]) -> Vec<f32> {
        self.run(v, 1.into()).linear_of(layer, x, Spans::Even(x.len() / layer.columns.max(1)))
    }

    /// The input of the head: the stream `x` after the last norm.
    pub fn hidden<'l>(&self, v: ForwardOptions<'_, 'a>, layout: impl Into<SequenceLayout<'l>>, x: &[f32]) -> Vec<f32> {
        self.run(v, layout.into()).finish(x)
    }

    /// What the last layer of an encoder's readout reads of [`Runner::hidden`] of a chunk; if it ends in another step, its result.
    pub fn readout_rows(
        &self,
        v: ForwardOptions<'_, 'a>,
        chunk: &Chunk,
        readout: &ReadoutLayers,
        hidden: &[f32],
    ) -> Vec<f32> {
        self.run(v, chunk.into()).readout_rows(readout, &chunk.tokens, hidden)
    }

    /// The elements `range` of what a readout gives, for rows of [`Runner::readout_rows`].
    pub fn readout_values(
        &self,
        v: ForwardOptions<'_, 'a>,
        readout: &ReadoutLayers,
        rows: &[f32],
        range: Range<usize>,
    ) -> Vec<f32> {
        self.run(v, 1.into()).readout_values(readout, rows, range)
    }

    /// Some logits of rows of [`Runner::hidden`]: those of the tokens `range`.
    pub fn logits(&self, v: ForwardOptions<'_, 'a>, hidden: &[f32], range: Range<usize>) -> Vec<f32> {
        self.run(v, 1.into()).logits(hidden, range)
    }

    /// A buffer for so many numbers, of those that earlier runs have used where one is large enough. It holds anything.
    pub fn buffer(&self, elements: usize) -> Vec<f32> {
        self.buffers.take(elements)
    }

    /// A copy of these numbers, in such a buffer.
    pub fn copy(&self, elements: &[f32]) -> Vec<f32> {
        self.buffers.copy(elements)
    }

    /// Takes back a buffer that is no longer used, a run's results or another's.
    pub fn give(&self, buffer: Vec<f32>) {
        self.buffers.give(buffer);
    }

    /// Lets go of memory that is kept for the next run.
    pub fn rest(&self) {
        self.buffers.clear();
    }

    /// Angles are computed once for each length, and for sequences with images once for each that follows another one.
    fn angles_of(&self, layout: SequenceLayout<'_>) -> Arc<Vec<Angles>> {
        let length = layout.length.max(1);
        if layout.images.is_empty() {
            let mut all = self.angles.borrow_mut();
            return Arc::clone(all.entry(length).or_insert_with(|| Arc::new(self.decoder.angles(layout))));
        }
        let mut placed = self.placed.borrow_mut();
        if let Some(last) = placed.as_ref().filter(|last| last.length == length && last.images == layout.images) {
            return Arc::clone(&last.angles);
        }
        let angles = Arc::new(self.decoder.angles(layout));
        *placed = Some(PlacedAngles { length, images: layout.images.to_vec(), angles: Arc::clone(&angles) });
        angles
    }

    /// A run over such sequences.
    pub(super) fn run<'v>(&'v self, with: ForwardOptions<'v, 'a>, layout: SequenceLayout<'v>) -> Run<'v, 'a> {
        let length = layout.length.max(1);
        Run {
            decoder: self.decoder,
            ops: self.ops,
            with,
            length,
            images: layout.images,
            source: layout.source,
            memory: None,
            angles: self.angles_of(layout),
            buffers: &self.buffers,
            step: None,
            shared_keys: None,
            tokens: None,
            shortcut: None,
            keeps_weights: false,
        }
    }
}

/// The result of a run to its end.
fn whole(flow: Flow<Vec<f32>>) -> Vec<f32> {
    match flow {
        ControlFlow::Continue(out) => out,
        ControlFlow::Break(()) => Vec::new(),
    }
}
