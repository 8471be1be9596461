//! Types and shapes of all tensors that nodes make are written to the model, as far as they follow from it.

use std::collections::HashMap;

use kvant_container::onnx::ModelProto;

use super::{Context, PassError};
use crate::shape::infer;

pub(super) fn run(model: &mut ModelProto, _: &Context<'_>) -> Result<usize, PassError> {
    let types = infer(model);
    let Some(graph) = model.graph.as_mut() else { return Ok(0) };
    let outputs: Vec<&str> = graph.output.iter().map(|output| output.name()).collect();
    let names =
        graph.node.iter().flat_map(|node| &node.output).filter(|n| !n.is_empty() && !outputs.contains(&n.as_str()));
    let mut infos: HashMap<String, _> =
        std::mem::take(&mut graph.value_info).into_iter().map(|info| (info.name().to_owned(), info)).collect();
    let mut written = 0;
    for name in names {
        let old = infos.remove(name);
        let new = types.get(name).and_then(|known| known.to_proto(name));
        written +=
            usize::from(old.as_ref().map(|info| &info.type_) != new.as_ref().map(|info| &info.type_) && new.is_some());
        // What the file says of a tensor besides its type stays.
        let info = match (old, new) {
            (Some(old), Some(new)) => Some(kvant_container::onnx::ValueInfoProto { type_: new.type_, ..old }),
            (old, new) => new.or(old),
        };
        graph.value_info.extend(info);
    }
    Ok(written)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::node;
    use crate::test_models::{model, typed};

    #[test]
    fn types_are_written_once() {
        let nodes = vec![node("Relu", "r", &["x"], &["h"]), node("Relu", "s", &["h"], &["y"])];
        let mut model = model(17, nodes, vec![], &[], &["y"]);
        model.graph.as_mut().unwrap().input = vec![typed("x", &[2, 3])];
        assert_eq!(run(&mut model, &Context::default()).unwrap(), 1);
        assert_eq!(model.graph.value_info, [typed("h", &[2, 3])]);
        assert_eq!(run(&mut model, &Context::default()).unwrap(), 0);
    }
}
