//! `kvant eval model.onnx --reference float.onnx`.

use super::{read, refuse_idle_library, runtime};
use crate::args::EvalArgs;
use crate::counts;
use crate::escape::printable;
use crate::failure::{Failure, Kind};
use crate::printer::Printer;
use crate::progress::{Progress, Unit};
use crate::table::{Align, Table};
use kvant_container::onnx::ModelProto;
use kvant_onnx::data::{DataOptions, Samples, Source, inputs};
use kvant_onnx::evaluation::{Report, TensorReport, evaluate, widened};
use kvant_onnx::graph::check;
use kvant_onnx::runtime::RuntimeOptions;
use kvant_onnx::verify::SATURATION_WAYS;

/// Tensors shown of all there are, the most damaged first.
const SHOWN: usize = 20;

/// Compares a quantized graph with its float graph.
///
/// # Errors
/// Whatever is wrong with the graphs or the data.
pub fn run(args: &EvalArgs, printer: &Printer) -> Result<(), Failure> {
    let reference = args.reference.as_deref().ok_or_else(no_reference)?;
    refuse_idle_library(&args.engine)?;
    let (quantized, reference) = (read(&args.model)?, read(reference)?);
    for graph in [&quantized, &reference] {
        check(graph).map_err(kvant_onnx::error::QuantizeError::from)?;
    }
    let reference = widened(reference).map_err(kvant_onnx::error::QuantizeError::from)?;
    let source: Source = args.data.to_string_lossy().parse().unwrap_or(Source::Path(args.data.clone()));
    let preprocessing = args.preprocess.as_deref().map(str::parse).transpose()?;
    let labels = args.labels.as_deref().map(|name| source.labels(name)).transpose()?;
    let options = DataOptions { num_samples: args.num_samples, preprocessing, seed: 0, labels: args.labels.clone() };
    let mut samples = source.open(&inputs(&reference.graph), &options)?;
    let runtime = runtime(&args.engine, &args.run);
    let report = compare(&reference, &quantized, &mut samples, labels.as_deref(), &runtime, printer)?;
    tell_worse(&report, printer);
    if printer.is_json() { printer.json("eval", &report) } else { printer.data(&text(&report, printer.width())) }
}

fn compare(
    reference: &ModelProto,
    quantized: &ModelProto,
    samples: &mut Samples,
    labels: Option<&[i64]>,
    runtime: &RuntimeOptions,
    printer: &Printer,
) -> Result<Report, Failure> {
    let all = samples.len() as u64;
    let progress = Progress::new(printer, Unit::Samples);
    let mut watch = progress.watch();
    watch(0, all);
    Ok(evaluate(reference, quantized, samples, labels, runtime, &mut |done| watch(done as u64, all))?)
}

fn no_reference() -> Failure {
    let failure = Failure::new(Kind::Usage, "an ONNX graph is measured against the float graph it was made from");
    failure.with_hint(Some("name that with --reference".to_owned()))
}

fn text(report: &Report, width: usize) -> String {
    let mut parts = vec![table("output", &report.outputs).render(width)];
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
        parts.push(classes.join(", "));
    }
    if !report.tensors.is_empty() {
        parts.push(table("tensor", &report.tensors[..report.tensors.len().min(SHOWN)]).render(width));
    }
    if report.tensors.len() > SHOWN {
        parts.push(format!("{} further tensors are less damaged; --json has them all", report.tensors.len() - SHOWN));
    }
    if report.scaled_tensors > 0 {
        parts.push(format!(
            "{} tensors are left out: an algorithm, such as equalization, has scaled their channels",
            report.scaled_tensors
        ));
    }
    parts.extend(
        report
            .optimized_fails
            .as_ref()
            .map(|problem| format!("onnxruntime does not run it with its graph optimizations: {}", printable(problem))),
    );
    parts.push(format!("{} on {}", counts::number(report.samples, "sample"), report.engine));
    parts.join("\n\n")
}

/// Outputs that onnxruntime's integer kernels compute worse on this processor than their codes allow.
fn tell_worse(report: &Report, printer: &Printer) {
    for output in &report.outputs {
        if let Some(better) = output.much_better_db() {
            let name = printable(&output.name);
            printer.note(&format!(
                "output `{name}` has {:.1} dB with onnxruntime's integer kernels on this processor and {better:.1} dB without them; \
                 if `kvant verify` reports that sums can saturate, {SATURATION_WAYS}",
                output.sqnr_db
            ));
        }
    }
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
