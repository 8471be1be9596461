//! The rows of a run that predict something, and the places of what they predict.

use super::statistics::TokenPlace;
use super::windows::Window;
use crate::forward::Chunk;

/// Elements of logits of one model that exist at a time.
pub(super) const LOGITS: usize = 8 << 20;
/// Logits of one row that are summed in `f32`.
const PIECE: usize = 4096;

/// The starts and lengths of the pieces that the vocabulary is cut into.
pub(super) fn pieces(vocabulary: usize, rows: usize) -> impl Iterator<Item = (usize, usize)> {
    let piece = (LOGITS / rows.max(1)).clamp(1, PIECE);
    (0..vocabulary).step_by(piece).map(move |start| (start, piece.min(vocabulary - start)))
}

/// Something that there is for each predicting row, with the places of what the rows predict.
pub(super) fn placed<T: Copy>(all: &[T], predicted: &[Predicted]) -> Vec<(TokenPlace, T)> {
    predicted.iter().flat_map(|predicted| &predicted.places).copied().zip(all.iter().copied()).collect()
}

/// The same of the rows that tokens follow.
pub(super) fn scored<T: Copy>(all: &[T], predicted: &[Predicted]) -> Vec<(TokenPlace, T)> {
    let targets = predicted.iter().flat_map(|predicted| &predicted.targets);
    let rows = placed(all, predicted).into_iter().zip(targets);
    rows.filter(|(_, target)| **target != NO_TARGET).map(|(row, _)| row).collect()
}

/// In place of the token that follows, where none does: beyond every vocabulary.
const NO_TARGET: u32 = u32::MAX;

/// The rows of a chunk that predict something, and what follows them: tokens of text, as rows of images are not predicted. Nothing follows
/// the only row of a decoder that reads nothing but what it begins with.
pub(super) struct Predicted {
    pub(super) rows: Vec<usize>,
    /// Rows that the head reads.
    pub(super) all: usize,
    pub(super) targets: Vec<u32>,
    /// The place of each target, or where one would be.
    pub(super) places: Vec<TokenPlace>,
}

impl Predicted {
    /// These rows of all.
    pub(super) fn rows(&self, hidden: &[f32]) -> Vec<f32> {
        let width = hidden.len() / self.all.max(1);
        self.rows.iter().flat_map(|row| &hidden[row * width..(row + 1) * width]).copied().collect()
    }
}

/// The rows of chunks that predict something, chunk by chunk. Tokens beyond the vocabulary are rows of images.
pub(super) fn predicted(chunks: &[Chunk], windows: &[Window], vocabulary: usize) -> Vec<Predicted> {
    let mut windows = windows.iter().enumerate();
    let of_chunk = |chunk: &Chunk| {
        // What an encoder reads has no rows behind the last block.
        let length = chunk.length - chunk.source;
        let (rows, targets, places) = (Vec::new(), Vec::new(), Vec::new());
        let mut found = Predicted { rows, all: chunk.sequences() * length, targets, places };
        for (sequence, (at, window)) in windows.by_ref().take(chunk.sequences()).enumerate() {
            let (start, end) = (sequence * chunk.length, (sequence + 1) * chunk.length);
            let is_text = |target: &usize| (chunk.tokens[*target] as usize) < vocabulary;
            for target in (end - window.scored..end).filter(is_text) {
                // The row before a token predicts it.
                found.rows.push(sequence * length + target - start - chunk.source - 1);
                found.targets.push(chunk.tokens[target]);
                let (window, token) = (at, target - start);
                found.places.push(TokenPlace { window, token, context: token - chunk.source });
            }
            if window.scored == 0 && chunk.source > 0 {
                found.rows.push((sequence + 1) * length - 1);
                found.targets.push(NO_TARGET);
                found.places.push(TokenPlace { window: at, token: chunk.length, context: length });
            }
        }
        found
    };
    chunks.iter().map(of_chunk).collect()
}
