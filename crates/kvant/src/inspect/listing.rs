//! The nodes and quantized tensors of an ONNX graph.

use super::graph::{operators, values};
use crate::ending::concluded_reading;
use crate::error::{Error, ErrorKind};
use crate::job::SourceKind;
use crate::json::path as path_json;
use crate::onnx::read;
use crate::paths::{MODEL, refuse_missing};
use crate::text::shown;
use kvant_onnx::count;
use kvant_onnx::graph::check;
use kvant_onnx::tool::{ListedNode, ListedTensor, QuantizedTensor, nodes, quantized_tensors};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The contents of a graph, node by node.
#[derive(Clone, Debug)]
pub struct GraphListing {
    /// Its path.
    pub path: PathBuf,
    /// The versions of the operator sets by domain; the empty name is that of ONNX itself.
    pub opsets: BTreeMap<String, i64>,
    /// Number of nodes by operator, those in bodies included.
    pub operators: BTreeMap<String, usize>,
    /// Number of nodes, those in bodies included.
    pub node_count: usize,
    /// Role, name, type and axes of inputs and outputs.
    pub values: Vec<[String; 4]>,
    /// The nodes in their order, if they are asked for.
    pub nodes: Option<Vec<ListedNode>>,
    /// The tensors with codes.
    pub quantized: Vec<QuantizedTensor>,
}

impl GraphListing {
    /// Lists a graph; `with_nodes` each node too.
    ///
    /// # Errors
    /// Files that are no graphs, and graphs that do not pass the checks.
    pub fn of(path: &Path, with_nodes: bool) -> Result<GraphListing, Error> {
        refuse_missing([(MODEL, path)])?;
        if SourceKind::of(path) != SourceKind::Graph {
            let error = Error::new(ErrorKind::Usage, format!("{} is not an ONNX graph", shown(path)));
            return Err(error.with_hint(Some("`kvant inspect MODEL` shows other models".to_owned())));
        }
        concluded_reading(|| {
            let model = read(path)?;
            check(&model)?;
            Ok(GraphListing {
                path: path.to_owned(),
                opsets: model.opset_import.iter().map(|set| (set.domain().to_owned(), set.version())).collect(),
                operators: operators(&model.graph),
                node_count: count::nodes(&model.graph),
                values: values(&model.graph),
                nodes: with_nodes.then(|| nodes(&model)),
                quantized: quantized_tensors(&model),
            })
        })
    }

    /// The listing as an object of `docs/schemas/graph.schema.json`, without its `schema` key.
    pub fn to_json(&self) -> Value {
        let values = self.values.iter();
        let values =
            values.map(|[role, name, dtype, axes]| json!({"role": role, "name": name, "dtype": dtype, "axes": axes}));
        let tensor =
            |tensor: &ListedTensor| json!({"name": tensor.name, "dtype": tensor.dtype, "constant": tensor.is_constant});
        let node = |node: &ListedNode| {
            json!({
                "name": node.name,
                "operator": node.operator,
                "inside": node.inside,
                "inputs": node.inputs.iter().map(tensor).collect::<Vec<_>>(),
                "outputs": node.outputs.iter().map(tensor).collect::<Vec<_>>(),
            })
        };
        let quantized = |tensor: &QuantizedTensor| {
            json!({
                "name": tensor.tensor,
                "node": tensor.node,
                "constant": tensor.is_constant,
                "dtype": tensor.dtype,
                "scales": tensor.scales,
                "scale_min": tensor.scale_range.map(|(least, _)| least),
                "scale_max": tensor.scale_range.map(|(_, most)| most),
                "zero_point_min": tensor.zero_point_range.map(|(least, _)| least),
                "zero_point_max": tensor.zero_point_range.map(|(_, most)| most),
                "axis": tensor.axis,
                "block_size": tensor.block,
            })
        };
        json!({
            "tool": "show",
            "model": path_json(&self.path),
            "opsets": self.opsets,
            "nodes": self.node_count,
            "operators": self.operators,
            "values": values.collect::<Vec<_>>(),
            "node_list": self.nodes.as_ref().map(|nodes| nodes.iter().map(node).collect::<Vec<_>>()),
            "quantized": self.quantized.iter().map(quantized).collect::<Vec<_>>(),
        })
    }
}
