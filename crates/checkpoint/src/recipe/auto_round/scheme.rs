//! Schemes of AutoRound: bits, groups and types of weights and inputs, as fields or by name.

use kvant_quant::scheme::LayerScheme;
use kvant_weights::recipe_error::{RecipeError, quoted};
use serde_json::{Map, Value, json};

/// The word for layers that stay as they are.
pub(super) const KEEP: &str = "keep";

/// The fields of a scheme.
pub(super) const SCHEME_KEYS: &[&str] = &[
    "act_bits",
    "act_data_type",
    "act_dynamic",
    "act_group_size",
    "act_sym",
    "bits",
    "data_type",
    "group_size",
    "sym",
];

/// What the entry of a layer may have: the fields, how it was made, and a scheme by name from which others are taken.
pub(super) const LAYER_KEYS: &[&str] = &[
    "act_bits",
    "act_data_type",
    "act_dynamic",
    "act_group_size",
    "act_sym",
    "bits",
    "data_type",
    "fixed_by_user",
    "group_size",
    "in_blocks",
    "rotation_config",
    "scale_dtype",
    "scheme",
    "super_bits",
    "super_group_size",
    "sym",
];

const HINT: &str = "choose one with ‹scheme› or ‹override› (`kvant list schemes`)";

/// The fields of a layer's scheme. Fields that are not given are those of AutoRound: int4 in groups of 128.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct LayerFields(Map<String, Value>);

/// A type of numbers, as AutoRound names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NumberType {
    Int,
    Fp8,
    Mx {
        element: &'static str,
        is_rceil: bool,
    },
    Nv {
        is_static: bool,
    },
    /// NVFP4 with scales in e5m3.
    NvE5m3,
}

impl LayerFields {
    /// Those of a scheme by its name; none where there is no name.
    pub(super) fn of_scheme(place: &str, name: Option<&Value>) -> Result<LayerFields, RecipeError> {
        let Some(name) = name.filter(|name| !name.is_null()) else { return Ok(LayerFields::default()) };
        if let Value::Object(fields) = name {
            return LayerFields::default().with(place, fields);
        }
        let Some(name) = name.as_str() else {
            return Err(RecipeError::invalid(place, "is not the name of a scheme", HINT));
        };
        let fields = named(&name.to_ascii_uppercase()).ok_or_else(|| match name.to_ascii_lowercase() {
            gguf if gguf.starts_with("gguf:") => {
                let reason = format!("{} is a mix of GGUF files", quoted(name));
                let hint = format!("give it as ‹scheme› {}", gguf[5..].to_ascii_uppercase());
                RecipeError::unsupported(place, reason, hint)
            }
            _ => RecipeError::unsupported(place, format!("the scheme {} is not known", quoted(name)), HINT),
        })?;
        match fields {
            Value::Object(fields) => Ok(LayerFields(fields)),
            _ => Ok(LayerFields::default()),
        }
    }

    /// The same with other fields, where they are given.
    pub(super) fn with(mut self, place: &str, fields: &Map<String, Value>) -> Result<LayerFields, RecipeError> {
        for key in ["super_bits", "super_group_size", "rotation_config"] {
            let is_given = |value: &&Value| !value.is_null() && value.as_object().is_none_or(|map| !map.is_empty());
            if fields.get(key).filter(is_given).is_some() {
                let reason = "Kvant does not make such weights of a recipe of AutoRound";
                let hint = "remove it; ‹scheme› Q4_K_M and others make GGUF files, ‹algorithm› rotate rotates";
                return Err(RecipeError::unsupported(at(place, key), reason, hint));
            }
        }
        let own = fields.iter().filter(|(key, value)| LAYER_KEYS.contains(&key.as_str()) && !value.is_null());
        // Types and bits go together: those of inputs are as those of weights unless they are given.
        self.0.extend(own.map(|(key, value)| (key.clone(), value.clone())));
        Ok(self)
    }

    /// Whether weights are integers and inputs stay in float.
    pub(super) fn is_weights_only_integers(&self) -> bool {
        let is_int = self.text("", "data_type").is_ok_and(|kind| kind.is_none_or(|kind| kind.starts_with("int")));
        is_int && self.bits("", "act_", None).is_ok_and(|bits| bits >= 16)
    }

    /// The scheme as Kvant spells it.
    pub(super) fn spelling(&self, place: &str) -> Result<String, RecipeError> {
        let kind = self.text(place, "data_type")?.unwrap_or("int");
        let bits = self.bits(place, "", Some(kind))?;
        if bits >= 16 {
            return Ok(KEEP.to_owned());
        }
        let group = self.group(place, "group_size", 128)?;
        let is_symmetric = self.flag(place, "sym")?.unwrap_or(true);
        let scale = match self.text(place, "scale_dtype")? {
            None | Some("torch.float16" | "float16" | "fp16") => "",
            Some("torch.float32" | "float32" | "fp32") => ":f32",
            Some("torch.bfloat16" | "bfloat16" | "bf16") => ":bf16",
            Some(other) => {
                let reason = format!("{} is not a type of scales", quoted(other));
                return Err(RecipeError::unsupported(at(place, "scale_dtype"), reason, HINT));
            }
        };
        let weight = match number_type(&at(place, "data_type"), kind, bits)? {
            NumberType::Int if is_symmetric => format!("int{bits}:{group}{scale}"),
            NumberType::Int => format!("uint{bits}:{group}:zp{scale}"),
            NumberType::Fp8 => format!("e4m3:{group}{scale}"),
            NumberType::Mx { element, .. } => format!("{element}:{group}:e8m0"),
            NumberType::Nv { .. } => format!("e2m1:{group}:e4m3:f32"),
            NumberType::NvE5m3 => format!("e2m1:{group}:e5m3"),
        };
        let scheme = match self.input(place, kind, &group, is_symmetric)? {
            Some(input) => format!("{weight}+{input}"),
            None => weight,
        };
        match scheme.parse::<LayerScheme>() {
            Ok(scheme) => Ok(scheme.to_string()),
            Err(problem) => {
                Err(RecipeError::unsupported(place, format!("no scheme of Kvant is this: {problem}"), HINT))
            }
        }
    }

    /// The scheme of what layers read.
    fn input(&self, place: &str, kind: &str, group: &str, is_symmetric: bool) -> Result<Option<String>, RecipeError> {
        let own = self.text(place, "act_data_type")?;
        let bits = self.bits(place, "act_", own.filter(|_| !self.0.contains_key("act_bits")))?;
        if bits >= 16 {
            return Ok(None);
        }
        let group = match self.0.get("act_group_size") {
            Some(_) => self.group(place, "act_group_size", 128)?,
            None => group.to_owned(),
        };
        let is_symmetric = self.flag(place, "act_sym")?.unwrap_or(is_symmetric);
        let is_dynamic = self.flag(place, "act_dynamic")?.unwrap_or(true);
        let timing = if is_dynamic { "!dynamic" } else { "!static" };
        let own = own.filter(|own| *own != "float");
        Ok(Some(match number_type(&at(place, "act_data_type"), own.unwrap_or(kind), bits)? {
            NumberType::Int if is_symmetric => format!("int{bits}:{group}{timing}"),
            NumberType::Int => format!("uint{bits}:{group}:zp{timing}"),
            NumberType::Fp8 => format!("e4m3:{group}{timing}"),
            NumberType::Mx { element, is_rceil } => {
                format!("{element}:{group}:e8m0-{}{timing}", if is_rceil { "rceil" } else { "floor" })
            }
            NumberType::Nv { is_static: true } => format!("e2m1:{group}:e4m3:f32!local"),
            NumberType::Nv { is_static: false } => format!("e2m1:{group}:e4m3:f32{timing}"),
            NumberType::NvE5m3 => format!("e2m1:{group}:e5m3{timing}"),
        }))
    }

    /// The bits of weights or inputs; those that a type names win.
    fn bits(&self, place: &str, prefix: &str, kind: Option<&str>) -> Result<u64, RecipeError> {
        let key = format!("{prefix}bits");
        let usual = if prefix.is_empty() { 4 } else { 16 };
        if let Some(bits) = kind.and_then(bits_of_type) {
            return Ok(bits);
        }
        match self.0.get(&key) {
            None => Ok(usual),
            Some(value) => {
                let invalid =
                    || RecipeError::invalid(at(place, &key), "is not a number of bits", "give a whole number");
                value.as_u64().filter(|bits| (1..=32).contains(bits)).ok_or_else(invalid)
            }
        }
    }

    /// Groups of columns, rows, blocks, or the whole tensor.
    fn group(&self, place: &str, key: &str, usual: i64) -> Result<String, RecipeError> {
        let invalid = || {
            let hint = "give -1 for channels, 0 for the tensor, the columns of a group, or [rows, columns] of a block";
            RecipeError::invalid(at(place, key), "is not the size of a group", hint)
        };
        if let Some(Value::Array(sides)) = self.0.get(key) {
            let sides: Option<Vec<u64>> = sides.iter().map(Value::as_u64).collect();
            return match sides.as_deref() {
                Some([rows, columns]) => Ok(format!("b{rows}x{columns}")),
                _ => Err(invalid()),
            };
        }
        match self.0.get(key).map_or(Some(usual), Value::as_i64) {
            Some(-1) => Ok("channel".to_owned()),
            Some(0) => Ok("tensor".to_owned()),
            Some(size) if size > 0 => Ok(format!("g{size}")),
            _ => Err(invalid()),
        }
    }

    fn text(&self, place: &str, key: &str) -> Result<Option<&str>, RecipeError> {
        let invalid = || RecipeError::invalid(at(place, key), "is not a text", HINT);
        self.0.get(key).map(|value| value.as_str().ok_or_else(invalid)).transpose()
    }

    fn flag(&self, place: &str, key: &str) -> Result<Option<bool>, RecipeError> {
        let invalid = || RecipeError::invalid(at(place, key), "is neither true nor false", HINT);
        self.0.get(key).map(|value| value.as_bool().ok_or_else(invalid)).transpose()
    }
}

fn at(place: &str, key: &str) -> String {
    if place.is_empty() { key.to_owned() } else { format!("{place}.{key}") }
}

/// The kinds of types, whose names bits may follow.
const KINDS: [&str; 5] = ["mx_int", "mx_fp", "nv_fp", "int", "fp"];

/// The bits that the name of a type states.
fn bits_of_type(name: &str) -> Option<u64> {
    let rest = KINDS.iter().find_map(|kind| name.strip_prefix(kind))?;
    let digits: String = rest.chars().take_while(char::is_ascii_digit).take(2).collect();
    digits.parse().ok()
}

fn number_type(place: &str, name: &str, bits: u64) -> Result<NumberType, RecipeError> {
    let (plain, is_rceil) = match name.strip_suffix("_rceil") {
        Some(plain) => (plain, true),
        None => (name, false),
    };
    let mx = |element| Ok(NumberType::Mx { element, is_rceil });
    match (plain, bits) {
        ("int", 2..=8) => Ok(NumberType::Int),
        ("fp" | "float" | "fp8" | "fp8_e4m3", 8) => Ok(NumberType::Fp8),
        (_, 2..=8) if plain == format!("int{bits}") => Ok(NumberType::Int),
        ("mx_fp" | "mx_fp4" | "mx_fp4e2m1", 4) => mx("e2m1"),
        ("mx_fp" | "mx_fp6" | "mx_fp6e2m3", 6) => mx("e2m3"),
        ("mx_fp6e3m2", 6) => mx("e3m2"),
        ("mx_fp" | "mx_fp8" | "mx_fp8e4m3", 8) => mx("e4m3"),
        ("mx_fp8e5m2", 8) => mx("e5m2"),
        ("nv_fp" | "nv_fp4", 4) => Ok(NumberType::Nv { is_static: false }),
        ("nv_fp4_with_static_gs", 4) => Ok(NumberType::Nv { is_static: true }),
        ("nvfp4_v2", 4) => Ok(NumberType::NvE5m3),
        _ => {
            let reason = format!("{} of {bits} bits is not a type that Kvant has", quoted(name));
            Err(RecipeError::unsupported(place, reason, HINT))
        }
    }
}

/// The fields of a scheme by its name in capitals.
fn named(name: &str) -> Option<Value> {
    let mx = |bits: u32, inputs: &str| json!({"bits": bits, "group_size": 32, "data_type": "mx_fp", "act_bits": bits, "act_data_type": inputs});
    let int8 = || json!({"bits": 8, "group_size": -1, "data_type": "int", "act_bits": 8, "act_data_type": "int", "act_group_size": -1});
    Some(match name {
        "BF16" => json!({"bits": 16, "data_type": "fp"}),
        "MXFP4" => mx(4, "mx_fp"),
        "MXFP6" => mx(6, "mx_fp"),
        "MXFP8" => mx(8, "mx_fp"),
        "MXFP4_RCEIL" => mx(4, "mx_fp_rceil"),
        "MXFP8_RCEIL" => mx(8, "mx_fp_rceil"),
        "NVFP4" => json!({
            "bits": 4, "group_size": 16, "data_type": "nv_fp", "act_bits": 4, "act_data_type": "nv_fp4_with_static_gs",
        }),
        "NVFP4_E5M3" => json!({
            "bits": 4, "group_size": 16, "data_type": "nvfp4_v2", "act_bits": 4, "act_data_type": "nvfp4_v2",
        }),
        "FPW8A16" => json!({"bits": 8, "group_size": 0, "data_type": "fp"}),
        "FP8_BLOCK" => json!({
            "bits": 8, "group_size": [128, 128], "data_type": "fp", "act_bits": 8, "act_data_type": "fp", "act_group_size": 128,
        }),
        "FP8_STATIC" => json!({
            "bits": 8, "group_size": -1, "data_type": "fp", "act_bits": 8, "act_data_type": "fp", "act_group_size": 0,
            "act_dynamic": false,
        }),
        "INT8" | "INT8_W8A8" => int8(),
        "INT4" => json!({
            "bits": 4, "group_size": -1, "data_type": "int", "act_bits": 4, "act_data_type": "int", "act_group_size": -1,
        }),
        _ => {
            let (bits, rest) = name.strip_prefix('W')?.split_once("A16")?;
            let bits: u32 = bits.parse().ok().filter(|bits| (2..=8).contains(bits))?;
            let group: u32 = match rest {
                "" => 128,
                "G64" => 64,
                "G32" => 32,
                _ => return None,
            };
            json!({"bits": bits, "group_size": group, "data_type": "int"})
        }
    })
}
