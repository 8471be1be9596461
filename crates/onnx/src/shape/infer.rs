//! The walk over a graph: nodes in order, each rule fed with what is known so far.

use std::collections::HashMap;

use kvant_container::onnx::{DataType, GraphProto, ModelProto, NodeProto, TensorProto};

use super::contents::{Element, contents};
use super::mismatch::{Mismatch, mismatch};
use super::node::Known;
use super::rules::rule;
use super::{Dim, Types, ValueType};
use crate::constant::{Call, Value, evaluate};
use crate::graph::{self, STANDARD_DOMAIN, called, order, positional_input};

/// Constants of more elements than this are not looked into: they are weights, not shapes.
const MOST_ELEMENTS: usize = 4096;
/// Subgraphs deeper than this are not followed.
const DEEPEST: usize = 32;

/// Types of all tensors, as far as they follow from inputs, initializers, declared types and operators.
pub fn infer(model: &ModelProto) -> Types {
    let mut walk = Walk::of(model, true);
    walk.graph(&model.graph, DEEPEST);
    walk.types
}

/// The first node of the outermost graph whose inputs have shapes that do not go together, by what follows from inputs and initializers:
/// shapes that files declare of other tensors may be left over from earlier versions, and runtimes pass over them.
pub(crate) fn contradiction(model: &ModelProto) -> Option<(String, Mismatch)> {
    let mut walk = Walk::of(model, false);
    walk.graph(&model.graph, DEEPEST);
    walk.contradiction
}

/// Operators whose outputs are all of the type of the first input.
const OF_ONE_TYPE: &[&str] = &["Attention", "Split"];

/// The types of what a node makes where nothing is known of shapes.
fn types_alone(known: &Known<'_>) -> Vec<ValueType> {
    let of_one = graph::is_standard(known.node) && OF_ONE_TYPE.contains(&known.node.op_type());
    let count = if of_one { known.node.output.len() } else { 0 };
    vec![ValueType::any(known.data_type(0)); count]
}

struct Walk {
    opset: i64,
    /// Types that the file declares of intermediate tensors and outputs count.
    trusts_declared: bool,
    types: Types,
    partial: HashMap<String, Vec<Element>>,
    contradiction: Option<(String, Mismatch)>,
}

impl Walk {
    fn of(model: &ModelProto, trusts_declared: bool) -> Walk {
        let opset = graph::opset(model, STANDARD_DOMAIN).unwrap_or(1);
        Walk { opset, trusts_declared, types: Types::default(), partial: HashMap::new(), contradiction: None }
    }

    fn graph(&mut self, graph: &GraphProto, depth: usize) {
        let others = graph.value_info.iter().chain(&graph.output).filter(|_| self.trusts_declared);
        let inputs = graph.input.iter().filter(|_| self.trusts_declared || depth == DEEPEST);
        for value in others.chain(inputs) {
            if let Some(declared) = ValueType::declared(value) {
                self.types.add(value.name(), declared);
            }
        }
        for tensor in &graph.initializer {
            self.initializer(tensor, graph.input.iter().any(|input| input.name() == tensor.name()));
        }
        // A cycle has no order: whoever checks the graph says so, here its nodes are taken as they come.
        let order = order(graph).unwrap_or_else(|_| (0..graph.node.len()).collect());
        for position in order {
            self.node(&graph.node[position], depth);
        }
    }

    fn initializer(&mut self, tensor: &TensorProto, overridable: bool) {
        if overridable {
            return;
        }
        self.types.add(tensor.name(), ValueType::of_tensor(tensor));
        let small = kvant_container::onnx::element_count(tensor).is_ok_and(|n| n <= MOST_ELEMENTS);
        if let Some(value) = small.then(|| Value::of_tensor(tensor)).flatten() {
            self.types.set_constant(tensor.name(), value);
        }
    }

    fn node(&mut self, node: &NodeProto, depth: usize) {
        self.subgraphs(node, depth);
        if self.constant(node) {
            return;
        }
        let known = self.known(node);
        let is_asked = depth == DEEPEST && self.contradiction.is_none();
        let found = is_asked.then(|| mismatch(&known)).flatten();
        let types = rule(node).and_then(|rule| rule(&known)).unwrap_or_else(|| types_alone(&known));
        let contents = contents(&known).filter(|elements| elements.len() <= MOST_ELEMENTS);
        for (name, new) in node.output.iter().zip(types).filter(|(name, _)| !name.is_empty()) {
            self.types.add(name, new);
        }
        if let Some(found) = found {
            self.contradiction = Some((called(node).to_owned(), found));
        }
        if let (Some(elements), Some(name)) = (contents, node.output.first()) {
            self.holds(name, elements);
        }
    }

    /// Notes what a tensor that carries a shape holds; where that is all numbers it is a constant.
    fn holds(&mut self, name: &str, elements: Vec<Element>) {
        let number = |element: &Element| match element {
            Element::Number(n) => Some(*n),
            _ => None,
        };
        let numbers: Option<Vec<i64>> = elements.iter().map(number).collect();
        let known = self.types.get(name).filter(|t| t.data_type == DataType::INT64).and_then(ValueType::known_shape);
        match known.zip(numbers).and_then(|(shape, numbers)| Value::integers(&shape, &numbers)) {
            Some(value) => self.types.set_constant(name, value),
            None => drop(self.partial.insert(name.to_owned(), elements)),
        }
    }

    fn known<'a>(&'a self, node: &'a NodeProto) -> Known<'a> {
        Known { node, opset: self.opset, types: &self.types, partial: &self.partial }
    }

    /// Computes a node of small constants.
    fn constant(&mut self, node: &NodeProto) -> bool {
        let inputs: Vec<Option<Value>> = node.input.iter().map(|name| self.types.constant(name).cloned()).collect();
        let missing = (0..inputs.len()).any(|i| positional_input(node, i).is_some() && inputs[i].is_none());
        if missing {
            return false;
        }
        let call = Call { node, opset: self.opset, inputs, limit: MOST_ELEMENTS * 8 };
        let Some(values) = evaluate(&call) else { return false };
        for (name, value) in node.output.iter().zip(values) {
            let shape = value.shape().iter().map(|&d| Dim::Known(d)).collect();
            self.types.add(name, ValueType::new(value.data_type(), shape));
            if value.elements() <= MOST_ELEMENTS {
                self.types.set_constant(name, value);
            }
        }
        true
    }

    /// Follows the graphs inside a node. What If gives is what both of its branches give.
    fn subgraphs(&mut self, node: &NodeProto, depth: usize) {
        let Some(depth) = depth.checked_sub(1) else { return };
        let graphs: Vec<&GraphProto> = node.attribute.iter().flat_map(|a| a.g.iter().chain(&a.graphs)).collect();
        graphs.iter().for_each(|graph| self.graph(graph, depth));
        if let ("If", [one, other]) = (node.op_type(), &graphs[..]) {
            for ((name, a), b) in node.output.iter().zip(&one.output).zip(&other.output) {
                if let (Some(a), Some(b)) = (self.types.get(a.name()), self.types.get(b.name())) {
                    let both = a.either(b);
                    self.types.add(name, both);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{node, set_attribute};
    use crate::test_models::{floats, model};

    #[test]
    fn dtypes_are_inferred_without_shapes() {
        let mut lstm = node("LSTM", "l", &["x", "w", "r"], &["all", "last", "cell"]);
        set_attribute(&mut lstm, "hidden_size", 4i64);
        let nodes = vec![lstm, node("Split", "s", &["all"], &["a", "b"])];
        let weights = vec![floats("w", &[1, 16, 3], &[0.5; 48]), floats("r", &[1, 16, 4], &[0.5; 64])];
        let types = infer(&model(15, nodes, weights, &["x"], &["a"]));
        for name in ["all", "last", "cell", "b"] {
            assert_eq!(types.data_type(name), Some(DataType::FLOAT), "{name}");
        }
        assert_eq!((types.rank("all"), types.rank("cell")), (Some(4), Some(3)));
    }
}
