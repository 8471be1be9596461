//! Raising the version of the standard operators: what attributes became inputs, what defaults changed, what was renamed.
//!
//! One table of changes. Operators that only learned new types or optional parameters need no row.

mod attributes;
mod renamed;
mod softmax;

use std::collections::HashMap;

use kvant_container::onnx::{DataType, GraphProto, ModelProto, NodeProto, OperatorSetIdProto};

use super::PassError;
use crate::constant::Value;
use crate::graph::{self, Names, STANDARD_DOMAIN, is_standard, node};
use crate::shape::{Types, infer};

/// What a change needs besides the node.
struct UpgradeStep<'a> {
    types: &'a Types,
    names: &'a mut Names,
    added: HashMap<String, Value>,
}

impl UpgradeStep<'_> {
    /// A Constant node of a new tensor.
    fn constant(&mut self, owner: &NodeProto, what: &str, value: Value) -> NodeProto {
        let base = owner.output.first().map_or("", String::as_str);
        let name = self.names.fresh(&format!("{base}_{what}"));
        self.added.insert(name.clone(), value.clone());
        let mut constant = node("Constant", &name, &[], &[&name]);
        constant.attribute.push(kvant_container::onnx::AttributeProto {
            name: Some("value".to_owned()),
            type_: Some(kvant_container::onnx::AttributeType::TENSOR.into()),
            t: kvant_container::onnx::MessageField::some(value.into_tensor(&name)),
            ..Default::default()
        });
        constant
    }

    /// The contents of a small constant.
    fn value(&self, tensor: &str) -> Option<&Value> {
        self.added.get(tensor).or_else(|| self.types.constant(tensor))
    }

    /// The element type of a tensor, 32-bit floats where nothing is known.
    fn float_type(&self, tensor: &str) -> DataType {
        self.types.data_type(tensor).unwrap_or(DataType::FLOAT)
    }
}

/// The nodes in place of one, or why there are none.
type Change = fn(NodeProto, &mut UpgradeStep<'_>) -> Result<Vec<NodeProto>, &'static str>;

/// The version that changed an operator, the operator, and what to do.
const CHANGES: &[(i64, &str, Change)] = &[
    (9, "BatchNormalization", renamed::without_spatial),
    (9, "Scan", |_, _| Err("Scan had a batch dimension before opset 9")),
    (9, "Upsample", attributes::upsample),
    (10, "Slice", attributes::slice),
    (10, "TopK", attributes::top_k),
    (10, "Upsample", renamed::upsample),
    (11, "Clip", attributes::clip),
    (11, "Pad", attributes::pad),
    (11, "Resize", renamed::resize),
    (11, "Scatter", renamed::scatter),
    (12, "Dropout", attributes::dropout),
    (13, "Hardmax", softmax::softmax),
    (13, "LogSoftmax", softmax::softmax),
    (13, "ReduceSum", attributes::axes),
    (13, "Resize", renamed::resize_without_tf),
    (13, "Softmax", softmax::softmax),
    (13, "Split", attributes::split),
    (13, "Squeeze", attributes::axes),
    (13, "Unsqueeze", attributes::axes),
    (14, "BatchNormalization", renamed::with_one_output),
    (16, "RoiAlign", renamed::roi_align),
    (18, "ReduceL1", attributes::axes),
    (18, "ReduceL2", attributes::axes),
    (18, "ReduceLogSum", attributes::axes),
    (18, "ReduceLogSumExp", attributes::axes),
    (18, "ReduceMax", attributes::axes),
    (18, "ReduceMean", attributes::axes),
    (18, "ReduceMin", attributes::axes),
    (18, "ReduceProd", attributes::axes),
    (18, "ReduceSumSquare", attributes::axes),
    (18, "Split", renamed::split_with_count),
    (20, "DFT", |_, _| Err("the axis of DFT became an input in opset 20")),
    (20, "GridSample", renamed::grid_sample),
    (21, "GroupNormalization", |_, _| Err("scale and bias of GroupNormalization are for each channel since opset 21")),
];

/// File versions that opsets came with.
const IR_VERSIONS: &[(i64, i64)] =
    &[(25, 12), (23, 11), (21, 10), (19, 9), (15, 8), (12, 7), (11, 6), (10, 5), (9, 4), (1, 3)];

/// Converts a model to a newer version of the standard operators. A model that has it already, or a newer one, stays.
///
/// Errors: an operator whose meaning changed in a way that is not expressed in the newer version, and models with functions
/// of their own, which must be inlined before. The model is as it was then.
pub fn upgrade_opset(model: &mut ModelProto, to: i64) -> Result<(), PassError> {
    let from = graph::opset(model, STANDARD_DOMAIN).unwrap_or(1);
    if from >= to {
        return Ok(());
    }
    let refuse = |operator: &str, node: &str, reason| PassError::Opset {
        operator: operator.to_owned(),
        node: node.to_owned(),
        to,
        reason,
    };
    if let Some(function) = model.functions.first() {
        return Err(refuse(function.name(), "", "functions of the model's own are not converted"));
    }
    let types = infer(model);
    let mut names = Names::of(&model.graph);
    let mut step = UpgradeStep { types: &types, names: &mut names, added: HashMap::new() };
    // A copy, so that a model that cannot be converted stays whole. Contents of tensors are shared, not copied.
    let mut graph = model.graph.clone();
    for version in from + 1..=to {
        if let Some(graph) = graph.as_mut() {
            convert(graph, version, &mut step).map_err(|(node, reason)| refuse(node.op_type(), node.name(), reason))?;
        }
    }
    model.graph = graph;
    set_version(model, to);
    Ok(())
}

/// A node that cannot be converted, and why.
type Refused = (Box<NodeProto>, &'static str);

fn convert(graph: &mut GraphProto, version: i64, step: &mut UpgradeStep<'_>) -> Result<(), Refused> {
    let mut nodes = Vec::with_capacity(graph.node.len());
    for mut node in std::mem::take(&mut graph.node) {
        for inner in node.attribute.iter_mut().flat_map(|a| a.g.as_mut().into_iter().chain(&mut a.graphs)) {
            convert(inner, version, step)?;
        }
        let changed = |&&(at, operator, _): &&(i64, &str, Change)| at == version && operator == node.op_type();
        match CHANGES.iter().find(changed).filter(|_| is_standard(&node)) {
            Some((_, _, change)) => {
                let original = node.clone();
                nodes.extend(change(node, step).map_err(|reason| (Box::new(original), reason))?);
            }
            None => nodes.push(node),
        }
    }
    graph.node = nodes;
    Ok(())
}

fn set_version(model: &mut ModelProto, to: i64) {
    model.opset_import.retain(|set| !matches!(set.domain(), "" | "ai.onnx"));
    let set = OperatorSetIdProto { domain: Some(String::new()), version: Some(to), ..OperatorSetIdProto::default() };
    model.opset_import.insert(0, set);
    let needed = IR_VERSIONS.iter().find(|(opset, _)| to >= *opset).map_or(3, |(_, ir)| *ir);
    model.ir_version = Some(model.ir_version().max(needed));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{check, set_attribute};
    use crate::test_models::{model, typed};
    use kvant_container::Diagnostic;

    fn upgraded(node: NodeProto, from: i64, to: i64) -> Result<ModelProto, PassError> {
        let outputs = node.output.clone();
        let outputs: Vec<&str> = outputs.iter().map(String::as_str).collect();
        let mut made = model(from, vec![node], vec![], &[], &outputs);
        made.graph.as_mut().unwrap().input = vec![typed("x", &[2, 3, 4])];
        upgrade_opset(&mut made, to)?;
        assert_eq!(check(&made), Ok(()));
        Ok(made)
    }

    #[test]
    fn attributes_become_inputs() {
        let mut squeeze = node("Squeeze", "s", &["x"], &["y"]);
        set_attribute(&mut squeeze, "axes", &[0i64][..]);
        let model = upgraded(squeeze, 11, 21).unwrap();
        assert_eq!((graph::opset(&model, ""), model.ir_version()), (Some(21), 10));
        let [constant, squeeze] = &model.graph.node[..] else { panic!("{:?}", model.graph.node) };
        assert_eq!(squeeze.input, ["x".to_owned(), constant.output[0].clone()]);
        assert!(squeeze.attribute.is_empty());
    }

    #[test]
    fn clip_limits_keep_their_positions() {
        let mut clip = node("Clip", "c", &["x"], &["y"]);
        set_attribute(&mut clip, "max", 6.0f32);
        let model = upgraded(clip, 7, 13).unwrap();
        let clip = model.graph.node.last().unwrap();
        assert_eq!((clip.input.len(), &clip.input[1][..]), (3, ""));
    }

    #[test]
    fn old_softmax_over_several_axes_is_flattened() {
        let inner = upgraded(node("Softmax", "s", &["x"], &["y"]), 12, 13).unwrap();
        let operators: Vec<&str> = inner.graph.node.iter().map(|n| n.op_type()).collect();
        assert_eq!(operators, ["Shape", "Flatten", "Softmax", "Reshape"]);
        let mut last = node("Softmax", "s", &["x"], &["y"]);
        set_attribute(&mut last, "axis", 2i64);
        assert_eq!(upgraded(last, 12, 13).unwrap().graph.node.len(), 1);
    }

    #[test]
    fn operators_without_an_upgrade_are_refused_by_name() {
        let error = upgraded(node("GroupNormalization", "g", &["x", "x", "x"], &["y"]), 18, 21).unwrap_err();
        assert!(
            error.to_string().starts_with("node `g` (GroupNormalization) cannot be converted to opset 21"),
            "{error}"
        );
        assert_eq!(error.kind(), kvant_container::ErrorKind::Unsupported);
    }

    #[test]
    fn newer_opset_is_kept() {
        let newer = upgraded(node("Relu", "r", &["x"], &["y"]), 18, 13).unwrap();
        assert_eq!(graph::opset(&newer, ""), Some(18));
    }
}
