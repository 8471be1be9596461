//! Observers of activations and weights, against formulas of their own: no histogram, and no code of the crate but schemes and
//! scales.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

use kvant_numeric::ComputeDType::F32;
use kvant_numeric::simd::Isa;
use kvant_quant::activation::{ActivationError, ActivationStatistic};
use kvant_quant::rounding::{Rtn, TensorContext};
use kvant_quant::scheme::{ActivationScheme, LayerScheme, SchemeError};

/// Values of a bell with long tails, the same whenever this runs.
fn values() -> Vec<f32> {
    let uniform = |i: u64| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as f64 / (1u64 << 24) as f64 - 0.5;
    let bell = |i: u64| (0..8).map(|k| uniform(8 * i + k + 1)).sum::<f64>();
    (0..60_000).map(|i| (bell(i) + 0.2 * bell(i).powi(3)) as f32).chain([9.0, -7.5]).collect()
}

/// The statistic of two batches, which parts of the data merge to.
fn statistic(text: &str, values: &[f32]) -> (ActivationScheme, ActivationStatistic) {
    let scheme: ActivationScheme = text.parse().unwrap();
    let part = |values: &[f32]| {
        let mut statistic = ActivationStatistic::new(scheme).unwrap();
        statistic.update(Isa::best(), values, 1);
        statistic
    };
    let (first, second) = values.split_at(values.len() / 3);
    let mut merged = part(first);
    merged.merge(&part(second));
    let mut whole = part(first);
    whole.update(Isa::best(), second, 1);
    assert_eq!(merged.parameters(scheme.scheme, F32), whole.parameters(scheme.scheme, F32), "{text}");
    let stored = serde_json::to_string(&whole).unwrap();
    assert_eq!(serde_json::from_str::<ActivationStatistic>(&stored).unwrap(), whole, "{text}");
    (scheme, whole)
}

/// The largest value that the codes cover.
fn covered(text: &str, values: &[f32]) -> f32 {
    let (scheme, statistic) = statistic(text, values);
    statistic.ranges(scheme.scheme, F32).unwrap()[0].max
}

/// Int8 codes of the values with symmetric scales, and back.
fn restored(value: f32, reach: f32) -> f32 {
    let scale = reach / 127.5;
    (value / scale).round_ties_even().clamp(-128.0, 127.0) * scale
}

/// Kullback-Leibler divergence of 2048 bins of magnitudes, cut at a number of bins and merged into 128 levels.
fn divergence(values: &[f32], cut: usize) -> f64 {
    let largest = values.iter().fold(0f32, |m, v| m.max(v.abs()));
    let mut counts = vec![0f64; 2048];
    for value in values {
        counts[((value.abs() / largest * 2048.0) as usize).min(2047)] += 1.0;
    }
    counts[0] = counts[1];
    let mut p = counts[..cut].to_vec();
    p[cut - 1] += counts[cut..].iter().sum::<f64>();
    let mut q = vec![0.0; cut];
    for level in 0..128 {
        let bins: Vec<usize> = (0..cut).filter(|bin| bin * 128 / cut == level).collect();
        let filled: Vec<usize> = bins.iter().copied().filter(|bin| counts[*bin] > 0.0).collect();
        let sum: f64 = bins.iter().map(|bin| counts[*bin]).sum();
        filled.iter().for_each(|bin| q[*bin] = sum / filled.len() as f64);
    }
    if q[cut - 1] == 0.0 {
        q[cut - 1] = 1.0;
    }
    let (all, inside) = (p.iter().sum::<f64>(), q.iter().sum::<f64>());
    p.iter().zip(&q).filter(|(p, _)| **p > 0.0).map(|(p, q)| p / all * (p / all * inside / q).ln()).sum()
}

#[test]
fn entropy_threshold_is_near_the_least_divergence() {
    let values = values();
    let least = (128..=2048).step_by(8).map(|cut| divergence(&values, cut)).fold(f64::INFINITY, f64::min);
    let found = covered("int8:tensor:entropy!static", &values);
    let own = divergence(&values, (found / 9.0 * 2048.0).round() as usize);
    assert!(found < 8.0, "an outlier is cut off: {found}");
    assert!(own <= least * 1.1, "{own} {least}, at {found}");
    assert!(own < divergence(&values, 2048));
}

#[test]
fn layerwise_percentile_is_the_best_of_three() {
    let values = values();
    let error = |reach: f32| {
        values.iter().map(|v| f64::from((restored(*v, reach) - v).abs())).sum::<f64>() / values.len() as f64
    };
    let reaches =
        ["99.99", "99.999", "99.99999"].map(|p| covered(&format!("int8:tensor:percentile{p}!static"), &values));
    let found = covered("int8:tensor:lwp!static", &values);
    let least = reaches.map(error).into_iter().fold(f64::INFINITY, f64::min);
    assert!(reaches.contains(&found) && reaches[0] < reaches[2], "{found} {reaches:?}");
    assert!(error(found) <= least * 1.01, "{} {least}", error(found));
}

#[test]
fn auto_observer_loses_no_more_than_its_candidates() {
    let values = values();
    let error = |observer: &str| {
        let reach = covered(&format!("int8:tensor:{observer}!static"), &values);
        values.iter().map(|v| f64::from(restored(*v, reach) - v).powi(2)).sum::<f64>()
    };
    let least = ["minmax", "percentile", "entropy", "mse"].map(error).into_iter().fold(f64::INFINITY, f64::min);
    assert!(error("auto") <= least * 1.01, "{} {least}", error("auto"));
    assert!(error("auto") < error("minmax"));
    let reach = |observer: &str| covered(&format!("int8:tensor:{observer}!static"), &values);
    assert_eq!(reach("percentile"), reach("percentile99.999"));
}

#[test]
fn distribution_maps_standard_deviations() {
    let values = values();
    let all: Vec<f64> = (0..=255u8)
        .filter(|code| code & 0x7f != 0x7f)
        .map(|code| {
            let (exponent, mantissa) = (i32::from(code >> 3 & 15), f64::from(code & 7));
            let magnitude =
                if exponent == 0 { mantissa / 512.0 } else { (1.0 + mantissa / 8.0) * 2f64.powi(exponent - 7) };
            if code & 0x80 == 0 { magnitude } else { -magnitude }
        })
        .collect();
    let deviation = |values: &[f64]| {
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        (values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / values.len() as f64).sqrt()
    };
    let own: Vec<f64> = values.iter().map(|v| f64::from(*v)).collect();
    let (scheme, statistic) = statistic("e4m3:tensor:distribution!static", &values);
    let scale = f64::from(statistic.parameters(scheme.scheme, F32).unwrap().scales[0]);
    let expected = deviation(&own) / deviation(&all);
    assert!((scale / expected - 1.0).abs() < 1e-5, "{scale} {expected}");
}

#[test]
fn nonoverflow_covers_all_values_with_a_power_of_two() {
    let values = values();
    let scales = |text: &str| {
        let (scheme, statistic) = statistic(text, &values);
        statistic.parameters(scheme.scheme, F32).unwrap().scales
    };
    let found = scales("int8:tensor:pow2:nonoverflow!static");
    // 9 / 127.5 is 2^-3.82.
    assert_eq!(found, [0.0625]);
    assert_eq!(found, scales("int8:tensor:pow2!static"));
}

#[test]
fn unsuitable_observers_are_refused_by_name() {
    let activation = |text: &str| ActivationStatistic::new(text.parse().unwrap()).unwrap_err();
    for text in ["e4m3:tensor:entropy!static", "int8:tensor:distribution!static", "int8:tensor:nonoverflow!static"] {
        let error = activation(text);
        let name = text.split([':', '!']).nth(2).unwrap();
        assert!(error.is_unsupported() && error.to_string().contains(&format!("`{name}`")), "{error}");
        assert!(matches!(error, ActivationError::Observer { .. }), "{error}");
    }
    assert!(matches!(activation("int8:channel@1:entropy!static"), ActivationError::Scheme { .. }));
    for text in
        ["int8:tensor:ema0.9", "int4:channel:entropy", "int4:channel:lwp", "int4:g32:auto", "e4m3:tensor:entropy"]
    {
        assert!(matches!(text.parse::<LayerScheme>(), Err(SchemeError::Observer { .. })), "{text}");
    }
    assert!("int8:tensor:entropy+int8:tensor:entropy!static".parse::<LayerScheme>().is_ok());
}

#[test]
fn weight_scales_use_the_range_of_the_observer() {
    let mut weights: Vec<f32> = values()[..8192].to_vec();
    weights[5000] = 40.0;
    let scales = |scheme: &str| {
        let scheme = scheme.parse().unwrap();
        Rtn::new(scheme, TensorContext::new(F32)).unwrap().round(&weights, 2, 4096).unwrap().scales().to_vec()
    };
    for scheme in ["int8:tensor:entropy", "int8:tensor:layerwise-percentile", "int8:tensor:auto"] {
        let (found, whole) = (scales(scheme), scales("int8:tensor"));
        assert!(found.len() == 1 && found[0] < whole[0], "{scheme}: {found:?} {whole:?}");
    }
    let (found, whole) = (scales("int8:channel:auto"), scales("int8:channel"));
    assert!(found[1] < whole[1] && found[0] <= whole[0], "{found:?} {whole:?}");
}
