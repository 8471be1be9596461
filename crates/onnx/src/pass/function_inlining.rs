//! Calls of the model's own functions become the functions' nodes. A function that imports other versions of operators than
//! the model does stays a call: its nodes would mean something else.

use std::collections::HashMap;

use kvant_container::onnx::{AttributeProto, FunctionProto, GraphProto, ModelProto, NodeProto};

use super::{Context, PassError};
use crate::graph::{Names, function, opset};

/// Most nodes that calls may grow to: functions that call functions multiply.
const MOST_NODES: usize = 1 << 18;

/// Most bytes of names that calls may grow to: each call's tensors bear its name and their own.
const MOST_NAME_BYTES: usize = 1 << 28;

pub(super) fn run(model: &mut ModelProto, _: &Context<'_>) -> Result<usize, PassError> {
    let mut inlined = 0;
    if model.functions.is_empty() {
        return Ok(inlined);
    }
    let (mut names, mut name_bytes) = (Names::of(&model.graph), 0);
    let Some(mut graph) = model.graph.take() else { return Ok(inlined) };
    while graph.node.iter().any(|node| called(model, node).is_some()) {
        let mut nodes = Vec::with_capacity(graph.node.len());
        for node in std::mem::take(&mut graph.node) {
            match called(model, &node).filter(|_| nodes.len() < MOST_NODES && name_bytes < MOST_NAME_BYTES) {
                Some(function) => {
                    inlined += 1;
                    let body = Body::new(function, &node, &mut names).nodes();
                    name_bytes += body.iter().map(bytes_of_names).sum::<usize>();
                    nodes.extend(body);
                }
                None => nodes.push(node),
            }
        }
        graph.node = nodes;
        if graph.node.len() >= MOST_NODES || name_bytes >= MOST_NAME_BYTES {
            break;
        }
    }
    forget_uncalled(model, &graph);
    model.graph = Some(graph).into();
    Ok(inlined)
}

fn bytes_of_names(node: &NodeProto) -> usize {
    node.input.iter().chain(&node.output).map(String::len).sum::<usize>() + node.name().len()
}

/// The function that a node calls, if it can be inlined.
fn called<'m>(model: &'m ModelProto, node: &NodeProto) -> Option<&'m FunctionProto> {
    let function = function(model, node)?;
    let same = |set: &kvant_container::onnx::OperatorSetIdProto| {
        opset(model, set.domain()).is_none_or(|version| version == set.version())
    };
    let imported = function.node.iter().all(|inner| {
        let domain = crate::graph::domain(inner);
        opset(model, domain).is_some() || self::function(model, inner).is_some()
    });
    (function.opset_import.iter().all(same) && imported).then_some(function)
}

/// Functions that nothing calls any more go.
fn forget_uncalled(model: &mut ModelProto, graph: &GraphProto) {
    let mut used: Vec<(String, String, String)> = Vec::new();
    for_each_node(graph, &mut |node| used.push(key(crate::graph::domain(node), node.op_type(), node.overload())));
    let mut known = 0;
    while known < used.len() {
        let (domain, name, overload) = used[known].clone();
        known += 1;
        let body = model
            .functions
            .iter()
            .find(|f| key(f.domain(), f.name(), f.overload()) == (domain.clone(), name.clone(), overload.clone()));
        for node in body.iter().flat_map(|function| &function.node) {
            let inner = key(crate::graph::domain(node), node.op_type(), node.overload());
            if !used.contains(&inner) {
                used.push(inner);
            }
        }
    }
    model.functions.retain(|f| used.contains(&key(f.domain(), f.name(), f.overload())));
}

fn key(domain: &str, name: &str, overload: &str) -> (String, String, String) {
    let plain = if domain == "ai.onnx" { "" } else { domain };
    (plain.to_owned(), name.to_owned(), overload.to_owned())
}

fn for_each_node(graph: &GraphProto, visit: &mut dyn FnMut(&NodeProto)) {
    for node in &graph.node {
        visit(node);
        node.attribute.iter().flat_map(|a| a.g.iter().chain(&a.graphs)).for_each(|inner| for_each_node(inner, visit));
    }
}

/// A function's nodes with the call's tensors and attributes put in.
struct Body<'a> {
    function: &'a FunctionProto,
    call: &'a NodeProto,
    tensors: HashMap<String, String>,
    names: &'a mut Names,
}

impl<'a> Body<'a> {
    fn new(function: &'a FunctionProto, call: &'a NodeProto, names: &'a mut Names) -> Self {
        let given = |list: &'a [String], i: usize| list.get(i).cloned().unwrap_or_default();
        let inputs = function.input.iter().enumerate().map(|(i, name)| (name.clone(), given(&call.input, i)));
        let mut tensors: HashMap<_, _> = inputs.collect();
        for (i, name) in function.output.iter().enumerate() {
            let wanted = given(&call.output, i);
            if !wanted.is_empty() && !tensors.contains_key(name) {
                tensors.insert(name.clone(), wanted);
            }
        }
        Self { function, call, tensors, names }
    }

    fn nodes(mut self) -> Vec<NodeProto> {
        let mut nodes: Vec<NodeProto> = self.function.node.iter().map(|node| self.node(node)).collect();
        // An output that is an input, or that two outputs share, needs a node to make it.
        for (name, wanted) in
            self.function.output.iter().zip(&self.call.output).filter(|(_, wanted)| !wanted.is_empty())
        {
            let made = self.tensor(name);
            if made != *wanted {
                nodes.push(crate::graph::node("Identity", &self.names.fresh(wanted), &[&made], &[wanted]));
            }
        }
        nodes
    }

    fn tensor(&mut self, name: &str) -> String {
        if name.is_empty() {
            return String::new();
        }
        if let Some(known) = self.tensors.get(name) {
            return known.clone();
        }
        let fresh = self.names.fresh(&format!("{}_{name}", self.label()));
        self.tensors.insert(name.to_owned(), fresh.clone());
        fresh
    }

    fn label(&self) -> &str {
        if self.call.name().is_empty() { self.call.op_type() } else { self.call.name() }
    }

    fn node(&mut self, node: &NodeProto) -> NodeProto {
        let mut copy = node.clone();
        copy.input = node.input.iter().map(|name| self.tensor(name)).collect();
        copy.output = node.output.iter().map(|name| self.tensor(name)).collect();
        let name = if node.name().is_empty() { node.op_type() } else { node.name() };
        copy.name = Some(self.names.fresh(&format!("{}/{name}", self.label())));
        copy.attribute = node.attribute.iter().filter_map(|attribute| self.attribute(attribute)).collect();
        copy
    }

    /// An attribute that refers to one of the function's takes its value from the call or its default, and is left out where
    /// there is neither.
    fn attribute(&mut self, attribute: &AttributeProto) -> Option<AttributeProto> {
        let mut copy = match attribute.ref_attr_name() {
            "" => attribute.clone(),
            wanted => {
                let mut given = self.call.attribute.iter().chain(&self.function.attribute_proto);
                let value = given.find(|a| a.name() == wanted)?.clone();
                AttributeProto { name: attribute.name.clone(), ..value }
            }
        };
        if attribute.ref_attr_name().is_empty() {
            copy.g.as_mut().into_iter().chain(&mut copy.graphs).for_each(|graph| self.subgraph(graph));
        }
        Some(copy)
    }

    /// All names inside are made new too, so that two calls do not make one tensor twice.
    fn subgraph(&mut self, graph: &mut GraphProto) {
        for tensor in &mut graph.initializer {
            tensor.name = Some(self.tensor(tensor.name.as_deref().unwrap_or_default()));
        }
        for value in graph.input.iter_mut().chain(&mut graph.output).chain(&mut graph.value_info) {
            value.name = Some(self.tensor(value.name.as_deref().unwrap_or_default()));
        }
        graph.node = graph.node.iter().map(|node| self.node(node)).collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{add_opset, check, float_attribute, node, set_attribute};
    use crate::test_models::model;

    /// `f(a) = LeakyRelu(LeakyRelu(a, alpha of the call), 0.5)`.
    fn with_function(version: i64) -> ModelProto {
        let mut first = node("LeakyRelu", "first", &["a"], &["t"]);
        let refers = AttributeProto {
            name: Some("alpha".to_owned()),
            ref_attr_name: Some("slope".to_owned()),
            ..AttributeProto::default()
        };
        first.attribute.push(refers);
        let mut second = node("LeakyRelu", "second", &["t"], &["b"]);
        set_attribute(&mut second, "alpha", 0.5f32);
        let mut imports = model(version, vec![], vec![], &[], &[]);
        let function = FunctionProto {
            name: Some("f".to_owned()),
            domain: Some("local".to_owned()),
            input: vec!["a".to_owned()],
            output: vec!["b".to_owned()],
            attribute: vec!["slope".to_owned()],
            node: vec![first, second],
            opset_import: std::mem::take(&mut imports.opset_import),
            ..FunctionProto::default()
        };
        let call = |name: &str, input: &str, output: &str, slope: f32| {
            let mut call = node("f", name, &[input], &[output]);
            call.domain = Some("local".to_owned());
            set_attribute(&mut call, "slope", slope);
            call
        };
        let nodes = vec![call("p", "x", "h", 0.1), call("q", "h", "y", 0.2)];
        let mut model = model(17, nodes, vec![], &["x"], &["y"]);
        model.functions = vec![function];
        add_opset(&mut model, "local", 1);
        model
    }

    #[test]
    fn each_inlined_call_has_its_own_names_and_attributes() {
        let mut model = with_function(17);
        assert_eq!(run(&mut model, &Context::default()).unwrap(), 2);
        let names: Vec<&str> = model.graph.node.iter().map(|n| n.name()).collect();
        assert_eq!(names, ["p/first", "p/second", "q/first", "q/second"]);
        let slopes: Vec<_> = model.graph.node.iter().map(|n| float_attribute(n, "alpha")).collect();
        assert_eq!(slopes, [Some(0.1), Some(0.5), Some(0.2), Some(0.5)]);
        assert_eq!(model.graph.node[1].output, ["h"]);
        assert!(model.functions.is_empty());
        assert_eq!(check(&model), Ok(()));
    }

    #[test]
    fn function_of_another_opset_is_not_inlined() {
        let mut model = with_function(13);
        assert_eq!(run(&mut model, &Context::default()).unwrap(), 0);
        assert_eq!((model.graph.node.len(), model.functions.len()), (2, 1));
    }
}
