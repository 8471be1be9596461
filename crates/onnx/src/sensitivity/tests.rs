//! A small network: which layers hurt, and mixes of types that are good enough.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use kvant_container::Diagnostic;
use kvant_container::onnx::{Bytes, DataType, GraphProto, ModelProto, parse, serialize};
use kvant_quant::recipe::OverrideEntry;

use super::*;
use crate::calibration::observe;
use crate::data::{DataOptions, SampleSource, Samples, inputs};
use crate::graph::node;
use crate::quantize::prepare;
use crate::runtime::{RuntimeChoice, RuntimeOptions};
use crate::settings::Settings;
use crate::shape::ValueType;
use crate::test_models::{self, branches, floats, typed};

fn model() -> ModelProto {
    let path = format!("{}/tests/data/tinycnn.float.onnx", env!("CARGO_MANIFEST_DIR"));
    parse(&Bytes::from(std::fs::read(path).unwrap())).unwrap()
}

fn samples(model: &ModelProto) -> Samples {
    let path = format!("{}/tests/data/tinycnn.calib.npz", env!("CARGO_MANIFEST_DIR"));
    SampleSource::Path(path.into()).open(&inputs(&model.graph), &DataOptions::default()).unwrap()
}

fn options() -> RuntimeOptions {
    RuntimeOptions { choice: RuntimeChoice::Rten, threads: Some(1), ..RuntimeOptions::default() }
}

fn settings(preset: &str) -> Settings {
    Settings { preset: Some(preset.to_owned()), ..Settings::default() }
}

fn bench(preset: &str, candidates: &[&str]) -> Bench {
    let base = plan(model(), &settings(preset), None).unwrap();
    let data = Data { calibration: samples(&base.model), held_out: samples(&base.model), labels: None };
    let candidates = candidates.iter().map(|text| text.parse().unwrap()).collect();
    Bench::new(base, settings(preset), candidates, data, options(), Arc::new(AtomicBool::new(false)), &mut |_, _| ())
        .unwrap()
}

fn quantized(settings: &Settings) -> (ModelProto, f64) {
    let resolved = settings.resolve().unwrap();
    let prepared = prepare(model(), resolved.recipe, &resolved.passes, None).unwrap();
    let mut observation = prepared.observation();
    let stop = AtomicBool::new(false);
    observe(&prepared.model, &mut observation, &mut samples(&prepared.model), &options(), &mut |_, _| (), &stop)
        .unwrap();
    let float = prepared.model.clone();
    let made = prepared.transformed(None, None).unwrap().finish(&observation, None, None).unwrap().0;
    let kept = crate::evaluation::KeptOutputs::new(&float, &mut samples(&float), None, &options()).unwrap();
    let quality = kept.measure(&made, &mut samples(&float), &options()).unwrap();
    (made, quality.sqnr_db)
}

#[test]
fn outputs_beyond_the_budget_are_measured_alike() {
    let (made, sqnr_db) = quantized(&settings("A8W4"));
    let (float, options) = (model(), RuntimeOptions { budget: 1, ..options() });
    let kept = crate::evaluation::KeptOutputs::new(&float, &mut samples(&float), None, &options).unwrap();
    assert_eq!(kept.measure(&made, &mut samples(&float), &options).unwrap().sqnr_db, sqnr_db);
}

fn found(bench: &mut Bench, target: Option<Target>) -> Result<Outcome, SensitivityError> {
    let rows = sensitivities(bench, false, &mut |_, _| ())?;
    search(bench, rows, target, &mut |_, _| ())
}

#[test]
fn sqnr_target_is_met_by_a_reproducible_recipe() {
    let plain = quantized(&settings("A8W4")).1;
    let mut bench = bench("A8W4", &["A8W8", "A16W8"]);
    let target = plain + 6.0;
    let outcome = found(&mut bench, Some(Target::Sqnr(target))).unwrap();
    assert!((outcome.recipe.sqnr_db - plain).abs() < 1e-9);
    let mix = outcome.mix.unwrap();
    assert!(mix.sqnr_db >= target && !outcome.overrides.is_empty());
    let raised = outcome.layers.iter().filter(|row| row.chosen.is_some()).count();
    assert!(raised > 0 && raised < outcome.layers.len(), "{raised} of {}", outcome.layers.len());
    assert!(outcome.bytes[0] > outcome.bytes[2] && outcome.bytes[2] > outcome.bytes[1], "{:?}", outcome.bytes);
    let mixed = Settings { overrides: outcome.overrides, ..settings("A8W4") };
    let again = Settings::from_toml("r", &mixed.to_toml()).unwrap();
    let (first, second) = (quantized(&mixed), quantized(&again));
    assert!((first.1 - mix.sqnr_db).abs() < 1e-9, "{} {}", first.1, mix.sqnr_db);
    assert_eq!(serialize(&first.0).unwrap(), serialize(&second.0).unwrap());
}

#[test]
fn single_layer_noise_is_below_total_and_falls_with_bits() {
    let mut bench = bench("A8W4", &["A8W8", "float"]);
    let outcome = found(&mut bench, None).unwrap();
    assert!(outcome.mix.is_none() && outcome.layers.len() > 4);
    for row in outcome.layers.iter().filter(|row| row.op == "Conv") {
        let [narrow, wide] = row.alone[..] else { panic!("{row:?}") };
        assert!(narrow.sqnr_db > outcome.recipe.sqnr_db - 0.5 && wide.sqnr_db > narrow.sqnr_db, "{row:?}");
    }
}

#[test]
fn size_target_is_met_and_used() {
    let mut bench = bench("A8W4", &["A8W8", "float"]);
    let least = found(&mut bench, None).unwrap().bytes;
    let room = least[1] + (least[0] - least[1]) / 4;
    let outcome = found(&mut bench, Some(Target::Size(Size::Bytes(room)))).unwrap();
    assert!(outcome.bytes[2] <= room && outcome.bytes[2] > least[1], "{:?}", outcome.bytes);
    assert!(outcome.mix.unwrap().sqnr_db > outcome.recipe.sqnr_db);
    let small = found(&mut bench, Some(Target::Size(Size::Bytes(1))));
    let small = small.err().unwrap();
    assert!(matches!(small, SensitivityError::TooLarge { asked: 1, .. }));
    assert_eq!(small.hint().unwrap(), "ask for more: no preset has smaller weights");
    let wide = found(&mut self::bench("A8W8", &["float"]), Some(Target::Size(Size::Bytes(1)))).err().unwrap();
    assert!(wide.hint().unwrap().contains("A8W4"));
}

#[test]
fn unreachable_target_is_reported() {
    let mut bench = bench("A8W8", &["A16W8"]);
    let error = found(&mut bench, Some(Target::Sqnr(500.0))).unwrap_err();
    assert!(matches!(error, SensitivityError::Unreachable { .. }) && error.to_string().contains("A16W8"), "{error}");
    assert!(error.hint().unwrap().ends_with("‹candidates› A16W8,float"), "{:?}", error.hint());
    let mut bench = self::bench("A8W8", &["float"]);
    let error = found(&mut bench, Some(Target::Sqnr(500.0))).unwrap_err();
    assert!(matches!(error, SensitivityError::OnlyFloat { .. }), "{error}");
    assert!(error.hint().unwrap().ends_with("‹candidates› A16W8,A16W16,float"), "{:?}", error.hint());
    let mut bench = self::bench("A8W8", &["A16W8", "A16W16", "float"]);
    let error = found(&mut bench, Some(Target::Sqnr(500.0))).unwrap_err();
    assert_eq!(error.hint().unwrap(), "ask for less", "all that could be advised is given");
    let dynamic = plan(model(), &settings("UINT8_DYNAMIC_QUANT"), None);
    assert!(matches!(dynamic, Err(SensitivityError::Layout)));
}

/// A graph with `y = tanh(x w)` in both branches of an If, whose condition is an input: no product stands outside the branches.
fn only_in_branches() -> ModelProto {
    let branch = |name: &str, weight: f32| GraphProto {
        name: Some(name.to_owned()),
        node: vec![node("MatMul", "product", &["x", "w"], &["p"]), node("Tanh", "tanh", &["p"], &["z"])],
        initializer: vec![floats("w", &[2, 2], &[weight, 0.0, 0.5, 1.0])],
        output: vec![typed("z", &[4, 2])],
        ..GraphProto::default()
    };
    let choice = branches("c", "y", branch("then", 0.25), branch("else", -2.0));
    let mut made = test_models::model(17, vec![choice], Vec::new(), &[], &[]);
    let graph = made.graph.as_mut().unwrap();
    graph.input = vec![typed("x", &[4, 2]), ValueType::new(DataType::BOOL, Vec::new()).to_proto("c").unwrap()];
    graph.output = vec![typed("y", &[4, 2])];
    made
}

#[test]
fn missing_layers_are_blamed_on_overrides_only_where_they_take_them() {
    let refused = |model: ModelProto, overrides: &[(&str, &str)]| {
        let entry = |(name, scheme): &(&str, &str)| OverrideEntry::of_tensors((*name).to_owned(), (*scheme).to_owned());
        let settings = Settings { overrides: overrides.iter().map(entry).collect(), ..settings("A8W8") };
        let base = plan(model, &settings, None).unwrap();
        let (calibration, held_out) = (samples(&self::model()), samples(&self::model()));
        let data = Data { calibration, held_out, labels: None };
        let stop = Arc::new(AtomicBool::new(false));
        Bench::new(base, settings, Vec::new(), data, options(), stop, &mut |_, _| ()).err().unwrap()
    };
    for overrides in [&[][..], &[("x", "int16")]] {
        let error = refused(only_in_branches(), overrides);
        assert!(matches!(error, SensitivityError::OnlyInBodies), "{overrides:?}: {error}");
    }
    let error = refused(model(), &[("*", "int8")]);
    assert!(matches!(error, SensitivityError::NoLayers), "{error}");
}

#[test]
fn layers_with_the_most_noise_are_widened_first() {
    let mut bench = bench("A8W4", &["A8W8", "float"]);
    let rows = sensitivities(&mut bench, false, &mut |_, _| ()).unwrap();
    let steps = widenings(&bench, &rows);
    let noisiest = rows.iter().min_by(|a, b| a.alone[0].sqnr_db.total_cmp(&b.alone[0].sqnr_db)).unwrap();
    assert_eq!((steps[0].layer.as_str(), steps[0].candidate.as_str()), (noisiest.layer.as_str(), "A8W8"));
    let first_float = steps.iter().position(|step| step.candidate == "float").unwrap();
    assert!(steps[first_float..].iter().all(|step| step.candidate == "float"));
    let plain = quantized(&settings("A8W4")).1;
    let better = |count: usize| {
        let overrides = steps[..count].iter().flat_map(|step| step.overrides.clone()).collect();
        quantized(&Settings { overrides, ..settings("A8W4") }).1
    };
    let [two, eight_bits] = [better(2), better(first_float)];
    assert!(plain < two && two < eight_bits, "{plain} {two} {eight_bits}");
}
