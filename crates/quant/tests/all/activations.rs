//! Bit-for-bit agreement with what AMD Quark 0.13 makes of activations: static parameters after two batches, and fake
//! quantization of a third. The file is made by `tests/golden/make_golden.py`.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

use crate::input;
use kvant_numeric::ComputeDType;
use kvant_numeric::kernel::Range;
use kvant_numeric::simd::Isa;
use kvant_quant::activation::{ActivationError, ActivationQuantizer, ActivationStatistic, StaticParameters};
use kvant_quant::scheme::ActivationScheme;
use serde_json::Value;

fn columns(described: &Value) -> usize {
    described["cols"].as_u64().unwrap() as usize
}

fn cases() -> Vec<Value> {
    let path = format!("{}/../../tests/golden/quark_activations.json", env!("CARGO_MANIFEST_DIR"));
    let cases: Vec<Value> = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    cases.into_iter().filter(|case| case["sound"] == Value::Bool(true)).collect()
}

fn scheme(case: &Value) -> ActivationScheme {
    case["scheme"].as_str().unwrap().parse().unwrap()
}

/// The results of calibration on the case's batches.
fn calibrated(case: &Value, isa: Isa) -> Option<StaticParameters> {
    let scheme = scheme(case);
    let mut statistic = ActivationStatistic::new(scheme).ok()?;
    for batch in case["batches"].as_array().unwrap() {
        statistic.update(isa, &input::values(batch), columns(batch));
    }
    statistic.parameters(scheme.scheme, input::source(&case["input"]["dtype"]).arithmetic())
}

fn difference(case: &Value, isa: Isa) -> Option<String> {
    let parameters = calibrated(case, isa);
    if let (Some(found), false) = (&parameters, case["scale"].is_null()) {
        let expected = input::floats(&case["scale"]);
        if found.scales != expected {
            return Some(format!("scales {:?} not {:?}", &found.scales[..1], &expected[..1]));
        }
        let points: Vec<f64> = case["zero_point"].as_array().into_iter().flatten().filter_map(Value::as_f64).collect();
        let ours: Vec<f64> = found.zero_points.iter().map(|point| f64::from(*point)).collect();
        if !points.is_empty() && ours != points {
            return Some(format!("zero points {ours:?} not {points:?}"));
        }
    }
    let quantizer = ActivationQuantizer::new(scheme(case), parameters).unwrap();
    let described = &case["input"];
    let mut values = input::values(described);
    quantizer.apply(isa, input::source(&described["dtype"]).arithmetic(), &mut values, columns(described));
    let bytes: Vec<u8> = values.iter().flat_map(|v| if *v == 0.0 { [0; 4] } else { v.to_le_bytes() }).collect();
    let same = format!("{:08x}", crc32fast::hash(&bytes)) == case["values"]["crc32"].as_str().unwrap();
    (!same).then(|| format!("values end in {:?}", &values[values.len() - 8..]))
}

#[test]
fn activation_scales_and_values_match_quark_on_every_isa() {
    let cases = cases();
    for isa in Isa::available() {
        let found = cases.iter().filter_map(|case| Some(format!("{}: {}", case["id"], difference(case, isa)?)));
        let found: Vec<String> = found.collect();
        assert!(found.is_empty(), "{} of {} differ on {}:\n{}", found.len(), cases.len(), isa.name(), found.join("\n"));
    }
    assert!(cases.len() > 600, "{}", cases.len());
}

#[test]
fn merged_activation_statistics_equal_the_whole() {
    for case in cases().iter().filter(|case| case["scheme"].as_str().unwrap().ends_with("static")) {
        let scheme = scheme(case);
        let mut parts = case["batches"].as_array().unwrap().iter().map(|batch| {
            let mut statistic = ActivationStatistic::new(scheme).unwrap();
            statistic.update(Isa::best(), &input::values(batch), columns(batch));
            // Through storage, as a resumed calibration does it.
            let text = serde_json::to_string(&statistic).unwrap();
            assert_eq!(serde_json::from_str::<ActivationStatistic>(&text).unwrap(), statistic);
            statistic
        });
        let mut merged = parts.next().unwrap();
        parts.for_each(|part| merged.merge(&part));
        let arithmetic = input::source(&case["input"]["dtype"]).arithmetic();
        assert_eq!(merged.parameters(scheme.scheme, arithmetic), calibrated(case, Isa::best()), "{}", case["id"]);
    }
}

const F32: ComputeDType = ComputeDType::F32;

fn applied(text: &str, parameters: Option<StaticParameters>, values: &[f32], columns: usize) -> Vec<f32> {
    let quantizer =
        ActivationQuantizer::new(text.parse().unwrap(), parameters).unwrap_or_else(|e| panic!("{text}: {e}"));
    let all: Vec<Vec<f32>> = Isa::available()
        .into_iter()
        .map(|isa| {
            let mut values = values.to_vec();
            quantizer.apply(isa, F32, &mut values, columns);
            values
        })
        .collect();
    let bits = |values: &Vec<f32>| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
    assert!(all.iter().all(|values| bits(values) == bits(&all[0])), "{text}");
    all[0].clone()
}

fn one(scale: f32) -> Option<StaticParameters> {
    Some(StaticParameters { scales: vec![scale], zero_points: vec![] })
}

#[test]
fn nan_passes_and_infinities_saturate() {
    let values = [1.0, f32::NAN, -3.0, f32::INFINITY, 0.5, f32::NEG_INFINITY, 2.0, 0.0];
    for (text, scale, largest) in
        [("int8:tensor!static", 0.1, 12.7), ("e4m3:tensor!static", 0.1, 44.8), ("int16:tensor!static", 1e-3, 32.767)]
    {
        let found = applied(text, one(scale), &values, 4);
        assert!(
            found[1].is_nan() && (found[3] - largest).abs() < 1e-4 && found[5] < -largest + 1.0,
            "{text}: {found:?}"
        );
        assert!((found[0] - 1.0).abs() < 0.05 && found[7] == 0.0, "{text}: {found:?}");
    }
    for text in [
        "int8:tensor!dynamic",
        "e4m3:tensor!dynamic",
        "uint8:tensor:zp!dynamic",
        "uint8:tensor:fzp!dynamic",
        "int32:tensor!dynamic",
    ] {
        assert!(applied(text, None, &values, 4).iter().all(|v| v.is_nan()), "{text}");
    }
    for text in ["int8:channel!dynamic", "e2m1:g4:e8m0!dynamic", "e4m3:channel!dynamic", "int4:g4:fzp!dynamic"] {
        let found = applied(text, None, &[values, [1.0; 8]].concat(), 4);
        assert!(
            found[..8].iter().all(|v| v.is_nan()) && found[8..].iter().all(|v| (v - 1.0).abs() < 0.2),
            "{text}: {found:?}"
        );
    }
    let found = applied("e2m1:g4:e4m3:f32!local", one(1e-3), &values, 4);
    assert!(found.iter().all(|v| v.is_nan()));
    for text in ["mx6!dynamic", "mx9!dynamic", "bfp16!dynamic", "mxint8!dynamic", "f16!dynamic", "bf16!dynamic"] {
        let found = applied(text, None, &values, 8);
        assert!(found[1].is_nan() && found[3].is_infinite() && found[7] == 0.0, "{text}: {found:?}");
    }
}

#[test]
fn rows_and_groups_may_have_any_length() {
    let values: Vec<f32> = (0..77).map(|i| (i as f32 * 0.37).sin() * 5.0).collect();
    for text in
        ["int8:g16!dynamic", "e2m1:g32:e8m0!dynamic", "e4m3:g128!dynamic", "mx9!dynamic", "int8:channel!dynamic"]
    {
        for columns in [1, 7, 11, 77] {
            let found = applied(text, None, &values, columns);
            assert!(found.iter().zip(&values).all(|(f, v)| (f - v).abs() <= 1.3), "{text} {columns}");
        }
        assert!(applied(text, None, &[], 5).is_empty() && applied(text, None, &[1.0], 0) == [1.0], "{text}");
    }
}

#[test]
fn row_wise_quantizers_treat_rows_independently() {
    let values: Vec<f32> = (0..640).map(|i| (i as f32 * 0.37).sin() * (i as f32)).collect();
    for (text, row_wise) in [
        ("int8:channel!dynamic", true),
        ("e4m3:g32:e8m0!dynamic", true),
        ("e2m1:g16:e4m3:f32!local", true),
        ("e4m3:tensor!static", true),
        ("e4m3:tensor!dynamic", false),
        ("e2m1:g16:e4m3:f32!dynamic", false),
    ] {
        let parameters = (!text.ends_with("dynamic")).then(|| one(0.7).unwrap());
        let quantizer = ActivationQuantizer::new(text.parse().unwrap(), parameters).unwrap();
        let (mut together, mut apart) = (values.clone(), values.clone());
        quantizer.apply(Isa::best(), F32, &mut together, 64);
        apart.chunks_mut(64).for_each(|row| quantizer.apply(Isa::best(), F32, row, 64));
        assert_eq!((quantizer.is_row_wise(), together == apart), (row_wise, row_wise), "{text}");
    }
}

#[test]
fn invalid_static_parameters_are_refused() {
    let refused = |text: &str, scales: &[f32], zero_points: &[f32]| {
        let parameters = StaticParameters { scales: scales.to_vec(), zero_points: zero_points.to_vec() };
        ActivationQuantizer::new(text.parse().unwrap(), Some(parameters)).unwrap_err()
    };
    for scale in [0.0, -1.0, f32::NAN, f32::INFINITY] {
        assert!(matches!(refused("int8:tensor!static", &[scale], &[]), ActivationError::Value(..)));
    }
    assert!(matches!(refused("int8:tensor:zp!static", &[1.0], &[0.5]), ActivationError::Value(..)));
    assert!(matches!(refused("int8:tensor:zp!static", &[1.0], &[300.0]), ActivationError::Value(..)));
    for (text, scales, zero_points) in [
        ("int8:tensor!static", vec![], vec![]),
        ("int8:tensor!static", vec![1.0, 2.0], vec![]),
        ("int8:tensor:zp!static", vec![1.0], vec![]),
        ("int8:channel!dynamic", vec![1.0], vec![]),
        ("e2m1:g16:e4m3:f32!local", vec![], vec![]),
    ] {
        assert!(matches!(refused(text, &scales, &zero_points), ActivationError::Count { .. }), "{text}");
    }
    assert!(ActivationQuantizer::new("int8:channel!static".parse().unwrap(), None).is_err_and(|e| e.is_unsupported()));
}

#[test]
fn observers_cover_their_documented_range() {
    let parameters = |text: &str, batches: &[Vec<f32>]| {
        let scheme: ActivationScheme = text.parse().unwrap();
        let mut statistic = ActivationStatistic::new(scheme).unwrap();
        batches.iter().for_each(|batch| statistic.update(Isa::best(), batch, 2));
        statistic.parameters(scheme.scheme, F32).unwrap()
    };
    let mut values: Vec<f32> = (0..9_999).map(|i| (i as f32 * 0.7).sin()).collect();
    values.push(100.0);
    let amax = |text: &str, values: &[f32]| parameters(text, &[values.to_vec()]).scales[0] * 127.5;
    assert_eq!(amax("int8:tensor!static", &values), 100.0);
    assert!((amax("int8:tensor:percentile99.9!static", &values) - 1.0).abs() < 0.01);
    assert_eq!(amax("int8:tensor:percentile100!static", &values), 100.0);
    // Ten thousand finer steps are worth more than one outlier.
    *values.last_mut().unwrap() = 8.0;
    let best = parameters("int4:tensor:mse!static", &[values.clone()]).scales[0] * 7.5;
    assert!(best > 0.9 && best < 4.0, "{best}");
    let batches = [vec![1.0, -1.0], vec![3.0, 0.0]];
    assert!((parameters("int8:tensor:ema0.9!static", &batches).scales[0] * 127.5 - 1.2).abs() < 1e-6);
    let by_feature = parameters("int8:channel@1!static", &batches);
    assert_eq!(by_feature.scales.iter().map(|s| s * 127.5).collect::<Vec<_>>(), [3.0, 1.0]);
}

#[test]
fn unobserved_activations_have_no_parameters_and_non_finite_is_counted() {
    for text in ["int8:tensor!static", "int8:channel@1!static", "int8:tensor:ema0.5!static", "int8:tensor:mse!static"] {
        let scheme: ActivationScheme = text.parse().unwrap();
        let mut statistic = ActivationStatistic::new(scheme).unwrap();
        statistic.update(Isa::best(), &[], 2);
        assert_eq!((statistic.tokens(), statistic.parameters(scheme.scheme, F32)), (0, None), "{text}");
        statistic.update(Isa::best(), &[f32::NAN, f32::INFINITY], 2);
        assert_eq!((statistic.tokens(), statistic.parameters(scheme.scheme, F32)), (1, None), "{text}");
        statistic.update(Isa::best(), &[f32::NAN, -2.55], 2);
        assert_eq!((statistic.tokens(), statistic.not_finite()), (2, 3), "{text}");
        let scales = statistic.parameters(scheme.scheme, F32).unwrap().scales;
        assert!(scales.iter().all(|scale| *scale > 0.0 && scale.is_finite()), "{text}: {scales:?}");
        let text = serde_json::to_string(&statistic).unwrap();
        assert_eq!(serde_json::from_str::<ActivationStatistic>(&text).unwrap(), statistic);
    }
    assert!(ActivationStatistic::new("int8:channel@1:mse!static".parse().unwrap()).is_err());
    assert!(ActivationStatistic::new("int8:channel!dynamic".parse().unwrap()).is_err());
}

#[test]
fn given_ranges_are_those_of_the_values() {
    let ranges = [Range { min: -1.0, max: 0.5 }, Range { min: 0.0, max: 3.0 }];
    let parameters = |text: &str| {
        let scheme: ActivationScheme = text.parse().unwrap();
        let statistic = ActivationStatistic::of_ranges(scheme, &ranges)?;
        Ok::<_, ActivationError>(statistic.parameters(scheme.scheme, ComputeDType::F32).unwrap())
    };
    let mut seen = ActivationStatistic::new("int8:tensor!static".parse().unwrap()).unwrap();
    seen.update(Isa::best(), &[-1.0, 0.0, 0.5, 3.0], 2);
    let expected = seen.parameters("int8:tensor".parse().unwrap(), ComputeDType::F32).unwrap();
    assert_eq!(parameters("int8:tensor!static").unwrap(), expected);
    assert_eq!(parameters("int8:channel@1!static").unwrap().scales.len(), 2);
    for text in ["int8:tensor:percentile99.9!static", "int8:tensor:ema!static", "int8:tensor!dynamic"] {
        assert!(parameters(text).unwrap_err().is_unsupported(), "{text}");
    }
}
