//! A plan whose output has a card beside its tensors: a file like the others that the run writes, in the journal and the manifest.

use super::{CARD, CardRequest, ModelCard, is_card};
use kvant_checkpoint::engine::{CompletePlan, EngineError, Form, OutputError, OutputPlan};
use kvant_checkpoint::plan::CalibratedPlan;
use kvant_container::{Checkpoint, Geometry};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};

/// A plan, and the card of its output if it has one.
pub(crate) struct CardedPlan<'p> {
    plan: &'p CalibratedPlan,
    card: Option<ModelCard<'p>>,
}

impl<'p> CardedPlan<'p> {
    /// A plan with a card, if one is wanted and the output is a model: tensors alone are none.
    pub fn new(plan: &'p CalibratedPlan, wanted: Option<CardRequest<'p>>) -> CardedPlan<'p> {
        let wanted = wanted.filter(|_| plan.config().is_some());
        CardedPlan { plan, card: wanted.map(|CardRequest { source, made }| ModelCard { plan, source, made }) }
    }

    /// Writes the card again, with what was measured of the output in this directory.
    ///
    /// # Errors
    /// System errors.
    pub fn add_quality(&self, directory: &Path, measured: &Value) -> Result<(), EngineError> {
        self.write_card(directory, Some(measured))
    }

    fn write_card(&self, directory: &Path, measured: Option<&Value>) -> Result<(), EngineError> {
        let Some(card) = &self.card else { return Ok(()) };
        let path = directory.join(CARD);
        Ok(fs::write(&path, card.render(directory, measured)).map_err(OutputError::io("write", &path))?)
    }
}

impl OutputPlan for CardedPlan<'_> {
    fn fingerprint(&self) -> &str {
        self.plan.fingerprint()
    }

    fn geometry(&self) -> Geometry {
        self.plan.geometry()
    }

    fn form(&self) -> Form {
        self.plan.form()
    }

    fn preflight(&self, checkpoint: &Checkpoint) -> Result<(), EngineError> {
        self.plan.preflight(checkpoint)
    }
}

impl CompletePlan for CardedPlan<'_> {
    fn files_beside(&self, checkpoint: &Checkpoint, journal: &Path) -> Result<Vec<PathBuf>, EngineError> {
        let mut files = self.plan.files_beside(checkpoint, journal)?;
        if self.card.is_some() {
            files.retain(|name| !is_card(name));
            files.push(CARD.into());
        }
        Ok(files)
    }

    fn write_files(&self, checkpoint: &Checkpoint, files: &[PathBuf], staging: &Path) -> Result<(), EngineError> {
        if self.card.is_none() {
            return self.plan.write_files(checkpoint, files, staging);
        }
        let others: Vec<PathBuf> = files.iter().filter(|name| *name != Path::new(CARD)).cloned().collect();
        self.plan.write_files(checkpoint, &others, staging)?;
        self.write_card(staging, None)
    }
}
