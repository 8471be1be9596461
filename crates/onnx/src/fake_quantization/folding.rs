//! Weights of a quantized graph as floats: quantizing nodes that read only constants are computed once, ahead.

use std::collections::HashMap;
use std::path::Path;

use kvant_container::onnx::{DataType, GraphProto, NodeProto, Spill, TensorProto, data_type, tensor};

use super::quantizer::Quantizer;
use crate::data::{Array, Values, each_type};
use crate::graph::{attribute, is};
use crate::kernel::linear::constant;
use crate::runtime::RuntimeError;

/// The constants of a graph by name.
pub(super) struct Constants {
    tensors: HashMap<String, TensorProto>,
}

impl Constants {
    /// The tensor of a name.
    pub fn get(&self, name: &str) -> Option<&TensorProto> {
        self.tensors.get(name)
    }

    /// The contents of the tensor of a name.
    pub fn array(&self, name: &str) -> Option<Array<'static>> {
        constant(self.get(name)?)
    }

    /// The type the tensor of a name is stated to have.
    pub fn declared(&self, name: &str) -> Option<DataType> {
        self.get(name).map(data_type)
    }
}

/// Takes the constants out of a sorted graph, and computes what follows from them by quantizing nodes alone. Large results
/// are on disk in a temporary directory below `scratch`, mapped.
pub(super) fn fold(graph: &mut GraphProto, scratch: &Path) -> Result<Constants, RuntimeError> {
    let spill = Spill::new(scratch)?;
    // An input of the same name would override it; data are for inputs without one only.
    let given = std::mem::take(&mut graph.initializer).into_iter();
    let mut constants = Constants { tensors: given.map(|t| (t.name().to_owned(), t)).collect() };
    let mut left = Vec::with_capacity(graph.node.len());
    for node in std::mem::take(&mut graph.node) {
        if !fold_node(&node, &mut constants, &spill)? {
            left.push(node);
        }
    }
    graph.node = left;
    Ok(constants)
}

/// Returns whether the node's result is a constant now.
fn fold_node(node: &NodeProto, constants: &mut Constants, spill: &Spill) -> Result<bool, RuntimeError> {
    let Some(name) = node.output.first() else { return Ok(false) };
    let result = match quantizer(node)? {
        Some(quantizer) => {
            let Some(inputs) = node.input.iter().map(|input| constants.array(input)).collect::<Option<Vec<_>>>() else {
                return Ok(false);
            };
            let declared = node.input.get(2).and_then(|zero| constants.declared(zero));
            let result = quantizer.compute(&inputs, declared).map_err(|e| kernel_error(node, e))?;
            spilled(name, &result, spill)?
        }
        None if is(node, "Constant") => match attribute(node, "value").and_then(|a| a.t.as_ref()) {
            Some(value) => TensorProto { name: Some(name.clone()), ..value.clone() },
            None => return Ok(false),
        },
        None => return Ok(false),
    };
    constants.tensors.insert(name.clone(), result);
    Ok(true)
}

/// What a node quantizes, or what is wrong with it.
pub(super) fn quantizer(node: &NodeProto) -> Result<Option<Quantizer>, RuntimeError> {
    Quantizer::of(node).map_err(|e| kernel_error(node, e))
}

pub(super) fn kernel_error(node: &NodeProto, error: crate::kernel::KernelError) -> RuntimeError {
    RuntimeError::Kernel { node: node.name().to_owned(), op: node.op_type().to_owned(), error }
}

/// An array as a constant; large ones are on disk.
pub(super) fn spilled(name: &str, array: &Array<'_>, spill: &Spill) -> Result<TensorProto, RuntimeError> {
    let contents: Vec<u8> = match array.values() {
        Values::Bool(values) => values.iter().map(|&v| v.into()).collect(),
        other => each_type!(other, v => v.iter().flat_map(|x| bytemuck::bytes_of(x).to_vec()).collect()),
    };
    Ok(tensor(name, array.data_type(), array.shape(), spill.keep(contents)?))
}
