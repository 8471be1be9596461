//! From Quark's descriptions of tensors to schemes. The inverse is `write`. Descriptions are put into the spelling of
//! schemes, so that what no scheme can be is refused where all schemes are.

use super::observer;
use super::tensor_spec::TensorSpec;
use kvant_quant::scheme::{ActivationScheme, LayerScheme, TensorScheme, Timing};
use kvant_weights::recipe_error::RecipeError;
use kvant_weights::recipe_error::quoted;
use serde_json::Value;

const SPELL_IT: &str = "give the scheme with ‹scheme› or in a TOML recipe instead";

/// The scheme of a layer; `None` for one that stays as it is.
pub(super) fn layer_scheme(place: &str, config: &Value) -> Result<Option<LayerScheme>, RecipeError> {
    let Some(config) = config.as_object() else {
        return Err(RecipeError::invalid(place, "must be an object", SPELL_IT));
    };
    for (key, value) in config {
        let known = ["weight", "bias", "input_tensors", "output_tensors", "target_device"].contains(&key.as_str());
        if !known && !is_empty(value) {
            let reason = format!("the field {} is not known", quoted(key));
            return Err(RecipeError::unsupported(place, reason, "remove the field"));
        }
    }
    let field = |key: &str| config.get(key).filter(|value| !value.is_null());
    let weight = field("weight").map(|value| weight_scheme(&format!("{place}.weight"), value)).transpose()?;
    let activations =
        |key: &str| field(key).map(|value| activation_scheme(&format!("{place}.{key}"), value)).transpose();
    match (weight, activations("input_tensors")?, activations("output_tensors")?) {
        (Some(weight), input, output) => Ok(Some(LayerScheme { weight, input, output })),
        (None, None, None) => Ok(None),
        (None, ..) => Err(RecipeError::unsupported(place, "quantizes activations but no weight", SPELL_IT)),
    }
}

/// Returns whether a value is empty.
pub(super) fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        _ => false,
    }
}

/// The scheme of the bias of a layer; `None` for floats.
pub(super) fn bias_scheme(place: &str, config: &Value) -> Result<Option<TensorScheme>, RecipeError> {
    let bias = config.get("bias").filter(|value| !value.is_null());
    bias.map(|value| weight_scheme(&format!("{place}.bias"), value)).transpose()
}

fn weight_scheme(place: &str, value: &Value) -> Result<TensorScheme, RecipeError> {
    let (scheme, timing) = tensor_scheme(place, value, Place::Weight)?;
    match timing {
        Some(Timing::Dynamic | Timing::Local) => {
            Err(RecipeError::unsupported(place, "weights with dynamic scales", "set is_dynamic to false"))
        }
        _ => Ok(scheme),
    }
}

/// The scheme of inputs or outputs.
pub(super) fn activation_scheme(place: &str, value: &Value) -> Result<ActivationScheme, RecipeError> {
    let (scheme, timing) = tensor_scheme(place, value, Place::Input)?;
    // Formats that carry their scales have nothing that could be stored.
    Ok(ActivationScheme { scheme, timing: timing.unwrap_or(Timing::Dynamic) })
}

/// Which tensor is described.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    Weight,
    /// A weight that is quantized already: how its scales were found no longer matters.
    StoredWeight,
    Input,
}

/// The scheme of one description or a list of two, and when scales are found where that is said.
pub(super) fn tensor_scheme(
    place: &str,
    value: &Value,
    side: Place,
) -> Result<(TensorScheme, Option<Timing>), RecipeError> {
    let stages = stages(place, value)?;
    let reader = ConfigReader { place, side };
    let (text, timing) = match stages.as_slice() {
        [only] => (reader.spelling(only)?, only.is_dynamic.map(timing_of)),
        [blocks, scale] if scale.is_scale_quant == Some(true) => reader.scaled_scales(blocks, scale)?,
        [first, second] if first.is_dynamic == second.is_dynamic => {
            let text = format!("{}/{}", reader.spelling(&computed_in_model_type(second))?, reader.spelling(first)?);
            (text, first.is_dynamic.map(timing_of))
        }
        _ => return Err(reader.unsupported("stages that do not go together")),
    };
    let scheme = text.parse::<TensorScheme>();
    let scheme = scheme.map_err(|error| RecipeError::unsupported(place, error.to_string(), SPELL_IT))?;
    Ok((scheme, timing))
}

/// The scales of a second stage are computed in the model's type, and named after the type in which they are stored.
fn computed_in_model_type(second: &TensorSpec) -> TensorSpec {
    let stored = second.scale_type.as_deref() == Some("float32");
    TensorSpec { scale_type: if stored { Some("float".into()) } else { second.scale_type.clone() }, ..second.clone() }
}

fn timing_of(is_dynamic: bool) -> Timing {
    if is_dynamic { Timing::Dynamic } else { Timing::Static }
}

fn stages(place: &str, value: &Value) -> Result<Vec<TensorSpec>, RecipeError> {
    let values = match value {
        Value::Array(values) => values.as_slice(),
        one => std::slice::from_ref(one),
    };
    let specs = values.iter().map(serde::Deserialize::deserialize).collect::<Result<Vec<TensorSpec>, _>>();
    specs.map_err(|error| RecipeError::invalid(place, error.to_string(), SPELL_IT))
}

/// Puts descriptions into words.
struct ConfigReader<'a> {
    place: &'a str,
    side: Place,
}

impl ConfigReader<'_> {
    fn unsupported(&self, reason: impl Into<String>) -> RecipeError {
        RecipeError::unsupported(self.place, reason, SPELL_IT)
    }

    fn unknown(&self, field: &str, word: &str) -> RecipeError {
        self.unsupported(format!("{field} {} is not supported", quoted(word)))
    }

    fn missing(&self, field: &str, qscheme: &str) -> RecipeError {
        let reason = format!("`{field}` is missing, which qscheme `{qscheme}` needs");
        RecipeError::invalid(self.place, reason, format!("give {field}, as Quark does for such a qscheme"))
    }

    fn spelling(&self, spec: &TensorSpec) -> Result<String, RecipeError> {
        self.check_incidentals(spec)?;
        match &*spec.dtype {
            "mx6" | "mx9" | "bfp16" => self.block(spec),
            "mx" => self.mx(spec),
            "float16" | "bfloat16" => Ok(spec.dtype.to_string()),
            dtype if dtype.starts_with("int") || dtype.starts_with("uint") => self.int(spec),
            dtype if dtype.starts_with("fp") => self.float(spec),
            dtype => Err(self.unknown("dtype", dtype)),
        }
    }

    /// Fields that have but one value here.
    fn check_incidentals(&self, spec: &TensorSpec) -> Result<(), RecipeError> {
        if self.side == Place::StoredWeight {
            return Ok(());
        }
        if let Some((key, _)) = spec.others.iter().find(|(_, value)| !is_empty(value)) {
            return Err(self.unsupported(format!("the field {} is not known", quoted(key))));
        }
        match spec.round_method.as_deref() {
            None | Some("half_even") => Ok(()),
            Some(other) => Err(self.unknown("round_method", other)),
        }
    }

    fn int(&self, spec: &TensorSpec) -> Result<String, RecipeError> {
        let (statistic, power_of_two) = self.observer(spec)?;
        let scale = if power_of_two { "pow2" } else { self.scale_type(spec)? };
        let zero_point = match (spec.symmetric, spec.zero_point_type.as_deref()) {
            (None | Some(true), _) => "",
            (Some(false), Some("float32")) => "fzp",
            (Some(false), _) => "zp",
        };
        Ok(spelled(&[&spec.dtype, &self.granularity(spec)?, scale, zero_point, statistic]))
    }

    fn float(&self, spec: &TensorSpec) -> Result<String, RecipeError> {
        if spec.symmetric == Some(false) {
            return Err(self.unsupported("floats with a zero point"));
        }
        let (statistic, power_of_two) = self.observer(spec)?;
        let mode = spec.scale_calculation_mode.as_deref().unwrap_or("even");
        let scale = match spec.scale_format.as_deref() {
            _ if power_of_two => "pow2".to_owned(),
            None | Some("float32") => self.scale_type(spec)?.to_owned(),
            Some("e8m0") => format!("e8m0-{mode}"),
            Some("e5m3") => "e5m3".to_owned(),
            Some(other) => return Err(self.unknown("scale_format", other)),
        };
        Ok(spelled(&[&spec.dtype, &self.granularity(spec)?, &scale, statistic]))
    }

    fn block(&self, spec: &TensorSpec) -> Result<String, RecipeError> {
        let block = if spec.dtype == "bfp16" { 8 } else { 16 };
        match spec.group_size {
            Some(size) if size != block => {
                Err(self.unsupported(format!("{} in blocks of {size}, which the format does not have", spec.dtype)))
            }
            _ => Ok(spec.dtype.to_string()),
        }
    }

    /// The older way of Quark to say OCP MX; the only one for MXINT8.
    fn mx(&self, spec: &TensorSpec) -> Result<String, RecipeError> {
        let mode = spec.scale_calculation_mode.as_deref().unwrap_or("even");
        let size = spec.group_size.unwrap_or(32);
        match spec.mx_element_dtype.as_deref() {
            Some("int8") if size == 32 => Ok(format!("mxint8:{mode}")),
            Some(element) if element.starts_with("fp") => Ok(format!("{element}:g{size}:e8m0-{mode}")),
            other => Err(self.unknown("mx_element_dtype", other.unwrap_or("null"))),
        }
    }

    fn observer(&self, spec: &TensorSpec) -> Result<(&'static str, bool), RecipeError> {
        if self.side == Place::StoredWeight {
            return Ok(("", false));
        }
        let class = spec.observer_cls.as_deref().unwrap_or("PlaceholderObserver");
        observer::spelling(class).ok_or_else(|| self.unknown("observer_cls", class))
    }

    fn scale_type(&self, spec: &TensorSpec) -> Result<&'static str, RecipeError> {
        match spec.scale_type.as_deref() {
            Some("float") => Ok(""),
            // The default is the model's type.
            None => Ok(""),
            Some("float32") => Ok("f32"),
            Some("float16") => Ok("f16"),
            Some("bfloat16") => Ok("bf16"),
            Some("pof2") => Ok("pow2"),
            Some(other) => Err(self.unknown("scale_type", other)),
        }
    }

    fn granularity(&self, spec: &TensorSpec) -> Result<String, RecipeError> {
        match (spec.qscheme.as_deref(), spec.group_size, spec.block_size) {
            (Some("per_tensor"), ..) => Ok("tensor".to_owned()),
            (Some("per_channel"), ..) => Ok(format!("channel@{}", self.axis(spec)?)),
            (Some("per_group"), Some(size), _) => Ok(format!("g{size}@{}", self.axis(spec)?)),
            (Some("per_block"), _, Some([rows, columns])) => Ok(format!("b{rows}x{columns}")),
            (Some("per_group"), None, _) => Err(self.missing("group_size", "per_group")),
            (Some("per_block"), _, None) => Err(self.missing("block_size", "per_block")),
            (qscheme, ..) => Err(self.unknown("qscheme", qscheme.unwrap_or("null"))),
        }
    }

    /// Axis 0 or 1 of the matrix. Quark counts the axes of activations as `[batch, tokens, features]`.
    fn axis(&self, spec: &TensorSpec) -> Result<usize, RecipeError> {
        match (self.side, spec.ch_axis) {
            (Place::Weight | Place::StoredWeight, Some(0 | -2)) | (Place::Input, Some(1 | -2)) => Ok(0),
            (Place::Weight | Place::StoredWeight, Some(1 | -1)) | (Place::Input, Some(2 | -1)) => Ok(1),
            (_, axis) => Err(self.unknown("ch_axis", &axis.map_or("null".to_owned(), |axis| axis.to_string()))),
        }
    }

    /// Block scales in fp8 under an f32 scale of the tensor.
    fn scaled_scales(&self, blocks: &TensorSpec, scale: &TensorSpec) -> Result<(String, Option<Timing>), RecipeError> {
        let of_tensor = match (&*scale.dtype, scale.qscheme.as_deref()) {
            ("fp8_e4m3", Some("per_tensor")) => "e4m3",
            ("fp8_e5m3", Some("per_tensor")) => "e5m3",
            (dtype, _) => return Err(self.unknown("dtype of scales", dtype)),
        };
        let plain = blocks.scale_format.as_deref().is_none_or(|format| format == "float32");
        if !plain || !blocks.dtype.starts_with("fp") {
            return Err(self.unsupported("a scale of scales over scales that are not plain floats"));
        }
        for stage in [blocks, scale] {
            self.check_incidentals(stage)?;
            if self.observer(stage)? != ("", false) {
                return Err(self.unsupported("a scale of scales that is not from the greatest magnitudes"));
            }
        }
        let timing = match (blocks.is_dynamic, scale.is_dynamic) {
            (Some(true), Some(false)) => Timing::Local,
            (Some(true), _) => Timing::Dynamic,
            _ => Timing::Static,
        };
        Ok((spelled(&[&blocks.dtype, &self.granularity(blocks)?, of_tensor, "f32"]), Some(timing)))
    }
}

/// The parts that say something, joined.
fn spelled(parts: &[&str]) -> String {
    let parts: Vec<&str> = parts.iter().copied().filter(|part| !part.is_empty()).collect();
    parts.join(":")
}
