//! Errors at the command line: exit codes, and hints for the current command.

use crate::printer::option;
use crate::{hint, interrupt};
use kvant::{Error, ErrorKind, spelled};

/// The exit code of an error.
pub fn exit_code(kind: ErrorKind) -> u8 {
    match kind {
        ErrorKind::Invalid | ErrorKind::Unsupported | ErrorKind::System | ErrorKind::Unfit => 1,
        ErrorKind::Usage | ErrorKind::Internal => 2,
        ErrorKind::Interrupted => interrupt::exit_code(),
    }
}

/// The error with only those remedies that the command has options for.
pub fn for_command(error: Error, command: &str) -> Error {
    let of_command = |text: &str| hint::of_command(&spelled(text, option), command);
    let hint = error.hint.as_deref().and_then(of_command);
    let open = error.remedies().iter().filter(|remedy| of_command(&remedy.to_string()).is_some());
    let remedies = open.cloned().collect();
    error.with_ways(hint, remedies)
}

/// The error as the command line shows it: settings are spelled as options, and only remedies that `command` has options for are left.
pub fn spelled_for(error: Error, command: &str) -> Error {
    let mut error = for_command(error, command);
    error.message = spelled(&error.message, option);
    error
}

/// A usage error with its remedy.
pub fn usage(message: &str, hint: &str) -> Error {
    Error::new(ErrorKind::Usage, message).with_hint(Some(hint.to_owned()))
}
