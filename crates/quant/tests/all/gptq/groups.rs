//! Scales that are not those of the weight as it comes: of groups as they have become, and of clipped weights.

use super::reference::judge_watched;
use super::{TOLERANCE, context, hessian, noise, order, rtn, scheme};
use kvant_numeric::kernel::Range;
use kvant_quant::hessian::HessianError;
use kvant_quant::rounding::{ColumnOrder, Gptq, Groups, RoundingError, Rtn, TensorContext};

const FEATURES: usize = 180;
const DYNAMIC: ColumnOrder = ColumnOrder::Stored(Groups::Dynamic);

/// Rounds with dynamic groups, and holds codes and scales against the reference.
fn check_dynamic(settings: Gptq, text: &str, group: usize, rows: usize) {
    let hessian = hessian(500, FEATURES, &[7]);
    let weights = noise(rows * FEATURES, 3);
    let rounded = settings.prepare(&hessian).unwrap().round(&weights, rows, scheme(text), context()).unwrap();
    let tensor = &rounded.tensor;
    let order = order(settings, &hessian);
    let across = tensor.scale_shape().1;
    let alive = weights.iter().enumerate().map(|(i, w)| if i % FEATURES == 7 { 0.0 } else { *w });
    let range = alive.fold(Range::EMPTY, |range, w| Range { min: range.min.min(w), max: range.max.max(w) });
    let nearest = Rtn::new(scheme(text), TensorContext { range: Some(range), ..context() }).unwrap();
    let (mut same, mut others) = (0, 0);
    let verdict = judge_watched(settings, &order, &hessian, &weights, tensor, TOLERANCE, |row, position, w| {
        if position % group == 0 {
            let values: Vec<f32> = w[position..position + group].iter().map(|w| *w as f32).collect();
            let expected = nearest.round(&values, 1, group).unwrap();
            let index = row * across + position / group;
            let ratio = tensor.scales()[index] / expected.scales()[0];
            let zero_points = (tensor.zero_points().get(index), expected.zero_points().first());
            let near = zero_points.0.zip(zero_points.1).is_none_or(|(a, b)| (a - b).abs() < 1e-2);
            *(if (ratio - 1.0).abs() < 1e-4 && near { &mut same } else { &mut others }) += 1;
        }
    });
    assert_eq!(verdict.wrong, 0, "{text} {settings:?}: {verdict:?}");
    assert!(others * 100 <= same, "{text} {settings:?}: {others} of {same} scales are others");
    assert!((rounded.loss / verdict.loss - 1.0).abs() < 1e-4, "{text}: {} {}", rounded.loss, verdict.loss);
}

#[test]
fn dynamic_group_scales_follow_updated_weights() {
    for settings in [Gptq::GPTQ, Gptq::GPTAQ, Gptq::QRONOS] {
        for block in [128, 37] {
            let settings = Gptq { order: DYNAMIC, block, ..settings };
            for (text, group) in [("int4:g45", 45), ("uint4:g60:zp", 60), ("int3:g90", 90), ("e2m1:g30:e8m0", 30)] {
                check_dynamic(settings, text, group, 40);
            }
        }
    }
    for (text, group) in [("e2m1:g20:e4m3:f32", 20), ("uint4:g36:fzp", 36)] {
        check_dynamic(Gptq { order: DYNAMIC, ..Gptq::GPTQ }, text, group, 300);
    }
}

#[test]
fn scales_spanning_all_columns_or_rows_equal_static_groups() {
    let hessian = hessian(500, FEATURES, &[7]);
    let weights = noise(12 * FEATURES, 3);
    for text in ["int4:channel", "int4:tensor", "int4:g3@0", "e5m2:b4x45", "uint4:g-1:fzp"] {
        let round = |order| {
            let feedback = Gptq { order, ..Gptq::GPTQ }.prepare(&hessian).unwrap();
            feedback.round(&weights, 12, scheme(text), context()).unwrap()
        };
        assert_eq!(round(DYNAMIC), round(ColumnOrder::Stored(Groups::Static)), "{text}");
    }
}

#[test]
fn dynamic_groups_do_not_depend_on_the_number_of_threads() {
    let hessian = hessian(400, FEATURES, &[]);
    let weights = noise(600 * FEATURES, 3);
    let feedback = Gptq { order: DYNAMIC, ..Gptq::GPTQ }.prepare(&hessian).unwrap();
    let results = [1, 2, 5].map(|threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| feedback.round(&weights, 600, scheme("uint4:g60:zp"), context()).unwrap())
    });
    assert!(results.windows(2).all(|pair| pair[0] == pair[1]));
}

#[test]
fn scales_come_from_clipped_weights_and_others_are_rounded() {
    let hessian = hessian(400, FEATURES, &[7]);
    let (rows, weights) = (9, noise(9 * FEATURES, 3));
    let clipped: Vec<f32> = weights.iter().map(|w| w.clamp(-0.3, 0.3)).collect();
    let mut alive = clipped.clone();
    alive.chunks_mut(FEATURES).for_each(|row| row[7] = 0.0);
    for settings in [Gptq::GPTQ, Gptq::GPTAQ, Gptq::QRONOS] {
        let feedback = settings.prepare(&hessian).unwrap();
        for text in ["int4:g45", "uint4:g60:zp", "e2m1:g30:e8m0"] {
            let rounded = feedback.round_to(&weights, &clipped, rows, scheme(text), context()).unwrap();
            let order = order(settings, &hessian);
            let verdict = judge_watched(settings, &order, &hessian, &weights, &rounded.tensor, TOLERANCE, |_, _, _| {});
            assert_eq!(verdict.wrong, 0, "{text} {settings:?}: {verdict:?}");
            assert_eq!(rounded.tensor.scales(), rtn(text, &alive, rows).scales());
            let same = feedback.round_to(&weights, &weights, rows, scheme(text), context()).unwrap();
            assert_eq!(same, feedback.round(&weights, rows, scheme(text), context()).unwrap());
        }
    }
}

#[test]
fn invalid_clipped_weights_are_refused() {
    let hessian = hessian(400, FEATURES, &[]);
    let weights = noise(9 * FEATURES, 3);
    let feedback = Gptq::GPTQ.prepare(&hessian).unwrap();
    let round = |weights: &[f32], from: &[f32]| feedback.round_to(weights, from, 9, scheme("int4:g45"), context());
    let features = HessianError::Features { columns: FEATURES - 1, features: FEATURES };
    assert_eq!(round(&weights, &weights[9..]), Err(RoundingError::Hessian(features)));
    let mut broken = weights.clone();
    broken[5] = f32::INFINITY;
    assert_eq!(round(&broken, &weights), Err(RoundingError::NotFinite));
    let dynamic = Gptq { order: DYNAMIC, ..Gptq::GPTQ }.prepare(&hessian).unwrap();
    let error = dynamic.round_to(&weights, &weights, 9, scheme("int4:g45"), context()).unwrap_err();
    assert_eq!(error, RoundingError::Hessian(HessianError::ParametersNotStatic));
}
