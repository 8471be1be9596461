//! Sensitivity analyses in words.

use super::Section;
use crate::sensitivity::SensitivityReport;
use crate::text::{Align, Table, size};
use kvant_onnx::evaluation::Quality;
use kvant_onnx::sensitivity::{Outcome, Row};
use kvant_quant::counts::{number, number_are};

/// Layers shown, the most sensitive first.
const SHOWN: usize = 30;

impl SensitivityReport {
    /// The layers in sections.
    pub fn sections(&self) -> Vec<Section> {
        let mut sections = vec![Section::Text("SQNR with one layer alone quantized".to_owned())];
        sections.push(Section::Table(table(&self.outcome)));
        let rest = self.outcome.layers.len().saturating_sub(SHOWN);
        if rest > 0 {
            sections
                .push(Section::Text(format!("{} less sensitive; ‹json› lists all", number_are(rest, "further layer"))));
        }
        sections
    }

    /// The recipe, and the mix that was found, in a line.
    pub fn summary(&self) -> String {
        let outcome = &self.outcome;
        let [float, recipe, bytes] = outcome.bytes;
        let quality = outcome.mix.as_ref().map_or_else(String::new, |mix| {
            let raised = outcome.layers.iter().filter(|row| row.chosen.is_some()).count();
            let all = outcome.layers.len();
            format!("; {raised} of {} raised: {}, {}", number(all, "layer"), spelled(mix), size::ratio(float, bytes))
        });
        format!(
            "the recipe: {}, constants {} to {}{quality}; {} measured",
            spelled(&outcome.recipe),
            size::bytes(float),
            size::bytes(recipe),
            number(outcome.trials, "model")
        )
    }
}

fn spelled(quality: &Quality) -> String {
    let percent = |share: f64| format!("{:.2} %", share * 100.0);
    let top1 = quality.top1.zip(quality.reference_top1);
    let accuracy = top1.map_or_else(String::new, |(q, f)| format!(", top-1 {} (float {})", percent(q), percent(f)));
    format!("{:.2} dB{accuracy}", quality.sqnr_db)
}

/// The most sensitive layers.
fn table(outcome: &Outcome) -> Table {
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
        let named = [row.layer.clone(), row.op.clone()];
        let chosen = row.chosen.clone().unwrap_or_default();
        table.push(named.into_iter().chain(measured).chain([chosen]));
    }
    table
}

fn sqnr(row: &Row) -> f64 {
    row.alone.first().map_or(f64::INFINITY, |quality| quality.sqnr_db)
}
