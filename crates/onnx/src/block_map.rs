//! The positions of blocks in weights stored as for MatMulNBits. Not their parameters.

use kvant_container::onnx::NodeProto;

use crate::graph::{float_attribute, int_attribute};

/// The positions of a weight's blocks: along its inputs, in rows of `[inputs, outputs]` or of `[outputs, inputs]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockMap {
    /// Inputs of the product.
    pub inputs: usize,
    /// Outputs.
    pub outputs: usize,
    /// Whether the weight is `[outputs, inputs]`.
    pub transposed: bool,
    /// Inputs that share a scale.
    pub block: usize,
}

impl BlockMap {
    /// Of a node's weight; `None` where the layout does not take it.
    pub fn of(node: &NodeProto, shape: &[usize], block: usize) -> Option<Self> {
        let transposed = node.op_type() == "Gemm" && int_attribute(node, "transB") == Some(1);
        let (inputs, outputs) = match *shape {
            [n, k] if transposed => (k, n),
            [k, n] if !transposed => (k, n),
            _ => return None,
        };
        (fits(node) && block > 0 && inputs > 0 && outputs > 0).then_some(Self { inputs, outputs, transposed, block })
    }

    /// The element of the weight that an output reads an input by.
    pub fn element(&self, output: usize, input: usize) -> usize {
        if self.transposed { output * self.inputs + input } else { input * self.outputs + output }
    }

    /// The block of an element, those of the first output first.
    pub fn position(&self, element: usize) -> usize {
        let (output, input) = match self.transposed {
            true => (element / self.inputs, element % self.inputs),
            false => (element % self.outputs, element / self.outputs),
        };
        output * self.inputs.div_ceil(self.block) + input / self.block
    }
}

/// Whether a node is a product, and a sum at most.
fn fits(node: &NodeProto) -> bool {
    matches!(node.op_type(), "MatMul" | "Gemm") && !changes_data(node)
}

/// Whether a Gemm has factors or transposes its data, so that it is more than a product and a sum.
pub fn changes_data(node: &NodeProto) -> bool {
    let one = |name: &str| float_attribute(node, name).is_none_or(|factor| factor == 1.0);
    node.op_type() == "Gemm" && !(one("alpha") && one("beta") && int_attribute(node, "transA").unwrap_or(0) == 0)
}
