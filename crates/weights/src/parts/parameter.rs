//! One tensor of scales or zero points, and its bytes.

use super::ScaleEncoding;
use super::encode;
use crate::activation_point::ActivationPoint;
use kvant_container::Dtype;
use kvant_quant::activation::StaticParameters;

/// A tensor that holds parameters of activations.
#[derive(Clone, Debug, PartialEq)]
pub struct ParameterPart {
    /// Its full name.
    pub name: String,
    /// Its element type in the file.
    pub dtype: Dtype,
    /// Its shape in the file.
    pub shape: Vec<usize>,
    /// Of which place.
    pub site: ActivationPoint,
    /// The part of it.
    pub content: ParameterContent,
}

/// What a tensor holds of [`StaticParameters`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParameterContent {
    /// The scales.
    Scales(ScaleEncoding),
    /// The multiplier of a value before it is quantized, in f32.
    Reciprocals,
    /// The zero points, one byte each; zeros where the scheme has none.
    ZeroPoints,
}

impl ParameterPart {
    /// A tensor of scales.
    pub fn scales(name: String, encoding: ScaleEncoding, shape: Vec<usize>, site: &ActivationPoint) -> ParameterPart {
        let content = ParameterContent::Scales(encoding);
        ParameterPart { name, dtype: encoding.dtype(), shape, site: site.clone(), content }
    }

    /// A tensor of zero points.
    pub fn zero_points(name: String, dtype: Dtype, shape: Vec<usize>, site: &ActivationPoint) -> ParameterPart {
        ParameterPart { name, dtype, shape, site: site.clone(), content: ParameterContent::ZeroPoints }
    }

    /// How many scales the tensor has room for.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Returns whether it has room for none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Its bytes.
    pub fn bytes(&self, parameters: &StaticParameters) -> Vec<u8> {
        match self.content {
            ParameterContent::Scales(encoding) => encode(encoding, &parameters.scales),
            ParameterContent::Reciprocals => {
                let reciprocals: Vec<f32> = parameters.scales.iter().map(|scale| 1.0 / scale).collect();
                encode(ScaleEncoding::F32, &reciprocals)
            }
            ParameterContent::ZeroPoints if parameters.zero_points.is_empty() => vec![0; parameters.scales.len()],
            ParameterContent::ZeroPoints => parameters.zero_points.iter().map(|point| *point as i64 as u8).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(content: ParameterContent) -> ParameterPart {
        ParameterPart { name: String::new(), dtype: Dtype::U8, shape: vec![2], site: ActivationPoint::Key(0), content }
    }

    #[test]
    fn parameter_bytes_match_their_encoding() {
        let parameters = StaticParameters { scales: vec![0.5, 2.0], zero_points: vec![-3.0, 127.0] };
        let bytes = |content| part(content).bytes(&parameters);
        assert_eq!(bytes(ParameterContent::Scales(ScaleEncoding::Bf16)), [0x00, 0x3F, 0x00, 0x40]);
        assert_eq!(bytes(ParameterContent::Reciprocals), [2.0f32.to_le_bytes(), 0.5f32.to_le_bytes()].concat());
        assert_eq!(bytes(ParameterContent::ZeroPoints), [0xFD, 0x7F]);
        let symmetric = StaticParameters { zero_points: vec![], ..parameters.clone() };
        assert_eq!(part(ParameterContent::ZeroPoints).bytes(&symmetric), [0, 0]);
    }
}
