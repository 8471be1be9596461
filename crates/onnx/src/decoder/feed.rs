//! Which inputs a decoder has, and their values for tokens behind a cache, an empty one or a filled one.

use std::collections::HashMap;

use kvant_container::onnx::{DataType, GraphProto};

use super::DecoderError;
use super::context::rows_of_positions;
use crate::data::{Array, Axis, Input, Values, display_axes, inputs, type_of};
use crate::kv_cache;

/// The input of tokens.
pub const TOKENS: &str = "input_ids";
/// The output of logits.
pub(super) const LOGITS: &str = "logits";

/// The input that selects the branch for a filled cache in graphs that have two.
const BRANCH: &str = "use_cache_branch";

/// A graph that makes logits `[batch, sequence, vocabulary]` of tokens `input_ids` `[batch, sequence]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecoderGraph {
    pub(super) inputs: Vec<(Input, Feed)>,
    /// The size of the vocabulary, where the graph states it.
    vocabulary: Option<usize>,
    /// The only length of sequences, where there is one.
    length: Option<usize>,
    /// The tokens that have positions, where a table holds them.
    most: Option<usize>,
    /// The outputs that the next run takes as its cache, each with the input; empty where tokens cannot be run in parts.
    pub(super) cache: Vec<CacheTensor>,
}

/// An output of cached keys or values, and the input that it is for the next tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CacheTensor {
    pub(super) past: String,
    pub(super) present: String,
}

/// Keys and values of the tokens that were run.
#[derive(Debug, Default)]
pub(super) struct Cached {
    /// How many tokens there are.
    pub(super) tokens: usize,
    /// By input.
    pub(super) arrays: HashMap<String, Array<'static>>,
}

/// The values of an input for `n` tokens behind others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Feed {
    /// The tokens, `[1, n]`.
    Tokens,
    /// Ones for all tokens, those before included: none is padding.
    Mask,
    /// The positions of the tokens, `[1, n]`, or `[n]` for graphs of one axis.
    Positions {
        /// Whether there is an axis for sequences.
        batched: bool,
    },
    /// Nothing is cached: an array without elements of this shape.
    EmptyCache(Vec<usize>),
    /// Zero, which selects the branch without a cache and the logits of all tokens, in this shape.
    Zero(Vec<usize>),
}

impl DecoderGraph {
    /// The decoder that a graph is.
    ///
    /// # Errors
    ///
    /// [`DecoderError::NoDecoder`] for other graphs, [`DecoderError::Input`] for decoders with an input that does not follow from tokens.
    pub fn of(graph: &GraphProto) -> Result<DecoderGraph, DecoderError> {
        let inputs = inputs(graph);
        let is_tokens = |input: &Input| input.name == TOKENS && is_integer(input.data_type);
        if !inputs.iter().any(is_tokens) {
            return Err(DecoderError::NoDecoder { missing: "input `input_ids` of integers" });
        }
        let missing =
            || DecoderError::NoDecoder { missing: "output `logits` of floats, [batch, sequence, vocabulary]" };
        let logits = graph.output.iter().find(|value| value.name() == LOGITS).ok_or_else(missing)?;
        let (of_logits, axes) = type_of(logits);
        let has_rows = axes.as_ref().is_none_or(|axes| axes.len() == 3);
        if !has_rows || !is_float(of_logits) {
            return Err(missing());
        }
        let inputs = inputs.into_iter().map(|input| Ok((feed(&input)?, input)));
        let inputs = inputs.map(|found| found.map(|(feed, input)| (input, feed)));
        let inputs = inputs.collect::<Result<Vec<_>, DecoderError>>()?;
        let vocabulary = axes.as_deref().and_then(|axes| fixed(axes, 2));
        let length = length(&inputs)?;
        let cache = if length.is_none() { cache(graph, &inputs) } else { Vec::new() };
        let most = rows_of_positions(graph);
        Ok(DecoderGraph { inputs, vocabulary, length, most, cache })
    }

    /// The size of the vocabulary, where the graph states it.
    pub fn vocabulary(&self) -> Option<usize> {
        self.vocabulary
    }

    /// The only length of the sequences that it takes, where there is one.
    pub fn length(&self) -> Option<usize> {
        self.length
    }

    /// Refuses a length of sequences that it does not take.
    ///
    /// # Errors
    ///
    /// [`DecoderError::Length`], [`DecoderError::TooLong`].
    pub fn check_length(&self, given: usize) -> Result<(), DecoderError> {
        match (self.length, self.most) {
            (Some(fixed), _) if fixed != given => Err(DecoderError::Length { fixed, given }),
            (_, Some(most)) if most < given => Err(DecoderError::TooLong { most, given }),
            _ => Ok(()),
        }
    }

    /// The arrays of all inputs for tokens behind those that were run, of the types that the graph takes.
    ///
    /// # Errors
    ///
    /// Those of [`Self::check_length`], and tokens beyond the range of the input's type.
    pub(super) fn feeds<'c>(
        &'c self,
        cached: &'c Cached,
        tokens: &[u32],
    ) -> Result<Vec<(&'c str, Array<'c>)>, DecoderError> {
        self.check_length(cached.tokens + tokens.len())?;
        let one = |(input, feed): &'c (Input, Feed)| {
            let array = match cached.arrays.get(&input.name) {
                Some(array) => array.view().cast(input.data_type),
                None => feed.array(cached.tokens, tokens, input.data_type),
            };
            array.ok_or_else(|| refused(input, format!("its type {:?} does not hold it", input.data_type)))
        };
        self.inputs.iter().map(|each| Ok((each.0.name.as_str(), one(each)?))).collect()
    }
}

impl Feed {
    /// The array for tokens behind so many others; `None` where a value does not fit the type.
    pub(super) fn array(&self, before: usize, tokens: &[u32], data_type: DataType) -> Option<Array<'static>> {
        let (count, all) = (tokens.len(), before + tokens.len());
        let integers =
            |shape: Vec<usize>, values: Vec<i64>| Array::new(shape, Values::I64(values.into()))?.cast(data_type);
        match self {
            Feed::Tokens => integers(vec![1, count], tokens.iter().map(|token| i64::from(*token)).collect()),
            Feed::Mask => integers(vec![1, all], vec![1; all]),
            Feed::Positions { batched } => {
                let shape = if *batched { vec![1, count] } else { vec![count] };
                integers(shape, (before as i64..all as i64).collect())
            }
            Feed::EmptyCache(shape) => Array::new(shape.clone(), Values::F32(Vec::new().into()))?.cast(data_type),
            Feed::Zero(shape) => integers(shape.clone(), vec![0; shape.iter().product()]),
        }
    }
}

/// The values of an input, by its name, type and axes.
fn feed(input: &Input) -> Result<Feed, DecoderError> {
    let rank = input.axes.as_ref().map(Vec::len);
    let is_rows = rank.is_none_or(|rank| rank == 2);
    let holds_integers = is_integer(input.data_type) || input.data_type == DataType::BOOL;
    match input.name.as_str() {
        TOKENS if is_rows => Ok(Feed::Tokens),
        "attention_mask" if is_rows && holds_integers => Ok(Feed::Mask),
        "position_ids" if is_rows && holds_integers => Ok(Feed::Positions { batched: true }),
        "position_ids" | "cache_position" if rank == Some(1) && holds_integers => {
            Ok(Feed::Positions { batched: false })
        }
        BRANCH | "num_logits_to_keep" | "logits_to_keep" if holds_integers => zero(input),
        TOKENS | "attention_mask" | "position_ids" => {
            let axes = input.axes.as_deref().map(display_axes).unwrap_or_default();
            Err(refused(input, format!("it has the shape {axes}, where [batch, sequence] is known")))
        }
        name if kv_cache::is_past(name) => empty_cache(input),
        _ => Err(refused(input, "it is not known".to_owned())),
    }
}

/// The outputs that the next run takes as its cache, if they are for all of its inputs.
fn cache(graph: &GraphProto, inputs: &[(Input, Feed)]) -> Vec<CacheTensor> {
    // The branch for a filled cache takes one token.
    if inputs.iter().any(|(input, _)| input.name == BRANCH) {
        return Vec::new();
    }
    let caches = inputs.iter().filter(|(_, feed)| matches!(feed, Feed::EmptyCache(_)));
    let pair = |(input, _): &(Input, Feed)| {
        let present = kv_cache::present(graph, &input.name)?.to_owned();
        Some(CacheTensor { past: input.name.clone(), present })
    };
    caches.map(pair).collect::<Option<_>>().unwrap_or_default()
}

/// An input with every axis of one element.
fn zero(input: &Input) -> Result<Feed, DecoderError> {
    let axes = input.axes.clone().unwrap_or_default();
    match axes.iter().all(|axis| axis.fits(1)) {
        true => Ok(Feed::Zero(vec![1; axes.len()])),
        false => Err(refused(input, format!("it has the shape {}, where one number is known", display_axes(&axes)))),
    }
}

/// A cache without elements: `[batch, heads, length, width]` with any order of the axes behind the batch, or
/// `[2, batch, heads, length, width]` of keys and values. The one axis that is open besides the batch is the length.
fn empty_cache(input: &Input) -> Result<Feed, DecoderError> {
    let axes = input.axes.as_deref().ok_or_else(|| refused(input, "the graph does not state its shape".to_owned()))?;
    let batch = usize::from(axes.len() == 5);
    let size = |(index, axis): (usize, &Axis)| match axis {
        Axis::Fixed(size) => *size,
        Axis::Open(_) if index == batch => 1,
        Axis::Open(_) => 0,
    };
    let shape: Vec<usize> = axes.iter().enumerate().map(size).collect();
    let problem = match shape.iter().filter(|size| **size == 0).count() {
        1 if shape.get(batch) == Some(&1) && (3..=5).contains(&shape.len()) => return Ok(Feed::EmptyCache(shape)),
        0 => "is a cache of fixed length, and only an empty one is known",
        _ => "is no cache of one sequence",
    };
    Err(refused(input, format!("an array of shape {} {problem}", display_axes(axes))))
}

/// The one length that all inputs with the axes of tokens take; `None` where it is open.
fn length(inputs: &[(Input, Feed)]) -> Result<Option<usize>, DecoderError> {
    let mut length = None;
    for (input, feed) in inputs {
        let Some(axes) = input.axes.as_deref() else { continue };
        let (batch, sequence) = match feed {
            Feed::Tokens | Feed::Mask | Feed::Positions { batched: true } => (fixed(axes, 0), fixed(axes, 1)),
            Feed::Positions { batched: false } => (None, fixed(axes, 0)),
            Feed::EmptyCache(_) | Feed::Zero(_) => continue,
        };
        if let Some(batch) = batch.filter(|batch| *batch != 1) {
            return Err(refused(input, format!("it takes {batch} sequences at a time, where one is run")));
        }
        match (length, sequence) {
            (Some(known), Some(other)) if known != other => {
                return Err(refused(input, format!("it takes {other} tokens, where another input takes {known}")));
            }
            (_, sequence) => length = length.or(sequence),
        }
    }
    match length {
        Some(..2) => {
            let problem = "it takes one token at a time behind a cache, which predicts nothing of a text".to_owned();
            Err(DecoderError::Input { input: TOKENS.to_owned(), problem })
        }
        length => Ok(length),
    }
}

fn fixed(axes: &[Axis], index: usize) -> Option<usize> {
    match axes.get(index) {
        Some(Axis::Fixed(size)) => Some(*size),
        _ => None,
    }
}

fn refused(input: &Input, problem: String) -> DecoderError {
    DecoderError::Input { input: input.name.clone(), problem }
}

fn is_integer(data_type: DataType) -> bool {
    matches!(data_type, DataType::INT64 | DataType::INT32)
}

fn is_float(data_type: DataType) -> bool {
    matches!(data_type, DataType::FLOAT | DataType::FLOAT16 | DataType::BFLOAT16 | DataType::DOUBLE)
}
