//! Tensors of graphs, outside of an ONNX file: observation, scales and zero points as a run over a graph finds them. They differ from
//! those of checkpoints, which [`TensorObserver`](super::TensorObserver) finds: see [`kvant_quant::graph_grid`].

use super::matrix::Matrix;
use crate::error::{Error, ErrorKind};
use kvant_numeric::kernel::Range;
use kvant_onnx::calibration::{ObserverRef, Settings, WeightMethod, weight_parameters};
use kvant_onnx::element::Element;
use kvant_onnx::quantization::{Affine, ScaleKind, affine};
use kvant_onnx::solution::bias_scales::{is_wide, least_weight_scales, magnitudes, raise, wide_enough};
use kvant_quant::observer::{GraphStatistic, SampleView, UnknownObserver};

/// How a tensor of a graph is quantized to integers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GraphScheme {
    element: Element,
    symmetric: bool,
    scale: ScaleKind,
    observer: ObserverRef,
}

impl GraphScheme {
    /// A scheme by the names of its dtype, such as `uint8`, and its observer, such as `percentile99.99`.
    ///
    /// # Errors
    /// *Usage* for unknown names, *unsupported* for dtypes other than integers.
    pub fn new(dtype: &str, symmetric: bool, scale: ScaleKind, observer: &str) -> Result<GraphScheme, Error> {
        let unknown = |message: String, topic: &str| {
            Error::new(ErrorKind::Usage, message).with_hint(Some(format!("see `kvant list {topic}`")))
        };
        let element = dtype.parse::<Element>().map_err(|error| unknown(error.to_string(), "elements"))?;
        if !element.is_integer() {
            let hint = "use an integer dtype, such as int8";
            let error = Error::new(ErrorKind::Unsupported, format!("{element} has no codes with a zero point"));
            return Err(error.with_hint(Some(hint.to_owned())));
        }
        let observer = observer.parse().map_err(|error: UnknownObserver| unknown(error.to_string(), "observers"))?;
        Ok(GraphScheme { element, symmetric, scale, observer })
    }

    /// Scale and zero point of the values from `min` to `max`.
    pub fn range_parameters(&self, min: f32, max: f32) -> Affine {
        affine(Range { min, max }, self.element, self.symmetric, self.scale)
    }

    /// Scale and zero point of each row of a weight.
    pub fn row_parameters(&self, weight: &Matrix<'_>) -> Vec<Affine> {
        let GraphScheme { element, symmetric, scale, observer: method } = *self;
        let method = WeightMethod { element, symmetric, scale, method, reduce_range: false, full_range: false };
        let (rows, columns) = weight.shape();
        weight_parameters(&weight.values(), &[rows, columns], Some(0), method)
    }

    /// An observer of activations that has seen nothing.
    pub fn observer(&self) -> GraphObserver {
        let statistic = Settings::new(self.observer, self.element, self.symmetric, self.scale).start();
        GraphObserver { scheme: *self, statistic }
    }
}

/// What an observer keeps of the samples of an activation of a graph.
#[derive(Clone, Debug)]
pub struct GraphObserver {
    scheme: GraphScheme,
    statistic: GraphStatistic,
}

impl GraphObserver {
    /// Takes a sample in. NaN counts as no value, infinities as very large ones. Samples have an order: bins of histograms have
    /// the width that the first one asks for.
    pub fn update(&mut self, sample: &Matrix<'_>) {
        self.statistic.observe(&SampleView::new(&sample.values()));
    }

    /// Scale and zero point of what was seen; `None` before the first value.
    pub fn parameters(&self) -> Option<Affine> {
        self.statistic.full_range()?;
        let range = self.statistic.range();
        Some(self.scheme.range_parameters(range.min, range.max))
    }
}

/// A product of a graph, such as a convolution, before the scale of its bias is known.
#[derive(Clone, Copy, Debug)]
pub struct GraphProduct<'a> {
    /// The scale of its data.
    pub input: f32,
    /// The parameters of its weight: one, or one for each channel.
    pub weights: &'a [Affine],
    /// Whether its data have codes of 8 bits or fewer.
    pub reads_bytes: bool,
    /// Whether the scales of its weight are powers of two.
    pub has_power_of_two_scales: bool,
}

/// The scales of a product's weight and bias.
#[derive(Clone, Debug, PartialEq)]
pub struct ProductScales {
    /// Those of the weight, raised where the bias would leave int32.
    pub weights: Vec<f32>,
    /// Those of the bias: `s_input * s_weight`, or scales for codes of 16 bits where raising does not help.
    pub bias: Vec<f32>,
}

impl GraphProduct<'_> {
    /// The scales with which all values of a bias have codes.
    pub fn scales(&self, bias: &Matrix<'_>) -> ProductScales {
        let mut weights = self.weights.to_vec();
        let magnitudes = magnitudes(&bias.values(), weights.len());
        let least = least_weight_scales(&magnitudes, self.input.into());
        raise(&mut weights, &least, self.reads_bytes, self.has_power_of_two_scales);
        let products: Vec<f32> = weights.iter().map(|weight| self.input * weight.scale).collect();
        let is_wide = !self.reads_bytes && is_wide(&weights, &least);
        let bias = if is_wide { wide_enough(&products, &magnitudes, Element::Int16) } else { products };
        ProductScales { weights: weights.iter().map(|weight| weight.scale).collect(), bias }
    }
}
