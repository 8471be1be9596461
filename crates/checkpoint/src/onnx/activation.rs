//! Activation functions as nodes: the formulas of [`Activation`].

use super::builder::{Attribute, Builder, Value};
use super::error::OnnxExportError;
use kvant_model::family::Activation;

/// `act(x)`.
pub(super) fn plain(builder: &mut Builder, activation: Activation, x: &Value) -> Result<Value, OnnxExportError> {
    Ok(match activation {
        Activation::Silu => times_sigmoid(builder, x, 1.0),
        Activation::QuickGelu => times_sigmoid(builder, x, 1.702),
        Activation::Gelu => builder.node("Gelu", &[x], &[("approximate", Attribute::Text("none"))]),
        Activation::GeluTanh => builder.node("Gelu", &[x], &[("approximate", Attribute::Text("tanh"))]),
        Activation::Relu => builder.relu(x),
        Activation::ReluSquared => {
            let x = builder.relu(x);
            builder.binary("Mul", &x, &x)
        }
        Activation::ClampedSwiglu | Activation::LimitedSilu | Activation::Xielu | Activation::Unknown => {
            return Err(OnnxExportError::unsupported(format!("activation {activation:?} without a gate")));
        }
    })
}

/// `act(gate) * up`.
pub(super) fn gated(
    builder: &mut Builder,
    activation: Activation,
    gate: &Value,
    up: &Value,
) -> Result<Value, OnnxExportError> {
    if activation == Activation::ClampedSwiglu {
        return Ok(clamped_swiglu(builder, gate, up));
    }
    let gate = plain(builder, activation, gate)?;
    Ok(builder.binary("Mul", &gate, up))
}

/// `x sigmoid(factor x)`.
fn times_sigmoid(builder: &mut Builder, x: &Value, factor: f32) -> Value {
    let inner = builder.scaled(x, factor);
    let gate = builder.unary("Sigmoid", &inner);
    builder.binary("Mul", x, &gate)
}

/// gpt-oss: see [`Activation::ClampedSwiglu`].
fn clamped_swiglu(builder: &mut Builder, gate: &Value, up: &Value) -> Value {
    const LIMIT: f32 = 7.0;
    let (least, most, one) = (builder.number(-LIMIT), builder.number(LIMIT), builder.number(1.0));
    let gate = builder.binary("Min", gate, &most);
    let up = builder.node("Clip", &[up, &least, &most], &[]);
    let up = builder.binary("Add", &up, &one);
    let gate = times_sigmoid(builder, &gate, 1.702);
    builder.binary("Mul", &up, &gate)
}
