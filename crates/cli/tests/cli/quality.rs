//! Reported and required quality: held-out losses, few tokens, limits, non-finite weights.

use crate::kvant::{Place, copy_dir, names, tensor_range};
use serde_json::Value;
use std::collections::BTreeSet;

const TEXT: &str = "The tower stood where the river turns. Nobody had seen who built it, and nobody asked any more. ";

fn place() -> Place {
    let place = Place::new();
    let sentences = (0..48).map(|i| format!("{TEXT}In year {i} a flood took {} houses and the bridge. ", i * 7 % 13));
    place.write("text.txt", &sentences.collect::<String>());
    place
}

#[test]
fn gptq_on_three_tokens_falls_back_to_rtn_with_a_warning() {
    let place = place();
    place.succeed(&["quantize", "nano_llama", "-s", "int3:g64", "-o", "rtn"]);
    let few = ["--calib", "text.txt", "--num-samples", "1", "--seq-len", "3", "-q"];
    let run = place.succeed(
        &[&["quantize", "nano_llama", "-s", "int3:g64", "--algorithm", "gptq", "-o", "few"], &few[..]].concat(),
    );
    assert!(run.stderr.contains("28 of 28 layers saw fewer calibration tokens than they have inputs"), "{run:?}");
    assert!(place.divergence("few") <= place.divergence("rtn") * 1.000_001);
    let record = place.record("few");
    assert_eq!(record["starved"].as_array().unwrap().len(), 28);
    assert!(record["layers"].as_array().unwrap().iter().all(|layer| layer["algorithm"] == "rtn"), "{record}");
}

/// Quantizes the small model to nearest and with an algorithm, on the same data, and looks at what the second run tells: the
/// divergence of both, what became of layers with few tokens, and the warnings of a quiet run.
fn beside_nearest(place: &Place, scheme: &str, algorithm: &str, data: &[&str]) -> (f64, f64, Vec<Value>, String) {
    let run = |out: &str, more: &[&str]| {
        let line = [&["quantize", "nano_llama", "-s", scheme, "-q", "--overwrite", "-o", out], more].concat();
        let run = place.succeed(&line);
        (place.divergence(out), run.stderr)
    };
    // Scales of weights alone need no data.
    let (nearest, _) = run("nearest", if scheme == "int8" { data } else { &[] });
    let (found, said) = run("found", &[&["--algorithm", algorithm], data].concat());
    let starved = place.record("found")["starved"].as_array().unwrap().clone();
    (nearest, found, starved, said)
}

#[test]
fn one_sentence_moves_no_scales_with_a_warning() {
    let place = place();
    place.write("hello.txt", "Hello, how are you?");
    for (scheme, algorithm, treatment) in [
        ("int8", "smoothquant", "28 not scaled by smoothquant"),
        ("int8", "autosmoothquant", "28 not scaled by autosmoothquant"),
        ("int4:g32", "awq", "8 not scaled by awq, 20 not scaled by awq and not clipped"),
        ("int4:g32", "awq,gptq", "20 not scaled by awq and not clipped and rounded to nearest"),
    ] {
        let (nearest, found, starved, said) = beside_nearest(&place, scheme, algorithm, &["--calib", "hello.txt"]);
        assert!(found <= 1.02 * nearest, "{scheme} {algorithm}: {found} beside {nearest}");
        assert!(said.contains("28 of 28 layers saw fewer calibration tokens than they have inputs"), "{said}");
        assert!(said.contains(treatment) && said.contains("give more calibration data"), "{said}");
        assert!(!said.contains("lose more than they would rounded to nearest"), "{said}");
        let record = place.record("found");
        assert_eq!((starved.len(), record["held_out"].is_null()), (28, true), "{record}");
        let layers = record["layers"].as_array().unwrap();
        let is_told =
            |layer: &Value| layer["note"].as_str().is_some_and(|note| note.contains("few calibration tokens"));
        assert!(layers.iter().all(|layer| is_told(layer) && layer["loss"] == layer["loss_rtn"]), "{record}");
        let links = record["links"].as_array().unwrap();
        assert!(links.iter().all(|link| is_told(link) && link["largest_scale"].is_null()), "{record}");
    }
}

#[test]
fn scales_from_few_tokens_need_held_out_evidence() {
    let place = place();
    for (scheme, algorithm, samples, length) in [
        ("int8", "smoothquant", "2", "24"),
        ("int8", "autosmoothquant", "2", "60"),
        ("int4:g32", "awq", "1", "16"),
        ("int3:g64", "awq,gptq", "2", "24"),
    ] {
        let data = ["--calib", "text.txt", "--num-samples", samples, "--seq-len", length];
        let (nearest, found, starved, said) = beside_nearest(&place, scheme, algorithm, &data);
        assert!(found <= 1.05 * nearest, "{scheme} {algorithm}: {found} beside {nearest}");
        assert!(said.contains("saw fewer calibration tokens than they have inputs"), "{said}");
        let down = starved.iter().filter(|layer| layer["layer"].as_str().unwrap().ends_with("down_proj"));
        assert_eq!(down.count(), 4, "{starved:?}");
    }
    // Where they speak for scales, these are moved.
    let data = ["--calib", "text.txt", "--num-samples", "2", "--seq-len", "60"];
    let (nearest, found, starved, _) = beside_nearest(&place, "int3:g64", "awq", &data);
    let is_scaled = |layer: &Value| layer["treatment"].as_str().unwrap().starts_with("scaled by awq");
    assert!(starved.len() == 28 && starved.iter().any(is_scaled), "{starved:?}");
    assert!(found < nearest, "{found} beside {nearest}");
    let links = place.record("found")["links"].clone();
    let is_confirmed = |link: &Value| link["loss_after"].as_f64() < link["loss_before"].as_f64();
    let mut moved = links.as_array().unwrap().iter().filter(|link| link["largest_scale"].is_number());
    assert!(
        moved.all(|link| is_confirmed(link) && link["note"].as_str().unwrap().contains("scaled by awq")),
        "{links}"
    );
}

const EXPERTS: usize = 8;

/// The small model with its feed-forward networks many times over, as experts of which each token is sent to one: `mixture`.
fn write_mixture(place: &Place) {
    let dir = place.path("mixture");
    copy_dir(&place.path("nano_llama"), &dir);
    let mut config: Value = serde_json::from_slice(&std::fs::read(dir.join("config.json")).unwrap()).unwrap();
    config["model_type"] = "mixtral".into();
    config["architectures"] = serde_json::json!(["MixtralForCausalLM"]);
    config["num_local_experts"] = EXPERTS.into();
    config["num_experts_per_tok"] = 1.into();
    std::fs::write(dir.join("config.json"), config.to_string()).unwrap();

    let bytes = std::fs::read(dir.join("model.safetensors")).unwrap();
    let (length, rest) = bytes.split_at(8);
    let (header, source) = rest.split_at(u64::from_le_bytes(length.try_into().unwrap()) as usize);
    let header: serde_json::Map<String, Value> = serde_json::from_slice(header).unwrap();
    let (mut tensors, mut data) = (serde_json::Map::new(), Vec::new());
    let mut add = |name: String, shape: &Value, values: &[u8]| {
        let offsets = [data.len(), data.len() + values.len()];
        data.extend_from_slice(values);
        tensors.insert(name, serde_json::json!({"dtype": "BF16", "shape": shape, "data_offsets": offsets}));
    };
    for (name, tensor) in header.iter().filter(|(name, _)| *name != "__metadata__") {
        let offset = |at: usize| tensor["data_offsets"][at].as_u64().unwrap() as usize;
        let (shape, values) = (&tensor["shape"], &source[offset(0)..offset(1)]);
        let projections = [("mlp.gate_proj", "w1"), ("mlp.down_proj", "w2"), ("mlp.up_proj", "w3")];
        match projections.iter().find(|(dense, _)| name.contains(dense)) {
            None => add(name.clone(), shape, values),
            Some((dense, routed)) => (0..EXPERTS).for_each(|expert| {
                let routed = format!("block_sparse_moe.experts.{expert}.{routed}");
                add(name.replace(dense, &routed), shape, values);
            }),
        }
        // Rows of keys send tokens one way and another.
        if name.contains("k_proj") {
            let (router, width) = (name.replace("self_attn.k_proj", "block_sparse_moe.gate"), &shape[1]);
            let row = 2 * width.as_u64().unwrap() as usize;
            add(router, &serde_json::json!([EXPERTS, width]), &values[..EXPERTS * row]);
        }
    }
    let header = Value::Object(tensors).to_string();
    let file = [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &data].concat();
    std::fs::write(dir.join("model.safetensors"), file).unwrap();
}

/// More data would tell no more of inputs that are zero.
#[test]
fn layers_that_read_zeros_do_not_lack_data() {
    let place = place();
    let path = place.path("nano_llama/model.safetensors");
    let mut bytes = std::fs::read(&path).unwrap();
    let values = tensor_range(&bytes, "model.layers.1.self_attn.v_proj.weight");
    bytes[values].fill(0);
    std::fs::write(path, bytes).unwrap();
    let data = ["--calib", "text.txt", "--num-samples", "8", "--seq-len", "64", "-q"];
    let line = ["quantize", "nano_llama", "-s", "int4:g32", "--algorithm", "gptq", "-o", "out"];
    let said = place.succeed(&[&line[..], &data].concat()).stderr;
    assert!(!said.contains("calibration tokens"), "{said}");
    assert!(place.record("out")["starved"].as_array().unwrap().is_empty());
}

#[test]
fn experts_with_few_tokens_are_reported() {
    let place = place();
    write_mixture(&place);
    let data = ["--calib", "text.txt", "--num-samples", "3", "--seq-len", "64", "-q"];
    for (scheme, algorithm, is_starved) in [
        ("int8", "smoothquant", &["down_proj"][..]),
        ("int4:g64", "awq", &["down_proj", "gate_proj", "up_proj"]),
        ("int4:g64", "awq,gptq", &["down_proj", "gate_proj", "up_proj"]),
        ("int4:g64", "tune:iterations=1", &["down_proj", "gate_proj", "up_proj"]),
    ] {
        let line = ["quantize", "mixture", "-s", scheme, "--algorithm", algorithm, "--overwrite", "-o", "out"];
        let said = place.succeed(&[&line[..], &data].concat()).stderr;
        assert!(said.contains("saw fewer calibration tokens than they have inputs"), "{said}");
        let record = place.record("out");
        let starved: BTreeSet<&str> =
            record["starved"].as_array().unwrap().iter().map(|layer| layer["layer"].as_str().unwrap()).collect();
        // Attention has read 192 tokens, more than it has inputs; each expert a share of them, or none.
        assert!(starved.iter().all(|layer| layer.contains(".experts.")), "{starved:?}");
        assert_eq!(starved.len(), record["starved"].as_array().unwrap().len(), "once each: {record}");
        let last_words: BTreeSet<&str> = starved.iter().map(|layer| layer.rsplit('.').next().unwrap()).collect();
        assert_eq!(last_words.into_iter().collect::<Vec<_>>(), is_starved, "{algorithm}");
    }
}

#[test]
fn losses_are_measured_on_held_out_sequences() {
    let place = place();
    let run = |out: &str, algorithm: &str, samples: &str| {
        let args = ["-s", "int3:g64", "--algorithm", algorithm, "-o", out, "--calib", "text.txt", "--seq-len", "64"];
        let run = place.succeed(&[&["quantize", "nano_llama", "--num-samples", samples], &args[..]].concat());
        (place.record(out), run.stderr)
    };
    let (record, said) = run("gptq", "gptq", "11");
    assert_eq!(record["held_out"], serde_json::json!({"samples": 2, "tokens": 128}));
    assert_eq!((&record["data"]["samples"], &record["data"]["held_out"]["samples"]), (&11.into(), &2.into()));
    assert!(record["layers"].as_array().unwrap().iter().all(|layer| layer["held_out"] == 128), "{record}");
    assert!(said.contains("2 held-out sequences, 128 tokens"), "{said}");
    let (scaled, _) = run("awq", "awq", "11");
    assert!(scaled["layers"].as_array().unwrap().iter().all(|layer| layer["held_out"] == 128), "{scaled}");
    // All of the text is asked for.
    place.write("text.txt", &TEXT.repeat(8));
    let (whole, said) = run("all", "gptq", "1000");
    assert!(whole["held_out"].is_null() && whole["layers"][0]["held_out"].is_null(), "{whole}");
    assert!(said.contains("no sequences left to hold out"), "{said}");
}

#[test]
fn single_sentence_is_accepted_with_a_warning() {
    let place = Place::new();
    place.write("hello.txt", "Hello, how are you?");
    let run =
        |more: &[&str]| place.succeed(&[&["quantize", "nano_llama", "--calib", "hello.txt"], more].concat()).stderr;
    let said = run(&["-s", "int8", "-o", "static"]);
    assert!(said.contains("tokens in 1 document, too few to fill a sequence of 512"), "{said}");
    let said = run(&["-s", "int8", "--weights-only", "--algorithm", "smoothquant", "-o", "smooth"]);
    assert!(said.contains("too few to fill a sequence"), "{said}");
    run(&["-s", "int8", "--weights-only", "-o", "weights"]);
}

#[test]
fn result_beyond_quality_limits_is_not_written() {
    let place = place();
    let gptq = ["--algorithm", "gptq", "--calib", "text.txt", "--num-samples", "6", "--seq-len", "64"];
    for (out, options) in [
        ("rtn", &["-s", "int2:g64", "--eval", "text.txt"][..]),
        ("gptq", &[&["-s", "int2:g64"], &gptq[..]].concat()),
        ("gguf.gguf", &["-s", "Q2_K", "--eval", "text.txt"]),
    ] {
        let line = [&["quantize", "nano_llama", "-o", out], options].concat();
        let run = place.run(&[&line[..], &["--max-kl", "0.0001", "--max-perplexity-increase", "0.1"]].concat());
        assert_eq!(run.code, Some(1), "{run:?}");
        assert!(
            run.stderr.contains("--max-kl 0.0001") && run.stderr.contains("--max-perplexity-increase 0.1"),
            "{run:?}"
        );
        assert!(!place.path(out).exists(), "{out}");
        let kept = std::fs::read(place.path(&format!("{out}.partial.report.json"))).unwrap();
        let report: Value = serde_json::from_slice(&kept).unwrap();
        assert!(report["accepted"] == false && report["kl_mean"].as_f64().unwrap() > 0.0001, "{report}");
        // The same with limits that it keeps, of what is there.
        let run = place.succeed(&[&line[..], &["--max-kl", "50", "--json"]].concat());
        let found = run.json()["evaluation"].clone();
        assert!(found["accepted"] == true && found["kl_mean"] == report["kl_mean"], "{found} {report}");
        let left: BTreeSet<_> = names(&place.path("")).into_iter().filter(|name| name.contains(".partial")).collect();
        assert!(left.is_empty() && place.path(out).exists(), "{left:?}");
    }
}

#[test]
fn limits_on_few_tokens_report_their_error() {
    let place = place();
    place.write("short.txt", &TEXT.repeat(4));
    // A single window has no standard error.
    for (text, length, is_short, has_error) in
        [("short.txt", "64", true, true), ("short.txt", "512", true, false), ("text.txt", "512", false, false)]
    {
        let line = ["quantize", "nano_llama", "-s", "int8", "--weights-only", "--eval", text, "--max-kl", "1", "-q"];
        let run = place.succeed(&[&line[..], &["--seq-len", length, "-o", "out", "--overwrite"]].concat());
        assert_eq!(run.stderr.contains("the limits are checked on only"), is_short, "{}", run.stderr);
        assert_eq!(run.stderr.contains(" ± "), has_error, "{}", run.stderr);
        assert!(!run.stderr.contains("NaN"), "{}", run.stderr);
    }
}

#[test]
fn quality_limit_without_evaluation_data_is_refused() {
    let place = place();
    let run = place.run(&["quantize", "nano_llama", "-s", "int4:g64", "--max-kl", "0.1", "-o", "out"]);
    assert!(run.code == Some(2) && run.stderr.contains("--eval"), "{run:?}");
    let all = ["--algorithm", "gptq", "--calib", "text.txt", "--num-samples", "1000", "--seq-len", "64"];
    place.write("text.txt", &TEXT.repeat(8));
    let run =
        place.run(&[&["quantize", "nano_llama", "-s", "int4:g64", "--max-kl", "0.1", "-o", "out"], &all[..]].concat());
    assert!(run.code == Some(1) && run.stderr.contains("none are left to measure"), "{run:?}");
    assert!(!names(&place.path("")).iter().any(|name| name.starts_with("out")));
}

/// Puts a NaN into a tensor of the model.
fn damage(place: &Place, tensor: &str, element: usize) {
    let file = place.path("nano_llama").join("model.safetensors");
    let mut bytes = std::fs::read(&file).unwrap();
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
    let start = 8 + length + header[tensor]["data_offsets"][0].as_u64().unwrap() as usize;
    assert_eq!(header[tensor]["dtype"], "BF16");
    bytes[start + 2 * element..][..2].copy_from_slice(&0x7fc0_u16.to_le_bytes());
    std::fs::write(file, bytes).unwrap();
}

#[test]
fn non_finite_weights_are_named_before_calibration() {
    let data = ["--calib", "text.txt", "--num-samples", "2", "--seq-len", "32", "-o", "out"];
    let flows = [
        &["-s", "int8"][..],
        &["-s", "int4:g64", "--algorithm", "gptq"],
        &["-s", "int8", "--algorithm", "smoothquant"],
    ];
    for (tensor, element, words) in [
        ("model.layers.1.self_attn.o_proj.weight", 131, "output 1, input 3"),
        ("model.layers.2.input_layernorm.weight", 7, "[7]"),
        ("model.embed_tokens.weight", 128 * 5 + 2, "[5, 2]"),
    ] {
        let place = place();
        damage(&place, tensor, element);
        let without_data = [&["quantize", "nano_llama", "-s", "int4:g64", "-o", "out"][..]];
        let with_data = flows.iter().map(|flow| [&["quantize", "nano_llama"], *flow, &data].concat());
        for line in without_data.iter().map(|line| line.to_vec()).chain(with_data) {
            let run = place.run(&line);
            assert_eq!(run.code, Some(1), "{line:?}: {run:?}");
            let is_named = run.stderr.contains(&format!("tensor `{tensor}`")) && run.stderr.contains(words);
            assert!(is_named && run.stderr.contains("NaN"), "{line:?}: {}", run.stderr);
            assert!(!names(&place.path("")).iter().any(|name| name.starts_with("out")), "{line:?}");
        }
    }
}

#[test]
fn floats_that_are_not_finite_are_found_by_plans_conversions_and_verification() {
    let norm = "model.layers.2.input_layernorm.weight";
    let plan = |scheme: &'static str| vec!["plan", "nano_llama", "-s", scheme];
    let graph = || vec!["convert", "nano_llama", "--to", "onnx", "-o", "out.onnx"];
    let verify = || vec!["verify", "nano_llama", "--for", "vllm"];
    for (tensor, lines) in [
        (norm, vec![plan("int4_wo_128"), plan("Q4_K_M"), graph(), verify()]),
        ("model.embed_tokens.weight", vec![plan("int4_wo_128"), graph(), verify()]),
    ] {
        let place = place();
        damage(&place, tensor, 7);
        for line in lines {
            let run = place.run(&line);
            let is_named = run.stderr.contains(tensor) && run.stderr.contains("NaN");
            assert!(run.code == Some(1) && is_named, "{line:?}: {run:?}");
        }
        assert!(!place.path("out.onnx").exists());
    }
}

/// Advice to keep a layer as it is can be followed.
#[test]
fn non_finite_weights_are_kept_where_the_hint_says_so() {
    let place = place();
    damage(&place, "model.layers.1.self_attn.o_proj.weight", 131);
    let keeps = ["--exclude", "model.layers.1.self_attn.o_proj", "--no-verify"];
    for (format, is_told) in [("compressed-tensors", true), ("gguf", false), ("onnx", false)] {
        let output = format!("out.{format}");
        let line = ["quantize", "nano_llama", "-s", "int4:g64", "--format", format, "-o", &output];
        let run = place.run(&line);
        assert_eq!((run.code, run.stderr.contains("--exclude")), (Some(1), is_told), "{format}: {}", run.stderr);
        assert!(!is_told || place.run(&[&line[..], &keeps].concat()).code == Some(0));
    }
    let run = place.run(&["quantize", "nano_llama", "-s", "Q4_0", "-o", "out.gguf"]);
    assert!(run.code == Some(1) && !run.stderr.contains("--exclude"), "{}", run.stderr);
}

#[test]
fn evaluation_names_the_tensor_that_makes_likelihoods_nan() {
    for tensor in ["model.layers.2.input_layernorm.weight", "model.layers.1.self_attn.o_proj.weight"] {
        let place = self::place();
        place.write("text.txt", &TEXT.repeat(8));
        damage(&place, tensor, 7);
        let run = place.run(&["eval", "nano_llama", "--data", "text.txt", "--seq-len", "32"]);
        assert!(run.code == Some(1) && run.stderr.contains(&format!("tensor `{tensor}` contains NaN")), "{run:?}");
    }
}

/// A rejected result is discarded with the option that the hint names, and the ways that it names are open to the scheme.
#[test]
fn the_ways_out_of_a_rejected_result_can_be_taken() {
    let place = place();
    let strict = ["--eval", "text.txt", "--max-kl", "0.0000001", "-o", "out.gguf"];
    let line = [&["quantize", "nano_llama", "-s", "Q4_0"], &strict[..]].concat();
    let rejected = place.run(&line);
    let told = "try --algorithm imatrix with --calib FILE, a scheme of more bits, e.g. --scheme Q6_K, or more bits for some tensors with \
                --override";
    assert!(rejected.code == Some(1) && rejected.stderr.contains(told), "{rejected:?}");
    assert!(rejected.stderr.contains("each with --restart"), "{rejected:?}");
    for way in [&["--algorithm", "imatrix", "--calib", "text.txt"][..], &["--override", "*ffn_down*=Q8_0"]] {
        let again = place.run(&[&line[..], way, &["--restart"]].concat());
        assert!(again.code == Some(1) && again.stderr.contains("is above --max-kl"), "{way:?}: {again:?}");
    }
    // The data are what the result is measured on where the scheme needs none.
    let measured = ["quantize", "nano_llama", "-s", "Q4_0", "--calib", "text.txt", "--max-kl", "9", "--restart"];
    place.succeed(&[&measured[..], &["-o", "out.gguf"]].concat());
}

#[test]
fn imatrix_gets_its_name_with_the_gguf_file() {
    let place = place();
    let line = ["quantize", "nano_llama", "-s", "Q4_K_M", "-a", "imatrix", "--calib", "text.txt", "--seq-len", "32"];
    let line = [&line[..], &["--num-samples", "4", "-o", "out.gguf", "--save-imatrix", "im.gguf"]].concat();
    let rejected = place.run(&[&line[..], &["--max-kl", "0.0000001", "--eval", "text.txt"]].concat());
    assert!(rejected.code == Some(1) && rejected.stderr.contains("is above --max-kl"), "{rejected:?}");
    assert!(!place.path("im.gguf").exists());
    // Without the limits the same run is finished: nothing is in its way.
    place.succeed(&line);
    assert!(place.path("im.gguf").exists() && place.path("out.gguf").exists());
}

#[test]
fn the_hint_for_a_weight_that_a_format_does_not_hold_is_not_to_leave_out_activations_alone() {
    let place = Place::new();
    for format in ["gptq", "awq"] {
        let run = place.run(&["plan", "nano_llama", "-s", "mxfp4", "--format", format, "--format", "quark"]);
        assert!(run.code == Some(1) && run.stderr.contains("hint: use int"), "{format}: {run:?}");
        assert!(run.stderr.contains(", and leave activations out with --weights-only"), "{run:?}");
    }
    let run = place.run(&["plan", "nano_llama", "-s", "int8:channel+int8:token!dynamic", "--format", "gptq"]);
    assert!(run.code == Some(1) && run.stderr.contains("hint: leave activations out with --weights-only"), "{run:?}");
    place.succeed(&[
        "plan",
        "nano_llama",
        "-s",
        "int8:channel+int8:token!dynamic",
        "--format",
        "gptq",
        "--weights-only",
    ]);
}
