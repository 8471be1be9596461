//! Searching for a mix of schemes: how much each option of each group of layers costs, which mix is best for a target, and whether it is
//! as good as predicted.
//!
//! 1. `setup`: the options, the format that holds them together, the groups; whatever no mix can reach is refused here.
//! 2. `measured`: the divergence of the model with one group in one option, for all of them; kept in a file (`kept`).
//! 3. `compared`: whole mixes, measured: every option everywhere, and the simple heuristic.
//! 4. `chosen`: the mix for the target by predicted loss, measured and corrected.

mod chosen;
mod compared;
mod kept;
mod measured;
mod prediction;
mod report;
mod setup;

pub use report::{ComparedMix, GroupOption, GroupSensitivity, MeasuredMix, SearchReport};

use crate::calibration::{self, Calibration};
use crate::cancel::CancelToken;
use crate::ending::{Stopped, concluded};
use crate::error::{Error, ErrorKind};
use crate::events::{Events, Reporter};
use crate::job::{MixTarget, Search, SourceKind};
use crate::page;
use crate::paths::{self, FileKind, Paths};
use crate::quality;
use crate::text::shown;
use kept::KeptFile;
use kvant_checkpoint::sensitivity::Mixture;
use kvant_container::unfinished::Room;
use kvant_container::{Remedy, write_file};
use kvant_forward::forward::Decoder;
use measured::Measuring;
use std::path::{Path, PathBuf};

impl Search {
    /// Measures the options, finds the mix for the target, measures it, and writes its recipe; then runs the job that is to use it, if any, whose
    /// error is in the report.
    ///
    /// # Errors
    /// Graphs and pipelines; options that no format or not the loader holds together; a target that no mix reaches; missing data; files in
    /// the way. What was measured before an error is kept, so that the same request resumes.
    pub fn run(&self, events: &mut dyn Events, cancel: &CancelToken) -> Result<SearchReport, Error> {
        let stopped = || match self.kept_path() {
            Some(path) if path.exists() => Stopped::Resumes,
            _ => Stopped::StartsOver,
        };
        let report = concluded(stopped, || {
            let report = self.carry_out(&Reporter::new(events, cancel))?;
            let about = [
                ("model", shown(&self.job.source.model).to_string()),
                ("target", self.target.as_ref().map_or_else(String::new, ToString::to_string)),
            ];
            page::write(self.job.sinks.page.as_deref(), &self.job.source.model, "search", &about, || report.to_json())?;
            Ok(report)
        })?;
        let Some(job) = &self.then else { return Ok(report) };
        let quantized = job.run(events, cancel);
        Ok(SearchReport { quantized: Some(quantized.map(Box::new)), ..report })
    }

    fn carry_out(&self, reporter: &Reporter<'_>) -> Result<SearchReport, Error> {
        self.check()?;
        let job = &self.job;
        let checkpoint = job.source.open_for(setup::format_of_source(self)?, None)?;
        let decoder = Decoder::open(&checkpoint)?;
        calibration::check_for(&checkpoint, job, decoder.longest())?;
        let set_up = setup::set_up(self, &checkpoint, &decoder)?;
        if let Some(problem) = &set_up.unloadable {
            match self.then.as_ref().is_some_and(|then| !then.sinks.commit.no_verify) {
                // It would be refused after the search.
                true => return Err(problem.clone()),
                false => reporter.warning(&problem.message),
            }
        }
        let (mixture, budget) = (&set_up.mixture, set_up.budget);
        let target = self.output.clone().unwrap_or_else(|| PathBuf::from("recipe.toml"));
        let loaded = Calibration { job, checkpoint: &checkpoint, target: &target }.read_text(&decoder, 0, reporter)?;
        let windows = match &self.eval {
            Some(text) => Some(quality::text_windows(job, &decoder, text, reporter)?),
            None => None,
        };
        let key = mixture.key(&loaded.key(job.data.precision.name()));
        let kept = KeptFile::open(self.kept_path(), &key, job.sinks.commit.overwrite)?;
        reporter.started();
        let mut measuring = Measuring {
            search: self,
            mixture,
            sequences: loaded.sequences(),
            windows: windows.as_deref(),
            method: set_up.method,
            kept,
            reporter,
        };
        let single = measuring.singles()?;
        let compared = compared::compared(&mut measuring)?;
        let chosen = chosen::chosen(&mut measuring, &single, &compared, (budget, set_up.other_bytes))?;
        reporter.refuse_lost()?;
        let recipe = self.write_recipe(mixture, chosen.as_ref())?;
        calibration::clear_away(&target)?;
        Ok(report::report(&measuring, &set_up, &single, &compared, chosen, recipe))
    }

    /// The file of sensitivities.
    fn kept_path(&self) -> Option<PathBuf> {
        let beside = |output: &PathBuf| output.with_extension("sensitivities.json");
        self.sensitivities.clone().or_else(|| self.output.as_ref().map(beside))
    }

    /// Refuses what the request alone shows to be wrong.
    fn check(&self) -> Result<(), Error> {
        let job = &self.job;
        let kept = self.kept_path();
        let mut paths = Paths::new(job.sinks.commit.overwrite, true);
        paths.reads_job(job);
        paths.reads("the evaluation text", self.eval.as_deref());
        paths.writes_file("‹output›", self.output.as_deref(), FileKind::Recipe);
        paths.writes_file("‹sensitivities›", kept.as_deref(), FileKind::Sensitivities);
        paths.writes_page("‹report›", job.sinks.page.as_deref())?;
        paths.writes_model(self.then.as_ref().and_then(|then| then.sinks.output.as_deref()));
        let eval = self.eval.iter().map(|path| ("‹eval›", path.as_path()));
        paths::refuse_missing(paths::named(job).chain(eval))?;
        self.refuse_kind()?;
        paths.check()?;
        if let Some(text) = &self.eval {
            paths::refuse_directory("‹eval›", text)?;
        }
        if job.data.files.is_empty() {
            let failure = Error::new(ErrorKind::Usage, "a search measures the model on text, and none is given");
            return Err(failure.with_remedies(vec![Remedy::GiveCalibrationData]));
        }
        self.check_output()?;
        self.check_target()?;
        let mut room = Room::default();
        self.output.iter().chain(&kept).for_each(|file| room.report(file));
        Ok(room.check()?)
    }

    /// Refuses models that are no decoders of checkpoints or GGUF files.
    fn refuse_kind(&self) -> Result<(), Error> {
        let (message, hint) = match self.job.source.kind() {
            SourceKind::Checkpoint | SourceKind::Gguf => return Ok(()),
            SourceKind::Graph => (
                "mixes of ONNX graphs are found by another command",
                "use `kvant sensitivity`, with ‹target-size›, ‹target-sqnr› or ‹max-drop›",
            ),
            SourceKind::Pipeline => (
                "a diffusers pipeline predicts no text, on which mixes are measured",
                "choose schemes of components with ‹component› of `kvant quantize`",
            ),
        };
        Err(Error::new(ErrorKind::Unsupported, message).with_hint(Some(hint.to_owned())))
    }

    fn check_output(&self) -> Result<(), Error> {
        let refused =
            |message: String, hint: &str| Err(Error::new(ErrorKind::Usage, message).with_hint(Some(hint.to_owned())));
        if let Some(output) = &self.output
            && SourceKind::named(output).is_some()
        {
            let message = format!("{} is the name of a model, and a recipe is TOML", shown(output));
            return refused(message, "end the name with .toml");
        }
        if self.output.is_some() && self.target.is_none() {
            let message = "a recipe can be written only for a target".to_owned();
            return refused(message, "name one: ‹target-size›, ‹target-bpw›, ‹max-kl› or ‹min-top1›");
        }
        match &self.then {
            Some(_) if self.output.is_none() => {
                refused("‹then› reads the recipe, and none is written".to_owned(), "name a recipe with ‹output›")
            }
            Some(then) => refuse_existing(then.sinks.output.as_deref(), then.sinks.commit.overwrite),
            None => Ok(()),
        }
    }

    /// Refuses targets that are no sizes or limits.
    fn check_target(&self) -> Result<(), Error> {
        let (is_wrong, setting, expected) = match self.target {
            Some(MixTarget::BitsPerWeight(bits)) => {
                (!(bits > 0.0 && bits.is_finite()), "‹target-bpw›", "a positive number")
            }
            Some(MixTarget::MaxKl(kl)) => (!(kl > 0.0 && kl.is_finite()), "‹max-kl›", "a positive number of nats"),
            Some(MixTarget::MinTop1(share)) => (!(share > 0.0 && share < 1.0), "‹min-top1›", "a share between 0 and 1"),
            Some(MixTarget::Size(_)) | None => return Ok(()),
        };
        match is_wrong {
            true => {
                let failure = Error::new(ErrorKind::Usage, format!("{setting} must be {expected}"));
                Err(failure.with_hint(Some("`kvant search -h` shows examples".to_owned())))
            }
            false => Ok(()),
        }
    }

    fn write_recipe(
        &self,
        mixture: &Mixture<'_>,
        chosen: Option<&chosen::ChosenMix>,
    ) -> Result<Option<PathBuf>, Error> {
        let (Some(output), Some(chosen)) = (&self.output, chosen) else { return Ok(None) };
        let text = mixture.recipe(&chosen.choices).to_toml();
        let failed = |cause| Error::system(format!("cannot write {}: {cause}", shown(output)));
        write_file(output, text.as_bytes()).map_err(failed)?;
        Ok(Some(output.clone()))
    }
}

/// Refuses an output of the job behind the search that is there already.
fn refuse_existing(output: Option<&Path>, overwrite: bool) -> Result<(), Error> {
    let Some(output) = output.filter(|output| !overwrite && output.exists()) else { return Ok(()) };
    let is_empty = std::fs::read_dir(output).is_ok_and(|mut entries| entries.next().is_none());
    if is_empty {
        return Ok(());
    }
    let failure = Error::new(ErrorKind::Invalid, format!("{} exists already", shown(output)));
    Err(failure.with_remedies(vec![Remedy::ChooseOutput, Remedy::Overwrite]))
}
