//! Block floating point as the operator `BFPQuantizeDequantize` of `com.amd.quark` computes it: BFP16, MX4, MX6 and MX9.

use kvant_container::onnx::NodeProto;
use kvant_numeric::arithmetic::round_to_bf16;

use super::KernelError;
use super::blocks::each_block;
use crate::graph::{int_attribute, string_attribute};

/// The rounding of a mantissa.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rounding {
    /// To the nearest, halves away from zero: 0 in the operator's attributes.
    HalfAway,
    /// To the nearest, halves towards plus infinity: 1.
    HalfUp,
    /// To the nearest, halves to even: 2.
    HalfEven,
}

impl Rounding {
    /// Of the operator's attribute.
    pub fn from_attribute(value: i64) -> Result<Self, KernelError> {
        match value {
            0 => Ok(Self::HalfAway),
            1 => Ok(Self::HalfUp),
            2 => Ok(Self::HalfEven),
            other => Err(KernelError::new("rounding_mode", other)),
        }
    }

    /// The value of the operator's attribute.
    pub fn attribute(self) -> i64 {
        match self {
            Self::HalfAway => 0,
            Self::HalfUp => 1,
            Self::HalfEven => 2,
        }
    }

    /// The nearest integer. Halves to even give no negative zero, which is what the operators do.
    pub(super) fn round(self, value: f64) -> f64 {
        match self {
            Self::HalfAway => value.round(),
            Self::HalfUp if value - value.trunc() == -0.5 => value.ceil(),
            Self::HalfUp => value.round(),
            Self::HalfEven => value.round_ties_even() + 0.0,
        }
    }
}

/// The shared exponents of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BfpMethod {
    /// An exponent: `to_bfp`.
    Shared,
    /// An exponent, and pairs of elements a smaller one: `to_bfp_prime`.
    SharedAndSub {
        /// Elements that share the smaller exponent.
        sub_block: usize,
        /// Bits of it: it lowers the block's by at most `2^bits - 1`.
        shift_bits: u32,
    },
}

/// Block floating point: blocks of `block` elements along `axis` with a shared exponent, and mantissas of `mantissa_bits` and
/// a sign.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bfp {
    /// The shared part.
    pub method: BfpMethod,
    /// The axis of the blocks, negative from the end.
    pub axis: i64,
    /// Bits of the magnitude: the operator's `bit_width` without 8 of the exponent and one of the sign.
    pub mantissa_bits: u32,
    /// Elements of a block.
    pub block: usize,
    /// How mantissas are rounded.
    pub rounding: Rounding,
    /// Whether values are rounded to bfloat16 first.
    pub bf16_first: bool,
    /// Whether a block whose largest mantissa rounds up beyond its bits takes the next exponent, in place of saturating.
    pub next_exponent: bool,
}

impl Bfp {
    /// Reads the attributes of a node, with the operator's defaults: BFP16, halves away from zero.
    pub fn of(node: &NodeProto) -> Result<Self, KernelError> {
        let get = |name: &'static str, default: i64| int_attribute(node, name).unwrap_or(default);
        let size = |name: &'static str, default: i64| {
            let value = get(name, default);
            usize::try_from(value).ok().filter(|&v| v > 0).ok_or_else(|| KernelError::new(name, value))
        };
        let method = match string_attribute(node, "bfp_method").unwrap_or("to_bfp") {
            "to_bfp" => BfpMethod::Shared,
            "to_bfp_prime" => {
                let bits = get("sub_block_shift_bits", 1);
                let shift_bits = u32::try_from(bits).ok().filter(|&b| b <= 8);
                let shift_bits = shift_bits.ok_or_else(|| KernelError::new("sub_block_shift_bits", bits))?;
                BfpMethod::SharedAndSub { sub_block: size("sub_block_size", 2)?, shift_bits }
            }
            other => return Err(KernelError::new("bfp_method", other)),
        };
        let width = get("bit_width", 16);
        // Up to the mantissa of a float, below which nothing is left to round.
        let mantissa_bits = u32::try_from(width - 9).ok().filter(|bits| (1..=23).contains(bits));
        Ok(Self {
            method,
            axis: get("axis", 1),
            mantissa_bits: mantissa_bits.ok_or_else(|| KernelError::new("bit_width", width))?,
            block: size("block_size", 8)?,
            rounding: Rounding::from_attribute(get("rounding_mode", 0))?,
            bf16_first: get("convert_to_bfloat_before_bfp", 0) != 0,
            next_exponent: get("use_compiler_version_cpu_kernel", 0) != 0,
        })
    }

    /// Quantizes and dequantizes a tensor in place. One value alone stays as it is.
    pub fn apply(&self, shape: &[usize], values: &mut [f32]) {
        if values.len() == 1 {
            return;
        }
        each_block(shape, self.axis, self.block, values, |block| {
            if self.bf16_first {
                block.iter_mut().for_each(|v| *v = round_to_bf16(*v));
            }
            match self.method {
                BfpMethod::Shared => self.shared(block),
                BfpMethod::SharedAndSub { sub_block, shift_bits } => self.with_sub(block, sub_block, shift_bits),
            }
        });
    }

    /// With E the largest exponent of finite elements and m the mantissa's bits: rounded to multiples of 2^(E - m + 1), of
    /// magnitudes below 2^(E + 1). Infinities and NaN stay.
    fn shared(&self, block: &mut [f32]) {
        let finite = block.iter().filter(|v| v.is_finite());
        let mut exponent = finite.map(|&v| biased_exponent(v)).max().unwrap_or(0) as i32 - 127;
        let step = |exponent: i32| 2f64.powi(exponent + 1 - self.mantissa_bits as i32);
        let beyond = |exponent: i32| {
            let limit = 2f64.powi(self.mantissa_bits as i32);
            block.iter().any(|&v| v.is_finite() && self.rounding.round(f64::from(v) / step(exponent)).abs() >= limit)
        };
        if self.next_exponent && beyond(exponent) {
            exponent += 1;
        }
        let step = step(exponent);
        let limit = 2f64.powi(exponent + 1) - step;
        for value in block.iter_mut().filter(|v| v.is_finite() && **v != 0.0) {
            *value = (self.rounding.round(f64::from(*value) / step) * step).clamp(-limit, limit) as f32;
        }
    }

    /// With E the largest biased exponent of the block and s what the sub-block's largest is below it, as far as its bits
    /// tell: multiples of 2^(E - 127 - s + 1 - m), magnitudes of m bits. An infinity or NaN makes the block NaN.
    fn with_sub(&self, block: &mut [f32], sub_block: usize, shift_bits: u32) {
        let largest = |values: &[f32]| values.iter().map(|&v| biased_exponent(v)).max().unwrap_or(0) as i32;
        let exponent = largest(block);
        if exponent == 0xff {
            return block.fill(f32::NAN);
        }
        let most = (1 << shift_bits) - 1;
        let largest_mantissa = f64::from((1u32 << self.mantissa_bits) - 1);
        for sub in block.chunks_mut(sub_block) {
            let lower = (exponent - largest(sub)).min(most);
            let step = 2f64.powi(exponent - 127 - lower + 1 - self.mantissa_bits as i32);
            for value in sub.iter_mut() {
                let normal = if value.is_normal() { f64::from(*value) } else { 0.0 };
                let mantissa = self.rounding.round(normal / step).abs().min(largest_mantissa);
                *value = (mantissa * step).copysign(f64::from(*value)) as f32;
            }
        }
    }
}

fn biased_exponent(value: f32) -> u32 {
    value.to_bits() >> 23 & 0xff
}
