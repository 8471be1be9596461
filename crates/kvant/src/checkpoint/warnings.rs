//! Warnings about a result: of calibrated layers, and of verification.

use super::outputs::Delivered;
use kvant_checkpoint::blockwise::{BlockwiseReport, LinkReport};
use kvant_checkpoint::plan::{Plan, PlannedLayer};
use kvant_quant::counts::number;
use std::collections::{BTreeMap, BTreeSet};

/// Warnings about layers.
pub fn warnings(plan: &Plan, report: &BlockwiseReport) -> Vec<String> {
    [worse(report), starved(report), uncertain(&smoothed(plan, report))].into_iter().flatten().collect()
}

/// What verification warned of in the outputs before they got their names, once for outputs of one source that share it.
pub fn of_verification(delivered: &Delivered) -> Vec<String> {
    let mut warnings = Vec::new();
    for found in delivered.all().flat_map(|made| &made.warnings) {
        let warning = format!("{}: {}", found.place, found.reason);
        if !warnings.contains(&warning) {
            warnings.push(warning);
        }
    }
    warnings
}

/// Calibration tokens for each input below which static scales of smoothed inputs are uncertain. Measured on nano_llama with int8
/// and 512 tokens for layers of 128 to 384 inputs: the KL divergence of SmoothQuant was 0.0040, that of rounding to nearest 0.0014.
const ENOUGH: u64 = 5;

/// A layer whose inputs were divided by scales, and quantized with static ones.
struct Smoothed {
    layer: String,
    tokens: u64,
    inputs: usize,
}

/// The layers with static scales of inputs whose channels SmoothQuant or AutoSmoothQuant has scaled.
fn smoothed(plan: &Plan, report: &BlockwiseReport) -> Vec<Smoothed> {
    let is_smoothed = |link: &&LinkReport| link.largest_scale.is_some() && link.transform.contains("smooth");
    let links = report.links.iter().filter(is_smoothed);
    let scaled: BTreeSet<&str> = links.flat_map(|link| &link.into).map(String::as_str).collect();
    let is_static = |layer: &&PlannedLayer| {
        layer.scheme.input.is_some_and(|input| input.needs_calibration()) && scaled.contains(layer.module.as_str())
    };
    let tokens: BTreeMap<&str, u64> = report.layers.iter().map(|layer| (layer.layer.as_str(), layer.tokens)).collect();
    let of_layer = |layer: &PlannedLayer| {
        let tokens = *tokens.get(layer.name.as_str())?;
        Some(Smoothed { layer: layer.name.clone(), tokens, inputs: layer.columns })
    };
    plan.layers().iter().filter(is_static).filter_map(of_layer).collect()
}

/// The warning that static scales after smoothing rest on few tokens. Layer losses are measured with float inputs, which do not show it.
fn uncertain(smoothed: &[Smoothed]) -> Option<String> {
    let few: Vec<&Smoothed> = smoothed.iter().filter(|layer| layer.tokens < ENOUGH * layer.inputs as u64).collect();
    let least = few.iter().min_by_key(|layer| layer.tokens / layer.inputs.max(1) as u64)?;
    Some(format!(
        "the static input scales of {} smoothed layers rest on fewer than {ENOUGH} calibration tokens for each input, `{}` on {} for \
         {}: the result may be worse than rounding to nearest, which the losses of layers do not show; give more calibration data, \
         compare with `kvant eval`, or set a limit with ‹max-kl›",
        few.len(),
        least.layer,
        least.tokens,
        least.inputs
    ))
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
        "{count} of {} lose more than they would rounded to nearest on {on}, `{}` the most: {share:.3} times; more data or other \
         settings may help",
        number(layers, "layer"),
        most.layer
    ))
}

/// Layers with too little data.
fn starved(report: &BlockwiseReport) -> Option<String> {
    let (first, count) = (report.starved.first()?, report.starved.len());
    let mut treatments: BTreeMap<&str, usize> = BTreeMap::new();
    report.starved.iter().for_each(|layer| *treatments.entry(&layer.treatment).or_default() += 1);
    let treatments: Vec<String> = treatments.iter().map(|(treatment, count)| format!("{count} {treatment}")).collect();
    Some(format!(
        "{count} of {} saw fewer calibration tokens than they have inputs, `{}` {} for {}: {}; give more calibration data",
        number(report.layers.len(), "layer"),
        first.layer,
        first.tokens,
        first.inputs,
        treatments.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvant_checkpoint::blockwise::{InsufficientCalibration, LayerReport};

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
    fn layers_worse_than_rtn_are_counted() {
        let layers = vec![layer(0, 1.0), layer(1, 6.0), layer(2, 12.0)];
        let warning = worse(&BlockwiseReport { layers, ..BlockwiseReport::default() }).unwrap();
        let expected =
            "2 of 3 layers lose more than they would rounded to nearest on calibration data, `model.layers.2.fc`";
        assert!(warning.starts_with(expected), "{warning}");
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
        assert_eq!(super::starved(&report).unwrap(), expected);
    }

    #[test]
    fn smoothed_layers_with_few_tokens_are_named() {
        let of = |tokens| {
            let layer = |layer: &str, tokens| Smoothed { layer: layer.to_owned(), tokens, inputs: 100 };
            uncertain(&[layer("a", 500), layer("b", tokens), layer("c", 480)])
        };
        let told = of(150).unwrap();
        assert!(told.contains("of 2 smoothed layers") && told.contains("`b` on 150 for 100"), "{told}");
        assert!(of(500).unwrap().contains("`c` on 480"));
        assert!(uncertain(&[]).is_none());
    }
}
