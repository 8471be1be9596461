//! OCP Microscaling as the operator `MXQuantizeDequantize` of `com.amd.quark` computes it: floats of 4, 6 and 8 bits, and 8-bit
//! integers, with a power of two for each block.

use kvant_container::onnx::NodeProto;
use kvant_numeric::format::MiniFloat;

use super::KernelError;
use super::bfp::Rounding;
use super::blocks::each_block;
use crate::graph::{int_attribute, string_attribute};

/// The element format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MxElement {
    /// A float; always rounded to even.
    Float(MiniFloat),
    /// An integer of 8 bits, six of them behind the point.
    Int8,
}

/// The elements by their names in the operator's attribute.
const ELEMENTS: &[(&str, MxElement)] = &[
    ("fp8_e5m2", MxElement::Float(MiniFloat::E5M2)),
    ("fp8_e4m3", MxElement::Float(MiniFloat::E4M3)),
    ("fp6_e3m2", MxElement::Float(MiniFloat::E3M2)),
    ("fp6_e2m3", MxElement::Float(MiniFloat::E2M3)),
    ("fp4_e2m1", MxElement::Float(MiniFloat::E2M1)),
    ("int8", MxElement::Int8),
];

impl MxElement {
    /// By the name in the operator's attribute.
    pub fn from_name(name: &str) -> Option<Self> {
        ELEMENTS.iter().find(|(known, _)| *known == name).map(|(_, element)| *element)
    }

    /// The name in the operator's attribute.
    pub fn name(self) -> &'static str {
        ELEMENTS.iter().find(|(_, element)| *element == self).map_or("", |(name, _)| name)
    }
}

/// Microscaling: blocks of `block` elements along `axis` with a shared power of two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Microscaling {
    /// The element format.
    pub element: MxElement,
    /// The axis of the blocks, negative from the end.
    pub axis: i64,
    /// Elements of a block.
    pub block: usize,
    /// How integers are rounded.
    pub rounding: Rounding,
}

impl Microscaling {
    /// Reads the attributes of a node, with the operator's defaults: int8, blocks of 32 along axis 1, halves away from zero.
    pub fn of(node: &NodeProto) -> Result<Self, KernelError> {
        let name = string_attribute(node, "element_dtype").unwrap_or("int8");
        let block = int_attribute(node, "block_size").unwrap_or(32);
        let size = usize::try_from(block).ok().filter(|&size| size > 0);
        Ok(Self {
            element: MxElement::from_name(name).ok_or_else(|| KernelError::new("element_dtype", name))?,
            axis: int_attribute(node, "axis").unwrap_or(1),
            block: size.ok_or_else(|| KernelError::new("block_size", block))?,
            rounding: Rounding::from_attribute(int_attribute(node, "rounding_mode").unwrap_or(0))?,
        })
    }

    /// Quantizes and dequantizes a tensor in place. Infinities and NaN stay.
    pub fn apply(&self, shape: &[usize], values: &mut [f32]) {
        each_block(shape, self.axis, self.block, values, |block| self.block(block));
    }

    /// With E the largest biased exponent of finite elements: elements are rounded in units of 2^(E - 127 - emax), emax the
    /// exponent of the largest element. Where that power is no normal float the block becomes zero.
    fn block(&self, block: &mut [f32]) {
        let finite = block.iter().filter(|v| v.is_finite());
        let exponent = finite.map(|&v| v.to_bits() >> 23 & 0xff).max().unwrap_or(0) as i32;
        match self.element {
            MxElement::Float(format) => {
                let power = exponent - format.max_exponent();
                each(block, power, |v| f64::from(format.round(v as f32)) + 0.0);
            }
            MxElement::Int8 => each(block, exponent - 6, |v| self.rounding.round(v).clamp(-128.0, 127.0)),
        }
        // The sign of zero is lost for floats alone.
        if matches!(self.element, MxElement::Float(_)) {
            block.iter_mut().filter(|v| **v == 0.0).for_each(|v| *v = 0.0);
        }
    }
}

/// Rounds finite values in units of 2^(power - 127).
fn each(block: &mut [f32], power: i32, round: impl Fn(f64) -> f64) {
    let unit = if power < 1 { 0.0 } else { 2f64.powi(power - 127) };
    for value in block.iter_mut().filter(|v| v.is_finite() && **v != 0.0) {
        *value = if unit == 0.0 { 0.0 } else { (round(f64::from(*value) / unit) * unit) as f32 };
    }
}
