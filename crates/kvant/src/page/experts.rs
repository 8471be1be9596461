//! How many calibration tokens each expert of a mixture got.

use super::chart::{Strip, Strips};
use super::{Object, Part, table};
use std::collections::BTreeMap;

/// What stands before the number of an expert in the names of layers.
const EXPERTS: &str = ".experts.";

/// The loads of the experts of a mixture, by their numbers.
struct Mixture {
    name: String,
    /// Tokens of each expert; those that are not in the record got none that was used.
    tokens: Vec<u64>,
}

/// Charts and a table of the layers whose names have the number of an expert.
pub(super) fn parts(calibration: &Object<'_>) -> Vec<Part> {
    let mixtures = mixtures(calibration);
    if mixtures.is_empty() {
        return Vec::new();
    }
    let mut loads = table(&["layer"], &["experts", "fewest tokens", "median", "most tokens", "without tokens"]);
    for mixture in &mixtures {
        let mut sorted = mixture.tokens.clone();
        sorted.sort_unstable();
        let (Some(least), Some(most)) = (sorted.first(), sorted.last()) else { continue };
        let empty = sorted.iter().filter(|tokens| **tokens == 0).count();
        let middle = [(sorted.len() - 1) / 2, sorted.len() / 2].map(|at| sorted[at]);
        let numbers = [sorted.len() as u64, *least, middle.iter().sum::<u64>() / 2, *most, empty as u64];
        loads.push(std::iter::once(mixture.name.clone()).chain(numbers.map(|number| number.to_string())));
    }
    let strips = mixtures.into_iter().map(|mixture| Strip {
        values: mixture.tokens.iter().map(|tokens| *tokens as f64).collect(),
        name: mixture.name,
    });
    let title = "Calibration tokens of each expert, in the order of experts; bars are as high as their share of the most in the layer".to_owned();
    let strips = Strips { title, cell: "expert".to_owned(), unit: "tokens".to_owned(), rows: strips.collect() };
    vec![Part::Heading("Load of experts".to_owned()), Part::Strips(strips), Part::Table(loads)]
}

/// In the order of the record; of the layers of an expert that with most tokens counts.
fn mixtures(calibration: &Object<'_>) -> Vec<Mixture> {
    let mut names: Vec<&str> = Vec::new();
    let mut loads: BTreeMap<&str, BTreeMap<usize, u64>> = BTreeMap::new();
    for layer in calibration.objects("layers") {
        let Some((name, rest)) = layer.text("layer").split_once(EXPERTS) else { continue };
        let number = rest.split('.').next().and_then(|number| number.parse::<usize>().ok());
        let Some((expert, tokens)) = number.zip(layer.count("tokens")) else { continue };
        if !loads.contains_key(name) {
            names.push(name);
        }
        let load = loads.entry(name).or_default().entry(expert).or_default();
        *load = (*load).max(tokens);
    }
    let of_name = |name: &str| {
        let tokens = loads.get(name)?.values().copied().collect();
        Some(Mixture { name: name.to_owned(), tokens })
    };
    names.into_iter().filter_map(of_name).collect()
}
