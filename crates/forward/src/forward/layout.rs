//! How rows are divided into sequences, and where images stand in them.

use super::pass::Chunk;
use super::sequence::SequenceLength;
use std::ops::Range;

/// An image in a sequence of tokens.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ImageSpan {
    /// Its rows in the sequence.
    pub rows: Range<usize>,
    /// Its number among the images that the decoder was given.
    pub image: usize,
    /// Its rows along the height and width, of images of any size.
    pub grid: Option<[usize; 2]>,
}

/// The sequences that rows are of: they all have the same length, and there is only one where it has images.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SequenceLayout<'l> {
    /// Tokens of a sequence.
    pub length: usize,
    /// Those at its start that the encoder of an encoder-decoder reads.
    pub source: usize,
    /// The images in the sequence, in their order.
    pub images: &'l [ImageSpan],
}

impl From<usize> for SequenceLayout<'_> {
    /// Sequences of text of this length.
    fn from(length: usize) -> Self {
        SequenceLength::from(length).into()
    }
}

impl From<SequenceLength> for SequenceLayout<'_> {
    /// Sequences of text of these lengths.
    fn from(length: SequenceLength) -> Self {
        SequenceLayout { length: length.all, source: length.source, images: &[] }
    }
}

impl SequenceLayout<'_> {
    /// The length of the sequences.
    pub fn lengths(self) -> SequenceLength {
        SequenceLength { all: self.length, source: self.source }
    }
}

impl<'l> From<&'l Chunk> for SequenceLayout<'l> {
    fn from(chunk: &'l Chunk) -> Self {
        SequenceLayout { images: &chunk.images, ..chunk.lengths().into() }
    }
}
