//! Blocks of GGUF: scales and codes of the type's own search, which the importance of columns weighs. It is a search for all types: what
//! llama.cpp has a formula for is found by one only without importance, which is then the same for all columns here.

use super::{RoundingError, Rtn, Strip};
use crate::quant_tensor::{Codes, QuantTensor};
use kvant_numeric::ggml::{GroupedBlocks, GroupedType, first_saturated, quantize};

impl Rtn {
    pub(super) fn append_blocks(
        &self,
        blocks: GroupedType,
        strip: Strip<'_>,
        out: &mut QuantTensor,
    ) -> Result<(), RoundingError> {
        let (values, kind) = (strip.values(self.isa), blocks.kind);
        if !values.iter().all(|value| value.is_finite()) {
            return Err(RoundingError::NotFinite);
        }
        let mut bytes = vec![0; values.len() / kind.block_elements() * kind.block_bytes()];
        let uniform = if strip.importance.is_none() { vec![1.0; strip.columns] } else { Vec::new() };
        let importance = strip.importance.unwrap_or(&uniform);
        quantize(self.isa, kind, strip.columns, &values, Some(importance), &mut bytes);
        if let Some(at) = first_saturated(kind, &values, &bytes) {
            let (scale, largest) = (values[at], kind.safe_magnitude());
            return Err(RoundingError::ScaleTooLarge { scale, largest });
        }
        let mut parts = GroupedBlocks::default();
        blocks.take_apart(&bytes, &mut parts);
        if let Codes::Bytes(codes) = &mut out.codes {
            codes.extend(parts.codes);
        }
        out.scales.extend(parts.scales);
        out.zero_points.extend(parts.minima.into_iter().map(f64::from));
        out.factors.extend(parts.factors);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rounding::TensorContext;
    use crate::scheme::TensorScheme;
    use kvant_numeric::ComputeDType;
    use kvant_numeric::ggml::dequantize;
    use kvant_numeric::simd::Isa;

    #[test]
    fn rounded_blocks_have_the_bytes_and_values_of_the_type() {
        let weights: Vec<f32> = (0..4 * 512).map(|i| ((i * 7919) % 1009) as f32 / 504.5 - 1.0).collect();
        for blocks in GroupedType::ALL {
            let rtn = Rtn::new(TensorScheme::Gguf(blocks), TensorContext::new(ComputeDType::F32)).unwrap();
            let tensor = rtn.round(&weights, 4, 512).unwrap();
            let mut expected = vec![0; 4 * blocks.kind.row_bytes(512).unwrap()];
            quantize(Isa::best(), blocks.kind, 512, &weights, Some(&[1.0; 512]), &mut expected);
            let mut bytes = Vec::new();
            tensor.put_blocks(&mut bytes);
            assert_eq!(bytes, expected, "{}", blocks.kind);
            let mut values = vec![0.0; weights.len()];
            dequantize(Isa::best(), blocks.kind, &bytes, &mut values);
            assert_eq!(tensor.dequantize(), values, "{}", blocks.kind);
        }
    }

    #[test]
    fn weights_beyond_the_largest_scale_are_refused() {
        let mut weights = vec![0.5f32; 256];
        weights[3] = 3e38;
        let scheme = "gguf-q4_k".parse().unwrap();
        let error = Rtn::new(scheme, TensorContext::new(ComputeDType::F32)).unwrap().round(&weights, 1, 256);
        assert!(matches!(error, Err(RoundingError::ScaleTooLarge { .. })), "{error:?}");
    }
}
