//! Constants that products inside of If, Loop and Scan multiply with or add move to the main graph, where weights are quantized.
//! A body reads them from there as it read its own.

use std::collections::BTreeSet;

use kvant_container::onnx::{DataType, GraphProto, ModelProto, NodeProto, TensorProto, data_type};

use super::{Context, PassError};
use crate::graph::{Edit, Index, Names, bodies_mut, is};

pub(super) fn run(model: &mut ModelProto, _: &Context<'_>) -> Result<usize, PassError> {
    let Some(graph) = model.graph.as_mut() else { return Ok(0) };
    let mut lifted = Lifted { names: Names::of(graph), tensors: Vec::new() };
    graph.node.iter_mut().flat_map(bodies_mut).for_each(|body| lifted.from(body));
    let count = lifted.tensors.len();
    graph.initializer.append(&mut lifted.tensors);
    Ok(count)
}

struct Lifted {
    names: Names,
    tensors: Vec<TensorProto>,
}

impl Lifted {
    fn from(&mut self, body: &mut GraphProto) {
        let index = Index::new(body);
        let mut edit = Edit::default();
        for name in wanted(body, &index) {
            let Some(tensor) = index.constant(body, &name) else { continue };
            let new = self.names.fresh(&name);
            self.tensors.push(TensorProto { name: Some(new.clone()), ..tensor.clone() });
            edit.rename(&name, &new);
            match index.producer(&name) {
                Some(position) => edit.remove(position),
                None => body.initializer.retain(|t| t.name() != name),
            }
        }
        edit.apply(body);
        body.node.iter_mut().flat_map(bodies_mut).for_each(|inner| self.from(inner));
    }
}

/// The float constants of a body that its products read, and that it does not give as they are.
fn wanted(body: &GraphProto, index: &Index) -> BTreeSet<String> {
    let product = |node: &&NodeProto| ["Conv", "ConvTranspose", "Gemm", "MatMul"].iter().any(|op| is(node, op));
    let read = body.node.iter().filter(product).flat_map(|node| node.input.iter().skip(1));
    let float = |name: &str| index.constant(body, name).is_some_and(|t| data_type(t) == DataType::FLOAT);
    read.filter(|name| float(name) && !index.is_output(name)).cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{bodies, check, node};
    use crate::test_models::{branches, floats, model, value};

    #[test]
    fn branch_constants_are_lifted_under_distinct_names() {
        let body = |factor: f32| GraphProto {
            name: Some("branch".to_owned()),
            node: vec![node("MatMul", "m", &["x", "w"], &["p"]), node("Add", "a", &["p", "k"], &["z"])],
            initializer: vec![floats("w", &[2, 2], &[factor; 4]), floats("k", &[2], &[factor; 2])],
            output: vec![value("z")],
            ..GraphProto::default()
        };
        let mut model = model(17, vec![branches("c", "y", body(1.0), body(2.0))], vec![], &["x", "c"], &["y"]);
        assert_eq!(run(&mut model, &Context::default()).unwrap(), 2);
        assert_eq!(check(&model), Ok(()));
        assert_eq!(model.graph.initializer.len(), 2);
        for body in bodies(&model.graph.node[0]) {
            assert_eq!(body.initializer, [body.initializer[0].clone()]);
            assert!(model.graph.initializer.iter().any(|t| t.name() == body.node[0].input[1]));
        }
        assert_eq!(run(&mut model, &Context::default()).unwrap(), 0);
    }
}
