//! Types and shapes of all tensors that nodes make are written to the model, as far as they follow from it.

use std::collections::{HashMap, HashSet};

use kvant_container::onnx::{ModelProto, ValueInfoProto};

use super::{Context, PassError};
use crate::shape::{Types, infer};

pub(super) fn run(model: &mut ModelProto, _: &Context<'_>) -> Result<usize, PassError> {
    let types = infer(model);
    let Some(graph) = model.graph.as_mut() else { return Ok(0) };
    let outputs: HashSet<String> = graph.output.iter().map(|output| output.name().to_owned()).collect();
    let old = std::mem::take(&mut graph.value_info);
    let mut infos: HashMap<String, _> = old.into_iter().map(|info| (info.name().to_owned(), info)).collect();
    let mut written = 0;
    for output in &mut graph.output {
        written += usize::from(refine(output, &types));
    }
    for name in
        graph.node.iter().flat_map(|node| &node.output).filter(|n| !n.is_empty() && !outputs.contains(n.as_str()))
    {
        let new = || ValueInfoProto { name: Some(name.clone()), ..ValueInfoProto::default() };
        let mut info = infos.remove(name).unwrap_or_else(new);
        written += usize::from(refine(&mut info, &types));
        if info.type_.is_some() {
            graph.value_info.push(info);
        }
    }
    Ok(written)
}

/// Writes what is known of a tensor; what the file says of it besides its type stays. Whether that was new.
fn refine(info: &mut ValueInfoProto, types: &Types) -> bool {
    let Some(known) = types.get(info.name()).and_then(|known| known.to_proto(info.name())) else { return false };
    let new = known.type_ != info.type_;
    info.type_ = known.type_;
    new
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::node;
    use crate::test_models::{model, typed};

    #[test]
    fn inferred_types_are_written_once() {
        let nodes = vec![node("Relu", "r", &["x"], &["h"]), node("Relu", "s", &["h"], &["y"])];
        let mut model = model(17, nodes, vec![], &[], &["y"]);
        model.graph.as_mut().unwrap().input = vec![typed("x", &[2, 3])];
        assert_eq!(run(&mut model, &Context::default()).unwrap(), 2);
        assert_eq!(model.graph.value_info, [typed("h", &[2, 3])]);
        assert_eq!(model.graph.output, [typed("y", &[2, 3])]);
        assert_eq!(run(&mut model, &Context::default()).unwrap(), 0);
    }
}
