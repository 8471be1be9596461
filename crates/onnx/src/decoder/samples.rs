//! Sequences of tokens as samples of a decoder, to calibrate and measure it on text.

use std::path::PathBuf;
use std::sync::Arc;

use super::DecoderGraph;
use super::feed::Feed;
use crate::data::{Array, Column, DataError, Input, Samples};

impl DecoderGraph {
    /// Sequences of tokens, each a sample; `named` says where they are from.
    ///
    /// # Errors
    ///
    /// No sequence; sequences of another length than the graph takes.
    pub fn samples(&self, sequences: Vec<Vec<u32>>, named: PathBuf) -> Result<Samples, super::DecoderError> {
        sequences.iter().try_for_each(|sequence| self.check_length(sequence.len()))?;
        let sequences = Arc::new(sequences);
        let column = |(input, feed): &(Input, Feed)| {
            let (sequences, named) = (Arc::clone(&sequences), named.clone());
            let column = FeedColumn { input: input.clone(), feed: feed.clone(), sequences, named };
            (input.clone(), Box::new(column) as Box<dyn Column>)
        };
        Ok(Samples::new(self.inputs.iter().map(column).collect(), None, false)?)
    }
}

/// One input's values for every sequence.
struct FeedColumn {
    input: Input,
    feed: Feed,
    sequences: Arc<Vec<Vec<u32>>>,
    named: PathBuf,
}

impl Column for FeedColumn {
    fn len(&self) -> usize {
        self.sequences.len()
    }

    fn sample(&mut self, index: usize) -> Result<Array<'_>, DataError> {
        let array = self.sequences.get(index).and_then(|tokens| self.feed.array(0, tokens, self.input.data_type));
        let problem = || format!("sequence {index} has a token that does not fit its type");
        array.ok_or_else(|| DataError::Mismatch { input: self.input.name.clone(), problem: problem() })
    }

    fn place(&self, _: usize) -> PathBuf {
        self.named.clone()
    }
}
