//! Groups of layers of a checkpoint: those that engines fuse, and all experts of a block. The plan of each option says which layers it
//! fits, and how large they become.

use super::error::MixError;
use super::group::{GroupChoice, LayerGroup, patterns, projections, shared_name};
use super::mixture::{MixSettings, Mixture};
use super::option::MixOption;
use super::range::range_of;
use crate::blockwise::nearest;
use crate::plan::{Plan, PlannedLayer};
use crate::recipe::{OverrideText, Recipe, Settings};
use kvant_container::Checkpoint;
use kvant_formats::format::OutputFormat;
use kvant_forward::evaluation::ModelStage;
use kvant_forward::forward::{Decoder, WeightOverrides};
use kvant_model::network::{Linear, Network};
use kvant_numeric::kernel::Range;
use kvant_numeric::simd::Isa;
use kvant_quant::activation::ActivationQuantizer;
use kvant_quant::rounding::TensorContext;
use kvant_weights::weight::WeightMatrix;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// The plans of all options.
pub(super) struct CheckpointMix {
    /// One for each option but float.
    plans: Vec<Option<OptionPlan>>,
    format: OutputFormat,
}

/// The plan of a checkpoint with one option everywhere.
struct OptionPlan {
    plan: Plan,
    /// Layers by module.
    layers: HashMap<String, usize>,
}

/// The layers that form a group.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum GroupKey {
    Siblings(usize),
    Experts,
    Single(String),
}

impl CheckpointMix {
    pub(super) fn new(
        checkpoint: &Checkpoint,
        decoder: &Decoder<'_>,
        options: &[MixOption],
        settings: &MixSettings,
    ) -> Result<(Vec<LayerGroup>, CheckpointMix), MixError> {
        let head = (!settings.keeps_head && !decoder.network().is_tied()).then(|| &decoder.blueprint().head.module);
        let plan = |option: &MixOption| match option {
            MixOption::Scheme(_, named) => {
                let recipe = Settings {
                    scheme: Some(named.scheme.to_string()),
                    format: settings.format,
                    scales: settings.scales,
                    weights_only: settings.weights_only.then_some(true),
                    overrides: head
                        .map(|layers| OverrideText { layers: layers.clone(), scheme: named.scheme.to_string() })
                        .into_iter()
                        .collect(),
                    ..Settings::default()
                };
                let recipe = Recipe::resolve(&recipe, &Settings::default())?.with_calibration(true);
                let plan = Plan::new(checkpoint, recipe)?;
                let layers = plan.layers().iter().enumerate().map(|(index, layer)| (layer.module.clone(), index));
                Ok(Some(OptionPlan { layers: layers.collect(), plan }))
            }
            MixOption::Float | MixOption::Type(_) => Ok::<_, MixError>(None),
        };
        let plans = options.iter().map(plan).collect::<Result<Vec<_>, _>>()?;
        let format = settings.format.or(plans.iter().flatten().map(|option| option.plan.format()).next());
        let mix = CheckpointMix { plans, format: format.unwrap_or(OutputFormat::QUARK) };
        let groups = mix.groups(decoder, options);
        Ok((groups, mix))
    }

    /// The format that is written.
    pub(super) fn format(&self) -> OutputFormat {
        self.format
    }

    /// An option as a recipe spells it.
    pub(super) fn spelling(&self, option: &MixOption) -> String {
        match option {
            MixOption::Scheme(_, named) => named.scheme.to_string(),
            _ => "keep".to_owned(),
        }
    }

    /// A layer in the plan of an option.
    fn layer(&self, option: usize, module: &str) -> Option<&PlannedLayer> {
        let OptionPlan { plan, layers } = self.plans.get(option)?.as_ref()?;
        plan.layers().get(*layers.get(module)?)
    }

    fn groups(&self, decoder: &Decoder<'_>, options: &[MixOption]) -> Vec<LayerGroup> {
        let network = decoder.network();
        let linears: HashMap<&str, &Linear> =
            network.linears().iter().map(|linear| (linear.module.as_str(), linear)).collect();
        let mut groups = Vec::new();
        for (block, layers) in decoder.blueprint().blocks.iter().enumerate() {
            let mut keys: Vec<GroupKey> = Vec::new();
            let mut members: BTreeMap<GroupKey, Vec<String>> = BTreeMap::new();
            for layer in layers.layers() {
                let is_planned = (0..options.len()).any(|option| self.layer(option, &layer.module).is_some());
                if !is_planned {
                    continue;
                }
                let key = key_of(network, linears.get(layer.module.as_str()).copied(), &layer.module);
                let of_key = members.entry(key.clone()).or_default();
                if of_key.is_empty() {
                    keys.push(key);
                }
                of_key.push(layer.module.clone());
            }
            for key in keys {
                let modules = members.remove(&key).unwrap_or_default();
                groups.extend(self.group(ModelStage::Block(block), modules, key == GroupKey::Experts, options));
            }
        }
        let head = vec![decoder.blueprint().head.module.clone()];
        groups.extend(self.group(ModelStage::Head, head, false, options));
        groups
    }

    /// A group with the options that fit all of its layers.
    fn group(
        &self,
        stage: ModelStage,
        modules: Vec<String>,
        experts: bool,
        options: &[MixOption],
    ) -> Option<LayerGroup> {
        let all = |option: usize| modules.iter().map(|module| self.layer(option, module)).collect::<Option<Vec<_>>>();
        let any: Vec<&PlannedLayer> = (0..options.len()).find_map(all)?;
        let weights = any.iter().map(|layer| (layer.rows * layer.columns) as u64).sum();
        let source_bytes = any.iter().map(|layer| layer.source_bytes()).sum();
        let choice = |(option, kind): (usize, &MixOption)| {
            let bytes = match (kind, self.plans.get(option).and_then(Option::as_ref)) {
                (MixOption::Float, _) => source_bytes,
                (_, Some(plan)) => all(option)?.iter().map(|layer| layer.output_bytes(plan.plan.layout())).sum(),
                _ => return None,
            };
            Some(GroupChoice { option, also: Vec::new(), kind: None, bytes })
        };
        Some(LayerGroup {
            name: if experts { format!("{} (experts)", shared_name(&modules)) } else { shared_name(&modules) },
            stage,
            is_tied: false,
            patterns: patterns(&modules, experts),
            weights,
            source_bytes,
            choices: options.iter().enumerate().filter_map(choice).collect(),
            modules,
        })
    }

    /// Adds the weights of a group in one of its choices.
    pub(super) fn add_to<'a>(
        &self,
        mixture: &Mixture<'a>,
        group: &LayerGroup,
        choice: &GroupChoice,
        overrides: &mut WeightOverrides<'a>,
    ) -> Result<(), MixError> {
        let matrices = projections(mixture.decoder);
        let matrix = |module: &str| matrices.get(module).map(|layer| mixture.decoder.weight(layer));
        for module in &group.modules {
            let (Some(layer), Some(weight)) = (self.layer(choice.option, module), matrix(module)) else { continue };
            let range = layer.scheme.weight.needs_tensor_range().then(|| {
                let together = group.modules.iter().filter_map(|other| {
                    let other_layer = self.layer(choice.option, other)?;
                    let is_shared = layer.shares_scale.is_some() && layer.shares_scale == other_layer.shares_scale;
                    if is_shared || other == module { matrix(other) } else { None }
                });
                together.fold(Range::EMPTY, |range, matrix| range.join(range_of(&matrix)))
            });
            let context = TensorContext { arithmetic: layer.source.dtype.arithmetic(), range };
            let failed = |reason: String| MixError::Rounding {
                layer: module.clone(),
                option: mixture.options()[choice.option].name().to_owned(),
                reason,
            };
            let tensor = nearest(Isa::best(), layer, &weight, context).map_err(|error| failed(error.to_string()))?;
            overrides.set_weight(module, WeightMatrix::quantized(Arc::new(tensor)));
            if let Some(input) = layer.scheme.input {
                let quantizer = ActivationQuantizer::new(input, None).map_err(|error| failed(error.to_string()))?;
                overrides.set_input(module, quantizer);
            }
        }
        Ok(())
    }
}

/// What a layer of a block is grouped by.
fn key_of(network: &Network, linear: Option<&Linear>, module: &str) -> GroupKey {
    match linear {
        Some(linear) if linear.expert.is_some() => GroupKey::Experts,
        Some(linear) => match linear.siblings {
            Some(siblings) => GroupKey::Siblings(siblings.index()),
            None => GroupKey::Single(module.to_owned()),
        },
        // A matrix of a tensor with all experts.
        None if !network.experts().is_empty() => GroupKey::Experts,
        None => GroupKey::Single(module.to_owned()),
    }
}
