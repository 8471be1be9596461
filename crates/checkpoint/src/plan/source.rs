//! Reading what the source says of its weights: types, and scales of fp8 weights. Tensors as they are stored, or as what they
//! stand for.

use super::error::PlanError;
use super::layer::{PackedUse, ScalesOfSource, SourceStorage, SourceWeight};
use super::recognised::Recognised;
use kvant_container::{Checkpoint, Dtype, TensorView};
use kvant_formats::format::{scale_block, stated_block};
use kvant_model::network::{Linear, TensorMeta};
use kvant_numeric::kernel::FloatDType;
use kvant_weights::float_dtype::float_dtype;
use kvant_weights::weight::{ImportedTensor, PackedMatrix, Stored};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// A tensor of the source.
#[derive(Clone, Debug)]
pub(super) struct SourceTensor<'a> {
    pub(super) name: String,
    pub(super) shape: Vec<usize>,
    /// Its element type; of packed weights that of the model's floats.
    pub(super) dtype: Dtype,
    /// Its position among the checkpoint's tensors, or that of the first of its parts.
    pub(super) position: usize,
    pub(super) stored: Stored<'a>,
}

impl<'a> SourceTensor<'a> {
    /// All tensors as they are stored.
    pub(super) fn plain(checkpoint: &'a Checkpoint) -> Vec<SourceTensor<'a>> {
        let tensor = |(position, view): (usize, TensorView<'a>)| SourceTensor {
            name: view.name().to_owned(),
            shape: view.shape().to_vec(),
            dtype: view.dtype(),
            position,
            stored: Stored::Plain(view),
        };
        checkpoint.tensors().enumerate().map(tensor).collect()
    }

    /// All tensors as what they stand for; packed weights count as floats of a type.
    pub(super) fn imported(
        checkpoint: &'a Checkpoint,
        tensors: Vec<ImportedTensor<'a>>,
        float: Dtype,
    ) -> Vec<SourceTensor<'a>> {
        let positions: HashMap<&str, usize> =
            checkpoint.tensors().enumerate().map(|(position, view)| (view.name(), position)).collect();
        let mut taken = HashSet::new();
        let tensor = |(index, ImportedTensor { meta, stored }): (usize, ImportedTensor<'a>)| {
            let (dtype, part) = match &stored {
                Stored::Plain(view) => (view.dtype(), Some(view.name())),
                Stored::Packed(matrices) => (
                    matrices.first().and_then(|matrix| matrix.own_type()).unwrap_or(float),
                    matrices.first().and_then(|matrix| matrix.tensor_name()),
                ),
            };
            // Tensors in a GGUF file come after those derived from it, and further matrices of a tensor after all tensors.
            let own = part.and_then(|part| positions.get(part).copied()).filter(|position| taken.insert(*position));
            let position = own.unwrap_or(positions.len() + index);
            SourceTensor { name: meta.name, shape: meta.shape, dtype, position, stored }
        };
        tensors.into_iter().enumerate().map(tensor).collect()
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn dtype(&self) -> Dtype {
        self.dtype
    }

    pub(super) fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Bytes in the source's files.
    pub(super) fn byte_len(&self) -> u64 {
        match &self.stored {
            Stored::Plain(view) => view.byte_len(),
            Stored::Packed(matrices) => matrices.iter().map(|matrix| matrix.stored_bytes()).sum(),
        }
    }

    /// Its name in the source's files; of packed weights that of what they stand for.
    pub(super) fn stored_name(&self) -> String {
        match &self.stored {
            Stored::Plain(view) => view.name().to_owned(),
            Stored::Packed(_) => self.name.clone(),
        }
    }

    /// Its matrices, where they are packed.
    pub(super) fn packed(&self) -> Option<&[Arc<PackedMatrix<'a>>]> {
        match &self.stored {
            Stored::Plain(_) => None,
            Stored::Packed(matrices) => Some(matrices),
        }
    }

    /// Returns whether it is quantized.
    pub(super) fn has_codes(&self) -> bool {
        self.stored.has_codes()
    }

    /// How it looks to the network.
    pub(super) fn meta(&self) -> TensorMeta {
        TensorMeta::new(self.name.clone(), self.shape.clone(), self.dtype.to_string())
    }
}

impl Recognised<'_> {
    pub(super) fn source_type(&self, position: usize) -> Result<FloatDType, PlanError> {
        let view = &self.tensors[position];
        float_dtype(view.dtype())
            .ok_or_else(|| PlanError::SourceType { tensor: view.name().to_owned(), dtype: view.dtype().to_string() })
    }

    /// The tensor with the scales of an fp8 weight. Other types have none: what is named like scales there is something else.
    pub(super) fn scale_of(&self, linear: &Linear) -> Option<usize> {
        let dtype = self.tensors[linear.weight].dtype();
        linear.scale.filter(|_| matches!(dtype, Dtype::F8_E4M3 | Dtype::F8_E5M2))
    }

    /// How the weight of a linear layer is stored, of which values are read.
    pub(super) fn storage(&self, linear: &Linear) -> Result<SourceStorage, PlanError> {
        match self.packed_values(linear.weight) {
            Some(packed) => Ok(packed),
            None => Ok(self.scales(linear)?.map_or(SourceStorage::Plain, SourceStorage::Scaled)),
        }
    }

    /// The storage of a packed tensor of which values are read; `None` for one that is not packed.
    pub(super) fn packed_values(&self, tensor: usize) -> Option<SourceStorage> {
        let tensor = Some(&self.tensors[tensor]).filter(|tensor| tensor.packed().is_some())?;
        Some(SourceStorage::Packed { packed_use: PackedUse::Values, bytes: tensor.byte_len() })
    }

    /// A tensor as the weight of one layer.
    pub(super) fn source_weight(
        &self,
        tensor: usize,
        is_transposed: bool,
        storage: SourceStorage,
    ) -> Result<SourceWeight, PlanError> {
        Ok(SourceWeight {
            tensor: self.tensors[tensor].stored_name(),
            position: self.tensors[tensor].position,
            expert: None,
            is_transposed,
            dtype: self.source_type(tensor)?,
            storage,
        })
    }

    /// The scales of a weight that has some.
    pub(super) fn scales(&self, linear: &Linear) -> Result<Option<ScalesOfSource>, PlanError> {
        let Some(scale) = self.scale_of(linear).map(|scale| &self.tensors[scale]) else {
            return Ok(None);
        };
        let (rows, columns) = (linear.out_features, linear.in_features);
        let float = matches!(scale.dtype(), Dtype::F32 | Dtype::F16 | Dtype::BF16);
        let block = scale_block(scale.shape(), rows, columns, self.config.quantization.as_ref().and_then(stated_block))
            .filter(|_| float);
        let block = block.ok_or_else(|| PlanError::SourceScales {
            scale: scale.name().to_owned(),
            shape: scale.shape().to_vec(),
            weight: self.tensors[linear.weight].name().to_owned(),
            rows,
            columns,
        })?;
        Ok(Some(ScalesOfSource { tensor: scale.name().to_owned(), block }))
    }
}
