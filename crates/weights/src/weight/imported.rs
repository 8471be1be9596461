//! A tensor of a checkpoint as if nothing were quantized, and where its values come from.

use super::PackedMatrix;
use kvant_container::TensorView;
use kvant_model::network::TensorMeta;
use std::sync::Arc;

/// A tensor of the checkpoint as if nothing were quantized.
#[derive(Clone, Debug)]
pub struct ImportedTensor<'a> {
    /// Its name, its shape in the float model, and its type; packed weights count as `F32`.
    pub meta: TensorMeta,
    /// The origin of its values.
    pub stored: Stored<'a>,
}

/// How a tensor is stored.
#[derive(Clone, Debug)]
pub enum Stored<'a> {
    /// As it is.
    Plain(TensorView<'a>),
    /// Codes and scales, or blocks, of as many matrices as the tensor has: one, or one an expert. A weight that adapters change,
    /// too.
    Packed(Vec<Arc<PackedMatrix<'a>>>),
}

impl Stored<'_> {
    /// Returns whether it is quantized.
    pub fn has_codes(&self) -> bool {
        matches!(self, Stored::Packed(matrices) if matrices.iter().any(|matrix| !matrix.is_float()))
    }
}
