//! The nodes that quantize: which they are, and what each computes, in the forms of all domains.

use kvant_container::onnx::{DataType, EnumOrUnknown, NodeProto};

use crate::data::{Array, Values};
use crate::graph::{domain, int_attribute};
use crate::kernel::linear::{Parameters, dequantize, quantize, round_to};
use crate::kernel::{Bfp, KernelError, Microscaling};

/// The operation of a node on its first input.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Quantizer {
    /// Values to codes, of a type that is stated or that of the zero point.
    Quantize { to: Option<DataType>, axis: i64, block: usize },
    /// Codes to values.
    Dequantize { axis: i64, block: usize },
    /// To block floating point and back.
    Bfp(Bfp),
    /// To microscaling and back.
    Microscaling(Microscaling),
    /// To a float of up to 16 bits.
    Round(DataType),
}

type Read = fn(&NodeProto) -> Result<Option<Quantizer>, KernelError>;

/// Every quantizing operator: its domains, its name, how it is read. The names of `com.vai.quantize` are older ones.
const QUANTIZERS: &[(&[&str], &str, Read)] = &[
    (&["", "com.microsoft"], "QuantizeLinear", read_quantize),
    (&["", "com.microsoft"], "DequantizeLinear", read_dequantize),
    (&["com.amd.quark"], "ExtendedQuantizeLinear", read_quantize),
    (&["com.amd.quark"], "ExtendedDequantizeLinear", read_dequantize),
    (&["com.vai.quantize"], "VitisQuantizeLinear", read_quantize),
    (&["com.vai.quantize"], "VitisDequantizeLinear", read_dequantize),
    (&["com.amd.quark"], "BFPQuantizeDequantize", |node| Ok(Some(Quantizer::Bfp(Bfp::of(node)?)))),
    (&["com.vai.quantize"], "BFPFixNeuron", |node| Ok(Some(Quantizer::Bfp(Bfp::of(node)?)))),
    (&["com.amd.quark"], "MXQuantizeDequantize", |node| Ok(Some(Quantizer::Microscaling(Microscaling::of(node)?)))),
    (&["com.vai.quantize"], "MXFixNeuron", |node| Ok(Some(Quantizer::Microscaling(Microscaling::of(node)?)))),
    (&[""], "Cast", read_cast),
];

fn read_quantize(node: &NodeProto) -> Result<Option<Quantizer>, KernelError> {
    if int_attribute(node, "saturate").is_some_and(|saturate| saturate != 1) {
        return Err(KernelError::new("saturate", 0));
    }
    let to = int_attribute(node, "output_dtype").filter(|&to| to != 0).map(data_type);
    Ok(Some(Quantizer::Quantize { to, axis: axis(node), block: block(node)? }))
}

fn read_dequantize(node: &NodeProto) -> Result<Option<Quantizer>, KernelError> {
    Ok(Some(Quantizer::Dequantize { axis: axis(node), block: block(node)? }))
}

fn read_cast(node: &NodeProto) -> Result<Option<Quantizer>, KernelError> {
    use DataType::*;
    let to = int_attribute(node, "to").map(data_type);
    let narrow = to.filter(|to| matches!(to, FLOAT16 | BFLOAT16 | FLOAT8E4M3FN | FLOAT8E5M2 | FLOAT4E2M1));
    Ok(narrow.map(Quantizer::Round))
}

fn axis(node: &NodeProto) -> i64 {
    int_attribute(node, "axis").unwrap_or(1)
}

fn block(node: &NodeProto) -> Result<usize, KernelError> {
    let block = int_attribute(node, "block_size").unwrap_or(0);
    usize::try_from(block).map_err(|_| KernelError::new("block_size", block))
}

fn data_type(number: i64) -> DataType {
    i32::try_from(number).map_or(DataType::UNDEFINED, |n| EnumOrUnknown::from_i32(n).enum_value_or(DataType::UNDEFINED))
}

impl Quantizer {
    /// The operation of a node, if it is a quantizing one.
    pub fn of(node: &NodeProto) -> Result<Option<Self>, KernelError> {
        let known = QUANTIZERS.iter().find(|(domains, op, _)| node.op_type() == *op && domains.contains(&domain(node)));
        known.map_or(Ok(None), |(_, _, read)| read(node))
    }

    /// Returns whether it is one, with any attributes.
    pub fn is(node: &NodeProto) -> bool {
        !matches!(Self::of(node), Ok(None))
    }

    /// Computes the node from its inputs: values or codes, scale, zero point. `declared` is the type the zero point is stated
    /// to have, which an array may hold in a wider one.
    pub fn compute(self, inputs: &[Array<'_>], declared: Option<DataType>) -> Result<Array<'static>, KernelError> {
        let missing = || KernelError::new("inputs", inputs.len());
        let input = inputs.first().ok_or_else(missing)?;
        let parameters = |axis, block| {
            let scale = inputs.get(1).ok_or_else(missing)?.view();
            Ok::<_, KernelError>(Parameters { scale, zero_point: inputs.get(2).map(Array::view), axis, block })
        };
        match self {
            Self::Quantize { to, axis, block } => {
                let of_zero = declared.or_else(|| inputs.get(2).map(Array::data_type));
                let to = to.or(of_zero).unwrap_or(DataType::UINT8);
                quantize(input, &parameters(axis, block)?, to)
            }
            Self::Dequantize { axis, block } => dequantize(input, &parameters(axis, block)?),
            Self::Bfp(bfp) => in_place(input, |shape, values| bfp.apply(shape, values)),
            Self::Microscaling(mx) => in_place(input, |shape, values| mx.apply(shape, values)),
            Self::Round(to) => round_to(input, to),
        }
    }
}

fn in_place(input: &Array<'_>, change: impl Fn(&[usize], &mut [f32])) -> Result<Array<'static>, KernelError> {
    let mut values = input.to_f32s().into_owned();
    change(input.shape(), &mut values);
    let array = Array::new(input.shape().to_vec(), Values::F32(values.into()));
    array.ok_or_else(|| KernelError::new("shape", format!("{:?}", input.shape())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{node, set_attribute};

    #[test]
    fn quantizer_names_belong_to_their_domain() {
        let of = |domain: &str, op: &str| {
            let mut node = node(op, "n", &["x"], &["y"]);
            node.domain = Some(domain.to_owned());
            Quantizer::is(&node)
        };
        assert!(of("", "QuantizeLinear") && of("ai.onnx", "DequantizeLinear") && of("com.microsoft", "QuantizeLinear"));
        assert!(of("com.amd.quark", "BFPQuantizeDequantize") && of("com.vai.quantize", "VitisQuantizeLinear"));
        assert!(!of("com.amd.quark", "QuantizeLinear") && !of("", "Relu") && !of("", "Cast"));
    }

    #[test]
    fn casts_to_narrow_floats_round() {
        let mut cast = node("Cast", "n", &["x"], &["y"]);
        set_attribute(&mut cast, "to", DataType::BFLOAT16 as i64);
        assert_eq!(Quantizer::of(&cast), Ok(Some(Quantizer::Round(DataType::BFLOAT16))));
        set_attribute(&mut cast, "to", DataType::INT64 as i64);
        assert_eq!(Quantizer::of(&cast), Ok(None));
    }

    #[test]
    fn output_dtype_is_stated_or_taken_from_the_zero_point() {
        let array = |values: Vec<f32>| Array::of(vec![values.len()], values).unwrap();
        let x = [array(vec![300.0]), Array::of(vec![], vec![1.0f32]).unwrap()];
        let plain = Quantizer::Quantize { to: None, axis: 1, block: 0 };
        assert_eq!(plain.compute(&x, None).unwrap(), Array::of(vec![1], vec![255u8]).unwrap());
        let stated = Quantizer::Quantize { to: Some(DataType::INT16), axis: 1, block: 0 };
        assert_eq!(stated.compute(&x, None).unwrap(), Array::of(vec![1], vec![300i16]).unwrap());
        assert_eq!(plain.compute(&x, Some(DataType::INT4)).unwrap(), Array::of(vec![1], vec![7i8]).unwrap());
        assert!(plain.compute(&x[..1], None).is_err());
    }
}
