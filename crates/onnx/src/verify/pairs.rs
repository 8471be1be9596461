//! QuantizeLinear and DequantizeLinear: scales, zero points, axes and blocks, as the operators' specification and ONNX
//! Runtime want them.

use super::types::name_of;
use crate::constant::Value;
use crate::graph::{Index, STANDARD_DOMAIN, int_attribute, is_qdq, opset};
use kvant_container::onnx::{
    DataType, GraphProto, ModelProto, NodeProto, TensorProto, data_type, data_type_name, tensor_bytes,
};
use kvant_quant::counts::number;
use kvant_quant::finding::Findings;

const HINT: &str = "quantize the model again";

pub(super) fn run(model: &ModelProto, findings: &mut Findings) {
    let index = Index::new(&model.graph);
    for node in model.graph.node.iter().filter(|node| is_qdq(node)) {
        QdqPair::new(node, &model.graph, &index).check(opset(model, STANDARD_DOMAIN).unwrap_or(0), findings);
    }
}

/// A node that quantizes or dequantizes, with what of it is constant.
struct QdqPair<'g> {
    node: &'g NodeProto,
    codes: Option<&'g TensorProto>,
    scale: Option<&'g TensorProto>,
    zero_point: Option<&'g TensorProto>,
}

impl<'g> QdqPair<'g> {
    fn new(node: &'g NodeProto, graph: &'g GraphProto, index: &Index) -> QdqPair<'g> {
        let input = |at: usize| node.input.get(at).and_then(|name| index.constant(graph, name));
        QdqPair { node, codes: input(0), scale: input(1), zero_point: input(2) }
    }

    fn check(&self, opset: i64, findings: &mut Findings) {
        let Some(scale) = self.scale else {
            let reason = "its scale is computed: ONNX Runtime fuses constant scales only";
            return findings.note(name_of(self.node), reason, "");
        };
        self.check_values(scale, findings);
        self.check_axis(scale, opset, findings);
        self.check_zero_point(scale, findings);
    }

    fn check_values(&self, scale: &TensorProto, findings: &mut Findings) {
        let values = Value::of_tensor(scale).and_then(|scale| scale.as_floats()).unwrap_or_default();
        let bad = values.iter().find(|value| !value.is_finite() || **value <= 0.0);
        if let Some(bad) = bad {
            findings.error(name_of(self.node), format!("a scale is {bad}; it must be a positive number"), HINT);
        }
    }

    /// One scale, or as many as the axis is long; with blocks, one for each.
    fn check_axis(&self, scale: &TensorProto, opset: i64, findings: &mut Findings) {
        let count = elements(scale);
        let block = int_attribute(self.node, "block_size").unwrap_or(0);
        let name = name_of(self.node);
        let standard = self.node.domain().is_empty() || self.node.domain() == "ai.onnx";
        if standard && count > 1 && block == 0 && opset < 13 {
            findings.error(name, format!("a scale for each channel needs opset 13; the model has {opset}"), HINT);
        }
        let Some(codes) = self.codes.filter(|_| count > 1 || block > 0) else { return };
        let rank = codes.dims.len() as i64;
        let axis = int_attribute(self.node, "axis").unwrap_or(1);
        let Some(length) =
            usize::try_from(if axis < 0 { axis + rank } else { axis }).ok().and_then(|at| codes.dims.get(at))
        else {
            return findings.error(name, format!("axis {axis} does not exist in a tensor of rank {rank}"), HINT);
        };
        if block == 0 && count != *length {
            findings.error(name, format!("has {} for an axis of {length}", number(count, "scale")), HINT);
        } else if block > 0 {
            let blocked = |(at, size): (usize, &i64)| {
                if at as i64 == axis.rem_euclid(rank) { (size + block - 1) / block } else { *size }
            };
            let wanted: Vec<i64> = codes.dims.iter().enumerate().map(blocked).collect();
            if scale.dims != wanted {
                let reason = format!("has blocks, and scales of shape {:?} where {wanted:?} is needed", scale.dims);
                findings.error(name, reason, HINT);
            }
        }
    }

    /// As many as scales, of the codes' type, and 0 where codes have 32 bits.
    fn check_zero_point(&self, scale: &TensorProto, findings: &mut Findings) {
        let Some(point) = self.zero_point else { return };
        let name = name_of(self.node);
        if elements(point) != elements(scale) {
            let reason = format!("has {} zero points for {} scales", elements(point), elements(scale));
            findings.error(name, reason, HINT);
        }
        let codes = self.codes.map(data_type).filter(|_| self.node.op_type() == "DequantizeLinear");
        if let Some(codes) = codes.filter(|codes| *codes != data_type(point)) {
            let (codes, point) = (data_type_name(codes), data_type_name(data_type(point)));
            findings.error(name, format!("its zero point is {point}, its codes are {codes}"), HINT);
        }
        let is_zero = tensor_bytes(point).is_ok_and(|bytes| bytes.iter().all(|byte| *byte == 0));
        if data_type(point) == DataType::INT32 && !is_zero {
            findings.error(name, "codes of 32 bits have a zero point that is not 0", HINT);
        }
    }
}

/// Elements of a tensor; the largest number where its shape has more, which another check tells.
fn elements(tensor: &TensorProto) -> i64 {
    tensor.dims.iter().try_fold(1i64, |product, size| product.checked_mul(*size)).unwrap_or(i64::MAX)
}
