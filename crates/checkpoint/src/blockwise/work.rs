//! A block being quantized: the state of its weights, and the written parts.

use crate::engine::{Engine, EngineError};
use crate::folding::ScaleFusion;
use crate::plan::{Job, LayerId, PlannedBlock, PlannedLayer};
use kvant_container::unfinished::Written;
use kvant_forward::forward::WeightOverrides;
use kvant_numeric::simd::Isa;
use kvant_quant::QuantTensor;
use kvant_quant::bias_correction::MeanInput;
use kvant_quant::distribution::Distribution;
use kvant_weights::weight::WeightMatrix;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::inputs::Inputs;
use super::reached::PartialForward;
use super::report::{BlockwiseReport, InsufficientCalibration, LayerReport};
use super::streams::StreamFile;
use super::tuning::RoundedLayer;

/// A block being quantized. Its weights stay in the mapped file; this is their current state.
pub(super) struct Work<'w, 'n, 'a> {
    pub(super) block: &'w PlannedBlock,
    /// The input of the block.
    pub(super) input: &'w StreamFile,
    /// The scales moved by transforms.
    pub(super) foldings: ScaleFusion<'n, 'a>,
    /// The float block, which computes the same function as the model.
    pub(super) float: WeightOverrides<'a>,
    /// The same with limits on weights: what scales are found from.
    pub(super) clipped: WeightOverrides<'a>,
    /// The inputs of layers after all scales are moved, by module; empty without transforms.
    pub(super) inputs: HashMap<String, Inputs>,
    /// Some of what layers read of the sequences that are held out, by module: in floats where scales are moved, and as the
    /// layers that are rounded so far leave it where columns are rounded one by one.
    pub(super) held_out: HashMap<String, Inputs>,
    /// The mean of what layers read as those rounded before them leave it, by module; empty unless biases are corrected.
    pub(super) means: HashMap<String, MeanInput>,
    /// Distributions of what layers read, by module, of those that a report shows and that have no static scales; empty until they are
    /// observed.
    pub(super) distributions: BTreeMap<String, Distribution>,
    /// The block with the layers that are rounded so far.
    pub(super) rounded: WeightOverrides<'a>,
    /// Rounded layers that are tuned before they are written.
    pub(super) rounded_layers: Vec<RoundedLayer>,
    /// The progress of its runs.
    pub(super) reached: Option<PartialForward>,
    /// The pending report.
    pub(super) report: BlockwiseReport,
    /// The written parts of incomplete jobs.
    open: HashMap<usize, Open>,
}

/// A job of which some layers are written.
#[derive(Default)]
struct Open {
    layers: usize,
    pieces: Vec<Written>,
}

impl<'w, 'n, 'a> Work<'w, 'n, 'a> {
    pub(super) fn new(
        block: &'w PlannedBlock,
        input: &'w StreamFile,
        foldings: ScaleFusion<'n, 'a>,
    ) -> Work<'w, 'n, 'a> {
        Work {
            block,
            input,
            foldings,
            float: WeightOverrides::default(),
            clipped: WeightOverrides::default(),
            inputs: HashMap::new(),
            held_out: HashMap::new(),
            means: HashMap::new(),
            distributions: BTreeMap::new(),
            rounded: WeightOverrides::default(),
            rounded_layers: Vec::new(),
            reached: None,
            report: BlockwiseReport::default(),
            open: HashMap::new(),
        }
    }

    /// Lets the passes that follow see the scales that were moved. Limits come after all of them.
    pub(super) fn fold(&mut self) {
        self.float = self.overlay();
        self.clipped = self.float.clone();
        self.rounded = self.float.clone();
    }

    /// Where only transforms see inputs, distributions are those of the rows that they keep.
    pub(super) fn add_samples_to_distributions(&mut self) {
        for (module, distribution) in &mut self.distributions {
            if let Some(inputs) = self.inputs.get(module) {
                distribution.update(Isa::best(), &inputs.rows);
            }
        }
    }

    /// Lets roundings see the limits that were found.
    pub(super) fn clip(&mut self) {
        self.clipped = self.overlay();
    }

    fn overlay(&self) -> WeightOverrides<'a> {
        let mut overlay = WeightOverrides::default();
        self.foldings.add_to(&mut overlay);
        overlay
    }

    /// Runs of later subsets continue from there, if they can.
    pub(super) fn reach(&mut self, next: Option<PartialForward>) {
        self.reached = next.or(self.reached.take());
    }

    /// Reports the treatment of a layer that too few tokens reached.
    pub(super) fn starve(&mut self, layer: &PlannedLayer, tokens: u64, treatment: &str) {
        let (name, treatment) = (layer.name.clone(), treatment.to_owned());
        self.report.starve(InsufficientCalibration { layer: name, tokens, inputs: layer.columns, treatment });
    }

    /// A layer is rounded: writes it, and lets the passes that follow see it.
    pub(super) fn finish(
        &mut self,
        engine: &Engine<'_>,
        jobs: &Jobs,
        layer: LayerId,
        tensor: QuantTensor,
        report: LayerReport,
    ) -> Result<(), EngineError> {
        let planned = engine.plan.layer(layer);
        let job = jobs.of_layer(layer);
        if !engine.is_finished(job) {
            let open = self.open.entry(job).or_default();
            open.pieces.extend(engine.write_layer(planned, &tensor)?);
            open.layers += 1;
            // Layers that share a scale are one job: it is done when all of them are.
            if open.layers == jobs.layers_of(job) {
                let pieces = std::mem::take(&mut open.pieces);
                engine.record(job, jobs.get(job), pieces)?;
            }
        }
        self.rounded.set_weight(&planned.module, WeightMatrix::quantized(Arc::new(tensor)));
        self.report.layers.push(report);
        Ok(())
    }
}

/// The jobs of a plan, by their layers and tensors.
pub(super) struct Jobs {
    jobs: Vec<Job>,
    /// By the index of a layer.
    of_layer: Vec<usize>,
    /// By the name of a tensor of the source.
    of_kept: HashMap<String, Vec<usize>>,
}

impl Jobs {
    pub(super) fn new(plan: &crate::plan::Plan) -> Jobs {
        let jobs = plan.jobs();
        let (mut of_layer, mut of_kept) = (vec![0; plan.layers().len()], HashMap::new());
        for (index, job) in jobs.iter().enumerate() {
            match job {
                Job::Layers(layers) => layers.iter().for_each(|layer| of_layer[layer.index()] = index),
                Job::Keep(kept) => {
                    of_kept.entry(plan.kept_tensor(*kept).source.clone()).or_insert_with(Vec::new).push(index);
                }
                Job::Parameters => {}
            }
        }
        Jobs { jobs, of_layer, of_kept }
    }

    pub(super) fn get(&self, job: usize) -> &Job {
        &self.jobs[job]
    }

    pub(super) fn of_layer(&self, layer: LayerId) -> usize {
        self.of_layer[layer.index()]
    }

    /// The jobs that carry a tensor over, whole or in parts.
    pub(super) fn of_kept(&self, tensor: &str) -> &[usize] {
        self.of_kept.get(tensor).map(Vec::as_slice).unwrap_or_default()
    }

    /// The layers that share a scale with this one, itself included.
    pub(super) fn together(&self, layer: LayerId) -> &[LayerId] {
        match &self.jobs[self.of_layer(layer)] {
            Job::Layers(layers) => layers,
            _ => &[],
        }
    }

    fn layers_of(&self, job: usize) -> usize {
        match &self.jobs[job] {
            Job::Layers(layers) => layers.len(),
            _ => 0,
        }
    }
}
