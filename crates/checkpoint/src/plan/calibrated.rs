//! Plans that can be carried out: what calibration has found is beside them. Not how it is found.

use super::{Plan, PlanError, activation_points, fingerprint};
use kvant_formats::format::plain_floats;
use kvant_weights::activation_point::Parameters;
use serde_json::Value;
use std::ops::Deref;

/// A plan for which everything is known that must be found in data, if anything must: what the engine carries out.
#[derive(Debug)]
pub struct CalibratedPlan {
    plan: Plan,
    parameters: Parameters,
    /// Where the parameters come from, for `calibration.json`.
    record: Option<Value>,
    fingerprint: String,
}

/// A plan whose blocks are quantized with certain data, which find its parameters on the way.
#[derive(Debug)]
pub struct PlanOnData {
    plan: Plan,
    fingerprint: String,
}

impl Plan {
    /// The plan as it is, where nothing must be found in data.
    ///
    /// # Errors
    /// [`PlanError::Uncalibrated`] where something must be.
    pub fn without_calibration(self) -> Result<CalibratedPlan, PlanError> {
        if self.needs_calibration() {
            return Err(PlanError::Uncalibrated);
        }
        let (fingerprint, record) = (self.fingerprint.clone(), self.statistics_record());
        Ok(CalibratedPlan { plan: self, parameters: Parameters::default(), record, fingerprint })
    }

    /// The plan with what calibration has found. Its fingerprint is that of the plan and the parameters: a run with others
    /// does not go on with this one's output.
    ///
    /// # Errors
    /// [`PlanError::Parameters`] where a place of the plan has none, or not as many as its tensors hold.
    pub fn calibrated(self, parameters: Parameters, record: Option<Value>) -> Result<CalibratedPlan, PlanError> {
        activation_points::check_parameters(&self.parameter_tensors, &parameters)?;
        let fingerprint = fingerprint::with_parameters(&self.fingerprint, &parameters);
        Ok(CalibratedPlan { plan: self, parameters, record, fingerprint })
    }

    /// The plan for these data: a run with others does not go on with this one's output.
    pub fn on_data(self, data: &str) -> PlanOnData {
        let fingerprint = fingerprint::with_data(&self.fingerprint, data);
        PlanOnData { plan: self, fingerprint }
    }
}

impl PlanOnData {
    /// Identifies the plan and the data.
    pub fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    /// The plan with the parameters that were found while its blocks were quantized.
    ///
    /// # Errors
    /// As [`Plan::calibrated`].
    pub fn calibrated(self, parameters: Parameters, record: Value) -> Result<CalibratedPlan, PlanError> {
        activation_points::check_parameters(&self.plan.parameter_tensors, &parameters)?;
        Ok(CalibratedPlan { plan: self.plan, parameters, record: Some(record), fingerprint: self.fingerprint })
    }

    /// The plan of an output that an earlier run has made whole: what was found is in it.
    pub fn finished(self) -> CalibratedPlan {
        CalibratedPlan {
            plan: self.plan,
            parameters: Parameters::default(),
            record: None,
            fingerprint: self.fingerprint,
        }
    }
}

impl CalibratedPlan {
    /// The results of calibration.
    pub fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    /// The origin of the parameters.
    pub fn record(&self) -> Option<&Value> {
        self.record.as_ref()
    }

    /// Identifies source, recipe, output layout, and parameters or data: a journal of another plan is not continued.
    pub fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    /// The output's config.json as it is written: with the static scales of fake-quantized activations.
    pub(crate) fn written_config(&self) -> Option<Value> {
        let config = self.plan.config.clone()?;
        // A conversion has them in its configuration already.
        let is_described = self.parameters.iter().next().is_none();
        Some(if is_described { config } else { plain_floats::with_parameters(config, &self.parameters) })
    }
}

impl Deref for CalibratedPlan {
    type Target = Plan;

    fn deref(&self) -> &Plan {
        &self.plan
    }
}

impl Deref for PlanOnData {
    type Target = Plan;

    fn deref(&self) -> &Plan {
        &self.plan
    }
}
