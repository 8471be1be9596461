//! Split becomes one Slice for each part that is used. Names are AMD Quark's: `<part>_starts_<number>` and so on.

use kvant_container::onnx::{GraphProto, ModelProto, NodeProto, TensorProto};

use super::{Context, PassError};
use crate::constant::{Value, equal_parts};
use crate::graph::{
    self, Edit, Index, STANDARD_DOMAIN, int_attribute, ints_attribute, is, node, positional_input, set_attribute,
};
use crate::shape::{Types, infer};

/// From this opset on Slice takes its bounds as inputs.
const BOUNDS_ARE_INPUTS: i64 = 10;

pub(super) fn run(model: &mut ModelProto, _: &Context<'_>) -> Result<usize, PassError> {
    let types = infer(model);
    let opset = graph::opset(model, STANDARD_DOMAIN).unwrap_or_default();
    let Some(graph) = model.graph.as_mut() else { return Ok(0) };
    let index = Index::new(graph);
    let mut edit = Edit::default();
    for (position, split) in graph.node.iter().enumerate().filter(|(_, node)| is(node, "Split")) {
        let Some(lengths) = lengths(split, &index, graph, &types) else { continue };
        let mut start = 0;
        let mut slices = Vec::with_capacity(lengths.len());
        for (i, &length) in lengths.iter().enumerate() {
            if !split.output[i].is_empty() {
                let (slice, bounds) =
                    slice(split, i, (start, start + length), opset, &mut |wanted| edit.fresh(graph, wanted));
                slices.push(slice);
                bounds.into_iter().for_each(|bound| edit.add(bound));
            }
            start += length;
        }
        edit.replace(position, slices);
    }
    Ok(edit.apply(graph))
}

/// The lengths of the parts, if they are known.
fn lengths(split: &NodeProto, index: &Index, graph: &GraphProto, types: &Types) -> Option<Vec<i64>> {
    let given = ints_attribute(split, "split").map(<[i64]>::to_vec);
    let lengths = match (given, positional_input(split, 1)) {
        (Some(lengths), _) => lengths,
        (None, Some(name)) => Value::of_tensor(index.constant(graph, name)?)?.as_integers()?,
        (None, None) => {
            let shape = &types.get(&split.input[0])?.shape.as_ref()?;
            let axis = int_attribute(split, "axis").unwrap_or(0);
            let axis = usize::try_from(if axis < 0 { axis + shape.len() as i64 } else { axis }).ok()?;
            let parts = equal_parts(shape.get(axis)?.known()?, split.output.len())?;
            parts.into_iter().map(|n| n as i64).collect()
        }
    };
    let total = lengths.iter().try_fold(0i64, |n, &l| n.checked_add(l).filter(|_| l >= 0));
    (lengths.len() == split.output.len() && total.is_some()).then_some(lengths)
}

fn slice(
    split: &NodeProto,
    i: usize,
    (start, end): (i64, i64),
    opset: i64,
    fresh: &mut dyn FnMut(&str) -> String,
) -> (NodeProto, Vec<TensorProto>) {
    let output = &split.output[i];
    let axis = int_attribute(split, "axis").unwrap_or(0);
    let name = format!("{output}_{i}");
    if opset < BOUNDS_ARE_INPUTS {
        let mut slice = node("Slice", &name, &[&split.input[0]], &[output]);
        set_attribute(&mut slice, "starts", &[start][..]);
        set_attribute(&mut slice, "ends", &[end][..]);
        set_attribute(&mut slice, "axes", &[axis][..]);
        return (slice, vec![]);
    }
    let bounds = [("starts", start), ("ends", end), ("axes", axis), ("steps", 1)];
    let names = bounds.map(|(bound, _)| fresh(&format!("{output}_{bound}_{i}")));
    let tensors = bounds.iter().zip(&names);
    let tensors = tensors.filter_map(|((_, number), name)| Some(Value::integers(&[1], &[*number])?.into_tensor(name)));
    let inputs: Vec<&str> = std::iter::once(&split.input[0]).chain(&names).map(String::as_str).collect();
    (node("Slice", &name, &inputs, &[output]), tensors.collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_models::{integers, model, typed};

    #[test]
    fn slices_follow_the_split_lengths() {
        let nodes = vec![node("Split", "s", &["x", "lengths"], &["a", "b"])];
        let mut model = model(13, nodes, vec![integers("lengths", &[1, 2])], &["x"], &["a", "b"]);
        assert_eq!(run(&mut model, &Context::default()).unwrap(), 1);
        let bounds = ["x", "b_starts_1", "b_ends_1", "b_axes_1", "b_steps_1"];
        assert_eq!(model.graph.node[1], node("Slice", "b_1", &bounds, &["b"]));
        assert!(model.graph.initializer.contains(&integers("b_starts_1", &[1])));
        assert!(model.graph.initializer.contains(&integers("b_ends_1", &[3])));
    }

    #[test]
    fn equal_split_needs_a_known_length() {
        let nodes = vec![node("Split", "s", &["x"], &["a", "b"])];
        let mut unknown = model(9, nodes, vec![], &["x"], &["a", "b"]);
        assert_eq!(run(&mut unknown, &Context::default()).unwrap(), 0);
        unknown.graph.as_mut().unwrap().input = vec![typed("x", &[4])];
        assert_eq!(run(&mut unknown, &Context::default()).unwrap(), 1);
        assert_eq!(ints_attribute(&unknown.graph.node[1], "starts"), Some(&[2][..]));
    }
}
