//! Inputs and outputs of float16, bfloat16 and float64 become float32 where the model does nothing with them but cast: callers
//! then give and take float32. The casts have no effect any more, and go as such.

use kvant_container::onnx::{DataType, GraphProto, ModelProto, TypeValue, ValueInfoProto};

use super::float_sources::Sources;
use super::{Context, PassError};
use crate::data::type_of;
use crate::graph::{Index, int_attribute, is, set_attribute};
use crate::shape::{Types, infer};

const SOURCES: Sources = Sources { double: true, kept: None };

pub(super) fn run(model: &mut ModelProto, _: &Context<'_>) -> Result<usize, PassError> {
    let types = infer(model);
    let Some(graph) = model.graph.as_mut() else { return Ok(0) };
    Ok(inputs(graph) + outputs(graph, &types))
}

fn inputs(graph: &mut GraphProto) -> usize {
    let index = Index::new(graph);
    let (nodes, mut count) = (&graph.node, 0);
    for input in graph.input.iter_mut().filter(|value| SOURCES.has(type_of(value).0)) {
        let readers = index.consumers(input.name());
        let widens =
            |&at: &usize| is(&nodes[at], "Cast") && int_attribute(&nodes[at], "to") == Some(DataType::FLOAT as i64);
        let default = index.initializer(input.name()).is_some() || index.is_output(input.name());
        if !default && !readers.is_empty() && readers.iter().all(widens) {
            widen(input);
            count += 1;
        }
    }
    count
}

fn outputs(graph: &mut GraphProto, types: &Types) -> usize {
    let index = Index::new(graph);
    let mut count = 0;
    for output in graph.output.iter_mut().filter(|value| SOURCES.has(type_of(value).0)) {
        let Some(maker) = index.producer(output.name()).filter(|_| index.consumers(output.name()).is_empty()) else {
            continue;
        };
        let node = &mut graph.node[maker];
        let from = node.input.first().and_then(|name| types.data_type(name));
        if is(node, "Cast") && from == Some(DataType::FLOAT) {
            set_attribute(node, "to", DataType::FLOAT as i64);
            widen(output);
            count += 1;
        }
    }
    count
}

fn widen(value: &mut ValueInfoProto) {
    if let Some(TypeValue::TensorType(tensor)) = value.type_.as_mut().and_then(|t| t.value.as_mut()) {
        tensor.elem_type = Some(DataType::FLOAT as i32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::node;
    use crate::pass::{Selection, simplify};
    use crate::shape::{Dim, ValueType};
    use crate::test_models::model;

    #[test]
    fn graph_inputs_and_outputs_become_float32() {
        let value = |name: &str| ValueType::new(DataType::FLOAT16, vec![Dim::Known(2)]).to_proto(name).unwrap();
        let mut model = model(17, vec![node("Relu", "r", &["x"], &["y"])], vec![], &[], &[]);
        let graph = model.graph.as_mut().unwrap();
        (graph.input, graph.output) = (vec![value("x")], vec![value("y")]);
        let selection = Selection::default().with("float-sources").unwrap().with("float-ends").unwrap();
        simplify(&mut model, &selection, &Context::default()).unwrap();
        assert_eq!(model.graph.node.len(), 1);
        assert_eq!(
            (type_of(&model.graph.input[0]).0, type_of(&model.graph.output[0]).0),
            (DataType::FLOAT, DataType::FLOAT)
        );
    }
}
