//! The groups of a model with their options, and what a choice for every group makes of it.

use super::checkpoint::CheckpointMix;
use super::error::MixError;
use super::gguf::GgufMix;
use super::group::LayerGroup;
use super::option::{MixKind, MixOption};
use crate::gguf::{GgufPlan, GgufRecipe};
use crate::plan::{Plan, source_text};
use crate::recipe::{Recipe, Settings};
use kvant_container::Checkpoint;
use kvant_formats::format::OutputFormat;
use kvant_forward::forward::{Decoder, WeightOverrides};
use kvant_quant::observer::ObserverRef;
use kvant_quant::recipe::{OverrideEntry, RecipeFile, VERSION};
use std::collections::HashMap;
use xxhash_rust::xxh3::xxh3_128;

/// How options are written, besides what they are.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MixSettings {
    /// The checkpoint format; `None` is the first that holds all options.
    pub format: Option<OutputFormat>,
    /// The observer that finds the scales of weights, where schemes name none.
    pub scales: Option<ObserverRef>,
    /// Whether inputs stay in float, whatever schemes say.
    pub weights_only: bool,
    /// Whether the head stays in float. In GGUF files it never does.
    pub keeps_head: bool,
}

/// What the layers of a decoder may become, and what a choice for every group makes of it.
pub struct Mixture<'a> {
    pub(super) checkpoint: &'a Checkpoint,
    pub(super) decoder: &'a Decoder<'a>,
    options: Vec<MixOption>,
    groups: Vec<LayerGroup>,
    output: MixOutput,
    settings: MixSettings,
}

/// What is written of it.
pub(super) enum MixOutput {
    Checkpoint(CheckpointMix),
    Gguf(GgufMix),
}

/// The plan of a mix.
pub enum MixPlan {
    /// Of a checkpoint.
    Checkpoint(Box<Plan>),
    /// Of a GGUF file.
    Gguf(Box<GgufPlan>),
}

impl MixPlan {
    /// Bytes of the weight files, headers included.
    pub fn bytes(&self) -> u64 {
        match self {
            MixPlan::Checkpoint(plan) => plan.layout().disk_size(),
            MixPlan::Gguf(plan) => plan.layout.disk_size(),
        }
    }

    /// The loaders known to load it.
    pub fn loaders(&self) -> Vec<&'static str> {
        match self {
            MixPlan::Checkpoint(plan) => plan.loaders(),
            MixPlan::Gguf(plan) => plan.loaders(),
        }
    }
}

impl<'a> Mixture<'a> {
    /// The groups of a decoder whose layers fit some of the options. Those that none fits stay as the recipe's default makes them.
    ///
    /// # Errors
    /// Options that the format does not hold or the model does not take; [`MixError::NothingFits`].
    pub fn new(
        checkpoint: &'a Checkpoint,
        decoder: &'a Decoder<'a>,
        kind: MixKind,
        options: Vec<MixOption>,
        settings: MixSettings,
    ) -> Result<Mixture<'a>, MixError> {
        let (groups, output) = match kind {
            MixKind::Checkpoint => {
                let (groups, mix) = CheckpointMix::new(checkpoint, decoder, &options, &settings)?;
                (groups, MixOutput::Checkpoint(mix))
            }
            MixKind::Gguf => {
                let (groups, mix) = GgufMix::new(checkpoint, decoder, &options)?;
                (groups, MixOutput::Gguf(mix))
            }
        };
        let has_choice =
            |group: &LayerGroup| group.choices.iter().any(|choice| options[choice.option] != MixOption::Float);
        let groups: Vec<LayerGroup> = groups.into_iter().filter(has_choice).collect();
        match groups.is_empty() {
            true => Err(MixError::NothingFits),
            false => Ok(Mixture { checkpoint, decoder, options, groups, output, settings }),
        }
    }

    /// The options.
    pub fn options(&self) -> &[MixOption] {
        &self.options
    }

    /// The groups, in the order of the model.
    pub fn groups(&self) -> &[LayerGroup] {
        &self.groups
    }

    /// The index of the option of floats; beyond the options where that is none of them.
    pub fn float(&self) -> usize {
        self.options.iter().position(|option| *option == MixOption::Float).unwrap_or(self.options.len())
    }

    /// Weights of all groups.
    pub fn weights(&self) -> u64 {
        self.groups.iter().map(|group| group.weights).sum()
    }

    /// Bytes of all groups in the source.
    pub fn source_bytes(&self) -> u64 {
        self.groups.iter().map(|group| group.source_bytes).sum()
    }

    /// What a choice of a group is called: the scheme, the type that it takes, or `float`.
    pub fn choice_name(&self, group: usize, choice: usize) -> String {
        let choice = &self.groups[group].choices[choice];
        match (&self.options[choice.option], choice.kind) {
            (MixOption::Float, _) => MixOption::Float.name().to_owned(),
            (_, Some(kind)) => kind.name().to_owned(),
            (MixOption::Scheme(_, named), None) => named.scheme.to_string(),
            (MixOption::Type(kind), None) => kind.name().to_owned(),
        }
    }

    /// Whether a choice of a group is float.
    pub fn is_float(&self, group: usize, choice: usize) -> bool {
        self.options[self.groups[group].choices[choice].option] == MixOption::Float
    }

    /// Bytes of the groups of a mix.
    pub fn bytes(&self, choices: &[usize]) -> u64 {
        self.groups.iter().zip(choices).map(|(group, choice)| group.choices[*choice].bytes).sum()
    }

    /// The mix with one option everywhere; where that does not fit a group, it is float, or else the first that does.
    pub fn uniform(&self, option: usize) -> Vec<usize> {
        let float = self.float();
        self.groups.iter().map(|group| group.choice_of(option, float)).collect()
    }

    /// Adds the weights of a group in one of its choices, and the quantizers of its inputs; none for float.
    ///
    /// # Errors
    /// Weights that cannot be rounded.
    pub fn add_to(&self, group: usize, choice: usize, overrides: &mut WeightOverrides<'a>) -> Result<(), MixError> {
        let group = &self.groups[group];
        let choice = &group.choices[choice];
        match &self.output {
            _ if self.options[choice.option] == MixOption::Float => Ok(()),
            MixOutput::Checkpoint(mix) => mix.add_to(self, group, choice, overrides),
            MixOutput::Gguf(_) => super::gguf::add_to(self, group, choice, overrides),
        }
    }

    /// The recipe of a mix: the option of most weights, and overrides for all other groups.
    pub fn recipe(&self, choices: &[usize]) -> RecipeFile {
        let chosen = |index: usize| &self.groups[index].choices[choices[index]];
        let mut weights: HashMap<usize, u64> = HashMap::new();
        for (index, group) in self.groups.iter().enumerate() {
            *weights.entry(chosen(index).option).or_default() += group.weights;
        }
        weights.remove(&self.float());
        let most = (0..self.options.len()).max_by_key(|option| (weights.get(option).copied(), usize::MAX - option));
        let default = most.unwrap_or(0);
        let mut overrides = Vec::new();
        for (index, group) in self.groups.iter().enumerate() {
            let choice = chosen(index);
            let scheme = match self.is_float(index, choices[index]) {
                true => "keep".to_owned(),
                false => self.choice_name(index, choices[index]),
            };
            // Types of a mix follow from rules of their own, and the head stays in float unless it is named.
            let is_default = choice.option == default && !self.is_gguf() && !self.is_head(group);
            let entries = group.patterns.iter().filter(|_| !is_default);
            overrides.extend(entries.map(|pattern| OverrideEntry {
                layers: Some(pattern.clone()),
                tensors: None,
                scheme: scheme.clone(),
            }));
        }
        let (scheme, format) = match &self.output {
            MixOutput::Checkpoint(mix) => (mix.spelling(&self.options[default]), mix.format()),
            MixOutput::Gguf(_) => {
                (super::gguf::ftype(&self.options[default]).row().name.to_owned(), OutputFormat::Gguf)
            }
        };
        RecipeFile {
            version: VERSION,
            scheme: Some(scheme),
            format: Some(format.name().to_owned()),
            weights_only: (self.settings.weights_only && !self.is_gguf()).then_some(true),
            scales: self.settings.scales.map(|observer| observer.to_string()),
            overrides,
            ..RecipeFile::default()
        }
    }

    fn is_gguf(&self) -> bool {
        matches!(self.output, MixOutput::Gguf(_))
    }

    fn is_head(&self, group: &LayerGroup) -> bool {
        group.modules == [self.decoder.blueprint().head.module.as_str()]
    }

    /// A hash of all that decides what is measured besides groups and options: the model, how options are written, and the data.
    pub fn key(&self, data: &str) -> String {
        let source = source_text(self.checkpoint, "");
        let format = match &self.output {
            MixOutput::Checkpoint(mix) => mix.format().name().to_owned(),
            MixOutput::Gguf(_) => OutputFormat::Gguf.name().to_owned(),
        };
        let text = format!("{source}\n{data}\n{format}\n{:?}", self.settings);
        format!("{:032x}", xxh3_128(text.as_bytes()))
    }

    /// The plan of a mix, from which its size and its loaders follow.
    ///
    /// # Errors
    /// Mixes that the format does not hold.
    pub fn plan(&self, choices: &[usize]) -> Result<MixPlan, MixError> {
        let recipe = Settings::try_from(self.recipe(choices))?;
        match &self.output {
            MixOutput::Checkpoint(_) => {
                let recipe = Recipe::resolve(&Settings::default(), &recipe)?.with_calibration(true);
                Ok(MixPlan::Checkpoint(Box::new(Plan::new(self.checkpoint, recipe)?)))
            }
            MixOutput::Gguf(_) => {
                let recipe = GgufRecipe::of(&Settings::default(), &recipe)?.ok_or(MixError::NothingFits)?;
                Ok(MixPlan::Gguf(Box::new(GgufPlan::new(self.checkpoint, recipe, "model.gguf")?)))
            }
        }
    }
}
