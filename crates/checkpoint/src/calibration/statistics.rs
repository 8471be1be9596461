//! The statistics of all places of a plan, as one value that can be stored. Not the parameters that follow: see
//! [`resolve`](super::resolve).

use crate::plan::Plan;
use kvant_container::{Diagnostic, ErrorKind};
use kvant_numeric::simd::Isa;
use kvant_quant::activation::{ActivationError, ActivationStatistic};
use kvant_weights::activation_point::ActivationPoint;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Statistics of the activations at every point of a plan.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Statistics {
    sites: BTreeMap<ActivationPoint, ActivationStatistic>,
}

/// Statistics cannot be made.
#[derive(Debug, thiserror::Error, PartialEq)]
pub enum StatisticsError {
    /// The scheme of a place has no statistic (*unsupported*).
    #[error("{site}: {problem}")]
    Scheme {
        /// The place.
        site: ActivationPoint,
        /// The reason.
        problem: ActivationError,
    },
}

impl Diagnostic for StatisticsError {
    fn kind(&self) -> ErrorKind {
        ErrorKind::Unsupported
    }

    fn hint(&self) -> Option<String> {
        let StatisticsError::Scheme { problem, .. } = self;
        Some(problem.hint().to_owned())
    }
}

impl Statistics {
    /// Empty statistics of all points of a plan.
    ///
    /// # Errors
    /// [`StatisticsError::Scheme`]; none for places that [`Plan::new`] has let through.
    pub fn new(plan: &Plan) -> Result<Statistics, StatisticsError> {
        let of = |planned: &kvant_weights::activation_point::PlannedActivationPoint| {
            let problem = |problem| StatisticsError::Scheme { site: planned.site.clone(), problem };
            Ok((planned.site.clone(), ActivationStatistic::new(planned.scheme).map_err(problem)?))
        };
        Ok(Statistics { sites: plan.sites().iter().map(of).collect::<Result<_, _>>()? })
    }

    /// The statistic of a point; `None` if the plan does not need one.
    pub fn get(&self, site: &ActivationPoint) -> Option<&ActivationStatistic> {
        self.sites.get(site)
    }

    /// Takes in a batch of rows that passed a place; places that the plan does not ask for are passed over.
    pub fn update(&mut self, site: &ActivationPoint, isa: Isa, rows: &[f32], columns: usize) {
        if let Some(statistic) = self.sites.get_mut(site) {
            statistic.update(isa, rows, columns);
        }
    }

    /// Puts the statistic of a place in.
    pub fn insert(&mut self, site: ActivationPoint, statistic: ActivationStatistic) {
        self.sites.insert(site, statistic);
    }

    /// All places with their statistics.
    pub fn iter(&self) -> impl Iterator<Item = (&ActivationPoint, &ActivationStatistic)> {
        self.sites.iter()
    }
}
