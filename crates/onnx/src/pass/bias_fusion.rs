//! Add of a constant for each channel becomes the bias of the Conv, ConvTranspose or Gemm before it; MatMul of two dimensions
//! and Add become Gemm. The new bias is named `<sum>_bias`, as onnxslim names it.

use kvant_container::onnx::{DataType, GraphProto, ModelProto, NodeProto};

use super::weights::Floats;
use super::{Context, PassError};
use crate::graph::{Edit, Index, float_attribute, int_attribute, is, node, positional_input};
use crate::masks::may_mask;
use crate::shape::{Types, infer};

pub(super) fn run(model: &mut ModelProto, context: &Context<'_>) -> Result<usize, PassError> {
    let types = infer(model);
    let Some(graph) = model.graph.as_mut() else { return Ok(0) };
    let index = Index::new(graph);
    let mut edit = Edit::default();
    for (position, add) in graph.node.iter().enumerate().filter(|(_, node)| is(node, "Add")) {
        let Some((producer, mut fused, bias)) = found(add, graph, &index, &types) else { continue };
        if edit.leaves(&[position, producer]) {
            let name = edit.fresh(graph, &format!("{}_bias", add.output[0]));
            bias.into_tensor(&name, context)?.into_iter().for_each(|tensor| edit.add(tensor));
            fused.input.truncate(2);
            fused.input.push(name);
            fused.output = vec![add.output[0].clone()];
            edit.remove(producer);
            edit.replace(position, vec![fused]);
        }
    }
    Ok(edit.apply(graph))
}

/// The node before an Add, the node in place of both but for its bias, and that bias.
fn found(add: &NodeProto, graph: &GraphProto, index: &Index, types: &Types) -> Option<(usize, NodeProto, Floats)> {
    let [left, right] = &add.input[..] else { return None };
    let is_constant = |name: &str| index.constant(graph, name).is_some();
    let (product, constant) = if is_constant(right) { (left, right) } else { (right, left) };
    let position = index.producer(product).filter(|_| index.only_consumer(product).is_some())?;
    let producer = &graph.node[position];
    let (channels, rank, channel_axis) = channels(producer, graph, index, types)?;
    let added = for_channels(Floats::of(index, graph, constant)?, channels, rank, channel_axis)?;
    if may_mask(added.values.iter().copied()) {
        return None;
    }
    let bias = match positional_input(producer, 2) {
        None => added,
        Some(name) => {
            let old = for_channels(Floats::of(index, graph, name)?, channels, 1, 0)?;
            (old.data_type == added.data_type).then(|| old.with(&added, |a, b| a + b))?
        }
    };
    let fused = match producer.op_type() {
        "MatMul" => node("Gemm", producer.name(), &[&producer.input[0], &producer.input[1]], &[]),
        _ => producer.clone(),
    };
    Some((position, fused, bias))
}

/// The number of channels that a node gives, its output's rank and the channels' axis.
fn channels(node: &NodeProto, graph: &GraphProto, index: &Index, types: &Types) -> Option<(usize, usize, usize)> {
    let weight = index.constant(graph, positional_input(node, 1)?)?;
    let dim = |axis: usize| weight.dims.get(axis).and_then(|&d| usize::try_from(d).ok());
    let group = usize::try_from(int_attribute(node, "group").unwrap_or(1)).ok()?;
    let float = kvant_container::onnx::data_type(weight) == DataType::FLOAT;
    match node.op_type() {
        "Conv" if is(node, "Conv") => Some((dim(0)?, weight.dims.len(), 1)),
        "ConvTranspose" if is(node, "ConvTranspose") => Some((dim(1)?.checked_mul(group)?, weight.dims.len(), 1)),
        "Gemm" if is(node, "Gemm") && float_attribute(node, "beta").unwrap_or(1.0) == 1.0 => {
            Some((dim(usize::from(int_attribute(node, "transB").unwrap_or(0) == 0))?, 2, 1))
        }
        "MatMul" if is(node, "MatMul") && float && weight.dims.len() == 2 && types.rank(&node.input[0]) == Some(2) => {
            Some((dim(1)?, 2, 1))
        }
        _ => None,
    }
}

/// A constant as one number for each channel, if that is how it broadcasts.
pub(super) fn for_channels(constant: Floats, channels: usize, rank: usize, axis: usize) -> Option<Floats> {
    let own = constant.shape.len();
    let along = |(i, &d): (usize, &usize)| d == 1 || (i + rank == axis + own && d == channels);
    if own > rank.max(constant.values.len()) || own > rank || !constant.shape.iter().enumerate().all(along) {
        return None;
    }
    match constant.values.len() {
        n if n == channels => Some(Floats { shape: vec![channels], ..constant }),
        1 => Some(Floats::filled(constant.data_type, channels, constant.values[0])),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_models::{floats, model, typed};

    fn bias(shape: &[usize], with_bias: bool) -> Option<Vec<f64>> {
        let conv = node("Conv", "c", if with_bias { &["x", "w", "b"] } else { &["x", "w"] }, &["h"]);
        let nodes = vec![conv, node("Add", "a", &["h", "k"], &["y"])];
        let count = shape.iter().product();
        let constants = vec![
            floats("w", &[2, 1, 1, 1], &[1.0, 2.0]),
            floats("b", &[2], &[10.0, 20.0]),
            floats("k", shape, &[1.0, 2.0, 3.0, 4.0][..count]),
        ];
        let mut model = model(17, nodes, constants, &["x"], &["y"]);
        let count = run(&mut model, &Context::default()).unwrap();
        (count == 1).then(|| Floats::of(&Index::new(&model.graph), &model.graph, "y_bias").unwrap().values)
    }

    #[test]
    fn only_one_value_per_channel_is_a_bias() {
        assert_eq!(bias(&[1, 2, 1, 1], false), Some(vec![1.0, 2.0]));
        assert_eq!(bias(&[2, 1, 1], true), Some(vec![11.0, 22.0]));
        assert_eq!(bias(&[1], false), Some(vec![1.0, 1.0]));
        assert_eq!(bias(&[2], false), None);
        assert_eq!(bias(&[2, 1, 1, 1], false), None);
        assert_eq!(bias(&[1, 1, 2, 1, 1], false), None);
    }

    #[test]
    fn mask_is_not_fused_as_a_bias() {
        for far in [f32::NEG_INFINITY, f32::MIN, -1e4] {
            let nodes = vec![node("MatMul", "m", &["x", "w"], &["h"]), node("Add", "a", &["h", "k"], &["y"])];
            let constants = vec![floats("w", &[1, 2], &[1.0, 2.0]), floats("k", &[2], &[0.0, far])];
            let mut masked = model(17, nodes, constants, &[], &["y"]);
            masked.graph.as_mut().unwrap().input = vec![typed("x", &[5, 1])];
            assert_eq!(run(&mut masked, &Context::default()).unwrap(), 0, "{far}");
        }
    }

    #[test]
    fn two_dimensional_product_becomes_gemm() {
        let nodes = vec![node("MatMul", "m", &["x", "w"], &["h"]), node("Add", "a", &["k", "h"], &["y"])];
        let constants = vec![floats("w", &[1, 2], &[1.0, 2.0]), floats("k", &[2], &[3.0, 4.0])];
        let mut flat = model(17, nodes, constants, &[], &["y"]);
        let mut deep = flat.clone();
        flat.graph.as_mut().unwrap().input = vec![typed("x", &[5, 1])];
        deep.graph.as_mut().unwrap().input = vec![typed("x", &[3, 5, 1])];
        assert_eq!(run(&mut flat, &Context::default()).unwrap(), 1);
        assert_eq!(flat.graph.node, [node("Gemm", "m", &["x", "w", "y_bias"], &["y"])]);
        assert_eq!(run(&mut deep, &Context::default()).unwrap(), 0);
    }
}
