//! Reports of a run in progress: notes, progress, and the point where an interrupted run resumes.

use crate::cancel::CancelToken;
use crate::ending::{of_lost_file, refuse_changed};
use crate::error::Error;
use crate::settings;
use kvant_checkpoint::engine;
use kvant_container::FileChanges;
use std::ops::ControlFlow;
use std::sync::{Mutex, PoisonError};

/// Receives what a run reports. Events arrive one at a time, in order, from any thread of the run.
///
/// ```
/// use kvant::{Event, Events};
///
/// struct Log(Vec<String>);
///
/// impl Events for Log {
///     fn event(&mut self, event: Event<'_>) {
///         if let Event::Warning(text) = event {
///             self.0.push(text.to_owned());
///         }
///     }
/// }
/// ```
pub trait Events: Send {
    /// Called for each event.
    fn event(&mut self, event: Event<'_>);

    /// The spelling of a setting in texts (see [`spelled`](crate::spelled)).
    fn spell(&self, setting: &str) -> String {
        settings::plain(setting)
    }
}

/// Ignores all events.
impl Events for () {
    fn event(&mut self, _event: Event<'_>) {}
}

/// Something that happens during a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Event<'a> {
    /// The job was accepted, and the work begins. From now on the run stops soon after its [`CancelToken`] is cancelled.
    Started,
    /// Something a user should know that is not an error.
    Note(&'a str),
    /// Something a user must know: the result may be worse than it looks.
    Warning(&'a str),
    /// Something only a curious user wants to know.
    Detail(&'a str),
    /// The run continues the work of an interrupted one.
    Resumed(Resumption),
    /// A stage of the run begins; the next [`Event::Progress`] belong to it.
    StageStarted {
        /// The stage.
        stage: Stage,
        /// The name of the counted items.
        unit: Unit,
        /// The number of units.
        total: u64,
        /// The number done by an interrupted run.
        done: u64,
    },
    /// Some more units of the stage are done.
    Progress {
        /// The tensor, layer or block that was worked on; may be empty.
        place: &'a str,
        /// The number of further units done.
        units: u64,
    },
    /// A model has continued a prompt by some text. The texts of a prompt, joined, are that of its report.
    Text {
        /// The number of the prompt, from 0.
        prompt: usize,
        /// Whether it is the reference's.
        is_reference: bool,
        /// The further text.
        text: &'a str,
    },
    /// The stage ends, finished or not.
    StageEnded,
}

/// The point at which an interrupted run resumes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resumption {
    /// Some of the output is there already.
    Bytes {
        /// Bytes of the source whose work is done.
        done: u64,
        /// Bytes of the source in all.
        total: u64,
    },
    /// Some of the decoder's blocks are quantized already.
    Blocks {
        /// Blocks that are done.
        done: usize,
        /// Blocks in all.
        total: usize,
    },
    /// The statistics of activations are there already.
    Statistics,
    /// Some of the steps that learn a rotation are taken already.
    Rotation {
        /// Steps that are taken.
        done: u32,
        /// Steps in all.
        total: u32,
    },
    /// Some of the transforms of a graph are found already.
    Transforms,
    /// Some of the layers of a graph have their codes already.
    Layers {
        /// Layers that are done.
        done: u64,
        /// Layers in all.
        total: u64,
    },
    /// Some of the candidates of a search are measured already.
    Candidates {
        /// Candidates that are measured.
        done: u64,
        /// Candidates in all.
        total: u64,
    },
}

/// A stage of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Runs data through the float model and observes activations.
    Calibration,
    /// Runs algorithms over the decoder's blocks or the graph's layers.
    Algorithms,
    /// Quantizes weights and writes them.
    Writing,
    /// Runs the model or the result to measure it.
    Evaluation,
    /// Continues prompts.
    Generation,
    /// Makes and measures one candidate after another.
    Search,
}

/// The unit of progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Bytes of the source.
    Bytes,
    /// Tokens that passed the model.
    Tokens,
    /// Samples that passed the model.
    Samples,
    /// Weights that were quantized.
    Weights,
    /// Layers that algorithms have finished.
    Layers,
    /// Models that were made and measured.
    Models,
}

/// Passes events on from all threads of a run, one at a time.
pub(crate) struct Reporter<'e> {
    events: Mutex<&'e mut dyn Events>,
    cancel: CancelToken,
    lost: FileChanges,
}

impl<'e> Reporter<'e> {
    pub fn new(events: &'e mut dyn Events, cancel: &CancelToken) -> Reporter<'e> {
        Reporter { events: Mutex::new(events), cancel: cancel.clone(), lost: FileChanges::from_now_on() }
    }

    /// The token that cancels the run.
    pub fn cancel(&self) -> &CancelToken {
        &self.cancel
    }

    /// Refuses to keep or name results of files that were cut short or rewritten during the run.
    pub fn refuse_lost(&self) -> Result<(), Error> {
        self.lost.first().map_or(Ok(()), |file| Err(of_lost_file(&file)))?;
        refuse_changed(&self.lost)
    }

    pub fn event(&self, event: Event<'_>) {
        self.events.lock().unwrap_or_else(PoisonError::into_inner).event(event);
    }

    pub fn started(&self) {
        self.event(Event::Started);
    }

    /// A text with its settings as the receiver spells them.
    pub fn spelled(&self, text: &str) -> String {
        let events = self.events.lock().unwrap_or_else(PoisonError::into_inner);
        settings::spelled(text, |setting| events.spell(setting))
    }

    pub fn note(&self, text: &str) {
        self.event(Event::Note(&self.spelled(text)));
    }

    pub fn notes<T: AsRef<str>>(&self, texts: impl IntoIterator<Item = T>) {
        texts.into_iter().for_each(|text| self.note(text.as_ref()));
    }

    pub fn warning(&self, text: &str) {
        self.event(Event::Warning(&self.spelled(text)));
    }

    pub fn detail(&self, text: &str) {
        self.event(Event::Detail(&self.spelled(text)));
    }

    pub fn resumed(&self, resumption: Resumption) {
        self.event(Event::Resumed(resumption));
    }

    /// The progress of a stage, which ends when it is dropped.
    pub fn stage(&self, stage: Stage, unit: Unit) -> Progress<'_, 'e> {
        Progress { reporter: self, stage, unit, is_a_rest: false, is_started: Mutex::new(false) }
    }
}

/// The progress of one stage.
pub(crate) struct Progress<'r, 'e> {
    reporter: &'r Reporter<'e>,
    stage: Stage,
    unit: Unit,
    /// Whether most of the run is done already, and where that resumed was said.
    is_a_rest: bool,
    is_started: Mutex<bool>,
}

impl Progress<'_, '_> {
    /// The same for what is left after a stage that said where it resumed.
    pub fn of_rest(mut self, is_a_rest: bool) -> Self {
        self.is_a_rest = is_a_rest;
        self
    }

    /// A function that takes how many units are done, and how many there are.
    pub fn watch(&self) -> impl FnMut(u64, u64) + Send {
        let mut watch = self.watch_places();
        move |done: u64, all: u64| watch("", done, all)
    }

    /// The same, which says whether the run was asked to stop.
    pub fn watch_cancelled(&self) -> impl FnMut(u64, u64) -> ControlFlow<()> + Send {
        let mut watch = self.watch();
        move |done: u64, all: u64| {
            watch(done, all);
            if self.reporter.cancel.is_cancelled() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        }
    }

    /// The same with the place of the work.
    pub fn watch_places(&self) -> impl FnMut(&str, u64, u64) + Send {
        self.watch_after(|_| 0)
    }

    /// The same for a run that may resume: what is done at the first call was done by the interrupted run.
    pub fn watch_resumed(&self) -> impl FnMut(&str, u64, u64) + Send {
        self.watch_after(|done| done)
    }

    fn watch_after(&self, resumed: impl Fn(u64) -> u64 + Send) -> impl FnMut(&str, u64, u64) + Send {
        // The reported progress and the total as first reported, since an estimate may grow.
        let mut reported = None;
        move |place: &str, done: u64, all: u64| {
            let (earlier, total) = reported.unwrap_or_else(|| {
                let earlier = resumed(done);
                self.start(all, earlier);
                (earlier, all)
            });
            let now = done.min(total).max(earlier);
            reported = Some((now, total));
            self.advance(place, now - earlier);
        }
    }

    fn start(&self, total: u64, done: u64) {
        *self.is_started.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.reporter.event(Event::StageStarted { stage: self.stage, unit: self.unit, total, done });
    }

    fn advance(&self, place: &str, units: u64) {
        self.reporter.event(Event::Progress { place, units });
    }
}

impl engine::Progress for Progress<'_, '_> {
    fn begin(&self, total_bytes: u64, done_bytes: u64) {
        if done_bytes > 0 && !self.is_a_rest {
            self.reporter.resumed(Resumption::Bytes { done: done_bytes, total: total_bytes });
        }
        self.start(total_bytes, done_bytes);
    }

    fn advance(&self, name: &str, bytes: u64) {
        self.advance(name, bytes);
    }
}

impl Drop for Progress<'_, '_> {
    fn drop(&mut self) {
        if *self.is_started.lock().unwrap_or_else(PoisonError::into_inner) {
            self.reporter.event(Event::StageEnded);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Sum {
        total: u64,
        done: u64,
    }

    impl Events for Sum {
        fn event(&mut self, event: Event<'_>) {
            match event {
                Event::StageStarted { total, done, .. } => (self.total, self.done) = (total, done),
                Event::Progress { units, .. } => self.done += units,
                _ => {}
            }
        }
    }

    #[test]
    fn growing_estimates_do_not_exceed_the_total() {
        let mut sum = Sum::default();
        {
            let reporter = Reporter::new(&mut sum, &CancelToken::new());
            let progress = reporter.stage(Stage::Search, Unit::Models);
            let mut watch = progress.watch();
            [(1, 3), (2, 3), (3, 3), (4, 4), (5, 5)].into_iter().for_each(|(done, all)| watch(done, all));
        }
        assert_eq!((sum.done, sum.total), (3, 3));
    }
}
