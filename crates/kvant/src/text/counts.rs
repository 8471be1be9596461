//! Counts of layers, tensors and bytes in words. Plans and summaries of runs print the same lines, and these lines are made here;
//! those of ONNX graphs are counted by `kvant_onnx::count`.

pub use kvant_quant::counts::number;

use super::size;
use kvant_checkpoint::gguf::GgufPlan;
use kvant_checkpoint::plan::Plan;
use kvant_quant::scheme::TensorScheme;
use std::collections::BTreeMap;

/// A line of a summary: its title and text.
pub type Line = (&'static str, String);

/// Layers of a checkpoint by their schemes, and the tensors that are kept.
pub fn layers(plan: &Plan) -> Line {
    let default = plan.recipe().default_choice().scheme().map(|scheme| plan.recipe().fitted(scheme));
    let name = |layer: &kvant_checkpoint::plan::PlannedLayer| match Some(layer.scheme) == default {
        true => plan.recipe().scheme_name(),
        false => match layer.scheme.weight {
            TensorScheme::Gguf(blocks) => blocks.kind.to_string(),
            _ => layer.scheme.to_string(),
        },
    };
    let quantized = types(plan.layers().len(), plan.layers().iter().map(name));
    ("layers", format!("{quantized}, {} kept", number(plan.kept().len(), "tensor")))
}

/// Tensors of a GGUF file by their types, and those that stay in floats. The requested type is not always the one that a
/// tensor gets.
pub fn tensors(plan: &GgufPlan) -> Line {
    let quantized = plan.tensors.iter().filter(|tensor| tensor.is_quantized());
    let types = types(plan.quantized(), quantized.map(|tensor| tensor.kind.to_string()));
    let kept = number(plan.tensors.len() - plan.quantized(), "tensor");
    ("tensors", format!("{types}, {kept} in floats"))
}

/// `28 to int4`, or where there are several types `28: 24 to int4, 4 to int8`, the most frequent first.
fn types(count: usize, names: impl Iterator<Item = String>) -> String {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    names.for_each(|name| *counts.entry(name).or_default() += 1);
    let mut counts: Vec<(String, usize)> = counts.into_iter().collect();
    counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let parts: Vec<String> = counts.iter().map(|(name, count)| format!("{count} to {name}")).collect();
    match parts.as_slice() {
        [] => format!("{count} quantized"),
        [one] => one.clone(),
        all => format!("{count} quantized: {}", all.join(", ")),
    }
}

/// Bytes of the tensors before and after; of GGUF files too, whose metadata and tokenizer other models have in files of their own.
pub fn sizes(before: u64, after: u64) -> Line {
    ("size", format!("{} to {}, {}", size::bytes(before), size::bytes(after), size::ratio(before, after)))
}

/// Bytes before, and about how many after.
pub fn about_sizes(before: u64, after: u64) -> Line {
    let (title, _) = sizes(before, after);
    (title, format!("{} to about {}, {}", size::bytes(before), size::bytes(after), size::ratio(before, after)))
}

/// Bits of a weight in what is quantized: `layers` or `tensors`.
pub fn bits(bits_per_weight: f64, what: &str) -> Line {
    ("bits per weight", format!("{bits_per_weight:.2} in quantized {what}, scales included"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensor_types_are_counted() {
        let names = |all: &[&str]| all.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>().into_iter();
        assert_eq!(types(2, names(&["Q8_0", "Q8_0"])), "2 to Q8_0");
        assert_eq!(types(3, names(&["Q4_K", "Q6_K", "Q6_K"])), "3 quantized: 2 to Q6_K, 1 to Q4_K");
        assert_eq!(types(0, names(&[])), "0 quantized");
    }
}
