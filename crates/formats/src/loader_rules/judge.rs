//! The judgement: which loaders take a checkpoint, which not, and why. The rules are not here, nor are the facts.

use super::facts::{LayerFacts, ModelFacts};
use super::parallel::Sharding;
use super::rules::{Condition, Layout, Limit, Loader, NewerRefusal, loaders};
use crate::format::tensors::TENSORS_METHOD;
use kvant_quant::finding::Finding;
use serde::Serialize;
use std::collections::HashMap;

/// Whether a loader supports a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Loads {
    /// It does, as far as known.
    Yes,
    /// It does not.
    No,
    /// It is not known: the architecture has no description, so that it is not known what loaders take for linear layers, or the loader was
    /// not tried with it.
    Unknown,
}

/// The reason that a loader does not support a model, or a caveat.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Reason {
    /// The tensor, layer, file or field.
    pub place: String,
    /// The number of further places to which it applies.
    pub more: usize,
    /// The reason.
    pub reason: String,
}

/// A loader's support of a model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LoaderSupport {
    /// The loader's name in `--for`.
    pub id: &'static str,
    /// Its name.
    pub loader: &'static str,
    /// The version that the rules are of.
    pub version: &'static str,
    /// Whether it supports the model.
    pub loads: Loads,
    /// Packages that must be installed with it.
    pub needs: Option<&'static str>,
    /// The reasons against.
    pub reasons: Vec<Reason>,
    /// What newer versions than that of the rules refuse, with the version.
    pub newer: Vec<Reason>,
    /// Supported but slow parts.
    pub slow: Vec<Reason>,
    /// The requested device counts over which it can split the model.
    pub tensor_parallel: Vec<usize>,
}

/// The method of checkpoints of plain floats in the rules.
pub(crate) const FLOAT_METHOD: &str = "float";

/// A query for loader support.
pub(crate) struct LoaderQuery<'a> {
    /// `quant_method`, or `float`, `gguf`, `onnx`.
    pub method: &'a str,
    pub model: ModelFacts,
    /// The quantized layers.
    pub layers: Vec<(&'a str, LayerFacts)>,
    /// Convolutions and embeddings whose weights are codes.
    pub shaped: Vec<&'a str>,
    /// Layers whose biases are codes.
    pub biases: Vec<&'a str>,
    /// Those among them with a scale for each value.
    pub channel_biases: Vec<&'a str>,
    /// Routers and heads in floats that config.json does not name.
    pub unnamed_routers: Vec<String>,
    /// Problems for every loader.
    pub stops: Vec<&'a Finding>,
    pub sharding: &'a Sharding,
    /// Numbers of devices.
    pub ways: Vec<usize>,
}

/// The support of every loader.
pub(crate) fn judge(case: &LoaderQuery<'_>) -> Vec<LoaderSupport> {
    loaders().iter().map(|loader| verdict(loader, case)).collect()
}

/// The reason that a loader does not support a layer in a layout.
pub(crate) fn refusal(layout: &Layout, layer: &LayerFacts, model: &ModelFacts) -> Option<String> {
    refused(
        layout,
        |condition| condition.holds(layer, model),
        |known| format!("{layer} is not among what it runs: {}", known.unwrap_or("other schemes")),
    )
}

/// The shard of a layer on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ShardShape {
    /// Output channels.
    pub rows: usize,
    /// Input channels.
    pub columns: usize,
    /// The output channels of a part, where engines fuse it with its siblings or it is stored so.
    pub fused_rows: Option<usize>,
    /// Whether it is a part of the layer.
    pub is_cut: bool,
}

/// The reason that a loader does not support a layer of these sizes in a layout.
pub(crate) fn size_refusal(layout: &Layout, layer: &LayerFacts, extent: ShardShape) -> Option<String> {
    let hard = layout.limit.iter().filter(|limit| limit.hard && limit.is_for(layer));
    hard.into_iter().find_map(|limit| Some(format!("{}: {}", outside(limit, layer, extent)?, limit.reason)))
}

/// The reason that a loader does not support a file, regardless of its layers.
pub(crate) fn file_refusal(layout: &Layout, model: &ModelFacts) -> Option<String> {
    refused(
        layout,
        |condition| condition.holds_for_model(model),
        |known| format!("it is not among what it reads: {}", known.unwrap_or("other models")),
    )
}

/// The reason that a layout is refused, by its conditions; `unknown` says that it is not among the accepted ones.
fn refused(
    layout: &Layout,
    holds: impl Fn(&Condition) -> bool,
    unknown: impl Fn(Option<&str>) -> String,
) -> Option<String> {
    if !layout.take.is_empty() && !layout.take.iter().any(&holds) {
        return Some(unknown(layout.knows.as_deref()));
    }
    let refusal = layout.refuse.iter().find(|refusal| holds(&refusal.when))?;
    Some(refusal.reason.clone())
}

fn verdict(loader: &'static Loader, case: &LoaderQuery<'_>) -> LoaderSupport {
    let layout = loader.layout.iter().find(|layout| layout.method == case.method);
    let mut reasons = Reasons::default();
    case.stops.iter().for_each(|finding| reasons.add(&finding.place, finding.reason.clone()));
    loader.model_refusals(&case.model).for_each(|(place, reason)| reasons.add(place, reason.to_owned()));
    match layout {
        None => {
            let (place, reason) = unread(case.method);
            reasons.add(place, reason);
        }
        Some(layout) => refusals(layout, case, &mut reasons),
    }
    let limits = layout.map_or(&[][..], |layout| &layout.limit[..]);
    hard_limits(limits, case, 1, &mut reasons);
    let loads = match (reasons.list.is_empty(), loader.knows(&case.model)) {
        (false, _) => Loads::No,
        (true, false) => Loads::Unknown,
        (true, true) => Loads::Yes,
    };
    let is_whole = layout.is_some_and(|layout| layout.whole_rotations) && case.model.rotations.inputs;
    let fits = |ways: &usize| loads != Loads::No && !(is_whole && *ways > 1) && is_shardable(limits, case, *ways);
    LoaderSupport {
        id: &loader.id,
        loader: &loader.name,
        version: &loader.version,
        loads,
        needs: layout.and_then(|layout| layout.needs.as_deref()),
        newer: layout.map(|layout| newer(layout, case)).unwrap_or_default(),
        reasons: reasons.list,
        slow: slow(limits, case),
        tensor_parallel: case.ways.iter().copied().filter(fits).collect(),
    }
}

/// The reason that a loader without rules for a layout does not support a model, and its source.
fn unread(method: &str) -> (&'static str, String) {
    match method {
        FLOAT_METHOD => ("weights", "it does not read checkpoints of plain floats".to_owned()),
        TENSORS_METHOD => ("weights", "it reads models, and these are codes and scales of single tensors".to_owned()),
        "gguf" => ("file", "it does not read GGUF files".to_owned()),
        method => ("quantization_config.quant_method", format!("it does not read the layout `{method}`")),
    }
}

fn refusals(layout: &Layout, case: &LoaderQuery<'_>, reasons: &mut Reasons) {
    if let (Some(architecture), Some(reason)) = (case.model.architecture, file_refusal(layout, &case.model)) {
        reasons.add(architecture, reason);
    }
    // Where nothing is quantized, the rules of plain floats alone are about the model.
    let is_judged = !case.layers.is_empty() || case.method == FLOAT_METHOD;
    let of_model = layout.refuse.iter().filter(|refusal| is_judged && refusal.when.holds_for_model(&case.model));
    let of_model: Vec<(&str, &str)> =
        of_model.filter_map(|refusal| Some((refusal.when.part_of_model()?, refusal.reason.as_str()))).collect();
    of_model.iter().for_each(|(part, reason)| reasons.add(part, (*reason).to_owned()));
    for (name, layer) in &case.layers {
        let reason = refusal(layout, layer, &case.model);
        if let Some(reason) = reason.filter(|reason| of_model.iter().all(|(_, known)| known != reason)) {
            reasons.add(name, reason);
        }
    }
    let kinds = [
        (&case.shaped, &layout.shaped),
        (&case.biases, &layout.biases),
        (&case.channel_biases, &layout.channel_biases),
    ];
    for (names, reason) in kinds {
        for (name, reason) in names.iter().zip(reason.iter().cycle()) {
            reasons.add(name, reason.clone());
        }
    }
    for router in case.unnamed_routers.iter().filter(|_| layout.names_routers) {
        reasons.add(router, "is stored as floats, but config.json does not list it as unquantized".to_owned());
    }
}

fn hard_limits(limits: &[Limit], case: &LoaderQuery<'_>, ways: usize, reasons: &mut Reasons) {
    for (limit, (layer, facts)) in pairs(limits, case).filter(|(limit, _)| limit.hard) {
        if let Some(sizes) = extent(case, layer, ways).and_then(|extent| outside(limit, facts, extent)) {
            reasons.add(layer, format!("{sizes}: {}", limit.reason));
        }
    }
}

fn is_shardable(limits: &[Limit], case: &LoaderQuery<'_>, ways: usize) -> bool {
    let mut reasons = Reasons::default();
    hard_limits(limits, case, ways, &mut reasons);
    reasons.list.is_empty() && case.sharding.problems(ways).next().is_none()
}

/// What newer versions refuse of the quantized layers.
fn newer(layout: &Layout, case: &LoaderQuery<'_>) -> Vec<Reason> {
    let mut reasons = Reasons::default();
    for (name, layer) in &case.layers {
        if let Some(refusal) = newer_refusal(layout, layer, &case.model) {
            reasons.add(name, refusal.reason.clone());
        }
    }
    reasons.list
}

/// The rule by which a newer version refuses a layer.
pub(super) fn newer_refusal<'l>(
    layout: &'l Layout,
    layer: &LayerFacts,
    model: &ModelFacts,
) -> Option<&'l NewerRefusal> {
    layout.newer.iter().find(|refusal| refusal.when.holds(layer, model))
}

fn slow(limits: &[Limit], case: &LoaderQuery<'_>) -> Vec<Reason> {
    let mut reasons = Reasons::default();
    for (limit, (layer, facts)) in pairs(limits, case).filter(|(limit, _)| !limit.hard) {
        if extent(case, layer, 1).and_then(|extent| outside(limit, facts, extent)).is_some() {
            reasons.add(layer, limit.reason.clone());
        }
    }
    reasons.list
}

type Pair<'c, 'a> = (&'c Limit, (&'a str, &'c LayerFacts));

/// Every limit with the layers that it is for.
fn pairs<'c, 'a>(limits: &'c [Limit], case: &'c LoaderQuery<'a>) -> impl Iterator<Item = Pair<'c, 'a>> {
    limits.iter().flat_map(move |limit| {
        let layers = case.layers.iter().map(|(name, facts)| (*name, facts));
        layers.filter(move |(_, facts)| limit.is_for(facts)).map(move |layer| (limit, layer))
    })
}

/// The shard of a layer on each device; `None` if it cannot be split evenly, or is unknown.
fn extent(case: &LoaderQuery<'_>, layer: &str, ways: usize) -> Option<ShardShape> {
    let layer = case.sharding.layer(layer)?;
    let (rows, columns) = layer.shard(ways)?;
    let fused_rows = layer.fused_rows.map(|part| if rows < layer.rows { part / ways } else { part });
    Some(ShardShape { rows, columns, fused_rows, is_cut: ways > 1 })
}

/// The size of a layer or a part of it that does not fit, in words.
fn outside(limit: &Limit, facts: &LayerFacts, extent: ShardShape) -> Option<String> {
    let ShardShape { rows, columns, fused_rows, is_cut } = extent;
    let block = facts.block.filter(|_| is_cut || fused_rows.is_some());
    let rows = fused_rows.filter(|_| block.is_some()).unwrap_or(rows);
    let out_block = block.filter(|_| limit.out_block).map(|(rows, _)| rows);
    let in_block = block.filter(|_| limit.in_block && is_cut).map(|(_, columns)| columns);
    let in_group = facts.input_group.filter(|_| limit.in_group);
    let is_off = |size: usize, multiple: Option<usize>| multiple.filter(|m| *m > 0 && !size.is_multiple_of(*m));
    let out = is_off(rows, limit.out_multiple.or(out_block));
    let inner = [limit.in_multiple, in_block, in_group].into_iter().find_map(|multiple| is_off(columns, multiple));
    match (out, inner) {
        (Some(multiple), _) => Some(format!("{rows} output channels are not a multiple of {multiple}")),
        (_, Some(multiple)) => Some(format!("{columns} input channels are not a multiple of {multiple}")),
        _ => None,
    }
}

/// Reasons, each once, with the first of its places.
#[derive(Default)]
struct Reasons {
    list: Vec<Reason>,
    known: HashMap<String, usize>,
}

impl Reasons {
    fn add(&mut self, place: &str, reason: String) {
        match self.known.get(&reason) {
            Some(known) => self.list[*known].more += 1,
            None => {
                self.known.insert(reason.clone(), self.list.len());
                self.list.push(Reason { place: place.to_owned(), more: 0, reason });
            }
        }
    }
}
