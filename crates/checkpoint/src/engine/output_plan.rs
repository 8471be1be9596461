//! The interface of a plan to an output: its files, and the identity of the plan.

use super::EngineError;
use super::output::{files_beside, write_files};
use super::verify::{accept, refuse_inherited};
use crate::plan::{CalibratedPlan, Plan, PlanOnData};
use kvant_container::{Checkpoint, Geometry};
use kvant_quant::finding::Finding;
use std::path::{Path, PathBuf};

/// The kind of output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Form {
    /// A directory with all files of the plan's geometry and more beside them.
    Directory,
    /// The one file of this name in the plan's geometry.
    File(String),
}

/// A plan that an [`Output`](super::Output) can be created from.
pub trait OutputPlan {
    /// Identifies all that decides the output's bytes.
    fn fingerprint(&self) -> &str;

    /// Files and places of the tensors.
    fn geometry(&self) -> Geometry;

    /// The kind of output.
    fn form(&self) -> Form {
        Form::Directory
    }

    /// Runs the checks of verification that need only headers, before anything is written.
    ///
    /// # Errors
    /// [`EngineError::PreflightFailed`] with the first error.
    fn preflight(&self, checkpoint: &Checkpoint) -> Result<(), EngineError> {
        refuse_inherited(checkpoint)
    }
}

/// A plan for which nothing is left to be found: its output can be completed.
pub trait CompletePlan: OutputPlan {
    /// The names of the files beside the tensors; `journal` lies where the source may too.
    ///
    /// # Errors
    /// System errors.
    fn files_beside(&self, _checkpoint: &Checkpoint, _journal: &Path) -> Result<Vec<PathBuf>, EngineError> {
        Ok(Vec::new())
    }

    /// Writes these files into the directory that is being made.
    ///
    /// # Errors
    /// System errors.
    fn write_files(&self, _checkpoint: &Checkpoint, _files: &[PathBuf], _staging: &Path) -> Result<(), EngineError> {
        Ok(())
    }

    /// Verifies the directory or file that is complete but for its name, and returns the warnings.
    ///
    /// # Errors
    /// [`EngineError::VerificationFailed`] where a check finds an error.
    fn accept(&self, output: &Path) -> Result<Vec<Finding>, EngineError> {
        accept(output)
    }
}

impl OutputPlan for Plan {
    fn fingerprint(&self) -> &str {
        self.fingerprint()
    }

    fn geometry(&self) -> Geometry {
        self.layout().clone().into()
    }
}

impl OutputPlan for PlanOnData {
    fn fingerprint(&self) -> &str {
        PlanOnData::fingerprint(self)
    }

    fn geometry(&self) -> Geometry {
        self.layout().clone().into()
    }
}

impl OutputPlan for CalibratedPlan {
    fn fingerprint(&self) -> &str {
        CalibratedPlan::fingerprint(self)
    }

    fn geometry(&self) -> Geometry {
        self.layout().clone().into()
    }
}

impl CompletePlan for CalibratedPlan {
    fn files_beside(&self, checkpoint: &Checkpoint, journal: &Path) -> Result<Vec<PathBuf>, EngineError> {
        files_beside(self, checkpoint, journal)
    }

    fn write_files(&self, checkpoint: &Checkpoint, files: &[PathBuf], staging: &Path) -> Result<(), EngineError> {
        write_files(self, checkpoint, files, staging)
    }
}
