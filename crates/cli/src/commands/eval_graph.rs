//! `kvant eval model.onnx --reference float.onnx`.

use crate::printer::Printer;
use crate::table::{Align, Table};
use kvant::text::{counts, printable};
use kvant_onnx::evaluation::{Report, TensorReport};
use kvant_onnx::verify::SATURATION_WAYS;

/// Tensors shown of all there are, the most damaged first.
const SHOWN: usize = 20;

pub fn text(report: &Report, width: usize) -> String {
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
pub fn warn_of_kernels(report: &Report, printer: &Printer) {
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
