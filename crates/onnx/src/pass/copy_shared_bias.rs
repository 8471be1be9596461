//! Each Conv, ConvTranspose and Gemm gets a bias of its own: a bias is quantized with the scales of its node, and one that two
//! nodes share can have only one. Names are AMD Quark's: `duplicated<bias><number>`.

use std::collections::HashMap;

use kvant_container::onnx::{ModelProto, TensorProto};

use super::{Context, PassError};
use crate::graph::{Edit, Index, Names, is, positional_input};

const OPERATORS: [&str; 3] = ["Conv", "ConvTranspose", "Gemm"];

pub(super) fn run(model: &mut ModelProto, _: &Context<'_>) -> Result<usize, PassError> {
    let Some(graph) = model.graph.as_mut() else { return Ok(0) };
    let index = Index::new(graph);
    let mut names = Names::of(graph);
    let mut uses: HashMap<&str, usize> = HashMap::new();
    let mut edit = Edit::default();
    for (position, node) in graph.node.iter().enumerate() {
        let bias = positional_input(node, 2).filter(|_| OPERATORS.iter().any(|operator| is(node, operator)));
        let Some((name, tensor)) = bias.and_then(|name| Some((name, index.constant(graph, name)?))) else { continue };
        let count = uses.entry(name).or_default();
        *count += 1;
        if *count > 1 {
            let copy = names.fresh(&format!("duplicated{name}{count}"));
            let mut node = node.clone();
            node.input[2].clone_from(&copy);
            edit.add(TensorProto { name: Some(copy), ..tensor.clone() });
            edit.replace(position, vec![node]);
        }
    }
    Ok(edit.apply(graph))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::node;
    use crate::test_models::{floats, model};

    #[test]
    fn second_user_of_a_bias_gets_a_copy() {
        let conv = |i: usize| node("Conv", "", &["x", "w", "b"], &[["p", "q", "r"][i]]);
        let initializers = vec![floats("w", &[1, 1, 1, 1], &[1.0]), floats("b", &[1], &[2.0])];
        let mut model = model(17, (0..3).map(conv).collect(), initializers, &["x"], &["p", "q", "r"]);
        assert_eq!(run(&mut model, &Context::default()).unwrap(), 2);
        let biases: Vec<&str> = model.graph.node.iter().map(|n| &n.input[2][..]).collect();
        assert_eq!(biases, ["b", "duplicatedb2", "duplicatedb3"]);
        assert!(model.graph.initializer.contains(&floats("duplicatedb3", &[1], &[2.0])));
        assert_eq!(run(&mut model, &Context::default()).unwrap(), 0);
    }
}
