//! Parameters of activations in the layout of compressed-tensors: vectors of one, beside the layer, those of keys and
//! values in the attention module.

use super::parts::can_describe;
use kvant_container::Dtype;
use kvant_quant::scheme::{ActivationScheme, FloatScale, Granularity, ScaleType, TensorScheme, Timing, ZeroPoint};
use kvant_weights::parts::{
    ActivationSpec, AttentionSpec, CannotHold, Owner, ParameterContent, ParameterPart, plain_encoding,
};

pub(super) fn activation_parts(spec: &ActivationSpec<'_>) -> Result<Vec<ParameterPart>, CannotHold> {
    can_describe(spec.scheme)?;
    let prefix = format!("{}.{}", spec.name, spec.side.name());
    if spec.scheme.timing == Timing::Local {
        let name = format!("{prefix}_global_scale");
        let (site, content) = (spec.site.clone(), ParameterContent::Reciprocals);
        return Ok(vec![ParameterPart { name, dtype: Dtype::F32, shape: vec![1], site, content }]);
    }
    let encoding = plain_encoding(scale_type(spec.scheme), spec.source);
    let mut parts = vec![ParameterPart::scales(format!("{prefix}_scale"), encoding, vec![1], spec.site)];
    if !is_symmetric(spec.scheme) {
        parts.push(ParameterPart::zero_points(format!("{prefix}_zero_point"), Dtype::I8, vec![1], spec.site));
    }
    Ok(parts)
}

fn scale_type(scheme: ActivationScheme) -> ScaleType {
    match scheme.scheme {
        TensorScheme::Int(int) => int.scale,
        TensorScheme::Float(float) => match float.scale {
            FloatScale::Plain(scale) => scale,
            _ => ScaleType::F32,
        },
        _ => ScaleType::F32,
    }
}

fn is_symmetric(scheme: ActivationScheme) -> bool {
    !matches!(scheme.scheme, TensorScheme::Int(int) if int.zero_point != ZeroPoint::Zero)
}

pub(super) fn attention_parts(spec: &AttentionSpec) -> Result<Vec<ParameterPart>, CannotHold> {
    let mut parts = Vec::new();
    if let (Some([key, value]), Some(scheme)) = (&spec.key_value, spec.scheme.key_value) {
        parts.push(scale(spec, "k_scale", key, scheme.scheme)?);
        parts.push(scale(spec, "v_scale", value, scheme.scheme)?);
    }
    // Queries are described by the class of attention modules, which no checkpoint names.
    let others = spec.scheme.query.or(spec.scheme.probabilities);
    others.map_or(Ok(parts), |_| {
        Err(CannotHold::new(
            "compressed-tensors has no words for quantized queries and softmax",
            "use ‹format› quark, or quantize the KV cache without them",
        ))
    })
}

fn scale(
    spec: &AttentionSpec,
    suffix: &str,
    owner: &Owner,
    scheme: ActivationScheme,
) -> Result<ParameterPart, CannotHold> {
    can_describe(scheme)?;
    let one = scheme.scheme.granularity() == Some(Granularity::Tensor) && scheme.timing == Timing::Static;
    if !one || !is_symmetric(scheme) {
        let reason = format!("compressed-tensors has no queries, keys and values `{scheme}`");
        return Err(CannotHold::new(reason, "use fp8 or int8 (`int8:tensor!static`)"));
    }
    let encoding = plain_encoding(scale_type(scheme), spec.source);
    Ok(ParameterPart::scales(format!("{}.{suffix}", spec.module), encoding, vec![1], &owner.site))
}
