//! GPTQ and its variants against a plain implementation of their papers, and against round to nearest.

#![allow(clippy::unwrap_used, clippy::needless_range_loop)]

mod golden;
mod groups;
mod reference;

use kvant_numeric::ComputeDType;
use kvant_numeric::simd::Isa;
use kvant_quant::QuantTensor;
use kvant_quant::hessian::{Hessian, HessianError};
use kvant_quant::rounding::{ColumnOrder, Damping, Gptq, Groups, RoundingError, Rtn, TensorContext, Variant};
use kvant_quant::scheme::TensorScheme;
use reference::judge;

/// Arguments of rounding may be off by so many steps: what f32 leaves of sums over hundreds of columns.
const TOLERANCE: f64 = 1e-3;

/// Numbers without structure between -1 and 1, more of them near 0.
fn noise(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut uniform = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    (0..count).map(|_| (uniform() + uniform() + uniform()) / 3.0).collect()
}

/// Tokens of features that depend on one another, one in twenty of them ten times as large.
fn inputs(tokens: usize, features: usize, seed: u64) -> Vec<f32> {
    let own = noise(tokens * features, seed);
    let causes = noise(tokens * 8, seed + 1);
    let mix = noise(8 * features, 77);
    let size = |c: usize| if c % 20 == 3 { 10.0 } else { 1.0 };
    let value = |i: usize| {
        let (token, c) = (i / features, i % features);
        let common: f32 = (0..8).map(|k| causes[token * 8 + k] * mix[k * features + c]).sum();
        (common * 3.0 + own[i]) * size(c)
    };
    (0..tokens * features).map(value).collect()
}

/// A Hessian with drift of a tenth of the inputs, the columns in `dead` zero.
fn hessian(tokens: usize, features: usize, dead: &[usize]) -> Hessian {
    let silence = |mut x: Vec<f32>| {
        x.chunks_mut(features).for_each(|row| dead.iter().for_each(|c| row[*c] = 0.0));
        x
    };
    let x = silence(inputs(tokens, features, 5));
    let mut float = silence(x.iter().zip(inputs(tokens, features, 9)).map(|(x, d)| x + 0.1 * d).collect());
    let mut hessian = Hessian::with_mismatch(features);
    hessian.add_with_float(&x, &mut float);
    hessian
}

fn scheme(text: &str) -> TensorScheme {
    text.parse().unwrap()
}

fn context() -> TensorContext {
    TensorContext::new(ComputeDType::F32)
}

fn rtn(text: &str, weights: &[f32], rows: usize) -> QuantTensor {
    Rtn::new(scheme(text), context()).unwrap().round(weights, rows, weights.len() / rows).unwrap()
}

fn order(settings: Gptq, hessian: &Hessian) -> Vec<usize> {
    let mut columns: Vec<usize> = (0..hessian.features()).collect();
    if settings.order == ColumnOrder::Activation {
        let diagonal = hessian.gram().diagonal();
        let alive: Vec<f64> = diagonal.iter().map(|d| f64::from(*d)).filter(|d| *d > 0.0).collect();
        let mean = alive.iter().sum::<f64>() / alive.len() as f64;
        let of = |c: usize| if diagonal[c] > 0.0 { f64::from(diagonal[c]) } else { mean };
        columns.sort_by(|a, b| of(*b).total_cmp(&of(*a)));
    }
    columns
}

/// Rounds, and holds the codes against the reference.
fn check(settings: Gptq, hessian: &Hessian, text: &str, rows: usize) {
    let weights = noise(rows * hessian.features(), 3);
    let rounded = settings.prepare(hessian).unwrap().round(&weights, rows, scheme(text), context()).unwrap();
    let order = order(settings, hessian);
    let verdict = judge(settings, &order, hessian, &weights, &rounded.tensor, TOLERANCE);
    assert_eq!(verdict.wrong, 0, "{text} {settings:?}: {verdict:?}");
    assert!(verdict.ties * 200 <= verdict.equal, "{text} {settings:?}: {verdict:?}");
    assert!((rounded.loss / verdict.loss - 1.0).abs() < 1e-4, "{text}: {} {}", rounded.loss, verdict.loss);
}

const SCHEMES: [&str; 22] = [
    "int4:g32",
    "uint4:g48:zp",
    "int3:g16",
    "int2:channel",
    "uint4:g-1:fzp",
    "int4:tensor",
    "int8:channel@1",
    "uint8:g32:zp:f16",
    "int4:g32:pow2",
    "int4:g32:mse",
    "int4:g3@0",
    "e4m3:channel",
    "e4m3:tensor",
    "e5m2:b8x50",
    "e4m3:g32:e8m0",
    "e2m1:g32:e8m0",
    "e2m1:g32:e8m0-floor",
    "e2m3:g16:e8m0",
    "e3m2:g24:e8m0-rceil",
    "e2m1:g16:e4m3:f32",
    "e2m1:g16:e5m3:f32",
    "e2m1:g16:e5m3",
];

#[test]
fn gptq_codes_match_the_paper_for_all_schemes() {
    let hessian = hessian(400, 192, &[7, 100]);
    for text in SCHEMES {
        check(Gptq::GPTQ, &hessian, text, 9);
    }
}

#[test]
fn codes_match_the_papers_for_all_algorithms_orders_and_dampings() {
    let hessian = hessian(500, 300, &[0, 299]);
    for settings in [Gptq::GPTQ, Gptq::GPTAQ, Gptq::QRONOS] {
        for order in [ColumnOrder::Stored(Groups::Static), ColumnOrder::Activation] {
            for damping in
                [Damping::OfMeanDiagonal(0.01), Damping::OfMeanDiagonal(0.1), Damping::OfLargestEigenvalue(1e-3)]
            {
                for text in ["int4:g50", "uint4:channel:zp", "e2m1:g30:e8m0"] {
                    check(Gptq { order, damping, ..settings }, &hessian, text, 5);
                }
            }
        }
    }
}

#[test]
fn any_block_width_gives_the_codes_of_the_papers() {
    let hessian = hessian(400, 150, &[0, 149]);
    for settings in [Gptq::GPTQ, Gptq::GPTAQ, Gptq::QRONOS] {
        for block in [0, 1, 32, 100, 1000] {
            check(Gptq { block, ..settings }, &hessian, "int4:g50", 5);
        }
    }
}

#[test]
fn odd_sizes_match_the_reference() {
    for (features, rows) in [(1, 1), (2, 3), (127, 65), (129, 1), (257, 70)] {
        let hessian = hessian(300, features, &[]);
        for settings in [Gptq::GPTQ, Gptq::GPTAQ, Gptq::QRONOS] {
            check(settings, &hessian, "int4:channel", rows);
        }
    }
}

#[test]
fn rows_beyond_a_band_round_independently() {
    let (features, rows) = (130, 600);
    let hessian = hessian(300, features, &[5]);
    let weights = noise(rows * features, 3);
    let feedback = Gptq::GPTQ.prepare(&hessian).unwrap();
    for text in ["int4:g65", "e2m1:g26:e4m3:f32", "int4:g4@0"] {
        let whole = feedback.round(&weights, rows, scheme(text), context()).unwrap();
        let verdict = judge(Gptq::GPTQ, &order(Gptq::GPTQ, &hessian), &hessian, &weights, &whole.tensor, TOLERANCE);
        assert_eq!(verdict.wrong, 0, "{text}");
        assert!((whole.loss / verdict.loss - 1.0).abs() < 1e-3, "{text}: {} {}", whole.loss, verdict.loss);
    }
}

#[test]
fn gptq_loss_matches_its_definition_and_beats_rtn() {
    let (features, rows) = (192, 33);
    let hessian = hessian(400, features, &[]);
    let weights = noise(rows * features, 3);
    let others = ["int4:channel:f32/e4m3:tensor:f32", "uint4:g24:fzp"];
    for text in SCHEMES.into_iter().chain(others) {
        let nearest = hessian.loss(&weights, &rtn(text, &weights, rows).dequantize());
        for settings in
            [Gptq::GPTQ, Gptq { order: ColumnOrder::Stored(Groups::Static), ..Gptq::GPTQ }, Gptq::GPTAQ, Gptq::QRONOS]
        {
            let rounded = settings.prepare(&hessian).unwrap().round(&weights, rows, scheme(text), context()).unwrap();
            let loss = hessian.loss(&weights, &rounded.tensor.dequantize());
            assert!((rounded.loss / loss - 1.0).abs() < 2e-3, "{text}: {} {loss}", rounded.loss);
            if settings.variant == Variant::Gptq {
                assert!(loss < nearest, "{text}: {loss} {nearest}");
            }
        }
    }
}

#[test]
fn mismatch_aware_algorithms_come_nearer_to_float_outputs() {
    let (features, rows, tokens) = (192, 40, 600);
    let x = inputs(tokens, features, 5);
    let float: Vec<f32> = x.iter().zip(inputs(tokens, features, 9)).map(|(x, d)| x + 0.1 * d).collect();
    let mut hessian = Hessian::with_mismatch(features);
    hessian.add_with_float(&x, &mut float.clone());
    let weights = noise(rows * features, 3);
    let output_error = |q: &[f32]| {
        let row_error = |row: usize, t: usize| {
            let (w, q) = (&weights[row * features..][..features], &q[row * features..][..features]);
            let (x, f) = (&x[t * features..][..features], &float[t * features..][..features]);
            (0..features).map(|i| f64::from(w[i] * f[i] - q[i] * x[i])).sum::<f64>().powi(2)
        };
        (0..rows * tokens).map(|i| row_error(i / tokens, i % tokens)).sum::<f64>()
    };
    let error = |settings: Gptq| {
        let rounded = settings.prepare(&hessian).unwrap().round(&weights, rows, scheme("int4:g32"), context()).unwrap();
        output_error(&rounded.tensor.dequantize())
    };
    let nearest = output_error(&rtn("int4:g32", &weights, rows).dequantize());
    let (gptq, gptaq, qronos) = (error(Gptq::GPTQ), error(Gptq::GPTAQ), error(Gptq::QRONOS));
    assert!(gptq < nearest && gptaq < gptq && qronos < gptaq, "{nearest} {gptq} {gptaq} {qronos}");
}

#[test]
fn uncorrelated_inputs_give_rtn_codes() {
    let (features, rows) = (192, 72);
    let mut hessian = Hessian::with_mismatch(features);
    let identity: Vec<f32> =
        (0..features * features).map(|i| f32::from(u8::from(i / features == i % features))).collect();
    hessian.add_with_float(&identity, &mut identity.clone());
    let weights = noise(rows * features, 3);
    let others = ["int16:g64", "uint16:channel:zp", "int4:channel:f32/e4m3:tensor:f32", "uint4:channel:zp/e4m3:tensor"];
    for text in SCHEMES.into_iter().chain(others) {
        let expected = rtn(text, &weights, rows);
        for settings in [Gptq::GPTQ, Gptq::GPTAQ, Gptq::QRONOS] {
            let rounded = settings.prepare(&hessian).unwrap().round(&weights, rows, scheme(text), context()).unwrap();
            assert_eq!(rounded.tensor, expected, "{text}");
        }
    }
}

#[test]
fn model_dtype_of_scales_matches_rtn() {
    let (features, rows) = (64, 300);
    let mut hessian = Hessian::new(features);
    hessian
        .add(&(0..features * features).map(|i| f32::from(u8::from(i / features == i % features))).collect::<Vec<_>>());
    let weights = noise(rows * features, 3);
    for arithmetic in [ComputeDType::Bf16, ComputeDType::F16] {
        for text in ["int4:g32", "uint4:g32:zp", "e4m3:channel", "e4m3:tensor", "int4:channel/e4m3:tensor"] {
            let context = TensorContext::new(arithmetic);
            let expected = Rtn::new(scheme(text), context).unwrap().round(&weights, rows, features).unwrap();
            let feedback = Gptq::GPTQ.prepare(&hessian).unwrap();
            assert_eq!(feedback.round(&weights, rows, scheme(text), context).unwrap().tensor, expected, "{text}");
        }
    }
}

#[test]
fn gptq_does_not_depend_on_the_number_of_threads() {
    let weights = noise(600 * 300, 3);
    for settings in [Gptq::GPTQ, Gptq::GPTAQ, Gptq::QRONOS] {
        let results = [1, 2, 3, 7].map(|threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| {
                let hessian = hessian(200, 300, &[]);
                settings.prepare(&hessian).unwrap().round(&weights, 600, scheme("uint4:g60:zp"), context()).unwrap()
            })
        });
        assert!(results.windows(2).all(|pair| pair[0] == pair[1]));
    }
}

#[test]
fn gptq_gives_the_same_codes_on_every_isa() {
    let (features, rows) = (192, 72);
    let hessian = hessian(200, features, &[4]);
    let weights = noise(rows * features, 3);
    for settings in [Gptq::GPTQ, Gptq::GPTAQ, Gptq::QRONOS] {
        let feedback = settings.prepare(&hessian).unwrap();
        for text in SCHEMES {
            let round = |isa| feedback.clone().on(isa).round(&weights, rows, scheme(text), context()).unwrap();
            let baseline = round(Isa::BASELINE);
            assert!(Isa::available().into_iter().all(|isa| round(isa) == baseline), "{text} {settings:?}");
        }
    }
}

#[test]
fn invalid_gptq_problems_are_refused() {
    let weights = noise(4 * 20, 3);
    let prepare = |hessian: &Hessian, settings: Gptq| settings.prepare(hessian).unwrap_err();
    assert_eq!(prepare(&Hessian::new(20), Gptq::GPTQ), HessianError::NoData);
    let mut plain = Hessian::new(20);
    plain.add(&noise(60 * 20, 4));
    assert_eq!(prepare(&plain, Gptq::GPTAQ), HessianError::NoMismatch);
    let feedback = Gptq::GPTQ.prepare(&plain).unwrap();
    let error = feedback.round(&weights, 5, scheme("int4:channel"), context()).unwrap_err();
    assert_eq!(error, RoundingError::Hessian(HessianError::Features { columns: 16, features: 20 }));
    let error = feedback.round(&weights, 4, scheme("mx9"), context()).unwrap_err();
    assert_eq!(error, RoundingError::NoCodes(scheme("mx9")));
    assert!(matches!(feedback.round(&weights, 4, scheme("int4:g7"), context()), Err(RoundingError::Scheme(_))));
    let mut broken = weights.clone();
    broken[9] = f32::NAN;
    assert_eq!(feedback.round(&broken, 4, scheme("int4:g5"), context()), Err(RoundingError::NotFinite));
    plain.add(&[f32::INFINITY; 20]);
    assert_eq!(prepare(&plain, Gptq::GPTQ), HessianError::NotFinite);
}

#[test]
fn fewer_tokens_than_features_are_enough() {
    let hessian = hessian(3, 100, &[]);
    for damping in [Damping::OfMeanDiagonal(0.01), Damping::OfMeanDiagonal(0.0)] {
        let settings = Gptq { damping, ..Gptq::GPTQ };
        let weights = noise(8 * 100, 3);
        let feedback = settings.prepare(&hessian).unwrap();
        let rounded = feedback.round(&weights, 8, scheme("int4:g20"), context()).unwrap();
        assert!(feedback.damping() > 0.0 && rounded.tensor.dequantize().iter().all(|v| v.is_finite()));
    }
}
