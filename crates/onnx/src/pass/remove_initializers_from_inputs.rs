//! Initializers that are inputs as well, as ONNX before its file version 4 asked for, are taken off the inputs: a caller can no
//! longer override them, and they are constants.

use std::collections::HashSet;

use kvant_container::onnx::ModelProto;

use super::{Context, PassError};

/// The file version from which on initializers need not be inputs.
const IR_VERSION: i64 = 4;

pub(super) fn run(model: &mut ModelProto, _: &Context<'_>) -> Result<usize, PassError> {
    let Some(graph) = model.graph.as_mut() else { return Ok(0) };
    let sparse = graph.sparse_initializer.iter().map(|t| t.values.name().to_owned());
    let names: HashSet<_> = graph.initializer.iter().map(|t| t.name().to_owned()).chain(sparse).collect();
    let before = graph.input.len();
    graph.input.retain(|input| !names.contains(input.name()));
    let removed = before - graph.input.len();
    if removed > 0 {
        model.ir_version = Some(model.ir_version().max(IR_VERSION));
    }
    Ok(removed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::node;
    use crate::test_models::{floats, model};

    #[test]
    fn only_inputs_with_an_initializer_are_removed() {
        let nodes = vec![node("Add", "a", &["x", "w"], &["y"])];
        let mut model = model(8, nodes, vec![floats("w", &[1], &[1.0])], &["x", "w"], &["y"]);
        model.ir_version = Some(3);
        assert_eq!(run(&mut model, &Context::default()).unwrap(), 1);
        assert_eq!((model.graph.input.len(), model.ir_version()), (1, 4));
        assert_eq!(run(&mut model, &Context::default()).unwrap(), 0);
    }
}
