//! The quantization of layers as checkpoints describe it: schemes taken apart, parameters of activations, and the configuration of a model.

use super::matrix::Matrix;
use super::packed::{PackedTensor, find};
use crate::error::{Error, ErrorKind};
use kvant_checkpoint::recipe::NamedScheme;
use kvant_formats::algorithm::{Algorithm, Algorithms};
use kvant_formats::format::ModelDescription;
use kvant_formats::format::quark::AttentionModules;
use kvant_numeric::pack::NibbleOrder;
use kvant_quant::activation::StaticParameters;
use kvant_quant::rounding::Needs;
use kvant_quant::scheme::{
    ActivationScheme, AttentionScheme, Axis, Granularity, IntScheme, LayerScheme, TensorScheme, Timing, ZeroPoint,
};
use kvant_weights::activation_point::ActivationPoint;
use kvant_weights::parts::{ActivationSpec, CannotHold, Side};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// The scheme of a layer by a name or spelling.
///
/// # Errors
/// *Usage* for neither.
pub fn layer_scheme(text: &str) -> Result<LayerScheme, Error> {
    Ok(NamedScheme::find("‹scheme›", text)?.scheme)
}

/// The parts of a layer's scheme, for code that computes with it elsewhere: an object with `weight`, `input` and `output`, each null or an
/// object with `spelling`, `kind` (`int`, `float` or `other`), `granularity` (`tensor`, `channel`, `group` or `block`; null for casts),
/// `axis` and `size` of it, for activations `timing`, of integers and floats `max`, `scale` and `observer` as they are spelled (`model`,
/// `f32`, `e8m0`, `e4m3:f32`; `minmax`), and of integers `bits`, `min`, `zero_point` (`none`, `integer` or `float`) and `middle` (the
/// code of zero where there is no zero point).
pub fn scheme_json(scheme: LayerScheme) -> Value {
    let activation = |given: Option<ActivationScheme>| {
        given.map(|given| {
            let mut parts = tensor_json(given.scheme);
            parts["timing"] = match given.timing {
                Timing::Static => "static",
                Timing::Dynamic => "dynamic",
                Timing::Local => "local",
            }
            .into();
            parts
        })
    };
    json!({
        "spelling": scheme.to_string(),
        "weight": tensor_json(scheme.weight),
        "input": activation(scheme.input),
        "output": activation(scheme.output),
    })
}

fn tensor_json(scheme: TensorScheme) -> Value {
    let axis = |axis: Axis| axis.index();
    let (granularity, of_axis, size) = match scheme.granularity() {
        None => (None, None, None),
        Some(Granularity::Tensor) => (Some("tensor"), None, None),
        Some(Granularity::Channel(along)) => (Some("channel"), Some(axis(along)), None),
        Some(Granularity::Group { axis: along, size }) => (Some("group"), Some(axis(along)), size),
        Some(Granularity::Block { .. }) => (Some("block"), None, None),
    };
    let mut parts = json!({
        "spelling": scheme.to_string(),
        "kind": "other",
        "dtype": scheme.format().to_string(),
        "granularity": granularity,
        "axis": of_axis,
        "size": size,
    });
    let more = match scheme {
        TensorScheme::Int(IntScheme { format, zero_point, scale, observer, .. }) => json!({
            "kind": "int",
            "bits": format.bits(),
            "min": format.min(),
            "max": format.max(),
            "zero_point": match zero_point {
                ZeroPoint::Zero => "none",
                ZeroPoint::Integer => "integer",
                ZeroPoint::Float => "float",
            },
            "scale": scale.to_string(),
            "observer": observer.to_string(),
            "middle": if format.is_signed() { 0 } else { format.max() / 2 + 1 },
        }),
        TensorScheme::Float(float) => json!({
            "kind": "float",
            "max": float.format.max(),
            "scale": float.scale.to_string(),
            "observer": float.observer.to_string(),
        }),
        _ => json!({}),
    };
    if let (Value::Object(parts), Value::Object(more)) = (&mut parts, more) {
        parts.extend(more);
    }
    parts
}

/// The algorithms of a list (`awq,gptq:damping=0.05`) in their order, for code that applies them one by one: an array of objects with
/// `name`, `spelling`, `kind` (`rotation`, `transform`, `rounding`, `tuning` or `correction`), `options` (all of them) and of roundings `needs` (`nothing`,
/// `hessian` or `mismatch`).
///
/// # Errors
/// As for recipes.
pub fn algorithms_json(text: &str) -> Result<Value, Error> {
    let algorithms = Algorithms::of_list("the algorithm", &[text])?;
    let item = |algorithm: Algorithm| {
        let (kind, needs) = match &algorithm {
            Algorithm::Rotation(_) => ("rotation", None),
            Algorithm::Transform(_) => ("transform", None),
            Algorithm::Rounding(rounding) => {
                let needs = match rounding.needs() {
                    Needs::Nothing => "nothing",
                    Needs::Hessian => "hessian",
                    Needs::InputMismatch | Needs::Outputs => "mismatch",
                };
                ("rounding", Some(needs))
            }
            Algorithm::Tuning(_) => ("tuning", None),
            Algorithm::Correction(_) => ("correction", None),
        };
        json!({
            "name": algorithm.name(),
            "spelling": algorithm.to_string(),
            "kind": kind,
            "needs": needs,
            "options": algorithm.settings().into_iter().collect::<BTreeMap<_, _>>(),
        })
    };
    Ok(algorithms.items().into_iter().map(item).collect())
}

/// Static parameters of the activations of a layer.
#[derive(Clone, Debug)]
pub struct LayerActivations<'a> {
    /// The layer.
    pub name: &'a str,
    /// Whether they are its outputs.
    pub is_output: bool,
    /// Their scheme.
    pub scheme: ActivationScheme,
    /// The number of features.
    pub features: usize,
    /// The parameters.
    pub parameters: StaticParameters,
}

/// The tensors that static parameters of activations become in a format; none for dynamic ones. `like` has the type of the model.
///
/// # Errors
/// *Usage* for an unknown format, *unsupported* where it has no place for them.
pub fn packed_activations(
    activations: LayerActivations<'_>,
    format: &str,
    like: &Matrix<'_>,
) -> Result<Vec<PackedTensor>, Error> {
    let LayerActivations { name, is_output, scheme, features, parameters } = activations;
    let side = if is_output { Side::Output } else { Side::Input };
    let site = ActivationPoint::Key(0);
    let spec = ActivationSpec { name, side, scheme, features, source: like.dtype(), site: &site };
    let parts = find(format)?.activation_parts(&spec).map_err(cannot_hold)?;
    let parameters = StaticParameters { scales: parameters.scales, zero_points: parameters.zero_points };
    let packed = parts.into_iter().map(|part| {
        let bytes = part.bytes(&parameters);
        let name = part.name.strip_prefix('.').unwrap_or(&part.name).to_owned();
        PackedTensor { name, dtype: part.dtype, shape: part.shape, bytes }
    });
    Ok(packed.collect())
}

/// The `quantization_config` of a checkpoint with these layers, for its config.json. `biases` are those among them with quantized biases,
/// `exclude` are the layers that stay as they are.
///
/// # Errors
/// *Usage* for an unknown format, *unsupported* where it cannot describe the schemes.
pub fn quantization_config(
    format: &str,
    layers: &[(&str, LayerScheme)],
    biases: &[(&str, TensorScheme)],
    exclude: &[&str],
) -> Result<Value, Error> {
    let found = find(format)?;
    if let Some((name, _)) = biases.first().filter(|_| !found.capabilities().biases) {
        let error =
            Error::new(ErrorKind::Unsupported, format!("layer {name}: {format} has no place for a quantized bias"));
        return Err(error.with_hint(Some("use ‹format› quark or fake, or leave biases in float".to_owned())));
    }
    let description = ModelDescription {
        biases,
        layers,
        exclude,
        aliases: &[],
        attention: AttentionScheme::default(),
        attention_modules: &AttentionModules::default(),
        act_order: false,
        nibble_order: NibbleOrder::default(),
        algorithms: &Algorithms::default(),
        input_rotations: &[],
    };
    found.config(&description).map_err(cannot_hold)
}

fn cannot_hold(error: CannotHold) -> Error {
    Error::new(ErrorKind::Unsupported, error.reason).with_hint(Some(error.hint))
}
