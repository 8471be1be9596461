//! What decides the tensors of a quantized layer, and the refusal of a format that has no place for it.

use super::part::{Content, Part, ScaleEncoding};
use kvant_container::Dtype;
use kvant_numeric::kernel::FloatDType;
use kvant_numeric::pack::NibbleOrder;
use kvant_quant::scheme::{Axis, Granularity, IntScheme, LayerScheme, ScaleType, TensorScheme, ZeroPoint};

/// What a checkpoint format must know of a layer.
#[derive(Clone, Copy, Debug)]
pub struct LayerSpec<'a> {
    /// The module's name: tensors are called `name.weight` and so on.
    pub name: &'a str,
    /// Output channels.
    pub rows: usize,
    /// Input channels.
    pub columns: usize,
    /// The recipe.
    pub scheme: LayerScheme,
    /// The type of the weights in the source.
    pub source: FloatDType,
    /// The order of 4-bit codes in words, where the format leaves a choice.
    pub order: NibbleOrder,
    /// The tensor of all experts that it is one matrix of in the source.
    pub fused: Option<Fused<'a>>,
    /// Whether input channels may be grouped otherwise than as they stand.
    pub act_order: bool,
    /// The channels of each Hadamard matrix by which its inputs are rotated while the model runs; `None` where they are not.
    pub input_rotation: Option<usize>,
}

/// A tensor of all experts of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fused<'a> {
    /// Its name in the output.
    pub module: &'a str,
    /// The number of experts.
    pub count: usize,
}

/// A checkpoint format has no place for a layer (*unsupported*).
#[derive(Debug, Clone, thiserror::Error, PartialEq, Eq)]
#[error("{reason}")]
pub struct CannotHold {
    /// The reason.
    pub reason: String,
    /// The remedy.
    pub hint: String,
}

impl CannotHold {
    /// A refusal with the way out.
    pub fn new(reason: impl Into<String>, hint: impl Into<String>) -> CannotHold {
        CannotHold { reason: reason.into(), hint: hint.into() }
    }
}

impl<'a> LayerSpec<'a> {
    /// A layer of its own whose weight alone is quantized.
    pub fn weight_only(
        name: &'a str,
        (rows, columns): (usize, usize),
        scheme: TensorScheme,
        order: NibbleOrder,
    ) -> LayerSpec<'a> {
        let scheme = LayerScheme::weight_only(scheme);
        let (source, fused, act_order, input_rotation) = (FloatDType::F32, None, false, None);
        LayerSpec { name, rows, columns, scheme, source, order, fused, act_order, input_rotation }
    }

    /// The integers of a layout of `whom` that has groups along the input channels, scales in binary16, and float
    /// activations.
    pub fn grouped_int(&self, whom: &str, what: &str) -> Result<IntScheme, CannotHold> {
        let int = self.grouped_int_of_weight(whom, what);
        if self.scheme.input.is_some() || self.scheme.output.is_some() {
            let reason = format!("{whom} quantizes only weights, not `{}`", self.scheme);
            let without = "leave activations out with ‹weights-only›";
            // Leaving them out helps a weight only that the layout holds.
            let hint = int.map_or_else(|weight| format!("{}, and {without}", weight.hint), |_| without.to_owned());
            return Err(CannotHold::new(reason, hint));
        }
        int
    }

    /// The same of the weight, whatever becomes of activations.
    fn grouped_int_of_weight(&self, whom: &str, what: &str) -> Result<IntScheme, CannotHold> {
        let refuse = |hint: &str| CannotHold::new(format!("{whom} has no `{}`", self.scheme.weight), hint);
        let TensorScheme::Int(int) = self.scheme.weight else { return Err(refuse(&format!("use {what}"))) };
        let grouped = matches!(
            int.granularity,
            Granularity::Group { axis: Axis::Columns, .. } | Granularity::Channel(Axis::Rows)
        );
        match (grouped, int.zero_point, self.encoding(int.scale)) {
            (false, ..) => Err(refuse("use groups along the input channels (g128), or `channel`")),
            (_, ZeroPoint::Float, _) => Err(refuse("use integer zero points (`:zp`)")),
            (_, _, ScaleEncoding::F16) => Ok(int),
            _ => Err(refuse("its scales are in binary16: add `:f16` to the scheme")),
        }
    }

    /// Rows and columns of the matrix of scales.
    ///
    /// # Errors
    /// [`CannotHold`] where the shape of the weight does not suit the scheme.
    pub fn scale_shape(&self) -> Result<(usize, usize), CannotHold> {
        let granularity = self.scheme.weight.granularity().unwrap_or(Granularity::Tensor);
        let shape = granularity.scale_shape(self.rows, self.columns);
        shape.map_err(|problem| CannotHold::new(problem.to_string(), problem.hint()))
    }

    /// A tensor of the layer: `name.suffix`.
    pub fn part(&self, suffix: &str, dtype: Dtype, shape: impl Into<Vec<usize>>, content: Content) -> Part {
        Part { name: format!("{}.{suffix}", self.name), dtype, shape: shape.into(), content }
    }

    /// How plain scales of this type are stored.
    pub fn encoding(&self, scale: ScaleType) -> ScaleEncoding {
        plain_encoding(scale, self.source)
    }
}

/// How plain scales of this type are stored in a model of that type.
pub fn plain_encoding(scale: ScaleType, source: FloatDType) -> ScaleEncoding {
    match (scale, source) {
        (ScaleType::F16, _) | (ScaleType::Model, FloatDType::F16) => ScaleEncoding::F16,
        (ScaleType::Bf16, _) => ScaleEncoding::Bf16,
        (ScaleType::Model, FloatDType::Bf16 | FloatDType::E4m3 | FloatDType::E5m2) => ScaleEncoding::Bf16,
        (ScaleType::Model, FloatDType::F32) | (ScaleType::F32 | ScaleType::PowerOfTwo, _) => ScaleEncoding::F32,
    }
}
