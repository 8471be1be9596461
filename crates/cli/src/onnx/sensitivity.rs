//! `kvant sensitivity model.onnx`.

use super::data::{calibration, opened, runtime_of};
use super::{is_graph, read, recipe};
use crate::args::{ExternalWhen, SensitivityArgs, first_given};
use crate::escape::printable;
use crate::failure::{Failure, Kind};
use crate::outputs::refuse_existing;
use crate::printer::Printer;
use crate::progress::{Progress, Unit};
use crate::table::{Align, Table};
use crate::{interrupt, model, size};
use kvant_container::onnx::{GraphProto, Spill};
use kvant_container::write_file;
use kvant_onnx::data::Source;
use kvant_onnx::evaluation::Quality;
use kvant_onnx::sensitivity::{Bench, Candidate, Data, Outcome, Row, Target, candidates, plan, search, sensitivities};
use kvant_onnx::settings::Settings;
use std::path::Path;

/// Layers shown, the most sensitive first.
const SHOWN: usize = 30;

/// Measures the layers, looks for a mix if there is a target, and writes its recipe.
///
/// # Errors
/// Whatever is wrong with the graph, the recipe or the data; a target that no mix reaches.
pub fn run(args: &SensitivityArgs, printer: &Printer) -> Result<(), Failure> {
    refuse_unread(args)?;
    let target = target(args)?;
    check_output(args, target.as_ref())?;
    let settings = recipe::settings(&args.recipe)?;
    let tried = tried(args, &settings, target.as_ref())?;
    let cancelled = interrupt::flag();
    let spill = Spill::new(&std::env::temp_dir())?.cancelled_by(cancelled.clone());
    let source = read(&args.recipe.model)?;
    let pool = model::pool(&args.run)?;
    let base = pool.install(|| plan(source, &settings, Some(&spill)))?;
    base.notices().iter().for_each(|notice| printer.note(notice));
    let data = data(args, &base.model.graph, printer)?;
    let options = runtime_of(&args.recipe.onnx.engine, &args.run);
    let work = || -> Result<Outcome, Failure> {
        let progress = Progress::new(printer, Unit::Samples);
        let mut bench =
            Bench::new(base, settings.clone(), tried, data, options, cancelled.clone(), &mut progress.watch())?;
        drop(progress);
        let progress = Progress::new(printer, Unit::Models);
        let rows = sensitivities(&mut bench, args.leave_one_out, &mut progress.watch())?;
        drop(progress);
        let progress = Progress::new(printer, Unit::Models);
        Ok(search(&mut bench, rows, target, &mut progress.watch())?)
    };
    let outcome = pool.install(work)?;
    // What was measured is told even where the recipe cannot be written.
    let written = args.output.as_deref().map_or(Ok(()), |output| {
        refuse_existing(output, args.overwrite)?;
        write(output, settings, &outcome)
    });
    tell(&outcome, args.output.as_deref().filter(|_| written.is_ok()), printer)?;
    written
}

/// Refuses what only a written graph has, so that no option is silently without effect.
fn refuse_unread(args: &SensitivityArgs) -> Result<(), Failure> {
    let onnx = &args.recipe.onnx;
    let given = [
        (onnx.report.is_some(), "--report"),
        (onnx.min_sqnr.is_some(), "--min-sqnr"),
        (onnx.external_data != ExternalWhen::Auto, "--external-data"),
    ];
    match first_given(&given) {
        Some(option) => Err(Failure::new(Kind::Usage, format!("{option} has no meaning here: no graph is written"))
            .with_hint(Some("leave it out; --json prints all that was measured".to_owned()))),
        None => Ok(()),
    }
}

fn target(args: &SensitivityArgs) -> Result<Option<Target>, Failure> {
    if args.max_drop.is_some() && args.labels.is_none() {
        let failure = Failure::new(Kind::Usage, "--max-drop needs the classes of the held-out samples");
        return Err(failure.with_hint(Some("name their array in the data with --labels".to_owned())));
    }
    let drop = args.max_drop.map(Target::Drop);
    Ok(args.target_sqnr.map(Target::Sqnr).or(args.target_size.map(Target::Size)).or(drop))
}

/// Refuses a recipe that nothing would be written to.
fn check_output(args: &SensitivityArgs, target: Option<&Target>) -> Result<(), Failure> {
    if let Some(output) = args.output.as_deref().filter(|output| is_graph(output)) {
        let shown = printable(&output.to_string_lossy()).to_string();
        let failure = Failure::new(Kind::Usage, format!("{shown} is the name of an ONNX graph, and a recipe is TOML"));
        return Err(failure.with_hint(Some("end the name with .toml".to_owned())));
    }
    if args.output.is_none() || target.is_some() {
        return Ok(());
    }
    let failure = Failure::new(Kind::Usage, "a recipe is written for a target only");
    Err(failure.with_hint(Some("name one: --target-sqnr, --target-size or --max-drop".to_owned())))
}

/// The candidates, those that suit the recipe where none are given.
fn tried(args: &SensitivityArgs, settings: &Settings, target: Option<&Target>) -> Result<Vec<Candidate>, Failure> {
    match args.candidates.is_empty() {
        true => Ok(candidates(&settings.resolve()?.recipe, target)),
        false => Ok(args.candidates.clone()),
    }
}

fn data(args: &SensitivityArgs, graph: &GraphProto, printer: &Printer) -> Result<Data, Failure> {
    let (calibration, source) = calibration(&args.recipe, graph, printer)?;
    let held_out = match &args.test {
        Some(path) => Source::Path(path.clone()),
        None => {
            printer.note("models are measured on the calibration data; --test names samples that no range comes from");
            source
        }
    };
    let labels = args.labels.as_deref().map(|name| held_out.labels(name)).transpose()?;
    let held_out = opened(&held_out, &args.recipe, graph, Some(args.test_samples), args.labels.clone())?;
    Ok(Data { calibration, held_out, labels })
}

fn write(output: &Path, settings: Settings, outcome: &Outcome) -> Result<(), Failure> {
    let mut mixed = settings;
    mixed.overrides.extend(outcome.overrides.iter().cloned());
    let shown = printable(&output.to_string_lossy()).to_string();
    let written = write_file(output, mixed.to_toml().as_bytes());
    written.map_err(|cause| Failure::system(format!("cannot write {shown}: {cause}")))
}

fn tell(outcome: &Outcome, output: Option<&Path>, printer: &Printer) -> Result<(), Failure> {
    if printer.is_json() {
        return printer.json("sensitivity", outcome);
    }
    printer.data(&text(outcome, printer.width()))?;
    let [float, _, bytes] = outcome.bytes;
    let quality = outcome.mix.as_ref().map_or_else(String::new, |mix| {
        let raised = outcome.layers.iter().filter(|row| row.chosen.is_some()).count();
        let all = outcome.layers.len();
        format!("; {raised} of {all} layers raised: {}, {}", spelled(mix), size::ratio(float, bytes))
    });
    let written = output.map_or_else(String::new, |path| format!("; {}", printable(&path.to_string_lossy())));
    printer.summary(&format!(
        "the recipe: {}, constants {} to {}{quality}; {} models measured{written}",
        spelled(&outcome.recipe),
        size::bytes(float),
        size::bytes(outcome.bytes[1]),
        outcome.trials
    ));
    Ok(())
}

fn spelled(quality: &Quality) -> String {
    let percent = |share: f64| format!("{:.2} %", share * 100.0);
    let top1 = quality.top1.zip(quality.reference_top1);
    let accuracy = top1.map_or_else(String::new, |(q, f)| format!(", top-1 {} (float {})", percent(q), percent(f)));
    format!("{:.2} dB{accuracy}", quality.sqnr_db)
}

fn text(outcome: &Outcome, width: usize) -> String {
    let without = outcome.layers.iter().any(|row| row.without.is_some());
    let count = outcome.layers.first().map_or(0, |row| row.alone.len());
    // A candidate of floats has no column: nothing is lost with it.
    let names = outcome.candidates.iter().filter(|name| *name != "float").take(count);
    let columns: Vec<String> = names.map(|name| format!("{name}, dB")).collect();
    let mut head = vec![("layer", Align::Left), ("operator", Align::Left)];
    head.extend(columns.iter().map(|name| (name.as_str(), Align::Right)));
    if without {
        head.push(("all but it, dB", Align::Right));
    }
    head.push(("chosen", Align::Left));
    let mut table = Table::new(&head);
    let mut rows: Vec<&Row> = outcome.layers.iter().collect();
    rows.sort_by(|a, b| sqnr(a).total_cmp(&sqnr(b)));
    for row in rows.iter().take(SHOWN) {
        let measured = row.alone.iter().chain(&row.without).map(|quality| format!("{:.2}", quality.sqnr_db));
        let named = [printable(&row.layer).to_string(), printable(&row.op).to_string()];
        let chosen = row.chosen.clone().unwrap_or_default();
        table.push(named.into_iter().chain(measured).chain([chosen]));
    }
    let rest = rows.len().saturating_sub(SHOWN);
    let more = if rest > 0 {
        format!("\n\n{rest} further layers are less sensitive; --json has them all")
    } else {
        String::new()
    };
    format!("SQNR with one layer alone quantized\n\n{}{more}", table.render(width))
}

fn sqnr(row: &Row) -> f64 {
    row.alone.first().map_or(f64::INFINITY, |quality| quality.sqnr_db)
}
