//! Which inputs a decoder has, and their values for a sequence of tokens behind an empty cache.

use kvant_container::onnx::{DataType, GraphProto};

use super::DecoderError;
use crate::data::{Array, Axis, Input, Values, display_axes, inputs, type_of};

/// The input of tokens.
pub const TOKENS: &str = "input_ids";
/// The output of logits.
pub(super) const LOGITS: &str = "logits";

/// A graph that makes logits `[batch, sequence, vocabulary]` of tokens `input_ids` `[batch, sequence]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecoderGraph {
    pub(super) inputs: Vec<(Input, Feed)>,
    /// The size of the vocabulary, where the graph states it.
    vocabulary: Option<usize>,
    /// The only length of sequences, where there is one.
    length: Option<usize>,
}

/// The values of an input for `n` tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Feed {
    /// The tokens, `[1, n]`.
    Tokens,
    /// Ones, `[1, n]`: no token is padding.
    Mask,
    /// `0 .. n`, `[1, n]`, or `[n]` for graphs of one axis.
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
        Ok(DecoderGraph { inputs, vocabulary, length })
    }

    /// The size of the vocabulary, where the graph states it.
    pub fn vocabulary(&self) -> Option<usize> {
        self.vocabulary
    }

    /// The only length of the sequences that it takes, where there is one.
    pub fn length(&self) -> Option<usize> {
        self.length
    }

    /// The arrays of all inputs for a sequence of tokens, of the types that the graph takes.
    ///
    /// # Errors
    ///
    /// [`DecoderError::Length`], and tokens beyond the range of the input's type.
    pub fn feeds(&self, tokens: &[u32]) -> Result<Vec<(&str, Array<'static>)>, DecoderError> {
        if let Some(fixed) = self.length.filter(|fixed| *fixed != tokens.len()) {
            return Err(DecoderError::Length { fixed, given: tokens.len() });
        }
        let one = |(input, feed): &'_ (Input, Feed)| {
            let array = feed.array(tokens, input.data_type);
            array.ok_or_else(|| refused(input, format!("its type {:?} does not hold it", input.data_type)))
        };
        self.inputs.iter().map(|each| Ok((each.0.name.as_str(), one(each)?))).collect()
    }
}

impl Feed {
    /// The array for a sequence; `None` where a value does not fit the type.
    pub(super) fn array(&self, tokens: &[u32], data_type: DataType) -> Option<Array<'static>> {
        let count = tokens.len();
        let integers =
            |shape: Vec<usize>, values: Vec<i64>| Array::new(shape, Values::I64(values.into()))?.cast(data_type);
        match self {
            Feed::Tokens => integers(vec![1, count], tokens.iter().map(|token| i64::from(*token)).collect()),
            Feed::Mask => integers(vec![1, count], vec![1; count]),
            Feed::Positions { batched } => {
                let shape = if *batched { vec![1, count] } else { vec![count] };
                integers(shape, (0..count as i64).collect())
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
        "use_cache_branch" | "num_logits_to_keep" | "logits_to_keep" if holds_integers => zero(input),
        TOKENS | "attention_mask" | "position_ids" => {
            let axes = input.axes.as_deref().map(display_axes).unwrap_or_default();
            Err(refused(input, format!("it has the shape {axes}, where [batch, sequence] is known")))
        }
        name if is_cache(name) => empty_cache(input),
        _ => Err(refused(input, "it is not known".to_owned())),
    }
}

/// Returns whether a name is that of cached keys or values: `past_key_values.0.key`, `past_key_values.0.decoder.value`, `past_0`,
/// `past_key_0`. Those of an encoder do not follow from the tokens.
fn is_cache(name: &str) -> bool {
    name.starts_with("past")
        && !name.contains("encoder")
        && name.rsplit(['.', '_']).any(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()))
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
