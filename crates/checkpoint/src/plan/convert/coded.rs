//! A layer whose weight is codes in the source, before it is known what they become.

use crate::plan::layer::LayerDraft;
use crate::plan::{PackedUse, SourceStorage, SourceWeight};
use kvant_numeric::kernel::FloatDType;
use kvant_quant::scheme::{ActivationScheme, LayerScheme, TensorScheme};

/// A layer whose weight is codes in the source: all but the scheme of its weight.
pub(super) struct CodedLayer {
    /// The module's name in the output.
    pub(super) name: String,
    /// Its name in the source.
    pub(super) module: String,
    pub(super) role: &'static str,
    pub(super) rows: usize,
    pub(super) columns: usize,
    pub(super) input: Option<ActivationScheme>,
    pub(super) output: Option<ActivationScheme>,
    /// The tensor's name in the source.
    pub(super) tensor: String,
    /// Its position among the source's tensors.
    pub(super) position: usize,
    /// Which matrix of a 3-D tensor.
    pub(super) expert: Option<usize>,
    /// The type of the model's floats.
    pub(super) dtype: FloatDType,
    /// Bytes of codes and scales.
    pub(super) bytes: u64,
    pub(super) fused_rows: Option<usize>,
}

impl CodedLayer {
    /// The scheme of the layer with that of its weight.
    pub(super) fn scheme(&self, weight: TensorScheme) -> LayerScheme {
        LayerScheme { weight, input: self.input, output: self.output }
    }

    /// The layer under a scheme.
    pub(super) fn draft(&self, scheme: LayerScheme, packed_use: PackedUse) -> LayerDraft {
        LayerDraft {
            name: self.name.clone(),
            module: self.module.clone(),
            role: self.role,
            rows: self.rows,
            columns: self.columns,
            scheme,
            source: SourceWeight {
                tensor: self.tensor.clone(),
                position: self.position,
                expert: self.expert,
                is_transposed: false,
                dtype: self.dtype,
                storage: SourceStorage::Packed { packed_use, bytes: self.bytes },
            },
            shares_scale: None,
            fused_rows: self.fused_rows,
        }
    }
}
