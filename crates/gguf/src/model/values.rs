//! The values of a tensor of a GGUF file.

use super::codec;
use kvant_container::gguf::GgufTensor;
use kvant_numeric::ggml::dequantize;
use kvant_numeric::simd::Isa;

/// The values of a whole tensor, row by row; `None` where its type has no codec here.
pub fn values(isa: Isa, tensor: GgufTensor<'_>) -> Option<Vec<f32>> {
    let kind = codec::of(tensor.kind())?;
    let elements: usize = tensor.shape().iter().product();
    let mut values = vec![0.0; elements];
    dequantize(isa, kind, tensor.bytes(), &mut values);
    Some(values)
}
