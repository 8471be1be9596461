//! What a row of the stream between blocks holds besides the residual stream: what later blocks read of the same token. So that every
//! pass, wherever it keeps the stream, hands it on.

use super::{Block, LayerInputs};
use std::ops::Range;

/// The parts of a row of the stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StreamLayout {
    /// Width of the residual stream, which is the first part; of several, which stand side by side, the width of each.
    pub hidden: usize,
    /// How many there are.
    lanes: usize,
    /// The inputs that blocks have of their own, one after the other.
    inputs: Range<usize>,
    /// Width of one of them.
    input: usize,
    /// The output of experts that joins the residual stream behind a later block.
    shortcut: Range<usize>,
    /// The number of the token, where blocks choose experts by it.
    token: Range<usize>,
    /// Keys and values that other blocks attend to.
    shared: Vec<SharedKeys>,
    /// Width of all parts.
    width: usize,
}

/// The keys, then the values, of a block that others attend to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedKeys {
    /// The block.
    pub block: usize,
    /// Their place in a row.
    pub place: Range<usize>,
}

impl StreamLayout {
    pub(super) fn new(
        hidden: usize,
        lanes: Option<usize>,
        inputs: Option<&LayerInputs>,
        blocks: &[Block],
    ) -> StreamLayout {
        let lanes = lanes.unwrap_or(1);
        let residual = lanes * hidden;
        let inputs_width = inputs.map_or(0, |inputs| inputs.projection.rows);
        let shortcut = residual + inputs_width;
        let has_shortcut = blocks.iter().any(|block| block.shortcut.is_some());
        let mut width = if has_shortcut { shortcut + hidden } else { shortcut };
        let shortcut = shortcut..width;
        let hashes = blocks.iter().filter_map(Block::mixture).any(|mixture| mixture.table.is_some());
        width += usize::from(hashes);
        let token = shortcut.end..width;
        let mut shared: Vec<SharedKeys> = Vec::new();
        let attentions =
            || blocks.iter().enumerate().filter_map(|(index, block)| Some((index, block.mixer.attention()?)));
        let read: Vec<usize> =
            attentions().filter(|(index, layer)| layer.key_block != *index).map(|(_, layer)| layer.key_block).collect();
        for (block, layer) in attentions().filter(|(index, _)| read.contains(index)) {
            let place = width..width + layer.key_value_elements();
            width = place.end;
            shared.push(SharedKeys { block, place });
        }
        StreamLayout {
            hidden,
            lanes,
            inputs: residual..residual + inputs_width,
            input: inputs.map_or(0, |inputs| inputs.width),
            shortcut,
            token,
            shared,
            width,
        }
    }

    /// Width of a row.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Returns whether a row is the residual stream and nothing else.
    pub fn is_plain(&self) -> bool {
        self.width == self.hidden
    }

    /// One of the residual streams of every row.
    pub fn lane(&self, lane: usize) -> Range<usize> {
        lane * self.hidden..(lane + 1) * self.hidden
    }

    /// All residual streams of some rows.
    pub fn gather_lanes(&self, rows: &[f32]) -> Vec<Vec<f32>> {
        (0..self.lanes).map(|lane| self.gather(rows, self.lane(lane))).collect()
    }

    /// The place of the inputs of all blocks.
    pub fn inputs(&self) -> Range<usize> {
        self.inputs.clone()
    }

    /// The place of a block's own input.
    pub fn input_of(&self, block: usize) -> Range<usize> {
        let start = self.inputs.start + block * self.input;
        start..start + self.input
    }

    /// The place of what experts add to the stream behind a later block.
    pub fn shortcut(&self) -> Range<usize> {
        self.shortcut.clone()
    }

    /// The place of the number of the token; empty where no block needs it.
    pub fn token(&self) -> Range<usize> {
        self.token.clone()
    }

    /// The place of all residual streams.
    pub fn all_lanes(&self) -> Range<usize> {
        0..self.lanes * self.hidden
    }

    /// The place of the keys and values of a block, where others attend to them.
    pub fn keys_of(&self, block: usize) -> Option<Range<usize>> {
        self.shared.iter().find(|shared| shared.block == block).map(|shared| shared.place.clone())
    }

    /// The numbers of the tokens of some rows, where rows have them.
    pub fn gather_tokens(&self, rows: &[f32]) -> Vec<usize> {
        self.gather(rows, self.token()).into_iter().map(|token| token as usize).collect()
    }

    /// A part of every row.
    pub fn gather(&self, rows: &[f32], part: Range<usize>) -> Vec<f32> {
        rows.chunks_exact(self.width).flat_map(|row| &row[part.clone()]).copied().collect()
    }

    /// Writes a part of every row.
    pub fn scatter(&self, values: &[f32], part: Range<usize>, rows: &mut [f32]) {
        let values = values.chunks_exact(part.len().max(1));
        rows.chunks_exact_mut(self.width).zip(values).for_each(|(row, values)| {
            row[part.clone()].copy_from_slice(values);
        });
    }
}
