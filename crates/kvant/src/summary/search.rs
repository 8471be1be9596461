//! Searches in words.

use super::Section;
use crate::search::{ComparedMix, GroupOption, GroupSensitivity, SearchReport};
use crate::text::{Align, Table, size};
use kvant_quant::counts::{number, number_are};

/// Groups shown, the most sensitive first.
const SHOWN: usize = 20;

impl SearchReport {
    /// The groups and the mixes in sections.
    pub fn sections(&self) -> Vec<Section> {
        let mut sections = vec![
            Section::Text(format!("KL divergence in nats with one group alone quantized, {}", self.method.name())),
            Section::Table(groups(self)),
        ];
        let rest = self.groups.len().saturating_sub(SHOWN);
        if rest > 0 {
            sections
                .push(Section::Text(format!("{} less sensitive; ‹json› lists all", number_are(rest, "further group"))));
        }
        sections.push(Section::Table(mixes(self)));
        sections
    }

    /// The mix that was found, in a line.
    pub fn summary(&self) -> String {
        let measured =
            format!("{} in {} options {}", number(self.groups.len(), "group"), self.options.len(), self.method.name());
        let found = self.chosen.as_ref().and_then(|mix| Some((mix, mix.measured?)));
        let Some((chosen, found)) = found else {
            return measured;
        };
        let recipe = self.recipe.as_deref().map_or_else(String::new, |path| format!("; {}", crate::text::shown(path)));
        format!(
            "{}, {:.3} bits per weight: KL divergence {:.5}, same top token {:.2} %; {measured}{recipe}",
            size::bytes(chosen.bytes),
            chosen.bits_per_weight,
            found.kl,
            100.0 * found.top1_agreement.unwrap_or_default()
        )
    }
}

/// The most sensitive groups.
fn groups(report: &SearchReport) -> Table {
    let columns: Vec<String> = report.options.iter().filter(|name| *name != "float").cloned().collect();
    let mut head = vec![("group", Align::Left), ("weights", Align::Right)];
    head.extend(columns.iter().map(|name| (name.as_str(), Align::Right)));
    head.push(("chosen", Align::Left));
    let mut table = Table::new(&head);
    let mut all: Vec<&GroupSensitivity> = report.groups.iter().collect();
    let worst = |group: &GroupSensitivity| group.choices.iter().map(|choice| choice.measured.kl).fold(0.0, f64::max);
    all.sort_by(|a, b| worst(b).total_cmp(&worst(a)));
    for group in all.into_iter().take(SHOWN) {
        let kl = |option: &String| {
            let choice = group.choices.iter().find(|choice| choice.options.contains(option));
            // The type that takes the place of one whose blocks do not fit.
            let name = |choice: &GroupOption| match report.format != "gguf" || choice.name == *option {
                true => String::new(),
                false => format!(" ({})", choice.name),
            };
            choice.map_or_else(String::new, |choice| format!("{:.6}{}", choice.measured.kl, name(choice)))
        };
        let cells = [group.name.clone(), group.weights.to_string()];
        let kls = columns.iter().map(kl);
        table.push(cells.into_iter().chain(kls).chain([group.chosen.clone().unwrap_or_default()]));
    }
    table
}

/// Mixes by rising size: those of the front, and those that were measured.
fn mixes(report: &SearchReport) -> Table {
    let titles = ["size", "bits per weight", "KL predicted", "KL measured", "same top token"];
    let head: Vec<(&str, Align)> =
        std::iter::once(("mix", Align::Left)).chain(titles.map(|title| (title, Align::Right))).collect();
    let mut table = Table::new(&head);
    let mut all: Vec<&ComparedMix> = report.front.iter().chain(&report.compared).chain(&report.chosen).collect();
    all.sort_by_key(|mix| mix.bytes);
    for mix in all {
        let found = mix.measured;
        table.push([
            mix.name.clone(),
            size::bytes(mix.bytes),
            format!("{:.3}", mix.bits_per_weight),
            format!("{:.6}", mix.predicted_kl),
            found.map_or_else(String::new, |found| {
                let error = found.kl_error.map_or_else(String::new, |error| format!(" ± {error:.6}"));
                format!("{:.6}{error}", found.kl)
            }),
            found
                .and_then(|found| found.top1_agreement)
                .map_or_else(String::new, |share| format!("{:.2} %", 100.0 * share)),
        ]);
    }
    table
}
