//! Learned rounding along the walk over the layers: a block is rounded layer by layer, both models return to where it begins, its codes and
//! scales are learned, and it is walked through again as it has become.

use std::collections::HashMap;

use kvant_quant::tuning::AutoRound;
use serde::{Deserialize, Serialize};

use super::blocks::LayerBlock;
use super::data::Data;
use super::gradient::{Engine, NoGradient, Program, TrainedLayer};
use super::layer::Layer;
use super::learned::{LearnedBlock, LearnedCodes, LearnedLayer, Learner, LeftBlock, NotLearned};
use super::outcome::Outcome;
use super::rounding::RowMatrix;
use super::target::LayerRef;
use super::tuning::{Finished, Tuned, Tuning};
use crate::error::{AlgorithmError, QuantizeError};
use crate::quantization::ScaleKind;
use crate::runtime::RuntimeOptions;

/// A layer of a block before it is learned.
struct RoundedLayer {
    /// The layer with its bias, and the grid that it begins with.
    layer: Layer,
    codes: Vec<i32>,
}

/// What is learned, by the number of the layer.
type Found = HashMap<usize, LearnedCodes>;

impl Tuning<'_, '_> {
    /// Does the layers of a block.
    pub(super) fn block(
        &mut self,
        settings: AutoRound,
        block: &LayerBlock,
        targets: &[LayerRef],
        data: &mut Data<'_>,
    ) -> Result<Vec<Option<Outcome>>, QuantizeError> {
        let layers = &targets[block.layers.clone()];
        let places = layers.iter().map(|target| self.place(target)).collect::<Result<Vec<_>, _>>()?;
        let Some(first) = places.iter().flatten().map(|placed| placed.position).min() else {
            return Ok(layers.iter().map(|_| None).collect());
        };
        self.float.advance(layers[0].position, &[], data)?;
        self.quantized.advance(first, &[], data)?;
        self.float.pin();
        self.quantized.pin();
        let rounded = self.rounded(layers, data)?;
        self.float.return_to_pin();
        self.quantized.return_to_pin();
        let numbered = block.layers.clone().zip(rounded);
        let rounded: HashMap<usize, RoundedLayer> = numbered.filter_map(|(at, layer)| Some((at, layer?))).collect();
        let mut found = self.learn(settings, block, targets, &rounded, data)?;
        let numbered = block.layers.clone().map(|number| (number, found.remove(&number)));
        let finished = numbered.collect::<Vec<_>>().into_iter().map(|(number, learned)| {
            let rounded = rounded.get(&number);
            rounded.map_or(Ok(None), |rounded| self.walk_through(&targets[number], rounded, learned, data))
        });
        finished.collect()
    }

    /// The layers of a block with the codes that the rounding chooses, one after the other. Their codes are in the quantized model.
    fn rounded(
        &mut self,
        layers: &[LayerRef],
        data: &mut Data<'_>,
    ) -> Result<Vec<Option<RoundedLayer>>, QuantizeError> {
        let rounds = self.algorithms.iter().any(|algorithm| algorithm.rounding().is_some());
        let mut made = Vec::with_capacity(layers.len());
        for target in layers {
            data.check_cancelled()?;
            let Some(placed) = self.place(target)? else {
                made.push(None);
                continue;
            };
            let mut layer = placed.layer.clone();
            let mut codes = layer.grid.nearest(&layer.weight);
            if rounds {
                self.advance(target, &placed, data)?;
                let before = self.difference(&layer, &codes, target, &self.captured(&placed, data))?;
                if let Some((chosen, _)) = self.choose(target, &placed, &mut layer, &before, data)? {
                    codes = chosen;
                }
            }
            self.put(target, &layer, &codes);
            made.push(Some(RoundedLayer { layer, codes }));
        }
        Ok(made)
    }

    /// Gives the quantized model the weight and the bias of a layer.
    fn put(&mut self, target: &LayerRef, layer: &Layer, codes: &[i32]) {
        self.quantized.set_constant(&target.weight, &layer.grid.values(codes));
        if let (Some(name), Some(stored)) = (&target.bias, self.stored_bias(target, layer.bias.as_deref())) {
            self.quantized.set_constant(name, &stored);
        }
    }

    /// Runs both models through a layer of a block that is learned, and corrects its bias.
    fn walk_through(
        &mut self,
        target: &LayerRef,
        rounded: &RoundedLayer,
        learned: Option<LearnedCodes>,
        data: &mut Data<'_>,
    ) -> Result<Option<Outcome>, QuantizeError> {
        let start = &rounded.layer.grid;
        let Some(placed) = self.place(target)? else { return Ok(None) };
        self.advance(target, &placed, data)?;
        let (codes, parameters) = match learned {
            Some(LearnedCodes { codes, parameters }) => (codes, Some(parameters)),
            None => (rounded.codes.clone(), None),
        };
        let captured = self.captured(&placed, data);
        let (plain, layer) = (Layer { grid: start.clone(), ..placed.layer.clone() }, placed.layer.clone());
        let before = self.difference(&plain, &start.nearest(&plain.weight), target, &captured)?;
        let layer = Layer { bias: rounded.layer.bias.clone(), ..layer };
        let after = Some(self.difference(&layer, &codes, target, &captured)?);
        self.solution.codes.insert(target.weight.clone(), codes.clone());
        let finished = Finished { layer, codes, before, after, parameters, is_chosen: true };
        self.finish(target, &placed, finished, data).map(Some)
    }

    /// Learns the codes of a block; where that has no gradient, of its layers one by one. What is found goes to the solution and to the
    /// quantized model.
    fn learn(
        &mut self,
        settings: AutoRound,
        block: &LayerBlock,
        targets: &[LayerRef],
        rounded: &HashMap<usize, RoundedLayer>,
        data: &Data<'_>,
    ) -> Result<Found, QuantizeError> {
        let names = |block: &LayerBlock| {
            let layers = block.layers.clone().filter_map(|number| rounded.get(&number));
            layers.map(|rounded| rounded.layer.name().to_owned()).collect::<Vec<_>>()
        };
        let reason = match self.learn_together(settings, block, targets, rounded, data)? {
            Ok(found) => return Ok(found),
            Err(reason) => reason,
        };
        let is_apart = block.layers.len() > 1;
        let instead = if is_apart { "; its layers were learned one by one" } else { "" };
        self.made.not_learned.push(LeftBlock { layers: names(block), reason: format!("{reason}{instead}") });
        let mut all = Found::new();
        if is_apart {
            for alone in block.apart(self.float.graph(), &self.index, targets) {
                match self.learn_together(settings, &alone, targets, rounded, data)? {
                    Ok(found) => all.extend(found),
                    Err(reason) => self.made.not_learned.push(LeftBlock { layers: names(&alone), reason }),
                }
            }
        }
        Ok(all)
    }

    /// Learns the codes of a block, or says why not.
    fn learn_together(
        &mut self,
        settings: AutoRound,
        block: &LayerBlock,
        targets: &[LayerRef],
        rounded: &HashMap<usize, RoundedLayer>,
        data: &Data<'_>,
    ) -> Result<Result<Found, String>, QuantizeError> {
        let mut learned = Vec::new();
        for number in block.layers.clone() {
            let Some(RoundedLayer { layer, codes }) = rounded.get(&number) else { continue };
            let Some(matrix) = RowMatrix::of(layer)? else { continue };
            let moves_scales = self.moves_scales(&targets[number].weight, settings)?;
            learned.push((number, LearnedLayer { layer, matrix, codes, moves_scales }));
        }
        let pairs = block.outputs.iter().filter_map(|name| Some((name.clone(), self.quantized_name(name)?)));
        let (mut outputs, names): (Vec<String>, Vec<String>) = pairs.unzip();
        if learned.is_empty() || outputs.is_empty() {
            return Ok(Ok(Found::new()));
        }
        let trained = |(number, learned): &(usize, LearnedLayer<'_>)| TrainedLayer {
            weight: targets[*number].weight.clone(),
            shape: learned.layer.shape.clone(),
        };
        let trained: Vec<TrainedLayer> = learned.iter().map(trained).collect();
        let engine = Engine {
            options: RuntimeOptions { threads: Some(1), ..data.runtime.clone() },
            opsets: self.opsets.clone(),
        };
        let graph = self.quantized.graph();
        let program = match Program::new(graph, self.quantized.next()..graph.node.len(), &names, &trained, &engine) {
            Ok(program) if program.outputs().is_empty() => return Ok(Ok(Found::new())),
            Ok(program) => program,
            Err(problem) => return Ok(Err(text(&problem))),
        };
        let mut kept = names.iter().map(|name| program.outputs().contains(name));
        outputs.retain(|_| kept.next() == Some(true));
        let reads: Vec<String> = program.reads().into_iter().chain(program.outputs().iter().cloned()).collect();
        let (inputs, recorded) = (self.quantized.record(&reads, data)?, self.float.record(&outputs, data)?);
        let (numbers, layers): (Vec<usize>, Vec<LearnedLayer<'_>>) = learned.into_iter().unzip();
        let learner = Learner {
            program: &program,
            settings,
            number: block.layers.start,
            quantized: &self.quantized,
            inputs: &inputs,
            targets: &recorded,
            outputs: &outputs,
        };
        let (loss_before, loss_after, found) = match learner.learn(&layers, data) {
            Ok(found) => found,
            Err(NotLearned::NoGradient(problem)) => return Ok(Err(text(&problem))),
            Err(NotLearned::Differs) => {
                return Ok(Err("its outputs are not those that the engine computes".to_owned()));
            }
            Err(NotLearned::Failed(error)) => return Err(error.into()),
        };
        let names = layers.iter().map(|learned| learned.layer.name().to_owned()).collect();
        self.made.learned_blocks.push(LearnedBlock { layers: names, loss_before, loss_after });
        let found: Found = numbers.into_iter().zip(found.into_iter().flatten()).collect();
        if self.accepts(&found, targets, rounded, data)? { Ok(Ok(found)) } else { Ok(Ok(Found::new())) }
    }

    /// Puts what was learned into the solution and the quantized model, unless the whole model does not come nearer where that is asked.
    fn accepts(
        &mut self,
        found: &Found,
        targets: &[LayerRef],
        rounded: &HashMap<usize, RoundedLayer>,
        data: &Data<'_>,
    ) -> Result<bool, QuantizeError> {
        let grid = |number: &usize, learned: &LearnedCodes| {
            let mut grid = rounded[number].layer.grid.clone();
            grid.parameters.clone_from(&learned.parameters);
            grid
        };
        let values = found.iter().map(|(number, learned)| (*number, grid(number, learned).values(&learned.codes)));
        let values: HashMap<usize, Vec<f32>> = values.collect();
        if let (Some(selection), false) = (self.selection.as_mut(), found.is_empty()) {
            let constants = values.iter().map(|(number, values)| (targets[*number].weight.as_str(), &values[..]));
            let constants: Vec<(&str, &[f32])> = constants.collect();
            if !selection.takes(&self.quantized, &constants, data)? {
                return Ok(false);
            }
        }
        for (number, values) in &values {
            let weight = &targets[*number].weight;
            self.quantized.set_constant(weight, values);
            self.solution.weights.insert(weight.clone(), found[number].parameters.clone());
        }
        Ok(true)
    }

    /// Returns whether the scales of a weight may move: not where hardware has only some, and where biases would not fit them.
    fn moves_scales(&self, weight: &str, settings: AutoRound) -> Result<bool, QuantizeError> {
        let placement = self.prepared.placement;
        let is_free = placement.weights.get(weight).is_some_and(|w| w.scheme.scale == ScaleKind::Float);
        let share = 1.0 - settings.scales;
        let graph = &self.prepared.model.graph;
        Ok(is_free
            && !self.prepared.recipe.npu
            && self.solution.has_room_for_biases(graph, placement, weight, share)?)
    }

    /// The tensor of the quantized model, before its quantizer, that is one of the float model.
    fn quantized_name(&self, name: &str) -> Option<String> {
        let renamed = format!("{name}_QuantizeLinear_Input");
        [renamed, name.to_owned()].into_iter().find(|name| self.quantized.maker(name).is_some())
    }
}

/// Why a block is not learned, for the report.
fn text(problem: &NoGradient) -> String {
    match problem.operator.as_str() {
        "" => format!("the gradient of `{}` is not computed for its shapes", problem.node),
        operator => format!("the operator {operator} of `{}` has no gradient", problem.node),
    }
}

/// The rows of the report, as they are kept for a run that resumes.
#[derive(Serialize, Deserialize)]
struct StoredBlocks {
    learned: Vec<(Vec<String>, [u64; 2])>,
    left: Vec<(Vec<String>, String)>,
}

/// The name of the result.
const BLOCKS: &str = "blocks";

impl Tuned {
    /// Keeps what became of all blocks so far.
    pub(super) fn keep_blocks(&self, data: &Data<'_>) -> Result<(), AlgorithmError> {
        if self.learned_blocks.is_empty() && self.not_learned.is_empty() {
            return Ok(());
        }
        let learned = self.learned_blocks.iter();
        let learned = learned.map(|b| (b.layers.clone(), [b.loss_before, b.loss_after].map(f64::to_bits))).collect();
        let left = self.not_learned.iter().map(|block| (block.layers.clone(), block.reason.clone())).collect();
        data.keep(BLOCKS, &StoredBlocks { learned, left }, &[])
    }

    /// Takes up what an interrupted run has kept, of the layers that are done.
    pub(super) fn resume_blocks(&mut self, data: &Data<'_>) {
        let Some((stored, _)): Option<(StoredBlocks, _)> = data.kept(BLOCKS) else { return };
        let done = |layers: &[String]| layers.iter().all(|name| self.gains.iter().any(|gain| gain.layer == *name));
        let learned = stored.learned.into_iter().filter(|(layers, _)| done(layers));
        let learned = learned.map(|(layers, losses)| {
            let [loss_before, loss_after] = losses.map(f64::from_bits);
            LearnedBlock { layers, loss_before, loss_after }
        });
        let learned: Vec<LearnedBlock> = learned.collect();
        let left = stored.left.into_iter().filter(|(layers, _)| done(layers));
        self.not_learned = left.map(|(layers, reason)| LeftBlock { layers, reason }).collect();
        self.learned_blocks = learned;
    }
}
