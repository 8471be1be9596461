//! How many tokens a decoder's graph takes at most: what it states, the rows of its tables of positions, and the memory that they take.

use kvant_container::onnx::{DataType, GraphProto, ModelProto, NodeProto, StringStringEntryProto, data_type, shape};

use super::feed::{LOGITS, TOKENS};
use crate::graph::{Index, domain, int_attribute, is_standard, positional_input};
use crate::kernel::linear::constant;
use crate::shape::{Dim, infer};

/// The key of the metadata under which Kvant states the longest context of a decoder that it exports.
const KEY: &str = "kvant.context_length";
/// The domain of ONNX Runtime's own operators.
const MICROSOFT: &str = "com.microsoft";
/// Nodes between positions and the rows of a table, at most.
const FARTHEST: usize = 64;

/// States in a graph how many tokens its model was made for.
pub fn state_context(model: &mut ModelProto, tokens: usize) {
    model.metadata_props.retain(|entry| entry.key() != KEY);
    let (key, value) = (Some(KEY.to_owned()), Some(tokens.to_string()));
    model.metadata_props.push(StringStringEntryProto { key, value, ..StringStringEntryProto::default() });
}

/// The number of tokens that a decoder was made for, if its graph says it.
pub fn context_of(model: &ModelProto) -> Option<usize> {
    let stated = model.metadata_props.iter().find(|entry| entry.key() == KEY);
    let stated = stated.and_then(|entry| entry.value().parse().ok());
    stated.into_iter().chain(rows_of_positions(&model.graph)).min()
}

/// Bytes that a run of so many tokens takes at least: those of its logits, and of the scores of one attention in single precision.
pub fn least_memory(model: &ModelProto, tokens: usize) -> u64 {
    let types = infer(model);
    let known = |dims: &[Dim]| dims.iter().filter_map(Dim::known).map(|size| size as u64).product::<u64>();
    let dims = |name: &str| types.get(name).and_then(|tensor| tensor.shape.clone()).unwrap_or_default();
    let heads = model.graph.node.iter().map(|node| match node.op_type() {
        // `[batch, heads, sequence, all]`, or heads in groups.
        "Softmax" => match dims(node.input.first().map_or("", String::as_str)).as_slice() {
            [_, heads @ .., Dim::Symbol(_) | Dim::Unknown, _] => known(heads),
            _ => 0,
        },
        _ => int_attribute(node, "num_heads").and_then(|heads| heads.try_into().ok()).unwrap_or(0),
    });
    let vocabulary = dims(LOGITS).last().and_then(Dim::known).unwrap_or(0) as u64;
    let (tokens, heads) = (tokens as u64, heads.max().unwrap_or(0));
    let rows = heads.saturating_mul(tokens).saturating_add(vocabulary);
    rows.saturating_mul(tokens).saturating_mul(4)
}

/// The tokens that have a row in all tables of positions: those of learned embeddings, and of rotary ones that are not computed.
pub(super) fn rows_of_positions(graph: &GraphProto) -> Option<usize> {
    let index = Index::new(graph);
    let rows = |name: &str| {
        let maker = index.producer(name).map(|position| &graph.node[position]);
        let codes = maker.filter(|node| node.op_type() == "DequantizeLinear").and_then(|node| node.input.first());
        let table = index.constant(graph, codes.map_or(name, String::as_str))?;
        let is_table = !matches!(data_type(table), DataType::INT64 | DataType::INT32);
        shape(table).ok().filter(|shape| is_table && shape.len() > 1)?.first().copied()
    };
    let looked_up = |node: &NodeProto| {
        let last = Positions { graph, index: &index }.last(node.input.get(1)?, FARTHEST)?;
        usize::try_from(rows(node.input.first()?)? as i64 - 1 - last).ok()
    };
    let tables = graph.node.iter().filter_map(|node| match (domain(node), node.op_type()) {
        ("", "Gather") if int_attribute(node, "axis").unwrap_or(0) == 0 => looked_up(node),
        (MICROSOFT, "GatherBlockQuantized") => looked_up(node),
        // Cosines by position.
        (MICROSOFT, "GroupQueryAttention") => rows(positional_input(node, 7)?),
        (MICROSOFT, "RotaryEmbedding") => rows(positional_input(node, 2)?),
        _ => None,
    });
    tables.min()
}

/// Integers that follow from positions.
struct Positions<'g> {
    graph: &'g GraphProto,
    index: &'g Index,
}

impl Positions<'_> {
    /// The largest of them for `n` tokens, minus `n`; `None` for other integers, such as tokens.
    fn last(&self, tensor: &str, left: usize) -> Option<i64> {
        let left = left.checked_sub(1)?;
        if self.index.is_input(tensor) {
            return matches!(tensor, "position_ids" | "cache_position").then_some(-1);
        }
        let node = &self.graph.node[self.index.producer(tensor)?];
        let input = |at: usize| node.input.get(at).map(String::as_str);
        let shifted = |by: i64| self.last(input(0)?, left).map(|last| last + by);
        match node.op_type() {
            _ if !is_standard(node) => None,
            "CumSum" => (input(0)? != TOKENS).then_some(0),
            "Range" => Some(-1),
            "Add" => match (self.number(input(0)?), self.number(input(1)?)) {
                (Some(by), _) => self.last(input(1)?, left).map(|last| last + by),
                (_, Some(by)) => shifted(by),
                _ => None,
            },
            "Sub" => shifted(-self.number(input(1)?)?),
            // By a mask of ones.
            "Mul" => [0, 1].into_iter().filter_map(|at| self.last(input(at)?, left)).max(),
            "Where" => [1, 2].into_iter().filter_map(|at| self.last(input(at)?, left)).max(),
            "Cast" | "Expand" | "Flatten" | "Gather" | "Identity" | "Reshape" | "Slice" | "Squeeze" | "Tile"
            | "Transpose" | "Unsqueeze" => shifted(0),
            _ => None,
        }
    }

    /// The value of a constant with one integer.
    fn number(&self, tensor: &str) -> Option<i64> {
        let array = constant(self.index.constant(self.graph, tensor)?)?;
        (array.len() == 1).then(|| array.largest_integer()).flatten()?.try_into().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{node, set_attribute};
    use crate::shape::ValueType;
    use crate::test_models::{floats, integers, model};

    /// A graph that looks rows of positions up, their numbers made by nodes.
    fn graph(nodes: Vec<kvant_container::onnx::NodeProto>, rows: usize) -> ModelProto {
        let look_up = |table: &str, ids: &str, output: &str| node("Gather", output, &[table, ids], &[output]);
        let nodes = nodes.into_iter().chain([look_up("tokens", "input_ids", "x"), look_up("table", "rows", "y")]);
        let constants = vec![
            floats("tokens", &[3, 2], &[0.0; 6]),
            floats("table", &[rows, 2], &vec![0.0; rows * 2]),
            integers("one", &[1]),
            integers("two", &[2]),
        ];
        model(17, nodes.collect(), constants, &["input_ids", "position_ids", "attention_mask"], &["x", "y"])
    }

    #[test]
    fn rows_of_tables_limit_the_tokens() {
        let plain = graph(vec![node("Unsqueeze", "u", &["position_ids", "one"], &["rows"])], 8);
        assert_eq!(context_of(&plain), Some(8));
        // As OPT is exported by Kvant, and by torch.
        let offset = graph(vec![node("Add", "a", &["position_ids", "two"], &["rows"])], 10);
        assert_eq!(context_of(&offset), Some(8));
        let sums = vec![
            node("CumSum", "c", &["attention_mask", "one"], &["sums"]),
            node("Mul", "m", &["sums", "attention_mask"], &["seen"]),
            node("Sub", "s", &["seen", "one"], &["places"]),
            node("Add", "a", &["places", "two"], &["rows"]),
        ];
        assert_eq!(context_of(&graph(sums, 10)), Some(8));
        let other = graph(vec![node("Add", "a", &["input_ids", "two"], &["rows"])], 10);
        assert_eq!(context_of(&other), None);
    }

    #[test]
    fn stated_context_is_read_back() {
        let mut model = graph(vec![node("Identity", "i", &["position_ids"], &["rows"])], 8);
        for (stated, found) in [(4, 4), (16, 8)] {
            state_context(&mut model, stated);
            assert_eq!((context_of(&model), model.metadata_props.len()), (Some(found), 1));
        }
    }

    #[test]
    fn memory_grows_with_the_square_of_the_tokens() {
        let open = |name: &str, dims: &[Dim]| ValueType::new(DataType::FLOAT, dims.into()).to_proto(name).unwrap();
        let symbol = |name: &str| Dim::Symbol(name.into());
        let softmax = node("Softmax", "s", &["scores"], &["seen"]);
        let mut made = model(17, vec![softmax], vec![], &[], &[]);
        let graph = made.graph.as_mut().unwrap();
        let scores = [symbol("batch"), Dim::Known(2), Dim::Known(4), symbol("sequence"), symbol("all")];
        graph.input = vec![open("scores", &scores)];
        graph.output = vec![open("logits", &[symbol("batch"), symbol("sequence"), Dim::Known(100)])];
        assert_eq!(least_memory(&made, 10), 4 * (10 * 100 + 8 * 10 * 10));
        let graph = made.graph.as_mut().unwrap();
        graph.node[0] = node("GroupQueryAttention", "a", &["scores"], &["seen"]);
        set_attribute(&mut graph.node[0], "num_heads", 16);
        assert_eq!(least_memory(&made, 10), 4 * (10 * 100 + 16 * 10 * 10));
    }
}
