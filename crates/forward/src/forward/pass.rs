//! A pass over many sequences, block by block: one block's weights are in use at a time, and read once for every chunk of
//! sequences. Not what a block computes, which is in [`super::Runner`].

use super::Decoder;
use super::blueprint::{ReadoutLayers, Stacks};
use super::error::ForwardError;
use super::hook::ActivationHook;
use super::layout::ImageSpan;
use super::ops::Ops;
use super::options::ForwardOptions;
use super::runner::Runner;
use super::sequence::SequenceLength;
use super::streams::Streams;
use std::ops::Range;

/// Elements of the widest activations that exist at a time, beyond one sequence's.
pub const WIDE: usize = 8 << 20;

/// Tokens of a chunk at most: more make products no faster, and what narrow models compute leaves the cache.
pub const LONG: usize = 2048;

/// Sequences of one length that pass a block together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// The tokens of all, one sequence after the other.
    pub tokens: Vec<u32>,
    /// Tokens of a sequence.
    pub length: usize,
    /// Those at its start that the encoder of an encoder-decoder reads.
    pub source: usize,
    /// The images in the sequence: one that has some is alone in its chunk.
    pub images: Vec<ImageSpan>,
}

impl Chunk {
    /// The length of its sequences.
    pub fn lengths(&self) -> SequenceLength {
        SequenceLength { all: self.length, source: self.source }
    }

    /// Sequences.
    pub fn sequences(&self) -> usize {
        self.tokens.len() / self.length.max(1)
    }

    /// Rows that a block changes.
    pub fn rows_of(&self, stacks: Option<&Stacks>, block: usize) -> usize {
        match stacks {
            None => self.tokens.len(),
            Some(stacks) => self.sequences() * self.lengths().rows_of(stacks, block).len(),
        }
    }
}

/// A pass that has come to some block.
pub struct Pass<'p, 'a> {
    runner: Runner<'p, 'a>,
    with: ForwardOptions<'p, 'a>,
    chunks: &'p [Chunk],
    streams: Streams,
}

impl<'p, 'a> Pass<'p, 'a> {
    /// Embeds all tokens. Streams beyond `budget` bytes are kept in a temporary file. `tap` sees all that passes.
    ///
    /// # Errors
    ///
    /// Tokens outside the vocabulary, sequences longer than learned positions, no room for the file.
    pub fn begin(
        decoder: &'p Decoder<'a>,
        ops: &'p dyn Ops,
        chunks: &'p [Chunk],
        budget: u64,
        tap: Option<&'p dyn ActivationHook>,
    ) -> Result<Pass<'p, 'a>, ForwardError> {
        let sizes: Vec<usize> = chunks.iter().map(|chunk| chunk.tokens.len() * decoder.width()).collect();
        let streams = Streams::new(&sizes, budget)?;
        let with = ForwardOptions { tap, ..ForwardOptions::default() };
        let mut pass = Pass { runner: Runner::new(decoder, ops), with, chunks, streams };
        for (index, chunk) in chunks.iter().enumerate() {
            let x = pass.runner.embed(with, &chunk.tokens, chunk)?;
            pass.streams.put(index, x)?;
        }
        Ok(pass)
    }

    /// Runs one chunk through block `block`, and shows the output.
    ///
    /// # Errors
    ///
    /// Those of the temporary file.
    pub fn block(&mut self, block: usize, chunk: usize, mut watch: impl FnMut(&[f32])) -> Result<(), ForwardError> {
        let mut x = self.streams.take(chunk)?;
        // Without an explicit end, a run continues to that of the block.
        let _ = self.runner.block(self.with, block, &self.chunks[chunk], &mut x);
        watch(&x);
        self.streams.put(chunk, x)
    }

    /// The stream of one chunk between two blocks, which is kept.
    ///
    /// # Errors
    ///
    /// Those of the temporary file.
    pub fn stream<R>(&mut self, chunk: usize, look: impl FnOnce(&[f32]) -> R) -> Result<R, ForwardError> {
        let x = self.streams.take(chunk)?;
        let seen = look(&x);
        self.streams.put(chunk, x)?;
        Ok(seen)
    }

    /// Replaces the stream of a chunk by another one of the same size.
    ///
    /// # Errors
    ///
    /// Those of the temporary file.
    pub fn put(&mut self, chunk: usize, x: Vec<f32>) -> Result<(), ForwardError> {
        self.streams.put(chunk, x)
    }

    /// The input of the head for one chunk, a row per token, of an encoder-decoder per token of its decoder: the stream after the last norm; of an encoder its last hidden states. The
    /// chunk ends here.
    ///
    /// # Errors
    ///
    /// Those of the temporary file.
    pub fn hidden(&mut self, chunk: usize) -> Result<Vec<f32>, ForwardError> {
        let x = self.streams.take(chunk)?;
        Ok(self.runner.hidden(self.with, &self.chunks[chunk], &x))
    }

    /// What the last layer of an encoder's readout reads of [`Pass::hidden`] of a chunk; if it ends in another step, its result.
    pub fn readout_rows(&self, chunk: usize, readout: &ReadoutLayers, hidden: &[f32]) -> Vec<f32> {
        self.runner.readout_rows(self.with, &self.chunks[chunk], readout, hidden)
    }

    /// The elements `range` of what a readout gives, for rows of [`Pass::readout_rows`].
    pub fn readout_values(&self, readout: &ReadoutLayers, rows: &[f32], range: Range<usize>) -> Vec<f32> {
        self.runner.readout_values(self.with, readout, rows, range)
    }

    /// Some logits of rows of [`Pass::hidden`]: those of the tokens `range`.
    pub fn logits(&mut self, hidden: &[f32], range: Range<usize>) -> Vec<f32> {
        self.runner.logits(self.with, hidden, range)
    }
}

/// Sequences in chunks: neighbours of one length together, as many as `decoder` takes at a time, those with images alone.
pub fn chunks<'t>(decoder: &Decoder<'_>, sequences: impl IntoIterator<Item = &'t [u32]>) -> Vec<Chunk> {
    let most = (WIDE / decoder.widest().max(1)).min(LONG);
    let mut chunks: Vec<Chunk> = Vec::new();
    for sequence in sequences {
        let (length, images) = (SequenceLength::of(sequence), decoder.images_in(sequence));
        let joins = |chunk: &Chunk| {
            let is_text = images.is_empty() && chunk.images.is_empty();
            is_text && chunk.lengths() == length && chunk.tokens.len() + sequence.len() <= most
        };
        match chunks.last_mut().filter(|chunk| joins(chunk)) {
            Some(chunk) => chunk.tokens.extend_from_slice(sequence),
            None => {
                let SequenceLength { all, source } = length;
                chunks.push(Chunk { tokens: sequence.to_vec(), length: all, source, images });
            }
        }
    }
    chunks
}
