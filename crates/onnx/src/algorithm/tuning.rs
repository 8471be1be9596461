//! The walk over the layers of a graph: what each reads and should make is captured, its codes are chosen, its bias is
//! corrected, and the next layer sees it as it has become.

use kvant_container::onnx::{Bytes, GraphProto, ModelProto, OperatorSetIdProto, set_contents, shape};
use serde::Serialize;

use super::blocks::blocks;
use super::data::Data;
use super::incremental_executor::IncrementalExecutor;
use super::layer::{Grid, Layer};
use super::layer_io::LayerIo;
use super::learned::{LearnedBlock, LeftBlock};
use super::outcome::{Outcome, keep_layer, kept_layers};
use super::rounding::{reads_float_inputs, round};
use super::selection::Selection;
use super::simulation::{Tunable, grid, simulation, sorted};
use super::target::{LayerRef, bias_factor, targets};
use super::trial::{Difference, difference};
use super::{Algorithm, Algorithms, Stage, Unlimited};
use crate::calibration_method::weight_parameters;
use crate::error::AlgorithmError;
use crate::error::QuantizeError;
use crate::graph::Index;
use crate::placement::Placement;
use crate::quantization::Affine;
use crate::recipe::{Layout, Recipe};
use crate::solution::{Solution, refuse_not_finite, values};
use crate::writing::{BlockMap, Blocks, block_parameters};

/// The gain of algorithms for a layer: its outputs compared with those of the float model, after the activation function, on the inputs that
/// the quantized model produces.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LayerGain {
    /// The node.
    pub layer: String,
    /// Its operator.
    pub operator: String,
    /// Mean squared error with the nearest codes.
    pub loss_before: f64,
    /// Mean squared error as the layer has become.
    pub loss_after: f64,
    /// Signal to noise in decibels with the nearest codes.
    pub sqnr_before: Option<f64>,
    /// Signal to noise in decibels as the layer has become.
    pub sqnr_after: Option<f64>,
}

/// What algorithms that see activations did, for the report.
#[derive(Debug, Default)]
pub(crate) struct Tuned {
    /// Layer by layer.
    pub gains: Vec<LayerGain>,
    /// Block by block.
    pub learned_blocks: Vec<LearnedBlock>,
    pub not_learned: Vec<LeftBlock>,
}

/// Runs the algorithms that see activations. What they find goes to the solution and to the biases of the model.
pub(crate) fn tune(
    prepared: &mut Tunable<'_>,
    solution: &mut Solution,
    data: Option<&mut Data<'_>>,
) -> Result<Tuned, QuantizeError> {
    let algorithms = prepared.recipe.algorithms.clone();
    let waits = |a: &&Algorithm| a.stage() >= Stage::Rounding && a.needs_data();
    let Some(first) = algorithms.iter().find(waits) else { return Ok(Tuned::default()) };
    let data = data.ok_or(AlgorithmError::NoData(first.name().to_owned()))?;
    let mut model = sorted(prepared.model.clone())?;
    let trains = algorithms.iter().filter_map(Algorithm::rounding).any(|rounding| rounding.takes_normalizations());
    let targets = targets(&model.graph, prepared.placement, trains);
    solve_blocks(&model, &targets, prepared.recipe, solution)?;
    lift_limits(&mut model, prepared.unlimited);
    let opsets = model.opset_import.clone();
    let index = Index::new(&model.graph);
    let learning = algorithms.iter().find_map(Algorithm::tuning);
    let budget = data.runtime.budget;
    if learning.is_some() {
        // What blocks read and give is recorded beside both walks.
        data.runtime.budget /= 2;
    }
    let quantized = IncrementalExecutor::new(simulation(prepared, solution)?, data)?.keeping_outputs();
    let blocks = match learning {
        Some(_) => blocks(&model.graph, &targets),
        None => Vec::new(),
    };
    let mut kept = kept_layers(&targets, data);
    // A block is done once all of its layers are.
    let begun = blocks.iter().find(|block| block.layers.contains(&kept.len()));
    kept.truncate(begun.map_or(kept.len(), |block| block.layers.start));
    let runs = kept.len() < targets.len();
    let is_selective = algorithms.iter().filter_map(Algorithm::rounding).any(|rounding| rounding.is_selective());
    let selective = runs && is_selective;
    let selection = selective.then(|| Selection::new(model.clone(), &quantized, data)).transpose()?;
    let float = IncrementalExecutor::new(model, data)?;
    let made = Tuned::default();
    let mut tuning = Tuning { prepared, solution, algorithms, opsets, float, index, quantized, selection, made };
    let all = targets.len() as u64;
    (data.progress)(kept.len() as u64, all);
    let resumed = kept.len();
    for (target, outcome) in targets.iter().zip(kept) {
        data.check_cancelled()?;
        let gain = tuning.resume(target, outcome, runs, data)?;
        tuning.made.gains.extend(gain);
    }
    tuning.made.resume_blocks(data);
    let mut done = resumed;
    while done < targets.len() {
        data.check_cancelled()?;
        let block = blocks.iter().find(|block| block.layers.start == done);
        let outcomes = match (learning, block) {
            (Some(settings), Some(block)) => tuning.block(settings, block, &targets, data)?,
            _ => vec![tuning.layer(&targets[done], data)?],
        };
        tuning.made.keep_blocks(data)?;
        for outcome in outcomes {
            keep_layer(done, &targets[done], outcome.as_ref(), data)?;
            tuning.made.gains.extend(outcome.map(|outcome| outcome.gain));
            done += 1;
            (data.progress)(done as u64, all);
        }
    }
    data.runtime.budget = budget;
    Ok(tuning.made)
}

/// Gives the weights that are stored in blocks the parameters of their blocks, where they do not have them yet.
fn solve_blocks(
    model: &ModelProto,
    targets: &[LayerRef],
    recipe: &Recipe,
    solution: &mut Solution,
) -> Result<(), QuantizeError> {
    let Layout::MatMulNBits { bits, block, accuracy } = recipe.layout else { return Ok(()) };
    let (graph, blocks) = (&model.graph, Blocks::of(recipe, bits, block, accuracy));
    let index = Index::new(graph);
    for target in targets {
        if solution.blocks.contains_key(&target.weight) {
            continue;
        }
        let Some(tensor) = index.constant(graph, &target.weight) else { continue };
        let Some(map) = BlockMap::of(&graph.node[target.position], &shape(tensor)?, block) else { continue };
        let parameters = block_parameters(&values(tensor)?, None, map, blocks);
        solution.weights.insert(target.weight.clone(), parameters);
        solution.blocks.insert(target.weight.clone(), (map, blocks.element()));
    }
    Ok(())
}

/// Searches the scales of weights that are stored in blocks, where a recipe says so, and gives them the nearest codes.
pub(crate) fn search_blocks(
    graph: &GraphProto,
    recipe: &Recipe,
    placement: &Placement,
    importance: &dyn Fn(&GraphProto, &str) -> Option<Vec<f32>>,
    solution: &mut Solution,
) -> Result<(), QuantizeError> {
    let Layout::MatMulNBits { bits, block, accuracy } = recipe.layout else { return Ok(()) };
    let blocks = Blocks::of(recipe, bits, block, accuracy);
    if !blocks.searches {
        return Ok(());
    }
    let index = Index::new(graph);
    for name in placement.weights.keys() {
        let node = index.only_consumer(name).map(|position| &graph.node[position]);
        let Some((node, tensor)) = node.zip(index.constant(graph, name)) else { continue };
        let Some(map) = BlockMap::of(node, &shape(tensor)?, block) else { continue };
        let source = values(tensor)?;
        refuse_not_finite(name, &source)?;
        let parameters = block_parameters(&source, importance(graph, name).as_deref(), map, blocks);
        let element = blocks.element();
        let Some(codes) = element.full_range() else { continue };
        let grid = Grid::in_blocks(element, codes, map, parameters.clone());
        solution.codes.insert(name.clone(), grid.nearest(&source));
        solution.weights.insert(name.clone(), parameters);
        solution.blocks.insert(name.clone(), (map, element));
    }
    Ok(())
}

/// Gives weights that were limited for their codes' sake what the float model has.
fn lift_limits(model: &mut ModelProto, unlimited: &Unlimited) {
    let tensors = model.graph.as_mut().into_iter().flat_map(|graph| &mut graph.initializer);
    for tensor in tensors {
        if let Some(contents) = unlimited.get(tensor.name()) {
            set_contents(tensor, contents.clone());
        }
    }
}

/// A layer, and where it is in the quantized model.
pub(super) struct Placed {
    pub layer: Layer,
    /// The tensor that it makes in the float model.
    output: String,
    /// The position of its node in the quantized model, and what that reads.
    pub position: usize,
    input: String,
    /// Its input in the float model, if the algorithm needs it.
    float_input: Option<String>,
}

/// A layer whose codes are chosen.
pub(super) struct Finished {
    /// The layer, with its new bias.
    pub layer: Layer,
    pub codes: Vec<i32>,
    /// The error with the nearest codes.
    pub before: Difference,
    /// The error with these, where they are others.
    pub after: Option<Difference>,
    /// The parameters of its grid, where they were learned.
    pub parameters: Option<Vec<Affine>>,
    /// Whether an algorithm chose the codes.
    pub is_chosen: bool,
}

pub(super) struct Tuning<'a, 'p> {
    pub prepared: &'a mut Tunable<'p>,
    pub solution: &'a mut Solution,
    pub algorithms: Algorithms,
    pub opsets: Vec<OperatorSetIdProto>,
    pub float: IncrementalExecutor,
    /// Of the float model, which stays as it is.
    pub index: Index,
    pub quantized: IncrementalExecutor,
    pub selection: Option<Selection>,
    pub made: Tuned,
}

impl Tuning<'_, '_> {
    /// A layer, and where it is in the quantized model. `None` where that has no such node.
    pub(super) fn place(&self, target: &LayerRef) -> Result<Option<Placed>, QuantizeError> {
        let Some(layer) = self.read(target)? else { return Ok(None) };
        let Some(output) = layer.node.output.first().cloned() else { return Ok(None) };
        let Some(position) = self.position(&output) else { return Ok(None) };
        let Some(input) = self.quantized.graph().node[position].input.first().cloned() else { return Ok(None) };
        let float_input = self.float_input(&layer);
        Ok(Some(Placed { layer, output, position, input, float_input }))
    }

    /// Runs both models up to a layer.
    pub(super) fn advance(
        &mut self,
        target: &LayerRef,
        placed: &Placed,
        data: &Data<'_>,
    ) -> Result<(), AlgorithmError> {
        let kept: Vec<&str> = [placed.output.as_str()].into_iter().chain(placed.float_input.as_deref()).collect();
        self.float.advance(target.position + 1, &kept, data)?;
        self.quantized.advance(placed.position, &[], data)
    }

    /// Applies the result of an interrupted run to a layer. Models run up to it in the same pieces as in that run, whose sums
    /// depend on them, if they `run` at all: if all layers are done, no activations are needed.
    fn resume(
        &mut self,
        target: &LayerRef,
        outcome: Option<Outcome>,
        runs: bool,
        data: &mut Data<'_>,
    ) -> Result<Option<LayerGain>, QuantizeError> {
        let Some(outcome) = outcome else { return Ok(None) };
        if let Some(parameters) = outcome.parameters.clone() {
            self.solution.weights.insert(target.weight.clone(), parameters);
        }
        let Some(placed) = self.place(target)? else { return Ok(None) };
        if runs {
            self.advance(target, &placed, data)?;
        }
        let mut layer = placed.layer;
        let codes = match outcome.codes {
            Some(codes) => {
                check(&layer, &super::Rounded { codes: codes.clone(), bias: outcome.bias.clone() })?;
                self.solution.codes.insert(target.weight.clone(), codes.clone());
                codes
            }
            None => layer.grid.nearest(&layer.weight),
        };
        layer.bias = outcome.bias;
        if let (true, Some(name), Some(bias)) = (outcome.is_corrected, &target.bias, &layer.bias) {
            fit_bias(self.prepared, self.solution, name, bias);
        }
        self.settle(target, &layer, &codes)?;
        if let (Some(name), Some(bias)) = (&target.added, &outcome.added) {
            fit_bias(self.prepared, self.solution, name, bias);
            self.quantized.set_constant(name, &self.stored(name, bias));
            set_floats(self.prepared.model, name, bias);
        }
        if let Some((selection, distance)) = self.selection.as_mut().zip(outcome.distance) {
            selection.resume_at(distance);
        }
        Ok(Some(outcome.gain))
    }

    /// Does a layer. `None` where the quantized model has no such node.
    fn layer(&mut self, target: &LayerRef, data: &mut Data<'_>) -> Result<Option<Outcome>, QuantizeError> {
        let Some(placed) = self.place(target)? else { return Ok(None) };
        self.advance(target, &placed, data)?;
        let mut layer = placed.layer.clone();
        let nearest = layer.grid.nearest(&layer.weight);
        let before = self.difference(&layer, &nearest, target, &self.captured(&placed, data))?;
        let chosen = self.choose(target, &placed, &mut layer, &before, data)?;
        let is_chosen = self.algorithms.iter().any(|algorithm| algorithm.rounding().is_some());
        let (codes, after) = chosen.map_or((nearest, None), |(codes, after)| (codes, Some(after)));
        if is_chosen {
            self.solution.codes.insert(target.weight.clone(), codes.clone());
        }
        let finished = Finished { layer, codes, before, after, parameters: None, is_chosen };
        self.finish(target, &placed, finished, data).map(Some)
    }

    /// What a layer reads and should make.
    pub(super) fn captured<'s>(&'s self, placed: &'s Placed, data: &'s Data<'_>) -> LayerIo<'s> {
        LayerIo {
            quantized: &self.quantized,
            float: &self.float,
            input: &placed.input,
            float_input: placed.float_input.as_deref().filter(|name| self.float.holds(name)),
            output: &placed.output,
            cancelled: data.cancelled,
            runtime: &data.runtime,
        }
    }

    /// Has the rounding choose the codes of a layer, which gets another bias with them; `None` where there is no rounding, or its codes
    /// do no good.
    pub(super) fn choose(
        &mut self,
        target: &LayerRef,
        placed: &Placed,
        layer: &mut Layer,
        before: &Difference,
        data: &Data<'_>,
    ) -> Result<Option<(Vec<i32>, Difference)>, QuantizeError> {
        let Some(rounding) = self.algorithms.iter().find_map(Algorithm::rounding) else { return Ok(None) };
        let captured = self.captured(placed, data);
        let rounded = round(rounding, layer, &captured)?;
        check(layer, &rounded)?;
        let own = layer.bias.clone();
        layer.bias = rounded.bias.or(layer.bias.take());
        let made = self.difference(layer, &rounded.codes, target, &captured)?;
        let good = made.noise < before.noise;
        let weight = layer.grid.values(&rounded.codes);
        let bias = self.stored_bias(target, layer.bias.as_deref());
        let bias = target.bias.as_deref().zip(bias.as_deref());
        let constants: Vec<(&str, &[f32])> = [(target.weight.as_str(), &weight[..])].into_iter().chain(bias).collect();
        if good && selected(&mut self.selection, &self.quantized, &constants, data)? {
            return Ok(Some((rounded.codes, made)));
        }
        layer.bias = own;
        Ok(None)
    }

    /// Corrects the bias of a layer whose codes are chosen, and lets the rest of the walk have it.
    pub(super) fn finish(
        &mut self,
        target: &LayerRef,
        placed: &Placed,
        finished: Finished,
        data: &Data<'_>,
    ) -> Result<Outcome, QuantizeError> {
        let Finished { mut layer, codes, before, mut after, parameters, is_chosen } = finished;
        let mut is_corrected = false;
        if let (Some(correction), Some(bias)) = (self.correction(), &layer.bias) {
            let drift = after.as_ref().unwrap_or(&before).mean_drift();
            let corrected = correction.corrected(bias, &drift, bias_factor(&layer.node));
            if let Some(name) = &target.bias {
                fit_bias(self.prepared, self.solution, name, &corrected);
            }
            layer.bias = Some(corrected);
            is_corrected = true;
            after = Some(self.difference(&layer, &codes, target, &self.captured(placed, data))?);
        }
        self.settle(target, &layer, &codes)?;
        let mut added = None;
        if let Some((bias, corrected)) = self.correct_added(target, after.as_ref().unwrap_or(&before))? {
            (added, after) = (Some(bias), Some(corrected));
        }
        let gain = gain(&layer, &before, after.as_ref().unwrap_or(&before));
        let distance = self.selection.as_ref().map(Selection::distance_so_far);
        let codes = is_chosen.then_some(codes);
        Ok(Outcome { codes, parameters, bias: layer.bias, is_corrected, added, distance, gain })
    }

    /// The layer's data in the float model, if the algorithm needs it.
    fn float_input(&self, layer: &Layer) -> Option<String> {
        let mut rounding = self.algorithms.iter().filter_map(Algorithm::rounding);
        rounding.any(reads_float_inputs).then(|| layer.node.input.first().cloned()).flatten()
    }

    /// The layer as it was solved, with the codes it can take.
    fn read(&self, target: &LayerRef) -> Result<Option<Layer>, QuantizeError> {
        let (graph, index) = (self.float.graph(), &self.index);
        let node = graph.node[target.position].clone();
        let Some(tensor) = index.constant(graph, &target.weight) else { return Ok(None) };
        let shape = shape(tensor)?;
        let weight = self.prepared.placement.weights.get(&target.weight);
        let Some(grid) = weight.and_then(|w| grid(&target.weight, w, &shape, self.solution)) else { return Ok(None) };
        let bias = target.bias.as_ref().and_then(|name| index.constant(graph, name)).map(values).transpose()?;
        let function = target.function.clone();
        Ok(Some(Layer { node, shape, weight: values(tensor)?, grid, bias, function }))
    }

    /// The node of the quantized model that makes what a node of the float model makes.
    fn position(&self, output: &str) -> Option<usize> {
        let renamed = format!("{output}_QuantizeLinear_Input");
        self.quantized.maker(&renamed).or_else(|| self.quantized.maker(output))
    }

    fn correction(&self) -> Option<super::BiasCorrection> {
        self.algorithms.iter().find_map(|algorithm| match algorithm {
            Algorithm::BiasCorrection(settings) => Some(*settings),
            _ => None,
        })
    }

    pub(super) fn difference(
        &self,
        layer: &Layer,
        codes: &[i32],
        target: &LayerRef,
        captured: &LayerIo<'_>,
    ) -> Result<Difference, QuantizeError> {
        let bias = self.stored_bias(target, layer.bias.as_deref());
        Ok(difference(layer, &layer.grid.values(codes), bias.as_deref(), &self.opsets, captured)?)
    }

    /// A bias as the quantized model will have it. int32 is as good as float.
    pub(super) fn stored_bias(&self, target: &LayerRef, bias: Option<&[f32]>) -> Option<Vec<f32>> {
        Some(self.stored(target.bias.as_ref()?, bias?))
    }

    fn stored(&self, name: &str, bias: &[f32]) -> Vec<f32> {
        let weight = self.prepared.placement.weights.get(name);
        let grid = weight.and_then(|weight| grid(name, weight, &[bias.len()], self.solution));
        grid.map_or_else(|| bias.to_vec(), |grid| grid.values(&grid.nearest(bias)))
    }

    /// Corrects the bias of an Add after a MatMul; `None` if there is none, or nothing is gained.
    fn correct_added(
        &mut self,
        target: &LayerRef,
        found: &Difference,
    ) -> Result<Option<(Vec<f32>, Difference)>, QuantizeError> {
        let (Some(correction), Some(name)) = (self.correction(), &target.added) else { return Ok(None) };
        let graph = self.float.graph();
        let Some(bias) = self.index.constant(graph, name).map(values).transpose()? else { return Ok(None) };
        let (before, known) = (self.stored(name, &bias), self.solution.weights.get(name).cloned());
        let corrected = correction.corrected(&bias, &found.mean_drift(), 1.0);
        fit_bias(self.prepared, self.solution, name, &corrected);
        let after = self.stored(name, &corrected);
        // The stored values differ from those of the float model, before and after.
        let off = |stored: &[f32]| -> Vec<f64> {
            stored.iter().zip(&bias).map(|(stored, bias)| f64::from(*stored) - f64::from(*bias)).collect()
        };
        let shifted = found.shifted(&off(&after));
        if shifted.noise >= found.shifted(&off(&before)).noise {
            known.into_iter().for_each(|known| drop(self.solution.weights.insert(name.clone(), known)));
            return Ok(None);
        }
        self.quantized.set_constant(name, &after);
        set_floats(self.prepared.model, name, &corrected);
        Ok(Some((corrected, shifted)))
    }

    /// Lets the rest of the walk, and the model that is written, have the layer as it has become.
    fn settle(&mut self, target: &LayerRef, layer: &Layer, codes: &[i32]) -> Result<(), QuantizeError> {
        self.quantized.set_constant(&target.weight, &layer.grid.values(codes));
        let (Some(name), Some(bias)) = (&target.bias, &layer.bias) else { return Ok(()) };
        if let Some(stored) = self.stored_bias(target, Some(bias)) {
            self.quantized.set_constant(name, &stored);
        }
        set_floats(self.prepared.model, name, bias);
        Ok(())
    }
}

/// Gives a bias that is quantized like a weight the scale of its new values. On NPUs its scale is tied to the product's, and stays.
fn fit_bias(prepared: &Tunable<'_>, solution: &mut Solution, name: &str, bias: &[f32]) {
    let weight = prepared.placement.weights.get(name).filter(|_| !prepared.recipe.npu);
    let Some(weight) = weight else { return };
    let parameters = weight_parameters(bias, &[bias.len()], weight.axis, weight.method());
    solution.weights.insert(name.to_owned(), parameters);
}

/// Returns whether the whole model comes nearer with these constants; true if this is not checked.
fn selected(
    selection: &mut Option<Selection>,
    quantized: &IncrementalExecutor,
    constants: &[(&str, &[f32])],
    data: &Data<'_>,
) -> Result<bool, AlgorithmError> {
    selection.as_mut().map_or(Ok(true), |selection| selection.takes(quantized, constants, data))
}

fn set_floats(model: &mut ModelProto, name: &str, values: &[f32]) {
    let tensors = model.graph.as_mut().into_iter().flat_map(|graph| &mut graph.initializer);
    for tensor in tensors.filter(|tensor| tensor.name() == name) {
        set_contents(tensor, Bytes::copy_from_slice(bytemuck::cast_slice(values)));
    }
}

/// Codes off the grid would be written as something else.
fn check(layer: &Layer, rounded: &super::Rounded) -> Result<(), AlgorithmError> {
    let range = layer.grid.codes;
    let fits = |code: &i32| (range.min..=range.max).contains(&i64::from(*code));
    let whole = rounded.codes.len() == layer.weight.len() && rounded.codes.iter().all(fits);
    let biased = rounded.bias.as_ref().is_none_or(|bias| layer.bias.as_ref().is_some_and(|b| b.len() == bias.len()));
    let problem = || "an algorithm gave codes that the weight cannot have".to_owned();
    let wrong = || AlgorithmError::Layer { layer: layer.name().to_owned(), problem: problem() };
    (whole && biased).then_some(()).ok_or_else(wrong)
}

fn gain(layer: &Layer, before: &Difference, after: &Difference) -> LayerGain {
    LayerGain {
        layer: layer.name().to_owned(),
        operator: layer.node.op_type().to_owned(),
        loss_before: before.loss(),
        loss_after: after.loss(),
        sqnr_before: before.sqnr(),
        sqnr_after: after.sqnr(),
    }
}
