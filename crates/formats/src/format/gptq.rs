//! GPTQ's layout (AutoGPTQ, GPTQModel): unsigned codes of 2, 3, 4 or 8 bits as streams down the input channels, zero points
//! along the output channels, scales in binary16, and the group of every input channel. The first version stores zero points
//! less 1, the second as they are. Its `quantization_config` is that of GPTQModel, which transformers, vLLM and SGLang read.

use super::grouped::Grouping;
use super::selector::{Selector, commonest, escape, fused_name, select, whole_experts};
use super::stored::{CodeType, ModuleReader, ModuleTensors, ModuleWeight, WeightLayout};
use super::{Capabilities, CheckpointFormat, ExcludedNames, ModelDescription, awq};
use kvant_container::Dtype;
use kvant_quant::scheme::{LayerScheme, ScaleType};
use kvant_weights::import_error::ImportError;
use kvant_weights::parts::{CannotHold, Content, LayerSpec, Packing, Part, ScaleEncoding};
use serde_json::{Map, Value, json};

/// The format, by how it stores zero points.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Gptq {
    /// Less 1.
    V1,
    /// As they are.
    V2,
}

impl CheckpointFormat for Gptq {
    fn name(&self) -> &'static str {
        match self {
            Gptq::V1 => "gptq",
            Gptq::V2 => "gptq_v2",
        }
    }

    fn about(&self) -> &'static str {
        match self {
            Gptq::V1 => "GPTQ's layout, as GPTQModel writes it: weights of 2, 4 or 8 bits",
            Gptq::V2 => "GPTQ's second layout, whose zero points are stored as they are: 3 bits too",
        }
    }

    fn capabilities(&self) -> Capabilities {
        let (reads, side_files): (&[&str], &[&str]) = match self {
            Gptq::V1 => (&["gptq", "auto-round"], &["quantize_config.json"]),
            // The same `quant_method`, whose reader is told the version.
            Gptq::V2 => (&[], &[]),
        };
        Capabilities {
            side_files,
            scale: Some(ScaleType::F16),
            act_order: true,
            offset_codes: true,
            excluded_names: ExcludedNames::Expressions,
            found_by_tensors: true,
            ..Capabilities::of_method("gptq", reads)
        }
    }

    fn parts(&self, layer: &LayerSpec<'_>) -> Result<Vec<Part>, CannotHold> {
        parts(*self, layer)
    }

    fn config(&self, model: &ModelDescription<'_>) -> Result<Value, CannotHold> {
        quantization_config(model.layers, model.exclude, self.name(), model.act_order)
    }

    fn reader(&self, method: &str, config: &Value) -> Result<Box<dyn ModuleReader>, ImportError> {
        if method == "auto-round" { auto_round_reader(config) } else { reader(config) }
    }
}

/// `qweight` `[in * bits / 32, out]`, `qzeros` `[in / group, out * bits / 32]`, `scales` `[in / group, out]`, `g_idx` `[in]`.
fn parts(version: Gptq, layer: &LayerSpec<'_>) -> Result<Vec<Part>, CannotHold> {
    let scheme = layer.grouped_int("GPTQ", "integers of 2, 3, 4 or 8 bits (`int4:g128`)")?;
    let bits = scheme.format.bits();
    check(version, layer, bits)?;
    let (_, groups) = layer.scale_shape()?;
    let (down, along) = (Packing::OffsetWordsDown(bits), Packing::OffsetWords(bits));
    let zero_points = Content::ZeroPoints { packing: along, transposed: true, less_one: version == Gptq::V1 };
    let scales = Content::Scales { encoding: ScaleEncoding::F16, transposed: true };
    let codes = Content::Codes { packing: down, transposed: true };
    Ok(vec![
        layer.part("qweight", Dtype::I32, down.shape(layer.columns, layer.rows), codes),
        layer.part("qzeros", Dtype::I32, along.shape(groups, layer.rows), zero_points),
        layer.part("scales", Dtype::F16, [groups, layer.rows], scales),
        layer.part("g_idx", Dtype::I32, [layer.columns], Content::Groups),
    ])
}

fn check(version: Gptq, layer: &LayerSpec<'_>, bits: u32) -> Result<(), CannotHold> {
    if !matches!(bits, 2 | 3 | 4 | 8) {
        let reason = format!("GPTQ has codes of 2, 3, 4 or 8 bits, not of {bits}");
        return Err(CannotHold::new(reason, "use another width, or ‹format› compressed-tensors"));
    }
    if (version, bits) == (Gptq::V1, 3) {
        let reason = "readers of GPTQ's first version do not agree on zero points of 3 bits";
        return Err(CannotHold::new(reason, "use ‹format› gptq_v2"));
    }
    let odd = [("output", layer.rows), ("input", layer.columns)];
    match odd.into_iter().find(|(_, length)| !(length * bits as usize).is_multiple_of(32)) {
        None => Ok(()),
        Some((axis, length)) => Err(CannotHold::new(
            format!("GPTQ packs whole words, but {length} {axis} channels of {bits} bits do not fill them"),
            "use ‹format› compressed-tensors, or keep the layer with ‹exclude›",
        )),
    }
}

/// The whole object. The commonest grouping of the layers is the default; `dynamic` has the others, and, after `-:`, the
/// modules that stay as they are. `act_order` says that channels are grouped otherwise than as they stand.
///
/// # Errors
/// [`CannotHold`] for layers other than grouped integers.
fn quantization_config(
    layers: &[(&str, LayerScheme)],
    exclude: &[&str],
    checkpoint_format: &str,
    act_order: bool,
) -> Result<Value, CannotHold> {
    let groupings: Vec<(&str, Grouping)> = layers.iter().filter_map(|(n, s)| Some((*n, Grouping::of(s)?))).collect();
    let usual = commonest(&groupings).ok_or_else(|| CannotHold::new("GPTQ has no such codes", "use int4:g128"))?;
    Ok(json!({
        "bits": usual.bits,
        "checkpoint_format": checkpoint_format,
        "desc_act": act_order,
        "dynamic": dynamic(&groupings, exclude, usual),
        "group_size": usual.size_number(),
        "lm_head": layers.iter().any(|(name, _)| *name == "lm_head"),
        "meta": {"quantizer": [concat!("kvant:", env!("CARGO_PKG_VERSION"))]},
        "pack_dtype": "int32",
        "quant_method": "gptq",
        "sym": usual.symmetric,
    }))
}

/// The deviations from the default, by regular expressions that match from the start of a module's name.
fn dynamic(groupings: &[(&str, Grouping)], exclude: &[&str], usual: Grouping) -> Map<String, Value> {
    let names = |keep: &dyn Fn(Grouping) -> bool| -> Vec<&str> {
        groupings.iter().filter(|(_, grouping)| keep(*grouping)).map(|(name, _)| *name).collect()
    };
    let mut rules = Map::new();
    for (grouping, selectors) in select(groupings, exclude).into_iter().filter(|(grouping, _)| *grouping != usual) {
        let others = [names(&|other| other != grouping), exclude.to_vec()].concat();
        let experts = whole_experts(&names(&|other| other == grouping), &others).into_iter().map(whole_module);
        let rule = json!({"bits": grouping.bits, "group_size": grouping.size_number(), "sym": grouping.symmetric});
        let patterns = experts.chain(with_fused(selectors.iter().map(expression).collect()));
        rules.extend(patterns.map(|pattern| (format!("+:{pattern}"), rule.clone())));
    }
    let experts = whole_experts(exclude, &names(&|_| true)).into_iter().map(whole_module);
    let kept = with_fused(exclude.iter().map(|name| kept_expression(name)).collect());
    rules.extend(experts.chain(kept).map(|pattern| (format!("-:{pattern}"), json!({}))));
    rules
}

/// A module and all that it holds.
fn whole_module(name: &str) -> String {
    format!("^{}(\\.|$)", escape(name))
}

fn expression(selector: &Selector) -> String {
    match selector {
        Selector::Leaf(_) => format!("^{}", selector.regex().trim_start_matches("re:")),
        Selector::Name(name) => format!("^{}$", escape(name)),
    }
}

/// A module's name, or an expression behind `re:`.
fn kept_expression(name: &str) -> String {
    match name.strip_prefix("re:") {
        Some(expression) => format!("^{expression}"),
        None => expression(&Selector::Name(name.to_owned())),
    }
}

/// The expressions, each after that of the layer that engines fuse of it and others: its name is the one that they look up.
fn with_fused(patterns: Vec<String>) -> Vec<String> {
    let of_fused = |pattern: &String| Some(format!("{}$", fused_name(pattern.strip_suffix('$')?)?));
    patterns.into_iter().flat_map(|pattern| [of_fused(&pattern), Some(pattern)]).flatten().collect()
}

const READ_HINT: &str = "dequantize the checkpoint with the tool that made it";

fn reader(config: &Value) -> Result<Box<dyn ModuleReader>, ImportError> {
    let format = ["checkpoint_format", "format"].iter().find_map(|key| config.get(*key)?.as_str()).unwrap_or("gptq");
    let less_one = match format {
        "gptq" => true,
        "gptq_v2" => false,
        other => {
            let reason = format!("the layout {} of GPTQ is not read", kvant_weights::recipe_error::quoted(other));
            return Err(ImportError::unsupported("quantization_config.checkpoint_format", reason, READ_HINT));
        }
    };
    let number = |key: &str| config.get(key).and_then(Value::as_u64).and_then(|number| usize::try_from(number).ok());
    Ok(Box::new(GptqReader { bits: number("bits").unwrap_or(4), group: number("group_size"), less_one }))
}

/// AutoRound's files, where they are laid out as one of the others are.
fn auto_round_reader(config: &Value) -> Result<Box<dyn ModuleReader>, ImportError> {
    match config.get("packing_format").and_then(Value::as_str) {
        Some("auto_round:auto_gptq") => reader(config),
        Some("auto_round:auto_awq") => awq::reader(config),
        other => {
            let reason = format!("{} is not read", kvant_weights::recipe_error::quoted(other.unwrap_or("null")));
            Err(ImportError::unsupported("quantization_config.packing_format", reason, READ_HINT))
        }
    }
}

/// Reads both versions.
#[derive(Debug)]
struct GptqReader {
    /// Bits of a code, where no list gives the number of input channels.
    bits: usize,
    /// Input channels of a group.
    group: Option<usize>,
    /// Whether zero points are stored less 1, as the first version of the format has it.
    less_one: bool,
}

impl ModuleReader for GptqReader {
    fn weights(&self, module: &ModuleTensors<'_, '_>) -> Result<Vec<ModuleWeight>, ImportError> {
        match module.tensor("qweight") {
            Some(_) => Ok(vec![ModuleWeight::of(module, self.layout(module)?)]),
            None => Ok(Vec::new()),
        }
    }
}

impl GptqReader {
    fn layout(&self, module: &ModuleTensors<'_, '_>) -> Result<WeightLayout, ImportError> {
        let (words, rows) = module.matrix_shape("qweight")?;
        let (groups, _) = module.matrix_shape("scales")?;
        let (columns, bits) = self.columns_and_bits(module, words)?;
        if rows == 0 || groups == 0 {
            return Err(ImportError::invalid(module.name, "is empty"));
        }
        let group = self.group.filter(|group| *group > 0 && columns.div_ceil(*group) == groups);
        let part = |suffix: &str, dtype, shape: [usize; 2], content| Part {
            name: module.tensor_name(suffix),
            dtype,
            shape: shape.to_vec(),
            content,
        };
        let (packing, along) = (Packing::OffsetWordsDown(bits), Packing::OffsetWords(bits));
        let transposed = true;
        let scales = Content::Scales { encoding: ScaleEncoding::F16, transposed };
        let zero_points = Content::ZeroPoints { packing: along, transposed, less_one: self.less_one };
        let parts = vec![
            part("qweight", Dtype::I32, [words, rows], Content::Codes { packing, transposed }),
            part("scales", Dtype::F16, [groups, rows], scales),
            part("qzeros", Dtype::I32, [groups, along.shape(1, rows)[1]], zero_points),
        ];
        let element = CodeType::Integer { bits, signed: false };
        let tile = (1, group.unwrap_or(columns.div_ceil(groups)));
        let groups = module.tensor("g_idx").map(|_| module.tensor_name("g_idx"));
        let layout = WeightLayout::new(element, (rows, columns), tile, parts);
        Ok(WeightLayout { groups, ..layout })
    }

    /// Layers may differ in bits, which follow from the number of words where that of channels is known.
    fn columns_and_bits(&self, module: &ModuleTensors<'_, '_>, words: usize) -> Result<(usize, u32), ImportError> {
        let listed = module.tensor("g_idx").and_then(|view| view.shape().first().copied());
        let columns = listed.unwrap_or(words.saturating_mul(32) / self.bits.max(1));
        let bits =
            [2, 3, 4, 8].into_iter().find(|bits| Some(words) == columns.checked_mul(*bits).map(|b| b.div_ceil(32)));
        match bits.filter(|_| columns > 0) {
            Some(bits) => Ok((columns, bits as u32)),
            None => {
                let reason = format!("{words} words are not {columns} codes of 2, 3, 4 or 8 bits");
                Err(ImportError::invalid(module.tensor_name("qweight"), reason))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::Pattern;

    fn scheme(text: &str) -> LayerScheme {
        text.parse().unwrap()
    }

    #[test]
    fn commonest_scheme_is_the_default_and_others_are_overrides() {
        let layers = [
            ("m.0.q_proj", scheme("int4:g128")),
            ("m.0.up_proj", scheme("int4:g128")),
            ("m.0.down_proj", scheme("int8:channel")),
            ("m.1.down_proj", scheme("int8:channel")),
            ("m.1.up_proj", scheme("int4:g128")),
        ];
        let config = quantization_config(&layers, &["lm_head", "m.1.q_proj"], "gptq", false).unwrap();
        assert_eq!((&config["bits"], &config["group_size"], &config["sym"]), (&json!(4), &json!(128), &json!(true)));
        let dynamic = config["dynamic"].as_object().unwrap();
        let fate = |module: &str| {
            let matches =
                |rule: &&String| Pattern::new("dynamic", &format!("re:{}", &rule[2..])).unwrap().matches(module);
            dynamic.keys().find(matches).map(|rule| (rule[..2].to_owned(), dynamic[rule].clone()))
        };
        let eight = json!({"bits": 8, "group_size": -1, "sym": true});
        assert_eq!(fate("m.1.down_proj"), Some(("+:".to_owned(), eight)));
        assert_eq!(fate("lm_head"), Some(("-:".to_owned(), json!({}))));
        assert_eq!(fate("m.1.qkv_proj"), Some(("-:".to_owned(), json!({}))));
        assert_eq!((fate("m.0.q_proj"), fate("m.0.up_proj"), fate("xlm_head")), (None, None, None));
    }

    #[test]
    fn experts_of_a_block_are_named_together() {
        let layers = [
            ("m.0.experts.0.up", scheme("int4:g32")),
            ("m.0.experts.1.up", scheme("int4:g32")),
            ("m.1.experts.0.up", scheme("int8:g32")),
            ("m.3.experts.0.up", scheme("int8:g32")),
            ("m.3.experts.1.up", scheme("int4:g32")),
        ];
        let config = quantization_config(&layers, &["m.2.experts.0.up"], "gptq", false).unwrap();
        let rules: Vec<&String> = config["dynamic"].as_object().unwrap().keys().collect();
        assert!(rules.iter().any(|rule| *rule == r"+:^m\.1\.experts(\.|$)"), "{rules:?}");
        assert!(rules.iter().any(|rule| *rule == r"-:^m\.2\.experts(\.|$)"), "{rules:?}");
        assert!(!rules.iter().any(|rule| rule.contains(r"m\.0") || rule.contains(r"m\.3\.experts(")), "{rules:?}");
    }
}
