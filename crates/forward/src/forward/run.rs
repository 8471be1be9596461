//! One run of a decoder over some sequences: embeddings, a block, the head. Holds the activations of one block.

use super::Decoder;
use super::blueprint::{
    BehindBranch, Block, Blueprint, EncoderParts, FeedForward, Mixture, NormLayer, PositionTable, RoutedBranch,
    Sinusoids, Stacks, TokenMixer,
};
use super::buffers::Buffers;
use super::error::ForwardError;
use super::heads::HeadLayout;
use super::hook::{ActivationPoint, Rows};
use super::layout::ImageSpan;
use super::ops::{NormWeights, Ops};
use super::options::{Flow, ForwardOptions, StartFrom, StopAt};
use super::quantizers::quantize;
use super::rope::Angles;
use super::spans::Spans;
use super::step::Step;
use super::stream::{SharedKeyRows, ShortcutRows};
use super::tensors::{Projection, Tensors, Vector};
use kvant_model::family::Residual;
use kvant_numeric::linalg::tanh;
use kvant_numeric::simd::Isa;
use kvant_quant::activation::ActivationQuantizer;
use kvant_weights::weight::{Band, WeightMatrix};
use rayon::prelude::*;
use std::borrow::Cow;
use std::f32::consts::FRAC_1_SQRT_2;
use std::ops::{ControlFlow, Range};
use std::sync::{Arc, PoisonError};

/// A decoder over sequences of one length.
#[derive(Clone)]
pub(super) struct Run<'r, 'a> {
    pub(super) decoder: &'r Decoder<'a>,
    pub(super) ops: &'r dyn Ops,
    pub(super) with: ForwardOptions<'r, 'a>,
    /// Tokens of a sequence.
    pub(super) length: usize,
    /// The images in the sequence, which is the only one where there are some.
    pub(super) images: &'r [ImageSpan],
    /// Those at its start that the encoder of an encoder-decoder reads, where rows are those of both stacks.
    pub(super) source: usize,
    /// What the encoder gives, a row for each of so many tokens of every sequence, in blocks of the decoder.
    pub(super) memory: Option<(&'r [f32], usize)>,
    /// Those of the blueprint's rotary embeddings.
    pub(super) angles: Arc<Vec<Angles>>,
    pub(super) buffers: &'r Buffers,
    /// The sequences that the rows continue; `None` where rows are whole sequences of `length` tokens.
    pub(super) step: Option<&'r Step>,
    /// The keys and values that the block attends to and others too.
    pub(super) shared_keys: Option<&'r SharedKeyRows>,
    /// The numbers of the tokens of rows, where a block chooses experts by them.
    pub(super) tokens: Option<&'r [usize]>,
    /// What experts add to the stream behind a later block.
    pub(super) shortcut: Option<&'r ShortcutRows>,
    /// Whether weights stay mapped after their use, because they are needed again soon.
    pub(super) keeps_weights: bool,
}

/// What makes rows of tokens before the blocks of a stack.
pub(super) struct Front<'f> {
    embedding: &'f Projection,
    pub(super) positions: Option<&'f PositionTable>,
    sinusoids: Option<&'f Sinusoids>,
    pub(super) norm: Option<&'f NormLayer>,
}

impl<'f> Front<'f> {
    /// That of a model's blocks, of an encoder-decoder those of its decoder.
    pub(super) fn of_blocks(blueprint: &'f Blueprint) -> Front<'f> {
        Front {
            embedding: &blueprint.embedding,
            positions: blueprint.positions.as_ref(),
            sinusoids: blueprint.sinusoids.as_ref(),
            norm: blueprint.embedding_norm.as_ref(),
        }
    }

    /// That of the encoder of an encoder-decoder.
    pub(super) fn of_encoder(stacks: &'f Stacks) -> Front<'f> {
        Front {
            embedding: &stacks.embedding,
            positions: stacks.positions.as_ref(),
            sinusoids: stacks.sinusoids.as_ref(),
            norm: stacks.embedding_norm.as_ref(),
        }
    }
}

impl<'a> Run<'_, 'a> {
    fn tensors(&self) -> &Tensors<'a> {
        &self.decoder.tensors
    }

    fn weight(&self, layer: &Projection) -> WeightMatrix<'a> {
        let overlaid = self.with.overlay.and_then(|overlay| overlay.weight(&layer.module));
        overlaid.map_or_else(|| self.tensors().weight(layer), WeightMatrix::clone)
    }

    fn release(&self, layer: &Projection) {
        if !self.keeps_weights {
            self.tensors().release(layer);
        }
    }

    /// Which rows are of one sequence.
    pub(super) fn spans(&self) -> Spans<'_> {
        match self.step {
            Some(step) => Spans::Listed(step.lengths()),
            None if self.images.is_empty() => Spans::Even(self.length),
            None => Spans::One(self.images),
        }
    }

    /// The sequence of a row.
    pub(super) fn sequence_of(&self, row: usize) -> usize {
        self.step.map_or(row / self.length.max(1), |step| step.sequence_of(row))
    }

    pub(super) fn bias(&self, layer: &Projection) -> Option<Cow<'_, [f32]>> {
        let overlaid = self.with.overlay.and_then(|overlay| overlay.bias(&layer.module));
        overlaid.map(Cow::Borrowed).or_else(|| self.tensors().bias(layer).map(Cow::Owned))
    }

    /// A vector's elements; none where there is no vector.
    pub(super) fn vector(&self, vector: Option<&Vector>) -> Vec<f32> {
        let Some(vector) = vector else { return Vec::new() };
        let overlaid = self.with.overlay.and_then(|overlay| overlay.vector(vector));
        overlaid.map_or_else(|| self.tensors().values(vector), <[f32]>::to_vec)
    }

    pub(super) fn input_quantizer(&self, layer: &Projection) -> Option<&ActivationQuantizer> {
        let overlaid = self.with.overlay.and_then(|overlay| overlay.input(&layer.module));
        overlaid.or_else(|| self.decoder.quantizers.layer(&layer.module)?.input.as_ref())
    }

    fn output_quantizer(&self, layer: &Projection) -> Option<&ActivationQuantizer> {
        self.decoder.quantizers.layer(&layer.module)?.output.as_ref()
    }

    pub(super) fn blueprint(&self) -> &Blueprint {
        &self.decoder.blueprint
    }

    /// The layer on rows `x` of whole sequences.
    pub(super) fn linear(&self, layer: &Projection, x: &[f32]) -> Vec<f32> {
        self.linear_of(layer, x, self.spans())
    }

    /// The layer on rows `x`.
    pub(super) fn linear_of(&self, layer: &Projection, x: &[f32], spans: Spans<'_>) -> Vec<f32> {
        match self.rotated(layer, x) {
            Cow::Borrowed(x) => self.linear_of_read(layer, x, spans),
            Cow::Owned(x) => {
                let out = self.linear_of_read(layer, &x, spans);
                self.buffers.give(x);
                out
            }
        }
    }

    /// The layer on rows `x`, which are rotated already where the layer's inputs are.
    pub(super) fn linear_of_read(&self, layer: &Projection, x: &[f32], spans: Spans<'_>) -> Vec<f32> {
        self.show(ActivationPoint::Input(&layer.module), x, layer.columns, spans);
        let x = match self.input_quantizer(layer) {
            Some(input) => Cow::Owned(self.quantized(input, x.to_vec(), layer.columns, spans)),
            None => Cow::Borrowed(x),
        };
        let mut out = self.buffers.take(x.len() / layer.columns.max(1) * layer.rows);
        self.ops.linear(&x, &self.weight(layer), self.bias(layer).as_deref(), &mut out);
        self.release(layer);
        self.show(ActivationPoint::Output(&layer.module), &out, layer.rows, spans);
        match self.output_quantizer(layer) {
            Some(output) => self.quantized(output, out, layer.rows, spans),
            None => out,
        }
    }

    /// The outputs `range` of a layer for rows `x` of whole sequences that are only theirs.
    pub(super) fn part_of_linear(&self, layer: &Projection, x: &[f32], range: Range<usize>) -> Vec<f32> {
        let spans = self.spans();
        let rotated = self.rotated(layer, x);
        let x = &*rotated;
        self.show(ActivationPoint::Input(&layer.module), x, layer.columns, spans);
        let x = match self.input_quantizer(layer) {
            Some(input) => Cow::Owned(self.quantized(input, x.to_vec(), layer.columns, spans)),
            None => Cow::Borrowed(x),
        };
        let width = range.len();
        let out = self.slice_of_linear(layer, &x, range);
        match self.output_quantizer(layer) {
            Some(output) => self.quantized(output, out, width, spans),
            None => out,
        }
    }

    /// The same run with another end.
    fn until(&self, depth: StopAt) -> Self {
        Run { with: ForwardOptions { until: Some(depth), ..self.with }, ..self.clone() }
    }

    pub(super) fn quantized(
        &self,
        quantizer: &ActivationQuantizer,
        mut data: Vec<f32>,
        columns: usize,
        spans: Spans<'_>,
    ) -> Vec<f32> {
        quantize(quantizer, Isa::best(), self.ops.arithmetic(), &mut data, columns, spans);
        data
    }

    /// Shows rows to whoever looks.
    pub(super) fn show(&self, site: ActivationPoint<'_>, data: &[f32], columns: usize, spans: Spans<'_>) {
        if let Some(tap) = self.with.tap.filter(|tap| tap.wants(site)) {
            tap.see(site, Rows { data, columns, spans });
        }
    }

    pub(super) fn norm_weights(&self, norm: &NormLayer) -> NormWeights {
        let joined = |vectors: &[Vector]| vectors.iter().flat_map(|vector| self.vector(Some(vector))).collect();
        let (weight, bias) = (joined(&norm.weight), joined(&norm.bias));
        NormWeights { kind: norm.kind, weight, bias, eps: norm.eps }
    }

    /// Normalises rows of `width` elements.
    pub(super) fn norm(&self, norm: &NormLayer, data: &mut [f32], width: usize) {
        self.ops.normalise(&self.norm_weights(norm), data, width, HeadLayout::row(width));
    }

    /// Normalises rows of the stream, where there is a norm.
    pub(super) fn norm_if_any(&self, norm: Option<&NormLayer>, x: &mut [f32]) {
        if let Some(norm) = norm {
            self.norm(norm, x, self.decoder.hidden());
        }
    }

    pub(super) fn normed(&self, norm: Option<&NormLayer>, x: &[f32]) -> Vec<f32> {
        let mut out = self.buffers.copy(x);
        if let Some(norm) = norm {
            self.norm(norm, &mut out, self.decoder.hidden());
        }
        out
    }

    /// The stream before the first block: embeddings of tokens, positions included, and what blocks read besides.
    pub(super) fn embed(&self, tokens: &[u32]) -> Result<Vec<f32>, ForwardError> {
        if let Some(images) = &self.blueprint().images {
            return self.embed_images(images, tokens);
        }
        if let Some(grids) = &self.blueprint().grids {
            return self.embed_grid(grids, tokens);
        }
        match (&self.blueprint().stacks, &self.blueprint().sounds) {
            (Some(stacks), _) => self.embed_stacks(stacks, tokens),
            (None, Some(sounds)) => self.embed_sounds(sounds, Front::of_blocks(self.blueprint()), tokens),
            (None, None) => self.embed_tokens(Front::of_blocks(self.blueprint()), tokens),
        }
    }

    /// The same of the tokens of one stack.
    pub(super) fn embed_tokens(&self, front: Front<'_>, tokens: &[u32]) -> Result<Vec<f32>, ForwardError> {
        let table = front.embedding;
        let vocabulary = table.rows.min(self.blueprint().head.rows);
        let mut x = Vec::with_capacity(tokens.len() * table.columns);
        for (at, token) in tokens.iter().enumerate() {
            if self.images.iter().any(|image| image.rows.contains(&at)) {
                x.resize(x.len() + table.columns, 0.0);
                continue;
            }
            let row = usize::try_from(*token).ok().filter(|row| *row < vocabulary);
            let row = row.ok_or(ForwardError::Token { token: *token, vocabulary })?;
            self.read_row(table, row, &mut x);
        }
        let (precision, scale) = (self.ops.precision(), self.blueprint().embedding_scale);
        let scale = precision.round(scale);
        x.iter_mut().for_each(|x| *x = precision.round(precision.round(*x) * scale));
        self.place_images(&mut x)?;
        let (project, encoder) = (self.blueprint().project_in.as_ref(), self.blueprint().encoder.as_ref());
        if let Some(layer) = project.filter(|_| encoder.is_none()) {
            x = self.linear(layer, &x);
        }
        if let Some(encoder) = encoder {
            self.drop_tokens(encoder, tokens, &mut x);
            self.add_token_types(encoder, &mut x);
        }
        self.add_positions(front.positions, tokens, &mut x)?;
        self.add_sinusoids(front.sinusoids, tokens.len(), &mut x);
        if let Some(norm) = front.norm {
            let width = x.len() / tokens.len().max(1);
            self.norm(norm, &mut x, width);
        }
        if let Some(layer) = project.filter(|_| encoder.is_some()) {
            x = self.linear(layer, &x);
        }
        Ok(self.widened(tokens, x))
    }

    /// Embeddings without those of a dropped token, the others scaled to what is usual: in training 12 % of the tokens are dropped.
    fn drop_tokens(&self, encoder: &EncoderParts, tokens: &[u32], x: &mut [f32]) {
        const USUAL: f32 = 0.15 * 0.8;
        let Some(dropped) = encoder.dropped_token else { return };
        let width = x.len() / tokens.len().max(1);
        let precision = self.ops.precision();
        for (tokens, x) in tokens.chunks(self.length).zip(x.chunks_mut(self.length * width)) {
            let share = tokens.iter().filter(|token| **token == dropped).count() as f32 / tokens.len() as f32;
            for (token, row) in tokens.iter().zip(x.chunks_exact_mut(width)) {
                let kept = if *token == dropped { 0.0 } else { 1.0 };
                row.iter_mut()
                    .for_each(|value| *value = precision.round(kept * *value * (1.0 - USUAL) / (1.0 - share)));
            }
        }
    }

    fn add_token_types(&self, encoder: &EncoderParts, x: &mut [f32]) {
        let Some(table) = &encoder.token_types else { return };
        let mut first = Vec::new();
        self.read_row(table, 0, &mut first);
        x.chunks_exact_mut(table.columns).for_each(|row| self.ops.join(row, &first, 1.0));
    }

    /// Rows of the stream for embeddings `x`.
    fn widened(&self, tokens: &[u32], x: Vec<f32>) -> Vec<f32> {
        let layout = &self.blueprint().stream;
        if layout.is_plain() {
            return x;
        }
        let mut rows = vec![0.0; tokens.len() * layout.width()];
        if let Some(inputs) = &self.blueprint().layer_inputs {
            layout.scatter(&self.layer_inputs(inputs, tokens, &x), layout.inputs(), &mut rows);
        }
        let streams = match (&self.blueprint().lanes, &self.blueprint().hyper) {
            (Some(lanes), _) => self.lanes_of(lanes, x),
            (None, Some(streams)) => vec![x; streams.count],
            (None, None) => vec![x],
        };
        if !layout.token().is_empty() {
            let numbers: Vec<f32> = tokens.iter().map(|token| *token as f32).collect();
            layout.scatter(&numbers, layout.token(), &mut rows);
        }
        for (lane, stream) in streams.iter().enumerate() {
            layout.scatter(stream, layout.lane(lane), &mut rows);
        }
        rows
    }

    /// One row of a table, appended to `out`.
    pub(super) fn read_row(&self, table: &Projection, row: usize, out: &mut Vec<f32>) {
        let band = Band { rows: row..row + 1, columns: 0..table.columns };
        self.weight(table).read(Isa::best(), &band, out);
    }

    pub(super) fn add_positions(
        &self,
        positions: Option<&PositionTable>,
        tokens: &[u32],
        x: &mut [f32],
    ) -> Result<(), ForwardError> {
        let Some(positions) = positions else { return Ok(()) };
        let (PositionTable { table, offset, padding }, longest) = (positions, positions.longest());
        if let Some(step) = self.step {
            let length = step.longest();
            if length > longest {
                return Err(ForwardError::TooLong { length, longest });
            }
            let mut rows = Vec::new();
            step.positions().for_each(|position| self.read_row(table, position + offset, &mut rows));
            self.ops.join(x, &rows, 1.0);
            return Ok(());
        }
        if self.length > longest {
            return Err(ForwardError::TooLong { length: self.length, longest });
        }
        let mut rows = Vec::new();
        if let Some(padding) = padding.filter(|padding| tokens.contains(padding)) {
            for sequence in tokens.chunks(self.length) {
                let mut next = *offset;
                for token in sequence {
                    let is_padding = *token == padding;
                    self.read_row(table, if is_padding { *offset - 1 } else { next }, &mut rows);
                    next += usize::from(!is_padding);
                }
            }
            self.ops.join(x, &rows, 1.0);
            return Ok(());
        }
        (0..self.length).for_each(|position| self.read_row(table, position + offset, &mut rows));
        for sequence in x.chunks_mut(self.length * table.columns) {
            self.ops.join(sequence, &rows, 1.0);
        }
        Ok(())
    }

    /// Adds positions that are computed to the embeddings of `count` tokens.
    fn add_sinusoids(&self, sinusoids: Option<&Sinusoids>, count: usize, x: &mut [f32]) {
        let Some(sinusoids) = sinusoids else { return };
        let positions: Box<dyn Iterator<Item = usize>> = match self.step {
            Some(step) => Box::new(step.positions()),
            None => Box::new((0..self.length).cycle()),
        };
        let precision = self.ops.precision();
        let mut rows = Vec::with_capacity(x.len());
        positions.take(count).for_each(|position| sinusoids.extend(position, &mut rows));
        rows.iter_mut().for_each(|value| *value = precision.round(*value));
        self.ops.join(x, &rows, 1.0);
    }

    /// The branches of a block, on the residual stream `x`.
    pub(super) fn branches(&self, index: usize, block: &Block, x: &mut [f32]) -> Flow<()> {
        match block.residual {
            Residual::Parallel => self.parallel(index, block, x),
            Residual::PostNorm => self.post_norm(index, block, x),
            Residual::OfNorm => self.of_norm(index, block, x),
            _ => self.sequential(index, block, x),
        }
    }

    fn sequential(&self, index: usize, block: &Block, x: &mut [f32]) -> Flow<()> {
        // Where the run ends, it ends in both: each is seen.
        let beside = self.low_rank_branch(block, x);
        let branch = self.mixer_branch(index, block, || self.normed(block.attention_input.as_ref(), x));
        let (beside, branch) = (beside?, branch?);
        if let Some(branch) = branch {
            self.join(block, x, branch, block.after_attention());
        }
        if let Some(added) = beside {
            self.ops.join(x, &added, 1.0);
            self.scale(self.ops.precision().round(FRAC_1_SQRT_2), x);
        }
        if let FeedForward::Absent = block.feed_forward {
            return self.without_network();
        }
        let branch = self.feed_forward_branch(index, block, || self.normed(block.feed_forward_input.as_ref(), x));
        let branch = match (&block.routed, &block.shortcut) {
            (Some(routed), _) => self.with_routed(index, routed, branch, x)?,
            (None, Some(mixture)) => {
                // Where the run ends, it ends in both: each is seen.
                let flow = self.run_shortcut(index, mixture, &self.normed(block.feed_forward_input.as_ref(), x));
                let branch = branch?;
                flow?;
                branch
            }
            (None, None) => branch?,
        };
        self.join(block, x, branch, block.after_feed_forward());
        if block.joins_shortcut {
            self.join_shortcut(x);
        }
        ControlFlow::Continue(())
    }

    /// The end of a block without a feed-forward network, which is before every end that was asked for.
    fn without_network(&self) -> Flow<()> {
        if self.with.until.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    /// The experts of normed rows `x`, whose output is kept for a later block.
    fn run_shortcut(&self, index: usize, mixture: &Mixture, x: &[f32]) -> Flow<()> {
        let out = self.mixture(index, mixture, x, x)?;
        if let Some(rows) = self.shortcut {
            *rows.lock().unwrap_or_else(PoisonError::into_inner) = out;
        }
        ControlFlow::Continue(())
    }

    /// Adds to the stream what experts of the block before have given.
    fn join_shortcut(&self, x: &mut [f32]) {
        if let Some(rows) = self.shortcut {
            self.ops.join(x, &rows.lock().unwrap_or_else(PoisonError::into_inner), 1.0);
        }
    }

    /// Multiplies the stream behind a block by its factor.
    pub(super) fn scale_block(&self, block: &Block, x: &mut [f32]) {
        if let Some(scalar) = self.vector(block.scalar.as_ref()).first() {
            self.scale(*scalar, x);
        }
    }

    /// The sum of the dense network's branch and of the experts beside it, which read the stream `x`.
    fn with_routed(&self, index: usize, routed: &RoutedBranch, dense: Flow<Vec<f32>>, x: &[f32]) -> Flow<Vec<f32>> {
        let mut scored = self.normed(Some(&routed.router_norm), x);
        self.scale(routed.router_scale, &mut scored);
        let read = self.normed(Some(&routed.input), x);
        // Where the run ends, it ends in both: each is seen.
        let experts = self.mixture(index, &routed.mixture, &read, &scored);
        let (mut dense, mut experts) = (dense?, experts?);
        self.norm(&routed.dense_output, &mut dense, self.decoder.hidden());
        self.norm(&routed.output, &mut experts, self.decoder.hidden());
        self.ops.join(&mut dense, &experts, 1.0);
        [scored, read, experts].into_iter().for_each(|buffer| self.buffers.give(buffer));
        ControlFlow::Continue(dense)
    }

    /// What narrow layers beside attention add to the stream `x`, unless the run begins behind attention.
    fn low_rank_branch(&self, block: &Block, x: &[f32]) -> Flow<Option<Vec<f32>>> {
        match (&block.low_rank, self.with.from) {
            (Some(layer), None | Some(StartFrom::Heads(_))) => {
                let normed = self.normed(block.attention_input.as_ref(), x);
                ControlFlow::Continue(Some(self.low_rank(layer, &normed)?))
            }
            _ => ControlFlow::Continue(None),
        }
    }

    /// The token mixer on what `read` gives, from where the run begins; `None` where it begins behind it.
    fn mixer_branch(&self, index: usize, block: &Block, read: impl FnOnce() -> Vec<f32>) -> Flow<Option<Vec<f32>>> {
        if let TokenMixer::Absent = block.mixer {
            return match self.with.until {
                Some(until) if until < StopAt::FeedForward => ControlFlow::Break(()),
                _ => ControlFlow::Continue(None),
            };
        }
        ControlFlow::Continue(match self.with.from {
            None => {
                let x = read();
                let out = self.mix(index, &block.mixer, &x)?;
                self.buffers.give(x);
                Some(out)
            }
            Some(StartFrom::Heads(heads)) => Some(self.mixer_output(&block.mixer, heads)?),
            Some(StartFrom::FeedForward | StartFrom::Hidden(_)) => None,
        })
    }

    /// The feed-forward network of what `read` gives, from where the run begins.
    fn feed_forward_branch(&self, index: usize, block: &Block, read: impl FnOnce() -> Vec<f32>) -> Flow<Vec<f32>> {
        match (self.with.from, &block.feed_forward) {
            (Some(StartFrom::Hidden(hidden)), FeedForward::Dense(mlp)) => self.mlp_output(mlp, hidden, self.spans()),
            (_, network) => {
                let x = read();
                let out = self.feed_forward(index, network, &x)?;
                self.buffers.give(x);
                ControlFlow::Continue(out)
            }
        }
    }

    fn parallel(&self, index: usize, block: &Block, x: &mut [f32]) -> Flow<()> {
        let normed = self.normed(block.attention_input.as_ref(), x);
        let second = block.feed_forward_input.as_ref().map(|norm| self.normed(Some(norm), x));
        if second.is_none() {
            self.enter_both(index, block, &normed)?;
        }
        let attention = self.mix(index, &block.mixer, &normed)?;
        let feed_forward = self.feed_forward(index, &block.feed_forward, second.as_ref().unwrap_or(&normed))?;
        self.join(block, x, attention, block.after_attention());
        self.join(block, x, feed_forward, block.after_feed_forward());
        ControlFlow::Continue(())
    }

    /// Returns whether the run ends at the input that both branches share.
    fn enter_both(&self, index: usize, block: &Block, normed: &[f32]) -> Flow<()> {
        if self.with.until != Some(StopAt::AttentionInput) {
            return ControlFlow::Continue(());
        }
        let _ = self.mix(index, &block.mixer, normed);
        match &block.feed_forward {
            FeedForward::Absent => {}
            FeedForward::Dense(_) => {
                let _ = self.until(StopAt::FeedForward).feed_forward(index, &block.feed_forward, normed);
            }
            // Experts read rows that are not chosen yet.
            FeedForward::Mixture(mixture) => {
                let shared = mixture.shared.iter().flat_map(|shared| shared.first.layers());
                for layer in std::iter::once(&mixture.router).chain(&mixture.shared_gate).chain(shared) {
                    self.show_input(layer, normed, self.spans());
                }
            }
        }
        ControlFlow::Break(())
    }

    fn post_norm(&self, index: usize, block: &Block, x: &mut [f32]) -> Flow<()> {
        if let Some(branch) = self.mixer_branch(index, block, || x.to_vec())? {
            self.join(block, x, branch, (None, None));
            x.copy_from_slice(&self.normed(block.attention_input.as_ref(), x));
        }
        if let FeedForward::Absent = block.feed_forward {
            return self.without_network();
        }
        let branch = self.feed_forward_branch(index, block, || x.to_vec())?;
        self.join(block, x, branch, (None, None));
        x.copy_from_slice(&self.normed(block.feed_forward_input.as_ref(), x));
        ControlFlow::Continue(())
    }

    fn of_norm(&self, index: usize, block: &Block, x: &mut [f32]) -> Flow<()> {
        // Where the run ends in the mixer, the stream is as it was.
        let read = self.normed(block.attention_input.as_ref(), x);
        if let Some(branch) = self.mixer_branch(index, block, || self.buffers.copy(&read))? {
            self.share(block.shares[0], (read, branch), x);
        }
        let read = self.normed(block.feed_forward_input.as_ref(), x);
        let branch = self.feed_forward_branch(index, block, || self.buffers.copy(&read))?;
        self.share(block.shares[1], (read, branch), x);
        ControlFlow::Continue(())
    }

    /// `x = a residual + b branch`.
    fn share(&self, [a, b]: [f32; 2], (mut residual, mut branch): (Vec<f32>, Vec<f32>), x: &mut [f32]) {
        self.scale(a, &mut residual);
        self.scale(b, &mut branch);
        self.ops.join(&mut residual, &branch, 1.0);
        x.copy_from_slice(&residual);
        [residual, branch].into_iter().for_each(|buffer| self.buffers.give(buffer));
    }

    /// Multiplies `data` by a factor, unless that is 1.
    pub(super) fn scale(&self, factor: f32, data: &mut [f32]) {
        if factor != 1.0 {
            let precision = self.ops.precision();
            data.iter_mut().for_each(|value| *value = precision.round(*value * factor));
        }
    }

    /// `x += scale * (scales * norm(branch))`, each where the block has it.
    fn join(&self, block: &Block, x: &mut [f32], mut branch: Vec<f32>, (norm, scales): BehindBranch<'_>) {
        if let Some(norm) = norm {
            self.norm(norm, &mut branch, self.decoder.hidden());
        }
        if let Some(scales) = scales {
            let (precision, scales) = (self.ops.precision(), self.vector(Some(scales)));
            for row in branch.chunks_exact_mut(scales.len().max(1)) {
                row.iter_mut().zip(&scales).for_each(|(value, scale)| *value = precision.round(*value * scale));
            }
        }
        self.ops.join(x, &branch, block.branch_scale);
        self.buffers.give(branch);
    }

    /// The input of the head: the stream after the last norm; of an encoder its last hidden states.
    pub(super) fn finish(&self, x: &[f32]) -> Vec<f32> {
        match self.blueprint().stacks {
            Some(_) => self.finish_stacks(x),
            None => self.finish_rows(x),
        }
    }

    /// The same for rows of the last blocks.
    pub(super) fn finish_rows(&self, x: &[f32]) -> Vec<f32> {
        let layout = &self.blueprint().stream;
        let streams = self.blueprint().hyper.as_ref();
        let residual = match &self.blueprint().lanes {
            _ if streams.is_some() => {
                let all = layout.gather(x, layout.all_lanes());
                Cow::Owned(streams.map_or_else(Vec::new, |streams| self.streams_joined(streams, &all)))
            }
            Some(lanes) => Cow::Owned(self.lanes_merged(lanes, &layout.gather_lanes(x))),
            None if layout.is_plain() => Cow::Borrowed(x),
            None => Cow::Owned(layout.gather(x, layout.lane(0))),
        };
        let mut x = self.normed(self.blueprint().final_norm.as_ref(), &residual);
        if let Some(layer) = &self.blueprint().project_out {
            x = self.linear(layer, &x);
        }
        // What encoders have behind their last hidden states are readouts.
        if self.blueprint().encoder.is_some() {
            return x;
        }
        self.scale(self.blueprint().head_scale, &mut x);
        let (head, spans) = (&self.blueprint().head, self.spans());
        self.show(ActivationPoint::Input(&head.module), &x, head.columns, spans);
        match self.input_quantizer(head) {
            Some(input) => self.quantized(input, x, head.columns, spans),
            None => x,
        }
    }

    /// The logits of the tokens `range`, for every row.
    pub(super) fn logits(&self, hidden: &[f32], range: Range<usize>) -> Vec<f32> {
        let mut logits = self.slice_of_linear(&self.blueprint().head, hidden, range);
        self.shape_logits(&mut logits);
        logits
    }

    /// The outputs `range` of a layer, for every row of its inputs, which are quantized where they are.
    pub(super) fn slice_of_linear(&self, layer: &Projection, x: &[f32], range: Range<usize>) -> Vec<f32> {
        let bias = self.bias(layer).map(|bias| bias[range.clone()].to_vec());
        let mut out = Vec::new();
        self.ops.linear(x, &self.weight(layer).slice_rows(range), bias.as_deref(), &mut out);
        self.release(layer);
        out
    }

    fn shape_logits(&self, logits: &mut [f32]) {
        let (scale, cap) = (self.blueprint().logit_scale, self.blueprint().logit_cap);
        let precision = self.ops.precision();
        let round = |z| precision.round(z);
        logits.par_chunks_mut(16 << 10).for_each(|logits| {
            logits.iter_mut().for_each(|z| *z = round(*z * scale));
            if let Some(cap) = cap {
                logits.iter_mut().for_each(|z| *z = round(cap * round(tanh(round(*z / cap)))));
            }
        });
    }
}
