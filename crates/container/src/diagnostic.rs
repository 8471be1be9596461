//! The trait of errors that reach users: what kind they are, and what to do about them.

use crate::{ErrorKind, Remedy};

/// An error that reaches users. Its text names the file, tensor, layer or setting; this adds what a front end needs to
/// choose an exit code and to offer a way out.
pub trait Diagnostic: std::error::Error {
    /// Whose mistake it is.
    fn kind(&self) -> ErrorKind;

    /// What to do about it, in words. Settings are in single angle quotes, which a front end spells.
    fn hint(&self) -> Option<String>;

    /// The same as values. An error without values of its own has its hint.
    fn remedies(&self) -> Vec<Remedy> {
        Remedy::of_hint(self.hint())
    }
}
