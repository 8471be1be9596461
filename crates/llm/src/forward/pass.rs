//! A pass over many sequences, block by block: one block's weights are in use at a time, and read once for every chunk of
//! sequences. Not what a block computes, which is in `run`.

use super::Decoder;
use super::error::ForwardError;
use super::ops::Ops;
use super::rope::Angles;
use super::run::Run;
use super::streams::Streams;
use super::tap::Tap;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// Elements of the widest activations that exist at a time, beyond one sequence's.
const WIDE: usize = 16 << 20;

/// Sequences of one length that pass a block together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// The tokens of all, one sequence after the other.
    pub tokens: Vec<u32>,
    /// Tokens of a sequence.
    pub length: usize,
}

/// A pass that has come to some block.
pub struct Pass<'p, 'a> {
    decoder: &'p Decoder<'a>,
    ops: &'p dyn Ops,
    tap: Option<&'p dyn Tap>,
    chunks: &'p [Chunk],
    angles: BTreeMap<usize, Arc<Vec<Angles>>>,
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
        tap: Option<&'p dyn Tap>,
    ) -> Result<Pass<'p, 'a>, ForwardError> {
        let sizes: Vec<usize> = chunks.iter().map(|chunk| chunk.tokens.len() * decoder.width()).collect();
        let streams = Streams::new(&sizes, budget)?;
        let mut pass = Pass { decoder, ops, tap, chunks, angles: BTreeMap::new(), streams };
        for (index, chunk) in chunks.iter().enumerate() {
            let x = pass.run(chunk).embed(&chunk.tokens)?;
            pass.streams.put(index, x)?;
        }
        Ok(pass)
    }

    /// Leads one chunk through block `block`, and shows what comes out.
    ///
    /// # Errors
    ///
    /// Those of the temporary file.
    pub fn block(&mut self, block: usize, chunk: usize, mut watch: impl FnMut(&[f32])) -> Result<(), ForwardError> {
        let mut x = self.streams.take(chunk)?;
        self.run(&self.chunks[chunk]).block(block, &mut x);
        watch(&x);
        self.streams.put(chunk, x)
    }

    /// What the head reads of one chunk, a row per token: the stream after the last norm. The chunk ends here.
    ///
    /// # Errors
    ///
    /// Those of the temporary file.
    pub fn hidden(&mut self, chunk: usize) -> Result<Vec<f32>, ForwardError> {
        let x = self.streams.take(chunk)?;
        Ok(self.run(&self.chunks[chunk]).finish(&x))
    }

    /// Some logits of rows of [`Pass::hidden`]: those of the tokens `range`.
    pub fn logits(&mut self, hidden: &[f32], range: Range<usize>) -> Vec<f32> {
        let chunk = Chunk { tokens: Vec::new(), length: 1 };
        self.run(&chunk).logits(hidden, range)
    }

    /// One chunk's run. Angles are found once for each length.
    fn run(&mut self, chunk: &Chunk) -> Run<'p, 'a> {
        let decoder = self.decoder;
        let length = chunk.length.max(1);
        let angles = self.angles.entry(length).or_insert_with(|| Arc::new(decoder.angles(length)));
        Run { decoder, ops: self.ops, tap: self.tap, length, angles: angles.clone() }
    }
}

/// Sequences in chunks: neighbours of one length together, as many as `decoder` takes at a time.
pub fn chunks<'t>(decoder: &Decoder<'_>, sequences: impl IntoIterator<Item = &'t [u32]>) -> Vec<Chunk> {
    let most = WIDE / decoder.widest().max(1);
    let mut chunks: Vec<Chunk> = Vec::new();
    for sequence in sequences {
        match chunks.last_mut() {
            Some(chunk) if chunk.length == sequence.len() && chunk.tokens.len() + sequence.len() <= most => {
                chunk.tokens.extend_from_slice(sequence);
            }
            _ => chunks.push(Chunk { tokens: sequence.to_vec(), length: sequence.len() }),
        }
    }
    chunks
}
