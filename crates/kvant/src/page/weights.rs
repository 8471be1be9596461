//! The weights of layers before and after quantization.

use super::chart::{Histogram, Histograms};
use super::{Object, Part, number};
use serde_json::Value;

/// A histogram of each layer, if the result has any.
pub(super) fn parts(object: &Object<'_>) -> Vec<Part> {
    let shares = |counts: &[Value]| {
        let counts: Vec<f64> = counts.iter().map(|count| count.as_f64().unwrap_or(0.0)).collect();
        let sum = counts.iter().sum::<f64>().max(1.0);
        counts.into_iter().map(|count| count / sum).collect()
    };
    let of_layer = |layer: Object<'_>| Histogram {
        name: layer.text("layer").to_owned(),
        limit: number(layer.number("limit")),
        before: shares(layer.list("before")),
        after: shares(layer.list("after")),
    };
    let rows: Vec<Histogram> = object.objects("weights").map(of_layer).collect();
    if rows.is_empty() {
        return Vec::new();
    }
    let title = "Shares of weights by value, before quantization (area) and after (line)".to_owned();
    vec![Part::Heading("Weights".to_owned()), Part::Histograms(Histograms { title, rows })]
}
