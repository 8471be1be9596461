//! Clip from zero up without an upper limit becomes Relu.

use kvant_container::onnx::{DataType, ModelProto, NodeProto};

use super::pattern::Pattern;
use super::{Context, PassError};
use crate::graph::{Edit, float_attribute, is, node, positional_input};
use crate::shape::infer;

pub(super) fn run(model: &mut ModelProto, _: &Context<'_>) -> Result<usize, PassError> {
    let types = infer(model);
    let Some(graph) = model.graph.as_mut() else { return Ok(0) };
    let pattern = Pattern::new(graph);
    let mut edit = Edit::default();
    for (position, clip) in graph.node.iter().enumerate().filter(|(_, node)| is(node, "Clip")) {
        let float = types.data_type(&clip.input[0]) == Some(DataType::FLOAT);
        if float && limit(clip, 1, "min", &pattern) == Some(0.0) && limit(clip, 2, "max", &pattern).is_some_and(is_none)
        {
            edit.replace(position, vec![node("Relu", clip.name(), &[&clip.input[0]], &[&clip.output[0]])]);
        }
    }
    Ok(edit.apply(graph))
}

/// A limit, infinite where it is left out; `None` where it is not known.
fn limit(clip: &NodeProto, input: usize, attribute: &str, pattern: &Pattern<'_>) -> Option<f64> {
    match positional_input(clip, input) {
        Some(name) => pattern.number(name),
        None => Some(float_attribute(clip, attribute).map_or(f64::INFINITY, f64::from)),
    }
}

/// Returns whether no 32-bit float is above a limit.
fn is_none(limit: f64) -> bool {
    limit >= f64::from(f32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_models::{floats, model, typed};

    fn count(limits: &[&str]) -> usize {
        let nodes = vec![node("Clip", "", &[&["x"], limits].concat(), &["y"])];
        let constants =
            vec![floats("zero", &[], &[0.0]), floats("six", &[], &[6.0]), floats("inf", &[], &[f32::INFINITY])];
        let mut model = model(13, nodes, constants, &[], &["y"]);
        model.graph.as_mut().unwrap().input = vec![typed("x", &[2])];
        run(&mut model, &Context::default()).unwrap()
    }

    #[test]
    fn only_unbounded_clip_at_zero_is_a_relu() {
        assert_eq!((count(&["zero"]), count(&["zero", "inf"])), (1, 1));
        assert_eq!((count(&["zero", "six"]), count(&["six"]), count(&[])), (0, 0, 0));
    }
}
