//! Nodes that compute the same of the same become one, and so do integer constants that are equal. Float constants stay
//! apart: weights and biases are quantized with the scales of the node they belong to.

use std::collections::HashMap;

use kvant_container::onnx::{AttributeProto, DataType, GraphProto, ModelProto, NodeProto, TensorProto, data_type};

use super::{Context, PassError};
use crate::constant::Value;
use crate::graph::{Edit, Index, is_standard};

/// Operators whose results differ from run to run.
const RANDOM: [&str; 7] =
    ["Bernoulli", "Dropout", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"];

pub(super) fn run(model: &mut ModelProto, _: &Context<'_>) -> Result<usize, PassError> {
    let Some(graph) = model.graph.as_mut() else { return Ok(0) };
    let constants = equal_constants(graph);
    let shared = constants.len();
    let mut edit = Edit::default();
    constants.iter().for_each(|(copy, first)| edit.rename(copy, first));
    let nodes = equal_nodes(graph, &constants);
    for (position, names) in nodes {
        edit.replace(position, Vec::new());
        names.iter().for_each(|(copy, first)| edit.rename(copy, first));
    }
    graph.initializer.retain(|tensor| !constants.contains_key(tensor.name()));
    Ok(edit.apply(graph) + shared)
}

/// Names of constants and of the first equal to each.
fn equal_constants(graph: &GraphProto) -> HashMap<String, String> {
    let index = Index::new(graph);
    let mut seen: HashMap<(DataType, Vec<usize>, kvant_container::onnx::Bytes), &str> = HashMap::new();
    let mut equal = HashMap::new();
    for tensor in graph.initializer.iter().filter(|tensor| is_shared(tensor)) {
        let name = tensor.name();
        if index.is_input(name) || index.is_output(name) {
            continue;
        }
        let Some(value) = Value::of_tensor(tensor) else { continue };
        let first = *seen.entry((value.data_type(), value.shape().to_vec(), value.bytes().clone())).or_insert(name);
        if first != name {
            equal.insert(name.to_owned(), first.to_owned());
        }
    }
    equal
}

fn is_shared(tensor: &TensorProto) -> bool {
    matches!(data_type(tensor), DataType::INT64 | DataType::INT32 | DataType::BOOL)
}

/// The criteria of equal nodes, besides their attributes.
type Key = (String, String, usize, Vec<String>);

/// Positions of nodes that an earlier one equals, and their outputs beside those of the first.
fn equal_nodes(graph: &GraphProto, constants: &HashMap<String, String>) -> Vec<(usize, Vec<(String, String)>)> {
    let index = Index::new(graph);
    let mut renamed = constants.clone();
    let mut seen: HashMap<Key, Vec<usize>> = HashMap::new();
    let mut equal = Vec::new();
    for (position, node) in graph.node.iter().enumerate().filter(|(_, node)| is_pure(node)) {
        let input = |name: &String| renamed.get(name).unwrap_or(name).clone();
        let inputs = node.input.iter().map(input).collect();
        let key = (node.op_type().to_owned(), node.domain().to_owned(), node.output.len(), inputs);
        let earlier = seen.entry(key).or_default();
        let first = earlier.iter().find(|&&i| same_outputs_and_attributes(&graph.node[i], node));
        match first {
            Some(&first) if !node.output.iter().any(|name| index.is_output(name)) => {
                let names = node.output.iter().zip(&graph.node[first].output);
                let names: Vec<_> =
                    names.filter(|(copy, _)| !copy.is_empty()).map(|(c, f)| (c.clone(), f.clone())).collect();
                renamed.extend(names.iter().cloned());
                equal.push((position, names));
            }
            _ => earlier.push(position),
        }
    }
    equal
}

fn is_pure(node: &NodeProto) -> bool {
    let has_graphs = node.attribute.iter().any(|a| a.g.is_some() || !a.graphs.is_empty());
    is_standard(node) && !has_graphs && !RANDOM.contains(&node.op_type()) && !node.output.is_empty()
}

fn same_outputs_and_attributes(a: &NodeProto, b: &NodeProto) -> bool {
    let mut outputs = a.output.iter().zip(&b.output);
    outputs.all(|(a, b)| a.is_empty() == b.is_empty()) && sorted(a) == sorted(b)
}

fn sorted(node: &NodeProto) -> Vec<&AttributeProto> {
    let mut attributes: Vec<_> = node.attribute.iter().collect();
    attributes.sort_by_key(|attribute| attribute.name());
    attributes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::node;
    use crate::test_models::{floats, integers, model};

    #[test]
    fn equal_nodes_and_integer_constants_are_merged() {
        let nodes = vec![
            node("Reshape", "a", &["x", "s"], &["a"]),
            node("Reshape", "b", &["x", "t"], &["b"]),
            node("Relu", "c", &["a"], &["c"]),
            node("Relu", "d", &["b"], &["d"]),
            node("Add", "y", &["c", "d"], &["y"]),
        ];
        let initializers = vec![integers("s", &[1, 2]), integers("t", &[1, 2])];
        let mut model = model(17, nodes, initializers, &["x"], &["y"]);
        assert_eq!(run(&mut model, &Context::default()).unwrap(), 3);
        let names: Vec<&str> = model.graph.node.iter().map(|n| n.name()).collect();
        assert_eq!(
            (names, &model.graph.node[2].input[..]),
            (vec!["a", "c", "y"], &["c".to_owned(), "c".to_owned()][..])
        );
        assert_eq!(model.graph.initializer, [integers("s", &[1, 2])]);
    }

    #[test]
    fn outputs_random_nodes_and_weights_are_not_merged() {
        let nodes = vec![
            node("Add", "", &["x", "v"], &["a"]),
            node("Add", "", &["x", "w"], &["b"]),
            node("RandomNormalLike", "", &["x"], &["c"]),
            node("RandomNormalLike", "", &["x"], &["d"]),
        ];
        let weights = vec![floats("v", &[1], &[1.0]), floats("w", &[1], &[1.0])];
        let mut model = model(17, nodes, weights, &["x"], &["a", "b", "c", "d"]);
        assert_eq!(run(&mut model, &Context::default()).unwrap(), 0);
    }
}
