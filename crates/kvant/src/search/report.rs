//! What a search has found.

pub use super::kept::MeasuredMix;

use super::chosen::ChosenMix;
use super::compared::Compared;
use super::measured::{Measuring, Singles};
use super::prediction::{Loss, Prediction};
use super::setup::SetUp;
use crate::error::Error;
use crate::job::SearchMethod;
use crate::json::path as path_json;
use crate::report::Report;
use kvant_checkpoint::sensitivity::Mixture;
use kvant_forward::evaluation::ModelStage;
use kvant_quant::allocation::Front;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// Points of the front that are reported.
const POINTS: usize = 9;

/// The result of a search.
pub struct SearchReport {
    /// The format of the recipe.
    pub format: &'static str,
    /// The loaders that read all options together.
    pub loaders: Vec<&'static str>,
    /// The options, by name.
    pub options: Vec<String>,
    /// The groups of layers, in the order of the model.
    pub groups: Vec<GroupSensitivity>,
    /// Weights of all groups.
    pub weights: u64,
    /// Tokens of the data that groups were measured on.
    pub tokens: usize,
    /// How groups were measured.
    pub method: SearchMethod,
    /// Mixes along the front of those that no other is predicted to beat, by rising size.
    pub front: Vec<ComparedMix>,
    /// Every option everywhere, and the first and the last block one option higher; measured.
    pub compared: Vec<ComparedMix>,
    /// The mix for the target; measured.
    pub chosen: Option<ComparedMix>,
    /// Whether the chosen mix is not the first that was measured for the target.
    pub is_corrected: bool,
    /// The recipe that was written.
    pub recipe: Option<PathBuf>,
    /// The file in which sensitivities are kept.
    pub sensitivities: Option<PathBuf>,
    /// The report of the job that used the recipe, or its error.
    pub quantized: Option<Result<Box<Report>, Error>>,
}

/// A group of layers that get one option together.
#[derive(Clone, Debug)]
pub struct GroupSensitivity {
    /// Its name.
    pub name: String,
    /// Its block; none for the embedding and the head.
    pub block: Option<usize>,
    /// Weights.
    pub weights: u64,
    /// What it may become.
    pub choices: Vec<GroupOption>,
    /// The choice in the mix for the target.
    pub chosen: Option<String>,
}

/// What a group may become.
#[derive(Clone, Debug)]
pub struct GroupOption {
    /// A scheme, a type of GGUF or `float`.
    pub name: String,
    /// The options that it stands for: several where blocks of some do not fit the group.
    pub options: Vec<String>,
    /// Bytes of the group's weights.
    pub bytes: u64,
    /// The distance of the model with this group alone in it.
    pub measured: MeasuredMix,
}

/// A mix beside others.
#[derive(Clone, Debug)]
pub struct ComparedMix {
    /// What it is.
    pub name: String,
    /// Bytes of the weight files, about: headers differ by some bytes. Exact for the mix for the target.
    pub bytes: u64,
    /// Bits for each weight that has a choice, on average.
    pub bits_per_weight: f64,
    /// The predicted divergence.
    pub predicted_kl: f64,
    /// The measurement, if there is one.
    pub measured: Option<MeasuredMix>,
}

impl SearchReport {
    /// What the job behind the search has written; `None` without one, or if it failed.
    pub fn outputs(&self) -> Option<Vec<&Path>> {
        self.quantized.as_ref().and_then(|report| Some(report.as_ref().ok()?.outputs()))
    }

    /// The report as JSON.
    pub fn to_json(&self) -> Value {
        json!({
            "format": self.format,
            "loaders": self.loaders,
            "options": self.options,
            "weights": self.weights,
            "tokens": self.tokens,
            "method": self.method.name(),
            "groups": self.groups.iter().map(group_json).collect::<Vec<_>>(),
            "front": self.front.iter().map(mix_json).collect::<Vec<_>>(),
            "compared": self.compared.iter().map(mix_json).collect::<Vec<_>>(),
            "chosen": self.chosen.as_ref().map(mix_json),
            "corrected": self.is_corrected,
            "recipe": self.recipe.as_deref().map(path_json),
            "sensitivities": self.sensitivities.as_deref().map(path_json),
            "quantized": self.outputs().map(|outputs| outputs.into_iter().map(path_json).collect::<Vec<_>>()),
        })
    }
}

fn group_json(group: &GroupSensitivity) -> Value {
    let choice = |choice: &GroupOption| {
        json!({
            "option": choice.name,
            "bytes": choice.bytes,
            "kl": choice.measured.kl,
            "kl_error": choice.measured.kl_error,
            "top1_agreement": choice.measured.top1_agreement,
        })
    };
    json!({
        "group": group.name,
        "block": group.block,
        "weights": group.weights,
        "choices": group.choices.iter().map(choice).collect::<Vec<_>>(),
        "chosen": group.chosen,
    })
}

fn mix_json(mix: &ComparedMix) -> Value {
    json!({
        "name": mix.name,
        "bytes": mix.bytes,
        "bits_per_weight": mix.bits_per_weight,
        "predicted_kl": mix.predicted_kl,
        "kl": mix.measured.map(|found| found.kl),
        "kl_error": mix.measured.and_then(|found| found.kl_error),
        "top1_agreement": mix.measured.and_then(|found| found.top1_agreement),
    })
}

/// The report of what was found.
pub(super) fn report(
    measuring: &Measuring<'_, '_, '_>,
    set_up: &SetUp<'_>,
    singles: &Singles,
    compared: &[Compared],
    chosen: Option<ChosenMix>,
    recipe: Option<PathBuf>,
) -> SearchReport {
    let mixture = measuring.mixture;
    let prediction = Prediction::new(mixture, singles, compared, Loss::Kl);
    let line = |name: String, choices: &[usize], measured: Option<MeasuredMix>| {
        let bytes = mixture.bytes(choices);
        ComparedMix {
            name,
            bytes: bytes + set_up.other_bytes,
            bits_per_weight: bytes as f64 * 8.0 / mixture.weights().max(1) as f64,
            predicted_kl: prediction.loss(choices),
            measured,
        }
    };
    let found = chosen.as_ref().map(|chosen| {
        let plan = mixture.plan(&chosen.choices).map(|plan| plan.bytes());
        let mix = line("search".to_owned(), &chosen.choices, Some(chosen.measured));
        // Planned before it was chosen.
        ComparedMix { bytes: plan.unwrap_or(mix.bytes), ..mix }
    });
    SearchReport {
        format: set_up.format.name(),
        loaders: set_up.loaders.clone(),
        options: mixture.options().iter().map(|option| option.name().to_owned()).collect(),
        method: measuring.method,
        groups: groups(mixture, singles, chosen.as_ref()),
        weights: mixture.weights(),
        tokens: measuring.sequences.iter().map(Vec::len).sum(),
        front: front(&prediction, mixture)
            .into_iter()
            .map(|choices| line("front".to_owned(), &choices, None))
            .collect(),
        compared: compared.iter().map(|mix| line(mix.name.clone(), &mix.choices, Some(mix.measured))).collect(),
        chosen: found,
        is_corrected: chosen.is_some_and(|chosen| chosen.is_corrected),
        recipe,
        sensitivities: measuring.kept.path().map(ToOwned::to_owned),
        quantized: None,
    }
}

fn groups(mixture: &Mixture<'_>, singles: &Singles, chosen: Option<&ChosenMix>) -> Vec<GroupSensitivity> {
    let of_group = |(index, found): (usize, &Vec<MeasuredMix>)| {
        let group = &mixture.groups()[index];
        let choice = |(at, found): (usize, &MeasuredMix)| {
            let choice = &group.choices[at];
            let options = std::iter::once(&choice.option).chain(&choice.also);
            GroupOption {
                name: mixture.choice_name(index, at),
                options: options.map(|option| mixture.options()[*option].name().to_owned()).collect(),
                bytes: choice.bytes,
                measured: *found,
            }
        };
        GroupSensitivity {
            name: group.name.clone(),
            block: if let ModelStage::Block(block) = group.stage { Some(block) } else { None },
            weights: group.weights,
            choices: found.iter().enumerate().map(choice).collect(),
            chosen: chosen.map(|chosen| mixture.choice_name(index, chosen.choices[index])),
        }
    };
    singles.iter().enumerate().map(of_group).collect()
}

/// Mixes at about equal distances of size along the front.
fn front(prediction: &Prediction, mixture: &Mixture<'_>) -> Vec<Vec<usize>> {
    let front = Front::new(&prediction.choices(mixture));
    let (Some(smallest), Some(best)) = (front.smallest(), front.best()) else { return Vec::new() };
    let mut mixes: Vec<Vec<usize>> = Vec::new();
    for step in 0..POINTS {
        let bytes = smallest.bytes + (best.bytes - smallest.bytes) * step as u64 / (POINTS - 1) as u64;
        let Some(selection) = front.within_bytes(bytes) else { continue };
        if !mixes.contains(&selection.choices) {
            mixes.push(selection.choices);
        }
    }
    mixes
}
