//! The part of a graph between tensors.

use std::collections::{BTreeSet, HashSet};

use kvant_container::onnx::{GraphProto, MessageField, ModelProto, NodeProto, ValueInfoProto};

use super::ToolError;
use crate::graph::{Index, Names, bodies, called, for_each_node, for_each_read};
use crate::shape::{Types, infer};

/// The tensors between which a graph is cut out. They are tensors of the main graph, not of bodies of If, Loop and Scan.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Cut {
    /// The tensors that the result takes, in this order. Without any these are the inputs that the outputs depend on.
    pub inputs: Vec<String>,
    /// The tensors that the result gives, in this order. Without any these are the outputs of the graph.
    pub outputs: Vec<String>,
}

/// Leaves of a graph the nodes and constants that `cut.outputs` need, as far back as `cut.inputs`. A cut tensor becomes an input of the type
/// that follows from the graph, a constant too. Inputs with a default stay inputs. Training information goes.
///
/// # Errors
/// Names that the main graph does not have or that are named twice; outputs that depend on other inputs than `cut.inputs`, where some are named
/// ([`ToolError::MissingInputs`]); inputs that no output depends on; an input without a type.
pub fn extract(model: &mut ModelProto, cut: &Cut) -> Result<(), ToolError> {
    let types = infer(model);
    let Some(graph) = model.graph.as_ref() else { return Ok(()) };
    let given = || graph.output.iter().map(|output| output.name().to_owned()).collect();
    let outputs: Vec<String> = if cut.outputs.is_empty() { given() } else { cut.outputs.clone() };
    let index = Index::new(graph);
    let extraction = Extraction { graph, index, types: &types, inputs: &cut.inputs, outputs: &outputs };
    extraction.refuse_names()?;
    let reach = extraction.reach();
    extraction.refuse_inputs(&reach)?;
    model.graph = MessageField::some(extraction.made(&reach)?);
    model.training_info.clear();
    Ok(())
}

struct Extraction<'g> {
    graph: &'g GraphProto,
    index: Index,
    types: &'g Types,
    inputs: &'g [String],
    outputs: &'g [String],
}

/// Whatever the outputs depend on.
#[derive(Default)]
struct Reach {
    /// Positions of nodes.
    nodes: BTreeSet<usize>,
    /// Tensors that are read or given, the cut ones included.
    tensors: HashSet<String>,
}

impl Extraction<'_> {
    fn refuse_names(&self) -> Result<(), ToolError> {
        let mut seen = HashSet::new();
        for name in self.inputs.iter().chain(self.outputs) {
            if !self.has(name) {
                return Err(ToolError::NoTensor { name: name.clone(), inside: self.holder(name) });
            }
            if !seen.insert(name) {
                return Err(ToolError::NamedTwice(name.clone()));
            }
        }
        Ok(())
    }

    fn has(&self, name: &str) -> bool {
        self.index.producer(name).is_some() || self.index.is_input(name) || self.is_constant(name)
    }

    fn is_constant(&self, name: &str) -> bool {
        let is_sparse = || self.graph.sparse_initializer.iter().any(|tensor| tensor.values.name() == name);
        self.index.initializer(name).is_some() || is_sparse()
    }

    /// The node of the main graph in whose body a tensor is made.
    fn holder(&self, name: &str) -> Option<String> {
        let makes = |node: &NodeProto| {
            let mut found = false;
            for body in bodies(node) {
                for_each_node(body, &mut |inner| found |= inner.output.iter().any(|output| output == name));
                found |= body.input.iter().any(|input| input.name() == name);
                found |= body.initializer.iter().any(|tensor| tensor.name() == name);
            }
            found
        };
        self.graph.node.iter().find(|node| makes(node)).map(|node| called(node).to_owned())
    }

    /// Follows the outputs back to the cut tensors, inputs and constants.
    fn reach(&self) -> Reach {
        let cut: HashSet<&str> = self.inputs.iter().map(String::as_str).collect();
        let mut waiting: Vec<String> = self.outputs.to_vec();
        let mut reach = Reach::default();
        while let Some(name) = waiting.pop() {
            let is_end = cut.contains(name.as_str());
            let maker = self.index.producer(&name).filter(|_| !is_end);
            if reach.tensors.insert(name)
                && let Some(maker) = maker.filter(|&maker| reach.nodes.insert(maker))
            {
                for_each_read(&self.graph.node[maker], &mut |read| waiting.push(read.to_owned()));
            }
        }
        reach
    }

    fn refuse_inputs(&self, reach: &Reach) -> Result<(), ToolError> {
        if self.inputs.is_empty() {
            return Ok(());
        }
        let is_missing = |name: &&str| {
            reach.tensors.contains(*name)
                && !self.is_constant(name)
                && !self.inputs.iter().any(|input| input.as_str() == *name)
        };
        let missing: Vec<String> =
            self.graph.input.iter().map(|input| input.name()).filter(is_missing).map(str::to_owned).collect();
        if !missing.is_empty() {
            return Err(ToolError::MissingInputs(missing));
        }
        let unread: Vec<String> = self.inputs.iter().filter(|name| !reach.tensors.contains(*name)).cloned().collect();
        if unread.is_empty() { Ok(()) } else { Err(ToolError::UnreadInputs(unread)) }
    }

    fn made(&self, reach: &Reach) -> Result<GraphProto, ToolError> {
        let graph = self.graph;
        let is_cut = |name: &str| self.inputs.iter().any(|input| input == name);
        let cut = self.inputs.iter().map(|name| self.input(name));
        // Those that are left are the inputs with a default, or all where none are named.
        let others = graph.input.iter().filter(|value| !is_cut(value.name()) && reach.tensors.contains(value.name()));
        let others = others.map(|value| Ok(value.clone()));
        let is_kept = |name: &str| reach.tensors.contains(name) && (!is_cut(name) || self.index.is_input(name));
        let node = self.nodes(reach);
        let made: HashSet<&str> = node.iter().flat_map(|node| &node.output).map(String::as_str).collect();
        let is_annotated = |name: &str| made.contains(name) || is_kept(name);
        let is_inside = |value: &&ValueInfoProto| {
            let name = value.name();
            is_annotated(name) && !is_cut(name) && !self.outputs.iter().any(|output| output == name)
        };
        Ok(GraphProto {
            input: cut.chain(others).collect::<Result<_, ToolError>>()?,
            output: self.outputs.iter().map(|name| self.output(name)).collect(),
            initializer: graph.initializer.iter().filter(|tensor| is_kept(tensor.name())).cloned().collect(),
            sparse_initializer: graph
                .sparse_initializer
                .iter()
                .filter(|tensor| is_kept(tensor.values.name()))
                .cloned()
                .collect(),
            value_info: graph.value_info.iter().chain(&graph.output).filter(is_inside).cloned().collect(),
            quantization_annotation: graph
                .quantization_annotation
                .iter()
                .filter(|note| is_annotated(note.tensor_name()))
                .cloned()
                .collect(),
            node,
            ..graph.clone()
        })
    }

    /// The nodes; one that makes a cut tensor besides others makes it under another name, which is the input's now.
    fn nodes(&self, reach: &Reach) -> Vec<NodeProto> {
        let mut names = Names::of(self.graph);
        let mut nodes: Vec<NodeProto> = reach.nodes.iter().map(|&at| self.graph.node[at].clone()).collect();
        for output in nodes.iter_mut().flat_map(|node| &mut node.output) {
            if self.inputs.contains(output) {
                *output = names.fresh(&format!("{output}_unread"));
            }
        }
        nodes
    }

    /// The declaration of a new input. That of an input stays as it is.
    fn input(&self, name: &str) -> Result<ValueInfoProto, ToolError> {
        let declared = self.graph.input.iter().find(|value| value.name() == name).cloned();
        declared.or_else(|| self.known(name)).ok_or_else(|| ToolError::NoType(name.to_owned()))
    }

    /// The declaration of an output, without a type where none follows.
    fn output(&self, name: &str) -> ValueInfoProto {
        let declared = self.graph.output.iter().find(|value| value.name() == name && value.type_.is_some()).cloned();
        let untyped = || ValueInfoProto { name: Some(name.to_owned()), ..ValueInfoProto::default() };
        declared.or_else(|| self.known(name)).unwrap_or_else(untyped)
    }

    /// The inferred type of a tensor, else the declared one, which may be that of a sequence.
    fn known(&self, name: &str) -> Option<ValueInfoProto> {
        let declared = self.graph.value_info.iter().chain(&self.graph.input).chain(&self.graph.output);
        let declared = || declared.clone().find(|value| value.name() == name && value.type_.is_some()).cloned();
        self.types.get(name).and_then(|known| known.to_proto(name)).or_else(declared)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{check, node};
    use crate::test_models::{branches, floats, model, typed, value};

    /// y = relu(x w), z = y + v; `s` is the other half of a split of x.
    fn chain() -> ModelProto {
        let nodes = vec![
            node("Split", "split", &["x"], &["a", "s"]),
            node("MatMul", "m", &["a", "w"], &["p"]),
            node("Relu", "r", &["p"], &["y"]),
            node("Add", "sum", &["y", "v"], &["z"]),
            node("Mul", "both", &["a", "s"], &["q"]),
        ];
        let mut made = model(17, nodes, vec![floats("w", &[2, 3], &[0.5; 6])], &[], &[]);
        let graph = made.graph.as_mut().unwrap();
        graph.input = vec![typed("x", &[1, 4]), typed("v", &[3])];
        graph.output = vec![value("z"), value("q")];
        made
    }

    fn cut(inputs: &[&str], outputs: &[&str]) -> Cut {
        let owned = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        Cut { inputs: owned(inputs), outputs: owned(outputs) }
    }

    fn extracted(inputs: &[&str], outputs: &[&str]) -> GraphProto {
        let mut made = chain();
        extract(&mut made, &cut(inputs, outputs)).unwrap();
        assert_eq!(check(&made), Ok(()));
        GraphProto::clone(&made.graph)
    }

    fn names(values: &[ValueInfoProto]) -> Vec<&str> {
        values.iter().map(|value| value.name()).collect()
    }

    #[test]
    fn nodes_between_tensors_stay_with_inferred_types() {
        let graph = extracted(&["p"], &["y"]);
        assert_eq!(graph.node, [node("Relu", "r", &["p"], &["y"])]);
        assert_eq!((graph.input, graph.output), (vec![typed("p", &[1, 3])], vec![typed("y", &[1, 3])]));
        assert!(graph.initializer.is_empty());
    }

    #[test]
    fn constant_and_output_of_the_graph_can_be_cut() {
        let graph = extracted(&["w", "a"], &["p"]);
        assert_eq!((names(&graph.input), graph.initializer.len()), (vec!["w", "a"], 0));
        let graph = extracted(&[], &["z", "p"]);
        assert_eq!((names(&graph.input), names(&graph.output)), (vec!["x", "v"], vec!["z", "p"]));
        assert_eq!(names(&extracted(&[], &[]).output), ["z", "q"]);
    }

    #[test]
    fn output_beside_a_cut_tensor_is_still_made() {
        let graph = extracted(&["x", "a"], &["q"]);
        assert_eq!(graph.node[0].output, ["a_unread", "s"]);
        assert_eq!(graph.node[1].input, ["a", "s"]);
    }

    #[test]
    fn inputs_that_do_not_fit_the_outputs_are_named() {
        let refused = |inputs: &[&str], outputs: &[&str]| {
            let mut made = chain();
            let error = extract(&mut made, &cut(inputs, outputs)).unwrap_err();
            assert_eq!(made, chain());
            error
        };
        assert!(matches!(refused(&["p"], &["z"]), ToolError::MissingInputs(names) if names == ["v"]));
        assert!(matches!(refused(&["p", "s"], &["y"]), ToolError::UnreadInputs(names) if names == ["s"]));
        assert!(matches!(refused(&["p"], &["none"]), ToolError::NoTensor { inside: None, .. }));
        assert!(matches!(refused(&["p", "p"], &["y"]), ToolError::NamedTwice(_)));
        assert!(matches!(refused(&["y"], &["y"]), ToolError::NamedTwice(_)));
    }

    #[test]
    fn tensors_read_by_bodies_are_kept_and_those_made_there_are_refused() {
        let body = || GraphProto {
            node: vec![node("Mul", "inner", &["h", "w"], &["t"])],
            output: vec![value("t")],
            ..GraphProto::default()
        };
        let nodes = vec![
            node("Relu", "r", &["x"], &["h"]),
            branches("c", "y", body(), GraphProto { output: vec![value("h")], ..GraphProto::default() }),
        ];
        let made = || {
            let mut made = model(17, nodes.clone(), vec![floats("w", &[1], &[2.0])], &["c"], &["y"]);
            made.graph.as_mut().unwrap().input.push(typed("x", &[1, 4]));
            made
        };
        let mut whole = made();
        extract(&mut whole, &cut(&["c", "h"], &["y"])).unwrap();
        assert_eq!(check(&whole), Ok(()));
        assert_eq!((whole.graph.node.len(), whole.graph.initializer.len()), (1, 1));
        let error = extract(&mut made(), &cut(&[], &["t"])).unwrap_err();
        assert!(matches!(&error, ToolError::NoTensor { inside: Some(node), .. } if node == "if"), "{error}");
    }

    #[test]
    fn tensor_without_a_type_is_no_input() {
        let mut unknown = node("Magic", "m", &["x"], &["h"]);
        unknown.domain = Some("com.example".to_owned());
        let mut made = model(17, vec![unknown, node("Relu", "r", &["h"], &["y"])], vec![], &["x"], &["y"]);
        crate::graph::add_opset(&mut made, "com.example", 1);
        assert!(matches!(extract(&mut made, &cut(&["h"], &["y"])), Err(ToolError::NoType(_))));
    }

    #[test]
    fn inputs_with_a_default_stay() {
        let mut made =
            model(17, vec![node("Add", "a", &["x", "w"], &["y"])], vec![floats("w", &[2], &[1.0; 2])], &[], &["y"]);
        made.graph.as_mut().unwrap().input = vec![typed("x", &[2]), typed("w", &[2])];
        extract(&mut made, &cut(&["x"], &["y"])).unwrap();
        assert_eq!((names(&made.graph.input), made.graph.initializer.len()), (vec!["x", "w"], 1));
    }
}
