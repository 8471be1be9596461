//! Pairs of operators that hardware runs as one: the tensor between them is never stored, so it has no codes.

use kvant_container::onnx::{GraphProto, NodeProto, tensor_bytes};

use crate::graph::{Index, float_attribute, is_standard, positional_input};

/// Returns whether the tensor that `producer` makes goes straight into an activation function that is fused with it.
pub fn is_fused(graph: &GraphProto, index: &Index, producer: &NodeProto, tensor: &str) -> bool {
    const BEFORE_ACTIVATIONS: &[&str] =
        &["Conv", "Add", "MaxPool", "AveragePool", "GlobalAveragePool", "MatMul", "Gemm", "ConvTranspose"];
    let Some(consumer) = index.only_consumer(tensor).map(|i| &graph.node[i]) else { return false };
    if !is_standard(producer) || !is_standard(consumer) {
        return false;
    }
    match (producer.op_type(), consumer.op_type()) {
        ("Pad", "AveragePool" | "GlobalAveragePool") => true,
        (before, "Relu" | "LeakyRelu" | "PRelu") => BEFORE_ACTIVATIONS.contains(&before),
        (before, "Clip") => {
            let bounds = clip_bounds(graph, index, consumer);
            BEFORE_ACTIVATIONS.contains(&before) && matches!(bounds, Some((0.0, max)) if max == 6.0 || max == 1.0)
        }
        _ => false,
    }
}

/// The bounds of a Clip: attributes below opset 11, constant inputs above. `None` where they are not known.
pub fn clip_bounds(graph: &GraphProto, index: &Index, clip: &NodeProto) -> Option<(f32, f32)> {
    let bound = |position: usize, attribute: &str, default: f32| match positional_input(clip, position) {
        Some(name) => scalar(graph, index, name),
        None => Some(float_attribute(clip, attribute).unwrap_or(default)),
    };
    Some((bound(1, "min", f32::MIN)?, bound(2, "max", f32::MAX)?))
}

/// The value of a constant with one f32.
pub fn scalar(graph: &GraphProto, index: &Index, name: &str) -> Option<f32> {
    let bytes = tensor_bytes(index.constant(graph, name)?).ok()?;
    <[u8; 4]>::try_from(&*bytes).ok().map(f32::from_le_bytes)
}
