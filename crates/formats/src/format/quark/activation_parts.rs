//! Parameters of activations in AMD Quark's layout: beside the layer whose quantizer they are of. Facts: tensors that Quark
//! 0.13 writes and reads.

use kvant_container::Dtype;
use kvant_numeric::DType;
use kvant_numeric::format::{Int, MiniFloat};
use kvant_numeric::kernel::FloatDType;
use kvant_quant::scheme::{
    ActivationScheme, Axis, FloatScale, FloatScheme, Granularity, IntScheme, Rotary, ScaleType, TensorScheme, ZeroPoint,
};
use kvant_weights::parts::{
    ActivationSpec, AttentionSpec, CannotHold, Owner, ParameterPart, ScaleEncoding, Side, plain_encoding,
};

pub(super) fn activation_parts(spec: &ActivationSpec<'_>) -> Result<Vec<ParameterPart>, CannotHold> {
    let prefix = format!("{}.{}", spec.name, spec.side.name());
    match spec.scheme.scheme {
        TensorScheme::Int(scheme) => int_parts(spec, scheme, &prefix),
        TensorScheme::Float(scheme) => float_parts(spec, scheme, &prefix),
        _ => Err(refuse(spec)),
    }
}

fn refuse(spec: &ActivationSpec<'_>) -> CannotHold {
    let reason = format!("Quark's layout has no {}s `{}`", spec.side.name(), spec.scheme);
    CannotHold::new(
        reason,
        "use int8 or e4m3 with one scale (`tensor`) or one a feature (`channel@1`), or ‹format› fake",
    )
}

fn int_parts(spec: &ActivationSpec<'_>, scheme: IntScheme, prefix: &str) -> Result<Vec<ParameterPart>, CannotHold> {
    let dtype =
        zero_point_type(scheme).filter(|_| scheme.zero_point != ZeroPoint::Float).ok_or_else(|| refuse(spec))?;
    let encoding = match (scheme.granularity, scheme.scale) {
        // A scalar scale is kept in f32, regardless of the type it was computed in.
        (Granularity::Tensor, ScaleType::Model) => ScaleEncoding::F32,
        (_, scale) => plain_encoding(scale, spec.source),
    };
    let shape = shape(spec, scheme.granularity)?;
    Ok(vec![
        ParameterPart::scales(format!("{prefix}_scale"), encoding, shape.clone(), spec.site),
        ParameterPart::zero_points(format!("{prefix}_zero_point"), dtype, shape, spec.site),
    ])
}

fn float_parts(spec: &ActivationSpec<'_>, scheme: FloatScheme, prefix: &str) -> Result<Vec<ParameterPart>, CannotHold> {
    match scheme.scale {
        FloatScale::Plain(scale) if matches!(scheme.format, MiniFloat::E4M3 | MiniFloat::E5M2) => {
            let (encoding, shape) = (plain_encoding(scale, spec.source), shape(spec, scheme.granularity)?);
            Ok(vec![ParameterPart::scales(format!("{prefix}_scale"), encoding, shape, spec.site)])
        }
        FloatScale::E4m3WithGlobal | FloatScale::E5m3WithGlobal => {
            let name = format!("{prefix}_scale_2");
            Ok(vec![ParameterPart::scales(name, ScaleEncoding::F32, vec![], spec.site)])
        }
        _ => Err(refuse(spec)),
    }
}

fn shape(spec: &ActivationSpec<'_>, granularity: Granularity) -> Result<Vec<usize>, CannotHold> {
    match granularity {
        Granularity::Tensor => Ok(vec![]),
        Granularity::Channel(Axis::Columns) => Ok(vec![spec.features]),
        _ => Err(refuse(spec)),
    }
}

/// Scales of queries, keys and values are those of the outputs of the layers that make them, after the rotary embedding
/// too; those of the softmax are attention's.
pub(super) fn attention_parts(spec: &AttentionSpec) -> Result<Vec<ParameterPart>, CannotHold> {
    let mut parts: Vec<ParameterPart> = Vec::new();
    let mut owners: Vec<(&Owner, ActivationScheme)> = Vec::new();
    if let (Some([key, value]), Some(scheme)) = (&spec.key_value, spec.scheme.key_value) {
        owners.extend([(key, scheme.scheme), (value, scheme.scheme)]);
    }
    owners.extend(spec.query.as_ref().zip(spec.scheme.query));
    for (owner, scheme) in owners {
        let of_owner = output_parts(owner, scheme, spec.source)?;
        match parts.iter().find(|part| part.name == of_owner[0].name) {
            // One layer may make several.
            Some(part) if part.site == owner.site => {}
            Some(_) => return Err(no_own_layer(spec.scheme.rotary)),
            None => parts.extend(of_owner),
        }
    }
    if let (Some(site), Some(scheme)) = (&spec.probabilities, spec.scheme.probabilities) {
        parts.push(probability_part(spec, site, scheme)?);
    }
    Ok(parts)
}

fn no_own_layer(rotary: Rotary) -> CannotHold {
    let reason = "Quark's layout has no scales of queries, keys and values that one layer makes".to_owned();
    let hint = match rotary {
        Rotary::Before => "use ‹format› compressed-tensors, or one scheme for all of them",
        Rotary::After => "quantize them before the rotary embedding, or use ‹format› compressed-tensors",
    };
    CannotHold::new(reason, hint)
}

fn output_parts(owner: &Owner, scheme: ActivationScheme, source: FloatDType) -> Result<Vec<ParameterPart>, CannotHold> {
    // One scale: heads that share one have no separate point.
    if scheme.scheme.granularity() != Some(Granularity::Tensor) || !scheme.needs_calibration() {
        let reason = format!("Quark's layout has no queries, keys and values `{scheme}`");
        return Err(CannotHold::new(reason, "use fp8 or int8 (`int8:tensor!static`)"));
    }
    let (name, site) = (owner.name.as_str(), &owner.site);
    activation_parts(&ActivationSpec { name, side: Side::Output, scheme, features: 1, source, site })
}

fn probability_part(
    spec: &AttentionSpec,
    site: &kvant_weights::activation_point::ActivationPoint,
    scheme: ActivationScheme,
) -> Result<ParameterPart, CannotHold> {
    let encoding = match scheme.scheme {
        TensorScheme::Float(FloatScheme {
            scale: FloatScale::Plain(scale), granularity: Granularity::Tensor, ..
        }) if scheme.needs_calibration() => plain_encoding(scale, spec.source),
        _ => {
            let reason = format!("Quark's layout has no softmax `{scheme}`");
            return Err(CannotHold::new(reason, "use fp8 (`e4m3:tensor!static`)"));
        }
    };
    Ok(ParameterPart::scales(format!("{}.prob_output_scale", spec.module), encoding, vec![], site))
}

/// The type of stored zero points; `None` for integers that no layout stores them of.
fn zero_point_type(scheme: IntScheme) -> Option<Dtype> {
    match DType::Int(scheme.format) {
        DType::Int(Int::INT8) => Some(Dtype::I8),
        DType::Int(Int::UINT8) => Some(Dtype::U8),
        _ => None,
    }
}
