//! Parameters of activations in fp8's native layout: f32 scalars beside the layer, those of keys and values in the attention
//! module.

use super::{ActivationSpec, AttentionSpec, Owner, ParameterPart, Side};
use crate::export::{CannotHold, ScaleEncoding};
use kvant_numeric::format::MiniFloat;
use kvant_quant::scheme::{ActivationScheme, FloatScale, FloatScheme, Granularity, TensorScheme, Timing};

const HINT: &str = "use fp8 (`e4m3:tensor!static`), or ‹format› quark or compressed-tensors";

pub(super) fn activation_parts(spec: &ActivationSpec<'_>) -> Result<Vec<ParameterPart>, CannotHold> {
    if spec.side == Side::Output || !is_static_fp8(spec.scheme) {
        let reason = format!("fp8's layout has no {}s `{}`", spec.side.name(), spec.scheme);
        return Err(CannotHold::new(reason, HINT));
    }
    Ok(vec![scalar(format!("{}.input_scale", spec.name), spec.site)])
}

pub(super) fn attention_parts(spec: &AttentionSpec) -> Result<Vec<ParameterPart>, CannotHold> {
    if spec.scheme.query.is_some() || spec.scheme.probabilities.is_some() {
        return Err(CannotHold::new("fp8's layout has no quantized queries and softmax", "use ‹format› quark"));
    }
    let (Some([key, value]), Some(cache)) = (&spec.key_value, spec.scheme.key_value) else { return Ok(Vec::new()) };
    if !is_static_fp8(cache.scheme) {
        return Err(CannotHold::new(format!("fp8's layout has no keys and values `{}`", cache.scheme), HINT));
    }
    let scale = |suffix: &str, owner: &Owner| scalar(format!("{}.{suffix}", spec.module), &owner.site);
    Ok(vec![scale("k_scale", key), scale("v_scale", value)])
}

fn scalar(name: String, site: &crate::activation_point::Site) -> ParameterPart {
    ParameterPart::scales(name, ScaleEncoding::F32, vec![], site)
}

fn is_static_fp8(scheme: ActivationScheme) -> bool {
    let fits = |float: FloatScheme| {
        let plain = matches!(float.scale, FloatScale::Plain(_));
        plain && float.format == MiniFloat::E4M3 && float.granularity == Granularity::Tensor
    };
    scheme.timing == Timing::Static && matches!(scheme.scheme, TensorScheme::Float(float) if fits(float))
}
