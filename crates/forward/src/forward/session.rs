//! Sequences that grow: tokens pass the whole decoder as they are appended, and what blocks need of earlier tokens is kept.
//! Not which tokens to append, which is [`crate::generation`]'s.

use super::Decoder;
use super::blueprint::{Block, Blueprint};
use super::buffers::Buffers;
use super::error::ForwardError;
use super::ops::Ops;
use super::options::ForwardOptions;
use super::pass::{LONG, WIDE};
use super::rope::{Angles, Rotary};
use super::run::Run;
use super::step::{SequenceCache, Step};
use super::tensors::Projection;
use super::weight_overrides::WeightOverrides;
use kvant_numeric::simd::Isa;
use kvant_weights::weight::FastForm;
use std::ops::Range;
use std::sync::Arc;

/// The arithmetic of a session.
#[derive(Clone, Copy)]
pub struct SessionOps<'o> {
    /// For several tokens of a sequence at a time.
    pub many: &'o dyn Ops,
    /// For single tokens of several sequences. Rows must not depend on each other, so that a batch gives what single sequences give.
    pub single: &'o dyn Ops,
}

/// Sequences of tokens that a decoder has read.
///
/// Quantizers whose parameters are found per tensor as values pass see the tokens that are appended together, as they do in the deployed model;
/// everything else is computed as by [`Decoder::logits`].
///
/// ```
/// use kvant_container::Checkpoint;
/// use kvant_forward::forward::{Decoder, Session, SessionOps, cpu::Cpu};
/// use std::path::Path;
///
/// let checkpoint = Checkpoint::open(Path::new("../../tests/models/nano_llama"))?;
/// let decoder = Decoder::open(&checkpoint)?;
/// let (many, single) = (Cpu::default(), Cpu::default().by_rows());
/// let mut session = Session::new(&decoder, SessionOps { many: &many, single: &single });
/// let sequence = session.begin();
/// session.append(&[(sequence, &[5, 17])])?;
/// let logits = session.append(&[(sequence, &[301])])?;
/// assert_eq!(logits.len(), decoder.vocabulary());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Session<'s, 'a> {
    decoder: &'s Decoder<'a>,
    ops: SessionOps<'s>,
    overrides: WeightOverrides<'a>,
    buffers: Buffers,
    sequences: Vec<Sequence>,
}

/// The tokens of a sequence, and what is kept of the first `cached`.
#[derive(Debug, Default)]
struct Sequence {
    tokens: Vec<u32>,
    cached: usize,
    cache: SequenceCache,
}

impl<'s, 'a> Session<'s, 'a> {
    /// A session without sequences.
    pub fn new(decoder: &'s Decoder<'a>, ops: SessionOps<'s>) -> Session<'s, 'a> {
        let overrides = WeightOverrides::default();
        Session { decoder, ops, overrides, buffers: Buffers::default(), sequences: Vec::new() }
    }

    /// Reads weights into memory that are read faster from there, as many as `budget` bytes hold; others are read as they are stored whenever
    /// they are used. Returns the bytes that it took.
    pub fn expand_weights(&mut self, budget: u64) -> u64 {
        let mut used = 0;
        for layer in all_layers(&self.decoder.blueprint) {
            let weight = self.decoder.tensors.weight(layer);
            let (FastForm::Codes(bytes) | FastForm::Values(bytes)) = weight.fast_form() else { continue };
            let is_known = self.overrides.weight(&layer.module).is_some();
            if is_known || used + bytes > budget {
                continue;
            }
            used += bytes;
            let weight = weight.in_fast_form(Isa::best());
            self.decoder.tensors.release(layer);
            self.overrides.set_weight(&layer.module, weight);
        }
        used
    }

    /// Begins a sequence, and returns its number.
    pub fn begin(&mut self) -> usize {
        let cache = SequenceCache::new(self.decoder.blueprint.blocks.len());
        self.sequences.push(Sequence { tokens: Vec::new(), cached: 0, cache });
        self.sequences.len() - 1
    }

    /// Frees what is kept of a sequence, which must not be continued.
    pub fn end(&mut self, sequence: usize) {
        self.sequences[sequence] = Sequence::default();
    }

    /// Appends tokens to sequences, each of which is named once and gets at least one. Returns the logits after the last token of each:
    /// rows of [`Decoder::vocabulary`].
    ///
    /// # Errors
    ///
    /// Tokens outside the vocabulary, sequences longer than learned positions.
    pub fn append(&mut self, parts: &[(usize, &[u32])]) -> Result<Vec<f32>, ForwardError> {
        let mut last = vec![Vec::new(); parts.len()];
        let mut together = Vec::new();
        for (at, (sequence, tokens)) in parts.iter().enumerate() {
            self.sequences[*sequence].tokens.extend_from_slice(tokens);
            let new = self.refresh(*sequence);
            match new.len() {
                1 => together.push((at, *sequence)),
                _ => last[at] = self.read_many(*sequence, new)?,
            }
        }
        let rows = self.read_single(&together)?;
        let width = rows.len() / together.len().max(1);
        for ((at, _), row) in together.iter().zip(rows.chunks_exact(width.max(1))) {
            last[*at] = row.to_vec();
        }
        Ok(self.logits(&last.concat()))
    }

    /// The positions of a sequence that are not cached. Where angles of earlier tokens change with the length, those are all.
    fn refresh(&mut self, sequence: usize) -> Range<usize> {
        let Sequence { tokens, cached, cache } = &mut self.sequences[sequence];
        let rotaries = &self.decoder.blueprint.rotaries;
        if *cached > 0 && rotaries.iter().any(|rotary| rotary.changes_between(*cached, tokens.len())) {
            *cache = SequenceCache::new(self.decoder.blueprint.blocks.len());
            *cached = 0;
        }
        *cached..tokens.len()
    }

    /// Reads several tokens of a sequence, some at a time. Returns the stream after the last.
    fn read_many(&mut self, sequence: usize, new: Range<usize>) -> Result<Vec<f32>, ForwardError> {
        let most = (WIDE / self.decoder.widest().max(1)).clamp(1, LONG);
        let ops = self.ops.many;
        let mut last = Vec::new();
        for start in new.clone().step_by(most) {
            let positions = start..new.end.min(start + most);
            let rows = self.read(&[(sequence, positions)], new.end, ops)?;
            last = rows[rows.len().saturating_sub(self.decoder.width())..].to_vec();
        }
        Ok(last)
    }

    /// Reads the last token of each of several sequences. Returns their streams.
    fn read_single(&mut self, sequences: &[(usize, usize)]) -> Result<Vec<f32>, ForwardError> {
        if sequences.is_empty() {
            return Ok(Vec::new());
        }
        let ops = self.ops.single;
        let place = |(_, sequence): &(usize, usize)| {
            let end = self.sequences[*sequence].tokens.len();
            (*sequence, end - 1..end)
        };
        let parts: Vec<(usize, Range<usize>)> = sequences.iter().map(place).collect();
        self.read(&parts, 0, ops)
    }

    /// Leads tokens at these positions of sequences through all blocks. Angles are those of sequences of `length` tokens, or as many as
    /// end with the positions if these are more.
    fn read(
        &mut self,
        parts: &[(usize, Range<usize>)],
        length: usize,
        ops: &dyn Ops,
    ) -> Result<Vec<f32>, ForwardError> {
        let blueprint = &self.decoder.blueprint;
        let mut tokens = Vec::new();
        let mut angles: Vec<Angles> = blueprint.rotaries.iter().map(Rotary::no_angles).collect();
        for (sequence, positions) in parts {
            tokens.extend_from_slice(&self.sequences[*sequence].tokens[positions.clone()]);
            for (rotary, angles) in blueprint.rotaries.iter().zip(&mut angles) {
                rotary.extend(angles, positions.clone(), length.max(positions.end));
            }
        }
        let mut take = |sequence: usize| std::mem::take(&mut self.sequences[sequence].cache);
        let step = Step::new(parts.iter().map(|(sequence, positions)| (positions.clone(), take(*sequence))).collect());
        let run = Run { step: Some(&step), angles: Arc::new(angles), ..self.run(ops, tokens.len()) };
        let read = run.embed(&tokens).map(|mut x| {
            // Without `StopAt`, every block runs to its end.
            (0..blueprint.blocks.len()).for_each(|block| _ = run.block(block, &mut x));
            x
        });
        drop(run);
        for ((sequence, positions), cache) in parts.iter().zip(step.into_caches()) {
            let sequence = &mut self.sequences[*sequence];
            sequence.cache = cache;
            sequence.cached = positions.end;
        }
        read
    }

    /// The logits of rows of the stream, one for each sequence.
    fn logits(&self, x: &[f32]) -> Vec<f32> {
        let run = self.run(self.ops.single, 1);
        run.logits(&run.finish(x), 0..self.decoder.vocabulary())
    }

    /// A run over sequences of `length` rows.
    fn run<'r>(&'r self, ops: &'r dyn Ops, length: usize) -> Run<'r, 'a> {
        let with = ForwardOptions { overlay: Some(&self.overrides), ..ForwardOptions::default() };
        let (decoder, buffers, angles) = (self.decoder, &self.buffers, Arc::default());
        Run {
            decoder,
            ops,
            with,
            length,
            images: &[],
            angles,
            buffers,
            step: None,
            source: 0,
            memory: None,
            shared_keys: None,
            tokens: None,
            shortcut: None,
            keeps_weights: true,
        }
    }
}

fn all_layers(blueprint: &Blueprint) -> impl Iterator<Item = &Projection> {
    let around =
        blueprint.project_in.iter().chain(&blueprint.project_out).chain([&blueprint.head, &blueprint.embedding]);
    let lanes = blueprint.lanes.iter().flat_map(|lanes| lanes.inputs.iter().chain(&lanes.outputs));
    let around = around.chain(lanes).chain(blueprint.layer_inputs.iter().map(|inputs| &inputs.projection));
    blueprint.blocks.iter().flat_map(Block::layers).chain(around)
}
