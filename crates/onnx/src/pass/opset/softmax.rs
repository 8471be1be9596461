//! Softmax, LogSoftmax and Hardmax before opset 13 took all axes from the given one on together, by default from the second.

use kvant_container::onnx::NodeProto;

use super::UpgradeStep;
use crate::graph::{int_attribute, node, set_attribute};

pub(super) fn softmax(mut softmax: NodeProto, step: &mut UpgradeStep<'_>) -> Result<Vec<NodeProto>, &'static str> {
    let axis = int_attribute(&softmax, "axis").unwrap_or(1);
    let rank = step.types.rank(&softmax.input[0]).and_then(|rank| i64::try_from(rank).ok());
    if axis == -1 || rank.is_some_and(|rank| axis == rank - 1) {
        set_attribute(&mut softmax, "axis", -1i64);
        return Ok(vec![softmax]);
    }
    let (input, output) = (softmax.input[0].clone(), softmax.output[0].clone());
    let [shape, flat, made] = ["shape", "flat", "softmax"].map(|what| step.names.fresh(&format!("{output}_{what}")));
    let mut flatten = node("Flatten", &flat, &[&input], &[&flat]);
    set_attribute(&mut flatten, "axis", axis);
    set_attribute(&mut softmax, "axis", -1i64);
    softmax.input[0].clone_from(&flat);
    softmax.output[0].clone_from(&made);
    let back = step.names.fresh(&format!("{output}_reshape"));
    Ok(vec![
        node("Shape", &shape, &[&input], &[&shape]),
        flatten,
        softmax,
        node("Reshape", &back, &[&made, &shape], &[&output]),
    ])
}
