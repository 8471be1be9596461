//! Which positions a token sees, as numbers that are added to scores.

use super::builder::{Builder, Value};
use kvant_container::onnx::DataType;

/// Whole numbers of this run that masks are made of.
pub(super) struct Positions {
    /// `[1, total]`: the places of keys.
    keys: Value,
    /// `[sequence, 1]`: the places of queries.
    queries: Value,
    /// `[batch, 1, 1, total]`: whether there is a token at all.
    present: Value,
}

impl Positions {
    /// From the inputs of the graph.
    pub(super) fn new(builder: &mut Builder, tokens: &Value, attention_mask: &Value) -> Positions {
        let (sequence, total) = (builder.length(tokens, 1), builder.length(attention_mask, 1));
        let past = builder.binary("Sub", &total, &sequence);
        let (zero, one) = (builder.integer(0), builder.integer(1));
        let keys = builder.node("Range", &[&zero, &total, &one], &[]);
        let queries = builder.node("Range", &[&past, &total, &one], &[]);
        let present = builder.cast(attention_mask, DataType::BOOL);
        Positions {
            keys: builder.unsqueeze(&keys, &[0]),
            queries: builder.unsqueeze(&queries, &[1]),
            present: builder.unsqueeze(&present, &[1, 2]),
        }
    }

    /// `[batch, 1, 1, sequence, total]`: 0 where a token sees a key (no later one, and none `window` or more before it), else
    /// the least float.
    pub(super) fn mask(&self, builder: &mut Builder, window: Option<usize>) -> Value {
        let mut seen = builder.binary("LessOrEqual", &self.keys, &self.queries);
        if let Some(window) = window {
            let distance = builder.binary("Sub", &self.queries, &self.keys);
            let window = builder.integer(window as i64);
            let near = builder.binary("Less", &distance, &window);
            seen = builder.binary("And", &seen, &near);
        }
        let seen = builder.binary("And", &seen, &self.present);
        let (zero, least) = (builder.number(0.0), builder.number(f32::MIN));
        let mask = builder.node("Where", &[&seen, &zero, &least], &[]);
        builder.unsqueeze(&mask, &[2])
    }
}
