//! The weight of `com.microsoft.MatMulNBits` as floats.
//!
//! Codes are `[N, K / block, block * bits / 8]`, the first code of a byte in its lowest bits, K padded; scales `[N, K / block]`; zero points
//! packed like the codes, each row padded to bytes, or numbers of the scales' type; `2^(bits - 1)` where there are none. A weight is
//! `(code - zero point) * scale`. Source: ONNX Runtime, ContribOperators.md.

use kvant_container::onnx::NodeProto;
use kvant_numeric::pack::unpacked_bits;

use super::KernelError;
use crate::data::{Array, Values};
use crate::graph::{int_attribute, positional_input};

/// The attributes of a MatMulNBits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NBits {
    inputs: usize,
    outputs: usize,
    bits: u32,
    block: usize,
}

impl NBits {
    /// The attributes of a node.
    ///
    /// # Errors
    /// Attributes that are missing or out of range, and an order of inputs in groups.
    pub fn of(node: &NodeProto) -> Result<NBits, KernelError> {
        let size = |name: &'static str, default: Option<i64>| {
            let value = int_attribute(node, name).or(default).unwrap_or(0);
            usize::try_from(value).ok().filter(|size| *size > 0).ok_or_else(|| KernelError::new(name, value))
        };
        if positional_input(node, 4).is_some() {
            return Err(KernelError::new("g_idx", "an input"));
        }
        let bits = int_attribute(node, "bits").unwrap_or(4);
        if !(2..=8).contains(&bits) {
            return Err(KernelError::new("bits", bits));
        }
        let block = size("block_size", None)?;
        if block % 8 != 0 {
            return Err(KernelError::new("block_size", block));
        }
        Ok(NBits { inputs: size("K", None)?, outputs: size("N", None)?, bits: bits as u32, block })
    }

    /// The weight `[K, N]`.
    ///
    /// # Errors
    /// Codes, scales or zero points that are fewer than the attributes say.
    pub fn weight(
        &self,
        codes: &Array<'_>,
        scales: &Array<'_>,
        zero_points: Option<&Array<'_>>,
    ) -> Result<Array<'static>, KernelError> {
        let NBits { inputs, outputs, bits, block } = *self;
        let blocks = inputs.div_ceil(block);
        let short = |name: &'static str| move || KernelError::new(name, "an array of another size");
        let scales = scales.to_f32s();
        let zero_points = self.zero_points(zero_points, blocks)?;
        let Values::U8(bytes) = codes.values() else { return Err(short("B")()) };
        let codes = unpacked_bits(bytes, bits, outputs * blocks * block).ok_or_else(short("B"))?;
        if scales.len() != outputs * blocks || zero_points.len() != scales.len() {
            return Err(short("scales")());
        }
        let mut weight = vec![0.0; inputs * outputs];
        for (output, row) in codes.chunks_exact(blocks * block).enumerate() {
            for (input, code) in row.iter().take(inputs).enumerate() {
                let group = output * blocks + input / block;
                weight[input * outputs + output] = (f32::from(*code) - zero_points[group]) * scales[group];
            }
        }
        Array::new(vec![inputs, outputs], Values::F32(weight.into())).ok_or_else(short("B"))
    }

    /// The zero point of every block, those of the first output first.
    fn zero_points(&self, stored: Option<&Array<'_>>, blocks: usize) -> Result<Vec<f32>, KernelError> {
        let Some(stored) = stored else { return Ok(vec![f32::from(1u8 << (self.bits - 1)); self.outputs * blocks]) };
        let Values::U8(bytes) = stored.values() else { return Ok(stored.to_f32s().into_owned()) };
        let row = (blocks * self.bits as usize).div_ceil(8);
        let rows = bytes.chunks_exact(row.max(1));
        let rows = rows.map(|row| unpacked_bits(row, self.bits, blocks).ok_or(()));
        let codes = rows.collect::<Result<Vec<_>, ()>>();
        let codes = codes.map_err(|()| KernelError::new("zero_points", "an array of another size"))?;
        Ok(codes.concat().into_iter().map(f32::from).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{node, set_attribute};

    fn of(bits: i64, inputs: i64) -> NBits {
        let mut made = node("MatMulNBits", "product", &["x", "b", "s"], &["y"]);
        for (name, value) in [("K", inputs), ("N", 2), ("bits", bits), ("block_size", 16)] {
            set_attribute(&mut made, name, value);
        }
        NBits::of(&made).unwrap()
    }

    #[test]
    fn codes_of_four_bits_start_with_the_low_half_and_padding_is_dropped() {
        // 20 inputs are two blocks, of which the second is padded.
        let mut bytes = vec![0x88u8; 32];
        bytes[0] = 0x1f;
        bytes[8] = 0xa9;
        bytes[16] = 0x0c;
        let codes = Array::of(vec![2, 2, 8], bytes).unwrap();
        let scales = Array::of(vec![2, 2], vec![0.5f32, 2.0, 1.0, 4.0]).unwrap();
        let weight = of(4, 20).weight(&codes, &scales, None).unwrap();
        assert_eq!(weight.shape(), [20, 2]);
        let at = |input: usize, output: usize| weight.f32s().unwrap()[input * 2 + output];
        assert_eq!([at(0, 0), at(1, 0), at(16, 0), at(17, 0)], [3.5, -3.5, 2.0, 4.0]);
        assert_eq!([at(0, 1), at(1, 1), at(2, 1)], [4.0, -8.0, 0.0]);
    }

    #[test]
    fn zero_points_are_packed_by_row_or_numbers() {
        let codes = Array::of(vec![2, 2, 8], vec![0x88u8; 32]).unwrap();
        let scales = Array::of(vec![2, 2], vec![1.0f32; 4]).unwrap();
        for zero_points in [
            Array::of(vec![2], vec![0x43u8, 0x65]).unwrap(),
            Array::of(vec![2, 2], vec![3.0f32, 4.0, 5.0, 6.0]).unwrap(),
        ] {
            let weight = of(4, 32).weight(&codes, &scales, Some(&zero_points)).unwrap();
            let at = |input: usize, output: usize| weight.f32s().unwrap()[input * 2 + output];
            assert_eq!([at(0, 0), at(16, 0), at(0, 1), at(16, 1)], [5.0, 4.0, 3.0, 2.0]);
        }
        let codes = Array::of(vec![2, 2, 16], vec![130u8; 64]).unwrap();
        assert!(of(8, 32).weight(&codes, &scales, None).unwrap().f32s().unwrap().iter().all(|value| *value == 2.0));
        assert!(of(8, 64).weight(&codes, &scales, None).is_err());
    }
}
