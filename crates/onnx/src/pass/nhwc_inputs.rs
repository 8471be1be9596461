//! Image inputs change from NCHW to NHWC, as cameras and many accelerators hand pictures over: a Transpose stands behind each.
//! Data for calibration must then be NHWC too.

use kvant_container::onnx::{DataType, GraphProto, ModelProto, NodeProto, TypeValue, ValueInfoProto};

use super::{Context, PassError};
use crate::data::type_of;
use crate::graph::{Edit, Index, Names, ints_attribute, is, node, set_attribute};

/// From NHWC to NCHW.
pub(crate) const TO_CHANNELS_FIRST: [i64; 4] = [0, 3, 1, 2];

pub(super) fn run(model: &mut ModelProto, _: &Context<'_>) -> Result<usize, PassError> {
    let Some(graph) = model.graph.as_mut() else { return Ok(0) };
    let (index, mut names) = (Index::new(graph), Names::of(graph));
    let mut edit = Edit::default();
    let mut transposes = Vec::new();
    let images: Vec<usize> = (0..graph.input.len()).filter(|&i| is_image(graph, &index, i)).collect();
    for position in images {
        let input = &mut graph.input[position];
        let inside = names.fresh(&format!("{}_nchw", input.name()));
        transposes.push(transpose(input.name(), &inside));
        edit.rename(input.name(), &inside);
        turn(input);
    }
    edit.apply(graph);
    let count = transposes.len();
    graph.node.splice(0..0, transposes);
    Ok(count)
}

/// Returns whether an input is of four axes of floats, has no default, and is not turned already.
fn is_image(graph: &GraphProto, index: &Index, position: usize) -> bool {
    let input = &graph.input[position];
    let (data_type, axes) = type_of(input);
    let turned = |&at: &usize| {
        let reader = &graph.node[at];
        is(reader, "Transpose") && ints_attribute(reader, "perm") == Some(&TO_CHANNELS_FIRST[..])
    };
    let readers = index.consumers(input.name());
    let float = matches!(data_type, DataType::FLOAT | DataType::FLOAT16 | DataType::BFLOAT16 | DataType::DOUBLE);
    let free = index.initializer(input.name()).is_none() && !index.is_output(input.name());
    float && free && axes.is_some_and(|axes| axes.len() == 4) && !readers.is_empty() && !readers.iter().all(turned)
}

fn transpose(input: &str, output: &str) -> NodeProto {
    let mut made = node("Transpose", &format!("{output}_Transpose"), &[input], &[output]);
    set_attribute(&mut made, "perm", &TO_CHANNELS_FIRST[..]);
    made
}

/// Moves the second axis of a declared shape behind the others.
fn turn(input: &mut ValueInfoProto) {
    let Some(TypeValue::TensorType(tensor)) = input.type_.as_mut().and_then(|t| t.value.as_mut()) else { return };
    if let Some(shape) = tensor.shape.as_mut() {
        shape.dim[1..].rotate_left(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_models::{model, typed};

    #[test]
    fn only_image_inputs_become_nhwc() {
        let nodes = vec![node("Relu", "r", &["x"], &["y"]), node("Relu", "s", &["v"], &["z"])];
        let mut model = model(17, nodes, vec![], &[], &["y", "z"]);
        model.graph.as_mut().unwrap().input = vec![typed("x", &[1, 3, 8, 6]), typed("v", &[1, 4])];
        assert_eq!(run(&mut model, &Context::default()).unwrap(), 1);
        assert_eq!(model.graph.input, [typed("x", &[1, 8, 6, 3]), typed("v", &[1, 4])]);
        assert_eq!(model.graph.node[0], transpose("x", "x_nchw"));
        assert_eq!(model.graph.node[1].input, ["x_nchw"]);
        assert_eq!(run(&mut model, &Context::default()).unwrap(), 0);
    }
}
