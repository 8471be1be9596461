//! Quantization of activations, the KV cache and attention as stated by quantized checkpoints.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

use crate::common::{Tensor, encoded, write};
use kvant_container::{Checkpoint, Dtype};
use kvant_formats::format::compressed_tensors;
use kvant_formats::format::quark::{self, WeightFormat};
use kvant_formats::import::{self, Import, StoredActivation};
use kvant_quant::scheme::LayerScheme;
use serde_json::{Value, json};

const K_PROJ: &str = "model.layers.3.self_attn.k_proj";
const Q_PROJ: &str = "model.layers.3.self_attn.q_proj";

fn scalar(name: &str, dtype: Dtype, value: f32) -> Tensor {
    (name.to_owned(), dtype, vec![], encoded(dtype, &[value]))
}

/// Two fp8 layers of 4 x 8 with scales per tensor.
fn layers() -> Vec<Tensor> {
    let layer = |module: &str| {
        let weight = (format!("{module}.weight"), Dtype::F8_E4M3, vec![4, 8], vec![0x38; 32]);
        [weight, scalar(&format!("{module}.weight_scale"), Dtype::F32, 0.5)]
    };
    [layer(K_PROJ), layer(Q_PROJ)].concat()
}

fn checkpoint(quantization: Value, more: &[Tensor]) -> (tempfile::TempDir, Checkpoint) {
    let dir = tempfile::tempdir().unwrap();
    let config = json!({"model_type": "llama", "quantization_config": quantization});
    write(dir.path(), &config, &[layers(), more.to_vec()].concat());
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    (dir, checkpoint)
}

fn quark_config(scheme: &str, change: impl Fn(&mut Value)) -> Value {
    let scheme: LayerScheme = scheme.parse().unwrap();
    let layers = [(K_PROJ, scheme), (Q_PROJ, scheme)];
    let mut config = quark::quantization_config(&layers, &[], Default::default(), WeightFormat::Real).unwrap();
    change(&mut config);
    config
}

fn said(found: Option<&StoredActivation>) -> Option<(String, Vec<f32>, Vec<f32>)> {
    let found = found?;
    let parameters = found.parameters.clone().unwrap_or_default();
    Some((found.scheme.to_string(), parameters.scales, parameters.zero_points))
}

fn input(import: &Import<'_>, module: &str) -> Option<(String, Vec<f32>, Vec<f32>)> {
    said(import.activations(module)?.input.as_ref())
}

#[test]
fn static_inputs_are_imported_with_scales() {
    let scales = [K_PROJ, Q_PROJ].map(|module| scalar(&format!("{module}.input_scale"), Dtype::BF16, 0.25));
    let (_dir, checkpoint) = checkpoint(quark_config("e4m3:tensor+e4m3:tensor!static", |_| ()), &scales);
    let import = import::open(&checkpoint).unwrap();
    let expected = ("e4m3:tensor!static".to_owned(), vec![0.25], vec![]);
    assert_eq!(input(&import, K_PROJ), Some(expected.clone()));
    assert_eq!(input(&import, Q_PROJ), Some(expected));
    assert!(import.activations("lm_head").is_none() && import.attention(3).is_none());
    let names: Vec<&str> = import.tensors().iter().map(|tensor| tensor.meta.name.as_str()).collect();
    assert_eq!(names, [format!("{K_PROJ}.weight"), format!("{Q_PROJ}.weight")]);
}

#[test]
fn zero_points_are_kept_if_the_scheme_has_them_or_one_is_nonzero() {
    let one = |scheme: &str, point: u8| {
        let scales = [K_PROJ, Q_PROJ].map(|module| scalar(&format!("{module}.input_scale"), Dtype::F32, 0.25));
        let points =
            [K_PROJ, Q_PROJ].map(|module| (format!("{module}.input_zero_point"), Dtype::I8, vec![], vec![point]));
        let (_dir, checkpoint) =
            checkpoint(quark_config(&format!("e4m3:tensor+{scheme}"), |_| ()), &[scales, points].concat());
        input(&import::open(&checkpoint).unwrap(), K_PROJ).unwrap().2
    };
    // The least input of a layer behind ReLU is 0, and so is its zero point.
    assert_eq!((one("int8:tensor:zp!static", 0xFE), one("int8:tensor:zp!static", 0)), (vec![-2.0], vec![0.0]));
    assert_eq!(one("int8:tensor!static", 0), Vec::<f32>::new());
}

#[test]
fn missing_or_invalid_static_scale_is_named() {
    let open = |tensors: &[Tensor]| {
        let (_dir, checkpoint) = checkpoint(quark_config("e4m3:tensor+e4m3:tensor!static", |_| ()), tensors);
        import::open(&checkpoint).unwrap_err().to_string()
    };
    assert!(open(&[]).contains(&format!("{K_PROJ}.input_scale")));
    for wrong in [0.0, -1.0, f32::NAN, f32::INFINITY] {
        let error = open(&[scalar(&format!("{K_PROJ}.input_scale"), Dtype::F32, wrong)]);
        assert!(error.contains(&format!("{K_PROJ}.input_scale")), "{error}");
    }
}

/// A configuration as Quark writes it with an fp8 KV cache and fp8 attention.
fn with_cache(post_rope: bool) -> Value {
    quark_config("e4m3:tensor", |config| {
        let spec = json!({"dtype": "fp8_e4m3", "is_dynamic": false, "qscheme": "per_tensor", "symmetric": true});
        let weight = config["global_quant_config"]["weight"].clone();
        let layer = json!({"weight": weight, "input_tensors": null, "output_tensors": spec, "bias": null});
        config["layer_quant_config"] = json!({"*k_proj": layer, "*q_proj": layer});
        config["kv_cache_quant_config"] = json!({"*k_proj": layer});
        config["export"]["kv_cache_group"] = json!(["*k_proj", "*v_proj"]);
        config["kv_cache_post_rope"] = json!(post_rope);
        config["softmax_quant_spec"] = spec;
    })
}

#[test]
fn quark_cache_is_quantized_before_or_after_rope() {
    let tensors = [
        scalar(&format!("{K_PROJ}.output_scale"), Dtype::BF16, 0.125),
        scalar(&format!("{Q_PROJ}.output_scale"), Dtype::BF16, 0.5),
        scalar("model.layers.3.self_attn.prob_output_scale", Dtype::F32, 0.002),
    ];
    for post_rope in [false, true] {
        let (_dir, checkpoint) = checkpoint(with_cache(post_rope), &tensors);
        let import = import::open(&checkpoint).unwrap();
        let output = |module: &str| said(import.activations(module).and_then(|found| found.output.as_ref()));
        let attention = import.attention(3).unwrap();
        let key = Some(("e4m3:tensor!static".to_owned(), vec![0.125], vec![]));
        let (made, cached) = if post_rope { (None, key) } else { (key, None) };
        assert_eq!((output(K_PROJ), said(attention.key.as_ref())), (made, cached));
        assert_eq!(output(Q_PROJ).unwrap().1, [0.5]);
        assert_eq!(said(attention.probabilities.as_ref()).unwrap().1, [0.002]);
        assert!(attention.value.is_none() && attention.query.is_none() && import.attention(0).is_none());
    }
}

#[test]
fn compressed_tensors_cache_and_reciprocal_scales_are_imported() {
    let scheme: LayerScheme = "e4m3:tensor+e2m1:g16:e4m3:f32!local".parse().unwrap();
    let layers = [(K_PROJ, scheme), (Q_PROJ, scheme)];
    let mut config = compressed_tensors::quantization_config(&layers, &[], &[], false).unwrap();
    config["kv_cache_scheme"] =
        json!({"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": false, "symmetric": true});
    let tensors = [
        scalar(&format!("{K_PROJ}.input_global_scale"), Dtype::F32, 8.0),
        scalar(&format!("{Q_PROJ}.input_global_scale"), Dtype::F32, 4.0),
        scalar("model.layers.3.self_attn.k_scale", Dtype::BF16, 0.5),
        scalar("model.layers.3.self_attn.v_scale", Dtype::BF16, 0.25),
    ];
    let (_dir, checkpoint) = checkpoint(config, &tensors);
    let import = import::open(&checkpoint).unwrap();
    assert_eq!(input(&import, K_PROJ).unwrap(), ("e2m1:g16:e4m3:f32!local".to_owned(), vec![0.125], vec![]));
    let attention = import.attention(3).unwrap();
    assert_eq!(said(attention.key.as_ref()).unwrap(), ("e4m3:tensor!static".to_owned(), vec![0.5], vec![]));
    assert_eq!(said(attention.value.as_ref()).unwrap().1, [0.25]);
    assert!(import.activations(K_PROJ).unwrap().output.is_none());
}

#[test]
fn untranslated_quark_names_are_imported() {
    let mut tensors = layers();
    for (name, ..) in &mut tensors {
        *name = name.replace(".weight_scale", ".weight_quantizer.scale");
    }
    tensors.push(scalar(&format!("{K_PROJ}.input_quantizer.scale"), Dtype::F32, 0.25));
    tensors.push(scalar(&format!("{Q_PROJ}.input_quantizer.scale"), Dtype::F32, 0.5));
    let dir = tempfile::tempdir().unwrap();
    let quantization = quark_config("e4m3:tensor+e4m3:tensor!static", |_| ());
    write(dir.path(), &json!({"quantization_config": quantization}), &tensors);
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    let import = import::open(&checkpoint).unwrap();
    assert_eq!(import.tensors().len(), 2);
    assert_eq!(input(&import, Q_PROJ).unwrap().1, [0.5]);
}

#[test]
fn excluded_fp8_source_layers_are_imported() {
    let exclude = |config: &mut Value| config["exclude"] = json!(["*"]);
    let mut tensors = layers();
    tensors[1].0 = tensors[1].0.replace("weight_scale", "weight_scale_inv");
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), &json!({"quantization_config": quark_config("int4:g32", exclude)}), &tensors);
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    let import = import::open(&checkpoint).unwrap();
    assert!(import.tensors().iter().all(|tensor| tensor.meta.dtype == "F32" && tensor.meta.shape == [4, 8]));
    assert!(import.activations(K_PROJ).is_none());
}

/// The rotation of `k_proj` that Quark's configuration states with these fields besides, and tensors beside the layers.
fn quark_rotation(fields: Value, more: &[Tensor]) -> Result<Option<Vec<f64>>, String> {
    let rotated = quark_config("e4m3:tensor", |config| {
        let mut rotation =
            json!({"name": "rotation", "r4": true, "online_config": {"online_rotation_layers": [K_PROJ]}});
        rotation.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        config["algo_config"] = json!([rotation]);
    });
    let (_dir, checkpoint) = checkpoint(rotated, more);
    let import = import::open(&checkpoint).map_err(|error| error.to_string())?;
    assert!(import.tensors().iter().all(|tensor| tensor.meta.name.ends_with("_proj.weight")));
    assert!(!import.input_rotations().contains_key(Q_PROJ));
    Ok(import.input_rotations().get(K_PROJ).map(|rotation| {
        let mut first: Vec<f64> = (0..rotation.channels()).map(|i| f64::from(u8::from(i == 0))).collect();
        rotation.apply(&mut first, &mut Vec::new());
        first
    }))
}

fn matrix(name: &str, dtype: Dtype, size: usize, bytes: Vec<u8>) -> Tensor {
    (name.to_owned(), dtype, vec![size, size], bytes)
}

#[test]
fn rotations_of_inputs_are_imported_as_quark_computes_them() {
    let own = format!("{K_PROJ}.input_rotation");
    let signs: Vec<u8> = [1i8, 1, 1, -1].map(|sign| sign as u8).to_vec();
    let half = 0.5f64.sqrt();
    let close = |found: &[f64], expected: &[f64]| found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-12);
    // A matrix of 1 and -1 is divided by the root of its size.
    let found = quark_rotation(json!({"rotation_size": 2}), &[matrix(&own, Dtype::I8, 2, signs.clone())]).unwrap();
    assert!(close(&found.unwrap(), &[half, half]));
    // One for all layers.
    let shared = matrix("shared_input_rotation_2", Dtype::I8, 2, signs.clone());
    assert!(quark_rotation(json!({"rotation_size": 2}), &[shared]).unwrap().is_some());
    // Trained ones are taken as they are.
    let trained: Vec<u8> = [0.6f64, 0.8, -0.8, 0.6].into_iter().flat_map(f64::to_le_bytes).collect();
    let trained = matrix(&own, Dtype::F64, 2, trained);
    let found = quark_rotation(json!({"rotation_size": 2, "trainable": true}), &[trained]).unwrap();
    assert!(close(&found.unwrap(), &[0.6, 0.8]));
    // As wide as the layer, the loader computes Sylvester's matrix whatever the tensor holds.
    let whole = matrix(&own, Dtype::I8, 8, vec![1; 64]);
    assert_eq!(quark_rotation(json!({}), &[whole]).unwrap().unwrap().len(), 8);
    // Targets of the rotation of the stream.
    let targets =
        json!({"first_layer": [], "middle_layers": [{"target_modules": ["model.layers.layer_id.self_attn.k_proj"]}]});
    let stream = json!({"r4": false, "r1": true, "online_r1_rotation": true, "rotation_size": 2, "online_config": null, "scaling_layers": targets});
    assert!(quark_rotation(stream, &[matrix(&own, Dtype::I8, 2, signs)]).unwrap().is_some());
}

#[test]
fn rotations_of_inputs_that_do_not_fit_are_refused() {
    let own = format!("{K_PROJ}.input_rotation");
    let refused = |fields: Value, more: &[Tensor]| quark_rotation(fields, more).unwrap_err();
    assert!(refused(json!({"rotation_size": 2}), &[]).contains(&own), "no matrix");
    assert!(refused(json!({"rotation_size": 4}), &[matrix(&own, Dtype::I8, 2, vec![1; 4])]).contains("[2, 2]"));
    assert!(refused(json!({"rotation_size": 2}), &[matrix(&own, Dtype::I8, 2, vec![1, 1, 1, 3])]).contains("holds 3"));
    assert!(refused(json!({"rotation_size": 3}), &[matrix(&own, Dtype::I8, 3, vec![1; 9])]).contains("3 of 8 inputs"));
    assert!(refused(json!({"r3": true}), &[]).contains("r3"));
    assert!(refused(json!({"online_config": {"use_input_prescale": true}}), &[]).contains("use_input_prescale"));
    let unsaid = matrix(&format!("{Q_PROJ}.input_rotation"), Dtype::I8, 2, vec![1; 4]);
    let both = [matrix(&own, Dtype::I8, 2, vec![1; 4]), unsaid];
    assert!(refused(json!({"rotation_size": 2}), &both).contains("does not say"));
}

#[test]
fn transforms_of_inputs_are_imported_and_others_refused() {
    let read = |group: Value, more: &[Tensor]| {
        let layers = [(K_PROJ, "e4m3:tensor".parse().unwrap()), (Q_PROJ, "e4m3:tensor".parse().unwrap())];
        let mut config = compressed_tensors::quantization_config(&layers, &[], &[], false).unwrap();
        config["transform_config"] = json!({"config_groups": {"R4": group}});
        let (_dir, checkpoint) = checkpoint(config, more);
        let import = import::open(&checkpoint).map_err(|error| error.to_string())?;
        assert!(import.tensors().iter().all(|tensor| tensor.meta.name.ends_with("_proj.weight")));
        Ok::<_, String>(
            import.input_rotations().iter().map(|(name, r)| (name.clone(), r.channels())).collect::<Vec<_>>(),
        )
    };
    let group = |kind: &str, location: &str| json!({"type": kind, "head_dim": 4, "apply": [{"targets": ["re:.*k_proj$"], "location": location}]});
    let stored =
        |values: &[f32]| (format!("{K_PROJ}.R4_input.weight"), Dtype::F32, vec![4, 4], encoded(Dtype::F32, values));
    let expected = vec![(K_PROJ.to_owned(), 4)];
    assert_eq!(read(group("hadamard", "input"), &[stored(&[1.0; 16])]), Ok(expected.clone()));
    assert_eq!(read(group("hadamard", "input"), &[]), Ok(expected.clone()));
    assert_eq!(read(group("random-hadamard", "input"), &[stored(&[1.0; 16])]), Ok(expected));
    assert_eq!(read(group("hadamard", "weight_input"), &[]), Ok(vec![]));
    assert!(read(group("random-hadamard", "input"), &[]).unwrap_err().contains("R4_input.weight"));
    for (kind, location) in [("hadamard", "output"), ("hadamard", "q_attn"), ("random-matrix", "input")] {
        let error = read(group(kind, location), &[]).unwrap_err();
        assert!(error.contains("transform_config.R4"), "{error}");
    }
    let mut wide = group("hadamard", "input");
    wide["head_dim"] = json!(3);
    assert!(read(wide, &[]).unwrap_err().contains("groups of 3"));
}
