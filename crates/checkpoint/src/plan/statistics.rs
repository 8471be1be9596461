//! What a plan takes from a file of statistics: the ranges of activations with static scales, and the mean squares that weigh the errors of
//! searched weights. Refused here is a file that lacks some of them.

use super::convert::some_of;
use super::declared::Declared;
use super::error::PlanError;
use super::{LayerId, Plan, PlannedLayer};
use crate::input_statistics::{
    HESSIAN, INPUT, InputStatistics, InputStatisticsError, LayerStatistics, MEAN_SQUARE, OUTPUT, StatisticsProblem,
};
use kvant_model::network::LayerKind;
use kvant_numeric::kernel::Range;
use kvant_numeric::linalg::Gram;
use kvant_quant::activation::ActivationStatistic;
use kvant_quant::counts::number;
use kvant_quant::hessian::{Hessian, HessianError};
use kvant_quant::observer::ObserverRef;
use kvant_quant::rounding::{AnyRounding, Needs, SharedInputs};
use kvant_quant::scheme::{Axis, Granularity};
use kvant_weights::activation_point::{ActivationPoint, PlannedActivationPoint};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// What is taken from the statistics of a file.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct TakenStatistics {
    /// The layers whose errors are weighed by the mean squares of their inputs, with the elements of a row that belong to a channel.
    pub(super) weighed: BTreeMap<LayerId, usize>,
    /// Notices for the user.
    pub(super) notices: Vec<String>,
}

/// The most names in a message.
const MOST_NAMES: usize = 8;

impl Declared<'_> {
    /// What is taken from the statistics of the recipe, if there are any.
    ///
    /// # Errors
    /// Layers that lack statistics, and statistics that do not fit their layers.
    pub(super) fn take_statistics(&self) -> Result<TakenStatistics, PlanError> {
        let Some(statistics) = self.source.recipe.statistics() else { return Ok(TakenStatistics::default()) };
        self.check_ranges(statistics)?;
        self.check_hessians(statistics)?;
        let weighed = self.weighed(statistics)?;
        let rounds_to_nearest = self.source.recipe.algorithms().rounding.is_nearest();
        let searched = self.searched().filter(|_| rounds_to_nearest).count();
        let name = &statistics.provenance().name;
        let unweighed = (searched > 0 && weighed.is_empty()).then(|| {
            format!(
                "{name} has no mean squares of inputs: the scales of {} are searched without",
                number(searched, "layer")
            )
        });
        let unused = self.unused(statistics);
        let notices = unweighed.into_iter().chain((!unused.is_empty()).then(|| {
            format!(
                "{name} has statistics of {} that are not quantized: {}",
                number(unused.len(), "layer"),
                some_of(&unused, MOST_NAMES)
            )
        }));
        Ok(TakenStatistics { weighed, notices: notices.collect() })
    }

    /// The layers of the file that are none of the plan.
    fn unused(&self, statistics: &InputStatistics) -> Vec<String> {
        let known: BTreeSet<&str> = self.layers.iter().map(|layer| layer.module.as_str()).collect();
        statistics.layers().filter(|name| !known.contains(name)).map(str::to_owned).collect()
    }

    /// Refuses statistics without the ranges of static activations. A point without a range takes that of its group.
    fn check_ranges(&self, statistics: &InputStatistics) -> Result<(), PlanError> {
        let mut missing = Vec::new();
        let with_range = self.sites.iter().filter(|other| statistics.ranges(&other.site).is_some());
        let groups: BTreeSet<usize> = with_range.filter_map(|other| other.scale_group).collect();
        for planned in &self.sites {
            if !matches!(planned.site, ActivationPoint::Input(_) | ActivationPoint::Output(_)) {
                let (place, scheme) = (planned.site.to_string(), planned.scheme.to_string());
                return Err(PlanError::Calibration { place, scheme, of_attention: true });
            }
            match statistics.ranges(&planned.site) {
                Some(ranges) => self.check_range(statistics, planned, ranges)?,
                None if planned.scale_group.is_some_and(|group| groups.contains(&group)) => {}
                None => missing.push(range_name(&planned.site)),
            }
        }
        self.refuse_missing(statistics, &missing)
    }

    /// Refuses statistics that lack tensors.
    fn refuse_missing(&self, statistics: &InputStatistics, missing: &[String]) -> Result<(), PlanError> {
        if missing.is_empty() {
            return Ok(());
        }
        let layers = missing.iter().filter_map(|name| name.rsplit_once('.')).map(|(layer, _)| layer.to_owned());
        let layers: Vec<String> = layers.collect();
        let has_layer = |name: &str| self.layers.iter().any(|layer| layer.module == name);
        Err(PlanError::StatisticsMissing {
            file: statistics.path().to_owned(),
            tensors: some_of(missing, MOST_NAMES),
            renaming: statistics.renaming(&layers, has_layer).map(|renaming| renaming.advice()),
            layers,
        })
    }

    fn check_range(
        &self,
        statistics: &InputStatistics,
        planned: &PlannedActivationPoint,
        ranges: &[Range],
    ) -> Result<(), PlanError> {
        let problem = |problem| PlanError::Activation { place: planned.site.to_string(), problem };
        ActivationStatistic::of_ranges(planned.scheme, ranges).map_err(problem)?;
        let by_feature = planned.scheme.scheme.granularity() == Some(Granularity::Channel(Axis::Columns));
        if ranges.iter().all(|range| range.min == 0.0 && range.max == 0.0) {
            return Err(zero_range(statistics, &planned.site));
        }
        let is_single = ranges.len() == 1 && !by_feature;
        let expected = match &planned.site {
            ActivationPoint::Input(module) => self.input_channels(module).unwrap_or(planned.features),
            _ => planned.features,
        };
        if is_single || ranges.len() == expected {
            return Ok(());
        }
        let tensor = range_name(&planned.site);
        Err(PlanError::StatisticsLength { file: statistics.path().to_owned(), tensor, expected, found: ranges.len() })
    }

    /// Refuses statistics without the Hessians that a rounding needs. Convolutions and embeddings are rounded to nearest.
    fn check_hessians(&self, statistics: &InputStatistics) -> Result<(), PlanError> {
        if !self.source.recipe.rounds_with_statistics() {
            return Ok(());
        }
        let mut missing = Vec::new();
        let is_linear = |layer: &&PlannedLayer| {
            let shaped = self.source.shaped.iter().find(|shaped| shaped.module == layer.module);
            shaped.is_none_or(|shaped| shaped.kind == LayerKind::Tower)
        };
        for layer in self.layers.iter().filter(|layer| !layer.is_recoded()).filter(is_linear) {
            let tensor = format!("{}.hessian", layer.module);
            match statistics.layer(&layer.module).and_then(LayerStatistics::hessian_channels) {
                None => missing.push(tensor),
                Some(found) if found != layer.columns => {
                    let (file, expected) = (statistics.path().to_owned(), layer.columns);
                    return Err(PlanError::StatisticsLength { file, tensor, expected, found });
                }
                Some(_) => {}
            }
        }
        self.refuse_missing(statistics, &missing)
    }

    /// The layers whose scales are searched for by what they are multiplied by.
    fn searched(&self) -> impl Iterator<Item = (LayerId, &PlannedLayer)> {
        let is_searched = |layer: &PlannedLayer| {
            let is_looked_up = layer.role == LayerKind::Embedding.name();
            layer.scheme.weight.observer() == ObserverRef::SEARCH && !layer.is_recoded() && !is_looked_up
        };
        let layers = self.layers.iter().enumerate().map(|(index, layer)| (LayerId(index), layer));
        layers.filter(move |(_, layer)| is_searched(layer))
    }

    /// The layers whose errors mean squares weigh; empty if the file has no mean squares.
    fn weighed(&self, statistics: &InputStatistics) -> Result<BTreeMap<LayerId, usize>, PlanError> {
        let rounds_to_nearest = self.source.recipe.algorithms().rounding.is_nearest();
        let has_any = statistics.layers().any(|name| squares(statistics, name).is_some());
        if !has_any || !rounds_to_nearest {
            return Ok(BTreeMap::new());
        }
        let (mut weighed, mut missing) = (BTreeMap::new(), Vec::new());
        for (id, layer) in self.searched() {
            let Some(values) = squares(statistics, &layer.module) else {
                missing.push(format!("{}.input_mean_square", layer.module));
                continue;
            };
            if values.iter().all(|value| *value == 0.0) {
                let problem = StatisticsProblem::Zero("mean squares");
                return Err(PlanError::Statistics(Box::new(statistics.refused(&layer.module, MEAN_SQUARE, problem))));
            }
            let channels = self.input_channels(&layer.module).unwrap_or(layer.columns);
            if values.len() != channels {
                return Err(PlanError::StatisticsLength {
                    file: statistics.path().to_owned(),
                    tensor: format!("{}.input_mean_square", layer.module),
                    expected: channels,
                    found: values.len(),
                });
            }
            // Groups of a convolution read channels of their own, and a transposed one has those of its output in a row.
            weighed.extend(self.elements_of_channel(layer, channels).map(|elements| (id, elements)));
        }
        self.refuse_missing(statistics, &missing)?;
        Ok(weighed)
    }

    /// The elements of a weight's row that belong to an input channel; `None` where rows read different channels.
    fn elements_of_channel(&self, layer: &PlannedLayer, channels: usize) -> Option<usize> {
        let shaped = self.source.shaped.iter().find(|shaped| shaped.module == layer.module);
        let Some(shaped) = shaped.filter(|shaped| shaped.kind != LayerKind::Tower) else { return Some(1) };
        let own = *self.source.tensors[shaped.weight].shape().get(1)?;
        (own == channels && !shaped.kind.is_transposed()).then_some(layer.columns / own.max(1))
    }

    /// The input channels of a convolution; `None` of other layers, whose columns they are. Of a convolution in groups the file says how
    /// many there are.
    fn input_channels(&self, module: &str) -> Option<usize> {
        let shaped = self.source.shaped.iter().find(|shaped| shaped.module == module)?;
        let shape = self.source.tensors[shaped.weight].shape();
        let own = match shaped.kind {
            LayerKind::Tower | LayerKind::Embedding => return None,
            kind if kind.is_transposed() => return shape.first().copied(),
            _ => *shape.get(1)?,
        };
        let stated = self.source.recipe.statistics().and_then(|statistics| stated_channels(statistics, module));
        stated.filter(|stated| own > 0 && stated.is_multiple_of(own)).or(Some(own))
    }
}

/// The channels that a file has statistics of.
fn stated_channels(statistics: &InputStatistics, module: &str) -> Option<usize> {
    let layer = statistics.layer(module)?;
    let ranges = layer.input.as_ref().map(Vec::len).filter(|length| *length > 1);
    layer.mean_square.as_ref().map(Vec::len).or(ranges)
}

fn squares<'s>(statistics: &'s InputStatistics, module: &str) -> Option<&'s [f32]> {
    statistics.layer(module)?.mean_square.as_deref()
}

/// The tensor that has one end of a range.
fn range_name(point: &ActivationPoint) -> String {
    match point {
        ActivationPoint::Input(module) => format!("{module}.input_min"),
        ActivationPoint::Output(module) => format!("{module}.output_min"),
        other => other.to_string(),
    }
}

/// The error for a range that is zero: nearly any value would be clipped.
fn zero_range(statistics: &InputStatistics, point: &ActivationPoint) -> PlanError {
    let (module, end) = match point {
        ActivationPoint::Output(module) => (module.clone(), OUTPUT[0]),
        ActivationPoint::Input(module) => (module.clone(), INPUT[0]),
        other => (other.to_string(), INPUT[0]),
    };
    PlanError::Statistics(Box::new(statistics.refused(&module, end, StatisticsProblem::Zero("both ends of the range"))))
}

impl Plan {
    /// Returns whether the statistics of a file decide anything.
    pub fn takes_statistics(&self) -> bool {
        let decides = !self.sites.is_empty() || !self.taken.weighed.is_empty() || self.recipe.rounds_with_statistics();
        decides && self.recipe.statistics().is_some()
    }

    /// Returns whether data must be run through the model before the plan can be carried out.
    pub fn runs_data(&self) -> bool {
        let observes = !self.sites.is_empty() && self.recipe.statistics().is_none();
        !self.blocks.is_empty() || observes || self.recipe.algorithms().learned_rotation().is_some()
    }

    /// The rounding of a layer that the engine asks for all of it: one that needs no data, or whose Hessian is in a file. `None` for round
    /// to nearest.
    pub(crate) fn whole_rounding(&self, layer: &PlannedLayer) -> Option<&AnyRounding> {
        let rounding = &self.recipe.algorithms().rounding;
        let has_hessian = || {
            let statistics = self.recipe.statistics().filter(|_| self.recipe.rounds_with_statistics());
            statistics.and_then(|file| file.layer(&layer.module)?.hessian_channels()) == Some(layer.columns)
        };
        let asks = !rounding.is_nearest() && (rounding.needs() == Needs::Nothing || has_hessian());
        asks.then_some(rounding)
    }

    /// Reads the Hessians that the rounding takes from a file, one after the other, so that bad ones are refused before the work.
    ///
    /// # Errors
    /// Values that no Hessian has.
    pub fn check_hessians(&self) -> Result<(), InputStatisticsError> {
        let Some(statistics) = self.recipe.statistics().filter(|_| self.recipe.rounds_with_statistics()) else {
            return Ok(());
        };
        let layers = self.layers.iter().filter(|layer| self.whole_rounding(layer).is_some());
        layers.map(|layer| statistics.hessian(&layer.module)).try_for_each(|read| read.map(drop))
    }

    /// The error for a Hessian that the rounding cannot use.
    pub(crate) fn refused_hessian(&self, layer: &PlannedLayer, problem: &HessianError) -> Option<InputStatisticsError> {
        let statistics = self.recipe.statistics().filter(|_| self.recipe.rounds_with_statistics())?;
        let problem = StatisticsProblem::Unusable(problem.to_string());
        Some(statistics.refused(&layer.module, HESSIAN, problem))
    }

    /// The Hessian of a layer's inputs, where the rounding takes it from a file.
    ///
    /// # Errors
    /// Values that no Hessian has.
    pub(crate) fn given_inputs(&self, layer: &PlannedLayer) -> Result<Option<SharedInputs>, InputStatisticsError> {
        let Some(statistics) = self.recipe.statistics().filter(|_| self.recipe.rounds_with_statistics()) else {
            return Ok(None);
        };
        let Some(matrix) = statistics.hessian(&layer.module)? else { return Ok(None) };
        // A mean over tokens, whose number changes no code.
        let gram = Gram::of_matrix(layer.columns, layer.columns as u64, &matrix);
        Ok(gram.map(|gram| SharedInputs::new(Hessian::from_parts(gram, None))))
    }

    /// The origin of the statistics that decide something, for the record of the output.
    pub fn statistics_record(&self) -> Option<Value> {
        let statistics = self.recipe.statistics().filter(|_| self.takes_statistics())?;
        Some(json!({ "statistics": statistics.provenance() }))
    }

    /// How much errors in each column of a layer's weight count; `None` where all count the same.
    pub(crate) fn importance(&self, id: LayerId) -> Option<Vec<f32>> {
        let elements = *self.taken.weighed.get(&id)?;
        let values = squares(self.recipe.statistics()?, &self.layer(id).module)?;
        Some(values.iter().flat_map(|value| std::iter::repeat_n(*value, elements)).collect())
    }
}
