//! The trait of errors that reach users: what kind they are, and what to do about them.

use crate::remedy::Remedy;

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

/// Whose mistake an error is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// The system refused: missing file, permissions, full disk.
    Io,
    /// The input is wrong and no program should accept it.
    Invalid,
    /// The input may be right, but this crate does not handle it.
    Unsupported,
    /// The user asked to stop.
    Cancelled,
    /// The request contradicts itself, lacks something or names something that does not exist.
    Usage,
    /// Kvant or a library that it uses is wrong.
    Internal,
}
