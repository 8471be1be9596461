//! Evaluations of ONNX graphs in words.

use super::{Remark, Section};
use crate::text::{Align, Table, counts};
use kvant_onnx::evaluation::{InferenceTime, Report, TensorReport, Timing};
use kvant_onnx::verify::SATURATION_WAYS;
use kvant_quant::counts::number_are;

/// Tensors shown of all there are, the most damaged first.
const SHOWN: usize = 20;

/// The errors of outputs and of the most damaged tensors.
pub fn sections(report: &Report) -> Vec<Section> {
    let mut sections = vec![Section::Table(table("output", &report.outputs))];
    let mut text = |line: String| sections.push(Section::Text(line));
    let share = |name: &str, value: Option<f64>| value.map(|v| format!("{name} {:.2} %", v * 100.0));
    let classes = [
        share("top-1", report.top1),
        share("float top-1", report.reference_top1),
        share("top-5", report.top5),
        share("same top class", report.top1_agreement),
        share("float's class in the top 5", report.top5_agreement),
    ];
    let classes: Vec<String> = classes.into_iter().flatten().collect();
    if !classes.is_empty() {
        text(classes.join(", "));
    }
    if !report.tensors.is_empty() {
        let shown = &report.tensors[..report.tensors.len().min(SHOWN)];
        sections.push(Section::Table(table("tensor", shown)));
    }
    let mut text = |line: String| sections.push(Section::Text(line));
    if report.tensors.len() > SHOWN {
        let further = number_are(report.tensors.len() - SHOWN, "further tensor");
        text(format!("{further} less damaged; ‹json› lists all"));
    }
    if report.scaled_tensors > 0 {
        text(format!(
            "{} left out: an algorithm, such as equalization, has scaled the channels",
            number_are(report.scaled_tensors, "tensor")
        ));
    }
    if let Some(problem) = &report.optimized_fails {
        text(format!("onnxruntime does not run it with its graph optimizations: {problem}"));
    }
    text(format!("{} on {}", counts::number(report.samples, "sample"), report.engine));
    sections.extend(report.time.iter().flat_map(time_sections));
    sections
}

/// How long inferences take.
pub fn time_sections(time: &Timing) -> Vec<Section> {
    let right = |title| (title, Align::Right);
    let mut table =
        Table::new(&[("time", Align::Left), right("median ms"), right("quartiles ms"), right("of reference")]);
    let row = |name: &str, time: &InferenceTime, ratio: Option<f64>| {
        let InferenceTime { median_ms, q1_ms, q3_ms } = time;
        let ratio = ratio.map_or_else(String::new, |ratio| format!("{ratio:.2}"));
        vec![name.to_owned(), format!("{median_ms:.3}"), format!("{q1_ms:.3} to {q3_ms:.3}"), ratio]
    };
    table.push(row("model", &time.model, time.ratio));
    if let Some(reference) = &time.reference {
        table.push(row("reference", reference, None));
    }
    let text = format!(
        "{} each on {}, {}, {}",
        counts::number(time.runs, "inference"),
        time.engine,
        counts::number(time.threads, "thread"),
        if time.made_up_inputs { "made-up inputs" } else { "inputs of the data" }
    );
    vec![Section::Table(table), Section::Text(text)]
}

/// A quantized graph that gains no time.
pub fn slowness(time: &Timing) -> Option<Remark> {
    let ratio = time.ratio.filter(|_| time.is_slower())?;
    Some(Remark::Warning(format!(
        "the graph is slower than its reference: {ratio:.2} times its time in {} on this processor; operators that the runtime \
         has no integer kernels for compute in float between Q/DQ pairs, and `kvant verify` names them",
        time.engine
    )))
}

/// Outputs that onnxruntime's integer kernels compute worse on this processor than their codes allow.
pub fn remarks(report: &Report) -> Vec<Remark> {
    let note = |output: &TensorReport| {
        let better = output.much_better_db()?;
        let TensorReport { name, sqnr_db, .. } = output;
        Some(Remark::Note(format!(
            "output `{name}` has {sqnr_db:.1} dB with onnxruntime's integer kernels on this processor and {better:.1} dB without \
             them; if `kvant verify` reports that sums can saturate, {SATURATION_WAYS}"
        )))
    };
    report.outputs.iter().filter_map(note).chain(report.time.iter().filter_map(slowness)).collect()
}

fn table(title: &'static str, rows: &[TensorReport]) -> Table {
    let unoptimized = rows.iter().any(|row| row.unoptimized_sqnr_db.is_some());
    let mut columns = vec![
        (title, Align::Left),
        ("made by", Align::Left),
        ("SQNR dB", Align::Right),
        ("cosine", Align::Right),
        ("largest error", Align::Right),
    ];
    if unoptimized {
        columns.push(("unoptimized dB", Align::Right));
    }
    let mut table = Table::new(&columns);
    for row in rows {
        let mut cells = vec![
            row.name.clone(),
            row.op.clone(),
            format!("{:.2}", row.sqnr_db),
            format!("{:.6}", row.cosine),
            format!("{:.3e}", row.max_error),
        ];
        if unoptimized {
            cells.push(row.unoptimized_sqnr_db.map_or_else(String::new, |db| format!("{db:.2}")));
        }
        table.push(cells);
    }
    table
}
