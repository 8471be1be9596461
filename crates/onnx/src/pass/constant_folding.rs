//! What depends on constants alone is computed now and becomes an initializer of the same name; so do Constant nodes, and
//! integers that shape inference knows. The graph's outputs keep their nodes.

use std::collections::HashMap;

use kvant_container::onnx::{GraphProto, ModelProto, NodeProto, TensorProto};

use super::{Context, PassError};
use crate::constant::{Call, Value, evaluate, is_known};
use crate::graph::{self, Edit, Index, STANDARD_DOMAIN, attribute, is, positional_input};
use crate::shape::{Types, infer};

pub(super) fn run(model: &mut ModelProto, context: &Context<'_>) -> Result<usize, PassError> {
    let types = infer(model);
    let opset = graph::opset(model, STANDARD_DOMAIN).unwrap_or_default();
    let Some(graph) = model.graph.as_mut() else { return Ok(0) };
    let index = Index::new(graph);
    let left = budget(graph);
    let mut folder = Folder { graph, index, types, opset, context, values: HashMap::new(), left };
    let mut edit = Edit::default();
    let order = graph::order(graph)?;
    for position in order {
        if let Some(made) = folder.fold(&graph.node[position])? {
            edit.replace(position, Vec::new());
            made.into_iter().for_each(|tensor| edit.add(tensor));
        }
    }
    Ok(edit.apply(graph))
}

/// Bytes that may be folded in all: a chain of operators that double their input is no way to fill the memory. What is folded
/// from weights is a few times their size.
fn budget(graph: &GraphProto) -> usize {
    const LEAST: usize = 256 << 20;
    let stored = graph.initializer.iter().filter_map(Value::of_tensor).map(|value| value.bytes().len());
    stored.fold(0, usize::saturating_add).saturating_mul(8).max(LEAST)
}

struct Folder<'a> {
    graph: &'a GraphProto,
    index: Index,
    types: Types,
    opset: i64,
    context: &'a Context<'a>,
    values: HashMap<String, Value>,
    /// What is left of the [`budget`].
    left: usize,
}

impl Folder<'_> {
    fn fold(&mut self, node: &NodeProto) -> Result<Option<Vec<TensorProto>>, PassError> {
        let used: Vec<&String> = node.output.iter().filter(|name| !name.is_empty()).collect();
        if used.is_empty() || used.iter().any(|name| self.index.is_output(name)) {
            return Ok(None);
        }
        if is(node, "Constant") {
            return Ok(self.constant(node));
        }
        let Some(values) = self.known(node).or_else(|| self.evaluate(node)) else { return Ok(None) };
        let grown: usize = values.iter().map(|value| value.bytes().len()).sum();
        let Some(left) = self.left.checked_sub(grown) else { return Ok(None) };
        self.left = left;
        let mut made = Vec::with_capacity(values.len());
        for (name, value) in node.output.iter().zip(values).filter(|(name, _)| !name.is_empty()) {
            let value = self.context.keep(value)?;
            self.values.insert(name.clone(), value.clone());
            made.push(value.into_tensor(name));
        }
        Ok((made.len() == used.len()).then_some(made))
    }

    /// A Constant's tensor as it is, of any type.
    fn constant(&mut self, node: &NodeProto) -> Option<Vec<TensorProto>> {
        let name = node.output.first()?;
        if let Some(tensor) = attribute(node, "value").and_then(|a| a.t.as_ref()) {
            self.values.extend(Value::of_tensor(tensor).map(|value| (name.clone(), value)));
            return Some(vec![TensorProto { name: Some(name.clone()), ..tensor.clone() }]);
        }
        let call = Call { node, opset: self.opset, inputs: vec![], limit: usize::MAX };
        let value = evaluate(&call)?.pop()?;
        self.values.insert(name.clone(), value.clone());
        Some(vec![value.into_tensor(name)])
    }

    /// The integers that shape inference found.
    fn known(&self, node: &NodeProto) -> Option<Vec<Value>> {
        let [output] = &node.output[..] else { return None };
        is_known(node).then(|| self.types.constant(output).cloned().map(|value| vec![value]))?
    }

    fn evaluate(&self, node: &NodeProto) -> Option<Vec<Value>> {
        if !is_known(node) {
            return None;
        }
        let value = |i: usize| match positional_input(node, i) {
            Some(name) => self.value(name).map(Some),
            None => Some(None),
        };
        let inputs: Vec<Option<Value>> = (0..node.input.len()).map(value).collect::<Option<_>>()?;
        let size: usize = inputs.iter().flatten().map(|value| value.bytes().len()).sum();
        let values = evaluate(&Call { node, opset: self.opset, inputs, limit: size.max(self.context.largest) })?;
        let grown: usize = values.iter().map(|value| value.bytes().len()).sum();
        (grown <= size.max(self.context.largest)).then_some(values)
    }

    fn value(&self, name: &str) -> Option<Value> {
        let initializer = || Value::of_tensor(self.index.constant(self.graph, name)?);
        self.values.get(name).cloned().or_else(initializer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{node, set_attribute};
    use crate::test_models::{floats, integers, model, typed};

    #[test]
    fn known_shape_is_folded_into_reshape() {
        let mut gather = node("Gather", "g", &["s", "zero"], &["n"]);
        set_attribute(&mut gather, "axis", 0i64);
        let mut concat = node("Concat", "c", &["n", "rest"], &["shape"]);
        set_attribute(&mut concat, "axis", 0i64);
        let nodes =
            vec![node("Shape", "s", &["x"], &["s"]), gather, concat, node("Reshape", "r", &["x", "shape"], &["y"])];
        let initializers = vec![integers("zero", &[0]), integers("rest", &[-1])];
        let mut model = model(17, nodes, initializers, &[], &["y"]);
        model.graph.as_mut().unwrap().input = vec![typed("x", &[2, 3, 4])];
        assert_eq!(run(&mut model, &Context::default()).unwrap(), 3);
        assert_eq!(model.graph.node, [node("Reshape", "r", &["x", "shape"], &["y"])]);
        assert!(model.graph.initializer.contains(&integers("shape", &[2, -1])));
    }

    #[test]
    fn quantized_weights_and_outputs_are_not_folded() {
        let nodes = vec![
            node("DequantizeLinear", "d", &["w", "s"], &["v"]),
            node("Add", "a", &["s", "s"], &["y"]),
            node("Mul", "m", &["x", "v"], &["z"]),
        ];
        let w = kvant_container::onnx::tensor("w", kvant_container::onnx::DataType::INT8, &[1], vec![3]);
        let mut model = model(17, nodes.clone(), vec![w, floats("s", &[], &[0.5])], &["x"], &["y", "z"]);
        assert_eq!(run(&mut model, &Context::default()).unwrap(), 0);
        assert_eq!(model.graph.node, nodes);
    }

    #[test]
    fn folded_constants_are_limited_in_size() {
        let nodes = vec![node("Expand", "e", &["one", "shape"], &["v"]), node("Mul", "m", &["x", "v"], &["y"])];
        let initializers = vec![floats("one", &[1], &[1.0]), integers("shape", &[1024, 1024])];
        let mut model = model(17, nodes, initializers, &["x"], &["y"]);
        assert_eq!(run(&mut model, &Context::default()).unwrap(), 0);
        assert_eq!(run(&mut model, &Context { largest: 4 << 20, ..Context::default() }).unwrap(), 1);
    }
}
