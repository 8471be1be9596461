//! Reading what the source says of its weights: types, and scales of fp8 weights.

use super::build::Builder;
use super::error::PlanError;
use super::layer::ScalesOfSource;
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
        let block = scale_block(scale.shape(), rows, columns, self.stated_block()).filter(|_| float);
        let block = block.ok_or_else(|| PlanError::SourceScales {
            scale: scale.name().to_owned(),
            shape: scale.shape().to_vec(),
            weight: self.tensors[linear.weight].name().to_owned(),
            rows,
            columns,
        })?;
        Ok(Some(ScalesOfSource { tensor: scale.name().to_owned(), block }))
    }

    /// `weight_block_size` of the source's quantization_config.
    fn stated_block(&self) -> Option<(usize, usize)> {
        let block = self.config.quantization.as_ref()?.get("weight_block_size")?.as_array()?;
        let size = |i: usize| block.get(i)?.as_u64().filter(|size| *size > 0).map(|size| size as usize);
        Some((size(0)?, size(1)?))
    }
}

/// Rows and columns that share a scale, from the shape of the scales; `None` where it does not fit the weight.
fn scale_block(shape: &[usize], rows: usize, columns: usize, stated: Option<(usize, usize)>) -> Option<(usize, usize)> {
    let (down, across) = match *shape {
        [] | [1] => return Some((rows, columns)),
        [down] => (down, 1),
        [down, across] => (down, across),
        _ => return None,
    };
    let fits = |(r, c): &(usize, usize)| rows.div_ceil(*r) == down && columns.div_ceil(*c) == across;
    let even = (down > 0 && across > 0).then(|| (rows.div_ceil(down.max(1)), columns.div_ceil(across.max(1))));
    [stated, Some((128, 128)), even].into_iter().flatten().filter(|(r, c)| *r > 0 && *c > 0).find(fits)
}
