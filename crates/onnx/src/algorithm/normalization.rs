//! The gain of a normalization as the weight of a product: each channel has its own group with one input, the normalized
//! value. `y[c] = gain[c] * (x[c] - mean) / sqrt(variance + epsilon) + bias[c]`, as ONNX defines LayerNormalization and
//! InstanceNormalization. Statistics are in f64.

use kvant_container::onnx::NodeProto;
use kvant_quant::reconstruction::Shape;

use super::form::{Form, Kind};
use crate::graph::{float_attribute, int_attribute};

/// A normalization.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Normalization {
    /// The axes of a mean and a variance.
    pub over: Over,
    epsilon: f64,
}

/// The values that are normalized together.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Over {
    /// The channels of a position, on the last axis. The axis is as the node has it.
    Channels { axis: i64 },
    /// The positions of a channel, which is axis 1.
    Positions,
}

/// The form of a normalization whose gain is a vector.
pub(super) fn normalization(node: &NodeProto, gain: &[usize]) -> Option<Form> {
    let &[channels] = gain else { return None };
    let over = match node.op_type() {
        "LayerNormalization" => Over::Channels { axis: int_attribute(node, "axis").unwrap_or(-1) },
        _ => Over::Positions,
    };
    // Mean and deviation may be outputs too: those of the layer alone would not be all that is made.
    let whole = node.output.iter().skip(1).all(String::is_empty);
    let epsilon = f64::from(float_attribute(node, "epsilon").unwrap_or(1e-5));
    let shape = Shape { groups: channels, outputs: channels, features: 1 };
    whole.then_some(Form { shape, kind: Kind::Normalization(Normalization { over, epsilon }) })
}

impl Normalization {
    /// The normalized values of an input of a shape, in its order; `None` where the shape is not one it takes.
    pub fn normalized(self, shape: &[usize], channels: usize, values: &[f32]) -> Option<Vec<f32>> {
        let last = i64::try_from(shape.len()).ok()? - 1;
        let together = match (self.over, shape) {
            (Over::Channels { axis }, [.., size]) => {
                (*size == channels && (axis == -1 || axis == last)).then_some(*size)?
            }
            (Over::Positions, [_, size, places @ ..]) => (*size == channels).then(|| places.iter().product())?,
            _ => return None,
        };
        let mut made = values.to_vec();
        made.chunks_mut(together.max(1)).for_each(|values| self.normalize(values));
        Some(made)
    }

    fn normalize(self, values: &mut [f32]) {
        let count = values.len() as f64;
        let mean = values.iter().map(|&v| f64::from(v)).sum::<f64>() / count;
        let variance = values.iter().map(|&v| (f64::from(v) - mean).powi(2)).sum::<f64>() / count;
        let factor = 1.0 / (variance + self.epsilon).sqrt();
        values.iter_mut().for_each(|v| *v = ((f64::from(*v) - mean) * factor) as f32);
    }
}
