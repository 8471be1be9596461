//! Nodes that give what they get go: Identity, Dropout in inference, and others where their parameters leave nothing to do.
//!
//! Readers of the output read the input. Where the output is one of the graph's, the input's maker makes it instead.

use kvant_container::onnx::{DataType, GraphProto, ModelProto, NodeProto};

use super::{Context, PassError};
use crate::constant::Value;
use crate::graph::{self, Edit, Index, STANDARD_DOMAIN, int_attribute, ints_attribute, is_standard, positional_input};
use crate::shape::{Types, infer};

pub(super) fn run(model: &mut ModelProto, _: &Context<'_>) -> Result<usize, PassError> {
    let types = infer(model);
    let opset = graph::opset(model, STANDARD_DOMAIN).unwrap_or_default();
    let Some(graph) = model.graph.as_mut() else { return Ok(0) };
    let graph_now = Graph { graph, index: Index::new(graph), types, opset };
    let mut edit = Edit::default();
    for (position, node) in graph.node.iter().enumerate() {
        if graph_now.has_no_effect(node) {
            graph_now.bypass(position, node, &mut edit);
        }
    }
    Ok(edit.apply(graph))
}

struct Graph<'a> {
    graph: &'a GraphProto,
    index: Index,
    types: Types,
    opset: i64,
}

impl Graph<'_> {
    fn has_no_effect(&self, node: &NodeProto) -> bool {
        if !is_standard(node) || positional_input(node, 0).is_none() {
            return false;
        }
        match node.op_type() {
            "Identity" => true,
            "Dropout" => self.is_inference(node),
            "Cast" => self.keeps_type(node),
            "Concat" | "Max" | "Min" | "Sum" | "Mean" => node.input.len() == 1,
            "Reshape" | "Flatten" | "Squeeze" | "Unsqueeze" | "Expand" => self.keeps_shape(node),
            "Transpose" => {
                ints_attribute(node, "perm").is_some_and(|perm| perm.iter().copied().eq(0..perm.len() as i64))
            }
            "Pad" => self.all(node, "pads", 1, 0),
            "Slice" => self.keeps_shape(node) && (node.input.len() < 5 || self.all(node, "steps", 4, 1)),
            "Split" => node.output.len() == 1,
            _ => false,
        }
    }

    /// The mask must not be asked for, and training mode not be possible.
    fn is_inference(&self, node: &NodeProto) -> bool {
        let mask = node.output.get(1).is_some_and(|mask| !mask.is_empty());
        let training = match self.opset {
            ..7 => int_attribute(node, "is_test").unwrap_or(0) == 0,
            7..12 => false,
            _ => positional_input(node, 2)
                .is_some_and(|mode| self.constant(mode).and_then(|v| v.as_integers()) != Some(vec![0])),
        };
        !mask && !training
    }

    fn keeps_type(&self, node: &NodeProto) -> bool {
        let own = self.types.data_type(&node.input[0]).filter(|&t| t != DataType::UNDEFINED);
        own.is_some_and(|own| int_attribute(node, "to") == Some(own as i64))
    }

    fn keeps_shape(&self, node: &NodeProto) -> bool {
        let before = self.types.known_shape(&node.input[0]);
        before.is_some() && before == node.output.first().and_then(|name| self.types.known_shape(name))
    }

    /// Returns whether the integers of an attribute or a constant input all are one number.
    fn all(&self, node: &NodeProto, attribute: &str, input: usize, number: i64) -> bool {
        let by_input = || self.constant(positional_input(node, input)?)?.as_integers();
        let values = ints_attribute(node, attribute).map(<[i64]>::to_vec).or_else(by_input);
        values.is_some_and(|values| values.iter().all(|&v| v == number))
    }

    fn constant(&self, name: &str) -> Option<Value> {
        Value::of_tensor(self.index.constant(self.graph, name)?)
    }

    fn bypass(&self, position: usize, node: &NodeProto, edit: &mut Edit) {
        let (input, output) = (&node.input[0], &node.output[0]);
        if !self.index.is_output(output) {
            edit.replace(position, Vec::new());
            edit.rename(output, input);
            return;
        }
        // The name of the graph's output goes to whoever makes the input, if that is a node whose result has no name that must stay.
        let maker = self.index.producer(input).filter(|_| !self.index.is_output(input));
        if maker.is_some_and(|maker| edit.leaves(&[maker])) && self.may_take_name(node, input) {
            edit.replace(position, Vec::new());
            edit.rename(input, output);
        }
    }

    /// Whether this is the only node without effect behind a tensor: two of them cannot both give it their name.
    fn may_take_name(&self, node: &NodeProto, input: &str) -> bool {
        let others = self.index.consumers(input).iter().map(|&i| &self.graph.node[i]);
        !others.filter(|other| *other != node).any(|other| self.has_no_effect(other))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{node, set_attribute};
    use crate::test_models::{floats, integers, model, typed};

    fn left(nodes: Vec<NodeProto>) -> Vec<NodeProto> {
        let initializers =
            vec![integers("shape", &[2, 3]), integers("zeros", &[0, 0, 0, 0]), floats("c", &[1], &[1.0])];
        let mut model = model(17, nodes, initializers, &[], &["y"]);
        model.graph.as_mut().unwrap().input = vec![typed("x", &[2, 3])];
        run(&mut model, &Context::default()).unwrap();
        model.graph.node.clone()
    }

    #[test]
    fn nodes_without_effect_are_removed() {
        let mut transpose = node("Transpose", "t", &["r"], &["t"]);
        set_attribute(&mut transpose, "perm", &[0i64, 1][..]);
        let mut cast = node("Cast", "c", &["t"], &["f"]);
        set_attribute(&mut cast, "to", 1i64);
        let nodes = vec![
            node("Dropout", "d", &["x"], &["d"]),
            node("Reshape", "r", &["d", "shape"], &["r"]),
            transpose,
            cast,
            node("Pad", "p", &["f", "zeros"], &["p"]),
            node("Relu", "relu", &["p"], &["h"]),
            node("Identity", "i", &["h"], &["y"]),
        ];
        assert_eq!(left(nodes), [node("Relu", "relu", &["x"], &["y"])]);
    }

    #[test]
    fn graph_inputs_and_outputs_keep_their_names() {
        let through = vec![node("Identity", "i", &["x"], &["y"])];
        assert_eq!(left(through.clone()), through);
        let mut transpose = node("Transpose", "t", &["x"], &["y"]);
        set_attribute(&mut transpose, "perm", &[1i64, 0][..]);
        assert_eq!(left(vec![transpose.clone()]), [transpose]);
    }
}
