//! Errors at the command line: exit codes, and hints for the current command.

use crate::printer::option;
use crate::{hint, interrupt};
use kvant::{Error, ErrorKind, Remedy, spelled};

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
    let open = error.remedies().iter().filter(|remedy| of_command(&remedy.to_string()).is_some());
    let remedies: Vec<Remedy> = open.cloned().collect();
    let is_made_of_remedies = error.hint == Remedy::hint(error.remedies());
    let hint = if is_made_of_remedies { Remedy::hint(&remedies) } else { error.hint.clone() };
    let hint = hint.as_deref().and_then(of_command);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remedies_without_an_option_leave_the_others_in_the_hint() {
        let ways = vec![
            Remedy::text("free some space"),
            Remedy::text("choose a directory on another disk"),
            Remedy::setting("num-samples", "take less data with ‹num-samples›"),
        ];
        let error = Error::new(ErrorKind::System, "full").with_remedies(ways);
        let hint = |command: &str| for_command(error.clone(), command).hint.unwrap();
        assert_eq!(hint("convert"), "free some space, or choose a directory on another disk");
        assert!(hint("quantize").ends_with("or take less data with --num-samples"), "{}", hint("quantize"));
    }
}
