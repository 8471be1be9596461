//! The `quantization_config` of compressed-tensors of a checkpoint that is quantized already. The inverse of what its
//! neighbours write, and of what llm-compressor does.

use super::packing_format::Format;
use super::transforms::StoredTransform;
use crate::format::{ModuleScheme, Pattern};
use kvant_quant::scheme::{ActivationScheme, TensorScheme, Timing};
use kvant_weights::recipe_error::{RecipeError, quoted};
use serde::Deserialize;
use serde_json::{Map, Value};

const HINT: &str = "dequantize the checkpoint with the tool that made it";

/// The modules described by a `quantization_config` of compressed-tensors.
#[derive(Clone, Debug)]
pub struct StoredCompressedTensors {
    groups: Vec<Group>,
    ignore: Vec<Pattern>,
    /// The quantization of cached keys and values.
    pub cache: Option<ActivationScheme>,
    /// What is done to inputs while the model runs.
    pub(super) transforms: Vec<StoredTransform>,
}

/// Modules that are quantized alike.
#[derive(Clone, Debug)]
pub struct Group {
    targets: Vec<Target>,
    /// The layout; `None` for plain floats.
    pub format: Option<Format>,
    /// Their tensors.
    pub scheme: ModuleScheme,
}

/// What a target of a group means.
#[derive(Clone, Debug)]
pub(super) enum Target {
    /// A class of PyTorch or transformers.
    Class(String),
    Name(Pattern),
}

/// The class of a module, for class targets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModuleClass {
    /// A linear layer.
    Linear,
    /// An embedding.
    Embedding,
    /// The attention of a block.
    Attention,
}

/// `QuantizationArgs` as they are read.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct StoredArgs {
    num_bits: u32,
    #[serde(rename = "type", default = "int")]
    kind: String,
    #[serde(default = "yes")]
    symmetric: bool,
    #[serde(default)]
    group_size: Option<i64>,
    #[serde(default)]
    strategy: Option<String>,
    #[serde(default)]
    block_structure: Option<Value>,
    #[serde(default)]
    dynamic: Value,
    #[serde(default)]
    scale_dtype: Option<String>,
}

fn int() -> String {
    "int".to_owned()
}

fn yes() -> bool {
    true
}

impl StoredCompressedTensors {
    /// Reads the `quantization_config`.
    ///
    /// # Errors
    /// *Invalid* where the document is not of the library's form, *unsupported* for layouts, schemes and transforms that
    /// are not read.
    pub fn read(config: &Value) -> Result<StoredCompressedTensors, RecipeError> {
        let default = config.get("format").and_then(Value::as_str);
        let groups = match config.get("config_groups") {
            Some(Value::Object(groups)) => read_groups(groups, default)?,
            None | Some(Value::Null) => Vec::new(),
            Some(_) => return Err(RecipeError::invalid("config_groups", "must be an object", HINT)),
        };
        let texts = strings(config.get("ignore"));
        let ignore = texts.map(|text| Pattern::new("ignore", text)).collect::<Result<_, _>>()?;
        Ok(StoredCompressedTensors {
            groups,
            ignore,
            cache: activation("kv_cache_scheme", config.get("kv_cache_scheme"))?,
            transforms: StoredTransform::read_all(config)?,
        })
    }

    /// The group of a module: the first that names it, otherwise the first whose expression matches, otherwise that of its class.
    pub fn group(&self, module: &str, class: ModuleClass) -> Option<&Group> {
        if self.ignore.iter().any(|pattern| pattern.matches(module)) {
            return None;
        }
        let fits = |wanted: &dyn Fn(&Target) -> bool| self.groups.iter().find(|group| group.targets.iter().any(wanted));
        let named = |target: &Target, wildcard: bool| match target {
            Target::Name(pattern) => pattern.has_wildcard() == wildcard && pattern.matches(module),
            Target::Class(_) => false,
        };
        fits(&|target| named(target, false))
            .or_else(|| fits(&|target| named(target, true)))
            .or_else(|| fits(&|target| matches!(target, Target::Class(name) if is_of_class(name, class))))
    }
}

fn is_of_class(name: &str, class: ModuleClass) -> bool {
    match class {
        ModuleClass::Linear => name == "Linear",
        ModuleClass::Embedding => name == "Embedding",
        ModuleClass::Attention => name.ends_with("Attention"),
    }
}

impl Target {
    /// Returns whether it is a module of a class, or that class.
    pub(super) fn matches(&self, module: &str, class: ModuleClass) -> bool {
        match self {
            Target::Class(name) => is_of_class(name, class),
            Target::Name(pattern) => pattern.matches(module),
        }
    }
}

fn strings(value: Option<&Value>) -> impl Iterator<Item = &str> {
    value.and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str)
}

fn read_groups(groups: &Map<String, Value>, default: Option<&str>) -> Result<Vec<Group>, RecipeError> {
    groups.iter().map(|(name, group)| read_group(&format!("config_groups.{name}"), group, default)).collect()
}

fn read_group(place: &str, group: &Value, default: Option<&str>) -> Result<Group, RecipeError> {
    let targets = strings(group.get("targets")).map(|text| target(place, text)).collect::<Result<_, _>>()?;
    let field = |key: &str| (format!("{place}.{key}"), group.get(key));
    let (weights_place, weights) = field("weights");
    let (input_place, input) = field("input_activations");
    let (output_place, output) = field("output_activations");
    let scheme = ModuleScheme {
        weight: args(&weights_place, weights)?.map(|args| args.weight(&weights_place)).transpose()?,
        bias: None,
        input: activation(&input_place, input)?,
        output: activation(&output_place, output)?,
    };
    let name = group.get("format").and_then(Value::as_str).or(default);
    Ok(Group { targets, format: format(place, name, &scheme)?, scheme })
}

/// Classes are capitalised words without dots; modules are not.
pub(super) fn is_class(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_uppercase()) && text.chars().all(char::is_alphanumeric)
}

pub(super) fn target(place: &str, text: &str) -> Result<Target, RecipeError> {
    match is_class(text) {
        true => Ok(Target::Class(text.to_owned())),
        false => Ok(Target::Name(Pattern::new(&format!("{place}.targets"), text)?)),
    }
}

fn format(place: &str, name: Option<&str>, scheme: &ModuleScheme) -> Result<Option<Format>, RecipeError> {
    let place = format!("{place}.format");
    match name {
        _ if scheme.weight.is_none() => Ok(None),
        Some("dense") => Ok(None),
        Some(name) => match Format::ALL.iter().find(|format| format.name() == name) {
            Some(format) => Ok(Some(*format)),
            None => Err(RecipeError::unsupported(place, format!("{} is not read", quoted(name)), HINT)),
        },
        None => Err(RecipeError::invalid(place, "is missing", HINT)),
    }
}

fn args(place: &str, value: Option<&Value>) -> Result<Option<StoredArgs>, RecipeError> {
    let Some(value) = value.filter(|value| !value.is_null()) else { return Ok(None) };
    let args = StoredArgs::deserialize(value);
    args.map(Some).map_err(|error| RecipeError::invalid(place, error.to_string(), HINT))
}

fn activation(place: &str, value: Option<&Value>) -> Result<Option<ActivationScheme>, RecipeError> {
    let Some(args) = args(place, value)? else { return Ok(None) };
    let timing = match &args.dynamic {
        Value::Bool(true) => Timing::Dynamic,
        Value::String(word) if word == "local" => Timing::Local,
        _ => Timing::Static,
    };
    Ok(Some(ActivationScheme { scheme: args.scheme(place)?, timing }))
}

impl StoredArgs {
    fn weight(&self, place: &str) -> Result<TensorScheme, RecipeError> {
        match &self.dynamic {
            Value::Bool(true) | Value::String(_) => {
                Err(RecipeError::unsupported(place, "weights with dynamic scales", HINT))
            }
            _ => self.scheme(place),
        }
    }

    pub(super) fn scheme(&self, place: &str) -> Result<TensorScheme, RecipeError> {
        let element = match (self.kind.as_str(), self.num_bits) {
            ("int", bits) => format!("int{bits}"),
            ("float", 8) => "e4m3".to_owned(),
            ("float", 6) => "e2m3".to_owned(),
            ("float", 4) => "e2m1".to_owned(),
            (kind, bits) => {
                return Err(RecipeError::unsupported(place, format!("{} of {bits} bits", quoted(kind)), HINT));
            }
        };
        let granularity = self.granularity(place)?;
        let scale = match (self.kind.as_str(), self.strategy.as_deref(), self.num_bits) {
            ("float", Some("tensor_group"), _) => ":e4m3:f32",
            // Scales in bytes are powers of two; that of fp4 and fp6 in plain groups always is.
            ("float", Some("group"), 4 | 6) => ":e8m0",
            ("float", Some("group"), _) if self.scale_dtype.as_deref() == Some("torch.uint8") => ":e8m0",
            _ => "",
        };
        let zero_point = if self.symmetric || self.kind == "float" { "" } else { ":zp" };
        let text = format!("{element}:{granularity}{scale}{zero_point}");
        text.parse().map_err(|error| RecipeError::unsupported(place, format!("{error}"), HINT))
    }

    fn granularity(&self, place: &str) -> Result<String, RecipeError> {
        let refuse = |what: &str| RecipeError::unsupported(format!("{place}.{what}"), "is not read", HINT);
        match (self.strategy.as_deref(), self.group_size) {
            (Some("tensor"), _) | (None, None) => Ok("tensor".to_owned()),
            // A token is a channel of axis 0.
            (Some("channel" | "token"), _) | (None, Some(-1)) => Ok("channel".to_owned()),
            (Some("group" | "tensor_group") | None, Some(size)) => Ok(format!("g{size}")),
            (Some("block"), _) => {
                let (rows, columns) = self.block().ok_or_else(|| refuse("block_structure"))?;
                Ok(format!("b{rows}x{columns}"))
            }
            _ => Err(refuse("strategy")),
        }
    }

    /// `[128, 128]`, in older files `"128x128"`.
    fn block(&self) -> Option<(u64, u64)> {
        match self.block_structure.as_ref()? {
            Value::String(text) => {
                let (rows, columns) = text.split_once('x')?;
                Some((rows.parse().ok()?, columns.parse().ok()?))
            }
            value => Some((value.get(0)?.as_u64()?, value.get(1)?.as_u64()?)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::compressed_tensors::quantization_config;
    use serde_json::json;

    #[test]
    fn written_config_groups_read_back() {
        let texts = [
            "int4:g128",
            "int8:channel+int8:channel!dynamic",
            "e4m3:b128x128+e4m3:g128!dynamic",
            "e2m1:g16:e4m3:f32+e2m1:g16:e4m3:f32!local",
            "e2m1:g32:e8m0",
            "e2m3:g32:e8m0",
            "e4m3:g32:e8m0",
            "int4:g32:zp",
        ];
        let modules: Vec<String> = (0..texts.len()).map(|i| format!("m.{i}.up")).collect();
        let layers: Vec<_> =
            modules.iter().zip(texts).map(|(name, text)| (name.as_str(), text.parse().unwrap())).collect();
        let read = |config: &Value| StoredCompressedTensors::read(config).unwrap();
        let config = read(&quantization_config(&layers, &["lm_head"], &[], false).unwrap());
        for (module, layer) in &layers {
            let group = config.group(module, ModuleClass::Linear).unwrap();
            assert_eq!((group.scheme.weight, group.scheme.input), (Some(layer.weight), layer.input), "{module}");
            assert_eq!(group.format, crate::format::compressed_tensors::format_of(layer).ok());
        }
        assert!(config.group("lm_head", ModuleClass::Linear).is_none());
        let one = read(&quantization_config(&layers[..1], &["lm_head"], &[], false).unwrap());
        assert!(
            one.group("a.q_proj", ModuleClass::Linear).is_some() && one.group("lm_head", ModuleClass::Linear).is_none()
        );
    }

    #[test]
    fn names_win_over_expressions_and_classes() {
        let group = |targets: Value, bits: u32| json!({"targets": targets, "weights": {"num_bits": bits, "strategy": "channel"}});
        let config = json!({
            "format": "pack-quantized",
            "config_groups": {
                "group_0": group(json!(["Linear"]), 8),
                "group_1": group(json!(["re:.*down_proj"]), 4),
                "group_2": group(json!(["m.1.down_proj"]), 2),
            },
        });
        let config = StoredCompressedTensors::read(&config).unwrap();
        let weight =
            |module: &str| config.group(module, ModuleClass::Linear).unwrap().scheme.weight.unwrap().to_string();
        assert_eq!(
            (weight("m.0.up"), weight("m.0.down_proj"), weight("m.1.down_proj")),
            ("int8:channel".into(), "int4:channel".into(), "int2:channel".into())
        );
    }

    #[test]
    fn unsupported_config_groups_are_refused() {
        let group = |format: &str| json!({"config_groups": {"g": {"targets": ["Linear"], "format": format, "weights": {"num_bits": 4, "group_size": 32}}}});
        assert!(StoredCompressedTensors::read(&group("pack-quantized")).is_ok());
        for config in [
            group("marlin-24"),
            json!({"config_groups": []}),
            json!({"config_groups": {"g": {"targets": ["Linear"], "format": "dense", "weights": {"num_bits": "four"}}}}),
            json!({"transform_config": {"config_groups": {"R1": {}}}}),
        ] {
            assert!(StoredCompressedTensors::read(&config).is_err(), "{config}");
        }
    }
}
