//! Tests of round to nearest.

use super::*;
use kvant_numeric::kernel::FloatDType;
use proptest::prelude::*;

fn values(rows: usize, columns: usize) -> Vec<f32> {
    (0..rows * columns).map(|i| ((i * 7919 % 1000) as f32 / 500.0 - 1.0) * (1.0 + (i / columns) as f32)).collect()
}

fn rtn(text: &str) -> Rtn {
    Rtn::new(text.parse().unwrap(), TensorContext::new(ComputeDType::F32)).unwrap()
}

#[test]
fn every_granularity_matches_tile_by_tile_rounding() {
    let (rows, columns) = (12, 20);
    let data = values(rows, columns);
    for granularity in ["tensor", "channel", "channel@1", "g5", "g-1", "g4@0", "b8x8", "b5x7"] {
        for format in ["int4", "uint4:zp", "e4m3", "int8:mse", "e4m3:mse", "uint8:zp:percentile99", "int16"] {
            let (name, rest) = format.split_once(':').unwrap_or((format, ""));
            let text = format!("{name}:{granularity}:{rest}");
            let quantized = rtn(text.trim_end_matches(':')).round(&data, rows, columns).unwrap();
            let tiles = Tiles::new(quantized.scheme().granularity().unwrap(), rows, columns);
            let restored = quantized.dequantize();
            for tile in 0..tiles.count {
                let part = tiles.gather(&data, tile);
                let single = rtn(text.replacen(granularity, "tensor", 1).trim_end_matches(':'));
                let expected = single.round(&part, 1, part.len()).unwrap();
                assert_eq!(quantized.scales()[tile], expected.scales()[0], "{text}");
                assert_eq!(tiles.gather(&restored, tile), expected.dequantize(), "{text}");
            }
        }
    }
}

#[test]
fn bands_give_the_same_tensor() {
    let data = values(8, 32);
    for text in [
        "int4:g16",
        "uint4:channel:zp",
        "e2m1:g32:e8m0",
        "int8:tensor",
        "e2m1:g16:e4m3:f32",
        "int4:channel:f32/e4m3:tensor:f32",
        "e4m3:b2x16",
    ] {
        let whole = rtn(text).round(&data, 8, 32).unwrap();
        let range = data.iter().fold(Range::EMPTY, |r, v| r.join(Range { min: *v, max: *v }));
        let banded =
            Rtn::new(text.parse().unwrap(), TensorContext { arithmetic: ComputeDType::F32, range: Some(range) })
                .unwrap();
        let (mut joined, mut scratch) = (banded.empty(32), Scratch::default());
        for band in data.chunks(128) {
            banded.round_onto(Weights::new(Elements::Values(band), 32), &mut scratch, &mut joined).unwrap();
        }
        assert_eq!(joined, whole, "{text}");
    }
}

/// bf16 bytes and their values.
fn stored(count: usize) -> (Vec<u8>, Vec<f32>) {
    let words: Vec<u16> = values(1, count).iter().map(|v| (v.to_bits() >> 16) as u16).collect();
    let values = words.iter().map(|w| f32::from_bits(u32::from(*w) << 16)).collect();
    (words.into_iter().flat_map(u16::to_le_bytes).collect(), values)
}

const SCHEMES: [&str; 14] = [
    "int4:g128",
    "uint4:g32:zp",
    "int8:channel",
    "int8:tensor",
    "int4:channel@1",
    "int16:g64",
    "uint4:g64:fzp",
    "int8:g64:mse",
    "e4m3:channel",
    "e4m3:b16x64",
    "e2m1:g32:e8m0",
    "e2m1:g16:e4m3:f32",
    "e2m1:g16:e5m3",
    "int4:channel:f32/e4m3:tensor:f32",
];

#[test]
fn stored_bytes_round_like_values_with_dirty_buffers() {
    let (rows, columns) = (80, 256);
    let (bytes, values) = stored(rows * columns);
    let weights = Weights::new(Elements::stored(FloatDType::Bf16, &bytes).unwrap(), columns);
    let mut scratch = Scratch::default();
    for text in SCHEMES {
        let expected = rtn(text).round(&values, rows, columns).unwrap();
        let mut out = rtn(text).empty(columns);
        for _ in 0..2 {
            out.clear();
            rtn(text).round_onto(weights, &mut scratch, &mut out).unwrap();
            assert_eq!(out, expected, "{text}");
        }
    }
}

#[test]
fn partial_weights_round_like_copies() {
    let (rows, columns) = (64, 384);
    let (bytes, values) = stored(rows * columns);
    let weights = Weights::new(Elements::stored(FloatDType::Bf16, &bytes).unwrap(), columns);
    let copy: Vec<f32> = values.chunks(columns).skip(16).take(32).flat_map(|row| &row[128..384]).copied().collect();
    for text in SCHEMES {
        let expected = rtn(text).round(&copy, 32, 256).unwrap();
        let mut out = rtn(text).empty(256);
        let part = weights.rows(16..48).columns(128..384);
        rtn(text).round_onto(part, &mut Scratch::default(), &mut out).unwrap();
        assert_eq!(out, expected, "{text}");
        let part = weights.columns(128..384).rows(16..48);
        out.clear();
        rtn(text).round_onto(part, &mut Scratch::default(), &mut out).unwrap();
        assert_eq!(out, expected, "{text}");
    }
}

#[test]
fn rows_are_appended_only_to_tensors_of_the_same_scheme() {
    let data = values(32, 64);
    let weights = Weights::new(Elements::Values(&data), 64);
    let (int4, mut out) = (rtn("int4:g32"), rtn("int4:g32").empty(64));
    for rows in [0..16, 16..32] {
        int4.round_onto(weights.rows(rows), &mut Scratch::default(), &mut out).unwrap();
    }
    assert_eq!(out, int4.round(&data, 32, 64).unwrap());
    for mut other in [rtn("int4:g64").empty(64), int4.empty(32)] {
        let refused = int4.round_onto(weights, &mut Scratch::default(), &mut other);
        assert!(matches!(refused, Err(RoundingError::Scheme(SchemeError::Combination { .. }))));
    }
}

#[test]
fn scales_beyond_their_type_are_refused() {
    let mut data = values(2, 4);
    for text in ["int4:g4:f16", "uint4:g2:f16:zp", "int8:tensor:f16:mse", "e4m3:channel:f16", "uint4:g4:f16:fzp"] {
        data[5] = 1e9;
        let refused = rtn(text).round(&data, 2, 4);
        assert!(matches!(refused, Err(RoundingError::ScaleTooLarge { scale, largest: 65_504.0 }) if scale > 65_504.0));
        data[5] = 1e5;
        assert!(rtn(text).round(&data, 2, 4).unwrap().scales().iter().all(|scale| *scale <= 65_504.0), "{text}");
    }
    data[5] = 1e9;
    assert!(rtn("int4:g4").round(&data, 2, 4).is_ok() && rtn("int4:g4:bf16").round(&data, 2, 4).is_ok());
}

#[test]
fn non_finite_weights_are_refused() {
    for bad in [f32::NAN, f32::INFINITY] {
        for text in ["int4:g4", "e4m3:tensor", "e2m1:g2:e8m0", "uint8:channel@1:zp"] {
            let mut data = values(2, 4);
            data[5] = bad;
            assert_eq!(rtn(text).round(&data, 2, 4), Err(RoundingError::NotFinite), "{text}");
        }
    }
    assert!(matches!(rtn("int4:g4").round(&values(1, 6), 1, 6), Err(RoundingError::Scheme(_))));
}

#[test]
fn zeros_and_empty_matrices_are_accepted() {
    for text in ["int4:g4", "e4m3:tensor", "e2m1:g4:e8m0", "e2m1:g4:e5m3", "e2m1:g4:e4m3:f32", "uint4:g4:fzp"] {
        assert_eq!(rtn(text).round(&[0.0; 8], 2, 4).unwrap().dequantize(), [0.0; 8], "{text}");
        assert_eq!(rtn(text).round(&[], 0, 4).unwrap().dequantize(), Vec::<f32>::new(), "{text}");
    }
}

proptest! {
    #[test]
    fn errors_stay_within_half_a_step(data in prop::collection::vec(-1e3f32..1e3, 64)) {
        for text in ["int8:g16", "uint8:g16:zp", "uint4:g32:zp"] {
            let quantized = rtn(text).round(&data, 1, 64).unwrap();
            let group = 64 / quantized.scales().len();
            for (i, (value, restored)) in data.iter().zip(quantized.dequantize()).enumerate() {
                let most = 0.5001 * quantized.scales()[i / group] + 1e-6 * value.abs();
                prop_assert!((value - restored).abs() <= most, "{text}: {value} {restored}");
            }
        }
    }

    #[test]
    fn every_isa_rounds_to_the_same_tensor(data in prop::collection::vec(-10f32..10.0, 96)) {
        for text in ["int4:g32", "e2m1:g32:e8m0", "e4m3:channel", "uint4:g16:zp"] {
            let scalar = rtn(text).on(Isa::BASELINE).round(&data, 3, 32).unwrap();
            for isa in Isa::available() {
                prop_assert_eq!(&rtn(text).on(isa).round(&data, 3, 32).unwrap(), &scalar);
            }
        }
    }
}
