//! The values of a part of a quantized tensor, row by row through the kernels. Not their definition, which is
//! [`QuantTensor::dequantize`].

use crate::quant_tensor::{Codes, QuantTensor};
use crate::scheme::TensorScheme;
use kvant_numeric::format::Int;
use kvant_numeric::kernel::{CodeKind, RowScales, dequantize_row};
use kvant_numeric::simd::Isa;
use std::ops::Range;

/// The way kernels read a tensor's codes.
struct Kernel<'t> {
    kind: CodeKind,
    codes: &'t [u8],
    /// Multiplies the scales.
    of_scales: Option<f32>,
    /// Multiplies the values.
    of_values: Option<f32>,
}

impl QuantTensor {
    /// The values of some rows and columns, row-major, appended to `out`: bit for bit those of
    /// [`dequantize`](Self::dequantize).
    ///
    /// # Panics
    ///
    /// If there are fewer rows or columns.
    pub fn dequantize_rows(&self, isa: Isa, rows: Range<usize>, columns: Range<usize>, out: &mut Vec<f32>) {
        let start = out.len();
        let width = columns.len();
        out.resize(start + rows.len() * width, 0.0);
        let lines = rows.clone().zip(out[start..].chunks_mut(width.max(1)));
        match self.kernel(rows) {
            Some(kernel) => lines.for_each(|(row, out)| self.kernel_row(isa, &kernel, row, columns.clone(), out)),
            None => lines.for_each(|(row, out)| self.plain_row(row, columns.clone(), out)),
        }
    }

    /// `None` where the kernels compute something else: for codes of more than a byte, and fractional zero points,
    /// whose differences from codes are those of f64.
    fn kernel(&self, rows: Range<usize>) -> Option<Kernel<'_>> {
        let Codes::Bytes(codes) = &self.codes else { return None };
        let (tile_rows, line) = (self.tile().0, self.scale_shape.1);
        let lines = rows.start / tile_rows * line..rows.end.div_ceil(tile_rows) * line;
        let zero_points = self.zero_points.get(lines).unwrap_or_default();
        let whole = zero_points.iter().all(|zero_point| *zero_point == f64::from(*zero_point as i32));
        let (kind, of_scales, of_values) = match self.scheme {
            TensorScheme::Int(scheme) if whole => (bytes_of(scheme.format), None, None),
            TensorScheme::Progressive { second, .. } if whole => (bytes_of(second.format), None, self.global_scale),
            TensorScheme::Float(scheme) => (CodeKind::Float(scheme.format), self.global_scale, None),
            _ => return None,
        };
        Some(Kernel { kind, codes, of_scales, of_values })
    }

    fn kernel_row(&self, isa: Isa, kernel: &Kernel<'_>, row: usize, columns: Range<usize>, out: &mut [f32]) {
        let (tile_rows, group) = self.tile();
        let line = row / tile_rows * self.scale_shape.1;
        let touched = line + columns.start / group..line + columns.end.div_ceil(group);
        let factor = kernel.of_scales;
        let scales: Option<Vec<f32>> = factor.map(|g| self.scales[touched.clone()].iter().map(|s| s * g).collect());
        let zero_points = self.zero_points.get(touched.clone()).unwrap_or_default();
        let zero_points: Vec<f32> = zero_points.iter().map(|zero_point| *zero_point as f32).collect();
        let scales = scales.as_deref().unwrap_or(&self.scales[touched]);
        let codes = &kernel.codes[row * self.columns..][columns.clone()];
        let first = group - columns.start % group;
        dequantize_row(isa, kernel.kind, codes, RowScales { scales, zero_points: &zero_points, group, first }, out);
        if let Some(factor) = kernel.of_values {
            out.iter_mut().for_each(|value| *value *= factor);
        }
    }

    fn plain_row(&self, row: usize, columns: Range<usize>, out: &mut [f32]) {
        let (tile_rows, group) = self.tile();
        let line = row / tile_rows * self.scale_shape.1;
        for (column, out) in columns.zip(out) {
            *out = self.value(row * self.columns + column, line + column / group);
        }
    }
}

/// Codes are whole bytes in two's complement, however few bits the format has.
fn bytes_of(format: Int) -> CodeKind {
    CodeKind::Integer { bits: 8, signed: format.is_signed() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rounding::{Rtn, TensorContext};
    use kvant_numeric::ComputeDType;

    const SHAPE: (usize, usize) = (12, 96);

    fn tensor(scheme: &str) -> QuantTensor {
        let (rows, columns) = SHAPE;
        let value = |i: usize| (((i * 2_654_435_769) >> 7) % 1999) as f32 / 500.0 - 1.5 + (i % columns) as f32 / 50.0;
        let values: Vec<f32> = (0..rows * columns).map(value).collect();
        let rtn = Rtn::new(scheme.parse().unwrap(), TensorContext::new(ComputeDType::F32)).unwrap();
        rtn.round(&values, rows, columns).unwrap()
    }

    #[test]
    fn partial_dequantize_matches_the_whole_bit_for_bit() {
        let schemes = [
            "int4:g32",
            "uint4:g32:zp",
            "uint4:g32:fzp",
            "int3:channel",
            "int8:tensor",
            "int8:channel@1",
            "int16:g32",
            "e4m3:b4x32",
            "e2m1:g32:e8m0",
            "e2m1:g16:e4m3:f32",
            "int4:channel:f32/e4m3:tensor:f32",
        ];
        let parts = [(0..12, 0..96), (3..7, 0..96), (2..11, 16..80), (5..6, 31..33), (4..4, 0..96), (0..12, 7..7)];
        for scheme in schemes {
            let tensor = tensor(scheme);
            let whole = tensor.dequantize();
            for (rows, columns) in parts.clone() {
                let mut part = vec![7.0];
                tensor.dequantize_rows(Isa::best(), rows.clone(), columns.clone(), &mut part);
                let expected = rows.flat_map(|row| whole[row * 96..][columns.clone()].to_vec());
                assert!(part[1..].iter().map(|v| v.to_bits()).eq(expected.map(f32::to_bits)), "{scheme}");
                assert_eq!(part[0], 7.0);
            }
        }
    }
}
