//! Scales and minima of blocks, and floats: all are numbers. Blocks lie as ggml-common.h has them.

use super::GgufView;
use kvant_container::gguf::{GgufTensor, TensorType};
use kvant_quant::counts::number_are;
use kvant_quant::finding::Findings;
use rayon::prelude::*;

/// The offset of the binary16 scales and minima in a block.
const HALVES: &[(TensorType, &[usize])] = &[
    (TensorType::F16, &[0]),
    (TensorType::Q4_0, &[0]),
    (TensorType::Q4_1, &[0, 2]),
    (TensorType::Q5_0, &[0]),
    (TensorType::Q5_1, &[0, 2]),
    (TensorType::Q8_0, &[0]),
    (TensorType::Q2_K, &[80, 82]),
    (TensorType::Q3_K, &[108]),
    (TensorType::Q4_K, &[0, 2]),
    (TensorType::Q5_K, &[0, 2]),
    (TensorType::Q6_K, &[208]),
    (TensorType::IQ2_XXS, &[0]),
    (TensorType::IQ2_XS, &[0]),
    (TensorType::IQ2_S, &[0]),
    (TensorType::IQ3_XXS, &[0]),
    (TensorType::IQ3_S, &[0]),
    (TensorType::IQ1_S, &[0]),
    (TensorType::IQ4_NL, &[0]),
    (TensorType::IQ4_XS, &[0]),
    (TensorType::TQ1_0, &[52]),
    (TensorType::TQ2_0, &[64]),
    (TensorType::Q1_0, &[0]),
];

/// Blocks that are looked at before their pages are given back.
const PIECE: usize = 1 << 16;

pub(super) fn run(subject: &GgufView<'_>, findings: &mut Findings) {
    check(subject.file.into_iter().flat_map(|file| file.tensors()).collect(), findings);
}

/// Checks some tensors.
pub(super) fn check(tensors: Vec<GgufTensor<'_>>, findings: &mut Findings) {
    let found: Vec<_> = tensors.par_iter().map(|tensor| (tensor.name(), tensor.kind(), count(*tensor))).collect();
    for (name, kind, count) in found.into_iter().filter(|(_, _, count)| *count > 0) {
        let what = if kind.block_elements() > 1 { "block scale" } else { "value" };
        findings.error(
            name,
            format!("{} NaN or infinite", number_are(count, what)),
            "download the file again, or convert the model again",
        );
    }
}

/// How many scales or floats of a tensor are no numbers.
fn count(tensor: GgufTensor<'_>) -> usize {
    let kind = tensor.kind();
    let size = kind.block_bytes();
    let mut sum = 0;
    for (at, piece) in tensor.bytes().chunks(size * PIECE).enumerate() {
        sum += piece.chunks_exact(size).map(|block| in_block(kind, block)).sum::<usize>();
        tensor.release_part(at * size * PIECE..at * size * PIECE + piece.len());
    }
    sum
}

fn in_block(kind: TensorType, block: &[u8]) -> usize {
    let word = |at: usize| {
        block.get(at..at + 2).and_then(|bytes| bytes.first_chunk()).map_or(0, |word| u16::from_le_bytes(*word))
    };
    match kind {
        TensorType::F32 => usize::from(word(2) & 0x7F80 == 0x7F80),
        TensorType::BF16 => usize::from(word(0) & 0x7F80 == 0x7F80),
        // A byte of a power of two, of which 255 is no number.
        TensorType::MXFP4 => usize::from(block.first() == Some(&0xFF)),
        // Four bytes of e4m3 without a sign.
        TensorType::NVFP4 => block.iter().take(4).filter(|scale| **scale & 0x7F == 0x7F).count(),
        _ => {
            let row = HALVES.iter().find(|(known, _)| *known == kind);
            let places = row.map_or(&[][..], |(_, places)| places);
            places.iter().filter(|at| word(**at) & 0x7C00 == 0x7C00).count()
        }
    }
}
