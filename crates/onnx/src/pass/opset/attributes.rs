//! Attributes that became inputs.

use kvant_container::onnx::{AttributeProto, DataType, NodeProto};

use super::UpgradeStep;
use crate::constant::{Numbers, Value};
use crate::graph::take_attribute;

type Changed = Result<Vec<NodeProto>, &'static str>;

/// The node with constants as inputs at positions, behind the constants.
fn with(mut node: NodeProto, inputs: Vec<(usize, &str, Option<Value>)>, step: &mut UpgradeStep<'_>) -> Changed {
    let mut nodes = Vec::with_capacity(inputs.len() + 1);
    for (position, what, value) in inputs {
        let constant = step.constant(&node, what, value.ok_or("an attribute is too large")?);
        if node.input.len() <= position {
            node.input.resize(position + 1, String::new());
        }
        node.input[position].clone_from(&constant.output[0]);
        nodes.push(constant);
    }
    nodes.push(node);
    Ok(nodes)
}

fn integers(values: &[i64]) -> Option<Value> {
    Value::integers(&[values.len()], values)
}

fn number(value: f32, data_type: DataType) -> Option<Value> {
    Numbers::Floats(vec![value.into()]).cast(data_type)?.into_value(data_type, &[])
}

/// The integers of an attribute as an input.
fn list(mut node: NodeProto, name: &'static str, position: usize, step: &mut UpgradeStep<'_>) -> Changed {
    match take_attribute(&mut node, name) {
        Some(AttributeProto { ints, .. }) => with(node, vec![(position, name, integers(&ints))], step),
        None => Ok(vec![node]),
    }
}

pub(super) fn axes(node: NodeProto, step: &mut UpgradeStep<'_>) -> Changed {
    list(node, "axes", 1, step)
}

pub(super) fn split(node: NodeProto, step: &mut UpgradeStep<'_>) -> Changed {
    list(node, "split", 1, step)
}

pub(super) fn slice(mut node: NodeProto, step: &mut UpgradeStep<'_>) -> Changed {
    let names = [(1, "starts"), (2, "ends"), (3, "axes")];
    let taken = names.map(|(position, name)| (position, name, take_attribute(&mut node, name)));
    let given = taken.into_iter().filter_map(|(position, name, a)| Some((position, name, integers(&a?.ints))));
    let inputs = given.collect();
    with(node, inputs, step)
}

pub(super) fn top_k(mut node: NodeProto, step: &mut UpgradeStep<'_>) -> Changed {
    let k = take_attribute(&mut node, "k").and_then(|k| k.i).ok_or("TopK without k")?;
    with(node, vec![(1, "k", integers(&[k]))], step)
}

pub(super) fn upsample(mut node: NodeProto, step: &mut UpgradeStep<'_>) -> Changed {
    let scales = take_attribute(&mut node, "scales").ok_or("Upsample without scales")?.floats;
    let numbers = Numbers::Floats(scales.iter().map(|&s| s.into()).collect());
    let value = numbers.into_value(DataType::FLOAT, &[scales.len()]);
    with(node, vec![(1, "scales", value)], step)
}

/// The limits that are left out stay open.
pub(super) fn clip(mut node: NodeProto, step: &mut UpgradeStep<'_>) -> Changed {
    let data_type = step.float_type(&node.input[0]);
    let taken = [(1, "min"), (2, "max")].map(|(position, name)| (position, name, take_attribute(&mut node, name)));
    let given = taken.into_iter().filter_map(|(position, name, a)| Some((position, name, number(a?.f?, data_type))));
    let inputs = given.collect();
    with(node, inputs, step)
}

pub(super) fn pad(mut node: NodeProto, step: &mut UpgradeStep<'_>) -> Changed {
    let data_type = step.float_type(&node.input[0]);
    let pads = take_attribute(&mut node, "pads").ok_or("Pad without pads")?.ints;
    let value = take_attribute(&mut node, "value").and_then(|value| value.f);
    let mut inputs = vec![(1, "pads", integers(&pads))];
    inputs.extend(value.map(|value| (2, "value", number(value, data_type))));
    with(node, inputs, step)
}

pub(super) fn dropout(mut node: NodeProto, step: &mut UpgradeStep<'_>) -> Changed {
    match take_attribute(&mut node, "ratio").and_then(|ratio| ratio.f) {
        Some(ratio) => with(node, vec![(1, "ratio", number(ratio, DataType::FLOAT))], step),
        None => Ok(vec![node]),
    }
}
