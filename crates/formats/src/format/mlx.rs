//! The layout of MLX, which mlx-lm loads: unsigned codes of 2 to 8 bits in groups, as streams of 32-bit words, with a scale and a bias for
//! each group (`code * scale + bias`), and MXFP4 and MXFP8 blocks. config.json has it as `quantization`; layers without scales are floats.
//! Source: `mlx.core.quantize` and `mlx_lm.utils.load_model` (mlx 0.32).

use super::selector::commonest;
use super::stored::{CodeType, ModuleReader, ModuleTensors, ModuleWeight, WeightLayout};
use super::{Capabilities, CheckpointFormat, ModelDescription, StackedExpert};
use kvant_container::{Dtype, TensorView};
use kvant_model::model_config::ModelConfig;
use kvant_model::network::Network;
use kvant_numeric::format::MiniFloat;
use kvant_quant::scheme::{
    Axis, FloatScale, FloatScheme, Granularity, IntScheme, LayerScheme, TensorScheme, ZeroPoint,
};
use kvant_weights::import_error::ImportError;
use kvant_weights::parts::{CannotHold, Content, Fused, LayerSpec, Packing, Part, ScaleEncoding};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// The `quant_method` by which Kvant knows the layout; MLX itself states none.
pub(crate) const METHOD: &str = "mlx";

/// The key of config.json that MLX reads.
pub(crate) const KEY: &str = "quantization";

/// The format.
pub(super) struct Mlx;

impl CheckpointFormat for Mlx {
    fn name(&self) -> &'static str {
        METHOD
    }

    fn about(&self) -> &'static str {
        "MLX's groups of 2 to 8 bits with scales and biases, MXFP4 and MXFP8, as mlx-lm loads them"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            offset_codes: true,
            integer_weight: true,
            fuses_nothing: true,
            found_by_tensors: true,
            key: Some(KEY),
            ..Capabilities::of_method(METHOD, &[METHOD])
        }
    }

    fn parts(&self, layer: &LayerSpec<'_>) -> Result<Vec<Part>, CannotHold> {
        parts(layer)
    }

    fn stacked(&self, family: &str, module: &str) -> Option<StackedExpert> {
        let (expert, module) = stacked_name(module).filter(|_| STACKED.contains(&family))?;
        Some(StackedExpert { module, expert })
    }

    fn config(&self, model: &ModelDescription<'_>) -> Result<Value, CannotHold> {
        config(model.layers, model.exclude)
    }

    fn complete(&self, config: &mut Map<String, Value>) {
        complete(config);
        if let Some(Value::Object(mut text)) = config.get("text_config").cloned() {
            // Classes of models with several parts look for each of these in one of the two places, and take a default where it is absent.
            share(config, &mut text, "tie_word_embeddings");
            // That of the whole model decides, and the classes read that of the language model.
            if let Some(tied) = config.get("tie_word_embeddings") {
                text.insert("tie_word_embeddings".to_owned(), tied.clone());
            }
            share(&text, config, "vocab_size");
            complete(&mut text);
            config.insert("text_config".to_owned(), Value::Object(text));
        }
    }

    fn departures(&self, config: &ModelConfig, network: &Network) -> Result<Vec<String>, CannotHold> {
        departures(config, network)
    }

    fn reader(&self, _method: &str, config: &Value) -> Result<Box<dyn ModuleReader>, ImportError> {
        Ok(Box::new(MlxReader { stated: config.clone() }))
    }
}

/// Widths of codes.
const BITS: [u32; 6] = [2, 3, 4, 5, 6, 8];

/// Sizes of groups.
const GROUPS: [u32; 3] = [32, 64, 128];

/// The mode of integers with scales and biases.
const AFFINE: &str = "affine";

/// Modes that are read and written.
const MODES: [&str; 3] = [AFFINE, "mxfp4", "mxfp8"];

/// Input channels of a block of MXFP4 and MXFP8.
const BLOCK: u32 = 32;

/// Families whose classes in mlx-lm stack experts only while they are floats.
const STACKED: [&str; 2] = ["ernie4_5_moe", "qwen3_moe"];

/// The module of all experts of a block, in place of `experts.N`.
const SWITCH: &str = "switch_mlp";

/// The names of layers of experts in Mixtral's checkpoints, and in the module of all experts.
const OF_MIXTRAL: [(&str, &str); 3] = [("w1", "gate_proj"), ("w2", "down_proj"), ("w3", "up_proj")];

/// The number of an expert, and its layer's name in the module of all experts; `None` for other layers.
fn stacked_name(module: &str) -> Option<(usize, String)> {
    let (block, rest) = module.split_once(".experts.")?;
    let (expert, layer) = rest.split_once('.')?;
    let layer = OF_MIXTRAL.iter().find(|(own, _)| *own == layer).map_or(layer, |(_, stacked)| *stacked);
    Some((expert.parse().ok()?, format!("{block}.{SWITCH}.{layer}")))
}

/// The name of one expert's layer in the module of all experts.
fn expert_name(stacked: &str, expert: usize) -> Option<String> {
    let (block, layer) = stacked.split_once(&format!(".{SWITCH}."))?;
    let own = OF_MIXTRAL.iter().find(|(_, stacked)| block.ends_with("block_sparse_moe") && *stacked == layer);
    Some(format!("{block}.experts.{expert}.{}", own.map_or(layer, |(own, _)| *own)))
}

/// A layer's quantization in MLX's terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Mode {
    name: &'static str,
    group_size: u32,
    bits: u32,
}

impl Mode {
    fn of(scheme: &LayerScheme) -> Result<Mode, CannotHold> {
        let mode = Mode::of_weight(scheme.weight)?;
        if scheme.input.is_some() || scheme.output.is_some() {
            let reason = format!("MLX's layout quantizes only weights, not `{scheme}`");
            return Err(CannotHold::new(reason, "leave activations out with ‹weights-only›"));
        }
        Ok(mode)
    }

    fn of_weight(weight: TensorScheme) -> Result<Mode, CannotHold> {
        let mx = match weight {
            TensorScheme::Int(int) => return Mode::of_integers(int),
            TensorScheme::Float(FloatScheme { format, granularity, scale: FloatScale::E8m0(_), .. }) => {
                mx_name(format).filter(|_| granularity == Granularity::group(BLOCK)).map(|name| (name, format.bits()))
            }
            _ => None,
        };
        let hint = "use integers in groups (`int4:g64`), mxfp4_weight_only (e2m1:g32:e8m0) or e4m3:g32:e8m0";
        let (name, bits) = mx.ok_or_else(|| CannotHold::new(format!("MLX has no `{weight}`"), hint))?;
        Ok(Mode { name, group_size: BLOCK, bits })
    }

    fn of_integers(int: IntScheme) -> Result<Mode, CannotHold> {
        let bits = int.format.bits();
        let refuse = |hint: &str| Err(CannotHold::new(format!("MLX has no `{}`", TensorScheme::Int(int)), hint));
        let size = match int.granularity {
            Granularity::Group { axis: Axis::Columns, size: Some(size) } => size.get(),
            _ => 0,
        };
        match int.zero_point {
            _ if !BITS.contains(&bits) => refuse("use 2, 3, 4, 5, 6 or 8 bits"),
            _ if !GROUPS.contains(&size) => refuse("use groups of 32, 64 or 128 input channels (`g64`)"),
            ZeroPoint::Float => refuse("use integer zero points (`:zp`)"),
            _ => Ok(Mode { name: AFFINE, group_size: size, bits }),
        }
    }

    fn to_json(self) -> Map<String, Value> {
        let pairs = [("group_size", json!(self.group_size)), ("bits", json!(self.bits)), ("mode", json!(self.name))];
        pairs.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
    }
}

/// MLX's name for blocks of these floats with powers of two as scales.
fn mx_name(format: MiniFloat) -> Option<&'static str> {
    match format {
        MiniFloat::E2M1 => Some("mxfp4"),
        MiniFloat::E4M3 => Some("mxfp8"),
        _ => None,
    }
}

/// `weight` `[out, in * bits / 32]`, `scales` `[out, in / group]`, and of integers `biases` of the same shape.
fn parts(layer: &LayerSpec<'_>) -> Result<Vec<Part>, CannotHold> {
    let mode = Mode::of(&layer.scheme)?;
    if layer.act_order {
        let reason = "MLX has no group index, and these channels are not grouped in storage order";
        return Err(CannotHold::new(reason, "use ‹format› gptq or compressed-tensors"));
    }
    let (_, groups) = layer.scale_shape()?;
    let part = |suffix: &str, dtype, columns: usize, content| match layer.fused {
        None => layer.part(suffix, dtype, [layer.rows, columns], content),
        Some(Fused { module, count }) => {
            Part { name: format!("{module}.{suffix}"), dtype, shape: vec![count, layer.rows, columns], content }
        }
    };
    let scale_part = |suffix: &str, encoding: ScaleEncoding, content| part(suffix, encoding.dtype(), groups, content);
    let packing = packing(mode.bits, matches!(layer.scheme.weight, TensorScheme::Int(_)));
    let words = layer.columns * mode.bits as usize / 32;
    let codes = Content::Codes { packing, transposed: false };
    let mut parts = vec![part("weight", Dtype::U32, words, codes)];
    let scales = |encoding| Content::Scales { encoding, transposed: false };
    match layer.scheme.weight {
        TensorScheme::Int(int) => {
            let encoding = layer.encoding(int.scale);
            parts.push(scale_part("scales", encoding, scales(encoding)));
            parts.push(scale_part("biases", encoding, Content::Biases { encoding }));
        }
        _ => parts.push(scale_part("scales", ScaleEncoding::E8m0, scales(ScaleEncoding::E8m0))),
    }
    Ok(parts)
}

/// How codes are packed: dense streams of 32-bit words, which bytes fill as they stand.
fn packing(bits: u32, are_integers: bool) -> Packing {
    match (are_integers, bits) {
        (true, _) => Packing::OffsetWords(bits),
        (false, 8) => Packing::Bytes,
        (false, _) => Packing::Bits(bits),
    }
}

/// The commonest mode, and that of every layer that deviates from it, by its name.
fn config(layers: &[(&str, LayerScheme)], exclude: &[&str]) -> Result<Value, CannotHold> {
    let modes = layers.iter().map(|(name, scheme)| Ok((*name, Mode::of(scheme)?)));
    let modes = modes.collect::<Result<Vec<_>, CannotHold>>()?;
    let usual = commonest(&modes).ok_or_else(|| CannotHold::new("MLX has no such codes", "use int4:g64"))?;
    let mut stated = usual.to_json();
    // One entry for all experts of a block, under the name of the module that holds them in MLX.
    let mut of_module: BTreeMap<String, (&str, Mode)> = BTreeMap::new();
    for (name, mode) in &modes {
        let key = stacked_name(name).map_or_else(|| (*name).to_owned(), |(_, stacked)| stacked);
        let (first, known) = *of_module.entry(key).or_insert((name, *mode));
        if known != *mode {
            let reason =
                format!("MLX stores the experts of a block alike, and `{first}` and `{name}` have different schemes");
            return Err(CannotHold::new(reason, "give all experts of a block one scheme"));
        }
    }
    let is_stacked = |name: &&&str| stacked_name(name).is_some_and(|(_, stacked)| of_module.contains_key(&stacked));
    if let Some(kept) = exclude.iter().find(is_stacked) {
        let reason =
            format!("MLX stores the experts of a block alike, and `{kept}` stays in float beside quantized ones");
        return Err(CannotHold::new(reason, "quantize all experts of a block, or none"));
    }
    let others = of_module.into_iter().filter(|(_, (_, mode))| *mode != usual);
    stated.extend(others.map(|(key, (_, mode))| (key, Value::Object(mode.to_json()))));
    stated.insert("quant_method".to_owned(), json!(METHOD));
    Ok(Value::Object(stated))
}

/// Model types whose classes in mlx-lm compute sliding windows. That of Llama and Mistral does where `layer_types` names such layers.
const WITH_WINDOWS: [&str; 13] = [
    "afmoe",
    "cohere2",
    "exaone4",
    "exaone_moe",
    "gemma3",
    "gemma3_text",
    "gemma3n",
    "gemma4",
    "gpt_oss",
    "ministral3",
    "mimo_v2_flash",
    "olmo3",
    "laguna",
];

/// Model types whose classes have SiLU, whatever config.json says.
const SILU: [&str; 12] = [
    "cohere", "cohere2", "granite", "llama", "mistral", "mixtral", "olmo2", "olmoe", "phi3", "qwen2", "qwen3",
    "stablelm",
];

/// Model types whose classes give other results than transformers, with floats too, as tests show.
const OTHERWISE: [(&str, &str); 4] = [
    ("dots1", "leaves the biases of routers out"),
    ("ernie4_5_moe", "leaves the biases of routers out"),
    ("glm", "turns other components of heads"),
    ("jamba", "computes something else"),
];

/// Model types whose classes mlx-lm 0.32 has, with those that it maps to others (`MODEL_REMAPPING`).
#[rustfmt::skip]
const MODEL_TYPES: [&str; 138] = [
    "afm7", "afmoe", "apertus", "baichuan_m1", "bailing_hybrid", "bailing_moe", "bailing_moe_linear",
    "bailing_moe_v3", "bitnet", "cohere", "cohere2", "dbrx", "deepseek", "deepseek_v2", "deepseek_v3", "deepseek_v32",
    "deepseek_v41", "deepseek_v41_text", "dots1", "ernie4_5", "ernie4_5_moe", "exaone", "exaone4", "exaone_moe",
    "falcon_h1", "falcon_mamba", "gear", "gemma", "gemma2", "gemma3", "gemma3_text", "gemma3n", "gemma4",
    "gemma4_text", "gemma4_unified", "glm", "glm4", "glm4_moe", "glm4_moe_lite", "glm_moe_dsa", "gpt2", "gpt_bigcode",
    "gpt_neox", "gpt_oss", "gptj", "granite", "granitemoe", "granitemoehybrid", "helium", "hunyuan",
    "hunyuan_v1_dense", "internlm2", "internlm3", "iquestcoder", "iquestloopcoder", "jamba", "joyai_llm_flash",
    "kimi_k2", "kimi_k25", "kimi_k3", "kimi_linear", "kimi_vl", "Klear", "laguna", "lfm2", "lfm2-vl", "lfm2_moe",
    "lille-130m", "llama", "llama4", "llama4_text", "llava", "longcat_flash", "longcat_flash_ngram", "mamba",
    "mamba2", "mellum", "mimo", "mimo_v2_flash", "minicpm", "minicpm3", "minimax", "minimax_m2", "minimax_m3_vl",
    "ministral3", "mistral", "mistral3", "mistral4", "mixtral", "muse_glimmer", "muse_spark", "nanbeige", "nanochat",
    "nemotron", "nemotron-nas", "nemotron_h", "olmo", "olmo2", "olmo3", "olmo_hybrid", "olmoe", "openelm", "phi",
    "phi-msft", "phi3", "phi3small", "phimoe", "phixtral", "pixtral", "plamo", "plamo2", "plamo3",
    "prism_hadamard_qwen35", "qwen", "qwen2", "qwen2_5_vl", "qwen2_moe", "qwen2_vl", "qwen3", "qwen3_5",
    "qwen3_5_moe", "qwen3_moe", "qwen3_next", "qwen3_vl", "qwen3_vl_moe", "recurrent_gemma", "rwkv7", "seed_oss",
    "smollm3", "solar_open", "spark2_5", "stablelm", "starcoder2", "step3p5", "talkie", "telechat3", "xverse",
    "youtu_llm",
];

/// The layers without a window among `layer_types`.
const FULL: &str = "full_attention";

/// What mlx-lm computes otherwise. Errors: a model that it has no class for.
fn departures(config: &ModelConfig, network: &Network) -> Result<Vec<String>, CannotHold> {
    let Some(name) = config.model_types.first().map(String::as_str) else { return Ok(Vec::new()) };
    // What is known of described families is among the rules of loaders.
    if network.family().is_none() && !MODEL_TYPES.contains(&name) {
        let reason = format!("mlx-lm has no class for the model type `{name}`");
        return Err(CannotHold::new(reason, "use another ‹format›"));
    }
    let routed = network.routed_blocks();
    if name == "qwen2_moe" && network.blocks().iter().any(|block| !routed.contains(block)) {
        let reason = "mlx-lm's class of qwen2_moe has experts in every block, and this model has blocks without";
        return Err(CannotHold::new(reason, "use another ‹format›"));
    }
    let types = &config.layer_types;
    if matches!(name, "afmoe" | "cohere2" | "gemma3" | "gemma3_text")
        && !types.is_empty()
        && !types.iter().any(|kind| kind == FULL)
    {
        let reason = format!(
            "mlx-lm's class of {name} looks for a layer without a window, and all layers of this model have one"
        );
        return Err(CannotHold::new(reason, "use another ‹format›"));
    }
    let layers_have_windows = matches!(name, "llama" | "mistral") && !config.layer_types.is_empty();
    let window = config.sliding_window.filter(|_| config.flag_or("use_sliding_window", true));
    let window = window.filter(|window| config.max_positions.is_none_or(|longest| *window < longest));
    let window = window.filter(|_| !WITH_WINDOWS.contains(&name) && !layers_have_windows).map(|window| {
        format!(
            "mlx-lm's class of {name} has no sliding windows: texts of more than {window} tokens are computed otherwise"
        )
    });
    let activation = config.activation.as_deref().filter(|stated| !matches!(*stated, "silu" | "swish"));
    let activation = activation
        .filter(|_| SILU.contains(&name))
        .map(|stated| format!("mlx-lm's class of {name} computes SiLU, and the model `{stated}`: results differ"));
    let clip = config.clip_qkv.map(|clip| {
        format!(
            "mlx-lm's class of {name} may not clip queries, keys and values at {clip} (`clip_qkv`): compare the results"
        )
    });
    let other = OTHERWISE.iter().find(|(of, _)| *of == name);
    let other = other.map(|(_, what)| format!("mlx-lm's class of {name} {what}: results differ"));
    Ok([window, activation, clip, other].into_iter().flatten().collect())
}

/// Keys of config.json as mlx-lm reads them, and as transformers 5 writes them instead.
const OLD_NAMES: [(&str, &str); 4] = [
    ("num_experts", "num_local_experts"),
    ("rotary_emb_base", "rope_theta"),
    ("rotary_pct", "partial_rotary_factor"),
    ("norm_eps", "layer_norm_eps"),
];

/// Keys that classes of mlx-lm want, and transformers leaves out where they have no effect.
const WANTED: [(&str, &str, Value); 3] = [
    ("apertus", "mlp_bias", Value::Bool(false)),
    ("apertus", "post_norm", Value::Bool(false)),
    ("apertus", "qk_norm", Value::Bool(true)),
];

/// Adds the keys of config.json that mlx-lm reads and transformers 5 writes otherwise: `rope_theta`, `rope_scaling` and
/// `partial_rotary_factor` beside `rope_parameters`, and older names. Without them it takes defaults, which compute something else.
fn complete(config: &mut Map<String, Value>) {
    let of_layers = |kind: &str| {
        let rope = config.get("rope_parameters")?;
        Some(rope.get(kind).unwrap_or(rope).as_object()?.clone())
    };
    let (full, sliding) = (of_layers("full_attention"), of_layers("sliding_attention"));
    let mut added: Vec<(&str, Value)> = Vec::new();
    if let Some(mut rope) = full {
        let theta = rope.shift_remove("rope_theta");
        added.extend(theta.map(|theta| ("rope_theta", theta)));
        added.extend(rope.get("partial_rotary_factor").map(|share| ("partial_rotary_factor", share.clone())));
        let kind = rope.get("rope_type").or(rope.get("type")).cloned().unwrap_or(json!("default"));
        let is_deepseek = config.get("model_type").is_some_and(|kind| kind == "deepseek_v2");
        let scaling = match (kind == json!("default"), is_deepseek) {
            (false, _) => Value::Object(rope.into_iter().chain([("type".to_owned(), kind)]).collect()),
            // Its class wants a scaling: one by 1 is none.
            (true, true) => json!({"type": "yarn", "factor": 1.0}),
            (true, false) => Value::Null,
        };
        added.push(("rope_scaling", scaling));
    }
    let is_apart = config.get("rope_parameters").is_some_and(|rope| rope.get("sliding_attention").is_some());
    let local = sliding.filter(|_| is_apart).and_then(|mut rope| rope.shift_remove("rope_theta"));
    added.extend(local.map(|theta| ("rope_local_base_freq", theta)));
    for (key, value) in added {
        config.entry(key).or_insert(value);
    }
    // The older of the two names of the kind.
    if let Some(Value::Object(scaling)) = config.get_mut("rope_scaling")
        && let Some(kind) = scaling.get("rope_type").cloned()
    {
        scaling.entry("type").or_insert(kind);
    }
    for (old, new) in OLD_NAMES {
        if let Some(value) = config.get(new).cloned() {
            config.entry(old).or_insert(value);
        }
    }
    for (model_type, key, value) in WANTED {
        if config.get("model_type").is_some_and(|stated| stated == model_type) {
            config.entry(key).or_insert(value);
        }
    }
}

/// Copies a key to an object that lacks it.
fn share(from: &Map<String, Value>, to: &mut Map<String, Value>, key: &str) {
    if let Some(value) = from.get(key).filter(|_| !to.contains_key(key)) {
        to.insert(key.to_owned(), value.clone());
    }
}

/// Reads layers that have scales.
#[derive(Debug)]
struct MlxReader {
    /// What config.json states of all layers, and by their names of those that deviate.
    stated: Value,
}

impl ModuleReader for MlxReader {
    fn weights(&self, module: &ModuleTensors<'_, '_>) -> Result<Vec<ModuleWeight>, ImportError> {
        let (Some(codes), Some(scales)) = (module.tensor("weight"), module.tensor("scales")) else {
            return Ok(Vec::new());
        };
        if codes.dtype() != Dtype::U32 {
            return Ok(Vec::new());
        }
        let wrong = || {
            let reason = format!("shape {:?} is not that of codes", codes.shape());
            ImportError::invalid(codes.name(), reason)
        };
        let (&[ref experts @ .., rows, words], &[.., groups]) = (codes.shape(), scales.shape()) else {
            return Err(wrong());
        };
        let layout = self.layout(module, (codes, scales), (rows, words, groups))?;
        match *experts {
            [] => Ok(vec![ModuleWeight::of(module, layout)]),
            [count] => {
                (0..count).map(|expert| of_expert(module.name, &layout, (expert, count)).ok_or_else(wrong)).collect()
            }
            _ => Err(wrong()),
        }
    }
}

/// The weight of one expert in the tensors of all.
fn of_expert(stacked: &str, layout: &WeightLayout, slice: (usize, usize)) -> Option<ModuleWeight> {
    let name = format!("{}.weight", expert_name(stacked, slice.0)?);
    let shape = vec![layout.rows, layout.columns];
    Some(ModuleWeight { name, shape, matrices: vec![WeightLayout { slice, ..layout.clone() }] })
}

impl MlxReader {
    /// What config.json states of a layer.
    fn of_layer(&self, module: &str) -> &Value {
        let stacked = || stacked_name(module).and_then(|(_, stacked)| self.stated.get(stacked));
        let own = self.stated.get(module).or_else(stacked);
        own.filter(|own| own.is_object() || **own == Value::Bool(false)).unwrap_or(&self.stated)
    }

    /// The mode that it states. MLX takes an absent one for affine.
    fn mode(&self, module: &str) -> &str {
        self.of_layer(module).get("mode").and_then(Value::as_str).unwrap_or(AFFINE)
    }

    /// Bits and size of groups that it states.
    fn stated(&self, module: &str) -> Option<(u32, u32)> {
        let stated = self.of_layer(module);
        let number = |key: &str| u32::try_from(stated.get(key)?.as_u64()?).ok();
        Some((number("bits")?, number("group_size")?))
            .filter(|(bits, size)| BITS.contains(bits) && GROUPS.contains(size))
    }

    /// Refuses a layer with scales that config.json states to be float, to have a mode that is not read, or that of other scales:
    /// mlx-lm does not load it.
    fn check_mode(&self, scales: TensorView<'_>, module: &str) -> Result<(), ImportError> {
        let mode = self.mode(module);
        if !MODES.contains(&mode) {
            let reason = format!("the mode {} of MLX is not read", kvant_weights::recipe_error::quoted(mode));
            let hint = "convert the model from its float checkpoint instead";
            return Err(ImportError::unsupported("quantization.mode", reason, hint));
        }
        let are_exponents = scales.dtype() == Dtype::U8;
        let reason = match (mode == AFFINE, are_exponents) {
            _ if self.of_layer(module).is_boolean() => "config.json states that its layer is not quantized".to_owned(),
            (true, true) | (false, false) => {
                format!("config.json states the mode {mode}, whose scales are not of type {}", scales.dtype())
            }
            _ => return Ok(()),
        };
        Err(ImportError::invalid(scales.name(), reason))
    }

    fn layout(
        &self,
        module: &ModuleTensors<'_, '_>,
        (codes, scales): (TensorView<'_>, TensorView<'_>),
        (rows, words, groups): (usize, usize, usize),
    ) -> Result<WeightLayout, ImportError> {
        self.check_mode(scales, module.name)?;
        let is_mx = scales.dtype() == Dtype::U8;
        let wrong = || {
            let reason = format!(
                "{words} words and {groups} groups for each row are not those of the bits and groups that config.json states"
            );
            ImportError::invalid(codes.name(), reason)
        };
        // The number of input channels is in neither shape. What is not stated has to be the one pair that fits.
        let fits = |bits: u32, size: u32| words.checked_mul(32) == groups.checked_mul(size as usize * bits as usize);
        let stated = self.stated(module.name);
        let all = BITS.into_iter().flat_map(|bits| GROUPS.into_iter().map(move |size| (bits, size)));
        let of_config = all.filter(|pair| stated.is_none_or(|stated| stated == *pair));
        let mut fitting = of_config.filter(|(bits, size)| fits(*bits, *size) && (!is_mx || *size == BLOCK));
        let (bits, size) =
            fitting.next().filter(|_| fitting.next().is_none()).filter(|_| rows > 0 && groups > 0).ok_or_else(wrong)?;
        let columns = groups * size as usize;
        let part = |view: TensorView<'_>, content| Part {
            name: view.name().to_owned(),
            dtype: view.dtype(),
            shape: view.shape().to_vec(),
            content,
        };
        let element = match (is_mx, bits) {
            (false, _) => CodeType::Integer { bits, signed: false },
            (true, 4) if self.mode(module.name) == "mxfp4" => CodeType::Float(MiniFloat::E2M1),
            (true, 8) if self.mode(module.name) == "mxfp8" => CodeType::Float(MiniFloat::E4M3),
            (true, _) => return Err(wrong()),
        };
        let packing = packing(bits, !is_mx);
        let encoding = match is_mx {
            true => ScaleEncoding::E8m0,
            false => ScaleEncoding::of_float(scales.dtype()).ok_or_else(wrong)?,
        };
        let mut parts = vec![
            part(codes, Content::Codes { packing, transposed: false }),
            part(scales, Content::Scales { encoding, transposed: false }),
        ];
        if !is_mx {
            parts.push(part(module.need("biases")?, Content::Biases { encoding }));
        }
        Ok(WeightLayout::new(element, (rows, columns), (1, size as usize), parts))
    }
}

/// Returns whether a config.json describes the model twice, as mlx-lm writes it, and not alike.
pub(crate) fn contradicts_itself(config: &Value) -> bool {
    let [own, other] = [KEY, "quantization_config"].map(|key| config.get(key).and_then(Value::as_object));
    let stated = |(key, _): &(&String, &Value)| *key != "quant_method";
    let entries = |object: &Map<String, Value>| -> BTreeMap<String, Value> {
        object.iter().filter(stated).map(|(key, value)| (key.clone(), value.clone())).collect()
    };
    own.zip(other).is_some_and(|(own, other)| entries(own) != entries(other))
}

/// Returns whether an object is what MLX states of a model's quantization.
pub(crate) fn is_stated(config: &Value) -> bool {
    ["group_size", "bits"].iter().all(|key| config.get(*key).is_some_and(Value::is_u64))
        && config.get("quant_method").is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scheme(text: &str) -> LayerScheme {
        text.parse().unwrap()
    }

    #[test]
    fn deviating_layers_are_listed_beside_the_commonest() {
        let layers =
            [("m.0.q", scheme("int4:g64")), ("m.0.k", scheme("int4:g64:zp")), ("m.0.down", scheme("e4m3:g32:e8m0"))];
        let config = config(&layers, &[]).unwrap();
        let usual = json!({"group_size": 64, "bits": 4, "mode": "affine", "quant_method": "mlx",
            "m.0.down": {"group_size": 32, "bits": 8, "mode": "mxfp8"}});
        assert_eq!(config, usual);
    }

    #[test]
    fn experts_of_a_block_have_one_entry_and_one_mode() {
        let layers = |second: &'static str| {
            ["m.0.mlp.experts.0.up_proj", "m.0.mlp.experts.1.up_proj", "m.0.q", "m.0.k", "m.0.v"]
                .into_iter()
                .zip(["int3:g32", second, "int4:g64", "int4:g64", "int4:g64"].map(scheme))
                .collect::<Vec<_>>()
        };
        let stated = config(&layers("int3:g32"), &["m.1.mlp.experts.0.up_proj"]).unwrap();
        assert_eq!(stated["m.0.mlp.switch_mlp.up_proj"], json!({"group_size": 32, "bits": 3, "mode": "affine"}));
        assert!(config(&layers("int8:g32"), &[]).unwrap_err().reason.contains("experts.1.up_proj"));
        let kept = config(&layers("int3:g32"), &["m.0.mlp.experts.2.up_proj"]).unwrap_err();
        assert!(kept.reason.contains("experts.2.up_proj"));
        let reader = MlxReader { stated };
        assert_eq!(reader.stated("m.0.mlp.experts.1.up_proj"), Some((3, 32)));
        assert_eq!(
            (reader.stated("m.0.mlp.switch_mlp.up_proj"), reader.stated("m.0.q")),
            (Some((3, 32)), Some((4, 64)))
        );
        let mixtral = "m.0.block_sparse_moe.experts.7.w2";
        let (expert, stacked) = stacked_name(mixtral).unwrap();
        assert_eq!(expert_name(&stacked, expert).as_deref(), Some(mixtral));
    }

    #[test]
    fn keys_that_mlx_reads_stand_beside_those_of_transformers() {
        let completed = |mut config: Value| {
            complete(config.as_object_mut().unwrap());
            config
        };
        let plain = json!({"rope_type": "default", "rope_theta": 5e5, "partial_rotary_factor": 0.5});
        let found = completed(json!({"rope_parameters": plain, "num_local_experts": 4}));
        assert_eq!((&found["rope_theta"], &found["partial_rotary_factor"]), (&json!(5e5), &json!(0.5)));
        assert_eq!((&found["rope_scaling"], &found["num_experts"]), (&Value::Null, &json!(4)));
        let layers = json!({"full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}});
        let found = completed(json!({"rope_parameters": layers}));
        assert_eq!((&found["rope_theta"], &found["rope_local_base_freq"]), (&json!(1e6), &json!(1e4)));
        assert_eq!(found["rope_scaling"], json!({"rope_type": "linear", "factor": 8.0, "type": "linear"}));
        let own = json!({"rope_theta": 3.0, "rope_parameters": {"rope_theta": 4.0}});
        assert_eq!(completed(own)["rope_theta"], json!(3.0));
        assert_eq!(completed(json!({"model_type": "llama"})), json!({"model_type": "llama"}));
        let scaling =
            completed(json!({"rope_scaling": {"rope_type": "longrope", "long_factor": [1.0]}}))["rope_scaling"].clone();
        assert_eq!(scaling["type"], json!("longrope"));
    }

    #[test]
    fn models_of_several_parts_have_keys_where_mlx_looks_for_them() {
        let mut config = json!({"tie_word_embeddings": false, "text_config": {"vocab_size": 512, "rope_parameters": {"rope_theta": 1e6}}});
        Mlx.complete(config.as_object_mut().unwrap());
        assert_eq!(
            (&config["vocab_size"], &config["text_config"]["tie_word_embeddings"]),
            (&json!(512), &json!(false))
        );
        assert_eq!(config["text_config"]["rope_theta"], json!(1e6));
    }

    #[test]
    fn models_whose_layers_all_have_windows_are_refused_where_mlx_lm_looks_for_one_without() {
        let found = |types: [&str; 2]| {
            let config = json!({"model_type": "cohere2", "num_hidden_layers": 2, "layer_types": types});
            let config = ModelConfig::from_json(&config).unwrap();
            departures(&config, &Network::recognise(&config, &[])).is_err()
        };
        assert!(found(["sliding_attention"; 2]) && !found(["sliding_attention", "full_attention"]));
    }

    #[test]
    fn schemes_without_a_mode_are_refused_with_one_that_has() {
        for (text, hint) in [
            ("int4:channel", "g64"),
            ("int7:g64", "bits"),
            ("int4:g16", "g64"),
            ("e4m3:channel", "int4:g64"),
            ("int8:channel+int8:tensor!dynamic", "g64"),
            ("int8:g64+int8:tensor!dynamic", "weights-only"),
        ] {
            let refused = Mode::of(&scheme(text)).unwrap_err();
            assert!(refused.hint.contains(hint), "{text}: {refused:?}");
        }
    }
}
