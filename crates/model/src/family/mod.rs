//! Model families: one declarative description per file, all listed in [`FAMILIES`]. Descriptions are data; nothing
//! here reads a tensor, and no algorithm keeps its own list of layers.

pub mod decoder_stack;
pub mod description;
pub mod encoder;
mod file;
mod leaked;
pub mod math;
pub mod recurrent;
pub mod role;

mod afmoe;
mod apertus;
mod arcee;
mod axk1;
mod bailing_hybrid;
mod bamba;
mod bart;
mod bert;
mod bitnet;
mod bloom;
mod clip_text;
mod clip_vision;
mod cohere;
mod cohere2;
mod cohere2_moe;
mod common;
mod cwm;
mod dbrx;
mod deberta_v2;
mod deepseek_v2;
mod deepseek_v3;
mod deepseek_v32;
mod deepseek_v4;
mod deit;
mod dinov2;
mod dinov2_with_registers;
mod dinov3_vit;
mod distilbert;
mod dots1;
mod electra;
mod ernie4_5;
mod ernie4_5_moe;
mod esm;
mod exaone4;
mod exaone_moe;
mod falcon;
mod falcon_h1;
mod falcon_mamba;
mod flex_olmo;
mod gemma;
mod gemma2;
mod gemma3;
mod gemma3n;
mod gemma4;
mod glm;
mod glm4;
mod glm4_moe;
mod glm4_moe_lite;
mod glm_moe_dsa;
mod gpt2;
mod gpt_bigcode;
mod gpt_neox;
mod gpt_oss;
mod gptj;
mod granite;
mod granitemoe;
mod granitemoehybrid;
mod helium;
mod hunyuan_v1_dense;
mod hunyuan_v1_moe;
mod hy_v3;
mod jamba;
mod kimi_k2;
mod kimi_k25;
mod kimi_linear;
mod kolibri1;
mod laguna;
mod lfm2;
mod lfm2_moe;
mod lfm3;
mod llama;
mod llama4;
mod longcat_flash;
mod mamba;
mod mamba2;
mod marian;
mod mbart;
mod mimo_v2_flash;
mod minimax;
mod minimax_m2;
mod minimax_m3;
mod minimax_m3_text;
mod ministral;
mod ministral3;
mod mistral;
mod mistral4;
mod mixtral;
mod mllama;
mod modernbert;
mod mpnet;
mod mpt;
mod mt5;
mod nanochat;
mod nemotron;
mod nemotron_h;
mod olmo;
mod olmo2;
mod olmo3;
mod olmo_hybrid;
mod olmoe;
mod opt;
mod pegasus;
mod persimmon;
mod phi;
mod phi3;
mod phimoe;
mod qwen2;
mod qwen2_moe;
mod qwen3;
mod qwen3_5;
mod qwen3_5_moe;
mod qwen3_moe;
mod qwen3_next;
mod qwen3_omni_moe;
mod qwen3_vl_moe;
mod roberta;
mod seed_oss;
mod siglip_text;
mod siglip_vision;
mod smollm3;
mod solar_open;
mod stablelm;
mod starcoder2;
mod t5;
mod t5_encoder;
mod umt5;
mod umt5_encoder;
mod vit;
mod xglm;

mod undescribed;

pub use decoder_stack::{DecoderStack, StackBlock};
pub use description::{
    Branches, CrossAttention, ExpertLayout, ExpertStorage, Extra, Family, Linears, Moe, Norms, Text, Trunk,
};
pub use encoder::{
    ATTENDED, ATTENDED_OUTPUT, BlockDistances, Encoder, ImageTokens, LearnedToken, Readout, ReadoutRows, ReadoutStep,
};
pub use file::{FamilyFileError, USUAL, name_error, parse};
pub use math::{
    Activation, ActivationRule, Alibi, AttentionScale, EmbeddingScale, HeadGate, Indexer, LogitScale, Math, Pairing,
    Positions, QueryKeyNorm, QueryScale, Residual, RotaryLayers, Routing, Window,
};
pub use recurrent::{
    Mamba1Norms, Mamba2Norm, Recurrent, RecurrentBlocks, RecurrentMixer, RecurrentParameter, attends_to_all,
    is_feed_forward, is_recurrent,
};
pub use role::{NormKind, NormSite, Orientation, Part, Role, RowOrder};

pub use description::{leaf, owns_kv};
pub use undescribed::kept_by_default;

use crate::model_config::{ModelConfig, read_like};
use kvant_quant::registry::{RegisterError, Registry, Row};
use std::sync::LazyLock;

/// Every family that is built in, sorted by name. A new family is one file and one line here.
pub static FAMILIES: &[Family] = &[
    afmoe::FAMILY,
    apertus::FAMILY,
    arcee::FAMILY,
    axk1::FAMILY,
    bailing_hybrid::FAMILY,
    bamba::FAMILY,
    bart::FAMILY,
    bert::FAMILY,
    bitnet::FAMILY,
    bloom::FAMILY,
    clip_text::FAMILY,
    clip_vision::FAMILY,
    cohere::FAMILY,
    cohere2::FAMILY,
    cohere2_moe::FAMILY,
    cwm::FAMILY,
    dbrx::FAMILY,
    deberta_v2::FAMILY,
    deepseek_v2::FAMILY,
    deepseek_v3::FAMILY,
    deepseek_v32::FAMILY,
    deepseek_v4::FAMILY,
    deit::FAMILY,
    dinov2::FAMILY,
    dinov2_with_registers::FAMILY,
    dinov3_vit::FAMILY,
    distilbert::FAMILY,
    dots1::FAMILY,
    electra::FAMILY,
    ernie4_5::FAMILY,
    ernie4_5_moe::FAMILY,
    esm::FAMILY,
    exaone4::FAMILY,
    exaone_moe::FAMILY,
    falcon::FAMILY,
    falcon_h1::FAMILY,
    falcon_mamba::FAMILY,
    flex_olmo::FAMILY,
    gemma::FAMILY,
    gemma2::FAMILY,
    gemma3::FAMILY,
    gemma3n::FAMILY,
    gemma4::FAMILY,
    glm::FAMILY,
    glm4::FAMILY,
    glm4_moe::FAMILY,
    glm4_moe_lite::FAMILY,
    glm_moe_dsa::FAMILY,
    gpt2::FAMILY,
    gpt_bigcode::FAMILY,
    gpt_neox::FAMILY,
    gpt_oss::FAMILY,
    gptj::FAMILY,
    granite::FAMILY,
    granitemoe::FAMILY,
    granitemoehybrid::FAMILY,
    helium::FAMILY,
    hunyuan_v1_dense::FAMILY,
    hunyuan_v1_moe::FAMILY,
    hy_v3::FAMILY,
    jamba::FAMILY,
    kimi_k2::FAMILY,
    kimi_k25::FAMILY,
    kimi_linear::FAMILY,
    kolibri1::FAMILY,
    laguna::FAMILY,
    lfm2::FAMILY,
    lfm2_moe::FAMILY,
    lfm3::FAMILY,
    llama::FAMILY,
    llama4::FAMILY,
    longcat_flash::FAMILY,
    mamba::FAMILY,
    mamba2::FAMILY,
    marian::FAMILY,
    mbart::FAMILY,
    mimo_v2_flash::FAMILY,
    minimax::FAMILY,
    minimax_m2::FAMILY,
    minimax_m3::FAMILY,
    minimax_m3_text::FAMILY,
    ministral::FAMILY,
    ministral3::FAMILY,
    mistral::FAMILY,
    mistral4::FAMILY,
    mixtral::FAMILY,
    mllama::FAMILY,
    modernbert::FAMILY,
    mpnet::FAMILY,
    mpt::FAMILY,
    mt5::FAMILY,
    nanochat::FAMILY,
    nemotron::FAMILY,
    nemotron_h::FAMILY,
    olmo::FAMILY,
    olmo2::FAMILY,
    olmo3::FAMILY,
    olmo_hybrid::FAMILY,
    olmoe::FAMILY,
    opt::FAMILY,
    pegasus::FAMILY,
    persimmon::FAMILY,
    phi::FAMILY,
    phi3::FAMILY,
    phimoe::FAMILY,
    qwen2::FAMILY,
    qwen2_moe::FAMILY,
    qwen3::FAMILY,
    qwen3_5::FAMILY,
    qwen3_5_moe::FAMILY,
    qwen3_moe::FAMILY,
    qwen3_next::FAMILY,
    qwen3_omni_moe::FAMILY,
    qwen3_vl_moe::FAMILY,
    roberta::FAMILY,
    seed_oss::FAMILY,
    siglip_text::FAMILY,
    siglip_vision::FAMILY,
    smollm3::FAMILY,
    solar_open::FAMILY,
    stablelm::FAMILY,
    starcoder2::FAMILY,
    t5::FAMILY,
    t5_encoder::FAMILY,
    umt5::FAMILY,
    umt5_encoder::FAMILY,
    vit::FAMILY,
    xglm::FAMILY,
];

static KNOWN: LazyLock<Registry<&'static Family>> = LazyLock::new(|| Registry::new(FAMILIES.iter().collect()));

impl Row for &'static Family {
    const KIND: &'static str = "family";

    fn names(&self) -> Vec<&str> {
        vec![self.name]
    }
}

/// Adds a family for as long as the program runs. What it says of a `model_type` or an architecture counts before what others say.
///
/// # Errors
/// [`RegisterError`] where the name cannot be spelled, or another family has it.
pub fn register(family: Family) -> Result<&'static Family, RegisterError> {
    // Networks point to their family.
    let family = Box::leak(Box::new(family));
    KNOWN.register(family)?;
    if let Some(like) = family.config_like {
        family.model_types.iter().for_each(|model_type| read_like(model_type, like));
    }
    Ok(family)
}

/// Every family: those that are built in, then those that were registered.
pub fn all() -> Vec<&'static Family> {
    KNOWN.rows()
}

/// The families that were registered: a model's may be one that is not built in.
pub fn registered() -> Vec<&'static Family> {
    all().split_off(FAMILIES.len())
}

/// Returns whether the family of a name was registered, and is not built in.
pub fn is_registered(name: &str) -> bool {
    registered().iter().any(|family| family.name == name)
}

/// The `model_type`s that registered families describe.
pub fn described_by_users() -> Vec<&'static str> {
    registered().iter().flat_map(|family| family.model_types).copied().collect()
}

/// The family of that name.
pub fn by_name(name: &str) -> Option<&'static Family> {
    all().into_iter().find(|family| family.name == name)
}

/// The family of a checkpoint: by `model_type`, of the whole model before that of a nested language model, else by
/// `architectures`.
pub fn of_config(config: &ModelConfig) -> Option<&'static Family> {
    let by_type = config.model_types.iter().enumerate().find_map(|(at, name)| {
        let family = of_type(name, &config.architectures)?;
        // What is around an encoder is another model, of which it is a tower.
        (at == 0 || family.encoder.is_none()).then_some(family)
    });
    by_type.or_else(|| {
        let mut names = config.architectures.iter();
        names.find_map(|name| having(name, |family| family.architectures))
    })
}

/// Models of a tower for text and one for images, whose towers have descriptions.
const TWO_TOWERS: &[&str] = &["clip", "siglip"];

/// Returns whether a model has a tower for text and one for images. As a separate checkpoint, each tower belongs to a family.
pub fn has_two_towers(config: &ModelConfig) -> bool {
    config.model_types.first().is_some_and(|name| TWO_TOWERS.contains(&name.as_str()))
}

/// The built-in family that a `model_type` of the checkpoint means, whatever was registered: what loaders know it as, which find the
/// class of a model by its `model_type`, and know no descriptions of others.
pub fn built_in(config: &ModelConfig) -> Option<&'static Family> {
    config.model_types.iter().find_map(|name| chosen(FAMILIES.iter(), name, &config.architectures))
}

/// The `model_type` of a model around a language model of a built-in family, such as `llava` around Llama; `None` where the family is
/// that of the whole model.
pub fn wrapper(config: &ModelConfig) -> Option<&str> {
    let outer = config.model_types.first().filter(|_| config.model_types.len() > 1)?;
    let is_own = built_in(config).is_some_and(|family| family.model_types.contains(&outer.as_str()));
    (!is_own).then_some(outer.as_str())
}

/// A `model_type` and one of `architectures` that name different families. Families without their own architectures share those
/// of another.
pub fn conflict(config: &ModelConfig) -> Option<(&str, &str)> {
    let mut types = config.model_types.iter();
    let (model_type, family) = types.find_map(|name| Some((name, of_type(name, &config.architectures)?)))?;
    let mut classes = config.architectures.iter();
    let (class, other) = classes.find_map(|name| Some((name, having(name, |family| family.architectures)?)))?;
    let agree = family.architectures.is_empty() || family.architectures.contains(&class.as_str());
    (!agree && family.name != other.name).then_some((model_type, class))
}

/// The family of a `model_type`: where several have it, that which has the class.
fn of_type(name: &str, classes: &[String]) -> Option<&'static Family> {
    let (registered, built_in) = (registered(), FAMILIES.iter());
    chosen(registered.into_iter().rev(), name, classes).or_else(|| chosen(built_in, name, classes))
}

/// The first of some families that have a `model_type` and the class, or else the `model_type` of any class.
fn chosen(
    families: impl Iterator<Item = &'static Family> + Clone,
    name: &str,
    classes: &[String],
) -> Option<&'static Family> {
    let mut of_type = families.filter(|family| family.model_types.contains(&name));
    let has_class = |family: &&Family| classes.iter().any(|class| family.architectures.contains(&class.as_str()));
    let is_of_any = |family: &&Family| !family.encoder.is_some_and(|encoder| encoder.is_of_its_classes);
    of_type.clone().find(has_class).or_else(|| of_type.find(is_of_any))
}

fn having(name: &str, list: fn(&Family) -> &'static [&'static str]) -> Option<&'static Family> {
    all().into_iter().rev().find(|family| list(family).contains(&name))
}

#[cfg(test)]
mod tests;
