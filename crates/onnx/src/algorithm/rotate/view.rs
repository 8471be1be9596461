//! A graph while streams are looked for in it: its connections, shapes, and which nodes are products with a constant.

use kvant_container::onnx::{DataType, GraphProto, NodeProto, data_type};

use crate::graph::{Index, called, int_attribute, is, positional_input};
use crate::shape::Types;

/// A graph that is read.
pub(super) struct View<'g> {
    pub graph: &'g GraphProto,
    pub index: Index,
    pub types: &'g Types,
}

/// The axes of a constant matrix, or of a filter, of a layer.
#[derive(Debug, Clone, Copy)]
pub(super) struct WeightAxes {
    pub inputs: usize,
    pub outputs: usize,
}

impl<'g> View<'g> {
    pub fn node(&self, position: usize) -> &'g NodeProto {
        &self.graph.node[position]
    }

    /// The sizes of a constant of floats.
    pub fn floats(&self, name: &str) -> Option<Vec<usize>> {
        let constant = self.index.constant(self.graph, name).filter(|tensor| data_type(tensor) == DataType::FLOAT)?;
        kvant_container::onnx::shape(constant).ok().filter(|_| self.index.initializer(name).is_some())
    }

    /// The values of a constant of integers.
    pub fn integers(&self, name: &str) -> Option<Vec<i64>> {
        self.index.integers(self.graph, name)
    }

    pub fn is_constant(&self, name: &str) -> bool {
        self.index.constant(self.graph, name).is_some()
    }

    pub fn rank(&self, tensor: &str) -> Option<usize> {
        self.index.constant_shape(self.graph, tensor).map(|dims| dims.len()).or_else(|| self.types.rank(tensor))
    }

    /// The size of an axis.
    pub fn dim(&self, tensor: &str, axis: usize) -> Option<usize> {
        match self.index.constant_shape(self.graph, tensor) {
            Some(dims) => dims.get(axis).copied(),
            None => self.types.get(tensor)?.shape.as_ref()?.get(axis)?.known(),
        }
    }

    /// The product of the sizes of all axes behind one.
    pub fn behind(&self, tensor: &str, axis: usize) -> Option<usize> {
        let rank = self.rank(tensor)?;
        (axis + 1..rank).try_fold(1usize, |product, at| product.checked_mul(self.dim(tensor, at)?))
    }

    /// Returns whether a constant of floats is a vector of so many channels, along the last axis.
    pub fn is_vector(&self, name: &str, channels: usize) -> bool {
        let dims = self.floats(name).unwrap_or_default();
        dims.last() == Some(&channels) && dims.iter().product::<usize>() == channels
    }

    /// The axes of the weight of a MatMul, Gemm or Conv whose weight is a constant and second input.
    pub fn layer(&self, node: &NodeProto) -> Option<WeightAxes> {
        let dims = self.floats(positional_input(node, 1)?)?;
        let rank = dims.len();
        let first = positional_input(node, 0).filter(|name| !self.is_constant(name))?;
        let flag = |name: &str| int_attribute(node, name).unwrap_or(0) != 0;
        let matrix = rank == 2 && (is(node, "MatMul") || is(node, "Gemm") && !flag("transA"));
        let filter = is(node, "Conv") && rank > 2 && int_attribute(node, "group").unwrap_or(1) == 1;
        let axes = match (matrix, filter) {
            (true, _) if is(node, "Gemm") && flag("transB") => WeightAxes { inputs: 1, outputs: 0 },
            (true, _) => WeightAxes { inputs: 0, outputs: 1 },
            (_, true) => WeightAxes { inputs: 1, outputs: 0 },
            _ => return None,
        };
        // A graph with inconsistent sizes is refused by the engine.
        let read = self.layer_axis(node, first).and_then(|axis| self.dim(first, axis));
        let fits = dims.iter().all(|size| *size > 0) && read.is_none_or(|size| size == dims[axes.inputs]);
        fits.then_some(axes)
    }

    /// The axis on which a layer has its channels, of a tensor that it reads or makes.
    pub fn layer_axis(&self, node: &NodeProto, tensor: &str) -> Option<usize> {
        if is(node, "Conv") { Some(1) } else { self.rank(tensor)?.checked_sub(1) }
    }

    /// Returns whether a node reads the sizes of a tensor and not its values.
    pub fn reads_sizes(&self, position: usize) -> bool {
        ["Shape", "Size"].iter().any(|op| is(self.node(position), op))
    }

    /// The display name of a node.
    pub fn called(&self, position: usize) -> String {
        let node = self.node(position);
        format!("`{}` ({})", called(node), node.op_type())
    }
}
