//! The whole run over one graph: prepare, observe, finish. The caller supplies data and engine between the steps.
//!
//! [`prepare`] refuses whatever can be refused and touches no data; [`Prepared::transformed`] lets algorithms change floats by what
//! they compute on data; [`Prepared::observation`] says which tensors need ranges; [`TransformedModel::finish`] writes the quantized graph.

mod notices;
mod range_table;
mod reporting;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ops::Deref;

use kvant_container::onnx::{DataType, GraphProto, ModelProto, NodeProto, PRODUCER, Spill, data_type};
use kvant_quant::glob::Glob;
use rayon::prelude::*;

use crate::algorithm::{
    self, Algorithm, AlgorithmError, Data, EqualizedPair, Importance, Rotations, Transformed, TransformedByData,
    Tunable, search_blocks, transform, transform_with_data, tune, weighed_inputs,
};
use crate::calibration::{Observation, Observed, Settings, Watched};
use crate::count::{self, Counts, constants, size};
use crate::element::Element;
use crate::error::QuantizeError;
use crate::graph::{GraphError, Index, NodeNames, STANDARD_DOMAIN, check, for_each_node, is, opset};
use crate::npu;
use crate::pass::{self, Context, upgrade_opset};
use crate::placement::{
    Activation, Bias, FLOAT_IN_FILE, Named, Placement, RangeSources, Skipped, assign_channels, check_channels,
    check_kernels, give_ranges, place, refuse_idle_channels, settle_ranges, unmatched, unmatched_ranges,
};
use crate::quantization::Range;
use crate::recipe::{BiasKind, Boundary, FloatType, Layout, NodeRule, Recipe};
use crate::report::Report;
use crate::shape::{self, Types};
use crate::solution::{
    Ranges, Solution, refuse_beyond_float16, refuse_nan, refuse_not_finite, solve, unfit_pools, values,
};
use crate::verify::{Saturation, least_version};
use crate::writing::{
    Blocks, Dialect, block_placement, dynamic, float16, fuse, lift_constants, write_blocks, write_pairs,
};

/// A simplified model and what will become of it.
#[derive(Debug)]
pub struct Prepared {
    /// The float model, its passes done.
    pub model: ModelProto,
    /// The recipe.
    pub recipe: Recipe,
    /// The tensors that are quantized.
    pub placement: Placement,
    /// Types and shapes, as far as they can be inferred.
    pub types: Types,
    /// Bytes of the constants of the model as it is stored.
    pub source_bytes: u64,
    /// Rewrites by each pass.
    pub passes: Vec<(&'static str, usize)>,
    /// Pairs of layers that were equalized.
    pub equalized: Vec<EqualizedPair>,
    /// Streams of channels that were rotated, and those that were not.
    pub rotations: Rotations,
    /// Words of the recipe that name nothing of the graph.
    pub unmatched: Vec<String>,
    /// Inputs that had a default, an initializer of their name, and are constants now.
    pub fixed_inputs: Vec<String>,
}

/// A prepared model whose floats no algorithm changes any more: what is observed, and quantized by what was seen.
#[derive(Debug)]
pub struct TransformedModel {
    prepared: Prepared,
    /// What algorithms changed based on data. With the original values of limited weights the float model computes.
    pub(crate) changes: TransformedByData,
}

impl Deref for TransformedModel {
    type Target = Prepared;

    fn deref(&self) -> &Prepared {
        &self.prepared
    }
}

/// Checks and simplifies a model and places its quantizers.
///
/// Errors: an invalid graph, a recipe that matches nothing in the graph or whose types have no operators.
pub fn prepare(
    mut model: ModelProto,
    recipe: Recipe,
    passes: &pass::Selection,
    spill: Option<&Spill>,
) -> Result<Prepared, QuantizeError> {
    check(&model)?;
    refuse_contradictions(&model)?;
    refuse_quantized(&model)?;
    let (source, nodes) = (Named::of(&model.graph), NodeNames::of(&model.graph));
    lift_constants(&mut model);
    let source_bytes = constants(&model.graph, size);
    let context = Context { spill, kept: kept_type(&recipe), ..Context::default() };
    let defaults = inputs_with_defaults(&model);
    let mut counts = pass::simplify(&mut model, passes, &context)?;
    if raise_for_fusions(&mut model, &recipe, passes) {
        let more = pass::simplify(&mut model, passes, &context)?;
        counts.iter_mut().zip(more).for_each(|((_, count), (_, more))| *count += more);
    }
    let is_input = |name: &String| model.graph.input.iter().any(|input| input.name() == name);
    let fixed_inputs = defaults.into_iter().filter(|name| !is_input(name)).collect();
    check(&model)?;
    raise_opset(&mut model, &recipe)?;
    if recipe.boundary == Boundary::Integer && !matches!(recipe.layout, Layout::Qdq | Layout::QOperator) {
        return Err(QuantizeError::NoIntegerBoundary);
    }
    algorithm::check(&recipe)?;
    let Transformed { equalized, rotations } = transform(&mut model, &recipe, spill)?;
    if let Some(graph) = model.graph.as_mut() {
        nodes.tell_apart(graph);
    }
    let simplified = Named::of(&model.graph);
    let mut unmatched = unmatched(&recipe, &source, &simplified)?;
    if let Some(file) = &recipe.ranges {
        unmatched.extend(unmatched_ranges(file, &source, &simplified)?);
    }
    let (types, placement) = place_all(&model, &recipe)?;
    refuse_idle_channels(&recipe, &placement)?;
    Ok(Prepared {
        model,
        recipe,
        placement,
        types,
        source_bytes,
        passes: counts,
        equalized,
        rotations,
        unmatched,
        fixed_inputs,
    })
}

/// Refuses shapes by which no runtime computes the model.
fn refuse_contradictions(model: &ModelProto) -> Result<(), GraphError> {
    shape::contradiction(model)
        .map_or(Ok(()), |(node, mismatch)| Err(GraphError::Shapes { node, mismatch: mismatch.to_string() }))
}

/// The first version of files in which initializers need not be inputs: those that are there are defaults, which a caller may
/// override.
const WITH_DEFAULTS: i64 = 4;

/// Inputs that have a default on purpose.
fn inputs_with_defaults(model: &ModelProto) -> Vec<String> {
    if model.ir_version() < WITH_DEFAULTS {
        return Vec::new();
    }
    let graph = &model.graph;
    let constants: HashSet<&str> = graph.initializer.iter().map(|tensor| tensor.name()).collect();
    let inputs = graph.input.iter().map(|input| input.name());
    inputs.filter(|name| constants.contains(name)).map(str::to_owned).collect()
}

/// Raises the opset to what the types of a recipe need.
fn raise_opset(model: &mut ModelProto, recipe: &Recipe) -> Result<(), QuantizeError> {
    let needed = lowest_opset(recipe);
    if opset(model, STANDARD_DOMAIN).is_some_and(|version| version < needed) {
        upgrade_opset(model, needed)?;
        lift_constants(model);
    }
    Ok(())
}

/// Raises the opset where that lets passes fuse what would be quantized node by node; whether it did.
fn raise_for_fusions(model: &mut ModelProto, recipe: &Recipe, passes: &pass::Selection) -> bool {
    // In other layouts such nodes stay floats, and runtimes fuse them. Compilers for NPUs know what exporters write.
    let is_static = matches!(recipe.layout, Layout::Qdq | Layout::QOperator) && recipe.activation.is_some();
    if !is_static || recipe.npu {
        return false;
    }
    let Some(needed) = pass::opset_of_fusions(model, passes) else { return false };
    let mut raised = model.clone();
    // A model with what has no form in that opset keeps its own.
    let is_raised = upgrade_opset(&mut raised, needed).is_ok();
    if is_raised {
        *model = raised;
        lift_constants(model);
    }
    is_raised
}

/// Types and shapes of a simplified model, and what a recipe quantizes of it.
fn place_all(model: &ModelProto, recipe: &Recipe) -> Result<(Types, Placement), QuantizeError> {
    let types = shape::infer(model);
    let data_type = |name: &str| types.get(name).map(|t| t.data_type);
    let placed = |graph: &GraphProto| match recipe.layout {
        Layout::Dynamic => dynamic::place(graph, recipe, &data_type),
        Layout::Float(to) => float16::place(model, to, &recipe.selection),
        Layout::MatMulNBits { block, .. } => Ok(block_placement::place(graph, recipe, block, &data_type)),
        _ => Ok(place(graph, recipe, &data_type)),
    };
    let mut placement = model.graph.as_ref().map(placed).transpose()?.unwrap_or_default();
    leave_out_empty(&mut placement, &model.graph, &types);
    if let Some(file) = &recipe.ranges {
        give_ranges(&mut placement, &model.graph, file);
        keep_clamps(&mut placement, &model.graph);
    }
    assign_channels(&mut placement, &model.graph, &types);
    settle_ranges(&mut placement)?;
    check_channels(recipe, &placement)?;
    let idle = match recipe.layout {
        Layout::Float(_) => placement.nodes == 0,
        _ => placement.activations.is_empty() && placement.weights.is_empty(),
    };
    match recipe.layout {
        Layout::Float(to) if idle && placement.skipped.is_empty() => {
            return Err(QuantizeError::NothingToConvert { to: to.name() });
        }
        _ if idle => return Err(nothing_to_do(model, recipe, &placement.skipped)),
        _ => {}
    }
    check_operators(recipe, &placement)?;
    check_kernels(recipe, &placement, &model.graph)?;
    Ok((types, placement))
}

/// Takes out activations that never have values: there is no range of them.
fn leave_out_empty(placement: &mut Placement, graph: &GraphProto, types: &Types) {
    let is_empty = |name: &&String| types.known_shape(name).is_some_and(|shape| shape.contains(&0));
    let empty: BTreeSet<String> = placement.activations.keys().filter(is_empty).cloned().collect();
    placement.remove(&empty);
    keep_clamps(placement, graph);
    placement.skipped.extend(empty.into_iter().map(|node| Skipped { node, reason: "it has no values" }));
}

/// Relu and Clip are kept if their output has no codes after all.
fn keep_clamps(placement: &mut Placement, graph: &GraphProto) {
    let Placement { dropped, activations, .. } = placement;
    dropped.retain(|&i| graph.node[i].output.first().is_some_and(|name| activations.contains_key(name)));
}

/// The error for a model that a recipe leaves in float, with the settings whose exclusions are the cause.
fn nothing_to_do(model: &ModelProto, recipe: &Recipe, skipped: &[Skipped]) -> QuantizeError {
    let all = Recipe { selection: recipe.selection.clone().without_exclusions(), ..recipe.clone() };
    let given = Some(recipe.selection.exclusions()).filter(|given| !given.is_empty());
    let exclusions = given.filter(|_| place_all(model, &all).is_ok()).unwrap_or_default();
    let way_out = match recipe.layout {
        Layout::Float(_) => {
            "export the model with a newer opset, or choose a preset that quantizes: `kvant list presets`"
        }
        Layout::MatMulNBits { .. } | Layout::Dynamic => {
            "`kvant inspect` shows the model's operators: this layout is for products of ONNX's own operators with constants; \
             `kvant list presets` shows presets that quantize others"
        }
        Layout::Qdq | Layout::QOperator => {
            "see `kvant inspect` for its operators and types: float32 is quantized, and ‹op-types› names further operators of ONNX"
        }
    };
    QuantizeError::NothingToDo { left: Skipped::most_frequent(skipped), exclusions, way_out }
}

/// The type of floats that stays where a model is converted to it.
fn kept_type(recipe: &Recipe) -> Option<DataType> {
    match recipe.layout {
        Layout::Float(FloatType::Float16) => Some(DataType::FLOAT16),
        Layout::Float(FloatType::BFloat16) => Some(DataType::BFLOAT16),
        _ => None,
    }
}

/// A second layer of quantization would only add its errors to those of the first.
fn refuse_quantized(model: &ModelProto) -> Result<(), QuantizeError> {
    /// Beside those whose names begin with `QLinear`.
    const QUANTIZING: &[&str] = &[
        "QuantizeLinear",
        "DequantizeLinear",
        "DynamicQuantizeLinear",
        "ConvInteger",
        "MatMulInteger",
        "MatMulIntegerToFloat",
        "DynamicQuantizeMatMul",
        "DynamicQuantizeLSTM",
        "MatMulNBits",
        "MatMulBnb4",
        "GatherBlockQuantized",
        "QAttention",
        "QGemm",
        "QMoE",
        "QOrderedMatMul",
    ];
    let quantizes = |node: &&NodeProto| QUANTIZING.contains(&node.op_type()) || node.op_type().starts_with("QLinear");
    let quantized = model.graph.node.iter().find(quantizes);
    quantized.map_or(Ok(()), |node| Err(QuantizeError::AlreadyQuantized { operator: node.op_type().to_owned() }))
}

/// The lowest standard opset that supports the recipe's types.
fn lowest_opset(recipe: &Recipe) -> i64 {
    match recipe.layout {
        Layout::Dynamic | Layout::MatMulNBits { .. } => return 11,
        Layout::Float(FloatType::Float16) => return 10,
        Layout::Float(FloatType::BFloat16) => return 13,
        Layout::Qdq | Layout::QOperator => {}
    }
    let dialect = Dialect::of(recipe);
    let overridden = recipe.overrides.iter().filter(|o| !o.float);
    let overridden = overridden.map(|o| (o.element.unwrap_or(recipe.weight.element), o.per_channel == Some(true)));
    let weight = (recipe.weight.element, recipe.weight.per_channel);
    let bias = (recipe.bias == BiasKind::Int16).then_some((Element::Int16, false));
    let activation = recipe.activation.map(|a| (a.element, a.per_channel));
    let products = recipe.products.map(|p| [(p.weight.element, p.weight.per_channel), (p.activation.element, false)]);
    let all = overridden.chain([weight]).chain(bias).chain(activation).chain(products.into_iter().flatten());
    all.map(|(element, per_channel)| dialect.opset(element, per_channel)).max().unwrap_or(10)
}

fn check_operators(recipe: &Recipe, placement: &Placement) -> Result<(), QuantizeError> {
    let dialect = Dialect::of(recipe);
    for activation in placement.activations.values() {
        dialect.operators(activation.scheme.element, false)?;
    }
    for weight in placement.weights.values() {
        dialect.operators(weight.scheme.element, true)?;
    }
    Ok(())
}

impl Counts {
    /// Of a plan.
    pub fn of(prepared: &Prepared) -> Self {
        let placement = &prepared.placement;
        Self {
            nodes: count::nodes(&prepared.model.graph),
            quantized_nodes: placement.nodes,
            quantized_tensors: placement.activations.len() + placement.weights.len() + placement.biases.len(),
        }
    }
}

impl Prepared {
    fn graph(&self) -> &GraphProto {
        &self.model.graph
    }

    /// Runs the algorithms that change the float model by what it computes on data.
    ///
    /// # Errors
    /// Missing data for an algorithm; errors of the data and the engine.
    pub fn transformed(
        mut self,
        data: Option<&mut Data<'_>>,
        spill: Option<&Spill>,
    ) -> Result<TransformedModel, QuantizeError> {
        let waits = |a: &&Algorithm| a.stage() == algorithm::Stage::Float && a.needs_data();
        let Some(first) = self.recipe.algorithms.iter().find(waits) else {
            return Ok(TransformedModel { prepared: self, changes: TransformedByData::default() });
        };
        let data = data.ok_or(AlgorithmError::NoData(first.name().to_owned()))?;
        let wanted = (&self.recipe, &self.placement);
        let nodes = NodeNames::of(&self.model.graph);
        let changes = transform_with_data(&mut self.model, wanted, &self.types, data, spill)?;
        if let Some(graph) = self.model.graph.as_mut() {
            nodes.tell_apart(graph);
        }
        // Codes before a Mul that takes the outliers away would be those of the outliers.
        let multiplied = changes.scaled_inputs.iter().filter_map(|input| input.multiplied_by.as_deref());
        let excluded = multiplied.map(|name| NodeRule { nodes: Glob::literal(name), excluded: true });
        self.recipe.selection.node_rules.extend(excluded);
        (self.types, self.placement) = place_all(&self.model, &self.recipe)?;
        Ok(TransformedModel { prepared: self, changes })
    }

    /// The same simplified model with another recipe, which must not ask for other passes, nor for other algorithms of floats.
    ///
    /// Errors: what [`prepare`] refuses of a recipe.
    pub fn with_recipe(&self, recipe: Recipe) -> Result<Self, QuantizeError> {
        let mut model = self.model.clone();
        raise_opset(&mut model, &recipe)?;
        let (types, placement) = place_all(&model, &recipe)?;
        let (passes, equalized) = (self.passes.clone(), self.equalized.clone());
        Ok(Self {
            model,
            recipe,
            placement,
            types,
            source_bytes: self.source_bytes,
            passes,
            equalized,
            rotations: self.rotations.clone(),
            unmatched: Vec::new(),
            fixed_inputs: self.fixed_inputs.clone(),
        })
    }

    /// Statistics for the tensors whose ranges are needed; `None` if nothing depends on data.
    pub fn observation(&self) -> Observation {
        let sources = self.range_sources();
        let ranges = Observation::new(self.ranged().map(|(name, activation)| {
            let s = activation.scheme;
            let settings = Settings {
                percentile: self.recipe.percentile,
                ..Settings::new(s.method, s.element, s.symmetric, s.scale)
            };
            (sources.observed(name), Watched { settings, channels: activation.channels })
        }));
        ranges.with_squares(weighed_inputs(&self.model.graph, &self.placement))
    }

    /// Where the ranges of its tensors come from.
    pub(crate) fn range_sources(&self) -> RangeSources<'_> {
        RangeSources::of(self.graph())
    }

    /// The methods that found ranges, for tensors with automatic methods and observed ranges.
    fn methods(&self, observed: &Observed, ranges: &Ranges) -> BTreeMap<String, &'static str> {
        let sources = self.range_sources();
        let method = |name: &String| {
            let key = sources.observed(name);
            let is_observed = ranges.whole.get(name) == observed.ranges.whole.get(&key);
            Some((name.clone(), *observed.methods.get(&key).filter(|_| is_observed)?))
        };
        self.placement.activations.keys().filter_map(method).collect()
    }

    /// The range of every tensor from those that were observed.
    fn ranges(&self, observed: &Ranges) -> Ranges {
        let sources = self.range_sources();
        // All of a Softmax's range is used only by one that computes with codes; one behind a mask stays in float.
        let coded = |name: &String| self.placement.activations.contains_key(name);
        let softmax = |name: &str| {
            let maker = sources.index.producer(name).map(|i| &self.graph().node[i]);
            maker.is_some_and(|node| is(node, "Softmax") && node.input.first().is_some_and(coded))
        };
        let range = |name: &String| match softmax(name) {
            true => Some(Range { min: 0.0, max: 1.0 }),
            false => observed.whole.get(&sources.observed(name)).copied(),
        };
        let named = || self.placement.activations.keys();
        let channels = |name: &String| observed.channels.get(&sources.observed(name)).cloned();
        Ranges {
            whole: named().filter_map(|name| range(name).map(|range| (name.clone(), range))).collect(),
            channels: named().filter_map(|name| channels(name).map(|ranges| (name.clone(), ranges))).collect(),
        }
    }

    /// Refuses a layout in which the model would not be quantized as in this one.
    ///
    /// # Errors
    /// What the layout does not express.
    pub fn check_layout(&self, layout: Layout) -> Result<(), QuantizeError> {
        place_all(&self.model, &Recipe { layout, ..self.recipe.clone() }).map(drop)
    }

    fn keep_clamps(&mut self) {
        keep_clamps(&mut self.placement, &self.model.graph);
    }

    /// Quantized tensors whose ranges come from some of those that were observed.
    fn ranged_by(&self, observed: &BTreeSet<String>) -> BTreeSet<String> {
        let sources = self.range_sources();
        let is_ranged = |name: &&String| observed.contains(&sources.observed(name));
        self.placement.activations.keys().filter(is_ranged).cloned().collect()
    }

    fn adjust(&self, solution: &mut Solution) -> Result<Vec<String>, QuantizeError> {
        let (graph, align) = (self.graph(), self.recipe.align);
        let mut adjusted = match self.recipe.npu {
            true => npu::refine(graph, &self.placement, align, solution),
            false => {
                solution.align(graph, &self.placement, align);
                Vec::new()
            }
        };
        adjusted.extend(solution.make_room_for_biases(&self.model.graph, &self.placement)?);
        Ok(adjusted)
    }

    /// Gives biases that int32 cannot hold with the scale of their product int16 codes with their own scale. In float they
    /// would be clipped: ONNX Runtime converts them to int32 codes.
    fn widen_biases(&mut self, solution: &Solution) -> Result<Vec<String>, QuantizeError> {
        let wide = solution.wide_biases(&self.model.graph, &self.placement)?;
        let Placement { biases, float_biases, .. } = &mut self.placement;
        for name in &wide {
            if let Some(bias) = biases.remove(name).or_else(|| float_biases.remove(name)) {
                biases.insert(name.clone(), Bias { element: Element::Int16, ..bias });
            }
        }
        Ok(wide)
    }

    /// Refuses NaN or infinite weights, which would otherwise be found only after running the data. A value of a product that
    /// is infinite has no codes, and is refused too.
    ///
    /// # Errors
    /// The first such weight.
    pub fn check_weights(&self) -> Result<(), QuantizeError> {
        let (graph, index) = (self.graph(), Index::new(self.graph()));
        let mut of_products: BTreeSet<&String> = BTreeSet::new();
        for_each_node(graph, &mut |node| {
            let is_product = ["Conv", "ConvTranspose", "Gemm", "MatMul"].iter().any(|op| is(node, op));
            of_products.extend(node.input.iter().skip(1).filter(|_| is_product));
        });
        // A conversion keeps infinite values.
        let is_conversion = matches!(self.recipe.layout, Layout::Float(_));
        let placed = self.placement.weights.keys().chain(self.placement.biases.keys());
        let names: BTreeSet<&String> = placed.chain(of_products.iter().copied()).collect();
        names.par_iter().try_for_each(|name| {
            let tensor = index.constant(graph, name).filter(|tensor| data_type(tensor) == DataType::FLOAT);
            let Some(values) = tensor.map(values).transpose()? else { return Ok(()) };
            // Others, such as masks, may be infinite on purpose.
            let is_half = self.placement.weights.get(*name).is_some_and(|w| w.scheme.element == Element::Float16);
            let check: fn(&str, &[f32]) -> Result<(), QuantizeError> =
                match of_products.contains(name) && values.len() > 1 && !is_conversion {
                    true if is_half => refuse_beyond_float16,
                    true => refuse_not_finite,
                    false => refuse_nan,
                };
            check(name, &values)
        })
    }

    /// Whether counts and sizes of the result are known only afterwards: algorithms insert nodes depending on data, and
    /// integer operators replace only some pairs.
    pub fn is_estimate(&self) -> bool {
        let inserts = |a: &Algorithm| a.stage() == algorithm::Stage::Float && a.needs_data();
        self.recipe.algorithms.iter().any(inserts) || self.recipe.layout == Layout::QOperator
    }

    /// Returns whether the model has to be run over data: for ranges, or for algorithms.
    pub fn needs_data(&self) -> bool {
        self.ranged().next().is_some() || self.recipe.algorithms.need_data()
    }

    /// The activations without a range in the recipe's file of ranges; none where the recipe has no such file.
    pub fn missing_ranges(&self) -> Vec<&str> {
        let missing = self.ranged().map(|(name, _)| name.as_str());
        missing.filter(|_| self.recipe.ranges.is_some()).collect()
    }

    /// Returns whether data change the result, where they are there.
    pub fn has_use_for_data(&self) -> bool {
        !self.observation().tensors().is_empty() || self.recipe.algorithms.need_data()
    }

    /// Activations whose ranges are observed.
    fn ranged(&self) -> impl Iterator<Item = (&String, &Activation)> {
        let is_given = |a: &Activation| a.range.is_some() || !a.given.is_empty();
        let needed = self.placement.activations.iter().filter(move |(_, a)| a.provider.is_none() && !is_given(a));
        needed.filter(|(_, a)| a.scheme.element.has_range())
    }
}

impl TransformedModel {
    /// Solves for scales, runs the algorithms that see activations, and writes the quantized graph. `data` is for those
    /// algorithms alone.
    pub fn finish(
        self,
        observation: &Observation,
        data: Option<&mut Data<'_>>,
        spill: Option<&Spill>,
    ) -> Result<(ModelProto, Report), QuantizeError> {
        self.finish_with(&observation.observed(), data, spill)
    }

    /// The same from observations, which may be combined from several passes.
    pub fn finish_with(
        self,
        observed: &Observed,
        data: Option<&mut Data<'_>>,
        spill: Option<&Spill>,
    ) -> Result<(ModelProto, Report), QuantizeError> {
        let layout = self.recipe.layout;
        self.solve(observed, data, spill)?.write(layout, spill)
    }

    /// Finds scales, and the codes that algorithms choose: all that is common to the layouts of one recipe.
    ///
    /// # Errors
    /// What the data, the engine or the system say, and a user who asks to stop.
    pub fn solve(
        self,
        observed: &Observed,
        data: Option<&mut Data<'_>>,
        spill: Option<&Spill>,
    ) -> Result<Solved, QuantizeError> {
        let Self { mut prepared, changes } = self;
        if let Some(tensor) = observed.varying_channels.first() {
            return Err(QuantizeError::ChannelCount { tensor: tensor.clone() });
        }
        let check_cancelled = || spill.map_or(Ok(()), Spill::check);
        check_cancelled()?;
        let mask_like = prepared.ranged_by(&observed.mask_like);
        // Those of tensors that will stay in float too.
        let all = prepared.ranges(&observed.ranges);
        let without_values = prepared.ranged_by(&observed.without_values);
        prepared.placement.remove(&mask_like);
        prepared.placement.remove(&without_values);
        prepared.keep_clamps();
        let ranges = prepared.ranges(&observed.ranges);
        let importance = Importance::new(prepared.graph(), &observed.mean_squares);
        let importance = &|graph: &GraphProto, weight: &str| importance.of(graph, weight);
        let mut solution = solve(prepared.graph(), &prepared.placement, &ranges, importance, spill)?;
        let mut adjusted = prepared.adjust(&mut solution)?;
        let mut unfit = BTreeSet::new();
        // Scales may change if a neighbour no longer has one.
        loop {
            let found = unfit_pools(prepared.graph(), &prepared.types, &prepared.placement, &solution);
            let found: BTreeSet<String> = found.into_iter().filter(|name| !unfit.contains(name)).collect();
            if found.is_empty() {
                break;
            }
            prepared.placement.remove(&found);
            prepared.keep_clamps();
            solution = solve(prepared.graph(), &prepared.placement, &ranges, importance, spill)?;
            adjusted = prepared.adjust(&mut solution)?;
            unfit.extend(found);
        }
        search_blocks(&prepared.model.graph, &prepared.recipe, &prepared.placement, importance, &mut solution)?;
        let mut tunable = Tunable {
            model: &mut prepared.model,
            recipe: &prepared.recipe,
            placement: &prepared.placement,
            types: &prepared.types,
            unlimited: &changes.unlimited,
        };
        let tuned = tune(&mut tunable, &mut solution, data)?;
        let wide_biases = prepared.widen_biases(&solution)?;
        check_cancelled()?;
        let of_file = prepared.placement.skipped.iter().filter(|skipped| skipped.reason == FLOAT_IN_FILE);
        let of_data = mask_like.iter().chain(&without_values).chain(&unfit);
        let floats = of_file.map(|skipped| &skipped.node).chain(of_data);
        let floats = floats.map(|name| (name.clone(), all.whole.get(name).copied())).collect();
        let mut report = Report::new(&prepared, &solution, &ranges, observed.samples);
        report
            .left_in_float
            .extend(mask_like.into_iter().map(|name| (name, "it carries an attention mask".to_owned())));
        let empty = "it had no values in the calibration data";
        report.left_in_float.extend(without_values.into_iter().map(|name| (name, empty.to_owned())));
        let beyond = "the ratio of the scales around its pooling is beyond what ONNX Runtime's kernel takes";
        report.left_in_float.extend(unfit.into_iter().map(|name| (name, beyond.to_owned())));
        report.scaled_inputs = changes.scaled_inputs;
        report.not_scaled = changes.not_scaled;
        report.limited_weights = changes.limited_weights;
        report.methods(&prepared.methods(observed, &ranges));
        let sources = prepared.range_sources();
        report.histograms(&prepared.placement, |name| observed.distributions.get(&sources.observed(name)));
        report.adjusted = adjusted;
        report.wide_biases = wide_biases;
        report.gains = tuned.gains;
        report.learned_blocks = tuned.learned_blocks;
        report.not_learned = tuned.not_learned;
        report.not_numbers = observed.non_finite.iter().cloned().collect();
        if prepared.recipe.npu {
            npu::simulate_hardware(&mut prepared.model, &prepared.types, &prepared.placement);
        }
        Ok(Solved { prepared, solution, report, ranges, floats })
    }
}

/// A model whose scales and codes are known. Not yet how it is written.
#[derive(Debug)]
pub struct Solved {
    prepared: Prepared,
    solution: Solution,
    report: Report,
    /// Of the activations that have codes.
    ranges: Ranges,
    /// Activations that stay in float because of their values, or of a file, with their ranges where these are known.
    floats: BTreeMap<String, Option<Range>>,
}

impl Solved {
    /// The quantized graph in a layout, which may be another than the recipe's where that is one of pairs too.
    ///
    /// # Errors
    /// What the layout does not express; the system's.
    pub fn write(&self, layout: Layout, spill: Option<&Spill>) -> Result<(ModelProto, Report), QuantizeError> {
        let Self { prepared: Prepared { recipe, placement, .. }, solution, report, .. } = self;
        let (mut model, mut report) = (self.prepared.model.clone(), report.clone());
        match layout {
            Layout::MatMulNBits { bits, block, accuracy } => {
                let blocks = Blocks::of(recipe, bits, block, accuracy);
                write_blocks(&mut model, blocks, placement, solution, spill)?;
            }
            Layout::Float(to) => report.converted(float16::write(&mut model, to, &recipe.selection, spill)?),
            Layout::Dynamic => dynamic::write(&mut model, placement, solution, spill)?,
            Layout::Qdq => write_pairs(&mut model, recipe, placement, solution, spill)?,
            Layout::QOperator => {
                write_pairs(&mut model, recipe, placement, solution, spill)?;
                fuse(&mut model)?;
            }
        }
        if let Some(graph) = model.graph.as_mut() {
            NodeNames::of(&self.prepared.model.graph).tell_apart(graph);
        }
        report.constants.output_bytes = constants(&model.graph, size);
        report.saturation = Saturation::of(&model.graph);
        sign(&mut model);
        raise_version(&mut model);
        check(&model)?;
        Ok((model, report))
    }
}

/// Raises the version of the file to what the types of its constants need.
fn raise_version(model: &mut ModelProto) {
    let needed = model.graph.initializer.iter().filter_map(|tensor| least_version(data_type(tensor))).max();
    model.ir_version = model.ir_version.max(needed);
}

/// Writes who made the model.
fn sign(model: &mut ModelProto) {
    model.producer_name = Some(PRODUCER.to_owned());
    model.producer_version = Some(env!("CARGO_PKG_VERSION").to_owned());
}

#[cfg(test)]
mod tests;
