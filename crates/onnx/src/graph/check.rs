//! Checks that a model is well-formed: no dangling names, each tensor produced once, no cycles, data of the right size,
//! known opsets. Not whether operators are valid: the runtime checks that.

use std::collections::{HashMap, HashSet};

use kvant_container::onnx::{
    DataType, FunctionProto, GraphProto, ModelProto, NodeProto, TensorProto, data_type, data_type_name, element_count,
    tensor_bytes,
};

use super::arity::check_arity;
use super::error::GraphError;
use super::{STANDARD_DOMAIN, called, domain, opset, order};

/// Oldest version of the standard operators: broadcasting was another before.
pub const LEAST_OPSET: i64 = 7;
/// Newest version of the standard operators whose changes are known here.
pub const MOST_OPSET: i64 = 25;
/// Graphs inside graphs, at most.
const DEEPEST: usize = 16;

/// Checks a model. After this every tensor that a node reads exists, and the nodes have an order.
///
/// Errors: see [`GraphError`].
pub fn check(model: &ModelProto) -> Result<(), GraphError> {
    match opset(model, STANDARD_DOMAIN) {
        Some(version) if (LEAST_OPSET..=MOST_OPSET).contains(&version) => {}
        Some(version) => return Err(GraphError::Opset(version)),
        None => return Err(GraphError::NoOpset(String::new())),
    }
    let mut checker = Checker { model, visible: HashSet::new() };
    checker.graph(&model.graph, 0)?;
    check_functions(model)
}

struct Checker<'m> {
    model: &'m ModelProto,
    visible: HashSet<&'m str>,
}

impl<'m> Checker<'m> {
    fn graph(&mut self, graph: &'m GraphProto, depth: usize) -> Result<(), GraphError> {
        if depth > DEEPEST {
            return Err(GraphError::TooDeep(DEEPEST));
        }
        graph.initializer.iter().try_for_each(check_tensor)?;
        let own = made(graph)?;
        let shadowed = own.iter().find(|name| self.visible.contains(*name));
        if let Some(name) = shadowed {
            return Err(GraphError::MadeTwice((*name).to_owned()));
        }
        self.visible.extend(&own);
        let inside = self.inside(graph, depth);
        for name in own {
            self.visible.remove(name);
        }
        inside
    }

    fn inside(&mut self, graph: &'m GraphProto, depth: usize) -> Result<(), GraphError> {
        for node in &graph.node {
            self.node(node)?;
            for attribute in &node.attribute {
                attribute.t.iter().chain(&attribute.tensors).try_for_each(check_tensor)?;
                attribute.g.iter().chain(&attribute.graphs).try_for_each(|inner| self.graph(inner, depth + 1))?;
            }
        }
        let nowhere = graph.output.iter().find(|output| !self.visible.contains(output.name()));
        match nowhere {
            Some(output) => Err(GraphError::UnknownOutput(output.name().to_owned())),
            None => order(graph).map(drop),
        }
    }

    fn node(&self, node: &NodeProto) -> Result<(), GraphError> {
        if node.op_type().is_empty() {
            return Err(GraphError::NoOperator(called(node).to_owned()));
        }
        let local = || function(self.model, node).is_some();
        if opset(self.model, domain(node)).is_none() && !local() {
            return Err(GraphError::NoOpset(domain(node).to_owned()));
        }
        check_arity(node)?;
        check_inputs(node, &self.visible)
    }
}

fn check_inputs(node: &NodeProto, visible: &HashSet<&str>) -> Result<(), GraphError> {
    match node.input.iter().find(|name| !name.is_empty() && !visible.contains(name.as_str())) {
        None => Ok(()),
        Some(tensor) => {
            let (operator, tensor) = (node.op_type().escape_debug().take(60).collect(), tensor.clone());
            Err(GraphError::UnknownInput { node: called(node).to_owned(), operator, tensor })
        }
    }
}

/// The tensors a graph has of its own: inputs, initializers and what its nodes make. An input may have an initializer as
/// its default.
fn made(graph: &GraphProto) -> Result<HashSet<&str>, GraphError> {
    let mut own = HashSet::new();
    for input in &graph.input {
        add(&mut own, input.name(), "an input of a graph")?;
    }
    let mut initializers = HashSet::new();
    let sparse = graph.sparse_initializer.iter().map(|t| t.values.name());
    for name in graph.initializer.iter().map(|t| t.name()).chain(sparse) {
        add(&mut initializers, name, "an initializer")?;
    }
    own.extend(initializers);
    for output in graph.node.iter().flat_map(|node| &node.output).filter(|name| !name.is_empty()) {
        add(&mut own, output, "a tensor")?;
    }
    Ok(own)
}

fn add<'g>(names: &mut HashSet<&'g str>, name: &'g str, what: &'static str) -> Result<(), GraphError> {
    match (name, names.insert(name)) {
        ("", _) => Err(GraphError::Unnamed(what)),
        (_, true) => Ok(()),
        (_, false) => Err(GraphError::MadeTwice(name.to_owned())),
    }
}

fn check_tensor(tensor: &TensorProto) -> Result<(), GraphError> {
    let wrong = |problem: String| GraphError::Tensor { tensor: tensor.name().to_owned(), problem };
    if !tensor.external_data.is_empty() && tensor.raw_data.is_none() {
        return Err(wrong("its data is in another file, which was not read".to_owned()));
    }
    match data_type(tensor) {
        DataType::UNDEFINED => Err(wrong(format!("no known element type: number {}", tensor.data_type()))),
        DataType::STRING => {
            let expected = element_count(tensor).map_err(|e| wrong(plain(e)))?;
            let count = tensor.string_data.len();
            if count == expected { Ok(()) } else { Err(wrong(format!("needs {expected} strings and has {count}"))) }
        }
        data_type => match tensor_bytes(tensor) {
            Ok(_) => Ok(()),
            Err(problem) => Err(wrong(format!("{} ({})", plain(problem), data_type_name(data_type)))),
        },
    }
}

/// The problem without the tensor's name, which the error of the graph names itself.
fn plain(error: kvant_container::onnx::OnnxError) -> String {
    match error {
        kvant_container::onnx::OnnxError::Tensor { problem, .. } => problem,
        other => other.to_string(),
    }
}

/// The model's own function that a node calls.
pub(crate) fn function<'m>(model: &'m ModelProto, node: &NodeProto) -> Option<&'m FunctionProto> {
    let plain = |domain: &str| if domain == "ai.onnx" { String::new() } else { domain.to_owned() };
    let called = |f: &&FunctionProto| {
        f.name() == node.op_type() && plain(f.domain()) == domain(node) && f.overload() == node.overload()
    };
    model.functions.iter().find(called)
}

fn check_functions(model: &ModelProto) -> Result<(), GraphError> {
    let mut seen = HashSet::new();
    for function in &model.functions {
        if !seen.insert((function.domain(), function.name(), function.overload())) {
            return Err(GraphError::FunctionTwice(function.name().to_owned()));
        }
        check_function(function)?;
    }
    let mut finished = HashMap::new();
    model.functions.iter().try_for_each(|function| ends(model, function, &mut finished))
}

/// A function sees its inputs and what its nodes make, and nothing else.
fn check_function(function: &FunctionProto) -> Result<(), GraphError> {
    let mut visible: HashSet<&str> = function.input.iter().map(String::as_str).collect();
    for output in function.node.iter().flat_map(|node| &node.output).filter(|name| !name.is_empty()) {
        add(&mut visible, output, "a tensor")?;
    }
    for node in &function.node {
        check_arity(node)?;
        check_inputs(node, &visible)?;
        node.attribute.iter().flat_map(|a| a.t.iter().chain(&a.tensors)).try_for_each(check_tensor)?;
    }
    match function.output.iter().find(|name| !visible.contains(name.as_str())) {
        Some(name) => Err(GraphError::UnknownOutput(name.clone())),
        None => Ok(()),
    }
}

/// Follows calls, each function once; a function that is met while it is being followed calls itself.
fn ends<'m>(
    model: &'m ModelProto,
    function: &'m FunctionProto,
    finished: &mut HashMap<*const FunctionProto, bool>,
) -> Result<(), GraphError> {
    match finished.get(&std::ptr::from_ref(function)) {
        Some(true) => return Ok(()),
        Some(false) => return Err(GraphError::EndlessFunction(function.name().to_owned())),
        None => {}
    }
    if finished.values().filter(|done| !**done).count() > DEEPEST {
        return Err(GraphError::TooDeep(DEEPEST));
    }
    finished.insert(function, false);
    for node in &function.node {
        if let Some(called) = self::function(model, node) {
            ends(model, called, finished)?;
        }
    }
    finished.insert(function, true);
    Ok(())
}

#[cfg(test)]
mod tests {
    use kvant_container::onnx::{AttributeProto, Bytes, MessageField, parse, serialize, tensor};

    use super::*;
    use crate::graph::{add_opset, node};
    use crate::test_models::{model, value};
    use kvant_container::Diagnostic;

    fn error(model: &ModelProto) -> String {
        let error = check(model).unwrap_err();
        assert!(error.hint().is_some());
        error.to_string()
    }

    fn relu() -> ModelProto {
        model(17, vec![node("Relu", "r", &["x"], &["y"])], vec![], &["x"], &["y"])
    }

    #[test]
    fn valid_model_passes_in_any_node_order() {
        assert_eq!(check(&relu()), Ok(()));
        let nodes = vec![node("Relu", "b", &["h"], &["y"]), node("Relu", "a", &["x"], &["h"])];
        assert_eq!(check(&model(17, nodes, vec![], &["x"], &["y"])), Ok(()));
    }

    #[test]
    fn dangling_connections_and_cycles_are_named() {
        let cycle = vec![node("Add", "p", &["x", "b"], &["a"]), node("Relu", "q", &["a"], &["b"])];
        assert!(error(&model(17, cycle, vec![], &["x"], &["b"])).contains("`p` waits for its own result"));
        let missing = vec![node("Relu", "r", &["z"], &["y"])];
        assert_eq!(
            error(&model(17, missing, vec![], &["x"], &["y"])),
            "node `r` (Relu) reads the tensor `z`, which nothing makes"
        );
        let nodes = vec![node("Relu", "r", &["x"], &["h"])];
        assert!(error(&model(17, nodes, vec![], &["x"], &["y"])).contains("gives the tensor `y`"));
    }

    #[test]
    fn operator_arity_is_checked() {
        let add = model(17, vec![node("Add", "a", &["x"], &["y"])], vec![], &["x"], &["y"]);
        assert_eq!(error(&add), "node `a` (`Add`) needs 2 inputs and has 1");
        let skipped = model(17, vec![node("MatMul", "m", &["", "x"], &["y"])], vec![], &["x"], &["y"]);
        assert!(error(&skipped).contains("has 0"));
        let mute = model(17, vec![node("Relu", "r", &["x"], &[""])], vec![], &["x"], &["x"]);
        let found = error(&mute);
        assert!(found.contains("1 output, or none with a name"), "{found}");
        let second = model(17, vec![node("LSTM", "l", &["x", "x", "x"], &["", "y"])], vec![], &["x"], &["y"]);
        assert_eq!(check(&second), Ok(()));
    }

    #[test]
    fn tensor_must_be_produced_once() {
        let twice = vec![node("Relu", "a", &["x"], &["y"]), node("Relu", "b", &["x"], &["y"])];
        assert_eq!(error(&model(17, twice, vec![], &["x"], &["y"])), "the tensor `y` is made twice");
        let w = || tensor("w", DataType::UINT8, &[], vec![1]);
        let add = vec![node("Add", "a", &["x", "w"], &["y"])];
        assert_eq!(check(&model(17, add.clone(), vec![w()], &["x", "w"], &["y"])), Ok(()));
        assert_eq!(error(&model(17, add, vec![w(), w()], &["x"], &["y"])), "the tensor `w` is made twice");
        let made = vec![node("Relu", "r", &["x"], &["w"])];
        assert_eq!(error(&model(17, made, vec![w()], &["x"], &["w"])), "the tensor `w` is made twice");
    }

    #[test]
    fn tensor_sizes_are_checked() {
        let with = |t: TensorProto| model(17, vec![node("Add", "a", &["x", "w"], &["y"])], vec![t], &["x"], &["y"]);
        let short = tensor("w", DataType::FLOAT, &[2], vec![0; 4]);
        assert!(error(&with(short.clone())).contains("`w`: float of shape [2] needs 8 bytes and has 4"));
        let absurd = TensorProto { dims: vec![i64::MAX, i64::MAX], ..short.clone() };
        assert!(error(&with(absurd)).contains("more elements than memory"));
        let untyped = TensorProto { data_type: Some(99), ..short };
        assert!(error(&with(untyped)).contains("number 99"));
    }

    #[test]
    fn unknown_opsets_are_refused() {
        assert!(error(&model(6, vec![], vec![], &["x"], &["x"])).contains("opset 6"));
        assert_eq!(
            check(&model(30, vec![], vec![], &["x"], &["x"])).unwrap_err().kind(),
            kvant_container::ErrorKind::Unsupported
        );
        let mut none = relu();
        none.opset_import.clear();
        assert!(error(&none).contains("ai.onnx"));
        let mut foreign = relu();
        foreign.graph.as_mut().unwrap().node[0].domain = Some("com.example".to_owned());
        assert!(error(&foreign).contains("`com.example`"));
        add_opset(&mut foreign, "com.example", 1);
        assert_eq!(check(&foreign), Ok(()));
    }

    fn branch(inner: GraphProto) -> NodeProto {
        let mut branch = node("If", "if", &["x"], &["y"]);
        branch.attribute.push(AttributeProto { g: MessageField::some(inner), ..AttributeProto::default() });
        branch
    }

    fn inner(nodes: Vec<NodeProto>, output: &str) -> GraphProto {
        GraphProto { node: nodes, output: vec![value(output)], ..GraphProto::default() }
    }

    #[test]
    fn subgraphs_see_outer_names_but_not_siblings() {
        let sees = branch(inner(vec![node("Relu", "", &["x"], &["z"])], "z"));
        assert_eq!(check(&model(17, vec![sees.clone()], vec![], &["x"], &["y"])), Ok(()));
        let leaks = vec![sees, node("Relu", "", &["z"], &["w"])];
        assert!(error(&model(17, leaks, vec![], &["x"], &["y"])).contains("`z`"));
        let shadows = branch(inner(vec![node("Relu", "", &["x"], &["x"])], "x"));
        assert!(error(&model(17, vec![shadows], vec![], &["x"], &["y"])).contains("made twice"));
        let mut deep = inner(vec![node("Relu", "", &["x"], &["z"])], "z");
        for level in 0..20 {
            let mut next = branch(deep);
            next.output = vec![format!("y{level}")];
            deep = inner(vec![next], &format!("y{level}"));
        }
        assert!(error(&model(17, vec![branch(deep)], vec![], &["x"], &["y"])).contains("nested"));
    }

    #[test]
    fn recursive_functions_are_refused() {
        let function = |name: &str, calls: &str| {
            let mut inside = node(calls, "", &["a"], &["b"]);
            inside.domain = Some("local".to_owned());
            FunctionProto {
                name: Some(name.to_owned()),
                domain: Some("local".to_owned()),
                input: vec!["a".to_owned()],
                output: vec!["b".to_owned()],
                node: vec![inside],
                ..FunctionProto::default()
            }
        };
        let mut model = relu();
        model.functions = vec![function("f", "g"), function("g", "f")];
        assert!(error(&model).contains("calls itself"));
        model.functions = vec![function("f", "g"), function("g", "other")];
        assert_eq!(check(&model), Ok(()));
        model.functions.push(function("f", "g"));
        assert!(error(&model).contains("there twice"));
    }

    #[test]
    fn truncated_models_fail_to_parse_or_check() {
        let whole = Bytes::from(serialize(&relu()).unwrap());
        let sound = |n: &usize| parse(&whole.slice(..*n)).is_ok_and(|m| check(&m).is_ok());
        assert_eq!((0..whole.len()).filter(sound).collect::<Vec<_>>(), Vec::<usize>::new(), "of {}", whole.len());
        assert_eq!(check(&parse(&whole).unwrap()), Ok(()));
    }
}
