//! A layer's operator as a product of a weight with patches: which element of the stored weight is which of the matrix, and
//! what the patches of an input are. No values of activations.

use kvant_container::onnx::NodeProto;
use kvant_numeric::linalg::{PatchAxis, Patches, Steps};
use kvant_quant::reconstruction::Shape;

use super::layer::Layer;
use super::normalization::{Normalization, normalization};
use crate::graph::{float_attribute, int_attribute, ints_attribute, string_attribute};

/// A layer as a matrix product.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Form {
    /// The sizes.
    pub shape: Shape,
    /// Its kind.
    pub kind: Kind,
}

/// The kind of a layer.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Kind {
    /// Conv or ConvTranspose.
    Convolution(Convolution),
    /// Gemm or MatMul.
    Product(Product),
    /// LayerNormalization or InstanceNormalization.
    Normalization(Normalization),
}

/// The window of a convolution.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Convolution {
    transposed: bool,
    kernel: Vec<usize>,
    strides: Vec<usize>,
    dilations: Vec<usize>,
    padding: Padding,
}

/// The padding before the first input of each axis.
#[derive(Debug, Clone, PartialEq)]
enum Padding {
    Explicit(Vec<i64>),
    /// As much as the output's size requires, the odd one after or before.
    Automatic {
        before: bool,
        extra: Vec<i64>,
    },
}

/// A product of matrices.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Product {
    /// Whether rows of the input are features.
    pub transposed: bool,
    /// Whether the weight is stored output by output.
    pub by_output: bool,
    /// The factor of the product.
    pub factor: f32,
}

impl Form {
    /// `None` for layers that are nothing of the kind.
    pub fn of(layer: &Layer) -> Option<Form> {
        Self::of_node(&layer.node, &layer.shape).filter(|form| form.shape.weights() == layer.weight.len())
    }

    /// The form of a node with a weight of a shape; `None` for nodes that are nothing of the kind.
    pub fn of_node(node: &NodeProto, weight: &[usize]) -> Option<Form> {
        let form = match node.op_type() {
            "Conv" | "ConvTranspose" => convolution(node, weight),
            "Gemm" => product(
                weight,
                Product {
                    transposed: int_attribute(node, "transA") == Some(1),
                    by_output: int_attribute(node, "transB") == Some(1),
                    factor: float_attribute(node, "alpha").unwrap_or(1.0),
                },
            ),
            "MatMul" => product(weight, Product { transposed: false, by_output: false, factor: 1.0 }),
            "LayerNormalization" | "InstanceNormalization" => normalization(node, weight),
            _ => None,
        };
        form.filter(|form| form.shape.weights() > 0)
    }

    /// The position of an output's weight.
    pub fn place(&self, output: usize, feature: usize) -> usize {
        let Shape { groups, outputs, features } = self.shape;
        match &self.kind {
            Kind::Convolution(convolution) if convolution.transposed => {
                let (per_group, taps) = (outputs / groups, convolution.taps());
                let (group, own) = (output / per_group, output % per_group);
                let channel = group * (features / taps) + feature / taps;
                (channel * per_group + own) * taps + feature % taps
            }
            Kind::Product(product) if !product.by_output => feature * outputs + output,
            _ => output * features + feature,
        }
    }

    /// A stored weight as `[outputs, features]`.
    pub fn rows(&self, stored: &[f32]) -> Vec<f32> {
        self.places().map(|place| stored[place]).collect()
    }

    fn places(&self) -> impl Iterator<Item = usize> {
        let Shape { outputs, features, .. } = self.shape;
        (0..outputs).flat_map(move |output| (0..features).map(move |feature| self.place(output, feature)))
    }
}

fn product(weight: &[usize], product: Product) -> Option<Form> {
    let &[rows, columns] = weight else { return None };
    let (outputs, features) = if product.by_output { (rows, columns) } else { (columns, rows) };
    Some(Form { shape: Shape { groups: 1, outputs, features }, kind: Kind::Product(product) })
}

fn convolution(node: &NodeProto, weight: &[usize]) -> Option<Form> {
    let transposed = node.op_type() == "ConvTranspose";
    let &[first, second, ref kernel @ ..] = weight else { return None };
    let axes = kernel.len();
    let positive = |name: &str| -> Option<Vec<usize>> {
        let Some(values) = ints_attribute(node, name).filter(|values| !values.is_empty()) else {
            return Some(vec![1; axes]);
        };
        let values: Option<Vec<usize>> = values.iter().map(|&v| usize::try_from(v).ok().filter(|&v| v > 0)).collect();
        values.filter(|values| values.len() == axes)
    };
    let convolution = Convolution {
        transposed,
        kernel: kernel.to_vec(),
        strides: positive("strides")?,
        dilations: positive("dilations")?,
        padding: padding(node, axes, transposed)?,
    };
    let groups = usize::try_from(int_attribute(node, "group").unwrap_or(1)).ok().filter(|&g| g > 0)?;
    let taps = convolution.taps();
    let (outputs, features) = match transposed {
        true => (second.checked_mul(groups)?, (first / groups).checked_mul(taps)?),
        false => (first, second.checked_mul(taps)?),
    };
    let divided = outputs % groups == 0 && (!transposed || first % groups == 0);
    let shape = Shape { groups, outputs, features };
    (divided && taps > 0 && outputs > 0).then_some(Form { shape, kind: Kind::Convolution(convolution) })
}

fn padding(node: &NodeProto, axes: usize, transposed: bool) -> Option<Padding> {
    let list = |name: &str, length: usize| match ints_attribute(node, name).filter(|values| !values.is_empty()) {
        Some(values) => Some(values.to_vec()).filter(|values| values.len() == length),
        None => Some(vec![0; length]),
    };
    let extra = if transposed { list("output_padding", axes)? } else { vec![0; axes] };
    let sized = transposed && ints_attribute(node, "output_shape").is_some_and(|shape| !shape.is_empty());
    match string_attribute(node, "auto_pad").unwrap_or("NOTSET") {
        "SAME_UPPER" => Some(Padding::Automatic { before: false, extra }),
        "SAME_LOWER" => Some(Padding::Automatic { before: true, extra }),
        "VALID" => Some(Padding::Explicit(vec![0; axes])),
        _ if sized => Some(Padding::Automatic { before: true, extra }),
        _ => Some(Padding::Explicit(list("pads", 2 * axes)?[..axes].to_vec())),
    }
}

impl Convolution {
    fn taps(&self) -> usize {
        self.kernel.iter().product()
    }

    /// The sizes of the outputs of a node for inputs of these sizes; `None` where the window does not fit them.
    pub fn outputs(&self, node: &NodeProto, inputs: &[usize]) -> Option<Vec<usize>> {
        let axes = self.kernel.len();
        let list = |name: &str| ints_attribute(node, name).filter(|values| !values.is_empty());
        if let Some(sizes) = list("output_shape").filter(|_| self.transposed) {
            return sizes.iter().rev().take(axes).rev().map(|&size| usize::try_from(size).ok()).collect();
        }
        let output = |axis: usize| {
            let number = |list: Option<&[i64]>, at: usize| list.map_or(Some(0), |values| values.get(at).copied());
            let (input, stride) = (i64::try_from(*inputs.get(axis)?).ok()?, self.strides[axis] as i64);
            let extent = (self.kernel[axis] as i64 - 1) * self.dilations[axis] as i64 + 1;
            let same = matches!(string_attribute(node, "auto_pad"), Some("SAME_UPPER" | "SAME_LOWER"));
            let pads = list("pads").filter(|_| matches!(self.padding, Padding::Explicit(_)));
            let pads = number(pads, axis)? + number(pads, axes + axis)?;
            let size = match (self.transposed, same) {
                (false, true) => (input + stride - 1) / stride,
                (true, true) => input * stride,
                (false, false) => (input + pads - extent).checked_div(stride)? + 1,
                (true, false) => (input - 1) * stride + number(list("output_padding"), axis)? + extent - pads,
            };
            usize::try_from(size).ok().filter(|size| *size > 0)
        };
        (inputs.len() == axes).then(|| (0..axes).map(output).collect())?
    }

    /// The patches of slopes along outputs of these sizes: their product with the weight, inputs and outputs exchanged, is the gradient of
    /// inputs of those. `None` where they do not fit.
    pub fn adjoint(&self, inputs: &[usize], outputs: &[usize]) -> Option<Patches> {
        let axis = |axis: usize| {
            let (input, output) = (inputs[axis], outputs[axis]);
            let before = self.before(axis, input, output)?;
            let steps =
                Steps { taps: self.kernel[axis], stride: self.strides[axis], dilation: self.dilations[axis], before };
            Some(match self.transposed {
                true => PatchAxis::convolution(steps, output, input),
                false => PatchAxis::transposed(steps, output, input),
            })
        };
        Patches::new((0..self.kernel.len()).map(axis).collect::<Option<Vec<_>>>()?)
    }

    /// The patches of inputs of these sizes, where the outputs have those; `None` where they do not fit.
    pub fn patches(&self, inputs: &[usize], outputs: &[usize]) -> Option<Patches> {
        let axes = self.kernel.len();
        if inputs.len() != axes || outputs.len() != axes {
            return None;
        }
        let axis = |axis: usize| {
            let (input, output) = (inputs[axis], outputs[axis]);
            let before = self.before(axis, input, output)?;
            let steps =
                Steps { taps: self.kernel[axis], stride: self.strides[axis], dilation: self.dilations[axis], before };
            Some(match self.transposed {
                true => PatchAxis::transposed(steps, input, output),
                false => PatchAxis::convolution(steps, input, output),
            })
        };
        Patches::new((0..axes).map(axis).collect::<Option<Vec<_>>>()?)
    }

    fn before(&self, axis: usize, input: usize, output: usize) -> Option<i64> {
        let (before, extra) = match &self.padding {
            Padding::Explicit(pads) => return pads.get(axis).copied(),
            Padding::Automatic { before, extra } => (*before, *extra.get(axis)?),
        };
        let extent = self.kernel[axis].checked_sub(1)?.checked_mul(self.dilations[axis])?.checked_add(1)?;
        // The longer side runs over all but one of the positions of the shorter.
        let (longer, shorter) = if self.transposed { (output, input) } else { (input, output) };
        let span = shorter.checked_sub(1)?.checked_mul(self.strides[axis])?.checked_add(extent)?;
        let total = (i64::try_from(span).ok()? + extra - i64::try_from(longer).ok()?).max(0);
        // Engines disagree about where the odd one of a transposed convolution goes.
        let odd = total % 2;
        let certain = odd == 0 || !self.transposed;
        certain.then_some(total / 2 + if before { odd } else { 0 })
    }
}
