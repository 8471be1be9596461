//! The statistics of all places of a plan, as one value that can be stored. Not the parameters that follow: see
//! [`resolve`](super::resolve).

use super::error::CalibrationError;
use crate::input_statistics::InputStatistics;
use crate::plan::Plan;
use kvant_numeric::simd::Isa;
use kvant_quant::activation::ActivationStatistic;
use kvant_quant::distribution::Distribution;
use kvant_weights::activation_point::ActivationPoint;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Statistics of the activations at every point of a plan.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Statistics {
    sites: BTreeMap<ActivationPoint, ActivationStatistic>,
    /// What a report shows; of inputs that algorithms read too. Parameters do not depend on it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    distributions: BTreeMap<ActivationPoint, Distribution>,
}

impl Statistics {
    /// Empty statistics of all points of a plan.
    ///
    /// # Errors
    /// [`CalibrationError::Scheme`]; none for places that [`Plan::new`] has let through.
    pub fn new(plan: &Plan) -> Result<Statistics, CalibrationError> {
        Statistics::of_points(plan.sites().iter())
    }

    /// Empty statistics of some points.
    ///
    /// # Errors
    /// As those of [`new`](Self::new).
    pub(crate) fn of_points<'p>(
        points: impl Iterator<Item = &'p kvant_weights::activation_point::PlannedActivationPoint>,
    ) -> Result<Statistics, CalibrationError> {
        let of = |planned: &kvant_weights::activation_point::PlannedActivationPoint| {
            let problem = |problem| CalibrationError::Scheme { site: planned.site.clone(), problem };
            Ok((planned.site.clone(), ActivationStatistic::new(planned.scheme).map_err(problem)?))
        };
        let sites = points.map(of).collect::<Result<_, CalibrationError>>()?;
        Ok(Statistics { sites, distributions: BTreeMap::new() })
    }

    /// The ranges of a file as statistics of all points of a plan. Points that the file has nothing of are those that their group stands
    /// in for.
    ///
    /// # Errors
    /// [`CalibrationError::Scheme`]; none for places that [`Plan::new`] has let through.
    pub fn of_file(plan: &Plan, file: &InputStatistics) -> Result<Statistics, CalibrationError> {
        let mut statistics = Statistics::new(plan)?;
        for planned in plan.sites() {
            let Some(ranges) = file.ranges(&planned.site) else { continue };
            let problem = |problem| CalibrationError::Scheme { site: planned.site.clone(), problem };
            let statistic = ActivationStatistic::of_ranges(planned.scheme, ranges).map_err(problem)?;
            statistics.insert(planned.site.clone(), statistic);
        }
        Ok(statistics)
    }

    /// The same statistics, with empty distributions of these points: they are gathered with the statistics.
    #[must_use]
    pub fn with_distributions<'p>(mut self, points: impl IntoIterator<Item = &'p ActivationPoint>) -> Statistics {
        self.distributions.extend(points.into_iter().map(|point| (point.clone(), Distribution::default())));
        self
    }

    /// The distribution of the activations at a point; `None` if it is not gathered.
    pub fn distribution(&self, site: &ActivationPoint) -> Option<&Distribution> {
        self.distributions.get(site)
    }

    /// Returns whether any distribution is gathered.
    pub fn has_distributions(&self) -> bool {
        !self.distributions.is_empty()
    }

    /// The statistic of a point; `None` if the plan does not need one.
    pub fn get(&self, site: &ActivationPoint) -> Option<&ActivationStatistic> {
        self.sites.get(site)
    }

    /// Takes in a batch of rows that passed a place; places that the plan does not ask for are passed over.
    pub fn update(&mut self, site: &ActivationPoint, isa: Isa, rows: &[f32], columns: usize) {
        let Some(statistic) = self.sites.get_mut(site) else { return };
        statistic.update(isa, rows, columns);
        if let Some(distribution) = self.distributions.get_mut(site) {
            distribution.update(isa, rows);
        }
    }

    /// Puts the statistic of a place in.
    pub fn insert(&mut self, site: ActivationPoint, statistic: ActivationStatistic) {
        self.sites.insert(site, statistic);
    }

    /// Puts the distribution of a place in.
    pub(crate) fn insert_distribution(&mut self, site: ActivationPoint, distribution: Distribution) {
        self.distributions.insert(site, distribution);
    }

    /// The distributions.
    pub(crate) fn distributions(&self) -> &BTreeMap<ActivationPoint, Distribution> {
        &self.distributions
    }

    /// All places with their statistics.
    pub fn iter(&self) -> impl Iterator<Item = (&ActivationPoint, &ActivationStatistic)> {
        self.sites.iter()
    }
}
