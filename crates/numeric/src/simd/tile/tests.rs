//! Tiles against the definition. Where nothing multiplies tiles there is nothing to test.

use super::{SIDE, Start, Tile, TileUnit};
use crate::arithmetic::bf16_to_f32;

/// Small integers, so that every sum is exact.
fn pair(seed: usize) -> u32 {
    let half = |seed: usize| (((seed * 37 % 19) as f32 - 9.0).to_bits() >> 16) as u16;
    u32::from(half(seed)) | u32::from(half(seed + 5)) << 16
}

fn tile(seed: usize) -> Tile {
    Tile(std::array::from_fn(|row| std::array::from_fn(|word| pair(seed * 7 + row * 13 + word * 3))))
}

fn half(word: u32, index: usize) -> f32 {
    bf16_to_f32((word >> (16 * index)) as u16)
}

/// The element of `a b`.
fn element(a: &Tile, b: &Tile, row: usize, column: usize) -> f32 {
    (0..2 * SIDE).map(|k| half(a.0[row][k / 2], k % 2) * half(b.0[k / 2][column], k % 2)).sum()
}

/// Each of some cases on all that multiplies tiles.
fn units<T: Copy, const N: usize>(cases: [T; N]) -> impl Iterator<Item = (TileUnit, T)> {
    TileUnit::available().into_iter().flat_map(move |unit| cases.map(|case| (unit, case)))
}

#[test]
fn tile_products_match_the_definition() {
    for (unit, (steps, terms)) in units([(1, 1), (3, 1), (2, 3), (0, 0)]) {
        let a: Vec<[Tile; 2]> = (0..steps * terms).map(|s| [tile(s), tile(s + 50)]).collect();
        let b: Vec<[Tile; 2]> = (0..steps).map(|s| [tile(s + 100), tile(s + 150)]).collect();
        let mut sums = [[Tile([[7.0_f32.to_bits(); SIDE]; SIDE]); 2]; 2];
        for (start, before) in [(Start::Sums, 7.0), (Start::Zero, 0.0)] {
            unit.with_tiles(|tiles| tiles.multiply(&a, &b, start, &mut sums));
            for place in 0..4 * SIDE * SIDE {
                let (i, j, row, column) = (place >> 9, place >> 8 & 1, place >> 4 & 15, place & 15);
                let products = (0..steps * terms).map(|s| element(&a[s][i], &b[s / terms][j], row, column));
                let expected = before + products.sum::<f32>();
                assert_eq!(f32::from_bits(sums[i][j].0[row][column]), expected, "{unit:?} {steps} {terms} {start:?}");
            }
        }
    }
}

#[test]
fn tile_transpose_swaps_rows_and_columns() {
    let Some(unit) = TileUnit::get() else { return };
    let before = Tile(std::array::from_fn(|row| std::array::from_fn(|word| (row * 100 + word) as u32)));
    let mut after = before;
    unit.transpose(&mut after);
    assert!((0..256).all(|i| after.0[i / 16][i % 16] == before.0[i % 16][i / 16]));
}
