//! QuantizeLinear and DequantizeLinear, of the standard operators or those of ONNX Runtime, which mean the same.

use kvant_container::onnx::NodeProto;

use super::domain;

const DOMAINS: [&str; 2] = ["", "com.microsoft"];

/// Returns whether a node is a QuantizeLinear.
pub fn is_quantize_linear(node: &NodeProto) -> bool {
    node.op_type() == "QuantizeLinear" && DOMAINS.contains(&domain(node))
}

/// Returns whether a node is a DequantizeLinear.
pub fn is_dequantize_linear(node: &NodeProto) -> bool {
    node.op_type() == "DequantizeLinear" && DOMAINS.contains(&domain(node))
}

/// Returns whether a node is one half of a Q/DQ pair: a QuantizeLinear or a DequantizeLinear.
pub fn is_qdq(node: &NodeProto) -> bool {
    is_quantize_linear(node) || is_dequantize_linear(node)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::node;

    #[test]
    fn operators_of_other_domains_mean_something_else() {
        let of = |domain: &str, op_type: &str| {
            let node = NodeProto { domain: Some(domain.to_owned()), ..node(op_type, "n", &["x", "s"], &["y"]) };
            (is_quantize_linear(&node), is_dequantize_linear(&node), is_qdq(&node))
        };
        assert_eq!(of("ai.onnx", "QuantizeLinear"), (true, false, true));
        assert_eq!(of("com.microsoft", "DequantizeLinear"), (false, true, true));
        assert_eq!(of("com.example", "QuantizeLinear"), (false, false, false));
        assert_eq!(of("", "QLinearAdd"), (false, false, false));
    }
}
