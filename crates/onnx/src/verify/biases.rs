//! Float biases that ONNX Runtime's graph optimizations cannot store. Behind quantized data and weights they become int32 codes with
//! the scale of the product, `s_data * s_weight`; where 16-bit types make that so small that `bias / scale` leaves int32, the codes
//! are cut, and the result is wrong without a word. Measured with 1.31.1: 82 dB without optimizations, -2 dB with them.

use super::types::name_of;
use crate::constant::Value;
use crate::graph::{Index, positional_input};
use kvant_container::onnx::{GraphProto, ModelProto, NodeProto};
use kvant_quant::finding::Findings;

/// Operators whose float bias becomes codes.
const PRODUCTS: [&str; 3] = ["Conv", "ConvTranspose", "Gemm"];

const HINT: &str = "quantize the model again with `kvant quantize`, which stores such biases as int16 codes with a scale of their own, or \
                    keep them as int32 codes with a larger scale of the weight; a session with ORT_DISABLE_ALL computes it as it is";

pub(super) fn run(model: &ModelProto, findings: &mut Findings) {
    let graph = &model.graph;
    let biases = Biases { graph, index: Index::new(graph) };
    for node in graph.node.iter().filter(|node| PRODUCTS.contains(&node.op_type())) {
        if let Some((bias, cut, of)) = biases.cut(node) {
            let reason = format!(
                "ONNX Runtime's graph optimizations store the float bias `{bias}` as int32 codes with the scale of the product, \
                 which cannot hold {cut} of its {of} values"
            );
            findings.warning(name_of(node), reason, HINT);
        }
    }
}

struct Biases<'g> {
    graph: &'g GraphProto,
    index: Index,
}

impl<'g> Biases<'g> {
    /// The bias of a product, how many of its values are cut, and of how many; `None` where none is.
    fn cut(&self, node: &'g NodeProto) -> Option<(&'g str, usize, usize)> {
        let bias = positional_input(node, 2)?;
        let values = self.floats(bias)?;
        let data = self.scales(positional_input(node, 0)?)?;
        let weight = self.scales(positional_input(node, 1)?)?;
        let [data] = data[..] else { return None };
        let of_channel =
            |at: usize| if weight.len() == 1 { weight[0] } else { weight.get(at).copied().unwrap_or(f64::MAX) };
        let is_cut = |(at, value): &(usize, &f64)| (**value / (data * of_channel(*at))).abs() > f64::from(i32::MAX);
        let cut = values.iter().enumerate().filter(is_cut).count();
        (cut > 0).then_some((bias, cut, values.len()))
    }

    /// The scales of the DequantizeLinear that makes a tensor.
    fn scales(&self, name: &str) -> Option<Vec<f64>> {
        let node = &self.graph.node[self.index.producer(name)?];
        let scale = positional_input(node, 1).filter(|_| node.op_type() == "DequantizeLinear")?;
        self.floats(scale)
    }

    fn floats(&self, name: &str) -> Option<Vec<f64>> {
        Value::of_tensor(self.index.constant(self.graph, name)?)?.as_floats()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::node;
    use crate::test_models::{floats, model};
    use kvant_container::onnx::{DataType, tensor};

    /// A product of 16-bit data and weights with these scales, and a float bias.
    fn product(data: f32, weight: [f32; 2], bias: [f32; 2]) -> ModelProto {
        let nodes = vec![
            node("QuantizeLinear", "q", &["x", "s", "z"], &["xq"]),
            node("DequantizeLinear", "d", &["xq", "s", "z"], &["xf"]),
            node("DequantizeLinear", "w", &["wq", "t"], &["wf"]),
            node("Conv", "c", &["xf", "wf", "b"], &["y"]),
        ];
        let codes = tensor("wq", DataType::INT16, &[2, 1, 1, 1], vec![1u8; 4]);
        let zero = tensor("z", DataType::INT16, &[], vec![0u8; 2]);
        let constants =
            vec![floats("s", &[], &[data]), zero, codes, floats("t", &[2], &weight), floats("b", &[2], &bias)];
        model(21, nodes, constants, &["x"], &["y"])
    }

    #[test]
    fn biases_beyond_int32_codes_are_reported() {
        let found = |model: &ModelProto| {
            let mut findings = Findings::of("biases");
            run(model, &mut findings);
            findings.into_vec()
        };
        let wide = found(&product(1e-6, [1e-6, 1e-3], [0.5, 0.5]));
        assert!(wide.len() == 1 && wide[0].reason.contains("1 of its 2 values"), "{wide:?}");
        assert!(found(&product(1e-3, [1e-6, 1e-3], [0.5, 0.5])).is_empty());
    }
}
