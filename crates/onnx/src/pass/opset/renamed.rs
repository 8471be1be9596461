//! Operators that got another name, attributes whose defaults or values changed, and outputs that went.

use kvant_container::onnx::{DataType, NodeProto};

use super::UpgradeStep;
use crate::constant::Value;
use crate::graph::{int_attribute, set_attribute, string_attribute, take_attribute};

type Changed = Result<Vec<NodeProto>, &'static str>;

/// `spatial` went with its default, 1.
pub(super) fn without_spatial(mut node: NodeProto, _: &mut UpgradeStep<'_>) -> Changed {
    if int_attribute(&node, "spatial") == Some(0) {
        return Err("BatchNormalization for each element went with opset 9");
    }
    take_attribute(&mut node, "spatial");
    Ok(vec![node])
}

/// The statistics are outputs of training mode only, and other ones.
pub(super) fn with_one_output(mut node: NodeProto, _: &mut UpgradeStep<'_>) -> Changed {
    if node.output.iter().skip(1).any(|name| !name.is_empty()) {
        return Err("BatchNormalization of training mode changed in opset 14");
    }
    node.output.truncate(1);
    Ok(vec![node])
}

pub(super) fn upsample(node: NodeProto, _: &mut UpgradeStep<'_>) -> Changed {
    Ok(vec![NodeProto { op_type: Some("Resize".to_owned()), ..node }])
}

pub(super) fn scatter(node: NodeProto, _: &mut UpgradeStep<'_>) -> Changed {
    Ok(vec![NodeProto { op_type: Some("ScatterElements".to_owned()), ..node }])
}

/// Resize of opset 10 knew one way to place coordinates; its nearest element was the one before where it made larger, the one
/// behind where it made smaller.
pub(super) fn resize(mut node: NodeProto, step: &mut UpgradeStep<'_>) -> Changed {
    let [_, scales] = &node.input[..] else { return Err("Resize without scales") };
    let factors = step.value(scales).and_then(Value::as_floats);
    let linear = string_attribute(&node, "mode") == Some("linear");
    if !linear {
        let factors = factors.ok_or("how Resize rounds depends on its scales, which are not constant")?;
        let (smaller, larger) = (factors.iter().any(|&f| f < 1.0), factors.iter().any(|&f| f > 1.0));
        if smaller && larger {
            return Err("Resize makes one axis smaller and another larger, and rounds each in its own way");
        }
        set_attribute(&mut node, "nearest_mode", if smaller { "ceil" } else { "floor" });
    }
    set_attribute(&mut node, "coordinate_transformation_mode", "asymmetric");
    let none = Value::new(DataType::FLOAT, vec![0], Vec::new()).ok_or("no value of no elements")?;
    let region = step.constant(&node, "roi", none);
    node.input.insert(1, region.output[0].clone());
    Ok(vec![region, node])
}

pub(super) fn resize_without_tf(node: NodeProto, _: &mut UpgradeStep<'_>) -> Changed {
    match string_attribute(&node, "coordinate_transformation_mode") {
        Some("tf_half_pixel_for_nn") => Err("the mode tf_half_pixel_for_nn of Resize went with opset 13"),
        _ => Ok(vec![node]),
    }
}

/// The default became half a pixel.
pub(super) fn roi_align(mut node: NodeProto, _: &mut UpgradeStep<'_>) -> Changed {
    set_attribute(&mut node, "coordinate_transformation_mode", "output_half_pixel");
    Ok(vec![node])
}

/// Without lengths the number of parts must be said.
pub(super) fn split_with_count(mut node: NodeProto, _: &mut UpgradeStep<'_>) -> Changed {
    if crate::graph::positional_input(&node, 1).is_none() {
        let parts = node.output.len() as i64;
        set_attribute(&mut node, "num_outputs", parts);
    }
    Ok(vec![node])
}

pub(super) fn grid_sample(mut node: NodeProto, _: &mut UpgradeStep<'_>) -> Changed {
    let mode = match string_attribute(&node, "mode") {
        Some("bicubic") => "cubic",
        Some("nearest") => "nearest",
        _ => "linear",
    };
    set_attribute(&mut node, "mode", mode);
    Ok(vec![node])
}
