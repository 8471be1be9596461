//! Measures which layers of a graph quantization hurts, and looks for a mix of types that is good enough.

use super::data::{GraphData, calibration, opened};
use super::{read, recipe};
use crate::error::{Error, ErrorKind};
use crate::events::{Reporter, Stage, Unit};
use crate::job::{Sensitivity, SourceKind};
use crate::paths::{not_a_page, refuse_existing};
use crate::settings::first_given;
use crate::text::shown;
use kvant_container::onnx::{ExternalData, GraphProto, ModelProto, Spill};
use kvant_container::{Remedy, write_file};
use kvant_onnx::sensitivity::{Bench, Candidate, Data, Outcome, Target, candidates, plan, search, sensitivities};
use kvant_onnx::settings::Settings;
use std::path::Path;

/// Measures the layers, looks for a mix if there is a target, and writes its recipe. What was measured is returned even where the
/// recipe cannot be written.
///
/// # Errors
/// Whatever is wrong with the graph, the recipe or the data; a target that no mix reaches.
pub fn run(analysis: &Sensitivity, reporter: &Reporter<'_>) -> Result<(Outcome, Result<(), Error>), Error> {
    let job = &analysis.job;
    refuse_unread(analysis)?;
    check_output(analysis, analysis.target.as_ref())?;
    let settings = recipe::settings(job)?;
    let tried = tried(analysis, &settings, analysis.target.as_ref())?;
    reporter.started();
    let source = read(&job.source.model)?;
    let outcome = measured(analysis, &source, &settings, tried, reporter)?;
    reporter.refuse_lost()?;
    let written = analysis.output.as_deref().map_or(Ok(()), |output| {
        refuse_existing(output, analysis.overwrite)?;
        write(output, settings, &outcome)
    });
    Ok((outcome, written))
}

/// Measures the layers of a graph, and looks for a mix.
fn measured(
    analysis: &Sensitivity,
    source: &ModelProto,
    settings: &Settings,
    tried: Vec<Candidate>,
    reporter: &Reporter<'_>,
) -> Result<Outcome, Error> {
    let job = &analysis.job;
    let cancelled = reporter.cancel().flag();
    let spill = Spill::new(&std::env::temp_dir())?.cancelled_by(cancelled.clone());
    let pool = job.limits.pool()?;
    let base = pool.install(|| plan(source.clone(), settings, Some(&spill)))?;
    reporter.notes(base.notices());
    let data = data(analysis, &base.model.graph, reporter)?;
    let options = job.limits.runtime();
    let work = || -> Result<Outcome, Error> {
        let progress = reporter.stage(Stage::Calibration, Unit::Samples);
        let mut bench =
            Bench::new(base, settings.clone(), tried, data, options, cancelled.clone(), &mut progress.watch())?;
        drop(progress);
        let progress = reporter.stage(Stage::Search, Unit::Models);
        let rows = sensitivities(&mut bench, analysis.leave_one_out, &mut progress.watch())?;
        drop(progress);
        let progress = reporter.stage(Stage::Search, Unit::Models);
        Ok(search(&mut bench, rows, analysis.target, &mut progress.watch())?)
    };
    pool.install(work)
}

/// Refuses what only a written graph has, so that no option is silently without effect.
fn refuse_unread(analysis: &Sensitivity) -> Result<(), Error> {
    let (sinks, quality) = (&analysis.job.sinks, &analysis.job.limits.quality);
    if let Some(report) = &sinks.report {
        return Err(not_a_page(report));
    }
    let given = [
        (sinks.graph_formats.len() > 1, "more than one ‹graph-format›"),
        (quality.min_sqnr.is_some(), "‹min-sqnr›"),
        (sinks.external_data != ExternalData::Auto, "‹external-data›"),
    ];
    match first_given(&given) {
        Some(option) => Err(Error::new(ErrorKind::Usage, format!("{option} has no meaning here: no graph is written"))
            .with_hint(Some("leave it out; ‹json› prints all that was measured".to_owned()))),
        None => Ok(()),
    }
}

/// Refuses a recipe that nothing would be written to.
fn check_output(analysis: &Sensitivity, target: Option<&Target>) -> Result<(), Error> {
    if let Some(output) = analysis.output.as_deref().filter(|output| SourceKind::of(output) == SourceKind::Graph) {
        let message = format!("{} is the name of an ONNX graph, and a recipe is TOML", shown(output));
        let failure = Error::new(ErrorKind::Usage, message);
        return Err(failure.with_hint(Some("end the name with .toml".to_owned())));
    }
    if analysis.output.is_none() || target.is_some() {
        return Ok(());
    }
    let failure = Error::new(ErrorKind::Usage, "a recipe can be written only for a target");
    Err(failure.with_hint(Some("name one: ‹target-sqnr›, ‹target-size› or ‹max-drop›".to_owned())))
}

/// The candidates, those that suit the recipe where none are given.
fn tried(analysis: &Sensitivity, settings: &Settings, target: Option<&Target>) -> Result<Vec<Candidate>, Error> {
    match analysis.candidates.is_empty() {
        true => Ok(candidates(&settings.resolve()?.recipe, target)),
        false => Ok(analysis.candidates.clone()),
    }
}

fn data(analysis: &Sensitivity, graph: &GraphProto, reporter: &Reporter<'_>) -> Result<Data, Error> {
    let (calibration, source) = calibration(&analysis.job, graph, reporter)?;
    let held_out = match &analysis.test {
        Some(path) => GraphData::of_path(path),
        None => {
            reporter.note("models are measured on the calibration data; ‹eval› names other samples");
            source
        }
    };
    let (job, count) = (&analysis.job, analysis.test_samples);
    let (held_out, labels) = match (&held_out, &analysis.labels) {
        (GraphData::Samples(source), Some(name)) => {
            (opened(source, &job.data, graph, Some(count), Some(name.clone()))?, Some(source.labels(name)?))
        }
        (GraphData::Text(_), Some(_)) => {
            let error = Error::new(ErrorKind::Usage, "‹labels› does not apply to text");
            return Err(error.with_remedies(vec![Remedy::leave_out("labels")]));
        }
        (held_out, None) => (held_out.first(job, graph, count)?, None),
    };
    Ok(Data { calibration, held_out, labels })
}

fn write(output: &Path, settings: Settings, outcome: &Outcome) -> Result<(), Error> {
    let mut mixed = settings;
    mixed.overrides.extend(outcome.overrides.iter().cloned());
    let written = write_file(output, mixed.to_toml().as_bytes());
    written.map_err(|cause| Error::io(format!("cannot write {}", shown(output)), &cause))
}
