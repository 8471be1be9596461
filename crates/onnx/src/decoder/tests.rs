use kvant_container::onnx::{DataType, GraphProto, ValueInfoProto};

use super::feed::Cached;
use super::*;
use crate::data::{Array, Values};
use crate::graph::{node, set_attribute};
use crate::runtime::{RuntimeChoice, RuntimeOptions};
use crate::shape::{Dim, ValueType};
use crate::test_models::{floats, model};

/// A value of a type and of axes, open where they have a name.
fn value(name: &str, data_type: DataType, axes: &[&str]) -> ValueInfoProto {
    let axis = |axis: &&str| axis.parse().map_or_else(|_| Dim::Symbol((*axis).into()), Dim::Known);
    ValueType::new(data_type, axes.iter().map(axis).collect()).to_proto(name).unwrap()
}

fn graph(inputs: Vec<ValueInfoProto>, logits: &[&str]) -> GraphProto {
    let output = vec![value("logits", DataType::FLOAT, logits)];
    GraphProto { input: inputs, output, ..GraphProto::default() }
}

fn ids() -> ValueInfoProto {
    value("input_ids", DataType::INT64, &["batch", "sequence"])
}

const LOGITS: &[&str] = &["batch", "sequence", "7"];

fn of(further: Vec<ValueInfoProto>) -> Result<DecoderGraph, DecoderError> {
    DecoderGraph::of(&graph(std::iter::once(ids()).chain(further).collect(), LOGITS))
}

#[test]
fn inputs_of_exported_decoders_follow_from_tokens() {
    let cache = &["batch", "2", "past_sequence_length", "8"];
    let decoder = of(vec![
        value("attention_mask", DataType::INT64, &["batch", "past + sequence"]),
        value("position_ids", DataType::INT32, &["batch", "sequence"]),
        value("past_key_values.0.key", DataType::FLOAT, cache),
        value("past_key_values.0.decoder.value", DataType::FLOAT16, cache),
        value("past_0", DataType::FLOAT, &["2", "batch", "4", "past", "8"]),
        value("use_cache_branch", DataType::BOOL, &["1"]),
        value("num_logits_to_keep", DataType::INT64, &[]),
        value("cache_position", DataType::INT64, &["sequence"]),
    ]);
    let decoder = decoder.unwrap();
    assert_eq!((decoder.vocabulary(), decoder.length()), (Some(7), None));
    let none = Cached::default();
    let feeds = decoder.feeds(&none, &[3, 1, 2]).unwrap();
    let shapes: Vec<(&str, &[usize])> = feeds.iter().map(|(name, array)| (*name, array.shape())).collect();
    let expected: [(&str, &[usize]); 9] = [
        ("input_ids", &[1, 3]),
        ("attention_mask", &[1, 3]),
        ("position_ids", &[1, 3]),
        ("past_key_values.0.key", &[1, 2, 0, 8]),
        ("past_key_values.0.decoder.value", &[1, 2, 0, 8]),
        ("past_0", &[2, 1, 4, 0, 8]),
        ("use_cache_branch", &[1]),
        ("num_logits_to_keep", &[]),
        ("cache_position", &[3]),
    ];
    assert_eq!(shapes, expected);
    let values = |index: usize| feeds[index].1.values();
    assert_eq!(*values(0), Values::I64(vec![3, 1, 2].into()));
    assert_eq!(*values(1), Values::I64(vec![1; 3].into()));
    assert_eq!(*values(2), Values::I32(vec![0, 1, 2].into()));
    assert!(matches!(values(4), Values::F16(empty) if empty.is_empty()));
    assert_eq!(*values(6), Values::Bool(vec![false].into()));
}

#[test]
fn tokens_behind_a_cache_have_later_positions() {
    let cache = |name: &str| value(name, DataType::FLOAT16, &["batch", "2", "past", "8"]);
    let mask = value("attention_mask", DataType::INT64, &["batch", "all"]);
    let positions = value("position_ids", DataType::INT64, &["batch", "sequence"]);
    let inputs = || vec![ids(), mask.clone(), positions.clone(), cache("past_key_values.0.key")];
    let mut made = graph(inputs(), LOGITS);
    assert!(DecoderGraph::of(&made).unwrap().cache.is_empty(), "there is no output for the next tokens");
    made.output.push(cache("present.0.key"));
    let decoder = DecoderGraph::of(&made).unwrap();
    let [tensor] = &decoder.cache[..] else { panic!("{:?}", decoder.cache) };
    assert_eq!((&*tensor.past, &*tensor.present), ("past_key_values.0.key", "present.0.key"));
    let keys = Array::of(vec![1, 2, 3, 8], vec![0.5f32; 48]).unwrap();
    let cached = Cached { tokens: 3, arrays: [(tensor.past.clone(), keys)].into() };
    let feeds = decoder.feeds(&cached, &[6, 5]).unwrap();
    let shapes: Vec<&[usize]> = feeds.iter().map(|(_, array)| array.shape()).collect();
    assert_eq!(shapes, [&[1, 2][..], &[1, 5], &[1, 2], &[1, 2, 3, 8]]);
    assert_eq!(*feeds[2].1.values(), Values::I64(vec![3, 4].into()));
    assert_eq!(feeds[3].1.data_type(), DataType::FLOAT16);
    made.input.push(value("use_cache_branch", DataType::BOOL, &["1"]));
    assert!(DecoderGraph::of(&made).unwrap().cache.is_empty(), "its branch for a cache takes one token");
}

#[test]
fn other_graphs_are_no_decoders() {
    let image = value("image", DataType::FLOAT, &["batch", "3", "8", "8"]);
    let tokens_as_floats = value("input_ids", DataType::FLOAT, &["batch", "sequence"]);
    for (inputs, logits) in [(image, LOGITS), (tokens_as_floats, LOGITS), (ids(), &["batch", "7"])] {
        let error = DecoderGraph::of(&graph(vec![inputs], logits)).unwrap_err();
        assert!(matches!(error, DecoderError::NoDecoder { .. }), "{error}");
    }
    let mut without = graph(vec![ids()], LOGITS);
    without.output.clear();
    assert!(matches!(DecoderGraph::of(&without), Err(DecoderError::NoDecoder { .. })));
}

#[test]
fn inputs_that_do_not_follow_from_tokens_are_named() {
    for (input, problem) in [
        (value("token_type_ids", DataType::INT64, &["batch", "sequence"]), "is not known"),
        (value("past_key_values.0.encoder.key", DataType::FLOAT, &["batch", "2", "past", "8"]), "is not known"),
        (value("past_key_values.0.key", DataType::FLOAT, &["batch", "2", "64", "8"]), "fixed length"),
        (value("past_key_values.0.key", DataType::FLOAT, &["2", "2", "past", "8"]), "one sequence"),
        (value("past_key_values.0.key", DataType::FLOAT, &["batch", "heads", "past", "8"]), "one sequence"),
        (value("past_seq_len", DataType::INT32, &["1", "1"]), "is not known"),
        (value("attention_mask", DataType::FLOAT, &["batch", "1", "sequence", "sequence"]), "where [batch, sequence]"),
        (value("position_ids", DataType::INT64, &["4", "sequence"]), "4 sequences at a time"),
        (value("num_logits_to_keep", DataType::INT64, &["3"]), "one number"),
    ] {
        let name = input.name().to_owned();
        let error = of(vec![input]).unwrap_err();
        assert!(matches!(&error, DecoderError::Input { input, .. } if *input == name), "{error}");
        assert!(error.to_string().contains(problem), "{error}");
    }
}

#[test]
fn graphs_of_one_length_take_no_other() {
    let mask = |length: &str| value("attention_mask", DataType::INT64, &["1", length]);
    let decoder = of(vec![mask("4")]).unwrap();
    assert_eq!(decoder.length(), Some(4));
    assert!(matches!(decoder.feeds(&Cached::default(), &[1; 5]), Err(DecoderError::Length { fixed: 4, given: 5 })));
    assert!(matches!(decoder.samples(vec![vec![1; 4], vec![1; 3]], "x".into()), Err(DecoderError::Length { .. })));
    let positions = value("position_ids", DataType::INT64, &["1", "5"]);
    assert!(matches!(of(vec![mask("4"), positions]), Err(DecoderError::Input { .. })));
    assert!(matches!(of(vec![mask("1")]), Err(DecoderError::Input { .. })));
}

#[test]
fn sequences_become_samples() {
    let cache = value("past_key_values.0.key", DataType::FLOAT, &["batch", "2", "past", "8"]);
    let decoder = of(vec![cache]).unwrap();
    let mut samples = decoder.samples(vec![vec![1, 2], vec![3]], "text.txt".into()).unwrap();
    assert_eq!(samples.len(), 2);
    let second = samples.sample(1).unwrap();
    assert_eq!(second[0], ("input_ids", crate::data::Array::of(vec![1, 1], vec![3i64]).unwrap()));
    assert_eq!(second[1].1.shape(), [1, 2, 0, 8]);
}

/// A decoder whose logits are the rows of a table and how many tokens are cached, with a cache that it only lengthens.
fn table(present: &str) -> kvant_container::onnx::ModelProto {
    let past = "past_key_values.0.key";
    let nodes = vec![
        node("Gather", "look up", &["table", "input_ids"], &["rows"]),
        node("Unsqueeze", "a head", &["rows", "axis"], &["new"]),
        node("Concat", "cached", &[past, "new"], &[present]),
        node("Shape", "sizes", &[past], &["sizes"]),
        node("Gather", "length", &["sizes", "two"], &["length"]),
        node("Cast", "float", &["length"], &["cached tokens"]),
        node("Add", "sum", &["rows", "cached tokens"], &["logits"]),
    ];
    let values: Vec<f32> = (0..12).map(|value| value as f32).collect();
    let integers = [("axis", 1), ("two", 2)].map(|(name, value)| crate::test_models::integers(name, &[value]));
    let constants = std::iter::once(floats("table", &[4, 3], &values)).chain(integers).collect();
    let mut made = model(17, nodes, constants, &[], &[]);
    let graph = made.graph.as_mut().unwrap();
    let cache = |name: &str, length: &str| value(name, DataType::FLOAT, &["batch", "1", length, "3"]);
    graph.input = vec![ids(), cache(past, "past")];
    graph.output = vec![value("logits", DataType::FLOAT, &["batch", "sequence", "3"]), cache(present, "all")];
    set_attribute(&mut graph.node[2], "axis", 2);
    set_attribute(&mut graph.node[5], "to", DataType::FLOAT as i64);
    made
}

#[test]
fn embedded_engine_runs_the_second_half_behind_the_cache_of_the_first() {
    let options = RuntimeOptions { choice: RuntimeChoice::Rten, ..RuntimeOptions::default() };
    let mut session = DecoderSession::open(&table("present.0.key"), &options).unwrap();
    assert_eq!(session.logits(&[1, 0, 2], <[f32]>::to_vec).unwrap(), [3.0, 4.0, 5.0, 1.0, 2.0, 3.0, 7.0, 8.0, 9.0]);
    assert_eq!(session.logits(&[1], <[f32]>::to_vec).unwrap(), [3.0, 4.0, 5.0]);
    // What is not known to be the cache of the next tokens is left alone.
    let mut session = DecoderSession::open(&table("longer"), &options).unwrap();
    assert_eq!(session.logits(&[2, 0], <[f32]>::to_vec).unwrap(), [6.0, 7.0, 8.0, 0.0, 1.0, 2.0]);
}

#[test]
fn graph_that_takes_one_token_behind_a_cache_runs_whole_sequences() {
    let mut strict = table("present.0.key");
    let graph = strict.graph.as_mut().unwrap();
    // Logits of all tokens, those of the cache included.
    graph.node[6] = node("Squeeze", "all", &["present.0.key", "axis"], &["logits"]);
    let options = RuntimeOptions { choice: RuntimeChoice::Rten, ..RuntimeOptions::default() };
    let mut session = DecoderSession::open(&strict, &options).unwrap();
    for _ in 0..2 {
        assert_eq!(session.logits(&[2, 0], <[f32]>::to_vec).unwrap(), [6.0, 7.0, 8.0, 0.0, 1.0, 2.0]);
    }
}
