//! How much of a model stays in floats although nobody asked for it: a plan that leaves out most of the experts must not look like one
//! that makes the model small.

use super::declared::Declared;
use crate::recipe::RuleMatch;
use kvant_model::family::Role;
use kvant_model::network::{Place, Reason, Slot};
use std::collections::{BTreeMap, BTreeSet};

/// Matrices that stay in floats by default are worth a word where they are more than one part in so many of all.
const WORTH_A_WORD: u64 = 10;

/// Names that are given.
const NAMES: usize = 3;

impl Declared<'_> {
    /// A sentence where more than a tenth of the bytes of matrices stays in floats by default. Embeddings, heads, norms and
    /// convolutions are not counted: they are floats everywhere.
    pub(super) fn float_share(&self) -> Option<String> {
        // What a conversion takes over was decided when the source was made.
        if self.layers.iter().any(|layer| layer.is_recoded()) {
            return None;
        }
        let planned: BTreeSet<usize> = self.layers.iter().map(|layer| layer.source.position).collect();
        let mut kept: BTreeMap<String, u64> = BTreeMap::new();
        for (position, tensor) in self.source.tensors.iter().enumerate() {
            if !planned.contains(&tensor.position) && self.stays_by_default(position) {
                *kept.entry(pattern(tensor.name())).or_default() += tensor.byte_len();
            }
        }
        let quantized: u64 = self.layers.iter().map(|layer| layer.source_bytes()).sum();
        let bytes: u64 = kept.values().sum();
        let all = bytes + quantized;
        if bytes.saturating_mul(WORTH_A_WORD) <= all {
            return None;
        }
        let mut largest: Vec<(&String, &u64)> = kept.iter().collect();
        largest.sort_by_key(|(name, bytes)| (std::cmp::Reverse(**bytes), *name));
        let percent = |bytes: u64| (bytes as f64 * 100.0 / all as f64).round();
        let name = |(name, bytes): &(&String, &u64)| format!("`{name}` ({} %)", percent(**bytes));
        let named: Vec<String> = largest.iter().take(NAMES).map(name).collect();
        let more = if largest.len() > NAMES { format!(" and {} more", largest.len() - NAMES) } else { String::new() };
        Some(format!("{} % of the weights stay in float by default: {}{more}", percent(bytes), named.join(", ")))
    }

    /// Whether a tensor is a matrix, or one for each expert, that is carried over although nothing is said of it.
    fn stays_by_default(&self, position: usize) -> bool {
        let tensor = &self.source.tensors[position];
        let is_matrix = matches!(tensor.shape().len(), 2 | 3) && tensor.meta().is_float();
        let module = tensor.name().strip_suffix(".weight").unwrap_or(tensor.name());
        let counts = match self.source.network.places()[position] {
            Place::Linear(id, Slot::Weight) => {
                !matches!(self.source.network.linear(id).role, Role::Head | Role::Readout)
            }
            Place::Experts(_, Slot::Weight) => true,
            Place::Other(reason) => !matches!(reason, Reason::Buffer | Reason::Quantized),
            _ => false,
        };
        is_matrix && counts && !matches!(self.source.recipe.decide(module), RuleMatch::Excluded)
    }
}

/// A name with a star for every number.
fn pattern(name: &str) -> String {
    let part =
        |part: &str| if part.bytes().all(|byte| byte.is_ascii_digit()) { "*".to_owned() } else { part.to_owned() };
    name.split('.').map(part).collect::<Vec<_>>().join(".")
}
