//! Preflight checks: a config.json of another model, a model name that llama.cpp misinterprets.

use crate::kvant::{Place, copy_dir, names, tensor_range};
use crate::made_model::write_encoder;
use crate::verify::replace;
use kvant_container::{Checkpoint, Dtype, Durability, Layout, TensorDeclaration, Writer};
use serde_json::{Value, json};
use std::fs;

/// Changes config.json of the small model.
fn configured(change: impl FnOnce(&mut Value)) -> Place {
    let place = Place::new();
    let path = place.path("nano_llama/config.json");
    let mut config: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    change(&mut config);
    fs::write(path, config.to_string()).unwrap();
    place
}

#[test]
fn config_of_another_model_is_refused_with_both_numbers() {
    let cases: [(&str, Value, [&str; 2]); 6] = [
        ("vocab_size", json!(4096), ["has 2048 rows", "vocab_size of config.json is 4096"]),
        ("num_hidden_layers", json!(9), ["block 4", "is 9, and 4 are there"]),
        ("num_hidden_layers", json!(3), ["block 3", "num_hidden_layers of config.json is 3"]),
        ("intermediate_size", json!(512), ["has 384 input channels", "512"]),
        ("architectures", json!(["MixtralForCausalLM"]), ["block 0", "down projection"]),
        ("architectures", json!([]), ["config.json", "neither a model_type nor architectures"]),
    ];
    for (key, value, parts) in cases {
        let place = configured(|config| {
            config[key] = value.clone();
            if key == "architectures" {
                config["model_type"] = if value[0].is_string() { json!("mixtral") } else { Value::Null };
                config["num_local_experts"] = json!(4);
            }
        });
        let plan = ["plan", "nano_llama", "--scheme", "int4_wo_128"];
        let quantize = ["quantize", "nano_llama", "--scheme", "int4_wo_128", "-o", "out"];
        let file = ["quantize", "nano_llama", "--scheme", "Q8_0", "-o", "out.gguf"];
        let graph = ["convert", "nano_llama", "--to", "onnx", "-o", "out.onnx"];
        let lines: [&[&str]; 4] = [&plan, &quantize, &graph, &file];
        // Requirements of GGUF files are refused with other messages.
        for line in if key == "architectures" { &lines[..3] } else { &lines[..] } {
            let refused = place.run(line);
            assert_eq!(refused.code, Some(1), "{line:?}: {refused:?}");
            let told = |part: &&str| refused.stderr.contains(*part);
            assert!(parts.iter().all(told) && refused.stderr.contains("hint: "), "{line:?}: {}", refused.stderr);
        }
        assert_eq!(names(&place.path("")), ["nano_llama"], "{key}");
    }
}

/// Where a model does not run as a decoder, what needs that is left out; a description of the family would not help.
#[test]
fn requests_that_run_a_decoder_name_their_option_for_encoders() {
    let place = Place::empty();
    write_encoder(&place.path("bert"));
    place.write("text.txt", "Some text.");
    for (options, hint) in [
        (&["--max-kl", "1", "--eval", "text.txt"][..], "hint: leave --max-kl out: "),
        (&["--format", "onnx"], "hint: choose another --format: only decoders are written as ONNX graphs"),
    ] {
        let output = if options[0] == "--format" { "out.onnx" } else { "out" };
        for command in ["quantize", "plan"] {
            // `kvant plan` has no limits on quality.
            if command == "quantize" || options[0] == "--format" {
                let line = [&[command, "bert", "-s", "int8:channel", "-o", output], options].concat();
                let refused = place.run(&line);
                assert!(refused.code == Some(1) && refused.stderr.contains(hint), "{line:?}: {refused:?}");
                assert!(!refused.stderr.contains("kvant eval MODEL"), "{refused:?}");
            }
        }
    }
}

#[test]
fn empty_tokenizer_is_damaged_for_gguf_files() {
    let place = Place::new();
    place.write("nano_llama/tokenizer.json", "{}");
    for command in ["plan", "quantize"] {
        let refused = place.run(&[command, "nano_llama", "-s", "Q4_0", "-o", "out.gguf"]);
        assert_eq!(refused.code, Some(1), "{refused:?}");
        assert!(refused.stderr.contains("tokenizer.json is damaged: it has no vocabulary"), "{refused:?}");
        assert!(refused.stderr.contains("hint: download it again"), "{refused:?}");
    }
}

#[test]
fn damaged_tokenizer_is_refused() {
    let place = Place::new();
    place.write("nano_llama/tokenizer.json", "{");
    let refused = place.run(&["quantize", "nano_llama", "--scheme", "int4_wo_128", "-o", "out"]);
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.stderr.contains("tokenizer.json") && refused.stderr.contains("original"), "{}", refused.stderr);
    assert_eq!(names(&place.path("")), ["nano_llama"]);
}

#[test]
fn checkpoint_without_required_tensors_is_refused_by_plan_quantize_and_verify() {
    for (part, told) in [
        ("model.norm.weight", "model.norm.weight"),
        ("input_layernorm", "model.layers.0.input_layernorm.weight"),
        ("gate_proj", "gate projection"),
    ] {
        let place = Place::new();
        without(&place.path("nano_llama"), part);
        let lines: [&[&str]; 3] = [
            &["plan", "nano_llama", "--scheme", "int4_wo_128"],
            &["quantize", "nano_llama", "--scheme", "int4_wo_128", "-o", "out"],
            &["verify", "nano_llama"],
        ];
        for line in lines {
            let refused = place.run(line);
            let output = format!("{}{}", refused.stdout, refused.stderr);
            assert!(refused.code == Some(1) && output.contains(told), "{line:?} without {part}: {refused:?}");
        }
        assert!(!place.path("out").exists());
    }
}

#[test]
fn hint_for_a_group_size_that_fits_no_layer_does_not_exclude_all_layers() {
    let refused = Place::new().run(&["plan", "nano_llama", "--scheme", "int4:g100"]);
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.stderr.contains("int4:channel") && !refused.stderr.contains("--exclude"), "{}", refused.stderr);
}

#[test]
fn warnings_of_verification_are_shown_by_quantize_even_when_quiet() {
    let place = Place::new();
    fs::remove_file(place.path("nano_llama/tokenizer.json")).unwrap();
    let quiet = place.succeed(&["quantize", "nano_llama", "--scheme", "int4_wo_128", "-o", "out", "-q"]);
    assert!(quiet.stderr.contains("warning") && quiet.stderr.contains("tokenizer"), "{}", quiet.stderr);
    let whole = Place::new().succeed(&["quantize", "nano_llama", "--scheme", "int4_wo_128", "-o", "out", "-q"]);
    assert_eq!(whole.stderr, "");
}

#[test]
fn no_verify_writes_invalid_output() {
    let place = configured(|config| config["num_hidden_layers"] = json!(9));
    place.succeed(&["quantize", "nano_llama", "--scheme", "int4_wo_128", "--no-verify", "-o", "out"]);
    let untied = configured(|config| {
        config["num_hidden_layers"] = json!(3);
        config["num_nextn_predict_layers"] = json!(1);
    });
    untied.succeed(&["plan", "nano_llama", "--scheme", "int4_wo_128"]);
}

#[test]
fn length_of_sequences_is_judged_before_the_room_they_need() {
    let place = Place::new();
    place.write("text.txt", "A text to calibrate with.");
    for command in [&["plan", "nano_llama"][..], &["quantize", "nano_llama"]] {
        let more = ["-s", "int4:g32", "-a", "gptq", "--calib", "text.txt", "--seq-len", "100000000", "-o", "out"];
        let refused = place.run(&[command, &more].concat());
        assert!(refused.code == Some(1) && refused.stderr.contains("longer than the 512"), "{refused:?}");
        assert!(refused.stderr.contains("--seq-len"), "{refused:?}");
    }
}

#[test]
fn name_with_builtin_llama_cpp_tokens_is_changed() {
    let place = Place::empty();
    copy_dir(&crate::kvant::nano_llama(), &place.path("my-Phi-3-model"));
    let lines: [&[&str]; 2] = [
        &["quantize", "my-Phi-3-model", "--scheme", "Q8_0", "-o", "a.gguf"],
        &["quantize", "my-Phi-3-model", "--scheme", "int4:g32", "--format", "gguf", "-o", "b.gguf"],
    ];
    for line in lines {
        let said = place.succeed(line).stderr;
        assert!(said.contains("the model is called my-Phi_3-model in the file"), "{said}");
        place.succeed(&["verify", line[line.len() - 1]]);
    }
}

/// A model whose head is stored, and is the embedding, as config.json says.
fn tied() -> Place {
    let place = configured(|config| config["tie_word_embeddings"] = json!(true));
    let path = place.path("nano_llama/model.safetensors");
    let mut bytes = fs::read(&path).unwrap();
    let (embedding, head) = (tensor_range(&bytes, "model.embed_tokens.weight"), tensor_range(&bytes, "lm_head.weight"));
    bytes.copy_within(embedding, head.start);
    fs::write(path, bytes).unwrap();
    place
}

/// Some loaders read such a head, and others take the embedding.
#[test]
fn a_head_that_is_another_matrix_than_the_embedding_is_not_taken_for_tied() {
    let place = configured(|config| config["tie_word_embeddings"] = json!(true));
    for scheme in ["int4:g32", "Q8_0"] {
        for command in [&["plan", "nano_llama"][..], &["quantize", "nano_llama", "-o", "out"]] {
            let refused = place.run(&[command, &["--scheme", scheme]].concat());
            assert_eq!(refused.code, Some(1), "{refused:?}");
            assert!(refused.stderr.contains("another matrix than the embedding"), "{}", refused.stderr);
            assert!(refused.stderr.contains("set tie_word_embeddings to false"), "{}", refused.stderr);
        }
    }
    tied().succeed(&["quantize", "nano_llama", "--scheme", "int4:g32", "-o", "out"]);
}

/// Loaders take the embedding for a tied head: codes of a head that is stored too would never be read.
#[test]
fn a_tied_head_is_not_quantized_and_the_ways_out_can_be_taken() {
    let place = tied();
    for format in ["quark", "compressed-tensors", "gptq", "fake"] {
        for asked in [&["--no-keep-defaults"][..], &["--override", "lm_head=int8:channel"]] {
            for command in [&["plan", "nano_llama"][..], &["quantize", "nano_llama", "-o", "out"]] {
                let line = [command, &["--scheme", "int4:g32", "--format", format], asked].concat();
                let refused = place.run(&line);
                let told = "the output head `lm_head` would be quantized, and tie_word_embeddings in config.json";
                assert!(refused.code == Some(1) && refused.stderr.contains(told), "{line:?}: {refused:?}");
                assert!(refused.stderr.contains("--exclude 'lm_head'"), "{}", refused.stderr);
            }
        }
    }
    assert_eq!(names(&place.path("")), ["nano_llama"]);
    let line = ["quantize", "nano_llama", "--scheme", "int4:g32", "--no-keep-defaults"];
    place.succeed(&[&line[..], &["--exclude", "lm_head", "-o", "excluded"]].concat());
    let untied = configured(|config| config["tie_word_embeddings"] = json!(false));
    untied.succeed(&[&line[..], &["-o", "out"]].concat());
    untied.succeed(&["verify", "out"]);
}

#[test]
fn a_head_that_is_the_embedding_stays_in_float_and_the_plan_says_so() {
    let place = configured(|config| config["tie_word_embeddings"] = json!(true));
    without_head(&place.path("nano_llama"));
    for command in [&["plan", "nano_llama"][..], &["quantize", "nano_llama", "-o", "out"]] {
        let run = place.succeed(&[command, &["--scheme", "int4:g32", "--no-keep-defaults"]].concat());
        let told = "the output head is the embedding, which stays in float: --no-keep-defaults does not quantize it";
        assert!(run.stderr.contains(told), "{run:?}");
    }
    place.succeed(&["verify", "out"]);
}

/// Takes the output head out of a checkpoint.
fn without_head(dir: &std::path::Path) {
    without(dir, "lm_head.weight");
}

/// Takes the tensors whose names contain a text out of a checkpoint.
fn without(dir: &std::path::Path, part: &str) {
    let source = Checkpoint::open(dir).unwrap();
    let kept: Vec<_> = source.tensors().filter(|tensor| !tensor.name().contains(part)).collect();
    let declare = |tensor: &kvant_container::TensorView<'_>| {
        TensorDeclaration::new(tensor.name().to_owned(), tensor.dtype(), tensor.shape())
    };
    let layout = Layout::new(kept.iter().map(declare).collect(), u64::MAX, source.metadata()).unwrap();
    let other = dir.with_file_name("other");
    fs::create_dir(&other).unwrap();
    let writer = Writer::create(&other, layout).unwrap();
    for (index, tensor) in kept.iter().enumerate() {
        writer.write_at(index, 0, tensor.bytes()).unwrap();
    }
    writer.finish(Durability::Process).unwrap();
    fs::rename(other.join("model.safetensors"), dir.join("model.safetensors")).unwrap();
    fs::remove_dir_all(other).unwrap();
}

/// Far more than any disk has: 400 million samples of 512 tokens.
#[test]
fn disk_space_for_activations_and_all_outputs_is_checked_before_the_work() {
    let place = Place::new();
    place.write("text.txt", &"The iterator yields every element of the slice, in order. ".repeat(40));
    let needed = |formats: &[&str]| {
        let line = ["quantize", "nano_llama", "-s", "int4:g32", "-a", "gptq", "--calib", "text.txt"];
        let options = ["--num-samples", "400000000", "-o", "out"];
        let refused = place.run(&[&line[..], &options, formats].concat());
        assert_eq!(refused.code, Some(1), "{refused:?}");
        assert!(refused.stderr.starts_with("error: ") && refused.stderr.contains("for temporary files"), "{refused:?}");
        assert!(refused.stderr.contains("hint: ") && refused.stderr.contains("--num-samples"), "{refused:?}");
        assert_eq!(names(&place.path("")), ["nano_llama", "text.txt"]);
        let number = |after: &str| -> u64 {
            let from = refused.stderr.split_once(after).unwrap().1.trim_start();
            from.split(|c: char| !c.is_ascii_digit()).next().unwrap().parse().unwrap()
        };
        // All that is written beside the temporary files.
        number(" needs up to ") - number("disk space, ")
    };
    let one = needed(&["-f", "awq"]);
    assert!(one > 0 && needed(&["-f", "awq", "-f", "gguf"]) > one + one / 2, "{one}");
}

/// What a hint names leads on: to a plan, or to another way.
#[test]
fn hint_where_nothing_is_left_to_quantize_can_be_followed() {
    let line = ["plan", "nano_llama", "--scheme", "int4:g32", "-x", "*.layers.*"];
    let refused = tied().run(&line);
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(!refused.stderr.contains("--no-keep-defaults") && refused.stderr.contains("--exclude"), "{refused:?}");
    let untied = Place::new();
    let refused = untied.run(&line);
    assert!(refused.code == Some(1) && refused.stderr.contains("--no-keep-defaults"), "{refused:?}");
    untied.succeed(&[&line[..], &["--no-keep-defaults"]].concat());
}

#[test]
fn results_that_no_loader_takes_are_refused_unless_unverified() {
    let place = Place::new();
    let scheme = ["--scheme", "amdfp4_global16", "--weights-only"];
    for line in [&["plan", "nano_llama"][..], &["quantize", "nano_llama", "-o", "out"]] {
        let refused = place.run(&[line, &scheme].concat());
        assert_eq!(refused.code, Some(1), "{refused:?}");
        let parts = ["no known loader takes this model in the format quark", "vLLM: ", "hint: use --format fake"];
        assert!(parts.iter().all(|part| refused.stderr.contains(part)), "{}", refused.stderr);
        assert!(refused.stderr.contains("--no-verify"), "{}", refused.stderr);
    }
    assert_eq!(names(&place.path("")), ["nano_llama"]);
    // Data would not help.
    let refused = place.run(&["quantize", "nano_llama", "-o", "out", "--scheme", "amdfp4_global16"]);
    assert!(refused.code == Some(1) && refused.stderr.contains("no known loader"), "{refused:?}");
    let written = place.succeed(&[&["quantize", "nano_llama", "-o", "out", "--no-verify"], &scheme[..]].concat());
    assert!(written.stderr.contains("warning: no known loader takes "), "{}", written.stderr);
    let verified = place.run(&["verify", "out"]);
    assert!(verified.code == Some(1) && verified.stderr.contains("no known loader takes it"), "{verified:?}");
    place.succeed(&[&["plan", "nano_llama", "--format", "fake"], &scheme[..]].concat());
}

#[test]
fn model_types_that_mlx_lm_has_no_class_for_are_refused() {
    let place = Place::new();
    replace(&place, "nano_llama/config.json", "\"llama\"", "\"strange\"");
    replace(&place, "nano_llama/config.json", "LlamaForCausalLM", "StrangeForCausalLM");
    for line in [&["plan", "nano_llama"][..], &["quantize", "nano_llama", "-o", "out"]] {
        let refused = place.run(&[line, &["-s", "int4:g64", "-f", "mlx"]].concat());
        assert!(
            refused.code == Some(1) && refused.stderr.contains("no class for the model type `strange`"),
            "{refused:?}"
        );
    }
    place.succeed(&["plan", "nano_llama", "-s", "int4:g64", "-f", "compressed-tensors"]);
}

#[test]
fn a_format_that_loads_is_chosen_where_none_is_named() {
    let place = Place::new();
    write_encoder(&place.path("bert"));
    let told = place.succeed(&["quantize", "bert", "-s", "int8:channel", "-o", "out"]);
    let note = "the format is compressed-tensors: no known loader takes this model in the format quark";
    assert!(told.stderr.contains(note), "{}", told.stderr);
    place.succeed(&["verify", "out", "--for", "transformers"]);
    let plan = place.succeed(&["plan", "bert", "-s", "int8:channel"]);
    assert!(plan.stderr.contains(note) && plan.stdout.contains("format compressed-tensors"), "{plan:?}");
    let refused = place.run(&["quantize", "bert", "-s", "int8:channel", "-f", "quark", "-o", "quark"]);
    let hint = "hint: use --format compressed-tensors, which loads in transformers";
    assert!(refused.code == Some(1) && refused.stderr.contains(hint), "{refused:?}");
}

/// ComfyUI renames the tensors of such files as it loads them, but not their scales.
#[test]
fn names_of_diffusers_are_refused_for_comfyui() {
    let place = Place::new();
    let write = |name: &str, tensor: &str| {
        let declared = vec![TensorDeclaration::new(tensor, Dtype::F32, [32, 32])];
        let layout = Layout::new(declared, u64::MAX, Default::default()).unwrap();
        let writer = Writer::create(&place.path(name), layout).unwrap();
        writer.write_at(0, 0, &[0x3d; 4 * 32 * 32]).unwrap();
        writer.finish(Durability::Process).unwrap();
    };
    write("unet", "down_blocks.0.attentions.0.transformer_blocks.0.attn1.to_q.weight");
    write("flux", "double_blocks.0.img_attn.proj.weight");
    let line = |model: &str| {
        let file = format!("{model}/model.safetensors");
        place.run(&["quantize", &file, "--scheme", "e4m3:tensor", "--format", "comfyui", "-o", &format!("{model}-out")])
    };
    let refused = line("unet");
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.stderr.contains("its name in diffusers"), "{}", refused.stderr);
    assert_eq!(line("flux").code, Some(0));
}

/// Where files may not grow, the run says so instead of being ended by a signal.
#[test]
#[cfg(unix)]
fn files_that_may_not_grow_are_an_error() {
    let place = Place::new();
    let script = "ulimit -f 1; exec \"$0\" quantize nano_llama --scheme int8:channel -o out";
    let run = std::process::Command::new("sh")
        .args(["-c", script, env!("CARGO_BIN_EXE_kvant")])
        .current_dir(place.path(""))
        .output()
        .unwrap();
    assert_eq!(run.status.code(), Some(1), "{run:?}");
    let message = String::from_utf8_lossy(&run.stderr);
    assert!(message.contains("File too large") && message.contains("ulimit -f"), "{run:?}");
}
