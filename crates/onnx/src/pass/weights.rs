//! Constants as numbers in passes that compute new weights, each operator rounded to the weights' type as a runtime would.

use half::{bf16, f16};
use kvant_container::onnx::{DataType, GraphProto, TensorProto};

use super::{Context, PassError};
use crate::constant::{Numbers, Value};
use crate::graph::Index;

/// A constant tensor of floats.
#[derive(Debug, Clone)]
pub(super) struct Floats {
    pub(super) data_type: DataType,
    pub(super) shape: Vec<usize>,
    pub(super) values: Vec<f64>,
}

impl Floats {
    /// The contents of a tensor that nothing can change, if they are floats and at least one.
    pub(super) fn of(index: &Index, graph: &GraphProto, name: &str) -> Option<Self> {
        let value = Value::of_tensor(index.constant(graph, name)?)?;
        let values = value.as_floats().filter(|values| !values.is_empty())?;
        Some(Self { data_type: value.data_type(), shape: value.shape().to_vec(), values })
    }

    /// A vector of one number.
    pub(super) fn filled(data_type: DataType, length: usize, number: f64) -> Self {
        Self { data_type, shape: vec![length], values: vec![number; length] }
    }

    /// Each element with the element of another tensor of as many, through a function and one rounding.
    pub(super) fn with(&self, other: &Self, operator: fn(f64, f64) -> f64) -> Self {
        let pairs = self.values.iter().zip(&other.values);
        let values = pairs.map(|(&a, &b)| rounded(self.data_type, operator(a, b))).collect();
        Self { values, ..self.clone() }
    }

    /// Each element through a function and one rounding.
    pub(super) fn map(&self, function: impl Fn(f64) -> f64) -> Self {
        let values = self.values.iter().map(|&v| rounded(self.data_type, function(v))).collect();
        Self { values, ..self.clone() }
    }

    /// Multiplies with a factor for each position along an axis.
    pub(super) fn scaled(&self, axis: usize, factor: impl Fn(usize) -> f64) -> Self {
        let inner: usize = self.shape[axis + 1..].iter().product();
        let length = self.shape[axis];
        let product = |(i, &v): (usize, &f64)| rounded(self.data_type, v * factor(i / inner % length));
        Self { values: self.values.iter().enumerate().map(product).collect(), ..self.clone() }
    }

    /// As a tensor of a name; `None` never happens for what [`Self::of`] read.
    pub(super) fn into_tensor(self, name: &str, context: &Context<'_>) -> Result<Option<TensorProto>, PassError> {
        let value = Numbers::Floats(self.values).into_value(self.data_type, &self.shape);
        value.map(|value| Ok(context.keep(value)?.into_tensor(name))).transpose()
    }
}

/// A number as the type holds it.
fn rounded(data_type: DataType, value: f64) -> f64 {
    match data_type {
        DataType::FLOAT => (value as f32).into(),
        DataType::FLOAT16 => f16::from_f64(value).to_f64(),
        DataType::BFLOAT16 => bf16::from_f64(value).to_f64(),
        _ => value,
    }
}
