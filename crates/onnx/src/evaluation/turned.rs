//! Finds image inputs that a quantized graph takes with channels last while its float graph takes them first. The data
//! are the float graph's, and are transposed for the other.

use std::collections::HashSet;

use kvant_container::onnx::GraphProto;

use crate::data::{Axis, Input, inputs};
use crate::graph::{Index, ints_attribute, is};
use crate::pass::TO_CHANNELS_FIRST;

/// The names of the inputs that are `[n, c, h, w]` in one graph and `[n, h, w, c]` in the other. Declared axes tell; where they
/// are the same either way, a Transpose behind the input does.
pub(super) fn turned(reference: &GraphProto, quantized: &GraphProto) -> HashSet<String> {
    let others = inputs(quantized);
    let other = |input: &Input| others.iter().find(|other| other.name == input.name).and_then(|o| o.axes.clone());
    let is_turned = |input: &Input| {
        let (Some(first), Some(last)) = (input.axes.clone(), other(input)) else { return false };
        let Some(moved) = moved(&first).filter(|_| last.len() == first.len()) else { return false };
        match first == moved {
            true => goes_into_transpose(quantized, &input.name) && !goes_into_transpose(reference, &input.name),
            false => last == moved,
        }
    };
    inputs(reference).into_iter().filter(is_turned).map(|input| input.name).collect()
}

/// Four axes with the second behind the others.
fn moved(axes: &[Axis]) -> Option<Vec<Axis>> {
    let [batch, channels, height, width] = axes else { return None };
    Some([batch, height, width, channels].into_iter().cloned().collect())
}

/// Returns whether all that reads an input, through quantizing nodes, turns it to channels first.
fn goes_into_transpose(graph: &GraphProto, input: &str) -> bool {
    let index = Index::new(graph);
    let mut name = input.to_owned();
    for _ in 0..graph.node.len() {
        let [reader] = index.consumers(&name) else { return false };
        let reader = &graph.node[*reader];
        let through = ["QuantizeLinear", "DequantizeLinear", "Cast"].contains(&reader.op_type());
        match reader.output.first().filter(|_| through) {
            Some(output) => name.clone_from(output),
            None => {
                return is(reader, "Transpose") && ints_attribute(reader, "perm") == Some(&TO_CHANNELS_FIRST[..]);
            }
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::node;
    use crate::pass::{Context, Pass};
    use crate::test_models::{model, typed};

    #[test]
    fn layout_change_is_detected_by_shape_or_transpose() {
        for shape in [[1, 3, 8, 6], [1, 4, 4, 4]] {
            let mut plain = model(17, vec![node("Relu", "r", &["x"], &["y"])], vec![], &[], &["y"]);
            plain.graph.as_mut().unwrap().input = vec![typed("x", &shape)];
            let mut other = plain.clone();
            Pass::named("nhwc-inputs").unwrap().run(&mut other, &Context::default()).unwrap();
            let found = |a: &kvant_container::onnx::ModelProto, b: &kvant_container::onnx::ModelProto| {
                turned(&a.graph, &b.graph).len()
            };
            assert_eq!((found(&plain, &other), found(&plain, &plain), found(&other, &other)), (1, 0, 0), "{shape:?}");
        }
    }
}
