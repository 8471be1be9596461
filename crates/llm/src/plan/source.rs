//! Reading what the source says of its weights: types, and scales of fp8 weights.

use super::build::Builder;
use super::error::PlanError;
use super::layer::ScalesOfSource;
use crate::import::{scale_block, stated_block};
use crate::network::Linear;
use kvant_container::Dtype;
use kvant_numeric::kernel::Source;

impl Builder<'_> {
    pub(super) fn source_type(&self, position: usize) -> Result<Source, PlanError> {
        let view = &self.tensors[position];
        match view.dtype() {
            Dtype::F32 => Ok(Source::F32),
            Dtype::F16 => Ok(Source::F16),
            Dtype::BF16 => Ok(Source::Bf16),
            Dtype::F8_E4M3 => Ok(Source::E4m3),
            Dtype::F8_E5M2 => Ok(Source::E5m2),
            dtype => Err(PlanError::SourceType { tensor: view.name().to_owned(), dtype: dtype.to_string() }),
        }
    }

    /// The tensor with the scales of an fp8 weight. Other types have none: what is named like scales there is something else.
    pub(super) fn scale_of(&self, linear: &Linear) -> Option<usize> {
        let dtype = self.tensors[linear.weight].dtype();
        linear.scale.filter(|_| matches!(dtype, Dtype::F8_E4M3 | Dtype::F8_E5M2))
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
