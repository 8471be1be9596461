//! Events on their way from the thread that works to the one that called.

use kvant::{Event, Events, Stage};
use kvant_cli::{noun, resumed};
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use std::sync::mpsc::Sender;

/// An event without borrowed parts.
#[derive(Debug)]
pub enum OwnedEvent {
    /// The work begins.
    Started,
    /// A text, by its weight: `note`, `warning` or `detail`.
    Text(&'static str, String),
    /// A stage begins: its name, its unit (`None` is bytes), all units, and those that are done.
    Stage(&'static str, Option<&'static str>, u64, u64),
    /// Some more units are done.
    Progress(String, u64),
    /// The stage ends.
    StageEnded,
}

impl OwnedEvent {
    /// A tuple whose first element says which event it is; [`Started`](Self::Started) is none.
    pub fn tuple<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyTuple>>> {
        Ok(Some(match self {
            OwnedEvent::Started => return Ok(None),
            OwnedEvent::Text(weight, text) => (*weight, text).into_pyobject(py)?,
            OwnedEvent::Stage(stage, unit, total, done) => ("stage", stage, unit, total, done).into_pyobject(py)?,
            OwnedEvent::Progress(place, units) => ("progress", place, units).into_pyobject(py)?,
            OwnedEvent::StageEnded => ("end",).into_pyobject(py)?,
        }))
    }
}

/// Sends events to the thread that called.
pub struct Sending<T>(pub Sender<T>);

impl<T: From<OwnedEvent> + Send> Events for Sending<T> {
    fn event(&mut self, event: Event<'_>) {
        let owned = match event {
            Event::Started => OwnedEvent::Started,
            Event::Note(text) => OwnedEvent::Text("note", text.to_owned()),
            Event::Warning(text) => OwnedEvent::Text("warning", text.to_owned()),
            Event::Detail(text) => OwnedEvent::Text("detail", text.to_owned()),
            Event::Resumed(resumption) => OwnedEvent::Text("note", resumed(resumption)),
            Event::StageStarted { stage, unit, total, done } => OwnedEvent::Stage(name(stage), noun(unit), total, done),
            Event::Progress { place, units } => OwnedEvent::Progress(place.to_owned(), units),
            // The report has the whole texts.
            Event::Text { .. } => return,
            Event::StageEnded => OwnedEvent::StageEnded,
        };
        // Nobody listens any more after a second Ctrl-C.
        _ = self.0.send(owned.into());
    }

    /// Settings are spelled where the whole text is known.
    fn spell(&self, setting: &str) -> String {
        format!("‹{setting}›")
    }
}

fn name(stage: Stage) -> &'static str {
    match stage {
        Stage::Calibration => "calibrating",
        Stage::Algorithms => "running algorithms",
        Stage::Writing => "writing",
        Stage::Evaluation => "evaluating",
        Stage::Generation => "generating",
        Stage::Search => "searching",
    }
}
