//! Weights of products as rows, one for each output, whichever way they lie in the graph.

use kvant_container::onnx::{GraphProto, TensorProto};

use crate::algorithm::input_scaling::{Scaled, SharedInputGroup};
use crate::error::QuantizeError;
use crate::graph::Index;
use crate::solution::values;

/// The weights of the readers.
pub(super) fn all_rows(graph: &GraphProto, readers: &SharedInputGroup) -> Result<Vec<Vec<f32>>, QuantizeError> {
    let index = Index::new(graph);
    let found = readers.weights.iter().filter_map(|weight| Some((weight, index.constant(graph, &weight.name)?)));
    found.map(|(weight, tensor)| rows(tensor, weight, readers.channels)).collect()
}

/// A weight, a row of `channels` for each output.
pub(super) fn rows(tensor: &TensorProto, weight: &Scaled, channels: usize) -> Result<Vec<f32>, QuantizeError> {
    let source = values(tensor)?;
    Ok(places(weight, channels, source.len()).into_iter().map(|place| source[place]).collect())
}

/// The position of each row element in the weight.
pub(super) fn places(weight: &Scaled, channels: usize, elements: usize) -> Vec<usize> {
    let outputs = elements / channels.max(1);
    let mut places = vec![0usize; outputs * channels];
    let mut filled = vec![0usize; channels];
    for element in 0..elements {
        // Elements of a channel come in the order of the outputs, whichever way the weight lies.
        let channel = weight.map.channel(element);
        if filled[channel] < outputs {
            places[filled[channel] * channels + channel] = element;
            filled[channel] += 1;
        }
    }
    places
}
