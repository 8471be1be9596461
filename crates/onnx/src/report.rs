//! The report of a run, tensor by tensor: as a table and as JSON.

use std::collections::BTreeMap;

use kvant_numeric::DType;
use kvant_quant::activation::{ActivationHistogram, CoveredRange};
use kvant_quant::distribution::Distribution;
use serde::{Serialize, Serializer};

use crate::algorithm::{
    EqualizedPair, LayerGain, LearnedBlock, LeftBlock, LeftInput, LeftStream, LimitedWeight, RotatedStream, ScaledInput,
};
use crate::count::{ConstantBytes, Counts};
use crate::element::Element;
use crate::placement::Placement;
use crate::quantization::Range;
use crate::verify::Saturation;
use crate::writing::float16::Converted;

/// A range in JSON.
fn low_and_high<S: Serializer>(range: &Option<Range>, serializer: S) -> Result<S::Ok, S::Error> {
    #[derive(Serialize)]
    struct Ends {
        low: f32,
        high: f32,
    }
    range.map(|range| Ends { low: range.min, high: range.max }).serialize(serializer)
}

/// One quantized tensor.
#[derive(Debug, Clone, Serialize)]
pub struct TensorReport {
    /// Its name.
    pub name: String,
    /// `activation`, `weight` or `bias`.
    pub role: &'static str,
    /// The element type.
    #[serde(rename = "dtype")]
    pub element: String,
    /// The first scale.
    pub scale: Option<f32>,
    /// The first zero point.
    pub zero_point: Option<i64>,
    /// Number of scales; none for a bias, whose scales are those of its product.
    pub scales: usize,
    /// The range the scale was made from.
    #[serde(serialize_with = "low_and_high")]
    pub range: Option<Range>,
    /// The calibration method that the range comes from, where it was to be found (`auto`).
    pub method: Option<&'static str>,
    /// The tensor it has its scale from.
    pub shares: Option<String>,
    /// The values that were observed and the range that the scale covers, where a report shows them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub histogram: Option<ActivationHistogram>,
}

impl TensorReport {
    /// The values that the scale covers; `None` where channels have scales of their own.
    fn covered(&self, element: Element) -> Option<CoveredRange> {
        let scale = self.scale.filter(|_| self.scales == 1)?;
        match (element.full_range(), element.dtype()) {
            (Some(codes), _) => Some(CoveredRange::of_codes(codes, scale, self.zero_point? as f64)),
            (None, Some(DType::MiniFloat(float))) => Some(CoveredRange::of_floats(float, scale)),
            _ => None,
        }
    }
}

/// The result of a run.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// How much is quantized.
    #[serde(flatten)]
    pub counts: Counts,
    /// Bytes of constants.
    pub constants: ConstantBytes,
    /// Samples that ranges come from.
    pub samples: usize,
    /// Rewrites by each pass that made any.
    pub passes: Vec<(String, usize)>,
    /// The algorithms that ran, in order.
    pub algorithms: Vec<String>,
    /// Pairs of layers that were equalized.
    pub equalized: Vec<EqualizedPair>,
    /// Streams of channels that were rotated.
    pub rotated: Vec<RotatedStream>,
    /// Streams of channels that could not be rotated, and why.
    pub not_rotated: Vec<LeftStream>,
    /// Tensors whose channels were scaled.
    pub scaled_inputs: Vec<ScaledInput>,
    /// Tensors whose channels an algorithm left as they are, and why.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub not_scaled: Vec<LeftInput>,
    /// Weights that an algorithm has clipped.
    pub limited_weights: Vec<LimitedWeight>,
    /// The gain of algorithms for each layer whose codes or biases they chose.
    pub gains: Vec<LayerGain>,
    /// Blocks of layers whose codes and scales were learned together.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub learned_blocks: Vec<LearnedBlock>,
    /// Blocks that could not be learned together, and why.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub not_learned: Vec<LeftBlock>,
    /// Tensors and nodes that are left in float, and why.
    pub left_in_float: Vec<(String, String)>,
    /// Tensors whose scale was changed for the hardware or for a bias.
    pub adjusted: Vec<String>,
    /// Biases with int16 codes because int32 codes with the scale of the product cannot hold them.
    pub wide_biases: Vec<String>,
    /// Constants of a model converted to 16 bits that had values beyond the type's range, and how many: they are limited.
    pub limited: Vec<(String, usize)>,
    /// Constants of a model converted to 16 bits most of whose values are too small for the type, and how many: they become its smallest.
    pub raised: Vec<(String, usize)>,
    /// Tensors in which the float model computed NaN on the calibration data. Their ranges are those of the other values.
    pub not_numbers: Vec<String>,
    /// Products whose sums can saturate on some processors.
    pub saturation: Option<Saturation>,
    /// Every quantized tensor.
    pub tensors: Vec<TensorReport>,
}

impl Report {
    /// Adds the methods by which ranges of activations were found.
    pub fn methods(&mut self, methods: &BTreeMap<String, &'static str>) {
        let activations =
            self.tensors.iter_mut().filter(|tensor| tensor.role == "activation" && tensor.shares.is_none());
        activations.for_each(|tensor| tensor.method = methods.get(&tensor.name).copied());
    }

    /// Adds the histograms of activations whose distributions were gathered; `distribution` finds that of a tensor.
    pub(crate) fn histograms<'d>(
        &mut self,
        placement: &Placement,
        distribution: impl Fn(&String) -> Option<&'d Distribution>,
    ) {
        for tensor in self.tensors.iter_mut().filter(|tensor| tensor.role == "activation" && tensor.shares.is_none()) {
            let Some(found) = distribution(&tensor.name) else { continue };
            let element = placement.activations.get(&tensor.name).map(|activation| activation.scheme.element);
            tensor.histogram = ActivationHistogram::new(found, element.and_then(|element| tensor.covered(element)));
        }
    }

    /// Takes in what a conversion to another float type did.
    pub fn converted(&mut self, done: Converted) {
        self.limited = done.limited.into_iter().collect();
        self.raised = done.raised.into_iter().collect();
    }
}
