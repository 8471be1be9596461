//! Properties of every type of the table: agreement with gguf-py, identical results on every instruction set, and the handling
//! of extreme values.

use super::*;

const GOLDEN: &str = include_str!("../../../../tests/golden/ggml_blocks.txt");

fn all_kinds() -> impl Iterator<Item = GgmlType> {
    GgmlType::ALL.iter().map(|row| row.kind)
}

/// Sums of uniform numbers, the same for the same seed.
pub(super) fn values(count: usize, seed: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2_654_435_769) | 1;
    let mut uniform = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / 16_777_216.0 - 0.5
    };
    (0..count).map(|_| (uniform() + uniform() + uniform() + uniform()) * 0.04).collect()
}

/// Rows of 1024.
pub(super) fn blocks_of(isa: Isa, kind: GgmlType, values: &[f32], importance: Option<&[f32]>) -> Vec<u8> {
    let mut bytes = vec![0xA5; values.len() / 1024 * kind.row_bytes(1024).unwrap()];
    quantize(isa, kind, 1024, values, importance, &mut bytes);
    bytes
}

pub(super) fn values_of(isa: Isa, kind: GgmlType, bytes: &[u8]) -> Vec<f32> {
    let mut values = vec![f32::NAN; bytes.len() / kind.block_bytes() * kind.block_elements()];
    dequantize(isa, kind, bytes, &mut values);
    values
}

fn round_trip(kind: GgmlType, values: &[f32], importance: Option<&[f32]>) -> Vec<f32> {
    values_of(Isa::best(), kind, &blocks_of(Isa::best(), kind, values, importance))
}

fn from_hex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|i| u8::from_str_radix(&text[i..i + 2], 16).unwrap()).collect()
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|word| f32::from_le_bytes(*word)).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

fn golden(verb: &str) -> impl Iterator<Item = Vec<&'static str>> {
    let lines = GOLDEN.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    lines.filter(move |words| words[0] == verb)
}

#[test]
fn dequantized_blocks_match_gguf_py() {
    for words in golden("dequantize") {
        let kind: GgmlType = words[1].parse().unwrap();
        let (bytes, expected) = (from_hex(words[2]), floats(&from_hex(words[3])));
        for isa in Isa::available() {
            assert_eq!(bits(&values_of(isa, kind, &bytes)), bits(&expected), "{kind} on {}", isa.name());
        }
    }
    assert_eq!(golden("dequantize").count(), GgmlType::ALL.len() - 1, "all but F32");
}

#[test]
fn quantized_bytes_match_gguf_py() {
    let data = floats(&from_hex(golden("values").next().unwrap()[1]));
    for words in golden("quantize") {
        let kind: GgmlType = words[1].parse().unwrap();
        for isa in Isa::available() {
            let mut bytes = vec![0; kind.row_bytes(data.len()).unwrap()];
            quantize(isa, kind, data.len(), &data, None, &mut bytes);
            assert_eq!(bytes, from_hex(words[2]), "{kind} on {}", isa.name());
        }
    }
}

#[test]
fn ggml_rows_follow_variants_with_unique_names_and_ids() {
    for (i, row) in GgmlType::ALL.iter().enumerate() {
        assert_eq!(row.kind as usize, i);
        assert_eq!(row.name.parse(), Ok(row.kind));
        assert_eq!(row.name.to_lowercase().parse(), Ok(row.kind));
        assert_eq!(row.kind.to_string(), row.name);
        assert_eq!(GgmlType::from_id(row.id), Some(row.kind));
        assert!(GgmlType::ALL.iter().filter(|other| other.id == row.id || other.name == row.name).count() == 1);
    }
    assert_eq!(GgmlType::from_id(4), None);
    assert_eq!("Q4_2".parse::<GgmlType>(), Err(UnknownGgmlType("Q4_2".to_owned())));
}

#[test]
fn rows_must_be_whole_blocks() {
    for row in GgmlType::ALL {
        assert_eq!(row.kind.row_bytes(row.block_elements * 3), Some(row.block_bytes * 3));
        assert_eq!(row.kind.row_bytes(0), Some(0));
        if row.block_elements > 1 {
            assert_eq!(row.kind.row_bytes(row.block_elements + 1), None);
        }
    }
    assert_eq!(GgmlType::F32.row_bytes(usize::MAX), None);
}

#[test]
fn every_isa_gives_the_same_bytes_and_values() {
    let data = values(3 * 1024, 7);
    let importance: Vec<f32> = values(1024, 8).iter().map(|v| v * v).collect();
    for kind in all_kinds() {
        for weights in [None, Some(&importance[..])] {
            let bytes = blocks_of(Isa::BASELINE, kind, &data, weights);
            let back = values_of(Isa::BASELINE, kind, &bytes);
            for isa in Isa::available() {
                assert!(blocks_of(isa, kind, &data, weights) == bytes, "{kind} on {}", isa.name());
                assert!(bits(&values_of(isa, kind, &bytes)) == bits(&back), "{kind} on {}", isa.name());
            }
        }
    }
}

/// The root of the mean squared error over that of the values.
fn relative_error(values: &[f32], back: &[f32], weights: impl Fn(usize) -> f32) -> f64 {
    let sum = |number: &dyn Fn(usize) -> f32| (0..values.len()).map(|i| f64::from(number(i))).sum::<f64>();
    let error = sum(&|i| weights(i) * (values[i] - back[i]).powi(2));
    (error / sum(&|i| weights(i) * values[i].powi(2))).sqrt()
}

/// The maximum relative error of normally distributed weights, in the order of the table.
const ERROR_BOUNDS: [(GgmlType, f64); 19] = [
    (GgmlType::F32, 0.0),
    (GgmlType::F16, 0.0003),
    (GgmlType::Bf16, 0.002),
    (GgmlType::Q4_0, 0.1),
    (GgmlType::Q4_1, 0.085),
    (GgmlType::Q5_0, 0.05),
    (GgmlType::Q5_1, 0.045),
    (GgmlType::Q8_0, 0.006),
    (GgmlType::Q2K, 0.28),
    (GgmlType::Q3K, 0.16),
    (GgmlType::Q4K, 0.075),
    (GgmlType::Q5K, 0.038),
    (GgmlType::Q6K, 0.02),
    (GgmlType::Iq4Nl, 0.08),
    (GgmlType::Iq4Xs, 0.08),
    (GgmlType::Tq1_0, 1.0),
    (GgmlType::Tq2_0, 1.0),
    (GgmlType::Mxfp4, 0.12),
    (GgmlType::Nvfp4, 0.15),
];

#[test]
fn errors_are_bounded_and_follow_importance() {
    let data = values(8 * 1024, 3);
    let importance: Vec<f32> = (0..1024).map(|column| if column % 7 == 0 { 50.0 } else { 0.5 }).collect();
    for (row, (kind, bound)) in GgmlType::ALL.iter().zip(ERROR_BOUNDS) {
        assert_eq!(row.kind, kind);
        let plain = round_trip(kind, &data, None);
        let error = relative_error(&data, &plain, |_| 1.0);
        assert!(error <= bound, "{kind}: {error}");
        let weighted = round_trip(kind, &data, Some(&importance));
        let of_weighted = |back: &[f32]| relative_error(&data, back, |i| importance[i % 1024]);
        assert!(of_weighted(&weighted) <= of_weighted(&plain), "{kind}");
        if weighted != plain {
            assert!(of_weighted(&weighted) < 0.98 * of_weighted(&plain), "{kind}");
        }
    }
}

#[test]
fn values_on_the_grid_round_trip() {
    // Values that blocks represent exactly, with the sign and the scale that quantizing chooses for each group.
    for kind in all_kinds() {
        let data: Vec<f32> = (0..1024).map(|i| [-8.0, 0.0, 8.0, 0.0][i % 4]).collect();
        let back = round_trip(kind, &data, None);
        let worst = data.iter().zip(&back).fold(0.0, |worst: f32, (a, b)| worst.max((a - b).abs()));
        let bound = match kind {
            // One of the ends is a step short of the other, or no level is 0.
            GgmlType::Q4_0 | GgmlType::Q4_1 | GgmlType::Q5_1 | GgmlType::Q3K => 1.1,
            GgmlType::Q2K | GgmlType::Iq4Nl | GgmlType::Iq4Xs => 3.0,
            GgmlType::Q4K => 0.6,
            GgmlType::Q5_0 | GgmlType::Q5K | GgmlType::Q6K => 0.51,
            GgmlType::Q8_0 => 0.01,
            GgmlType::Nvfp4 => 0.25,
            _ => 0.0,
        };
        assert!(worst <= bound, "{kind}: {worst}");
    }
}

#[test]
fn zeros_stay_zeros() {
    for kind in all_kinds() {
        for importance in [None, Some(&[1.0; 1024][..]), Some(&[0.0; 1024][..])] {
            for zero in [0.0, -0.0] {
                assert!(round_trip(kind, &[zero; 1024], importance).iter().all(|value| *value == 0.0), "{kind}");
            }
        }
    }
}

#[test]
fn constant_or_invalid_importance_is_ignored() {
    let data = values(2048, 5);
    for kind in all_kinds() {
        let weighted = |weight: f32| blocks_of(Isa::best(), kind, &data, Some(&[weight; 1024]));
        let expected = weighted(1.0);
        for weight in [0.0, f32::NAN, f32::INFINITY, 4.0, 2_f32.powi(120), 2_f32.powi(-100)] {
            assert!(weighted(weight) == expected, "{kind} {weight}");
        }
    }
}

#[test]
fn unseen_columns_among_seen_ones_stay_within_error_bounds() {
    let data = values(1024, 6);
    let importance: Vec<f32> = (0..1024).map(|column| if column / 32 % 2 == 0 { 0.0 } else { 1.0 }).collect();
    for (kind, bound) in ERROR_BOUNDS {
        let back = round_trip(kind, &data, Some(&importance));
        assert!(relative_error(&data, &back, |_| 1.0) <= 1.5 * bound, "{kind}");
    }
}

#[test]
fn every_magnitude_gives_finite_values_within_the_scale() {
    let data = values(1024, 9);
    for kind in all_kinds() {
        for magnitude in [1e-44, 1e-38, 1e-30, 1e-9, 1e-6, 1.0, 1e5, 1e7, 1e20, 3e38] {
            let scaled: Vec<f32> =
                data.iter().map(|value| (value * magnitude * 10.0).clamp(-f32::MAX, f32::MAX)).collect();
            for importance in [None, Some(&data.iter().map(|v| v * v).collect::<Vec<_>>()[..])] {
                let back = round_trip(kind, &scaled, importance);
                assert!(back.iter().all(|value| value.is_finite()), "{kind} {magnitude:e}");
                // Never further off than the largest element twice, but for scales that round up to the least binary16.
                let bound = 2.0 * scaled.iter().fold(0.0, |max: f32, value| max.max(value.abs())) + 64.0 * 5.97e-8;
                assert!(back.iter().all(|value| value.abs() <= bound), "{kind} {magnitude:e}");
            }
        }
    }
}

#[test]
fn scales_beyond_f16_saturate() {
    let data: Vec<f32> = values(1024, 10).iter().map(|value| value * 1e30).collect();
    for kind in [GgmlType::Q4_0, GgmlType::Q4_1, GgmlType::Q8_0, GgmlType::Q4K, GgmlType::Q6K, GgmlType::Iq4Nl] {
        let back = round_trip(kind, &data, None);
        assert!(back.iter().any(|value| value.abs() > 400_000.0), "{kind}");
    }
}

#[test]
fn non_finite_values_do_not_panic_or_leave_their_block() {
    for kind in all_kinds().filter(|kind| kind.block_elements() > 1) {
        for bad in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for importance in [None, Some(&[1.0; 1024][..])] {
                let mut data = values(1024, 11);
                data[300] = bad;
                let back = round_trip(kind, &data, importance);
                assert!(back.iter().all(|value| value.is_finite()), "{kind} {bad}");
                assert!(back[512..].iter().any(|value| *value != 0.0) || kind == GgmlType::Nvfp4, "{kind} {bad}");
            }
        }
    }
}

#[test]
fn constant_blocks_of_either_sign_stay_close() {
    for kind in all_kinds() {
        for value in [0.75, -0.75] {
            let back = round_trip(kind, &[value; 1024], None);
            assert!(back.iter().all(|back| (back - value).abs() <= 0.08 * 0.75), "{kind} {value} {}", back[0]);
        }
    }
}

#[test]
fn rows_and_row_tails_are_quantized_independently() {
    // 96 columns: three blocks of 32, which a search takes up to eight of at a time.
    let (data, importance) = (values(5 * 96, 12), values(96, 13).iter().map(|v| v * v).collect::<Vec<_>>());
    for kind in all_kinds().filter(|kind| kind.row_bytes(96).is_some()) {
        let size = kind.row_bytes(96).unwrap();
        for weights in [None, Some(&importance[..])] {
            let mut whole = vec![0; 5 * size];
            quantize(Isa::best(), kind, 96, &data, weights, &mut whole);
            for (row, bytes) in data.chunks(96).zip(whole.chunks(size)) {
                let mut alone = vec![0; size];
                quantize(Isa::best(), kind, 96, row, weights, &mut alone);
                assert_eq!(alone, bytes, "{kind}");
            }
        }
    }
}

#[test]
fn short_buffers_are_filled_as_far_as_they_go() {
    let data = values(1024, 14);
    for kind in all_kinds() {
        let whole = blocks_of(Isa::best(), kind, &data, None);
        let mut short = vec![0; kind.block_bytes()];
        quantize(Isa::best(), kind, 1024, &data, None, &mut short);
        assert_eq!(short, whole[..short.len()], "{kind}");
        let mut values = vec![7.0; kind.block_elements()];
        dequantize(Isa::best(), kind, &whole[..kind.block_bytes() - 1], &mut values);
        assert!(values.iter().all(|value| *value == 7.0), "{kind}");
        quantize(Isa::best(), kind, 0, &[], None, &mut short);
        quantize(Isa::best(), kind, 0, &data, Some(&[]), &mut short);
    }
}
