//! The table at the end of a calibrated run: what became of each layer.

use crate::escape::printable;
use crate::table::{Align, Table};
use kvant_llm::blockwise::{BlockwiseReport, LayerReport};

/// Layers that are shown; the rest is in the record.
const MOST: usize = 60;

/// The table, and what it says in all; nothing where no layer was worked on with data. Losses are squared errors of outputs,
/// for each token; `share` is what is left of the loss of rounding to nearest.
pub fn text(report: &BlockwiseReport) -> Option<String> {
    let with_loss = report.layers.iter().any(|layer| layer.loss.is_some());
    let parts =
        [with_loss.then(|| table(&report.layers)), mean(report), worse(report), starved(report), unscaled(report)];
    let text = parts.into_iter().flatten().collect::<Vec<_>>().join("\n");
    (!text.is_empty()).then_some(text)
}

fn table(layers: &[LayerReport]) -> String {
    use Align::{Left, Right};
    let titles =
        [("layer", Left), ("tokens", Right), ("loss rtn", Right), ("loss", Right), ("share", Right), ("", Left)];
    let mut table = Table::new(&titles);
    layers.iter().take(MOST).for_each(|layer| table.push(row(layer)));
    let more = layers.len().saturating_sub(MOST);
    let rest = if more > 0 { format!("\nand {more} more: see calibration.json") } else { String::new() };
    format!("{}{rest}", table.render())
}

fn row(layer: &LayerReport) -> [String; 6] {
    let of_token = |loss: Option<f64>| loss.map(|loss| format!("{:.3e}", loss / layer.tokens.max(1) as f64));
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
    Some(format!("{:<15}  {percent:.1} % of that of rounding to nearest, on average of the layers", "loss"))
}

/// Layers that an algorithm has made worse.
fn worse(report: &BlockwiseReport) -> Option<String> {
    let worse =
        || report.layers.iter().filter_map(|layer| Some((layer, layer.share()?))).filter(|(_, share)| *share > 1.0);
    let (most, share) = worse().max_by(|(_, a), (_, b)| a.total_cmp(b))?;
    let text = format!(
        "{}, `{}` the most, {share:.3} times, inputs in floats: more data or other settings may mend it",
        worse().count(),
        most.layer
    );
    Some(format!("{:<15}  {}", "worse than rtn", printable(&text)))
}

fn starved(report: &BlockwiseReport) -> Option<String> {
    let first = report.starved.first()?;
    let count = report.starved.len();
    let text = format!("{count}, the first `{}` with {} tokens: {}", first.layer, first.tokens, first.treatment);
    Some(format!("{:<15}  {}", "starved layers", printable(&text)))
}

/// Links that a transform was asked for and not applied to.
fn unscaled(report: &BlockwiseReport) -> Option<String> {
    let left = report.links.iter().filter_map(|link| Some((link, link.note.as_ref()?)));
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
    use kvant_llm::blockwise::Starved;

    fn layer(index: usize, loss: Option<f64>) -> LayerReport {
        LayerReport {
            layer: format!("model.layers.{index}.fc"),
            algorithm: "gptq".to_owned(),
            tokens: 100,
            loss_rtn: loss.map(|loss| 4.0 * loss),
            loss,
            damping: None,
            dead_columns: 0,
            note: None,
        }
    }

    fn plain(report: &BlockwiseReport) -> String {
        anstream::adapter::strip_str(&text(report).unwrap()).to_string()
    }

    #[test]
    fn losses_are_for_each_token_and_what_is_not_known_is_a_dash() {
        let starved = Starved { layer: "e".to_owned(), tokens: 3, treatment: "rounded to nearest".to_owned() };
        let layers = vec![layer(0, Some(1.0)), layer(1, None)];
        let report = BlockwiseReport { layers, links: vec![], starved: vec![starved] };
        let expected = [
            "layer              tokens  loss rtn      loss  share",
            "model.layers.0.fc     100  4.000e-2  1.000e-2  0.250",
            "model.layers.1.fc     100         -         -      -",
            "loss             25.0 % of that of rounding to nearest, on average of the layers",
            "starved layers   1, the first `e` with 3 tokens: rounded to nearest",
        ];
        assert_eq!(plain(&report), expected.join("\n"));
    }

    #[test]
    fn layers_that_became_worse_are_told() {
        let worse = |index, times| LayerReport { loss: Some(4.0 * times), ..layer(index, Some(1.0)) };
        let report = BlockwiseReport {
            layers: vec![layer(0, Some(1.0)), worse(1, 1.5), worse(2, 3.0)],
            ..BlockwiseReport::default()
        };
        assert!(plain(&report).contains("worse than rtn   2, `model.layers.2.fc` the most, 3.000 times"));
    }

    #[test]
    fn long_tables_end_in_where_the_rest_is_and_empty_ones_are_none() {
        let layers = (0..MOST + 7).map(|index| layer(index, Some(1.0))).collect();
        let report = BlockwiseReport { layers, ..BlockwiseReport::default() };
        assert!(plain(&report).contains("\nand 7 more: see calibration.json\n"));
        assert_eq!(plain(&report).lines().count(), 1 + MOST + 2);
        assert_eq!(text(&BlockwiseReport::default()), None);
        let nearest = BlockwiseReport { layers: vec![layer(0, None)], ..BlockwiseReport::default() };
        assert_eq!(text(&nearest), None);
    }
}
