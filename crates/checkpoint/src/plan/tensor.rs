//! Tensors that are carried over, and tensors that are not.

use super::layer::ScalesOfSource;
use kvant_container::Dtype;
use kvant_numeric::kernel::FloatDType;
use kvant_quant::scheme::TensorScheme;
use kvant_weights::parts::Part;
use std::ops::Range;

/// A tensor of the output that comes from the source without quantization.
#[derive(Clone, Debug, PartialEq)]
pub struct KeptTensor {
    /// The tensor's name in the source.
    pub source: String,
    /// Its position among the source's tensors.
    pub position: usize,
    /// The index among the declarations.
    pub tensor: usize,
    /// How it is carried over.
    pub action: TensorAction,
    /// The reason that it is not quantized.
    pub reason: &'static str,
    /// The effect of the linear layer whose weight it is.
    pub role: Option<&'static str>,
}

impl KeptTensor {
    /// The tensors that it becomes, as indices among the declarations.
    pub(super) fn tensors(&self) -> Range<usize> {
        let parts = if let TensorAction::Round { parts, .. } = &self.action { parts.len() } else { 1 };
        self.tensor..self.tensor + parts.max(1)
    }
}

impl TensorAction {
    /// The bytes of the source that are read.
    pub(super) fn source_bytes(&self) -> u64 {
        match self {
            TensorAction::Copy(range) => range.len() as u64,
            TensorAction::Round { from, length, .. } => (from.size() * length) as u64,
            TensorAction::Widen { shape, .. } => (shape.0 * shape.1) as u64,
            TensorAction::Dequantize { bytes, .. } | TensorAction::Cast { bytes, .. } => *bytes,
        }
    }
}

/// How a tensor is carried over.
#[derive(Clone, Debug, PartialEq)]
pub enum TensorAction {
    /// These bytes of the source's tensor, as they are.
    Copy(Range<usize>),
    /// An fp8 weight of a layer that is kept, as bfloat16: its scales mean nothing to a loader of the output.
    Widen {
        /// The type of the source's elements.
        dtype: FloatDType,
        /// The shape of the matrix.
        shape: (usize, usize),
        /// Its scales.
        scales: ScalesOfSource,
    },
    /// The values of plain floats, in the type that is declared.
    Cast {
        /// The type in the source.
        from: Dtype,
        /// Their bytes there.
        bytes: u64,
    },
    /// The bias of a quantized layer, rounded to nearest: floats in the place of the source's, or where there are parts the codes, scales
    /// and zero points, which are declared one after the other.
    Round {
        /// The scheme.
        scheme: TensorScheme,
        /// The type in the source.
        from: FloatDType,
        /// The number of values.
        length: usize,
        /// The tensors of the format.
        parts: Vec<Part>,
    },
    /// The values of a weight that is quantized in the source, in the type that is declared.
    Dequantize {
        /// Whether each matrix is stored as `[in, out]`.
        is_transposed: bool,
        /// The bytes of its codes and scales.
        bytes: u64,
    },
}
