//! The float model over all samples, every needed tensor observed as it is made. One sample for each thread is in memory.

use std::any::Any;
use std::collections::{BTreeSet, HashMap};
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use kvant_container::onnx::ModelProto;

use super::observation::Observation;
use crate::data::{Array, Samples};
use crate::error::CalibrationError;
use crate::runtime::{Program, RuntimeError, RuntimeOptions, Session};

/// Receives tensors while a model runs over samples: those of one name in the order of the samples, independent of other
/// names.
pub trait Watch: Send {
    /// Takes in a tensor of a sample.
    fn see(&mut self, tensor: &str, array: &Array<'_>);

    /// Is told that a sample is over, of which the next has perhaps begun.
    fn end_sample(&mut self) {}
}

impl Watch for Observation {
    fn see(&mut self, tensor: &str, array: &Array<'_>) {
        Observation::see(self, tensor, array.shape(), &array.to_f32s());
    }

    fn end_sample(&mut self) {
        Observation::end_sample(self);
    }
}

/// Sessions at most: each holds the activations of one sample.
const MOST_SESSIONS: usize = 4;

/// The sessions that run side by side on so many threads.
pub fn sessions(threads: Option<usize>) -> usize {
    threads.unwrap_or(1).clamp(1, MOST_SESSIONS)
}

/// Runs the model over the samples. Returns the engine's name. `progress` takes the samples done and all there are.
///
/// As many samples are in work as there are threads, each in a session of one thread: engines sum in an order that depends on
/// their threads, and ranges must not. Statistics see the samples of each tensor in their order.
pub fn observe(
    model: &ModelProto,
    observation: &mut Observation,
    samples: &mut Samples,
    options: &RuntimeOptions,
    progress: &mut (dyn FnMut(u64, u64) + Send),
    cancelled: &AtomicBool,
) -> Result<String, CalibrationError> {
    let wanted = observation.tensors();
    watch(model, &wanted, observation, samples, options, progress, cancelled)
}

/// The same for whoever watches, who is shown the wanted tensors of each sample.
pub fn watch(
    model: &ModelProto,
    wanted: &[String],
    watch: &mut dyn Watch,
    samples: &mut Samples,
    options: &RuntimeOptions,
    progress: &mut (dyn FnMut(u64, u64) + Send),
    cancelled: &AtomicBool,
) -> Result<String, CalibrationError> {
    let all = samples.len();
    let sessions = sessions(options.threads).min(all.max(1));
    // A tensor that is requested twice is seen once.
    let wanted: Vec<String> = wanted.iter().collect::<BTreeSet<_>>().into_iter().cloned().collect();
    let wanted = &wanted[..];
    let options = RuntimeOptions { threads: Some(1), ..options.clone() };
    progress(0, all as u64);
    let run = Run::new(all, watch, progress, samples, cancelled);
    let program = Arc::new(Program::new(model, wanted, &options)?);
    let work = |first, program: Arc<Program>| {
        let mut session = program.open()?;
        // The last thread to open its session takes the file of the model away.
        drop(program);
        (first..all).step_by(sessions).try_for_each(|index| run.sample(index, &mut *session, wanted))?;
        Ok(session.name())
    };
    let ended = |first, program| {
        // The others wait for their turns, which would never come.
        let caught = catch_unwind(AssertUnwindSafe(|| work(first, program)));
        let result = caught.unwrap_or_else(|payload| Err(CalibrationError::Panicked(text(&*payload))));
        if result.is_err() {
            run.end();
        }
        result
    };
    let ended = &ended;
    let results: Vec<Result<String, CalibrationError>> = std::thread::scope(|scope| {
        let programs = std::iter::repeat_n(program, sessions);
        let threads: Vec<_> =
            (0..sessions).zip(programs).map(|(first, program)| scope.spawn(move || ended(first, program))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap_or(Err(CalibrationError::Cancelled))).collect()
    });
    // An error that made the others stop comes before their stopping.
    let mut results = results.into_iter();
    let first = results.next().unwrap_or(Err(CalibrationError::Cancelled));
    results.fold(first, |found, next| match (&found, &next) {
        (Ok(_), Err(_)) | (Err(CalibrationError::Cancelled), Err(_)) => next,
        _ => found,
    })
}

/// The error of an engine for a sample, with a possible reason.
fn of_sample(sample: usize, inputs: &[(&str, Array<'_>)], cause: RuntimeError) -> CalibrationError {
    let RuntimeError::Run { .. } = cause else { return cause.into() };
    let largest = |(name, array): &(&str, Array<'_>)| Some(format!("`{name}` up to {}", array.largest_integer()?));
    CalibrationError::Sample { sample, largest: inputs.iter().filter_map(largest).collect(), cause: Box::new(cause) }
}

/// The message of a panic.
fn text(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().copied();
    text.or_else(|| payload.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message").to_owned()
}

/// Data shared by the threads of a run.
struct Run<'a> {
    all: usize,
    turns: Mutex<Turns<'a>>,
    moved: Condvar,
    samples: Mutex<&'a mut Samples>,
    cancelled: &'a AtomicBool,
}

/// Whose sample the statistics of each tensor see next.
struct Turns<'a> {
    /// Samples of which they have seen it.
    seen: HashMap<String, usize>,
    /// Samples that are over.
    done: usize,
    ended: bool,
    watch: &'a mut dyn Watch,
    progress: &'a mut (dyn FnMut(u64, u64) + Send),
}

impl<'a> Run<'a> {
    fn new(
        all: usize,
        watch: &'a mut dyn Watch,
        progress: &'a mut (dyn FnMut(u64, u64) + Send),
        samples: &'a mut Samples,
        cancelled: &'a AtomicBool,
    ) -> Self {
        let turns = Turns { seen: HashMap::new(), done: 0, ended: false, watch, progress };
        Run { all, turns: Mutex::new(turns), moved: Condvar::new(), samples: Mutex::new(samples), cancelled }
    }

    /// Runs one sample and shows each tensor to the statistics when it is its turn. Nothing is held between tensors: an engine
    /// may show some before it runs, or run more than once.
    fn sample(&self, index: usize, session: &mut dyn Session, wanted: &[String]) -> Result<(), CalibrationError> {
        let sample: Vec<(String, Array<'static>)> = {
            let mut samples = self.samples.lock().unwrap_or_else(PoisonError::into_inner);
            samples.sample(index)?.into_iter().map(|(name, array)| (name.to_owned(), array.into_owned())).collect()
        };
        let inputs: Vec<(&str, Array<'_>)> = sample.iter().map(|(name, array)| (name.as_str(), array.view())).collect();
        let ran = session.run(&inputs, wanted, &mut |name, array| self.show(index, name, array));
        ran.map_err(|cause| of_sample(index, &inputs, cause))?;
        let mut turns = self.wait(|turns| turns.done == index).ok_or(CalibrationError::Cancelled)?;
        turns.watch.end_sample();
        turns.done += 1;
        let done = turns.done as u64;
        (turns.progress)(done, self.all as u64);
        self.moved.notify_all();
        Ok(())
    }

    /// Shows a tensor of a sample behind those of the samples before.
    fn show(&self, index: usize, name: &str, array: &Array<'_>) -> ControlFlow<()> {
        // A sample that is over has shown all that it will.
        let is_next = |turns: &Turns<'_>| turns.done.max(turns.seen.get(name).copied().unwrap_or(0)) >= index;
        let Some(mut turns) = self.wait(is_next) else { return ControlFlow::Break(()) };
        turns.watch.see(name, array);
        match turns.seen.get_mut(name) {
            Some(seen) => *seen = index + 1,
            None => drop(turns.seen.insert(name.to_owned(), index + 1)),
        }
        self.moved.notify_all();
        ControlFlow::Continue(())
    }

    /// Waits for a turn; `None` where the run has ended before.
    fn wait(&self, is_next: impl Fn(&Turns<'_>) -> bool) -> Option<MutexGuard<'_, Turns<'a>>> {
        let turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
        let early = |turns: &mut Turns<'a>| !turns.ended && !is_next(turns);
        let turns = self.moved.wait_while(turns, early).unwrap_or_else(PoisonError::into_inner);
        let goes_on = !turns.ended && !self.cancelled.load(Ordering::Relaxed);
        goes_on.then_some(turns)
    }

    fn end(&self) {
        self.turns.lock().unwrap_or_else(PoisonError::into_inner).ended = true;
        self.moved.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::time::Duration;

    use kvant_container::onnx::{Bytes, parse};

    use super::*;
    use crate::calibration::{ObserverRef, Settings};
    use crate::data::{DataOptions, SampleSource, inputs};
    use crate::element::Element;
    use crate::quantization::ScaleKind;
    use crate::runtime::{RuntimeChoice, Visit};

    fn run(
        progress: &mut (dyn FnMut(u64, u64) + Send),
        cancelled: &AtomicBool,
    ) -> (Result<String, CalibrationError>, Observation) {
        let file = |name: &str| format!("{}/tests/data/tinycnn.{name}", env!("CARGO_MANIFEST_DIR"));
        let model = parse(&Bytes::from(std::fs::read(file("float.onnx")).unwrap())).unwrap();
        let source = SampleSource::Path(file("calib.npz").into());
        let mut samples = source.open(&inputs(&model.graph), &DataOptions::default()).unwrap();
        let settings = Settings::new(ObserverRef::MIN_MAX, Element::Int8, true, ScaleKind::Float);
        let mut observation = Observation::new(model.graph.output.iter().map(|v| (v.name().to_owned(), settings)));
        let options = RuntimeOptions { choice: RuntimeChoice::Rten, threads: Some(2), ..RuntimeOptions::default() };
        (observe(&model, &mut observation, &mut samples, &options, progress, cancelled), observation)
    }

    #[test]
    fn panic_on_one_thread_stops_the_others() {
        let mut progress = |done: u64, _: u64| assert!(done < 2, "on purpose");
        let (result, _) = run(&mut progress, &AtomicBool::new(false));
        assert!(matches!(&result, Err(CalibrationError::Panicked(text)) if text.contains("on purpose")), "{result:?}");
    }

    /// Shows a tensor, waits until another session has shown it too, and shows a second one.
    struct Meeting {
        sample: f32,
        to: Sender<()>,
        from: Receiver<()>,
    }

    impl Session for Meeting {
        fn name(&self) -> String {
            "meeting".to_owned()
        }

        fn run(&mut self, _: &[(&str, Array<'_>)], _: &[String], visit: &mut Visit<'_>) -> Result<(), RuntimeError> {
            let array = Array::of(vec![1], vec![self.sample]).unwrap();
            let _ = visit("first", &array);
            self.to.send(()).unwrap();
            self.from.recv_timeout(Duration::from_secs(30)).expect("the other session waits for this one's end");
            // The later sample comes first, and must wait.
            std::thread::sleep(Duration::from_millis(if self.sample > 0.0 { 0 } else { 50 }));
            let _ = visit("second", &array);
            Ok(())
        }
    }

    #[derive(Default)]
    struct Log(Vec<(String, f32)>);

    impl Watch for Log {
        fn see(&mut self, tensor: &str, array: &Array<'_>) {
            self.0.push((tensor.to_owned(), array.to_f32s()[0]));
        }
    }

    #[test]
    fn samples_run_concurrently() {
        let file = |name: &str| format!("{}/tests/data/tinycnn.{name}", env!("CARGO_MANIFEST_DIR"));
        let model = parse(&Bytes::from(std::fs::read(file("float.onnx")).unwrap())).unwrap();
        let source = SampleSource::Path(file("calib.npz").into());
        let mut samples = source.open(&inputs(&model.graph), &DataOptions::default()).unwrap();
        let (mut log, mut progress, cancelled) = (Log::default(), |_: u64, _: u64| (), AtomicBool::new(false));
        let run = Run::new(2, &mut log, &mut progress, &mut samples, &cancelled);
        let ((to_second, from_first), (to_first, from_second)) = (channel(), channel());
        let sessions = [
            Meeting { sample: 0.0, to: to_second, from: from_second },
            Meeting { sample: 1.0, to: to_first, from: from_first },
        ];
        std::thread::scope(|scope| {
            let run = &run;
            let start =
                |(index, mut session): (usize, Meeting)| scope.spawn(move || run.sample(index, &mut session, &[]));
            let threads: Vec<_> = sessions.into_iter().enumerate().map(start).collect();
            threads.into_iter().for_each(|thread| thread.join().unwrap().unwrap());
        });
        drop(run);
        for tensor in ["first", "second"] {
            let seen: Vec<f32> = log.0.iter().filter(|(name, _)| name == tensor).map(|(_, sample)| *sample).collect();
            assert_eq!(seen, [0.0, 1.0], "{tensor}");
        }
    }

    #[test]
    fn all_samples_are_observed_unless_cancelled() {
        let (result, observation) = run(&mut |_, _| (), &AtomicBool::new(false));
        assert_eq!((result.is_ok(), observation.samples()), (true, 4));
        let (result, observation) = run(&mut |_, _| (), &AtomicBool::new(true));
        assert!(matches!(result, Err(CalibrationError::Cancelled)) && observation.samples() == 0);
    }
}
