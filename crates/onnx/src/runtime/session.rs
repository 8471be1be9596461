//! A model ready to run: the trait of all engines.

use std::ops::ControlFlow;

use super::error::RuntimeError;
use crate::data::Array;

/// What is done with a wanted tensor: its name and values. Stops the visit of further ones by breaking.
pub type Visit<'v> = dyn FnMut(&str, &Array<'_>) -> ControlFlow<()> + 'v;

/// A model that an engine has loaded.
pub trait Session {
    /// The engine and its version, for reports.
    fn name(&self) -> String;

    /// Runs the model once and shows the wanted tensors, each once, while they are in memory. Floats of half precision come
    /// as single; an engine may widen or narrow integers.
    ///
    /// `inputs` are all inputs of the model, of its types; `wanted` are among the tensors the session was opened for.
    fn run(
        &mut self,
        inputs: &[(&str, Array<'_>)],
        wanted: &[String],
        visit: &mut Visit<'_>,
    ) -> Result<(), RuntimeError>;
}
