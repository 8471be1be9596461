//! The table at the end of a calibrated run: what became of each layer.

use crate::table::{Align, Table};
use kvant::text::printable;
use kvant_llm::blockwise::{BlockwiseReport, LayerReport};
use kvant_llm::calibration::data::HeldOut;

/// Layers that are shown; the rest is in the record.
const MOST: usize = 60;

/// The table, and what it says in all; nothing where no layer was worked on with data. Losses are squared errors of outputs,
/// for each token, in a table of this width; `share` is what is left of the loss of rounding to nearest. What speaks against the
/// result is among its warnings.
pub fn text(report: &BlockwiseReport, width: usize) -> Option<String> {
    let with_loss = report.layers.iter().any(|layer| layer.loss.is_some());
    let parts = [with_loss.then(|| table(&report.layers, width)), mean(report), unscaled(report)];
    let text = parts.into_iter().flatten().collect::<Vec<_>>().join("\n");
    (!text.is_empty()).then_some(text)
}

fn table(layers: &[LayerReport], width: usize) -> String {
    use Align::{Left, Right};
    let titles =
        [("layer", Left), ("tokens", Right), ("loss rtn", Right), ("loss", Right), ("share", Right), ("", Left)];
    let mut table = Table::new(&titles);
    layers.iter().take(MOST).for_each(|layer| table.push(row(layer)));
    let more = layers.len().saturating_sub(MOST);
    let rest = if more > 0 { format!("\nand {more} more: see calibration.json") } else { String::new() };
    format!("{}{rest}", table.render(width))
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

fn mean(report: &BlockwiseReport) -> Option<String> {
    let percent = 100.0 * report.mean_share()?;
    let mean = format!("{:<15}  {percent:.1} % of that of rounding to nearest, layer average", "loss");
    let on = match report.held_out {
        Some(HeldOut { samples, tokens }) => format!("{samples} held-out sequences, {tokens} tokens"),
        None => "the calibration data (no sequences left to hold out)".to_owned(),
    };
    Some(format!("{mean}\n{:<15}  {on}", "measured on"))
}

/// Links that a transform was asked for and not applied to.
fn unscaled(report: &BlockwiseReport) -> Option<String> {
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
    Some(format!("{:<15}  {}", "links unscaled", printable(&text)))
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

    fn plain(report: &BlockwiseReport) -> String {
        anstream::adapter::strip_str(&text(report, 100).unwrap()).to_string()
    }

    #[test]
    fn losses_are_for_each_token_and_what_is_not_known_is_a_dash() {
        let layers = vec![layer(0, Some(1.0)), LayerReport { held_out: Some(50), ..layer(1, None) }];
        let report = BlockwiseReport { layers, ..BlockwiseReport::default() };
        let expected = [
            "layer              tokens  loss rtn      loss  share",
            "model.layers.0.fc     100  4.000e-2  1.000e-2  0.250",
            "model.layers.1.fc     100         -         -      -",
            "loss             25.0 % of that of rounding to nearest, layer average",
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
    fn long_tables_end_in_where_the_rest_is_and_empty_ones_are_none() {
        let layers = (0..MOST + 7).map(|index| layer(index, Some(1.0))).collect();
        let report = BlockwiseReport { layers, ..BlockwiseReport::default() };
        assert!(plain(&report).contains("\nand 7 more: see calibration.json\n"));
        assert_eq!(plain(&report).lines().count(), 1 + MOST + 3);
        assert_eq!(text(&BlockwiseReport::default(), 100), None);
        let nearest = BlockwiseReport { layers: vec![layer(0, None)], ..BlockwiseReport::default() };
        assert_eq!(text(&nearest, 100), None);
    }
}
