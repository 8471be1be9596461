//! Limits that quantization sets to activations. Where codes begin at zero, tools leave out a Relu or Clip before QuantizeLinear: the limits
//! must stay when the quantization goes.

use std::collections::HashSet;

use kvant_container::onnx::{DataType, NodeProto, data_type};

use super::{Scope, quantizer};
use crate::fake_quantization::Quantizer;
use crate::graph::{float_attribute, is, is_standard, positional_input};
use crate::kernel::linear::constant;

/// Operators whose outputs are not negative.
const NOT_NEGATIVE: &[&str] = &[
    "Abs",
    "Exp",
    "HardSigmoid",
    "ReduceL1",
    "ReduceL2",
    "ReduceSumSquare",
    "Relu",
    "Sigmoid",
    "Softmax",
    "Softplus",
    "Sqrt",
];

/// Operators whose outputs are not negative where their first input is not.
const OF_FIRST: &[&str] = &[
    "AveragePool",
    "Cast",
    "DepthToSpace",
    "Dropout",
    "Expand",
    "Flatten",
    "Gather",
    "GlobalAveragePool",
    "GlobalMaxPool",
    "Identity",
    "MaxPool",
    "ReduceMax",
    "ReduceMean",
    "ReduceMin",
    "ReduceSum",
    "Reshape",
    "Slice",
    "SpaceToDepth",
    "Split",
    "Squeeze",
    "Tile",
    "Transpose",
    "Unsqueeze",
];

/// Operators whose outputs are not negative where their inputs are not.
const OF_ALL: &[&str] = &["Add", "Concat", "Div", "Max", "Mean", "Min", "Mul", "Sum"];

/// The values that a pair lets pass.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Limits {
    /// The largest; `None` where it depends on the channel.
    pub most: Option<f32>,
}

impl Scope<'_> {
    /// The limits of the pair of a QuantizeLinear whose codes begin at zero, unless what it quantizes is never negative by what makes it, or is not
    /// made by a node here.
    pub(super) fn limits(&self, quantize: &NodeProto) -> Option<Limits> {
        let limits = self.range_from_zero(quantize)?;
        let source = quantize.input.first()?;
        let is_made_here = self.index.producer(source).is_some();
        (is_made_here && !self.is_never_negative(source)).then_some(limits)
    }

    /// The limits of codes whose lowest one is the zero point.
    fn range_from_zero(&self, quantize: &NodeProto) -> Option<Limits> {
        let stated = match quantizer(quantize) {
            Ok(Some(Quantizer::Quantize { to, .. })) => to,
            _ => return None,
        };
        let zero_point = positional_input(quantize, 2).map(|name| self.tensor(name));
        // One that is computed is not known to be the lowest.
        let zero_point = zero_point.map_or(Some(None), |tensor| tensor.map(Some))?;
        let (lowest, highest) = code_range(stated.or(zero_point.map(data_type)).unwrap_or(DataType::UINT8))?;
        let points = zero_point.map(constant).map_or(Some(vec![0.0]), |array| Some(array?.to_f32s().into_owned()))?;
        if points.iter().any(|&point| point != lowest) {
            return None;
        }
        let scales = constant(self.tensor(positional_input(quantize, 1)?)?)?;
        let most = match scales.to_f32s()[..] {
            [scale] => Some((highest - lowest) * scale),
            _ => None,
        };
        Some(Limits { most })
    }

    /// Returns whether a tensor has no negative values by the operators that make it.
    fn is_never_negative(&self, tensor: &str) -> bool {
        let mut waiting = vec![tensor];
        let mut seen = HashSet::new();
        while let Some(name) = waiting.pop() {
            if !seen.insert(name) {
                continue;
            }
            let Some(maker) = self.index.producer(name).map(|at| &self.graph.node[at]) else { return false };
            let operator = maker.op_type();
            match is_standard(maker) {
                true if NOT_NEGATIVE.contains(&operator) || self.clips_at_zero(maker) => {}
                true if OF_FIRST.contains(&operator) => waiting.extend(maker.input.first().map(String::as_str)),
                true if OF_ALL.contains(&operator) => waiting.extend(maker.input.iter().map(String::as_str)),
                _ => match self.quantize_before(maker) {
                    Some(quantize) if self.range_from_zero(quantize).is_some() => {}
                    Some(quantize) => waiting.extend(quantize.input.first().map(String::as_str)),
                    None => return false,
                },
            }
        }
        true
    }

    fn clips_at_zero(&self, node: &NodeProto) -> bool {
        let given = || constant(self.tensor(positional_input(node, 1)?)?)?.to_f32s().first().copied();
        is(node, "Clip") && float_attribute(node, "min").or_else(given).is_some_and(|least| least >= 0.0)
    }

    /// The QuantizeLinear before a DequantizeLinear.
    fn quantize_before(&self, node: &NodeProto) -> Option<&NodeProto> {
        let is_dequantize = matches!(quantizer(node), Ok(Some(Quantizer::Dequantize { .. })));
        let maker = node.input.first().filter(|_| is_dequantize).and_then(|codes| self.index.producer(codes))?;
        let maker = &self.graph.node[maker];
        matches!(quantizer(maker), Ok(Some(Quantizer::Quantize { .. }))).then_some(maker)
    }
}

/// The lowest and the highest code of a type of integers.
fn code_range(data_type: DataType) -> Option<(f32, f32)> {
    Some(match data_type {
        DataType::UINT2 => (0.0, 3.0),
        DataType::INT2 => (-2.0, 1.0),
        DataType::UINT4 => (0.0, 15.0),
        DataType::INT4 => (-8.0, 7.0),
        DataType::UINT8 => (0.0, 255.0),
        DataType::INT8 => (-128.0, 127.0),
        DataType::UINT16 => (0.0, 65535.0),
        DataType::INT16 => (-32768.0, 32767.0),
        _ => return None,
    })
}
