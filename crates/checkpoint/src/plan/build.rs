//! Making a plan: from a checkpoint's headers, its config.json and a recipe.

use super::Plan;
use super::declared::{Declared, StatedAs};
use super::error::PlanError;
use super::recognised::Recognised;
use super::source::SourceTensor;
use crate::recipe::Recipe;
use kvant_container::Checkpoint;
use kvant_formats::format::{OutputFormat, plain_floats};
use kvant_formats::import::{self, Import};
use kvant_formats::transcode::FloatType;
use kvant_model::model_config::ModelConfig;

impl Plan {
    /// Plans what a recipe makes of a checkpoint.
    ///
    /// # Errors
    /// Whatever can be refused: see [`PlanError`].
    pub fn new(checkpoint: &Checkpoint, recipe: Recipe) -> Result<Plan, PlanError> {
        match Plan::quantized(checkpoint, recipe.clone()) {
            Err(PlanError::ExcludedCodes { layers, format, reason, .. }) => {
                // The advice is a format in which everything fits.
                let holds =
                    |other: &OutputFormat| Plan::quantized(checkpoint, recipe.clone().with_format(*other)).is_ok();
                let formats = [OutputFormat::QUARK, OutputFormat::COMPRESSED_TENSORS].into_iter().filter(holds);
                let formats = formats.map(|format| format.to_string()).collect();
                Err(PlanError::ExcludedCodes { layers, format, reason, formats })
            }
            planned => planned,
        }
    }

    fn quantized(checkpoint: &Checkpoint, recipe: Recipe) -> Result<Plan, PlanError> {
        let json = checkpoint.config()?;
        let config = json.as_ref().map_or_else(|| Ok(ModelConfig::default()), ModelConfig::from_json)?;
        let recipe = if json.is_some() { recipe } else { without_config(recipe)? };
        let merges = checkpoint.changes_weights();
        let has_codes = recipe.requantizes() || merges || checkpoint.gguf().is_some();
        let states_codes = json.as_ref().is_some_and(|json| json.get("quantization_config").is_some());
        let import = match has_codes || states_codes && excludes_fp8(checkpoint, &config, &recipe) {
            true => Some(import::open(checkpoint)?),
            false => None,
        };
        let tensors = match &import {
            Some(import) => imported(checkpoint, import, &config),
            None => SourceTensor::plain(checkpoint),
        };
        if !recipe.requantizes() && (merges || checkpoint.gguf().is_some()) {
            refuse_codes(&tensors, if merges { None } else { Some("gguf") })?;
        }
        let fake = plain_floats::is_fake_quantized(json.as_ref()) && !recipe.requantizes();
        let source = Recognised::new(tensors, config, recipe)?;
        if fake {
            return Err(source.already_fake());
        }
        let source = match &import {
            Some(import) => source.with_rotations(import)?,
            None => source,
        };
        let drafts = source.quantized(import.as_ref())?;
        Declared::new(source, drafts).plan(checkpoint, json, StatedAs::Quantized)
    }
}

/// Returns whether the recipe excludes layers of an fp8 checkpoint, which keep their codes; such a checkpoint counts as floats otherwise.
fn excludes_fp8(checkpoint: &Checkpoint, config: &ModelConfig, recipe: &Recipe) -> bool {
    let source = Recognised::new(SourceTensor::plain(checkpoint), config.clone(), recipe.clone());
    source.is_ok_and(|source| source.excludes_fp8())
}

/// The recipe for tensors that no config.json makes a model of.
fn without_config(recipe: Recipe) -> Result<Recipe, PlanError> {
    let recipe = recipe.without_config();
    refuse_without_config(recipe.format())?;
    Ok(recipe)
}

/// Refuses formats that say in config.json how weights are quantized, where there is none.
pub(super) fn refuse_without_config(format: OutputFormat) -> Result<(), PlanError> {
    if format.capabilities().needs_config { Err(PlanError::NeedsConfig { format: format.to_string() }) } else { Ok(()) }
}

/// The tensors of a checkpoint that may be quantized, as floats.
fn imported<'a>(checkpoint: &'a Checkpoint, import: &Import<'a>, config: &ModelConfig) -> Vec<SourceTensor<'a>> {
    SourceTensor::imported(checkpoint, import.tensors().to_vec(), float_type(config).dtype())
}

/// Blocks of a GGUF file, and codes beside which adapters are merged, are quantized again only where that is accepted.
fn refuse_codes(tensors: &[SourceTensor<'_>], method: Option<&str>) -> Result<(), PlanError> {
    let mut quantized = tensors.iter().filter(|tensor| tensor.has_codes());
    let Some(first) = quantized.next() else { return Ok(()) };
    let (first, tensors) = (first.name().to_owned(), 1 + quantized.count());
    Err(PlanError::AlreadyQuantized { tensors, first, method: method.map(str::to_owned) })
}

/// The type of a model's floats, as config.json states it.
pub(super) fn float_type(config: &ModelConfig) -> FloatType {
    config.dtype.as_deref().and_then(FloatType::of_config).unwrap_or(FloatType::Bf16)
}

pub(super) fn architecture(config: &ModelConfig) -> String {
    let name = config.architectures.first().or(config.model_types.first());
    name.cloned().unwrap_or_else(|| "unknown".to_owned())
}
