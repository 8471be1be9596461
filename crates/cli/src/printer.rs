//! The only file that prints: data to stdout, everything else to stderr.

use crate::args::{ColorWhen, GlobalArgs, ProgressWhen};
use anstream::{AutoStream, ColorChoice};
use anstyle::{AnsiColor, Style};
use indicatif::{ProgressBar, ProgressDrawTarget};
use kvant::json::versioned;
use kvant::summary::{Remark, Section, render};
use kvant::text::{Table, printable, shown};
use kvant::{Error, ErrorKind, spelled};
use serde::Serialize;
use serde_json::json;
use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::sync::Mutex;

/// Titles of tables.
const TITLE: Style = AnsiColor::Green.on_default().bold();
const ERROR: Style = AnsiColor::Red.on_default().bold();
const WARNING: Style = AnsiColor::Yellow.on_default().bold();
const NOTE: Style = AnsiColor::Yellow.on_default().bold();
const HINT: Style = AnsiColor::Cyan.on_default().bold();

/// The width of tables that go to a file or a pipe.
const NO_TERMINAL: usize = 100;

/// The verbosity of stderr.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Verbosity {
    Quiet,
    Normal,
    Verbose,
}

/// How progress is shown.
#[derive(Debug)]
pub enum ProgressTarget {
    /// Not at all.
    Hidden,
    /// As a bar on stderr.
    Terminal(ProgressDrawTarget),
    /// As lines on stderr, the first one at once if it is true.
    Lines(bool),
}

/// The owner of stdout and stderr.
#[derive(Debug)]
pub struct Printer {
    verbosity: Verbosity,
    json: bool,
    progress: ProgressWhen,
    color: ColorWhen,
    /// Whether tables may be of any width.
    wide: bool,
    /// The bar that messages must not tear.
    bar: Mutex<Option<ProgressBar>>,
}

impl Printer {
    /// A printer that follows the options.
    pub fn new(args: GlobalArgs) -> Printer {
        let verbosity = match (args.quiet, args.verbose) {
            (true, _) => Verbosity::Quiet,
            (_, true) => Verbosity::Verbose,
            _ => Verbosity::Normal,
        };
        Printer {
            verbosity,
            json: args.json,
            progress: args.progress,
            color: args.color,
            wide: args.wide,
            bar: Mutex::new(None),
        }
    }

    /// Returns whether data is JSON.
    pub fn is_json(&self) -> bool {
        self.json
    }

    /// The width of a table in characters: `COLUMNS`, or the terminal's; [`NO_TERMINAL`] without one.
    pub fn width(&self) -> usize {
        if self.wide {
            return usize::MAX;
        }
        let said =
            std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok()).filter(|columns| *columns > 0);
        let terminal = || io::stdout().is_terminal().then(terminal_size::terminal_size).flatten();
        said.or_else(|| terminal().map(|(width, _)| usize::from(width.0))).unwrap_or(NO_TERMINAL)
    }

    /// Prints data on stdout with a line break. A closed pipe (`| head`) is not an error.
    ///
    /// # Errors
    /// The system's, a full disk for example.
    pub fn data(&self, text: &str) -> Result<(), Error> {
        match writeln!(self.stream(io::stdout()), "{}", spelled(text, option)) {
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
                Err(Error::system(format!("cannot write to stdout: {error}")))
            }
            _ => Ok(()),
        }
    }

    /// The next part of a model's text on stdout, at once. Errors wait for the line break, which [`text`](Self::text) writes.
    pub fn text_part(&self, text: &str) {
        let mut stdout = io::stdout().lock();
        let text = if stdout.is_terminal() { printable(text) } else { text.to_owned() };
        _ = write!(stdout, "{text}").and_then(|()| stdout.flush());
    }

    /// Text of a model on stdout with a line break: on a terminal without what would change its state, else byte for byte.
    ///
    /// # Errors
    /// As for [`data`](Self::data).
    pub fn text(&self, text: &str) -> Result<(), Error> {
        let mut stdout = io::stdout().lock();
        let text = if stdout.is_terminal() { printable(text) } else { text.to_owned() };
        match writeln!(stdout, "{text}").and_then(|()| stdout.flush()) {
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
                Err(Error::system(format!("cannot write to stdout: {error}")))
            }
            _ => Ok(()),
        }
    }

    /// Paths of what was made, a line each: for a script byte for byte, on a terminal without what would change its state.
    ///
    /// # Errors
    /// As for [`data`](Self::data).
    pub fn paths<'p>(&self, paths: impl IntoIterator<Item = &'p Path>) -> Result<(), Error> {
        let mut stdout = io::stdout().lock();
        let is_terminal = stdout.is_terminal();
        let line = |path: &Path| match is_terminal {
            true => format!("{}\n", shown(path)).into_bytes(),
            false => [path.as_os_str().as_encoded_bytes(), b"\n"].concat(),
        };
        let lines: Vec<u8> = paths.into_iter().flat_map(line).collect();
        match stdout.write_all(&lines).and_then(|()| stdout.flush()) {
            Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
                Err(Error::system(format!("cannot write to stdout: {error}")))
            }
            _ => Ok(()),
        }
    }

    /// Data as one line of JSON, an object of the command's schema.
    ///
    /// # Errors
    /// As for [`data`](Self::data).
    pub fn json(&self, command: &str, object: &impl Serialize) -> Result<(), Error> {
        let text = serde_json::to_string(&versioned(command, object)).map_err(|e| Error::internal(e.to_string()))?;
        self.data(&text)
    }

    /// Sections of a summary as text of the terminal's width.
    pub fn sections(&self, sections: &[Section]) -> String {
        render(sections, self.width(), &titled)
    }

    /// A table as text of the terminal's width.
    pub fn table(&self, table: &Table) -> String {
        table.render(self.width(), &titled)
    }

    /// Remarks on a result.
    pub fn remarks(&self, remarks: &[Remark]) {
        for remark in remarks {
            match remark {
                Remark::Warning(text) => self.warning(text),
                Remark::Note(text) => self.note(text),
                Remark::Detail(text) => self.detail(text),
                Remark::Summary(text) => self.summary(&printable(text)),
            }
        }
    }

    /// The summary of a run, if there is any.
    pub fn summary(&self, text: &str) {
        if self.verbosity >= Verbosity::Normal && !text.is_empty() {
            self.message(text);
        }
    }

    /// Prints a notice.
    pub fn note(&self, text: &str) {
        if self.verbosity >= Verbosity::Normal {
            self.message(&format!("{NOTE}note:{NOTE:#} {}", printable(text)));
        }
    }

    /// Prints a warning, with `--quiet` too: the result may be worse than it looks.
    pub fn warning(&self, text: &str) {
        self.message(&format!("{WARNING}warning:{WARNING:#} {}", printable(text)));
    }

    /// Prints details, with `--verbose`.
    pub fn detail(&self, text: &str) {
        if self.verbosity >= Verbosity::Verbose {
            self.message(&printable(text));
        }
    }

    /// An error and its hint; with --json an object on stdout too.
    pub fn failure(&self, failure: &Error) {
        let message = printable(&failure.message);
        match failure.kind {
            // The user knows why.
            ErrorKind::Interrupted => self.message(&message),
            _ => self.message(&format!("{ERROR}error:{ERROR:#} {message}")),
        }
        if let Some(hint) = &failure.hint {
            self.message(&format!("{HINT}hint:{HINT:#} {}", printable(hint)));
        }
        // Failed checks are already in the printed object.
        if failure.kind != ErrorKind::Unfit {
            self.error_object(failure);
        }
    }

    /// With --json, an error as data.
    pub fn error_object(&self, failure: &Error) {
        if self.json {
            let Error { kind, message, hint, .. } = failure;
            // Nothing can be reported any more.
            let remedies = failure.remedies_json();
            let error = json!({ "kind": kind, "message": message, "hint": hint, "remedies": remedies });
            let _ = self.json("error", &json!({ "error": error }));
        }
    }

    /// Text that is styled already, such as the help: to stderr.
    pub fn message(&self, text: &str) {
        let text = spelled(text, option);
        let print = || {
            // With stderr closed, nothing can be reported.
            let _ = writeln!(self.stream(io::stderr()), "{text}");
        };
        match self.bar.lock().ok().and_then(|bar| bar.clone()) {
            Some(bar) => bar.suspend(print),
            None => print(),
        }
    }

    /// How progress is to be shown.
    pub fn progress_target(&self) -> ProgressTarget {
        let always = self.progress == ProgressWhen::Always;
        if self.progress == ProgressWhen::Never || (self.verbosity == Verbosity::Quiet && !always) {
            return ProgressTarget::Hidden;
        }
        match io::stderr().is_terminal() {
            true => ProgressTarget::Terminal(ProgressDrawTarget::stderr_with_hz(10)),
            false => ProgressTarget::Lines(always),
        }
    }

    /// From now on messages go above this bar; `None` when it is gone.
    pub fn set_bar(&self, bar: Option<ProgressBar>) {
        if let Ok(mut place) = self.bar.lock() {
            *place = bar;
        }
    }

    fn stream<S: anstream::stream::RawStream>(&self, stream: S) -> AutoStream<S> {
        match self.color {
            ColorWhen::Auto => AutoStream::auto(stream),
            ColorWhen::Always => AutoStream::new(stream, ColorChoice::Always),
            ColorWhen::Never => AutoStream::new(stream, ColorChoice::Never),
        }
    }
}

fn titled(line: &str) -> String {
    format!("{TITLE}{line}{TITLE:#}")
}

/// A setting of the library as an option.
pub fn option(setting: &str) -> String {
    if setting == "output" { "-o".to_owned() } else { format!("--{setting}") }
}
