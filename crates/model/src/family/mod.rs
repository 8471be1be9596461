//! Model families: one declarative description per file, all listed in [`FAMILIES`]. Descriptions are data; nothing
//! here reads a tensor, and no algorithm keeps its own list of layers.

pub mod built_in;
pub mod decoder_stack;
mod description;
pub mod encoder;
mod file;
mod leaked;
pub mod math;
pub mod recurrent;
pub mod role;

mod undescribed;

pub use built_in::FAMILIES;
pub use decoder_stack::{DecoderStack, StackBlock};
pub use description::{
    Branches, CrossAttention, ExpertLayout, ExpertStorage, Extra, Family, Linears, Moe, Norms, Text, Trunk,
};
pub use encoder::{
    ATTENDED, ATTENDED_OUTPUT, BlockDistances, Encoder, ImageTokens, LearnedToken, PatchGrid, Readout, ReadoutRows,
    ReadoutStep, SoundConvolutions, SoundTokens, WEIGHT_NORM,
};
pub(crate) use file::complete;
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
