//! QuantizeLinear and DequantizeLinear of activations. Codes are floats on the tape, and gradients pass the rounding as if it were not
//! there; where codes are cut they are zero.

use kvant_container::onnx::{DataType, NodeProto};

use super::Operator;
use super::tensor::{Broadcast, Input, Tensor, axis_of};
use crate::data::Array;
use crate::graph::int_attribute;

/// Values to codes, or codes to values.
pub(super) struct Quantizer {
    /// To codes.
    quantizes: bool,
    axis: i64,
}

impl Quantizer {
    /// That of a node; `None` where it has blocks.
    pub fn of(node: &NodeProto) -> Option<Quantizer> {
        let quantizes = match node.op_type() {
            "QuantizeLinear" => true,
            "DequantizeLinear" => false,
            _ => return None,
        };
        let has_blocks = int_attribute(node, "block_size").is_some_and(|size| size != 0);
        (!has_blocks).then(|| Quantizer { quantizes, axis: int_attribute(node, "axis").unwrap_or(1) })
    }

    /// Visits each element with its scale and zero point; `None` where their shapes do not fit.
    fn for_each(&self, inputs: &[Input<'_>], mut visit: impl FnMut(usize, f32, f32)) -> Option<()> {
        let (shape, _) = inputs.first()?.floats()?;
        let (own, scales) = inputs.get(1)?.floats()?;
        let zeros = match inputs.get(2) {
            None | Some(Input::Absent) => vec![0.0; scales.len()],
            Some(Input::Other(array)) => array.to_f32s().into_owned(),
            Some(Input::Floats { .. }) => return None,
        };
        if zeros.len() != scales.len() {
            return None;
        }
        if scales.len() == 1 {
            (0..shape.iter().product()).for_each(|element| visit(element, scales[0], zeros[0]));
            return Some(());
        }
        let axis = axis_of(self.axis, shape.len()).filter(|_| own.len() == 1)?;
        let spread: Vec<usize> = (axis..shape.len()).map(|at| if at == axis { scales.len() } else { 1 }).collect();
        let broadcast = Broadcast::new(&[shape, &spread])?;
        broadcast.for_each(|element, at| visit(element, scales[at[1]], zeros[at[1]]));
        Some(())
    }
}

/// The lowest and the highest code of a zero point's type.
fn codes(zero_point: Option<&Input<'_>>) -> Option<(f32, f32)> {
    let data_type = match zero_point {
        None | Some(Input::Absent) => DataType::UINT8,
        Some(Input::Other(array)) => Array::data_type(array),
        Some(Input::Floats { .. }) => return None,
    };
    Some(match data_type {
        DataType::INT8 => (-128.0, 127.0),
        DataType::UINT8 => (0.0, 255.0),
        DataType::INT16 => (-32_768.0, 32_767.0),
        DataType::UINT16 => (0.0, 65_535.0),
        _ => return None,
    })
}

impl Operator for Quantizer {
    fn forward(&self, inputs: &[Input<'_>]) -> Option<Tensor> {
        let (shape, values) = inputs.first()?.floats()?;
        let mut made = vec![0.0; values.len()];
        match self.quantizes {
            true => {
                let (low, high) = codes(inputs.get(2))?;
                self.for_each(inputs, |i, scale, zero| {
                    made[i] = ((values[i] / scale).round_ties_even() + zero).max(low).min(high);
                })?;
            }
            false => self.for_each(inputs, |i, scale, zero| made[i] = (values[i] - zero) * scale)?,
        }
        Some(Tensor { shape: shape.to_vec(), values: made })
    }

    fn backward(&self, inputs: &[Input<'_>], _: &Tensor, slopes: &[f32], _: &[bool]) -> Option<Vec<Vec<f32>>> {
        let (_, values) = inputs.first()?.floats()?;
        let mut made = vec![0.0; values.len()];
        match self.quantizes {
            true => {
                let (low, high) = codes(inputs.get(2))?;
                self.for_each(inputs, |i, scale, zero| {
                    let code = (values[i] / scale).round_ties_even() + zero;
                    made[i] = if code >= low && code <= high { slopes[i] / scale } else { 0.0 };
                })?;
            }
            false => self.for_each(inputs, |i, scale, _| made[i] = slopes[i] * scale)?,
        }
        Some(vec![made])
    }
}
