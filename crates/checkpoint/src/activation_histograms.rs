//! Histograms of activations with the ranges that static scales cover, for reports. They are gathered with the statistics of calibration, and
//! by algorithms that read the inputs of layers: nothing runs for them.

use crate::calibration::Statistics;
use crate::plan::{Plan, PlannedLayer};
use kvant_quant::activation::ActivationHistogram;
use kvant_quant::scheme::{ActivationScheme, Timing};
use kvant_weights::activation_point::{ActivationPoint, Parameters};
use serde::Serialize;
use std::collections::{BTreeMap, HashMap, HashSet};

/// The activations at a point of the model, and what their scales cover.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PointHistogram {
    /// The point: `input:model.layers.0.mlp.up_proj`, `key:0`.
    pub point: ActivationPoint,
    /// The names in the output of the layers that read these activations, or of the one that puts them out; none of keys and their like.
    pub layers: Vec<String>,
    /// The scheme of the activations; `None` where they are not quantized.
    pub scheme: Option<String>,
    /// When scales are found: `static`, `dynamic` or `local`.
    pub timing: Option<&'static str>,
    /// The values.
    #[serde(flatten)]
    pub histogram: ActivationHistogram,
}

/// How the inputs of some layers are quantized.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct InputScheme {
    /// The scheme.
    pub scheme: String,
    /// When scales are found: `static`, `dynamic` or `local`.
    pub timing: &'static str,
    /// The number of layers.
    pub layers: usize,
}

/// The schemes of the inputs of a plan's layers, in the order of their spelling.
pub fn input_schemes(plan: &Plan) -> Vec<InputScheme> {
    let mut counts: BTreeMap<String, InputScheme> = BTreeMap::new();
    for scheme in plan.layers().iter().filter_map(|layer| layer.scheme.input) {
        let spelled = scheme.to_string();
        let timing = timing(scheme);
        let empty = InputScheme { scheme: spelled.clone(), timing, layers: 0 };
        counts.entry(spelled).or_insert(empty).layers += 1;
    }
    counts.into_values().collect()
}

/// The points of a plan whose distributions are shown, or as many of them as `most`, spread evenly over the model: those with static scales, and
/// inputs of layers that an algorithm reads.
pub fn shown_points(plan: &Plan, most: usize) -> Vec<ActivationPoint> {
    let all = Candidate::all(plan);
    let shown = all.len().min(most);
    (0..shown).filter_map(|index| all.get(index * all.len() / shown)).map(|candidate| candidate.point.clone()).collect()
}

/// The histograms of the points whose distributions were gathered, in the order of the model. Points that no token reached are left out.
pub fn activation_histograms(plan: &Plan, statistics: &Statistics, parameters: &Parameters) -> Vec<PointHistogram> {
    let histogram = |Candidate { point, layers, scheme, .. }: Candidate| {
        let found = parameters.get(&point).zip(scheme);
        let covered = found.and_then(|(parameters, scheme)| parameters.covered(scheme.scheme));
        let histogram = ActivationHistogram::new(statistics.distribution(&point)?, covered)?;
        let (timing, scheme) = (scheme.map(timing), scheme.map(|scheme| scheme.to_string()));
        Some(PointHistogram { point, layers, scheme, timing, histogram })
    };
    Candidate::all(plan).into_iter().filter_map(histogram).collect()
}

fn timing(scheme: ActivationScheme) -> &'static str {
    match scheme.timing {
        Timing::Static => "static",
        Timing::Dynamic => "dynamic",
        Timing::Local => "local",
    }
}

/// A point that can be shown.
struct Candidate {
    point: ActivationPoint,
    layers: Vec<String>,
    scheme: Option<ActivationScheme>,
    /// The place in the model.
    order: usize,
}

impl Candidate {
    /// Those of a plan, in the order of the model, points outside of layers last.
    fn all(plan: &Plan) -> Vec<Candidate> {
        let layers: HashMap<&str, (usize, &PlannedLayer)> =
            plan.layers().iter().enumerate().map(|(at, layer)| (layer.module.as_str(), (at, layer))).collect();
        let mut all = Candidate::with_statistics(plan, &layers);
        let seen: HashSet<&ActivationPoint> = plan.sites().iter().map(|planned| &planned.site).collect();
        let read = Candidate::read_by_algorithms(plan).into_iter();
        all.extend(read.filter(|candidate| !seen.contains(&candidate.point)));
        all.sort_by_key(|candidate| candidate.order);
        all
    }

    /// Points with static scales. Layers of one module that read the same activations have one.
    fn with_statistics(plan: &Plan, layers: &HashMap<&str, (usize, &PlannedLayer)>) -> Vec<Candidate> {
        let mut all: Vec<Candidate> = Vec::new();
        let mut same: HashMap<(usize, &str), usize> = HashMap::new();
        for planned in plan.sites() {
            let module = match &planned.site {
                ActivationPoint::Input(module) | ActivationPoint::Output(module) => Some(module.as_str()),
                _ => None,
            };
            let layer = module.and_then(|module| layers.get(module));
            let name = layer.map(|(_, layer)| layer.name.clone());
            let group = match &planned.site {
                ActivationPoint::Input(module) => planned.scale_group.zip(module.rsplit_once('.')),
                _ => None,
            };
            let key = group.map(|(group, (parent, _))| (group, parent));
            if let Some(first) = key.and_then(|key| same.get(&key)).and_then(|at| all.get_mut(*at)) {
                first.layers.extend(name);
                continue;
            }
            if let Some(key) = key {
                same.insert(key, all.len());
            }
            all.push(Candidate {
                point: planned.site.clone(),
                layers: name.into_iter().collect(),
                scheme: Some(planned.scheme),
                order: layer.map_or(usize::MAX, |(at, _)| *at),
            });
        }
        all
    }

    /// Inputs of layers that algorithms read, each once.
    fn read_by_algorithms(plan: &Plan) -> Vec<Candidate> {
        let algorithms = plan.recipe().algorithms();
        if !algorithms.see_inputs() && algorithms.transforms.is_empty() {
            return Vec::new();
        }
        let mut all: Vec<Candidate> = Vec::new();
        for stage in plan.blocks().iter().flat_map(|block| &block.stages) {
            let mut experts: BTreeMap<Option<usize>, usize> = BTreeMap::new();
            for id in &stage.layers {
                let layer = plan.layer(*id);
                let at = *experts.entry(layer.source.expert).or_insert_with(|| {
                    all.push(Candidate {
                        point: ActivationPoint::Input(layer.module.clone()),
                        layers: Vec::new(),
                        scheme: layer.scheme.input,
                        order: id.index(),
                    });
                    all.len() - 1
                });
                all[at].layers.push(layer.name.clone());
            }
        }
        all
    }
}
