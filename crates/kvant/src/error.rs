//! Errors as users meet them: a kind, a message, a hint. Errors of the crates below are converted here and nowhere else.

use crate::settings;
use kvant_container::{Diagnostic, ErrorKind as FileErrorKind, Remedy, io_hint};
use kvant_forward::forward::ForwardError;
use serde::Serialize;
use serde_json::{Value, json};
use std::fmt;
use std::io;

/// The kind of the error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ErrorKind {
    /// The input is wrong.
    Invalid,
    /// The input may be right; Kvant does not handle it.
    Unsupported,
    /// The system refused: no such file, no permission, no space.
    System,
    /// The command line is wrong.
    Usage,
    /// The model does not pass; the findings were already returned as data.
    Unfit,
    /// Kvant is wrong.
    Internal,
    /// The user asked to stop.
    Interrupted,
}

/// An error for the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// Its kind.
    pub kind: ErrorKind,
    /// The problem, naming the file, tensor or layer. Settings in it must be spelled (see [`spelled`](crate::spelled)).
    pub message: String,
    /// The remedies as text, separated by semicolons. Settings in it must be spelled.
    pub hint: Option<String>,
    /// The same as values.
    pub(crate) remedies: Vec<Remedy>,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&settings::spelled(&self.message, settings::plain))
    }
}

impl std::error::Error for Error {}

impl Error {
    /// An error without a hint.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Error {
        Error { kind, message: message.into(), hint: None, remedies: Vec::new() }
    }

    /// The system refused something.
    pub fn system(message: impl Into<String>) -> Error {
        Error::new(ErrorKind::System, message)
    }

    /// The system refused something, for a cause that may have a remedy.
    pub(crate) fn io(message: impl fmt::Display, cause: &io::Error) -> Error {
        Error::system(format!("{message}: {cause}")).with_hint(io_hint(cause).map(str::to_owned))
    }

    /// The error for a request that runs a model as a decoder, and the `way` to do without. What would make the model run is said only
    /// where something does.
    pub(crate) fn not_run(error: ForwardError, way: Remedy) -> Error {
        let is_no_decoder = matches!(error, ForwardError::Encoder { .. } | ForwardError::Component { .. });
        let error = Error::from(error);
        if error.kind != ErrorKind::Unsupported {
            return error;
        }
        let others = if is_no_decoder { Vec::new() } else { error.remedies.clone() };
        error.with_remedies(std::iter::once(way).chain(others).collect())
    }

    /// A bug.
    pub fn internal(message: impl Into<String>) -> Error {
        let report = "this is a bug in Kvant: please report it with the command line and this message";
        Error::new(ErrorKind::Internal, format!("internal error: {}", message.into()))
            .with_hint(Some(report.to_owned()))
    }

    /// The same with a remedy in words.
    pub fn with_hint(self, hint: Option<String>) -> Error {
        let remedies = Remedy::of_hint(hint.clone());
        self.with_ways(hint, remedies)
    }

    /// The same with remedies, which form the hint.
    pub fn with_remedies(self, remedies: Vec<Remedy>) -> Error {
        self.with_ways(Remedy::hint(&remedies), remedies)
    }

    /// The same with remedies and an explicit hint.
    pub fn with_ways(self, hint: Option<String>, remedies: Vec<Remedy>) -> Error {
        Error { hint, remedies, ..self }
    }

    /// The same without the advice to keep a layer whose values no code represents, for outputs that cannot keep such values either.
    pub(crate) fn without_keeping_layers(self) -> Error {
        let keeps = |remedy: &Remedy| matches!(remedy, Remedy::ExcludeLayer(_) | Remedy::SkipVerification(_));
        if !self.remedies.iter().any(|remedy| matches!(remedy, Remedy::ExcludeLayer(_))) {
            return self;
        }
        let remedies = self.remedies.iter().filter(|remedy| !keeps(remedy)).cloned().collect();
        self.with_remedies(remedies)
    }

    /// The remedies, which a front end shows as options or arguments. [`hint`](Self::hint) is their text.
    ///
    /// ```
    /// use kvant::{CancelToken, Job, Remedy};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let model = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/models/nano_llama");
    /// # let directory = tempfile::tempdir()?;
    /// let mut job = Job::new(model);
    /// job.recipe.scheme = Some("fp8".to_owned());
    /// job.sinks.output = Some(directory.path().join("fp8"));
    /// let error = job.run(&mut (), &CancelToken::new()).err().ok_or("static activations need data")?;
    /// assert_eq!(error.remedies()[..2], [Remedy::GiveCalibrationData, Remedy::QuantizeWeightsOnly]);
    /// assert_eq!(error.remedies()[0].names(), Some("calib"));
    /// # Ok(())
    /// # }
    /// ```
    pub fn remedies(&self) -> &[Remedy] {
        &self.remedies
    }

    /// The remedies as objects of `docs/schemas/error.schema.json`.
    pub fn remedies_json(&self) -> Value {
        let object = |remedy: &Remedy| {
            json!({
                "kind": remedy.kind(),
                "setting": remedy.names(),
                "values": remedy.values(),
                "text": remedy.to_string(),
            })
        };
        self.remedies.iter().map(object).collect()
    }
}

impl From<FileErrorKind> for ErrorKind {
    fn from(kind: FileErrorKind) -> ErrorKind {
        match kind {
            FileErrorKind::Io => ErrorKind::System,
            FileErrorKind::Invalid => ErrorKind::Invalid,
            FileErrorKind::Unsupported => ErrorKind::Unsupported,
            FileErrorKind::Cancelled => ErrorKind::Interrupted,
            FileErrorKind::Usage => ErrorKind::Usage,
            FileErrorKind::Internal => ErrorKind::Internal,
        }
    }
}

impl<E: Diagnostic> From<E> for Error {
    fn from(error: E) -> Error {
        match error.kind() {
            FileErrorKind::Internal => Error::internal(error.to_string()),
            kind => Error::new(kind.into(), error.to_string()).with_ways(error.hint(), error.remedies()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_disk_has_a_hint() {
        let error = Error::io("cannot store ranges next to a.onnx", &io::ErrorKind::StorageFull.into());
        assert!(error.kind == ErrorKind::System && error.message.starts_with("cannot store ranges next to a.onnx: "));
        assert!(error.hint.unwrap().contains("free some space"));
    }
}
