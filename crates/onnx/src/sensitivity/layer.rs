//! The layers that get types of their own: products with their data and weights, and what other nodes alone read or make.

use std::collections::{BTreeMap, BTreeSet};

use kvant_container::onnx::{GraphProto, NodeProto, element_count};
use kvant_quant::glob::Glob;

use super::candidate::Role;
use crate::graph::{Index, called, is};
use crate::quantize::Prepared;
use crate::recipe::{Override, TensorScheme};
use crate::shape::{Dim, Types};

/// Tensors with one scale: a quantized one and those that have its scale.
#[derive(Debug, Clone)]
pub(super) struct Part {
    /// The one whose scale it is, then the others.
    pub names: Vec<String>,
    pub role: Role,
    /// The recipe's choice for it.
    pub scheme: TensorScheme,
    /// Values, of one sample where it is computed; open axes count as 1.
    pub elements: u64,
}

/// A node and the quantized tensors that its precision is made of.
#[derive(Debug, Clone)]
pub struct Layer {
    /// The node's name, or its first output where it has none; that of the tensor where it is an output of the graph.
    pub name: String,
    /// Its operator.
    pub op: String,
    /// Positions in the list of parts. Layers that read the same data share them.
    pub(super) parts: Vec<usize>,
}

/// All layers of a plan, and the tensors that they are made of.
pub(super) fn layers(prepared: &Prepared) -> (Vec<Layer>, Vec<Part>) {
    let graph = &prepared.model.graph;
    let parts = parts(prepared);
    let by_name: BTreeMap<&str, usize> = parts
        .iter()
        .enumerate()
        .flat_map(|(at, part)| part.names.iter().map(move |name| (name.as_str(), at)))
        .collect();
    let of = |names: &[String]| -> BTreeSet<usize> {
        names.iter().filter_map(|n| by_name.get(n.as_str()).copied()).collect()
    };
    let product = |node: &&NodeProto| ["Conv", "ConvTranspose", "Gemm", "MatMul"].iter().any(|op| is(node, op));
    let mut taken: BTreeSet<usize> = BTreeSet::new();
    let mut layers: Vec<(usize, Layer)> = Vec::new();
    let mut add = |at: usize, name: String, parts: &BTreeSet<usize>| {
        let (op, parts) = (graph.node[at].op_type().to_owned(), parts.iter().copied().collect());
        layers.push((at, Layer { name, op, parts }));
    };
    let nodes = || graph.node.iter().enumerate();
    for (at, node) in nodes().filter(|(_, node)| product(node)) {
        let read = of(&node.input[..node.input.len().min(2)]);
        taken.extend(&read);
        if !read.is_empty() {
            add(at, called(node).to_owned(), &read);
        }
    }
    for (at, node) in nodes() {
        let mine: BTreeSet<usize> = of(&node.input).difference(&taken).copied().collect();
        taken.extend(&mine);
        if !mine.is_empty() {
            add(at, called(node).to_owned(), &mine);
        }
    }
    // What nobody reads but the caller has the name of the tensor: the node's is that of what it computes on.
    for (at, output) in nodes().flat_map(|(at, node)| node.output.iter().map(move |output| (at, output))) {
        let mine: BTreeSet<usize> = of(std::slice::from_ref(output)).difference(&taken).copied().collect();
        taken.extend(&mine);
        if !mine.is_empty() {
            add(at, output.clone(), &mine);
        }
    }
    layers.sort_by_key(|(at, _)| *at);
    (layers.into_iter().map(|(_, layer)| layer).collect(), parts)
}

/// The tensors that share a scale, but for those that the recipe's overrides speak of.
fn parts(prepared: &Prepared) -> Vec<Part> {
    let (graph, placement) = (&prepared.model.graph, &prepared.placement);
    let index = Index::new(graph);
    let reads =
        |name: &str, nodes: &Glob| index.consumers(name).iter().any(|&at| nodes.matches(called(&graph.node[at])));
    let means = |o: &Override, name: &str| if o.of_layers { reads(name, &o.tensors) } else { o.tensors.matches(name) };
    let free = |name: &str| !prepared.recipe.overrides.iter().any(|o| means(o, name));
    let mut parts: BTreeMap<String, Part> = BTreeMap::new();
    for (name, weight) in placement.weights.iter().filter(|(name, _)| free(name)) {
        let elements = index.constant(graph, name).and_then(|t| element_count(t).ok()).unwrap_or(0) as u64;
        let part = Part { names: vec![name.clone()], role: Role::Weight, scheme: weight.scheme, elements };
        parts.insert(name.clone(), part);
    }
    for (name, activation) in placement.activations.iter().filter(|(name, a)| a.provider.is_none() && free(name)) {
        let elements = elements(&prepared.types, name);
        let part = Part { names: vec![name.clone()], role: Role::Activation, scheme: activation.scheme, elements };
        parts.insert(name.clone(), part);
    }
    for (name, activation) in &placement.activations {
        if let Some(part) = activation.provider.as_ref().and_then(|provider| parts.get_mut(provider)) {
            part.names.push(name.clone());
        }
    }
    clamped(graph, &placement.dropped, &mut parts);
    parts.into_values().collect()
}

/// What goes into a Relu or Clip that its output's codes make superfluous has that output's precision: were it in float, so would
/// the other be.
fn clamped(graph: &GraphProto, dropped: &[usize], parts: &mut BTreeMap<String, Part>) {
    let ends = dropped.iter().filter_map(|&at| graph.node.get(at));
    for node in ends {
        let (Some(input), Some(output)) = (node.input.first(), node.output.first()) else { continue };
        if let Some(part) = parts.get_mut(output) {
            part.names.push(input.clone());
        }
    }
}

fn elements(types: &Types, name: &str) -> u64 {
    let dims = types.get(name).and_then(|t| t.shape.as_ref());
    dims.map_or(1, |dims| dims.iter().map(|dim| Dim::known(dim).unwrap_or(1) as u64).product())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::node;
    use crate::preset::Preset;
    use crate::quantize::prepare;
    use crate::test_models::{floats, model, typed};

    #[test]
    fn layer_includes_its_data_weights_and_other_tensors() {
        let nodes = vec![
            node("MatMul", "first", &["x", "w"], &["a"]),
            node("MatMul", "second", &["x", "v"], &["b"]),
            node("Add", "sum", &["a", "b"], &["y"]),
        ];
        let weights = vec![floats("w", &[4, 4], &[0.5; 16]), floats("v", &[4, 4], &[0.25; 16])];
        let mut model = model(17, nodes, weights, &[], &["y"]);
        model.graph.as_mut().unwrap().input = vec![typed("x", &[2, 4])];
        let mut recipe = Preset::find("A8W8").unwrap().recipe();
        let found = |recipe: &crate::recipe::Recipe| {
            let prepared = prepare(model.clone(), recipe.clone(), &recipe.passes(), None).unwrap();
            let (layers, parts) = layers(&prepared);
            let tensors =
                |layer: &Layer| layer.parts.iter().map(|&p| parts[p].names[0].clone()).collect::<Vec<_>>().join(" ");
            layers.iter().map(|layer| format!("{}: {}", layer.name, tensors(layer))).collect::<Vec<_>>()
        };
        assert_eq!(found(&recipe), ["first: w x", "second: v x", "sum: a b", "y: y"]);
        recipe.overrides = vec![Override::of(Glob::new("[av]"))];
        assert_eq!(found(&recipe), ["first: w x", "second: x", "sum: b", "y: y"]);
    }
}
