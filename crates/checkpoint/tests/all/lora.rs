//! LoRA adapters merged into weights as they are read, beside weights that were merged by hand.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

use crate::common::{Tensor, encoded, files, llama, llama_config, quantize, scheme, weight, write};
use kvant_checkpoint::engine::{self, Output, Silent, Start};
use kvant_checkpoint::gguf::run::run;
use kvant_checkpoint::gguf::{GgufPlan, GgufRecipe};
use kvant_checkpoint::plan::{CalibratedPlan, Plan};
use kvant_checkpoint::recipe::{Recipe, Settings};
use kvant_container::{Checkpoint, Diagnostic, Dtype, Durability};
use kvant_formats::adapter;
use kvant_forward::forward::Decoder;
use kvant_forward::forward::cpu::Cpu;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

const Q: &str = "model.layers.0.self_attn.q_proj";
const DOWN: &str = "model.layers.0.mlp.down_proj";

fn config() -> Value {
    let mut config = llama_config();
    config["max_position_embeddings"] = json!(128);
    config["rms_norm_eps"] = json!(1e-6);
    config
}

/// Writes an adapter as PEFT names its files and tensors.
fn adapter_in(dir: &Path, config: &Value, tensors: &[Tensor]) {
    let prefixed = tensors
        .iter()
        .map(|(name, dtype, shape, bytes)| (format!("base_model.model.{name}"), *dtype, shape.clone(), bytes.clone()));
    let all: Vec<Tensor> = prefixed.collect();
    write(dir, &json!({}), &all);
    std::fs::remove_file(dir.join("config.json")).unwrap();
    std::fs::rename(dir.join("model.safetensors"), dir.join("adapter_model.safetensors")).unwrap();
    std::fs::write(dir.join("adapter_config.json"), config.to_string()).unwrap();
}

fn factors(module: &str, (rows, columns): (usize, usize), rank: usize) -> [Tensor; 2] {
    [
        weight(&format!("{module}.lora_A.weight"), Dtype::F32, &[rank, columns]),
        weight(&format!("{module}.lora_B.weight"), Dtype::F32, &[rows, rank]),
    ]
}

fn floats(tensor: &Tensor) -> Vec<f32> {
    match tensor.1 {
        Dtype::BF16 => tensor.3.chunks(2).map(|b| half::bf16::from_le_bytes([b[0], b[1]]).to_f32()).collect(),
        _ => tensor.3.chunks(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect(),
    }
}

/// `W + scale * B A`, summed in f32 and cast to the type of the weight.
fn merged_by_hand(base: &mut Tensor, [a, b]: &[Tensor; 2], scale: f32) {
    let (rank, columns) = (a.2[0], a.2[1]);
    let (a, b, mut values) = (floats(a), floats(b), floats(base));
    for (at, value) in values.iter_mut().enumerate() {
        let (row, column) = (at / columns, at % columns);
        let sum: f32 = (0..rank).fold(0.0, |sum, k| sum + b[row * rank + k] * a[k * columns + column]);
        *value += scale * sum;
    }
    base.3 = encoded(base.1, &values);
}

fn find<'t>(tensors: &'t mut [Tensor], name: &str) -> &'t mut Tensor {
    tensors.iter_mut().find(|tensor| tensor.0 == name).unwrap()
}

/// Quantizes a model with adapters.
fn quantize_with(source: &Path, adapters: &[PathBuf], target: &Path, settings: &Settings) -> CalibratedPlan {
    let checkpoint = adapter::open(Checkpoint::open(source).unwrap(), adapters).unwrap();
    let recipe = Recipe::resolve(settings, &Settings::default()).unwrap();
    let plan = Plan::new(&checkpoint, recipe).unwrap().without_calibration().unwrap();
    let Start::Working(output) = Output::begin(&plan, source, target, false).unwrap() else { panic!("finished") };
    engine::run(&plan, &checkpoint, &output, 2, &AtomicBool::new(false), &Silent).unwrap();
    output.finish(&plan, &checkpoint, Durability::Process).unwrap();
    plan
}

#[test]
fn merged_weights_match_a_manual_merge() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let base = llama(Dtype::BF16);
    write(&path("base"), &config(), &base);
    let (q, down) = (factors(Q, (64, 64), 4), factors(DOWN, (64, 128), 8));
    let head = weight("lm_head.weight", Dtype::F32, &[32, 64]);
    let norm = weight("model.norm.weight", Dtype::F32, &[64]);
    let stated = json!({"peft_type": "LORA", "r": 4, "lora_alpha": 16, "alpha_pattern": {"down_proj": 4}, "rank_pattern": {"down_proj": 8}});
    let tensors = [&q[..], &down[..], &[head.clone(), norm.clone()]].concat();
    adapter_in(&path("lora"), &stated, &tensors);
    let second = factors(Q, (64, 64), 16);
    adapter_in(&path("second"), &json!({"peft_type": "LORA", "r": 16, "lora_alpha": 8, "use_rslora": true}), &second);

    let mut merged = base;
    for (name, factors, scale) in [(Q, &q, 4.0), (DOWN, &down, 0.5), (Q, &second, 2.0)] {
        merged_by_hand(find(&mut merged, &format!("{name}.weight")), factors, scale);
    }
    for replaced in [head, norm] {
        find(&mut merged, &replaced.0).3 = encoded(Dtype::BF16, &floats(&replaced));
    }
    write(&path("merged"), &config(), &merged);

    let adapters = [path("lora"), path("second")];
    let settings = [scheme("int4:g32"), Settings { format: Some("fake".parse().unwrap()), ..scheme("int8:channel") }];
    for (at, settings) in settings.iter().enumerate() {
        let (ours, expected) = (path(&format!("ours{at}")), path(&format!("expected{at}")));
        let plan = quantize_with(&path("base"), &adapters, &ours, settings);
        assert!(
            plan.notices().iter().any(|notice| notice.contains("merged into 2 weights, and 2 other")),
            "{:?}",
            plan.notices()
        );
        quantize(&path("merged"), &expected, settings, 1).unwrap();
        assert_eq!(files(&ours), files(&expected), "{settings:?}");
    }
    let logits = |checkpoint: Checkpoint| {
        let decoder = Decoder::open(&checkpoint).unwrap();
        decoder.logits(&Cpu::default(), &[1, 5, 9, 2], 4).unwrap()
    };
    let ours = adapter::open(Checkpoint::open(&path("base")).unwrap(), &adapters).unwrap();
    // Merged weights are read as floats, stored ones multiplied as they are: some processors sum these in another order.
    let expected = logits(Checkpoint::open(&path("merged")).unwrap());
    let largest = expected.iter().fold(0.0f32, |a, b| a.max(b.abs()));
    let differences = logits(ours).into_iter().zip(&expected).map(|(ours, expected)| (ours - expected).abs());
    assert!(differences.fold(0.0, f32::max) < 1e-5 * largest);
}

#[test]
fn embedding_adapters_are_merged_transposed() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let mut tensors = llama(Dtype::F32);
    write(&path("base"), &llama_config(), &tensors);
    let transposed = |tensor: &Tensor, name: &str| {
        let (rows, columns, values) = (tensor.2[0], tensor.2[1], floats(tensor));
        let turned: Vec<f32> = (0..rows * columns).map(|at| values[at % rows * columns + at / rows]).collect();
        (name.to_owned(), Dtype::F32, vec![columns, rows], encoded(Dtype::F32, &turned))
    };
    let [a, b] = factors("x", (32, 64), 2);
    let module = "model.embed_tokens";
    let factors =
        [transposed(&b, &format!("{module}.lora_embedding_A")), transposed(&a, &format!("{module}.lora_embedding_B"))];
    adapter_in(&path("lora"), &json!({"lora_alpha": 6}), &factors);
    merged_by_hand(find(&mut tensors, "model.embed_tokens.weight"), &[a, b], 3.0);
    write(&path("merged"), &llama_config(), &tensors);
    quantize_with(&path("base"), &[path("lora")], &path("ours"), &scheme("int4:g32"));
    quantize(&path("merged"), &path("expected"), &scheme("int4:g32"), 1).unwrap();
    assert_eq!(files(&path("ours")), files(&path("expected")));
}

#[test]
fn changed_adapter_changes_the_plan_fingerprint() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    write(&path("base"), &llama_config(), &llama(Dtype::BF16));
    let fingerprint = |alpha: u32| {
        adapter_in(&path(&format!("lora{alpha}")), &json!({"lora_alpha": alpha}), &factors(Q, (64, 64), 4));
        let base = Checkpoint::open(&path("base")).unwrap();
        let checkpoint = adapter::open(base, &[path(&format!("lora{alpha}"))]).unwrap();
        let recipe = Recipe::resolve(&scheme("int4:g32"), &Settings::default()).unwrap();
        Plan::new(&checkpoint, recipe).unwrap().fingerprint().to_owned()
    };
    assert_ne!(fingerprint(4), fingerprint(8));
}

#[test]
fn mismatched_adapters_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    write(&path("base"), &llama_config(), &llama(Dtype::BF16));
    let refused = |config: Value, tensors: &[Tensor]| {
        let lora = tempfile::tempdir().unwrap();
        adapter_in(lora.path(), &config, tensors);
        let base = Checkpoint::open(&path("base")).unwrap();
        adapter::open(base, &[lora.path().to_owned()]).unwrap_err().to_string()
    };
    let config = json!({"lora_alpha": 4});
    let unknown = refused(config.clone(), &factors("model.layers.7.self_attn.q_proj", (64, 64), 4));
    assert!(
        unknown.contains("layers.7.self_attn.q_proj.lora_") && unknown.contains("belongs to no weight"),
        "{unknown}"
    );
    let shape = refused(config.clone(), &factors(Q, (64, 32), 4));
    assert!(shape.contains(Q) && shape.contains("[64, 32]"), "{shape}");
    let alone = refused(config.clone(), &factors(Q, (64, 64), 4)[..1]);
    assert!(alone.contains("no partner"), "{alone}");
    let dora =
        [&factors(Q, (64, 64), 4)[..], &[weight(&format!("{Q}.lora_magnitude_vector"), Dtype::F32, &[64])]].concat();
    assert!(refused(config, &dora).contains("lora_magnitude_vector"));
    assert!(refused(json!({"peft_type": "IA3"}), &factors(Q, (64, 64), 4)).contains("IA3"));
    let config = json!({"lora_alpha": 4});
    let named_twice = weight(&format!("{Q}.lora_A.default.weight"), Dtype::F32, &[4, 64]);
    let twice = refused(config.clone(), &[&factors(Q, (64, 64), 4)[..], &[named_twice]].concat());
    assert!(twice.contains("the same factor"), "{twice}");
    let changed_twice = [factors(Q, (64, 64), 4), factors(&format!("model.{Q}"), (64, 64), 4)].concat();
    assert!(refused(config.clone(), &changed_twice).contains("changes the same weight"));
    let kinds = [weight(&format!("{Q}.lora_embedding_B"), Dtype::F32, &[64, 4]), factors(Q, (64, 64), 4)[0].clone()];
    assert!(refused(config, &kinds).contains("no partner"));
    assert!(refused(json!({"lora_alpha": 1e300}), &factors(Q, (64, 64), 4)).contains("lora_alpha"));

    // An adapter is no model.
    adapter_in(
        &path("lora"),
        &json!({"base_model_name_or_path": "org/base", "lora_alpha": 4}),
        &factors(Q, (64, 64), 4),
    );
    let error = Checkpoint::open(&path("lora")).unwrap_err();
    assert!(error.to_string().contains("LoRA adapter") && error.to_string().contains("org/base"), "{error}");
    assert!(error.hint().unwrap().contains("‹lora›"));
}

#[test]
fn config_of_another_adapter_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let base = dir.path().join("base");
    write(&base, &llama_config(), &llama(Dtype::BF16));
    let tensors = [&factors(Q, (64, 64), 4)[..], &factors(DOWN, (64, 128), 8)].concat();
    let opened = |more: Value| {
        let lora = tempfile::tempdir().unwrap();
        let mut config = json!({"lora_alpha": 4, "r": 4, "rank_pattern": {"down_proj": 8}});
        config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        adapter_in(lora.path(), &config, &tensors);
        adapter::open(Checkpoint::open(&base).unwrap(), &[lora.path().to_owned()]).map(drop)
    };
    for agrees in [
        json!({}),
        json!({"r": 4.0, "target_modules": ["q_proj", "mlp.down_proj", "gate_proj"], "modules_to_save": null}),
        json!({"target_modules": ".*(q|down)_proj", "modules_to_save": ["classifier", "score"]}),
        json!({"target_modules": "all-linear", "modules_to_save": []}),
    ] {
        assert!(opened(agrees.clone()).is_ok(), "{agrees}");
    }
    for (differs, words) in [
        (json!({"r": 16}), ["rank 4", "r in adapter_config.json says 16"]),
        (json!({"r": 0}), ["rank 4", "says 0"]),
        (json!({"rank_pattern": {}}), ["rank 8", "says 4"]),
        (json!({"rank_pattern": {"down_proj": 2}}), ["rank 8", "rank_pattern in adapter_config.json says 2"]),
        (json!({"target_modules": ["v_proj", "down_proj"]}), ["q_proj", "v_proj, down_proj"]),
        (json!({"target_modules": ".*(v|down)_proj"}), ["q_proj", ".*(v|down)_proj"]),
        (json!({"modules_to_save": ["lm_head"]}), ["`lm_head`", "adapter_model.safetensors has no tensor"]),
    ] {
        let error = opened(differs.clone()).unwrap_err();
        assert!(words.iter().all(|word| error.to_string().contains(word)), "{differs}: {error}");
        assert!(error.hint().unwrap().contains("files"), "{:?}", error.hint());
    }
}

#[test]
fn non_finite_adapter_values_name_the_adapter() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    write(&path("base"), &llama_config(), &llama(Dtype::F16));
    let opened = |tensors: &[Tensor]| {
        let _ = std::fs::remove_dir_all(path("lora"));
        adapter_in(&path("lora"), &json!({"lora_alpha": 4}), tensors);
        adapter::open(Checkpoint::open(&path("base")).unwrap(), &[path("lora")])
    };
    let with = |tensor: &Tensor, at: usize, value: f32| {
        let mut values = floats(tensor);
        values[at] = value;
        (tensor.0.clone(), tensor.1, tensor.2.clone(), encoded(tensor.1, &values))
    };
    let [a, b] = factors(Q, (64, 64), 4);
    let norm = weight("model.norm.weight", Dtype::F32, &[64]);
    for (tensors, told) in [
        ([a.clone(), with(&b, 9, f32::NAN)], ".lora_B.weight` in "),
        ([with(&a, 9, f32::INFINITY), b.clone()], "the value at [0, 9] is inf"),
        ([with(&norm, 9, f32::NAN), norm.clone()], "model.norm.weight` in "),
        ([with(&norm, 9, 1e30), norm.clone()], "is beyond what F16 holds"),
    ] {
        let tensors = if tensors[0].0 == norm.0 { &tensors[..1] } else { &tensors[..] };
        let error = opened(tensors).unwrap_err();
        let text = error.to_string();
        assert!(text.contains(told) && text.contains("lora/adapter_model.safetensors"), "{text}");
        assert!(error.hint().unwrap().contains("the adapter is damaged"), "{:?}", error.hint());
    }
    // All numbers, and none of the model's: the sum alone is too large.
    let checkpoint = opened(&[with(&a, 0, 1e4), with(&b, 0, 1e4)]).unwrap();
    let recipe = Recipe::resolve(&scheme("int4:g32"), &Settings::default()).unwrap();
    let plan = Plan::new(&checkpoint, recipe).unwrap().without_calibration().unwrap();
    let target = path("out");
    let Start::Working(output) = Output::begin(&plan, &path("base"), &target, false).unwrap() else {
        panic!("finished")
    };
    let error = engine::run(&plan, &checkpoint, &output, 1, &AtomicBool::new(false), &Silent).unwrap_err().to_string();
    assert!(error.contains("model.safetensors with ") && error.contains("lora merged into it"), "{error}");
}

#[test]
fn gpt2_adapters_are_merged_transposed() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let config = json!({
        "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_embd": 32, "n_layer": 1, "n_head": 2, "vocab_size": 16,
        "n_positions": 32, "torch_dtype": "float32"
    });
    let vector = |name: &str, length| weight(name, Dtype::F32, &[length]);
    let matrix = |name: &str, rows, columns| weight(name, Dtype::F32, &[rows, columns]);
    let tensors = vec![
        matrix("wte.weight", 16, 32),
        matrix("wpe.weight", 32, 32),
        vector("h.0.ln_1.weight", 32),
        vector("h.0.ln_1.bias", 32),
        matrix("h.0.attn.c_attn.weight", 32, 96),
        vector("h.0.attn.c_attn.bias", 96),
        matrix("h.0.attn.c_proj.weight", 32, 32),
        vector("h.0.attn.c_proj.bias", 32),
        vector("h.0.ln_2.weight", 32),
        vector("h.0.ln_2.bias", 32),
        matrix("h.0.mlp.c_fc.weight", 32, 128),
        vector("h.0.mlp.c_fc.bias", 128),
        matrix("h.0.mlp.c_proj.weight", 128, 32),
        vector("h.0.mlp.c_proj.bias", 32),
        vector("ln_f.weight", 32),
        vector("ln_f.bias", 32),
        // Beyond the last block: not known as a layer.
        matrix("h.1.mlp.c_fc.weight", 32, 128),
    ];
    write(&path("base"), &config, &tensors);
    // Square, so that its shape does not tell which way it stands.
    let square = factors("transformer.h.0.attn.c_proj", (32, 32), 2);
    let unknown = factors("transformer.h.1.mlp.c_fc", (128, 32), 2);
    let whole = matrix("transformer.h.0.mlp.c_fc.weight", 32, 128);
    let all = [&square[..], &unknown[..], std::slice::from_ref(&whole)].concat();
    adapter_in(&path("lora"), &json!({"lora_alpha": 2, "fan_in_fan_out": true}), &all);
    let mut merged = tensors;
    for (name, factors) in [("h.0.attn.c_proj.weight", &square), ("h.1.mlp.c_fc.weight", &unknown)] {
        let base = find(&mut merged, name);
        let turned = |tensor: &Tensor| {
            let (rows, columns, values) = (tensor.2[0], tensor.2[1], floats(tensor));
            let turned: Vec<f32> = (0..rows * columns).map(|at| values[at % rows * columns + at / rows]).collect();
            (String::new(), Dtype::F32, vec![columns, rows], encoded(Dtype::F32, &turned))
        };
        let mut stands_otherwise = turned(base);
        merged_by_hand(&mut stands_otherwise, factors, 1.0);
        base.3 = turned(&stands_otherwise).3;
    }
    find(&mut merged, "h.0.mlp.c_fc.weight").3 = whole.3;
    write(&path("merged"), &config, &merged);
    let settings = Settings { format: Some("fake".parse().unwrap()), ..scheme("int8:channel") };
    quantize_with(&path("base"), &[path("lora")], &path("ours"), &settings);
    quantize(&path("merged"), &path("expected"), &settings, 1).unwrap();
    assert_eq!(files(&path("ours")), files(&path("expected")));
}

#[test]
fn gguf_files_contain_merged_weights() {
    let dir = tempfile::tempdir().unwrap();
    // The file holds the name of the model's directory.
    let path = |name: &str| dir.path().join(name).join("model");
    let mut tensors = llama(Dtype::BF16);
    write(&path("base"), &config(), &tensors);
    let q = factors(Q, (64, 64), 4);
    adapter_in(&path("lora"), &json!({"lora_alpha": 4}), &q);
    merged_by_hand(find(&mut tensors, &format!("{Q}.weight")), &q, 1.0);
    write(&path("merged"), &config(), &tensors);
    let vocabulary: serde_json::Map<String, Value> = (0..30).map(|id| (format!("t{id}"), json!(id))).collect();
    let tokenizer = json!({
        "added_tokens": [], "pre_tokenizer": {"type": "ByteLevel", "use_regex": true}, "decoder": {"type": "ByteLevel"},
        "model": {"type": "BPE", "vocab": vocabulary, "merges": []},
    });
    let file_of = |model: &str, adapters: &[PathBuf]| {
        std::fs::write(path(model).join("tokenizer.json"), tokenizer.to_string()).unwrap();
        let checkpoint = adapter::open(Checkpoint::open(&path(model)).unwrap(), adapters).unwrap();
        let recipe = GgufRecipe::of(&scheme("Q8_0"), &Settings::default()).unwrap().unwrap();
        let plan = GgufPlan::new(&checkpoint, recipe, "model.gguf").unwrap();
        let target = dir.path().join(format!("{model}.gguf"));
        let Start::Working(output) = Output::begin(&plan, &path(model), &target, false).unwrap() else {
            panic!("finished")
        };
        run(&plan, &checkpoint, &output, 2, &AtomicBool::new(false), &Silent).unwrap();
        output.finish(&plan, &checkpoint, Durability::Process).unwrap();
        std::fs::read(target).unwrap()
    };
    assert!(file_of("base", &[path("lora")]) == file_of("merged", &[]));
}
