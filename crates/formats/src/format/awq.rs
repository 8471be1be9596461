//! AWQ's gemm layout (AutoAWQ 0.2): unsigned 4-bit codes with zero points, eight to a word along the output channels, scales
//! in binary16. Symmetric integers are held with 8 added and a zero point of 8. Its `quantization_config` is that of AutoAWQ, which
//! transformers, vLLM and SGLang read.

use super::grouped::Grouping;
use super::selector::{fused_name, whole_experts};
use super::stored::{CodeType, ModuleReader, ModuleTensors, ModuleWeight, WeightLayout};
use super::{Capabilities, CheckpointFormat, ExcludedNames, ModelDescription};
use kvant_container::Dtype;
use kvant_numeric::pack::NibbleOrder;
use kvant_quant::scheme::{IntScheme, LayerScheme, ScaleType};
use kvant_weights::import_error::ImportError;
use kvant_weights::parts::{CannotHold, Content, LayerSpec, Packing, Part, ScaleEncoding};
use serde_json::{Value, json};

/// The format.
pub(super) struct Awq;

impl CheckpointFormat for Awq {
    fn name(&self) -> &'static str {
        "awq"
    }

    fn about(&self) -> &'static str {
        "AWQ's gemm layout: 4-bit weights with zero points"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            side_files: &["quant_config.json"],
            scale: Some(ScaleType::F16),
            offset_codes: true,
            excluded_names: ExcludedNames::Parts,
            excluded_fields: &["modules_to_not_convert"],
            found_by_tensors: true,
            ..Capabilities::of_method("awq", &["awq"])
        }
    }

    fn parts(&self, layer: &LayerSpec<'_>) -> Result<Vec<Part>, CannotHold> {
        parts(layer)
    }

    fn config(&self, model: &ModelDescription<'_>) -> Result<Value, CannotHold> {
        quantization_config(model.layers, model.exclude)
    }

    fn reader(&self, _method: &str, config: &Value) -> Result<Box<dyn ModuleReader>, ImportError> {
        reader(config)
    }
}

/// Codes of a word.
const WORD: usize = 8;

/// `qweight` `[in, out / 8]`, `qzeros` `[in / group, out / 8]`, `scales` `[in / group, out]`.
fn parts(layer: &LayerSpec<'_>) -> Result<Vec<Part>, CannotHold> {
    let scheme = layer.grouped_int("AWQ", "int4 or uint4 (`uint4:g128:zp`)")?;
    check(layer, scheme)?;
    let (_, groups) = layer.scale_shape()?;
    let packing = Packing::OffsetNibbles(NibbleOrder::Awq);
    let words = layer.rows / WORD;
    let zero_points = Content::ZeroPoints { packing, transposed: true, less_one: false };
    let scales = Content::Scales { encoding: ScaleEncoding::F16, transposed: true };
    Ok(vec![
        layer.part("qweight", Dtype::I32, [layer.columns, words], Content::Codes { packing, transposed: true }),
        layer.part("qzeros", Dtype::I32, [groups, words], zero_points),
        layer.part("scales", Dtype::F16, [groups, layer.rows], scales),
    ])
}

fn check(layer: &LayerSpec<'_>, scheme: IntScheme) -> Result<(), CannotHold> {
    if scheme.format.bits() != 4 {
        let reason = format!("AWQ has codes of 4 bits, not of {}", scheme.format.bits());
        return Err(CannotHold::new(reason, "use uint4 (`uint4:g128:zp`), or ‹format› gptq or compressed-tensors"));
    }
    if layer.act_order {
        let reason = "AWQ has no group index, and these channels are not grouped in storage order";
        return Err(CannotHold::new(reason, "use ‹format› gptq or compressed-tensors"));
    }
    if !layer.rows.is_multiple_of(WORD) {
        let reason = format!("AWQ packs 8 output channels to a word, and it has {}", layer.rows);
        return Err(CannotHold::new(reason, "use ‹format› compressed-tensors, or keep the layer with ‹exclude›"));
    }
    Ok(())
}

/// The names, each after that of the layer that engines fuse of it and others: SGLang looks only for that.
fn with_fused(names: &[&str]) -> Vec<String> {
    names.iter().flat_map(|name| [fused_name(name), Some((*name).to_owned())]).flatten().collect()
}

/// What stays as it is, experts of a block also by the name of the module that holds them. Readers take these as parts of names.
fn excluded(layers: &[(&str, LayerScheme)], exclude: &[&str]) -> Vec<String> {
    let quantized: Vec<&str> = layers.iter().map(|(name, _)| *name).collect();
    let experts = whole_experts(exclude, &quantized).into_iter().map(str::to_owned);
    experts.chain(with_fused(exclude)).collect()
}

/// The whole object.
///
/// # Errors
/// [`CannotHold`] where layers differ in their groups, for which there is one number.
fn quantization_config(layers: &[(&str, LayerScheme)], exclude: &[&str]) -> Result<Value, CannotHold> {
    let groupings: Vec<(&str, Grouping)> = layers.iter().filter_map(|(n, s)| Some((*n, Grouping::of(s)?))).collect();
    let Some((_, first)) = groupings.first() else {
        return Err(CannotHold::new("AWQ has no such codes", "use uint4 (`uint4:g128:zp`)"));
    };
    if let Some((name, other)) = groupings.iter().find(|(_, grouping)| grouping.size != first.size) {
        let reason =
            format!("AWQ has one group size: `{name}` has {}, others {}", other.size_text(), first.size_text());
        return Err(CannotHold::new(reason, "use one scheme for all layers, or ‹format› gptq"));
    }
    Ok(json!({
        "bits": 4,
        "group_size": first.size_number(),
        "modules_to_not_convert": if exclude.is_empty() { Value::Null } else { json!(excluded(layers, exclude)) },
        "quant_method": "awq",
        "version": "gemm",
        "zero_point": true,
    }))
}

pub(super) fn reader(config: &Value) -> Result<Box<dyn ModuleReader>, ImportError> {
    let place = |key: &str| format!("quantization_config.{key}");
    let bits = ["bits", "w_bit"].iter().find_map(|key| config.get(*key)?.as_u64()).unwrap_or(4);
    if bits != 4 {
        return Err(ImportError::unsupported(place("bits"), format!("AWQ with {bits} bits"), HINT));
    }
    let version = config.get("version").and_then(Value::as_str).unwrap_or("gemm");
    match version.eq_ignore_ascii_case("gemm") {
        true => Ok(Box::new(AwqReader)),
        false => {
            let reason = format!("the layout {} of AWQ is not read", kvant_weights::recipe_error::quoted(version));
            Err(ImportError::unsupported(place("version"), reason, HINT))
        }
    }
}

const HINT: &str = "use a checkpoint with 4 bits in the gemm layout";

/// Reads the gemm layout.
#[derive(Debug)]
struct AwqReader;

impl ModuleReader for AwqReader {
    fn weights(&self, module: &ModuleTensors<'_, '_>) -> Result<Vec<ModuleWeight>, ImportError> {
        if module.tensor("qweight").is_none() {
            return Ok(Vec::new());
        }
        let (columns, words) = module.matrix_shape("qweight")?;
        let (groups, rows) = module.matrix_shape("scales")?;
        if words.checked_mul(8) != Some(rows) || rows == 0 || groups == 0 || columns == 0 {
            let reason = format!("{words} words of 8 codes are not {rows} output channels");
            return Err(ImportError::invalid(module.tensor_name("qweight"), reason));
        }
        let part = |suffix: &str, dtype, shape: [usize; 2], content| Part {
            name: module.tensor_name(suffix),
            dtype,
            shape: shape.to_vec(),
            content,
        };
        let (packing, transposed) = (Packing::Words(NibbleOrder::Awq), true);
        let scales = Content::Scales { encoding: ScaleEncoding::F16, transposed };
        let parts = vec![
            part("qweight", Dtype::I32, [columns, words], Content::Codes { packing, transposed }),
            part("scales", Dtype::F16, [groups, rows], scales),
            part("qzeros", Dtype::I32, [groups, words], Content::ZeroPoints { packing, transposed, less_one: false }),
        ];
        if !columns.is_multiple_of(groups) {
            let reason = format!("has {groups} groups, which do not divide {columns} input channels");
            return Err(ImportError::invalid(module.tensor_name("scales"), reason));
        }
        let element = CodeType::Integer { bits: 4, signed: false };
        let layout = WeightLayout::new(element, (rows, columns), (1, columns / groups), parts);
        Ok(vec![ModuleWeight::of(module, layout)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn awq_config_has_one_group_size() {
        let scheme = |text: &str| text.parse::<LayerScheme>().unwrap();
        let same = [("a", scheme("uint4:g64:zp")), ("b", scheme("int4:g64"))];
        let config = quantization_config(&same, &["lm_head"]).unwrap();
        assert_eq!((&config["group_size"], &config["modules_to_not_convert"]), (&json!(64), &json!(["lm_head"])));
        let kept = quantization_config(&same, &["m.0.k_proj", "m.0.q_proj"]).unwrap();
        assert_eq!(kept["modules_to_not_convert"], json!(["m.0.k_proj", "m.0.qkv_proj", "m.0.q_proj"]));
        let experts = quantization_config(&same, &["m.0.experts.0.up_proj", "m.0.experts.1.up_proj"]).unwrap();
        assert_eq!(experts["modules_to_not_convert"][0], json!("m.0.experts"));
        let channel = quantization_config(&[("a", scheme("int4:channel"))], &[]).unwrap();
        assert_eq!((&channel["group_size"], &channel["modules_to_not_convert"]), (&json!(-1), &Value::Null));
        let mixed = [same[0], ("c", scheme("uint4:g128:zp"))];
        assert!(quantization_config(&mixed, &[]).unwrap_err().reason.contains("`c` has 128"));
    }
}
