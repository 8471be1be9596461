//! The importance of a layer's inputs: for each input channel the mean square over calibration data, which weighs the errors
//! of the weights that it meets (llama.cpp calls the whole an importance matrix, imatrix). Measured by [`collect`], read and
//! written in llama.cpp's formats.
//!
//! Source: `tools/imatrix/imatrix.cpp` and `load_imatrix` of `tools/quantize/quantize.cpp` in llama.cpp.

mod collect;
mod error;
mod kept;
mod legacy;
mod read;
mod sums;
mod write;

pub use collect::collect;
pub use error::ImatrixError;
pub use kept::Keep;
pub use read::{is_imatrix, read};
pub use sums::{InputSums, Provenance};
pub use write::write;

use kvant_container::gguf::Metadata;
use std::collections::BTreeMap;
use xxhash_rust::xxh3::xxh3_64;

/// The importance of the inputs of a model's tensors, by their names in GGUF.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Importance {
    tensors: BTreeMap<String, Means>,
    provenance: Provenance,
}

/// Means of one tensor.
#[derive(Clone, Debug, PartialEq)]
struct Means {
    /// Mean squares, matrix after matrix.
    values: Vec<f32>,
    /// For each matrix, whether any token met it.
    seen: Vec<bool>,
}

impl Importance {
    /// The importance from sums over data.
    pub fn of_sums(sums: &BTreeMap<String, InputSums>, provenance: Provenance) -> Importance {
        let tensors = sums.iter().map(|(name, sums)| (name.clone(), Means::of(sums))).collect();
        Importance { tensors, provenance }
    }

    /// The number of tensors with known importance.
    pub fn len(&self) -> usize {
        self.tensors.len()
    }

    /// Returns whether nothing is known of any tensor.
    pub fn is_empty(&self) -> bool {
        self.tensors.is_empty()
    }

    /// The number of values of a tensor: one per input channel of each matrix; `None` for unknown tensors.
    pub fn len_of(&self, tensor: &str) -> Option<usize> {
        self.tensors.get(tensor).map(|means| means.values.len())
    }

    /// The importance of the inputs of a tensor's matrix; `None` if unknown, as for an expert that no token was
    /// routed to: then all weigh the same.
    pub fn of_matrix(&self, tensor: &str, matrix: usize, columns: usize) -> Option<&[f32]> {
        let means = self.tensors.get(tensor)?;
        // Older files do not separate the matrices of a tensor.
        let seen = if means.seen.len() == 1 { means.seen.first() } else { means.seen.get(matrix) };
        seen.filter(|seen| **seen)?;
        means.values.get(matrix * columns..(matrix + 1) * columns)
    }

    /// Says in a file's metadata what its tensors were weighed with.
    pub(super) fn describe(&self, metadata: &mut Metadata) {
        metadata.set_some("quantize.imatrix.file", self.provenance.file.as_deref());
        metadata.set_some("quantize.imatrix.dataset", self.provenance.datasets.first().map(String::as_str));
        metadata.set("quantize.imatrix.entries_count", self.tensors.len() as u32);
        metadata.set("quantize.imatrix.chunks_count", self.provenance.chunks);
    }

    /// A hash of all values.
    pub(super) fn hash(&self) -> u64 {
        let mut bytes = Vec::new();
        for (name, means) in &self.tensors {
            bytes.extend_from_slice(name.as_bytes());
            means.values.iter().for_each(|value| bytes.extend_from_slice(&value.to_le_bytes()));
            means.seen.iter().for_each(|seen| bytes.push(u8::from(*seen)));
        }
        xxh3_64(&bytes)
    }
}

impl Means {
    fn of(sums: &InputSums) -> Means {
        let mean = |(matrix, squares): (usize, &[f64])| {
            let count = sums.counts[matrix].max(1) as f64;
            squares.iter().map(move |sum| (sum / count) as f32).collect::<Vec<f32>>()
        };
        let columns = sums.columns.max(1);
        let values = sums.squares.chunks(columns).enumerate().flat_map(mean).collect();
        Means { values, seen: sums.counts.iter().map(|count| *count > 0).collect() }
    }
}

#[cfg(test)]
mod tests;
