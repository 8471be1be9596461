//! Checkpoints in Quark's layout with biases that are codes, and with convolutions and embeddings that Quark leaves as floats beside
//! the parameters of their quantizers.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

use crate::common::{Tensor, encoded, write};
use kvant_container::{Checkpoint, Dtype};
use kvant_formats::import::{open, open_with_convolutions};
use kvant_formats::verify::{Loads, Options, verify};
use kvant_numeric::simd::Isa;
use kvant_weights::band::Band;
use kvant_weights::weight::Stored;
use serde_json::{Value, json};

fn scheme(qscheme: &str, ch_axis: Option<i64>) -> Value {
    json!({
        "ch_axis": ch_axis, "dtype": "int8", "group_size": null, "is_dynamic": false, "observer_cls": "PerTensorMinMaxObserver",
        "qscheme": qscheme, "round_method": "half_even", "scale_type": "float", "symmetric": true,
    })
}

/// Weights and biases in int8, the biases of `up` with a scale for each value; the type Embedding in int8 too.
fn config() -> Value {
    let layer = |bias: Value| json!({ "bias": bias, "input_tensors": null, "output_tensors": null, "weight": scheme("per_tensor", None) });
    json!({ "architectures": ["Network"], "quantization_config": {
        "algo_config": null, "exclude": [], "export": { "kv_cache_group": [], "pack_method": "reorder", "weight_format": "real_quantized" },
        "global_quant_config": layer(scheme("per_tensor", None)), "kv_cache_quant_config": {},
        "layer_quant_config": { "up": layer(scheme("per_channel", Some(0))) },
        "layer_type_quant_config": { "Embedding": layer(Value::Null) },
        "quant_method": "quark", "quant_mode": "eager_mode", "softmax_quant_spec": null, "version": "0.13",
    } })
}

fn floats(name: &str, shape: &[usize], values: &[f32]) -> Tensor {
    (name.to_owned(), Dtype::F32, shape.to_vec(), encoded(Dtype::F32, values))
}

fn codes(name: &str, shape: &[usize], values: &[i8]) -> Tensor {
    (name.to_owned(), Dtype::I8, shape.to_vec(), values.iter().map(|code| *code as u8).collect())
}

fn network() -> Vec<Tensor> {
    vec![
        codes("down.bias", &[2], &[-128, 127]),
        floats("down.bias_scale", &[], &[0.5]),
        codes("down.bias_zero_point", &[], &[0]),
        codes("down.weight", &[2, 3], &[1, 2, 3, 4, 5, 6]),
        floats("down.weight_scale", &[], &[0.25]),
        floats("table._weight_scale", &[], &[0.125]),
        floats("table.weight", &[2, 2], &[0.125, 0.25, -0.125, 0.0]),
        codes("up.bias", &[3], &[10, -20, 30]),
        floats("up.bias_scale", &[3], &[1.0, 2.0, 0.5]),
        codes("up.weight", &[3, 2], &[1, 2, 3, 4, 5, 6]),
        floats("up.weight_scale", &[], &[0.25]),
    ]
}

fn with<R>(tensors: &[Tensor], run: impl FnOnce(&std::path::Path) -> R) -> R {
    let directory = tempfile::tempdir().unwrap();
    write(directory.path(), &config(), tensors);
    run(directory.path())
}

#[test]
fn codes_of_biases_are_read_as_the_floats_that_they_stand_for() {
    with(&network(), |path| {
        let checkpoint = Checkpoint::open(path).unwrap();
        let import = open(&checkpoint).unwrap();
        let names: Vec<&str> = import.tensors().iter().map(|tensor| tensor.meta.name.as_str()).collect();
        assert_eq!(names, ["down.bias", "down.weight", "table.weight", "up.bias", "up.weight"]);
        for (name, expected) in [("down.bias", &[-64.0f32, 63.5][..]), ("up.bias", &[10.0, -40.0, 15.0])] {
            let tensor = import.tensors().iter().find(|tensor| tensor.meta.name == name).unwrap();
            let Stored::Packed(matrices) = &tensor.stored else { panic!("{name} is codes") };
            let mut values = Vec::new();
            let band = Band { rows: 0..matrices[0].rows(), columns: 0..matrices[0].columns() };
            matrices[0].read(Isa::best(), &band, &mut values);
            assert_eq!(values, expected, "{name}");
            assert_eq!(tensor.meta.shape, [expected.len()]);
        }
        assert_eq!(import.biases()["down"].to_string(), "int8:tensor");
        assert_eq!(import.biases()["up"].to_string(), "int8:channel");
        assert_eq!(import.schemes()["down"].to_string(), "int8:tensor");
    });
}

#[test]
fn floats_beside_the_parameters_of_a_quantizer_are_a_quantized_layer() {
    with(&network(), |path| {
        let checkpoint = Checkpoint::open(path).unwrap();
        let import = open_with_convolutions(&checkpoint).unwrap();
        assert_eq!(import.schemes()["table"].to_string(), "int8:tensor");
        let table = import.tensors().iter().find(|tensor| tensor.meta.name == "table.weight").unwrap();
        assert!(matches!(table.stored, Stored::Plain(_)));
    });
}

#[test]
fn layers_that_are_all_floats_of_their_codes_meet_what_the_configuration_states() {
    // As `torch.nn.Sequential` names an embedding, which is like a linear layer but for its type.
    let tensors =
        [floats("0._weight_scale", &[], &[0.5]), floats("0.weight", &[2, 3], &[0.5, -1.0, 0.0, 0.5, 0.5, 1.0])];
    with(&tensors, |path| {
        let report = verify(path, &Options::default()).unwrap();
        assert!(report.passes(), "{:?}", report.findings);
    });
}

#[test]
fn quantized_biases_are_valid_and_refused_by_loaders_that_read_floats() {
    with(&network(), |path| {
        let report = verify(path, &Options::default()).unwrap();
        assert!(report.passes(), "{:?}", report.findings);
        assert_eq!(report.quantized_layers, 2);
        for id in ["vllm", "sglang"] {
            let verdict = report.verdicts.iter().find(|verdict| verdict.id == id).unwrap();
            assert_eq!(verdict.loads, Loads::No, "{id}");
            assert!(verdict.reasons.iter().any(|reason| reason.reason.contains("biases")), "{verdict:?}");
        }
        for id in ["amd-quark", "transformers"] {
            let verdict = report.verdicts.iter().find(|verdict| verdict.id == id).unwrap();
            let named: Vec<&str> = verdict.reasons.iter().map(|reason| reason.place.as_str()).collect();
            // transformers finds no class without `model_type` either.
            let others: Vec<&str> = named.iter().copied().filter(|place| *place != "config.json").collect();
            assert_eq!(others, ["up"], "one scale for each value: {verdict:?}");
        }
    });
}

#[test]
fn damaged_biases_are_errors_that_name_the_tensor() {
    for (name, tensor, place) in [
        ("up.bias_scale", floats("up.bias_scale", &[2], &[1.0, 2.0]), "up.bias_scale"),
        ("up.bias_scale", floats("up.bias_scale", &[3], &[1.0, f32::NAN, 1.0]), "up.bias_scale"),
        ("down.bias", floats("down.bias", &[2], &[1.0, 2.0]), "down.bias"),
    ] {
        let mut tensors = network();
        *tensors.iter_mut().find(|tensor| tensor.0 == name).unwrap() = tensor;
        with(&tensors, |path| {
            let report = verify(path, &Options::default()).unwrap();
            assert!(report.errors().any(|finding| finding.place == place), "{name}: {:?}", report.findings);
        });
    }
}
