//! What takes the room in an output: its bytes by kind of tensor.

use serde::Serialize;
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// Tensors of one kind in the output.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SizeOfKind {
    /// The effect of layers, or the reason that other tensors are kept as they are; of GGUF files the name without the block.
    pub kind: String,
    /// Whether they are quantized.
    pub quantized: bool,
    /// How many there are; of layers of a checkpoint the number of these.
    pub tensors: usize,
    /// Their bytes, those of scales included.
    pub bytes: u64,
}

impl SizeOfKind {
    /// The sums over tensors with their kinds, whether they are quantized, and their bytes; the most first.
    pub(crate) fn of<'k>(tensors: impl Iterator<Item = (&'k str, bool, u64)>) -> Vec<SizeOfKind> {
        let mut found: BTreeMap<(&str, bool), SizeOfKind> = BTreeMap::new();
        for (kind, quantized, bytes) in tensors {
            let none = || SizeOfKind { kind: kind.to_owned(), quantized, tensors: 0, bytes: 0 };
            let size = found.entry((kind, quantized)).or_insert_with(none);
            size.tensors += 1;
            size.bytes += bytes;
        }
        let mut sizes: Vec<SizeOfKind> = found.into_values().collect();
        sizes.sort_by_key(|size| Reverse(size.bytes));
        sizes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_add_up_and_the_largest_comes_first() {
        let tensors = [("norm", false, 8), ("up", true, 64), ("up", false, 16), ("up", true, 64)];
        let sizes = SizeOfKind::of(tensors.into_iter());
        let brief: Vec<_> =
            sizes.iter().map(|size| (size.kind.as_str(), size.quantized, size.tensors, size.bytes)).collect();
        assert_eq!(brief, [("up", true, 2, 128), ("up", false, 1, 16), ("norm", false, 1, 8)]);
    }
}
