//! Tries one recipe after another until a graph keeps all limits. Each is made in place of the last one, so that only one is on disk.

use super::attempt::{AccuracyReport, Attempt};
use super::gate::Gate;
use super::recipes::{ADDITIONS, Candidate};
use crate::error::{Error, ErrorKind};
use crate::events::{Event, Events, Reporter, Stage, Unit};
use crate::onnx::data::{GraphData, calibration};
use crate::onnx::fingerprint::fingerprint;
use crate::onnx::quantize::{GraphReport, Run, model_size};
use crate::onnx::recipe;
use crate::onnx::staged::Staged;
use crate::text::shown;
use kvant_container::Remedy;
use kvant_container::onnx::Spill;
use kvant_container::unfinished::{Claim, KeptResults};
use kvant_onnx::sensitivity::{Bench, Candidate as Types, Data, Widening, candidates, plan, sensitivities, widenings};
use kvant_onnx::settings::Resolved;
use std::io;
use std::time::Instant;

/// Samples on which the noise of single layers is measured: their order needs no more.
const NOISE_SAMPLES: usize = 64;

/// A graph that is complete but for its name.
type Made = (GraphReport, Staged);

/// Makes the first graph that keeps all limits. Without one, the report says what was measured of each, and none is to be placed.
///
/// # Errors
/// Those of the job's own recipe, the metric or the system.
pub fn search(run: &Run<'_, '_>, claim: &Claim) -> Result<Made, Error> {
    let gate = Gate::open(run.job, run.source, run.reporter)?;
    let kept = KeptResults::new(&claim.paths().blocks(), &claim_plan(run)?);
    let mut search = Search { run, claim, gate, kept, attempts: Vec::new(), last: None };
    let base = Candidate::of(run.job);
    let found = match run.job.recipe.graph.auto {
        true => search.with_additions(&base)?,
        false => search.with_wider_types(&base)?,
    };
    search.finish(found, &base)
}

/// The identity of the search among kept results.
fn claim_plan(run: &Run<'_, '_>) -> Result<String, Error> {
    Ok(fingerprint(run.job, &recipe::recipe(run.job)?) + &super::fingerprint(run.job))
}

struct Search<'a, 'e> {
    run: &'a Run<'a, 'e>,
    claim: &'a Claim,
    gate: Option<Gate<'a, 'e>>,
    /// What an interrupted search has measured.
    kept: KeptResults,
    attempts: Vec<Attempt>,
    /// The last graph that was made and not accepted.
    last: Option<Made>,
}

impl Search<'_, '_> {
    /// The recipe, then additions to the best one so far, then wider types for the best of those that are not trained: many mixes of types
    /// are tried, and each would have to be trained again.
    fn with_additions(&mut self, base: &Candidate) -> Result<Option<Made>, Error> {
        if let Some(made) = self.attempt(base)? {
            return Ok(Some(made));
        }
        let (mut best, mut best_at) = (base.clone(), 0);
        let mut untrained = None;
        for addition in ADDITIONS {
            if addition.is_trained() {
                untrained.get_or_insert_with(|| best.clone());
            }
            let Some(candidate) = best.with(addition)? else { continue };
            if let Some(made) = self.attempt(&candidate)? {
                return Ok(Some(made));
            }
            let at = self.attempts.len() - 1;
            if self.attempts[at].is_better_than(&self.attempts[best_at]) {
                (best, best_at) = (candidate, at);
            }
        }
        self.widened(&untrained.unwrap_or(best))
    }

    /// The recipe, then wider types for some layers.
    fn with_wider_types(&mut self, base: &Candidate) -> Result<Option<Made>, Error> {
        match self.attempt(base)? {
            Some(made) => Ok(Some(made)),
            None => self.widened(base),
        }
    }

    /// The fewest layers with wider types, in the order of their noise, with which a recipe keeps all limits: their number is doubled until
    /// it suffices, and then bisected.
    fn widened(&mut self, base: &Candidate) -> Result<Option<Made>, Error> {
        let steps = match self.order(base) {
            Ok(steps) => steps,
            Err(error) if is_of_recipe(&error) => {
                self.run.reporter.note(&format!("no layer gets wider types: {}", error.message));
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        // With all steps nothing is left to be quantized: that bounds the search, and is no attempt.
        let (mut fails, mut suffices, mut made) = (0, steps.len(), None);
        let mut next = 1;
        while suffices - fails > 1 {
            // The graph of the last attempt is the one on disk.
            made = self.attempt(&base.widened(&steps[..next]))?;
            match made {
                Some(_) => suffices = next,
                None => fails = next,
            }
            let is_bounded = suffices < steps.len() || 2 * fails >= suffices;
            next = if is_bounded { fails.midpoint(suffices) } else { 2 * fails };
        }
        if suffices == steps.len() {
            return Ok(None);
        }
        match made {
            Some(made) => Ok(Some(made)),
            None => self.again(&base.widened(&steps[..suffices])).map(Some),
        }
    }

    /// Makes a graph once more that was accepted, and is not on disk any more.
    fn again(&mut self, candidate: &Candidate) -> Result<Made, Error> {
        self.attempt(candidate)?.ok_or_else(|| {
            let message =
                format!("{}: a graph that kept the limits does not when it is measured again", candidate.name());
            let way = Remedy::text("let the metric give the same number for the same graph");
            Error::new(ErrorKind::Invalid, message).with_remedies(vec![way])
        })
    }

    /// The layers in the order in which they get wider types.
    fn order(&self, base: &Candidate) -> Result<Vec<Widening>, Error> {
        let (job, run) = (&base.job, self.run);
        let settings = recipe::settings(job)?;
        let cancelled = run.reporter.cancel().flag();
        let spill = Spill::new(&std::env::temp_dir())?.cancelled_by(cancelled.clone());
        let pool = job.limits.pool()?;
        let prepared = pool.install(|| plan(run.source.clone(), &settings, Some(&spill)))?;
        let types = wider(&prepared.recipe);
        let graph = &prepared.model.graph;
        let quiet = &mut WithoutNotes(run.reporter);
        let (calibration, source) = calibration(job, graph, &Reporter::new(quiet, run.reporter.cancel()))?;
        let behind = match source.is_made_up() {
            true => None,
            false => source.behind(job, graph, job.data.num_samples, NOISE_SAMPLES)?,
        };
        let held_out = match behind {
            Some(samples) => samples,
            None => GraphData::first(&source, job, graph, NOISE_SAMPLES.min(job.data.num_samples))?,
        };
        let data = Data { calibration, held_out, labels: None };
        let options = job.limits.runtime();
        pool.install(|| -> Result<Vec<Widening>, Error> {
            let progress = run.reporter.stage(Stage::Calibration, Unit::Samples);
            let mut bench =
                Bench::new(prepared, settings, types, data, options, cancelled.clone(), &mut progress.watch())?;
            drop(progress);
            let progress = run.reporter.stage(Stage::Search, Unit::Models);
            let rows = sensitivities(&mut bench, false, &mut progress.watch())?;
            Ok(widenings(&bench, &rows))
        })
    }

    /// Makes and measures a graph, unless an interrupted search has seen it fail. It is returned if it keeps all limits.
    fn attempt(&mut self, candidate: &Candidate) -> Result<Option<Made>, Error> {
        let resolved = match recipe::recipe(&candidate.job) {
            Ok(resolved) => resolved,
            Err(error) => return self.impossible(candidate, error, Instant::now()).map(|()| None),
        };
        let plan = fingerprint(&candidate.job, &resolved);
        let name = format!("attempt.{plan}");
        if let Some((attempt, _)) = self.kept.get::<Attempt>(&name).filter(|(attempt, _)| !attempt.accepted) {
            self.report(attempt);
            return Ok(None);
        }
        let begun = Instant::now();
        let (report, staged) = match self.make(candidate, resolved, &plan) {
            Ok(made) => made,
            Err(error) => return self.impossible(candidate, error, begun).map(|()| None),
        };
        let attempt = self.measured(candidate, &report, &staged, begun)?;
        let accepted = attempt.accepted;
        let failed = |cause: io::Error| Error::io("cannot store what was measured", &cause);
        self.kept.put(&name, &attempt, &[]).map_err(failed)?;
        self.report(attempt);
        match accepted {
            true => Ok(Some((report, staged))),
            false => {
                self.last = Some((report, staged));
                Ok(None)
            }
        }
    }

    /// Makes a graph. Notes on it are those on the first one.
    fn make(&self, candidate: &Candidate, resolved: Resolved, plan: &str) -> Result<Made, Error> {
        let (job, run) = (&candidate.job, self.run);
        let kept = KeptResults::new(&self.claim.paths().blocks(), plan);
        if self.attempts.is_empty() {
            return Run { job, kept, ..*run }.make(resolved, self.claim);
        }
        let mut quiet = WithoutNotes(run.reporter);
        let reporter = &Reporter::new(&mut quiet, run.reporter.cancel());
        let Run { outputs, source, begun, .. } = *run;
        Run { job, reporter, outputs, source, kept, begun }.make(resolved, self.claim)
    }

    fn measured(
        &mut self,
        candidate: &Candidate,
        report: &GraphReport,
        staged: &Staged,
        begun: Instant,
    ) -> Result<Attempt, Error> {
        let problem = report.rejection.as_ref().map(|rejection| rejection.message.clone());
        let mut worst: Option<(f64, f64)> = None;
        if let Some(gate) = self.gate.as_mut().filter(|_| problem.is_none()) {
            for path in staged.paths() {
                let value = gate.measure(path)?;
                let drop = gate.drop(value);
                worst = worst.filter(|(_, known)| *known >= drop).or(Some((value, drop)));
            }
        }
        let is_accurate = match (&self.gate, worst) {
            (Some(gate), Some((_, drop))) => gate.accepts(drop),
            (Some(_), None) => false,
            (None, _) => true,
        };
        let first = staged.paths().next();
        Ok(Attempt {
            recipe: candidate.name(),
            value: worst.map(|(value, _)| value),
            drop: worst.map(|(_, drop)| drop),
            sqnr_db: report.least_sqnr().filter(|sqnr| sqnr.is_finite()),
            bytes: first.map(model_size),
            seconds: begun.elapsed().as_secs_f64(),
            widened: candidate.widened.clone(),
            accepted: problem.is_none() && is_accurate,
            problem,
        })
    }

    /// A recipe that this graph cannot have is no attempt to end at, unless it is that of the job.
    fn impossible(&mut self, candidate: &Candidate, error: Error, begun: Instant) -> Result<(), Error> {
        if self.attempts.is_empty() || !is_of_recipe(&error) {
            return Err(error);
        }
        self.report(Attempt {
            recipe: candidate.name(),
            value: None,
            drop: None,
            sqnr_db: None,
            bytes: None,
            seconds: begun.elapsed().as_secs_f64(),
            widened: candidate.widened.clone(),
            problem: Some(error.message),
            accepted: false,
        });
        Ok(())
    }

    fn report(&mut self, attempt: Attempt) {
        let (number, kind) = (self.attempts.len() + 1, self.gate.as_ref().map(|gate| gate.kind));
        let verdict = if attempt.accepted { "kept" } else { "rejected" };
        let Attempt { recipe, seconds, .. } = &attempt;
        let text = format!("attempt {number}, {recipe}: {}; {verdict} after {seconds:.1} s", attempt.spelled(kind));
        self.run.reporter.note(&text);
        self.attempts.push(attempt);
    }

    fn finish(mut self, found: Option<Made>, base: &Candidate) -> Result<Made, Error> {
        let gate = self.gate.as_ref();
        let samples = gate.and_then(Gate::samples);
        let accuracy = AccuracyReport {
            metric: gate.map(|gate| gate.kind),
            reference: gate.map(|gate| gate.reference),
            max_drop: gate.map(|gate| gate.max_drop),
            samples: samples.map(|(count, _)| count),
            samples_from: samples.map(|(_, origin)| origin),
            attempts: std::mem::take(&mut self.attempts),
        };
        let is_found = found.is_some();
        let (mut report, staged) = match found.or(self.last.take()) {
            Some(made) => made,
            // All that an interrupted search has measured failed: its first graph stands for them in the report.
            None => {
                let resolved = recipe::recipe(&base.job)?;
                let plan = fingerprint(&base.job, &resolved);
                self.make(base, resolved, &plan)?
            }
        };
        if !is_found {
            report.rejection = Some(self.rejection(&accuracy));
            report.written = false;
        }
        report.accuracy = Some(accuracy);
        Ok((report, staged))
    }

    /// No recipe keeps the limits: the best one, and the ways out.
    fn rejection(&self, accuracy: &AccuracyReport) -> Error {
        let run = self.run;
        let best = accuracy.best();
        let best = best.map(|best| format!("the best, {}, has {}", best.recipe, best.spelled(accuracy.metric)));
        let message = format!(
            "no recipe of {} that were tried keeps the limits: {}: {} is not written{}",
            accuracy.attempts.len(),
            best.unwrap_or_default(),
            shown(&run.outputs.named),
            run.about_report()
        );
        let auto = (!run.job.recipe.graph.auto).then(|| Remedy::setting("auto", "try other recipes with ‹auto›"));
        let wider = Remedy::setting("preset", "start from wider types, e.g. ‹preset› A16W8");
        let limit = Remedy::setting("max-drop", "allow more with ‹max-drop›");
        Error::new(ErrorKind::Unfit, message).with_remedies(auto.into_iter().chain([wider, limit]).collect())
    }
}

/// The types that layers get: more bits of weights where they have fewer than 8, then floats. Activations get no more bits, because most
/// runtimes have no kernels for these.
fn wider(recipe: &kvant_onnx::recipe::Recipe) -> Vec<Types> {
    let own = recipe.activation.and_then(|scheme| scheme.element.integer_bits());
    let keeps_activations = |types: &Types| match types {
        Types::Bits { activation, .. } => own.is_none_or(|own| *activation == own),
        _ => true,
    };
    candidates(recipe, None).into_iter().filter(keeps_activations).collect()
}

/// Returns whether an error is one of a recipe on a graph, and not of the system or the user.
fn is_of_recipe(error: &Error) -> bool {
    matches!(error.kind, ErrorKind::Invalid | ErrorKind::Unsupported | ErrorKind::Usage | ErrorKind::Unfit)
}

/// Passes on progress, and no notes: those on the first graph are those on all.
struct WithoutNotes<'a, 'e>(&'a Reporter<'e>);

impl Events for WithoutNotes<'_, '_> {
    fn event(&mut self, event: Event<'_>) {
        if !matches!(event, Event::Note(_) | Event::Warning(_) | Event::Detail(_) | Event::Resumed(_)) {
            self.0.event(event);
        }
    }

    fn spell(&self, setting: &str) -> String {
        self.0.spelled(&format!("‹{setting}›"))
    }
}
