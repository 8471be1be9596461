//! A layer whose codes are about to be chosen. No graph and no engine.

use kvant_container::onnx::NodeProto;
use kvant_quant::reconstruction::ActivationFunction;

use crate::calibration_method::Channels;
use crate::element::Element;
use crate::graph::called;
use crate::quantization::CodeRange;
use crate::quantization::{Affine, quantize_value};
use crate::writing::BlockMap;

/// The codes a weight can take: an element type, scales and zero points. `value = scale * (code - zero_point)`.
#[derive(Debug, Clone, PartialEq)]
pub struct Grid {
    /// The element type of the codes.
    pub element: Element,
    /// The codes that may be used: the symmetric ones, as everywhere.
    pub codes: CodeRange,
    /// The axis of the weight whose entries have their own scales; `None` if there is one for all.
    pub axis: Option<usize>,
    /// One for each channel, or one for all.
    pub parameters: Vec<Affine>,
    scales: Scales,
}

/// The elements of a weight that share a scale.
#[derive(Debug, Clone, PartialEq)]
enum Scales {
    Channels(Channels),
    Blocks(BlockMap),
}

impl Grid {
    /// The grid of a weight of a shape. `parameters` has an entry for each place of the axis, or one.
    pub fn new(
        element: Element,
        codes: CodeRange,
        shape: &[usize],
        axis: Option<usize>,
        parameters: Vec<Affine>,
    ) -> Self {
        let axis = axis.filter(|_| parameters.len() > 1);
        Self { element, codes, axis, parameters, scales: Scales::Channels(Channels::of(shape, axis)) }
    }

    /// The grid of a weight whose blocks along the inputs of a product each have a scale: those of the first output first.
    pub fn in_blocks(element: Element, codes: CodeRange, blocks: BlockMap, parameters: Vec<Affine>) -> Self {
        Self { element, codes, axis: None, parameters, scales: Scales::Blocks(blocks) }
    }

    /// Weights along the inputs that share a scale; `None` where all of them do.
    pub fn block(&self) -> Option<usize> {
        match self.scales {
            Scales::Channels(_) => None,
            Scales::Blocks(map) => Some(map.block),
        }
    }

    /// Scale and zero point of an element of the weight, which lies row-major.
    pub fn affine(&self, element: usize) -> Affine {
        self.parameters[self.position(element)]
    }

    /// The position of an element's scale among the parameters.
    pub(super) fn position(&self, element: usize) -> usize {
        match self.scales {
            Scales::Channels(channels) => channels.channel(element),
            Scales::Blocks(blocks) => blocks.position(element),
        }
    }

    /// The nearest codes: `clamp(round(value / scale) + zero_point)`, half to even.
    pub fn nearest(&self, values: &[f32]) -> Vec<i32> {
        let code = |(i, &value): (usize, &f32)| quantize_value(value, self.affine(i), self.codes) as i32;
        values.iter().enumerate().map(code).collect()
    }

    /// The values of codes.
    pub fn values(&self, codes: &[i32]) -> Vec<f32> {
        let value = |(i, &code): (usize, &i32)| {
            let Affine { scale, zero_point } = self.affine(i);
            (i64::from(code) - zero_point) as f32 * scale
        };
        codes.iter().enumerate().map(value).collect()
    }
}

/// A layer: Conv, ConvTranspose, Gemm or MatMul with a constant weight that it alone reads, or a normalization with such a gain.
#[derive(Debug, Clone)]
pub struct Layer {
    /// The node of the float model, with its attributes and the names of its tensors.
    pub node: NodeProto,
    /// The shape of the weight, as it is stored.
    pub shape: Vec<usize>,
    /// The weight in float, row-major. Algorithms on the float model are in it already.
    pub weight: Vec<f32>,
    /// The codes it can take.
    pub grid: Grid,
    /// The bias, if the layer has its own.
    pub bias: Option<Vec<f32>>,
    /// The function behind the layer.
    pub function: ActivationFunction,
}

impl Layer {
    /// The name to report: the node's, or that of its output.
    pub fn name(&self) -> &str {
        called(&self.node)
    }
}

/// The choice for a layer.
#[derive(Debug, Clone, PartialEq)]
pub struct Rounded {
    /// A code for each element of the weight, in [`Grid::codes`].
    pub codes: Vec<i32>,
    /// Another bias; `None` leaves the layer's.
    pub bias: Option<Vec<f32>>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn per_channel_codes_use_their_own_scales() {
        let parameters = [0.5, 2.0].map(|scale| Affine { scale, zero_point: 1 }).to_vec();
        let grid = Grid::new(Element::Int8, Element::Int8.range(true).unwrap(), &[2, 2], Some(1), parameters);
        assert_eq!(grid.nearest(&[1.0, 1.0, -100.0, 6.1]), [3, 1, -127, 4]);
        assert_eq!(grid.values(&[3, 1, -127, 4]), [1.0, 0.0, -64.0, 6.0]);
    }
}
