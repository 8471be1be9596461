//! From schemes to Quark's `quantization_config`. The inverse is `read`.

use super::observer;
use super::tensor_spec::{TensorSpec, Word};
use crate::format::selector::{commonest, select};
use kvant_numeric::DType;
use kvant_numeric::format::{Int, MiniFloat, ScaleRule};
use kvant_numeric::pack::NibbleOrder;
use kvant_quant::scheme::{
    ActivationScheme, Axis, BlockFormat, Cast, FloatScale, FloatScheme, Granularity, IntScheme, LayerScheme, ScaleType,
    TensorScheme, Timing, ZeroPoint,
};
use kvant_weights::parts::CannotHold;
use serde_json::{Map, Value, json};
use std::collections::HashMap;

/// The contents of the tensors called `weight`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightFormat {
    /// Codes.
    Real,
    /// Floats on the grid of the codes.
    Fake,
}

/// The whole object.
///
/// `layers` are all quantized modules with their schemes. The commonest scheme becomes the global one, the others become
/// `layer_quant_config`, in which patterns like `*.down_proj` stand for modules where they can. `exclude` are the full
/// names of the linear modules that stay as they are; readers do not infer them.
///
/// # Errors
/// [`CannotHold`] for schemes that Quark cannot describe.
pub fn quantization_config(
    layers: &[(&str, LayerScheme)],
    exclude: &[&str],
    order: NibbleOrder,
    weight_format: WeightFormat,
) -> Result<Value, CannotHold> {
    let global = commonest(layers);
    Ok(json!({
        "algo_config": null,
        "exclude": exclude,
        "export": export(order, weight_format),
        "global_quant_config": global.map_or(Ok(Value::Null), |scheme| layer_config(&scheme))?,
        "kv_cache_post_rope": false,
        "kv_cache_quant_config": {},
        "layer_quant_config": layer_configs(layers, global)?,
        "layer_type_quant_config": {},
        "quant_method": "quark",
        "quant_mode": "eager_mode",
        "softmax_quant_spec": null,
        "version": "0.13",
    }))
}

fn export(order: NibbleOrder, weight_format: WeightFormat) -> Value {
    json!({
        "kv_cache_group": [],
        "min_kv_scale": 0.0,
        "pack_method": match order { NibbleOrder::Awq => "reorder", NibbleOrder::Natural => "order" },
        "weight_format": match weight_format { WeightFormat::Real => "real_quantized", WeightFormat::Fake => "fake_quantized" },
        "weight_merge_groups": null,
    })
}

fn layer_configs(
    layers: &[(&str, LayerScheme)],
    global: Option<LayerScheme>,
) -> Result<Map<String, Value>, CannotHold> {
    let mut configs = Map::new();
    for (scheme, selectors) in select(layers, &[]) {
        if Some(scheme) != global {
            let config = layer_config(&scheme)?;
            configs.extend(selectors.iter().map(|selector| (selector.glob(), config.clone())));
        }
    }
    Ok(configs)
}

/// A layer in Quark's configuration: the descriptions of its tensors, `null` for unquantized ones.
///
/// # Errors
/// [`CannotHold`] for schemes that Quark cannot describe.
pub fn layer_config(scheme: &LayerScheme) -> Result<Value, CannotHold> {
    // Its schemes of inputs leave the type of scales unsaid but where weights are fp8 of the same kind.
    let unsaid = !matches!(scheme.weight, TensorScheme::Float(float) if matches!(float.scale, FloatScale::Plain(_)));
    let place = |timing| PatternPlace::Activations { timing, unsaid };
    let input = scheme.input.map(|input| tensor_config(input.scheme, place(input.timing))).transpose()?;
    Ok(json!({
        "bias": null,
        "input_tensors": input,
        "output_tensors": scheme.output.map(output_config).transpose()?,
        "target_device": null,
        "weight": tensor_config(scheme.weight, PatternPlace::Weight)?,
    }))
}

/// Describes quantized biases: each layer with one gets a separate entry, which takes precedence over patterns.
///
/// # Errors
/// [`CannotHold`] for schemes that Quark cannot describe.
pub(super) fn describe_biases(
    config: &mut Value,
    layers: &[(&str, LayerScheme)],
    biases: &[(&str, TensorScheme)],
) -> Result<(), CannotHold> {
    let schemes: HashMap<&str, LayerScheme> = layers.iter().copied().collect();
    for (name, bias) in biases {
        let Some(scheme) = schemes.get(name) else { continue };
        let mut layer = layer_config(scheme)?;
        layer["bias"] = tensor_config(*bias, PatternPlace::Weight)?;
        config["layer_quant_config"][*name] = layer;
    }
    Ok(())
}

/// The description of outputs.
pub(super) fn output_config(output: ActivationScheme) -> Result<Value, CannotHold> {
    tensor_config(output.scheme, PatternPlace::Activations { timing: output.timing, unsaid: true })
}

/// Which tensor of a layer is described.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PatternPlace {
    Weight,
    Activations {
        timing: Timing,
        /// Whether the type of static scales is omitted if it is the model's type.
        unsaid: bool,
    },
}

impl PatternPlace {
    fn timing(self) -> Option<Timing> {
        match self {
            PatternPlace::Weight => None,
            PatternPlace::Activations { timing, .. } => Some(timing),
        }
    }
}

/// One description, or a list of two.
fn tensor_config(scheme: TensorScheme, place: PatternPlace) -> Result<Value, CannotHold> {
    let specs = specs(scheme, place)?;
    let values = specs.iter().map(serde_json::to_value).collect::<Result<Vec<_>, _>>();
    let mut values = values.map_err(|error| CannotHold::new(error.to_string(), "report this"))?;
    Ok(if values.len() == 1 { values.remove(0) } else { Value::Array(values) })
}

fn specs(scheme: TensorScheme, place: PatternPlace) -> Result<Vec<TensorSpec>, CannotHold> {
    match scheme {
        TensorScheme::Int(scheme) => Ok(vec![int_spec(scheme, place)?]),
        TensorScheme::Float(scheme) => float_specs(scheme, place),
        TensorScheme::Progressive { first, second } => {
            let mut specs = float_specs(first, place)?;
            specs.push(TensorSpec {
                scale_type: Some(second_scale_type(second.scale).into()),
                ..int_spec(second, place)?
            });
            Ok(specs)
        }
        TensorScheme::Block(format) => Ok(vec![block_spec(format)?]),
        TensorScheme::Cast(cast) => Ok(vec![cast_spec(cast)]),
        TensorScheme::Gguf(_) => {
            Err(CannotHold::new(format!("Quark has no `{scheme}`"), "write it with ‹format› gguf"))
        }
    }
}

fn int_spec(scheme: IntScheme, place: PatternPlace) -> Result<TensorSpec, CannotHold> {
    if [Int::INT5, Int::INT6, Int::INT7, Int::UINT32].contains(&scheme.format) {
        let reason = format!("Quark has no `{}`", DType::Int(scheme.format));
        return Err(CannotHold::new(reason, "use 2, 3, 4 or 8 bits, or ‹format› compressed-tensors"));
    }
    let power_of_two = scheme.scale == ScaleType::PowerOfTwo;
    Ok(TensorSpec {
        observer_cls: Some(observer::class(scheme.granularity, scheme.observer, power_of_two).into()),
        scale_type: Some(scale_type(scheme.scale).into()),
        symmetric: Some(scheme.zero_point == ZeroPoint::Zero),
        zero_point_type: Some(if scheme.zero_point == ZeroPoint::Float { "float32" } else { "int32" }.into()),
        ..scaled(DType::Int(scheme.format).to_string(), scheme.granularity, place)?
    })
}

/// A description of something with scales: its granularity and when scales are found.
fn scaled(dtype: impl Into<Word>, granularity: Granularity, place: PatternPlace) -> Result<TensorSpec, CannotHold> {
    let spec = TensorSpec {
        is_dynamic: Some(matches!(place.timing(), Some(Timing::Dynamic | Timing::Local))),
        round_method: Some("half_even".into()),
        ..TensorSpec::new(dtype)
    };
    // Quark counts the axes of activations as [batch, tokens, features].
    let rows = if place == PatternPlace::Weight { 0 } else { 1 };
    Ok(match granularity {
        Granularity::Tensor => TensorSpec { qscheme: Some("per_tensor".into()), ..spec },
        Granularity::Channel(axis) => {
            let ch_axis = if axis == Axis::Rows { rows } else { rows + 1 };
            TensorSpec { qscheme: Some("per_channel".into()), ch_axis: Some(ch_axis), ..spec }
        }
        Granularity::Group { axis, size } => {
            let ch_axis = if axis == Axis::Rows { rows } else { -1 };
            let size = size.map_or(-1, |size| i64::from(size.get()));
            TensorSpec { qscheme: Some("per_group".into()), ch_axis: Some(ch_axis), group_size: Some(size), ..spec }
        }
        Granularity::Block { rows, columns } => {
            TensorSpec { qscheme: Some("per_block".into()), block_size: Some([rows.get(), columns.get()]), ..spec }
        }
    })
}

fn scale_type(scale: ScaleType) -> &'static str {
    match scale {
        ScaleType::Model => "float",
        ScaleType::F32 => "float32",
        ScaleType::F16 => "float16",
        ScaleType::Bf16 => "bfloat16",
        ScaleType::PowerOfTwo => "pof2",
    }
}

/// The scales of a second stage are computed in the model's type and named after the type in which they are stored.
fn second_scale_type(scale: ScaleType) -> &'static str {
    scale_type(if scale == ScaleType::Model { ScaleType::F32 } else { scale })
}

fn float_specs(scheme: FloatScheme, place: PatternPlace) -> Result<Vec<TensorSpec>, CannotHold> {
    let blocks = |scale_format: &'static str, scale_type: &'static str| -> Result<TensorSpec, CannotHold> {
        Ok(TensorSpec {
            observer_cls: Some("PerBlockMXObserver".into()),
            scale_format: Some(scale_format.into()),
            scale_type: Some(scale_type.into()),
            ..scaled(float_dtype(scheme.format)?, scheme.granularity, place)?
        })
    };
    match scheme.scale {
        FloatScale::Plain(scale) if is_small(scheme.format) && is_grouped(scheme.granularity) => {
            Ok(vec![blocks("float32", scale_type(scale))?])
        }
        FloatScale::Plain(scale) => Ok(vec![plain_float_spec(scheme, scale, place)?]),
        FloatScale::E8m0(rule) => {
            let mode = Some(scale_mode(rule, place)?.into());
            Ok(vec![TensorSpec { scale_calculation_mode: mode, ..blocks("e8m0", "float")? }])
        }
        FloatScale::E5m3 => Ok(vec![blocks("e5m3", "float8_e5m3")?]),
        FloatScale::E4m3WithGlobal => Ok(vec![blocks("float32", "float32")?, of_tensor("fp8_e4m3", place)?]),
        FloatScale::E5m3WithGlobal => Ok(vec![blocks("float32", "float32")?, of_tensor("fp8_e5m3", place)?]),
    }
}

fn is_small(format: MiniFloat) -> bool {
    format.bits() < 8
}

fn is_grouped(granularity: Granularity) -> bool {
    matches!(granularity, Granularity::Group { .. })
}

fn plain_float_spec(scheme: FloatScheme, scale: ScaleType, place: PatternPlace) -> Result<TensorSpec, CannotHold> {
    let unsaid = matches!(place, PatternPlace::Activations { timing: Timing::Static, unsaid: true })
        && scale == ScaleType::Model
        && scheme.granularity == Granularity::Tensor;
    Ok(TensorSpec {
        observer_cls: Some(observer::class(scheme.granularity, scheme.observer, false).into()),
        scale_type: (!unsaid).then(|| scale_type(scale).into()),
        symmetric: Some(true),
        ..scaled(float_dtype(scheme.format)?, scheme.granularity, place)?
    })
}

/// The second stage: the scale of block scales.
fn of_tensor(dtype: &'static str, place: PatternPlace) -> Result<TensorSpec, CannotHold> {
    Ok(TensorSpec {
        is_dynamic: Some(place.timing() == Some(Timing::Dynamic)),
        is_scale_quant: Some(true),
        observer_cls: Some("PerTensorMinMaxObserver".into()),
        scale_type: Some("float32".into()),
        symmetric: Some(true),
        ..scaled(dtype, Granularity::Tensor, place)?
    })
}

fn float_dtype(format: MiniFloat) -> Result<&'static str, CannotHold> {
    Ok(match format {
        MiniFloat::E2M1 => "fp4",
        MiniFloat::E2M3 => "fp6_e2m3",
        MiniFloat::E3M2 => "fp6_e3m2",
        MiniFloat::E5M2 => "fp8_e5m2",
        MiniFloat::E5M3 => "fp8_e5m3",
        MiniFloat::E4M3 => "fp8_e4m3",
        other => {
            let reason = format!("Quark has no `{}`", DType::MiniFloat(other));
            return Err(CannotHold::new(reason, "use e4m3, e5m2, or ‹format› tensors"));
        }
    })
}

/// The name of a scale rule. Of weights the scales are stored, so that the nearest name does where Quark lacks the rule.
fn scale_mode(rule: ScaleRule, place: PatternPlace) -> Result<&'static str, CannotHold> {
    match (rule, place) {
        (ScaleRule::Even, _) => Ok("even"),
        (ScaleRule::Floor, _) => Ok("floor"),
        (ScaleRule::Ceil, _) | (ScaleRule::Rceil, PatternPlace::Weight) => Ok("ceil"),
        (ScaleRule::Rceil, PatternPlace::Activations { .. }) => Err(CannotHold::new(
            "Quark has no rule `rceil` for the scales of inputs",
            "use e8m0 or e8m0-ceil for inputs",
        )),
    }
}

fn block_spec(format: BlockFormat) -> Result<TensorSpec, CannotHold> {
    let (dtype, block, rule) = match format {
        BlockFormat::MicroExponent(format) => (DType::MicroExponent(format).to_string(), 16, ScaleRule::Even),
        BlockFormat::Bfp16 => (DType::Bfp16.to_string(), 8, ScaleRule::Even),
        BlockFormat::MxInt8(rule) => ("mx".to_owned(), 32, rule),
    };
    Ok(TensorSpec {
        ch_axis: Some(-1),
        group_size: Some(block),
        mx_element_dtype: matches!(format, BlockFormat::MxInt8(_)).then(|| "int8".into()),
        scale_calculation_mode: Some(scale_mode(rule, PatternPlace::Weight)?.into()),
        ..TensorSpec::new(dtype)
    })
}

fn cast_spec(cast: Cast) -> TensorSpec {
    let dtype = match cast {
        Cast::F16 => "float16",
        Cast::Bf16 => "bfloat16",
    };
    TensorSpec { observer_cls: Some("PlaceholderObserver".into()), ..TensorSpec::new(dtype) }
}
