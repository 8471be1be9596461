//! Counts of nodes, tensors and bytes of a graph: one method for plans, runs and reports.

use kvant_quant::counts::number;
use std::collections::BTreeSet;
use std::fmt;

use kvant_container::onnx::{GraphProto, TensorProto, tensor_bytes};
use serde::Serialize;

use crate::graph::for_each_node;

/// The quantized part of a graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Nodes of the simplified model, those inside of If, Loop and Scan included.
    pub nodes: usize,
    /// Those of them that are quantized, or that compute in 16 bits.
    pub quantized_nodes: usize,
    /// Tensors that are quantized: activations, weights and biases.
    pub quantized_tensors: usize,
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { nodes, quantized_nodes, quantized_tensors } = self;
        write!(f, "{quantized_nodes} of {} quantized", number(nodes, "node"))?;
        // Of a conversion to a 16-bit type no tensor has codes.
        if *quantized_tensors > 0 { write!(f, ", {}", number(quantized_tensors, "tensor")) } else { Ok(()) }
    }
}

/// Bytes of the constants of a graph, before and after.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct ConstantBytes {
    /// Of the simplified model.
    pub source_bytes: u64,
    /// Of the quantized model.
    pub output_bytes: u64,
}

/// Nodes of a graph, those inside of others included.
pub fn nodes(graph: &GraphProto) -> usize {
    let mut count = 0;
    for_each_node(graph, &mut |_| count += 1);
    count
}

/// Bytes of the constants of a graph, each as given by `size`.
pub fn constants(graph: &GraphProto, size: impl Fn(&TensorProto) -> u64) -> u64 {
    let mut seen = BTreeSet::new();
    graph.initializer.iter().filter(|tensor| seen.insert(tensor.name())).map(size).sum()
}

/// Bytes of a constant as it is.
pub fn size(tensor: &TensorProto) -> u64 {
    tensor_bytes(tensor).map_or(0, |bytes| bytes.len() as u64)
}
