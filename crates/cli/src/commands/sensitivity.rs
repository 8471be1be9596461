//! `kvant sensitivity`: which layers quantization hurts, and a mix of types that is good enough.

use crate::args::SensitivityArgs;
use crate::printer::Printer;
use crate::progress::Console;
use crate::table::{Align, Table};
use kvant::text::{printable, size};
use kvant::{Error, Sensitivity};
use kvant_onnx::evaluation::Quality;
use kvant_onnx::sensitivity::{Outcome, Row};
use std::path::Path;

/// Layers shown, the most sensitive first.
const SHOWN: usize = 30;

/// Measures a graph.
///
/// # Errors
/// A model that is no ONNX graph; whatever is wrong with the graph, the recipe or the data; a target that no mix reaches.
pub fn run(args: SensitivityArgs, printer: &Printer) -> Result<(), Error> {
    let analysis = Sensitivity::try_from(args)?;
    let mut console = Console::new(printer);
    let cancel = console.cancel();
    let report = analysis.run(&mut console, &cancel)?;
    drop(console);
    let written = analysis.output.as_deref().filter(|_| report.unwritten.is_none());
    show(&report.outcome, written, printer)?;
    report.unwritten.map_or(Ok(()), Err)
}

fn show(outcome: &Outcome, output: Option<&Path>, printer: &Printer) -> Result<(), Error> {
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
