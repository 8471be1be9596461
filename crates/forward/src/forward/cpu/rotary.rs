//! Turning the heads of a row by the angles of its position.

use super::Cpu;
use crate::forward::heads::HeadLayout;
use crate::forward::rope::Angles;
use kvant_model::family::Pairing;
use kvant_numeric::linalg::Precision;
use kvant_numeric::simd::{Loop, dispatch};

/// Turns the heads of row `index`. In bfloat16 cosines, sines, both products and their sum are rounded.
pub(super) fn rotate(cpu: Cpu, angles: &Angles, pairing: Pairing, index: usize, row: &mut [f32], layout: HeadLayout) {
    let half = angles.dim / 2;
    let at = index % angles.length * half;
    let (cos, sin) = (&angles.cos[at..at + half], &angles.sin[at..at + half]);
    dispatch(cpu.isa, Turn { precision: cpu.precision, pairing, cos, sin, row, layout });
}

struct Turn<'a> {
    precision: Precision,
    pairing: Pairing,
    cos: &'a [f32],
    sin: &'a [f32],
    row: &'a mut [f32],
    layout: HeadLayout,
}

impl Loop for Turn<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Turn { precision, pairing, cos, sin, row, layout } = self;
        for head in layout.of(row) {
            match pairing {
                Pairing::Halves => turn_halves(precision, head, cos, sin),
                Pairing::SwappedHalves => turn_swapped_halves(precision, head, cos, sin),
                Pairing::Neighbours => turn_neighbours(precision, head, cos, sin),
            }
        }
    }
}

#[inline(always)]
fn turn_halves(precision: Precision, head: &mut [f32], cos: &[f32], sin: &[f32]) {
    let (first, rest) = head.split_at_mut(cos.len());
    for (((a, b), cos), sin) in first.iter_mut().zip(rest).zip(cos).zip(sin) {
        (*a, *b) = rotated(precision, (*a, *b), *cos, *sin);
    }
}

#[inline(always)]
fn turn_swapped_halves(precision: Precision, head: &mut [f32], cos: &[f32], sin: &[f32]) {
    let (first, rest) = head.split_at_mut(cos.len());
    for (((a, b), cos), sin) in first.iter_mut().zip(rest).zip(cos).zip(sin) {
        (*b, *a) = rotated(precision, (*b, *a), *cos, *sin);
    }
}

#[inline(always)]
fn turn_neighbours(precision: Precision, head: &mut [f32], cos: &[f32], sin: &[f32]) {
    for ((pair, cos), sin) in head.chunks_exact_mut(2).zip(cos).zip(sin) {
        (pair[0], pair[1]) = rotated(precision, (pair[0], pair[1]), *cos, *sin);
    }
}

#[inline(always)]
fn rotated(precision: Precision, (a, b): (f32, f32), cos: f32, sin: f32) -> (f32, f32) {
    let round = |x| precision.round(x);
    let (cos, sin) = (round(cos), round(sin));
    (round(round(a * cos) - round(b * sin)), round(round(b * cos) + round(a * sin)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvant_numeric::simd::Isa;

    fn rotate_row(precision: Precision, isa: Isa, pairing: Pairing, row: &mut [f32]) {
        let angles = Angles { dim: 4, length: 2, cos: vec![1.0, 1.0, 0.6, 0.8], sin: vec![0.0, 0.0, 0.8, 0.6] };
        rotate(Cpu { isa, ..Cpu::with_precision(precision) }, &angles, pairing, 3, row, HeadLayout::packed(1, 5));
    }

    #[test]
    fn rope_rotates_every_pairing_by_position() {
        for isa in Isa::available() {
            for (pairing, expected) in [
                (
                    Pairing::Halves,
                    [1.0 * 0.6 - 3.0 * 0.8, 2.0 * 0.8 - 4.0 * 0.6, 3.0 * 0.6 + 0.8, 4.0 * 0.8 + 2.0 * 0.6],
                ),
                (
                    Pairing::SwappedHalves,
                    [1.0 * 0.6 + 3.0 * 0.8, 2.0 * 0.8 + 4.0 * 0.6, 3.0 * 0.6 - 0.8, 4.0 * 0.8 - 2.0 * 0.6],
                ),
                (Pairing::Neighbours, [0.6 - 2.0 * 0.8, 2.0 * 0.6 + 0.8, 3.0 * 0.8 - 4.0 * 0.6, 4.0 * 0.8 + 3.0 * 0.6]),
            ] {
                let mut row = [1.0, 2.0, 3.0, 4.0, 5.0];
                rotate_row(Precision::F32, isa, pairing, &mut row);
                assert!(row.iter().zip(expected).all(|(a, b): (&f32, f32)| (a - b).abs() < 1e-6), "{row:?}");
                assert_eq!(row[4], 5.0);
            }
        }
    }

    #[test]
    fn bf16_rope_rounds_every_step() {
        let mut row = [1.0, 2.0, 3.0, 4.0, 5.0];
        rotate_row(Precision::Bf16, Isa::best(), Pairing::Halves, &mut row);
        let round = |x: f32| Precision::Bf16.round(x);
        assert_eq!(row[0], round(round(round(0.6)) - round(3.0 * round(0.8))));
        assert!(row.iter().all(|x| round(*x) == *x));
    }
}
