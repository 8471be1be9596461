//! The end of a calibrated run: the loss of each layer, and of all.

use super::Section;
use crate::text::counts::Line;
use crate::text::{Align, Table};
use kvant_checkpoint::blockwise::{BlockwiseReport, LayerReport, TuningReport};
use kvant_data::calibration::HeldOut;
use kvant_quant::counts::number;

/// Layers that are shown; the rest is in the record.
const MOST: usize = 60;

/// A table of losses, and their mean; empty if no layer was processed with data. A loss is the squared error of a layer's outputs per
/// token, and `share` is its ratio to the loss of rounding to nearest.
pub fn sections(report: &BlockwiseReport) -> Vec<Section> {
    let mut sections = Vec::new();
    if report.layers.iter().any(|layer| layer.loss.is_some()) {
        sections.push(Section::Table(table(&report.layers)));
    }
    let more = report.layers.len().saturating_sub(MOST);
    let rest = (more > 0 && !sections.is_empty()).then(|| ("further layers", format!("{more}: see calibration.json")));
    let lines: Vec<Line> =
        rest.into_iter().chain(mean(report)).chain(tuned(&report.tunings)).chain(unscaled(report)).collect();
    sections.extend((!lines.is_empty()).then_some(Section::Lines(lines)));
    sections
}

fn table(layers: &[LayerReport]) -> Table {
    use Align::{Left, Right};
    let titles =
        [("layer", Left), ("tokens", Right), ("loss rtn", Right), ("loss", Right), ("share", Right), ("", Left)];
    let mut table = Table::new(&titles);
    layers.iter().take(MOST).for_each(|layer| table.push(row(layer)));
    table
}

fn row(layer: &LayerReport) -> [String; 6] {
    let of_token = |loss: Option<f64>| {
        loss.map(|loss| format!("{:.3e}", loss / layer.held_out.unwrap_or(layer.tokens).max(1) as f64))
    };
    let share = layer.share().map(|share| format!("{share:.3}"));
    let none = || "-".to_owned();
    [
        layer.layer.clone(),
        layer.tokens.to_string(),
        of_token(layer.loss_rtn).unwrap_or_else(none),
        of_token(layer.loss).unwrap_or_else(none),
        share.unwrap_or_else(none),
        layer.note.clone().unwrap_or_default(),
    ]
}

fn mean(report: &BlockwiseReport) -> impl Iterator<Item = Line> + use<> {
    let mean = report.mean_share().map(|share| {
        let percent = 100.0 * share;
        ("loss", format!("{percent:.1} % of the loss of rounding to nearest, layer average"))
    });
    let on = match report.held_out {
        Some(HeldOut { samples, tokens }) => {
            format!("{}, {}", number(samples, "held-out sequence"), number(tokens, "token"))
        }
        None => "the calibration data (no sequences left to hold out)".to_owned(),
    };
    let on = mean.is_some().then_some(("measured on", on));
    mean.into_iter().chain(on)
}

/// What tunings gained, each in the geometric mean of the blocks.
fn tuned(reports: &[TuningReport]) -> Option<Line> {
    let mut names: Vec<&str> = Vec::new();
    for report in reports {
        if !names.contains(&report.tuning.as_str()) {
            names.push(&report.tuning);
        }
    }
    let gain = |name: &&str| {
        let own = reports.iter().filter(|report| report.tuning == *name && report.loss_after > 0.0);
        let logarithms: Vec<f64> = own.map(|report| (report.loss_after / report.loss_before).ln()).collect();
        let mean = logarithms.iter().sum::<f64>() / logarithms.len().max(1) as f64;
        format!("{name} lowered the loss of blocks by {:.1} %", 100.0 * (1.0 - mean.exp()))
    };
    let gains: Vec<String> = names.iter().map(gain).collect();
    (!gains.is_empty()).then(|| ("tuning", gains.join(", ")))
}

/// Smoothing pairs to which a requested transform was not applied.
fn unscaled(report: &BlockwiseReport) -> Option<Line> {
    let left = report.links.iter().filter(|link| link.largest_scale.is_none());
    let left = left.filter_map(|link| Some((link, link.note.as_ref()?)));
    let (first, reason) = left.clone().next()?;
    let text = format!(
        "{} of {}, the first by {} from `{}` in block {}: {reason}",
        left.count(),
        report.links.len(),
        first.transform,
        first.from,
        first.block
    );
    Some(("links unscaled", text))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layer(index: usize, loss: Option<f64>) -> LayerReport {
        LayerReport {
            layer: format!("model.layers.{index}.fc"),
            algorithm: "gptq".to_owned(),
            tokens: 100,
            held_out: None,
            loss_rtn: loss.map(|loss| 4.0 * loss),
            loss,
            damping: None,
            dead_columns: 0,
            note: None,
        }
    }

    #[test]
    fn tunings_are_summed_up_over_blocks() {
        let report = |block, tuning: &str, loss_after| TuningReport {
            block,
            tuning: tuning.to_owned(),
            tokens: 9,
            loss_before: 0.4,
            loss_after,
        };
        let reports = [report(0, "autoround", 0.2), report(0, "tune", 0.4), report(1, "autoround", 0.05)];
        let (title, text) = tuned(&reports).unwrap();
        let expected = "autoround lowered the loss of blocks by 75.0 %, tune lowered the loss of blocks by 0.0 %";
        assert_eq!((title, text.as_str()), ("tuning", expected));
        assert_eq!(tuned(&[]), None);
    }

    fn plain(report: &BlockwiseReport) -> String {
        crate::summary::render(&sections(report), 100, &str::to_owned)
    }

    #[test]
    fn losses_are_per_token_and_unknown_ones_are_dashes() {
        let layers = vec![layer(0, Some(1.0)), LayerReport { held_out: Some(50), ..layer(1, None) }];
        let report = BlockwiseReport { layers, ..BlockwiseReport::default() };
        let expected = [
            "layer              tokens  loss rtn      loss  share",
            "model.layers.0.fc     100  4.000e-2  1.000e-2  0.250",
            "model.layers.1.fc     100         -         -      -",
            "",
            "loss             25.0 % of the loss of rounding to nearest, layer average",
            "measured on      the calibration data (no sequences left to hold out)",
        ];
        assert_eq!(plain(&report), expected.join("\n"));
    }

    #[test]
    fn losses_are_measured_on_held_out_tokens() {
        let report = BlockwiseReport {
            layers: vec![LayerReport { held_out: Some(50), ..layer(0, Some(1.0)) }; 3],
            held_out: Some(HeldOut { samples: 2, tokens: 64 }),
            ..BlockwiseReport::default()
        };
        assert!(plain(&report).contains("100  8.000e-2  2.000e-2  0.250"), "{}", plain(&report));
        assert!(plain(&report).contains("measured on      2 held-out sequences, 64 tokens"), "{}", plain(&report));
    }

    #[test]
    fn long_layer_tables_name_their_file_and_empty_ones_are_omitted() {
        let layers = (0..MOST + 7).map(|index| layer(index, Some(1.0))).collect();
        let report = BlockwiseReport { layers, ..BlockwiseReport::default() };
        assert!(plain(&report).contains("\nfurther layers   7: see calibration.json\n"));
        assert_eq!(plain(&report).lines().count(), 1 + MOST + 4);
        assert_eq!(plain(&BlockwiseReport::default()), "");
        let nearest = BlockwiseReport { layers: vec![layer(0, None)], ..BlockwiseReport::default() };
        assert_eq!(plain(&nearest), "");
    }
}
