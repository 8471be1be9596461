//! Runs a request in a thread of its own, while the thread that called delivers its events and listens for signals.

use crate::events::{OwnedEvent, Sending};
use crate::request::{Answer, carry_out, only_reads, sections_json};
use crate::spelling::Spelling;
use kvant::{CancelToken, Error, ErrorKind, Events};
use kvant_cli::{Request, catch, spelled_for};
use pyo3::exceptions::{PyKeyboardInterrupt, PyOSError};
use pyo3::prelude::*;
use pyo3::types::PyList;
use serde_json::{Value, json};
use std::ffi::OsString;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// The time between two looks for signals, in which events are collected.
const INTERVAL: Duration = Duration::from_millis(50);

/// The stack of the thread that works: as much as a main thread has.
const STACK: usize = 8 << 20;

/// Something that the thread that works sends.
enum Message<T> {
    Event(OwnedEvent),
    Done(Box<Result<T, Error>>),
}

impl<T> From<OwnedEvent> for Message<T> {
    fn from(event: OwnedEvent) -> Message<T> {
        Message::Event(event)
    }
}

/// Carries out `kvant COMMAND ARGUMENTS` and returns JSON: an object with `report`, `sections` and `error`, of which `report` or
/// `error` may be null.
///
/// `deliver` is called with lists of events, which are tuples: `("note" | "warning" | "detail", text)`, `("stage", name, unit, total,
/// done)`, `("progress", place, units)` or `("end",)`. An exception in it, or of a handler of signals, cancels the run and is raised
/// once it has stopped. `identity` identifies calibration data whose path means nothing.
#[pyfunction]
#[pyo3(signature = (command, arguments, deliver, identity=None))]
pub fn run(
    py: Python<'_>,
    command: &str,
    arguments: Vec<OsString>,
    deliver: &Bound<'_, PyAny>,
    identity: Option<String>,
) -> PyResult<String> {
    let spelling = Spelling::of_command(command);
    let mut request = match Request::parse(command, arguments) {
        Ok(request) => request,
        Err(error) => return Ok(json!({ "error": error_json(error, command, &spelling) }).to_string()),
    };
    if let Some(identity) = identity {
        request.identify_data(identity);
    }
    let is_abandoned_at_once = only_reads(&request);
    let work = move |events: &mut dyn Events, cancel: &CancelToken| carry_out(request, events, cancel);
    let Attended { result, raised } = attended(py, deliver, &spelling, is_abandoned_at_once, work)?;
    match raised {
        Some(error) => Err(after_stop(py, error, &result)),
        None => Ok(answer_json(result, command, &spelling)),
    }
}

/// Work that has ended.
pub struct Attended<T> {
    /// Its result.
    pub result: Result<T, Error>,
    /// The exception that has cancelled it.
    pub raised: Option<PyErr>,
}

/// Does work in a thread of its own, while this one delivers its events and listens for signals. An exception of either cancels it; work
/// that `is_abandoned_at_once` is not waited for.
pub fn attended<T: Send + 'static>(
    py: Python<'_>,
    deliver: &Bound<'_, PyAny>,
    spelling: &Spelling,
    is_abandoned_at_once: bool,
    work: impl FnOnce(&mut dyn Events, &CancelToken) -> Result<T, Error> + Send + 'static,
) -> PyResult<Attended<T>> {
    let cancel = CancelToken::new();
    let (sender, receiver) = mpsc::channel();
    let work = {
        let (cancel, mut events) = (cancel.clone(), Sending(sender.clone()));
        move || {
            let result = catch(|| work(&mut events, &cancel));
            _ = sender.send(Message::Done(Box::new(result)));
        }
    };
    let thread = std::thread::Builder::new().name("kvant".to_owned()).stack_size(STACK);
    thread.spawn(work).map_err(|error| PyOSError::new_err(format!("cannot start a thread: {error}")))?;

    let receiver = Mutex::new(receiver);
    let mut raised: Option<PyErr> = None;
    loop {
        let (events, done) = py.detach(|| next_messages(&receiver));
        let delivered = match &raised {
            None => delivered(py, &events, deliver, spelling),
            Some(_) => Ok(()),
        };
        if let Some(result) = done {
            delivered?;
            return Ok(Attended { result: *result, raised });
        }
        if let Err(error) = py.check_signals().and(delivered) {
            if raised.is_some() || is_abandoned_at_once {
                return Err(error);
            }
            cancel.cancel();
            raised = Some(error);
        }
    }
}

/// Waits for messages of an interval.
fn next_messages<T>(receiver: &Mutex<Receiver<Message<T>>>) -> (Vec<OwnedEvent>, Option<Box<Result<T, Error>>>) {
    let receiver = receiver.lock().unwrap_or_else(PoisonError::into_inner);
    let mut events: Vec<OwnedEvent> = Vec::new();
    let deadline = std::time::Instant::now() + INTERVAL;
    loop {
        match receiver.recv_timeout(deadline.saturating_duration_since(std::time::Instant::now())) {
            Ok(Message::Done(result)) => return (events, Some(result)),
            Ok(Message::Event(event)) => collect(&mut events, event),
            Err(RecvTimeoutError::Timeout) => return (events, None),
            Err(RecvTimeoutError::Disconnected) => {
                return (events, Some(Box::new(Err(Error::internal("the thread that worked has ended")))));
            }
        }
    }
}

/// Progress in a row is one event.
fn collect(events: &mut Vec<OwnedEvent>, event: OwnedEvent) {
    match (events.last_mut(), event) {
        (Some(OwnedEvent::Progress(place, units)), OwnedEvent::Progress(next, more)) => {
            *place = next;
            *units += more;
        }
        (_, event) => events.push(event),
    }
}

fn delivered(py: Python<'_>, events: &[OwnedEvent], deliver: &Bound<'_, PyAny>, spelling: &Spelling) -> PyResult<()> {
    let mut tuples = Vec::new();
    for event in events {
        let spelled = match event {
            OwnedEvent::Text(weight, text) => &OwnedEvent::Text(weight, spelling.settings(text)),
            other => other,
        };
        tuples.extend(spelled.tuple(py)?);
    }
    if tuples.is_empty() {
        return Ok(());
    }
    deliver.call1((PyList::new(py, tuples)?,)).map(drop)
}

/// The exception that has stopped a run; Ctrl-C's says what becomes of the work.
fn after_stop(py: Python<'_>, raised: PyErr, result: &Result<Answer, Error>) -> PyErr {
    match result {
        Err(error) if error.kind == ErrorKind::Interrupted && raised.is_instance_of::<PyKeyboardInterrupt>(py) => {
            PyKeyboardInterrupt::new_err(error.message.replace("the same command", "the same call"))
        }
        _ => raised,
    }
}

fn answer_json(result: Result<Answer, Error>, command: &str, spelling: &Spelling) -> String {
    match result {
        Ok(Answer { report, sections, error }) => {
            let error = error.map(|error| error_json(error, command, spelling));
            let answer = json!({ "report": report, "sections": sections_json(&sections), "error": error });
            spelling.settings(&answer.to_string())
        }
        Err(error) => json!({ "error": error_json(error, command, spelling) }).to_string(),
    }
}

/// An error as an object with `kind`, `message`, `remedy` and `remedies`.
pub fn error_json(error: Error, command: &str, spelling: &Spelling) -> Value {
    let error = spelled_for(error, command);
    let mut remedies = error.remedies_json();
    for remedy in remedies.as_array_mut().into_iter().flatten() {
        remedy["text"] = spelling.settings(remedy["text"].as_str().unwrap_or_default()).into();
    }
    json!({
        "kind": error.kind,
        "message": spelling.options(&error.message),
        "remedy": spelling.options(error.hint.as_deref().unwrap_or_default()),
        "remedies": remedies,
    })
}
