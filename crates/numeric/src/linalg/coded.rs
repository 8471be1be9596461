//! A weight of codes in memory, in the order in which products with few rows read it: they decode it as they go, so that no more than
//! its codes and scales pass through memory. Not the product: see [`super::linear_rows`].

use super::linear_rows::{BLOCK, WeightRows, products};
use super::precision::Precision;
use crate::kernel::{CodeDecoder, CodeKind, FloatDecoder, IntegerDecoder};
use crate::simd::{Isa, Loop, dispatch};
use rayon::prelude::*;
use std::ops::Range;

/// Codes that have one scale at least.
const UNIT: usize = 16;
/// The binary logarithm of more units than a row has.
const MOST_UNITS: u32 = 48;
/// Rows that a thread packs at a time: as many as 4-bit codes in a cache line, which is how transposed codes are read.
const BAND: usize = 128;

/// A matrix of codes of at most eight bits with scales: values are `(code - zero point) * scale`.
#[derive(Clone, Debug)]
pub struct CodedMatrix {
    kind: CodeKind,
    rows: usize,
    columns: usize,
    /// Row by row: bytes, or nibbles, of which the lower ones hold the first half of a row.
    codes: Vec<u8>,
    scales: CodedScales,
    /// Scales of a line.
    scale_columns: usize,
    /// A unit has scale `unit >> shift` of its line.
    shift: u32,
}

/// Scales and zero points, line by line.
#[derive(Clone, Debug, PartialEq)]
pub struct CodedScales {
    /// One for each tile.
    pub scales: Vec<f32>,
    /// As many, or none where zero is code 0.
    pub zero_points: Vec<f32>,
    /// Rows and columns that share a scale.
    pub tile: (usize, usize),
}

impl CodedMatrix {
    /// Returns whether codes of such tiles are taken: as wide as the matrix, or 16 columns, or those times a power of two.
    pub fn takes(columns: usize, tile: (usize, usize)) -> bool {
        tile.0 > 0 && (tile.1 >= columns || (tile.1.is_power_of_two() && tile.1 >= UNIT))
    }

    /// The bytes of the codes of a matrix.
    pub fn code_bytes(kind: CodeKind, (rows, columns): (usize, usize)) -> usize {
        rows * row_bytes(kind, columns)
    }

    /// A matrix whose codes `read` writes, for any range of rows and on any thread: unsigned numbers, row by row.
    ///
    /// # Panics
    ///
    /// If such tiles are not [taken](Self::takes), or there are not as many scales as the shape asks for.
    pub fn new(
        kind: CodeKind,
        (rows, columns): (usize, usize),
        mut scales: CodedScales,
        read: impl Fn(Range<usize>, &mut [u8]) + Sync,
    ) -> CodedMatrix {
        let tile = scales.tile;
        let (scale_columns, count) = (columns.div_ceil(tile.1), scales.scales.len());
        let fits = rows.div_ceil(tile.0) * scale_columns == count && [0, count].contains(&scales.zero_points.len());
        assert!(Self::takes(columns, tile) && fits, "{count} scales of {tile:?} are not of {rows}x{columns}");
        // Without zero points, the difference is exact.
        scales.zero_points.resize(count, 0.0);
        let width = row_bytes(kind, columns);
        let mut codes = vec![0; rows * width];
        codes.par_chunks_mut((BAND * width).max(1)).enumerate().for_each_init(Vec::new, |band, (index, out)| {
            let rows = index * BAND..index * BAND + out.len() / width;
            band.resize(rows.len() * columns, 0);
            read(rows, band);
            band.chunks(columns).zip(out.chunks_mut(width)).for_each(|(codes, out)| pack_row(kind, codes, out));
        });
        let shift = if tile.1 >= columns { usize::BITS - 1 } else { (tile.1 / UNIT).trailing_zeros() };
        CodedMatrix { kind, rows, columns, codes, scales, scale_columns, shift }
    }

    /// Rows and columns.
    pub fn shape(&self) -> (usize, usize) {
        (self.rows, self.columns)
    }

    /// Bytes of codes, scales and zero points.
    pub fn bytes(&self) -> u64 {
        (self.codes.len() + 4 * (self.scales.scales.len() + self.scales.zero_points.len())) as u64
    }

    /// The values of some rows, appended to `out`.
    pub fn read(&self, isa: Isa, rows: Range<usize>, out: &mut Vec<f32>) {
        let start = out.len();
        out.resize(start + rows.len() * self.columns, 0.0);
        self.visit(rows, Reading { isa, columns: self.columns, out: &mut out[start..] });
    }

    /// The products of rows of `x` with some rows: a row of sums for each row of `x`. In bfloat16, values are rounded to it first.
    pub(super) fn multiply_rows(&self, rows: Range<usize>, x: &[f32], precision: Precision, sums: &mut [f32]) {
        let products = Multiplying { isa: Isa::best(), columns: self.columns, x, sums };
        match precision {
            Precision::F32 => self.visit(rows, products),
            Precision::Bf16 => self.visit(rows, RoundedFirst(products)),
        }
    }

    /// Runs `body` on some rows, whose type says how they are decoded.
    fn visit(&self, rows: Range<usize>, body: impl RowsVisitor) {
        match (self.kind, is_nibbles(self.kind)) {
            (CodeKind::Float(format), true) => body.visit(self.some::<_, true>(rows, FloatDecoder::new(format))),
            (CodeKind::Float(format), false) => body.visit(self.some::<_, false>(rows, FloatDecoder::new(format))),
            (kind, true) => body.visit(self.some::<_, true>(rows, IntegerDecoder::new(kind))),
            (kind, false) => body.visit(self.some::<_, false>(rows, IntegerDecoder::new(kind))),
        }
    }

    fn some<D, const NIBBLES: bool>(&self, rows: Range<usize>, decoder: D) -> CodedRows<'_, D, NIBBLES> {
        CodedRows { matrix: self, decoder, first: rows.start, count: rows.len() }
    }
}

/// Codes of at most four bits, of which a byte holds two.
fn is_nibbles(kind: CodeKind) -> bool {
    match kind {
        CodeKind::Integer { bits, .. } | CodeKind::OffsetInteger { bits } => bits <= 4,
        CodeKind::Float(format) => format.bits() <= 4,
    }
}

fn row_bytes(kind: CodeKind, columns: usize) -> usize {
    if is_nibbles(kind) { half(columns) } else { columns }
}

/// Codes of the first half of a row: whole units.
fn half(columns: usize) -> usize {
    columns.div_ceil(2).next_multiple_of(UNIT).min(columns)
}

fn pack_row(kind: CodeKind, codes: &[u8], out: &mut [u8]) {
    if !is_nibbles(kind) {
        return out.copy_from_slice(codes);
    }
    let (low, high) = codes.split_at(out.len());
    out.copy_from_slice(low);
    out.iter_mut().zip(high).for_each(|(out, code)| *out = (*out & 0xF) | code << 4);
}

/// Some rows of a matrix.
#[derive(Clone, Copy)]
struct CodedRows<'a, D, const NIBBLES: bool> {
    matrix: &'a CodedMatrix,
    decoder: D,
    first: usize,
    count: usize,
}

impl<D: CodeDecoder, const NIBBLES: bool> WeightRows for CodedRows<'_, D, NIBBLES> {
    #[inline(always)]
    fn count(self) -> usize {
        self.count
    }

    #[inline(always)]
    fn read(self, row: usize, from: usize, out: &mut [f32]) {
        let row = self.first + row;
        let columns = self.matrix.columns;
        if !NIBBLES {
            return self.read_run::<0>(row, from, &self.matrix.codes[row * columns + from..], out);
        }
        let half = half(columns);
        let codes = &self.matrix.codes[row * half..][..half];
        let (low, high) = out.split_at_mut(half.saturating_sub(from).min(out.len()));
        if !low.is_empty() {
            self.read_run::<0>(row, from, &codes[from..], low);
        }
        if !high.is_empty() {
            let from = from.max(half);
            self.read_run::<4>(row, from, &codes[from - half..], high);
        }
    }
}

impl<D: CodeDecoder, const NIBBLES: bool> CodedRows<'_, D, NIBBLES> {
    /// Decodes codes, which stand in their bytes from bit `SHIFT` on, from a unit on.
    #[inline(always)]
    fn read_run<const SHIFT: u32>(self, row: usize, from: usize, codes: &[u8], out: &mut [f32]) {
        let CodedMatrix { scales, scale_columns, shift, .. } = self.matrix;
        let line = row / scales.tile.0 * scale_columns;
        let mask = if NIBBLES { 0xF } else { 0xFF };
        let mut unit = from / UNIT;
        let (mut codes, mut out) = (codes, out);
        while !out.is_empty() {
            let place = line + (unit >> shift);
            let (scale, zero_point) = (scales.scales[place], scales.zero_points[place]);
            // Units up to the next scale.
            let units = if *shift < MOST_UNITS { (1 << shift) - (unit & ((1 << shift) - 1)) } else { BLOCK / UNIT };
            let width = (units * UNIT).min(out.len());
            let (values, rest) = std::mem::take(&mut out).split_at_mut(width);
            let (these, others) = codes.split_at(width);
            for (value, code) in values.iter_mut().zip(these) {
                *value = (self.decoder.decode((code >> SHIFT) & mask, 0.0) - zero_point) * scale;
            }
            (out, codes, unit) = (rest, others, unit + units);
        }
    }
}

/// The same rows, rounded to bfloat16.
#[derive(Clone, Copy)]
struct Rounded<W>(W);

impl<W: WeightRows> WeightRows for Rounded<W> {
    #[inline(always)]
    fn count(self) -> usize {
        self.0.count()
    }

    #[inline(always)]
    fn read(self, row: usize, from: usize, out: &mut [f32]) {
        self.0.read(row, from, out);
        for value in out {
            *value = Precision::Bf16.round(*value);
        }
    }
}

/// A computation on rows of any type.
trait RowsVisitor {
    fn visit(self, rows: impl WeightRows);
}

struct Multiplying<'a> {
    isa: Isa,
    columns: usize,
    x: &'a [f32],
    sums: &'a mut [f32],
}

impl RowsVisitor for Multiplying<'_> {
    fn visit(self, rows: impl WeightRows) {
        products(self.isa, rows, self.x, self.columns, self.sums);
    }
}

struct RoundedFirst<V>(V);

impl<V: RowsVisitor> RowsVisitor for RoundedFirst<V> {
    fn visit(self, rows: impl WeightRows) {
        self.0.visit(Rounded(rows));
    }
}

struct Reading<'a> {
    isa: Isa,
    columns: usize,
    out: &'a mut [f32],
}

impl RowsVisitor for Reading<'_> {
    fn visit(self, rows: impl WeightRows) {
        let Reading { isa, columns, out } = self;
        dispatch(isa, ReadRows { rows, columns, out });
    }
}

struct ReadRows<'a, W> {
    rows: W,
    columns: usize,
    out: &'a mut [f32],
}

impl<W: WeightRows> Loop for ReadRows<'_, W> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        for (row, out) in self.out.chunks_mut(self.columns.max(1)).enumerate() {
            for (block, out) in out.chunks_mut(BLOCK).enumerate() {
                self.rows.read(row, block * BLOCK, out);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::MiniFloat;
    use crate::kernel::{Elements, RowScales, dequantize_row};
    use crate::linalg::{Matrix, MatrixMut, Weight, linear, linear_rows};

    const KINDS: [CodeKind; 6] = [
        CodeKind::Integer { bits: 4, signed: true },
        CodeKind::OffsetInteger { bits: 4 },
        CodeKind::Integer { bits: 3, signed: false },
        CodeKind::Integer { bits: 8, signed: true },
        CodeKind::Float(MiniFloat::E2M1),
        CodeKind::Float(MiniFloat::E4M3),
    ];
    /// Shapes and tiles.
    const SHAPES: [((usize, usize), (usize, usize)); 7] = [
        ((5, 64), (1, 32)),
        ((3, 128), (1, 128)),
        ((131, 96), (1, 16)),
        ((4, 80), (1, 16)),
        ((7, 45), (1, 45)),
        ((6, 50), (2, 32)),
        ((9, 70), (9, 70)),
    ];

    fn matrix(kind: CodeKind, shape: (usize, usize), tile: (usize, usize)) -> (CodedMatrix, Vec<f32>) {
        let (rows, columns) = shape;
        let bits = match kind {
            CodeKind::Integer { bits, .. } | CodeKind::OffsetInteger { bits } => bits,
            CodeKind::Float(format) => format.bits(),
        };
        // Not the codes of NaN in E4M3.
        let code = |i: usize| ((i * 7919 / 13) % ((1 << bits) - 1)) as u8 & if bits == 8 { 0xFE } else { 0xFF };
        let codes: Vec<u8> = (0..rows * columns).map(code).collect();
        let line = columns.div_ceil(tile.1);
        let count = rows.div_ceil(tile.0) * line;
        let scales: Vec<f32> = (0..count).map(|i| 0.37 + (i * 31 % 17) as f32 * 0.013).collect();
        let has_zero_points = matches!(kind, CodeKind::Integer { signed: false, .. });
        let zero_points: Vec<f32> = (0..if has_zero_points { count } else { 0 }).map(|i| (i % 5) as f32).collect();
        let mut values = vec![0.0; rows * columns];
        for (row, values) in values.chunks_mut(columns).enumerate() {
            let places = row / tile.0 * line..(row / tile.0 + 1) * line;
            let row_scales = RowScales {
                scales: &scales[places.clone()],
                zero_points: zero_points.get(places).unwrap_or_default(),
                group: tile.1,
                first: tile.1,
            };
            dequantize_row(Isa::BASELINE, kind, &codes[row * columns..][..columns], row_scales, values);
        }
        let scales = CodedScales { scales, zero_points, tile };
        let read = |rows: Range<usize>, out: &mut [u8]| {
            out.copy_from_slice(&codes[rows.start * columns..rows.end * columns]);
        };
        (CodedMatrix::new(kind, shape, scales, read), values)
    }

    fn bits(values: &[f32]) -> Vec<u32> {
        values.iter().map(|value| value.to_bits()).collect()
    }

    #[test]
    fn coded_rows_have_the_values_of_their_codes_on_every_isa() {
        for kind in KINDS {
            for (shape, tile) in SHAPES {
                let (matrix, values) = matrix(kind, shape, tile);
                for isa in Isa::available() {
                    let mut found = vec![7.0];
                    matrix.read(isa, 1..shape.0, &mut found);
                    assert_eq!(bits(&found[1..]), bits(&values[shape.1..]), "{kind:?} {shape:?} {}", isa.name());
                }
            }
        }
    }

    #[test]
    fn products_of_codes_are_those_of_their_values_bit_for_bit() {
        for kind in KINDS {
            for ((rows, columns), tile) in SHAPES {
                let (matrix, values) = matrix(kind, (rows, columns), tile);
                for (tokens, precision) in
                    [(1, Precision::F32), (4, Precision::F32), (7, Precision::F32), (3, Precision::Bf16)]
                {
                    let x: Vec<f32> = (0..tokens * columns).map(|i| (i * 37 % 101) as f32 * 0.02 - 1.0).collect();
                    let run = |weight: Weight<'_>| {
                        let mut out = vec![0.0; tokens * rows];
                        let x = Matrix::new(&x, tokens, columns, columns);
                        linear_rows(MatrixMut::new(&mut out, tokens, rows, rows), x, weight, None, precision);
                        out
                    };
                    let expected = run(Weight::new(Elements::Values(&values), rows, columns));
                    let found = run(Weight::coded(&matrix, 0, rows));
                    assert_eq!(bits(&found), bits(&expected), "{kind:?} {rows}x{columns} {tokens} {precision:?}");
                }
            }
        }
    }

    #[test]
    fn products_of_codes_are_the_same_on_every_isa() {
        for kind in KINDS {
            let ((rows, columns), tile) = SHAPES[3];
            let (matrix, _) = matrix(kind, (rows, columns), tile);
            let x: Vec<f32> = (0..2 * columns).map(|i| (i * 37 % 101) as f32 * 0.02 - 1.0).collect();
            let run = |isa: Isa| {
                let mut sums = vec![0.0; 2 * rows];
                matrix.visit(0..rows, Multiplying { isa, columns, x: &x, sums: &mut sums });
                bits(&sums)
            };
            assert!(Isa::available().into_iter().all(|isa| run(isa) == run(Isa::BASELINE)), "{kind:?}");
        }
    }

    #[test]
    fn rows_from_the_middle_meet_products_of_matrices_too() {
        let (matrix, values) = matrix(KINDS[0], SHAPES[0].0, SHAPES[0].1);
        let x: Vec<f32> = (0..64).map(|i| i as f32 * 0.1).collect();
        let run = |weight: Weight<'_>| {
            let mut out = vec![0.0; 2];
            linear(MatrixMut::new(&mut out, 1, 2, 2), Matrix::new(&x, 1, 64, 64), weight, None, Precision::F32);
            out
        };
        let part = Elements::Values(&values[3 * 64..]);
        assert_eq!(run(Weight::coded(&matrix, 3, 2)), run(Weight::new(part, 2, 64)));
    }

    #[test]
    fn tiles_of_odd_widths_are_not_taken() {
        for (columns, width, expected) in
            [(64, 8, false), (64, 48, false), (64, 100, true), (64, 16, true), (50, 50, true)]
        {
            assert_eq!(CodedMatrix::takes(columns, (1, width)), expected, "{columns} {width}");
        }
    }
}
