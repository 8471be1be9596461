//! Measures assignments of types to tensors: quantizes the model in memory with what was observed beforehand, and runs it on the
//! held-out samples.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use kvant_container::onnx::{ModelProto, Spill};
use kvant_quant::glob::Glob;
use kvant_quant::recipe::OverrideEntry;

use super::candidate::{Candidate, Role, words};
use super::error::SensitivityError;
use super::layer::{Layer, Part, layers};
use crate::calibration::{Observed, observe};
use crate::cost::Cost;
use crate::data::Samples;
use crate::error::QuantizeError;
use crate::evaluation::{KeptOutputs, Quality};
use crate::quantize::{Prepared, prepare};
use crate::recipe::{Boundary, Layout, Recipe};
use crate::runtime::RuntimeOptions;
use crate::settings::Settings;
use crate::solution::Ranges;

/// What the tensors of each part become: `Some(0)` what the recipe says, `Some(n)` the n-th candidate, `None` floats.
pub(super) type Assignment = Vec<Option<usize>>;

/// Is told what is going on, and how much of it is done.
pub type Watch<'w> = dyn FnMut(u64, u64) + Send + 'w;

/// The samples of a search.
pub struct Data {
    /// Ranges come from these.
    pub calibration: Samples,
    /// Models are measured on these.
    pub held_out: Samples,
    /// The class of each held-out sample.
    pub labels: Option<Vec<i64>>,
}

/// A model, a recipe, what was observed with each candidate, and the float model's outputs.
pub struct Bench {
    settings: Settings,
    base: Prepared,
    pub(super) layers: Vec<Layer>,
    pub(super) parts: Vec<Part>,
    /// From cheap to dear.
    pub(super) candidates: Vec<Candidate>,
    /// With the recipe's types, then with each candidate's.
    observed: Vec<Observed>,
    kept: KeptOutputs,
    held_out: Samples,
    options: RuntimeOptions,
    cancelled: std::sync::Arc<AtomicBool>,
    scratch: PathBuf,
    /// Models that were made and run.
    pub(super) trials: usize,
}

/// Simplifies a model and places the quantizers of a recipe, as a [`Bench`] wants it.
///
/// Errors: those of [`prepare`]; a layout without types to be mixed.
pub fn plan(model: ModelProto, settings: &Settings, spill: Option<&Spill>) -> Result<Prepared, SensitivityError> {
    let resolved = settings.resolve()?;
    if !matches!(resolved.recipe.layout, Layout::Qdq | Layout::QOperator) {
        return Err(SensitivityError::Layout);
    }
    Ok(prepare(model, floats_outside(resolved.recipe), &resolved.passes, spill)?)
}

/// Codes at the ends cost what floats there cost, and floats can be fed to all models alike. Algorithms that run over data are
/// left to the run that follows: with them each trial would take as long as a quantization.
fn floats_outside(recipe: Recipe) -> Recipe {
    let boundary = if recipe.boundary == Boundary::Integer { Boundary::Pairs } else { recipe.boundary };
    let algorithms = recipe.algorithms.without_data();
    Recipe { boundary, algorithms, ..recipe }
}

/// Why no layer is left to choose types for: the overrides take them, or none is outside of bodies.
fn without_layers(base: &Prepared) -> SensitivityError {
    let recipe = Recipe { overrides: Vec::new(), ..base.recipe.clone() };
    match base.with_recipe(recipe) {
        Ok(plain) if !layers(&plain).0.is_empty() => SensitivityError::NoLayers,
        _ => SensitivityError::OnlyInBodies,
    }
}

impl Bench {
    /// The bits of a weight in the recipe.
    pub(super) fn weight_bits(&self) -> u32 {
        self.base.recipe.weight.element.integer_bits().unwrap_or(8)
    }

    /// Observes the float model with the types of the recipe and of each candidate, and keeps its outputs.
    pub fn new(
        base: Prepared,
        settings: Settings,
        candidates: Vec<Candidate>,
        data: Data,
        options: RuntimeOptions,
        cancelled: std::sync::Arc<AtomicBool>,
        watch: &mut Watch<'_>,
    ) -> Result<Self, SensitivityError> {
        let Data { mut calibration, mut held_out, labels } = data;
        let (layers, parts) = layers(&base);
        if layers.is_empty() {
            return Err(without_layers(&base));
        }
        let kept = KeptOutputs::new(&base.model, &mut held_out, labels, &options)?;
        let scratch = options.scratch.clone().unwrap_or_else(std::env::temp_dir);
        let observed = Vec::with_capacity(candidates.len() + 1);
        let mut bench = Self {
            settings,
            base,
            layers,
            parts,
            candidates,
            observed,
            kept,
            held_out,
            options,
            cancelled,
            scratch,
            trials: 0,
        };
        let passes = bench.candidates.iter().filter(|candidate| **candidate != Candidate::Float).count() as u64 + 1;
        let mut pass = 0;
        for level in 0..=bench.candidates.len() {
            let mut part = |done: u64, all: u64| watch(pass * all + done, passes * all);
            let found = bench.observe(level, &mut calibration, &mut part)?;
            pass += u64::from(found.samples > 0);
            bench.observed.push(found);
        }
        Ok(bench)
    }

    /// A pass over the calibration data with all tensors of a candidate's types.
    fn observe(
        &self,
        level: usize,
        samples: &mut Samples,
        watch: &mut Watch<'_>,
    ) -> Result<Observed, SensitivityError> {
        if level > 0 && self.candidates[level - 1] == Candidate::Float {
            return Ok(Observed::default());
        }
        let prepared = self.prepared(&vec![Some(level); self.parts.len()])?;
        let mut observation = prepared.observation();
        if !observation.tensors().is_empty() {
            observe(&prepared.model, &mut observation, samples, &self.options, watch, &self.cancelled)?;
        }
        Ok(observation.observed())
    }

    /// The overrides that an assignment amounts to: none for what is as the recipe has it.
    pub(super) fn overrides(&self, assignment: &Assignment) -> Vec<OverrideEntry> {
        let each = self.parts.iter().zip(assignment);
        each.flat_map(|(part, choice)| self.overrides_of(part, *choice)).collect()
    }

    fn overrides_of(&self, part: &Part, choice: Option<usize>) -> Vec<OverrideEntry> {
        let scheme = match choice {
            Some(0) => return Vec::new(),
            Some(level) => self.candidates[level - 1].words(&part.scheme, part.role),
            None => "keep".to_owned(),
        };
        if scheme == words(&part.scheme) {
            return Vec::new();
        }
        // What shares the scale has no channels of its own.
        let shared = scheme.replace(":channel", "");
        let text = |(at, name): (usize, &String)| {
            OverrideEntry::of_tensors(Glob::escape(name), if at == 0 { scheme.clone() } else { shared.clone() })
        };
        part.names.iter().enumerate().map(text).collect()
    }

    /// The plan of an assignment.
    fn prepared(&self, assignment: &Assignment) -> Result<Prepared, SensitivityError> {
        let mut settings = self.settings.clone();
        settings.overrides.extend(self.overrides(assignment));
        Ok(self.base.with_recipe(floats_outside(settings.resolve()?.recipe))?)
    }

    /// The plan of an assignment; `None` where it leaves all in float.
    fn planned(&self, assignment: &Assignment) -> Result<Option<Prepared>, SensitivityError> {
        match self.prepared(assignment) {
            Err(SensitivityError::Quantize(QuantizeError::NothingToDo { .. })) => Ok(None),
            prepared => prepared.map(Some),
        }
    }

    /// Returns whether an assignment leaves all in float.
    pub(super) fn is_float(&self, assignment: &Assignment) -> Result<bool, SensitivityError> {
        Ok(self.planned(assignment)?.is_none())
    }

    /// Makes the model of an assignment and measures it.
    pub(super) fn measure(&mut self, assignment: &Assignment) -> Result<Quality, SensitivityError> {
        if self.cancelled.load(Ordering::Relaxed) {
            return Err(SensitivityError::Cancelled);
        }
        self.trials += 1;
        let spill = Spill::new(&self.scratch).map_err(QuantizeError::from)?.cancelled_by(self.cancelled.clone());
        let quantized = match self.planned(assignment)? {
            Some(prepared) => {
                let observed = self.observed_of(&prepared, assignment);
                prepared.transformed(None, Some(&spill))?.finish_with(&observed, None, Some(&spill))?.0
            }
            None => self.base.model.clone(),
        };
        Ok(self.kept.measure(&quantized, &mut self.held_out, &self.options)?)
    }

    /// The statistics of each tensor with its types in an assignment.
    fn observed_of(&self, prepared: &Prepared, assignment: &Assignment) -> Observed {
        let levels: BTreeMap<&str, usize> = self
            .parts
            .iter()
            .zip(assignment)
            .flat_map(|(part, choice)| part.names.iter().map(move |name| (name.as_str(), choice.unwrap_or(0))))
            .collect();
        let sources = prepared.range_sources();
        let (mut ranges, mut methods) = (Ranges::default(), BTreeMap::new());
        for name in prepared.placement.activations.keys() {
            let key = sources.observed(name);
            let observed = &self.observed[levels.get(name.as_str()).copied().unwrap_or(0)];
            let from = &observed.ranges;
            if let Some(method) = observed.methods.get(&key) {
                methods.insert(key.clone(), *method);
            }
            if let Some(range) = from.whole.get(&key) {
                ranges.whole.insert(key.clone(), *range);
            }
            if let Some(channels) = from.channels.get(&key) {
                ranges.channels.insert(key, channels.clone());
            }
        }
        let first = &self.observed[0];
        Observed {
            distributions: BTreeMap::new(),
            ranges,
            methods,
            mean_squares: first.mean_squares.clone(),
            mask_like: first.mask_like.clone(),
            without_values: first.without_values.clone(),
            non_finite: first.non_finite.clone(),
            varying_channels: first.varying_channels.clone(),
            samples: first.samples,
        }
    }

    /// Bytes of the constants of the float model and of an assignment's.
    pub(super) fn bytes(&self, assignment: &Assignment) -> Result<(u64, u64), SensitivityError> {
        let cost = Cost::of(&self.prepared(assignment)?, 1);
        Ok((cost.constants.source_bytes, cost.constants.output_bytes))
    }

    /// Bits of a part in a choice, and of its constants alone.
    pub(super) fn bits(&self, part: usize, choice: Option<usize>) -> (u64, u64) {
        let Part { role, scheme, elements, .. } = &self.parts[part];
        let element = match choice {
            Some(0) => Some(scheme.element),
            Some(level) => self.candidates[level - 1].element(scheme, *role),
            None => None,
        };
        let bits = element.and_then(|e| e.data_type()).and_then(kvant_container::onnx::data_type_bits).unwrap_or(32);
        let all = elements.saturating_mul(bits);
        (all, if *role == Role::Weight { all } else { 0 })
    }
}
