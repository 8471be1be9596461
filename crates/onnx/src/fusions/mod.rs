//! Which QuantizeLinear and DequantizeLinear nodes of a graph ONNX Runtime's kernels for CPUs absorb, and why the others stay.
//!
//! Nothing is run: `prepared` does to a copy of the graph what ONNX Runtime's optimizations do before kernels are chosen, `reshape_targets` finds
//! the nodes that they make superfluous, and `kernels` has the conditions of kernels. Read from the source of ONNX Runtime
//! (`core/optimizer/qdq_transformer`) and measured with 1.31.1 on x86: the graphs that it saves after its extended optimizations hold the nodes
//! that are listed here (`tests/interop/test_fusions.py`).

mod kernels;
mod prepared;
mod reason;
mod reshape_targets;

pub use reason::FusionProblem;

use kvant_container::onnx::ModelProto;

use crate::graph::{called, domain, is_quantize_linear};
use kernels::Kernels;
use prepared::PreparedGraph;

/// A QuantizeLinear or DequantizeLinear that stays when ONNX Runtime has optimized the graph.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnfusedPair {
    /// The node, by its name or its first output.
    pub node: String,
    /// Whether it quantizes.
    pub quantizes: bool,
    /// The tensor that has codes in the graph: what is quantized, or the constant that holds codes.
    pub tensor: String,
    /// The node beside it that computes with floats; none where the graph ends.
    pub beside: Option<FloatNode>,
    /// Why no kernel absorbs it.
    pub problem: FusionProblem,
}

/// A node that computes with floats.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FloatNode {
    /// Its name or its first output.
    pub name: String,
    /// Its operator.
    pub operator: String,
}

/// What ONNX Runtime makes of the pairs of a graph.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Fusions {
    /// Operators that compute with codes, or move them.
    pub fused: usize,
    /// Nodes that quantize or dequantize still, in the order of the graph. One that several nodes read is listed once for each of them.
    pub unfused: Vec<UnfusedPair>,
}

impl Fusions {
    /// Of the main graph of a model.
    pub fn of(model: &ModelProto) -> Self {
        let prepared = PreparedGraph::of(model);
        let kernels = Kernels::of(&prepared);
        let mut made = Self { fused: kernels.fused(), unfused: Vec::new() };
        for (position, node) in prepared.graph.node.iter().enumerate() {
            let Some(original) = prepared.original(position) else { continue };
            let Some((beside, problem)) = kernels.unfused(position) else { continue };
            let quantizes = is_quantize_linear(node);
            let beside = beside.map(|at| &prepared.graph.node[at]).map(|float| FloatNode {
                name: called(float).to_owned(),
                operator: match domain(float) {
                    "" => float.op_type().to_owned(),
                    domain => format!("{domain}:{}", float.op_type()),
                },
            });
            let tensor = original.input.first().cloned().unwrap_or_default();
            let node = called(original).to_owned();
            made.unfused.push(UnfusedPair { node, quantizes, tensor, beside, problem });
        }
        made
    }

    /// The nodes that stay for another reason than that the graph begins and ends with floats.
    pub fn problems(&self) -> impl Iterator<Item = &UnfusedPair> {
        self.unfused.iter().filter(|pair| !pair.problem.is_end())
    }
}

#[cfg(test)]
mod tests;
