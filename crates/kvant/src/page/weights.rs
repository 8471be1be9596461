//! The weights of layers before and after quantization.

use super::histograms::{Histogram, Histograms, shares};
use super::{Object, Part};

/// A histogram of each layer, if the result has any.
pub(super) fn parts(object: &Object<'_>) -> Vec<Part> {
    let of_layer = |layer: Object<'_>| {
        let limit = layer.number("limit").unwrap_or(0.0);
        Histogram {
            name: layer.text("layer").to_owned(),
            note: String::new(),
            ends: [-limit, limit],
            area: shares(&layer.numbers("before")),
            line: shares(&layer.numbers("after")),
            covered: None,
            is_clipped: false,
        }
    };
    let rows: Vec<Histogram> = object.objects("weights").map(of_layer).collect();
    if rows.is_empty() {
        return Vec::new();
    }
    let title = "Shares of weights by value, before quantization (area) and after (line)".to_owned();
    vec![Part::Heading("Weights".to_owned()), Part::Histograms(Histograms { title, rows })]
}
