//! What a user must know of a calibrated result.

use kvant_llm::blockwise::BlockwiseReport;
use std::collections::BTreeMap;

/// Warnings about layers.
pub fn warnings(report: &BlockwiseReport) -> Vec<String> {
    [worse(report), starved(report)].into_iter().flatten().collect()
}

/// Layers that an algorithm has made worse.
fn worse(report: &BlockwiseReport) -> Option<String> {
    let worse =
        || report.layers.iter().filter_map(|layer| Some((layer, layer.share()?))).filter(|(_, share)| *share > 1.0);
    let (most, share) = worse().max_by(|(_, a), (_, b)| a.total_cmp(b))?;
    let (count, layers, on) = (
        worse().count(),
        report.layers.len(),
        if most.held_out.is_some() { "held-out data" } else { "calibration data" },
    );
    Some(format!(
        "{count} of {layers} layers lose more than rounded to nearest on {on}, `{}` the most: {share:.3} times; more data or other \
         settings may help",
        most.layer
    ))
}

/// Layers of which the data say too little.
fn starved(report: &BlockwiseReport) -> Option<String> {
    let (first, count) = (report.starved.first()?, report.starved.len());
    let mut treatments: BTreeMap<&str, usize> = BTreeMap::new();
    report.starved.iter().for_each(|layer| *treatments.entry(&layer.treatment).or_default() += 1);
    let treatments: Vec<String> = treatments.iter().map(|(treatment, count)| format!("{count} {treatment}")).collect();
    Some(format!(
        "{count} of {} layers saw fewer calibration tokens than they have inputs, `{}` {} for {}: {}; give more calibration data",
        report.layers.len(),
        first.layer,
        first.tokens,
        first.inputs,
        treatments.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvant_llm::blockwise::{InsufficientCalibration, LayerReport};

    fn layer(index: usize, loss: f64) -> LayerReport {
        LayerReport {
            layer: format!("model.layers.{index}.fc"),
            algorithm: "gptq".to_owned(),
            tokens: 100,
            held_out: None,
            loss_rtn: Some(4.0),
            loss: Some(loss),
            damping: None,
            dead_columns: 0,
            note: None,
        }
    }

    #[test]
    fn layers_worse_than_rounding_to_nearest_are_counted() {
        let layers = vec![layer(0, 1.0), layer(1, 6.0), layer(2, 12.0)];
        let warnings = warnings(&BlockwiseReport { layers, ..BlockwiseReport::default() });
        let expected = "2 of 3 layers lose more than rounded to nearest on calibration data, `model.layers.2.fc`";
        assert!(warnings.len() == 1 && warnings[0].starts_with(expected), "{warnings:?}");
    }

    #[test]
    fn layers_with_few_tokens_are_counted_by_treatment() {
        let starved = |treatment: &str| InsufficientCalibration {
            layer: "e".to_owned(),
            tokens: 3,
            inputs: 128,
            treatment: treatment.to_owned(),
        };
        let report = BlockwiseReport {
            layers: vec![layer(0, 1.0), layer(1, 1.0), layer(2, 1.0)],
            starved: vec![starved("rounded to nearest"), starved("rounded as asked"), starved("rounded to nearest")],
            ..BlockwiseReport::default()
        };
        let expected = "3 of 3 layers saw fewer calibration tokens than they have inputs, `e` 3 for 128: 1 rounded as asked, \
                        2 rounded to nearest; give more calibration data";
        assert_eq!(warnings(&report), [expected]);
    }
}
