//! `kvant quantize --algorithm`: the output of calibrated algorithms for any number of threads, memory limit and interruption.

use crate::kvant::{Place, contents, names, tensor_range};
use crate::made_model::{write_encoder, write_unknown_experts};

const TEXT: &str = "The tower stood where the river turns. Nobody had seen who built it, and nobody asked any more. ";
const DATA: [&str; 6] = ["--calib", "text.txt", "--num-samples", "6", "--seq-len", "64"];

fn place() -> Place {
    let place = Place::new();
    let sentences = (0..48).map(|i| format!("{TEXT}In year {i} a flood took {} houses and the bridge. ", i * 7 % 13));
    place.write("text.txt", &sentences.collect::<String>());
    place
}

fn quantize<'a>(more: &[&'a str]) -> Vec<&'a str> {
    [&["quantize", "nano_llama"], more, &DATA].concat()
}

#[test]
fn every_algorithm_completes_and_evaluates() {
    let place = place();
    let runs = [
        ("gptq", "uint4_wo_32", "gptq"),
        ("gptaq", "int4_wo_128", "gptaq"),
        ("qronos", "int3:g128", "qronos"),
        ("awq", "uint4_wo_128", "awq"),
        ("awq_gptq", "int3:g64", "awq,gptq"),
        ("smooth", "int8", "smoothquant"),
        ("smooth_gptq", "int8", "smoothquant,gptq"),
        ("auto", "int8", "autosmoothquant"),
        ("mx", "mxfp4", "gptq"),
        ("nv", "nvfp4", "awq,gptq"),
        ("fp8", "fp8", "gptq"),
        ("adaround", "int3:g128", "adaround:num_iterations=12"),
        ("awq_adaquant", "uint4_wo_128", "awq,adaquant:num_iterations=8:learning_rate=0.0003"),
        ("awq_hqq", "uint4_wo_128", "awq,hqq"),
    ];
    for (out, scheme, algorithm) in runs {
        place.succeed(&quantize(&["-s", scheme, "--algorithm", algorithm, "-o", out]));
        let found = place.divergence(out);
        assert!(found > 1e-7 && found < 1.0, "{out}: {found}");
        let record = place.record(out);
        let layers = record["layers"].as_array().unwrap();
        assert_eq!(layers.len(), 28, "{out}");
        assert!(layers.iter().all(|layer| layer["loss"].is_number() && layer["loss_rtn"].is_number()), "{out}");
    }
    assert!(!names(&place.path("")).iter().any(|name| name.contains(".partial")));
}

#[test]
fn gptq_loses_less_than_rtn() {
    let place = place();
    place.succeed(&quantize(&["-s", "int3:g128", "--algorithm", "gptq", "-o", "gptq"]));
    place.succeed(&["quantize", "nano_llama", "-s", "int3:g128", "-o", "rtn"]);
    let record = place.record("gptq");
    for layer in record["layers"].as_array().unwrap() {
        let loss = |key: &str| layer[key].as_f64().unwrap();
        assert!(loss("loss") < loss("loss_rtn"), "{layer}");
        assert_eq!(layer["tokens"], 384, "{layer}");
    }
    assert!(place.divergence("gptq") < place.divergence("rtn"));
}

#[test]
fn codes_that_are_learned_on_what_the_model_gives_lose_less() {
    let place = place();
    let loss = |out: &str, scheme: &str, algorithm: &str| {
        place.succeed(&quantize(&["-s", scheme, "--algorithm", algorithm, "-o", out]));
        place.divergence(out)
    };
    // The next block is calibrated on what the learned codes give, not on what they gave before.
    let learned = loss("learned", "int2:g64:search", "qronos:rounds=4,autoround:iterations=40");
    let before = loss("before", "int2:g64:search", "qronos:rounds=4");
    assert!(learned < 0.9 * before, "{learned} {before}");
    // Inputs of few bits are read as the deployed model rounds them, and move the codes otherwise.
    loss("floats", "e2m1:g32:e8m0", "autoround:iterations=4");
    loss("rounded", "e2m1:g32:e8m0+e2m1:g32:e8m0!dynamic", "autoround:iterations=4");
    loss("global_floats", "e2m1:g16:e4m3:f32", "autoround:iterations=4");
    loss("global_rounded", "e2m1:g16:e4m3:f32+e2m1:g16:e4m3:f32!local", "autoround:iterations=4");
    let codes = |out: &str| {
        let file = std::fs::read(place.path(out).join("model.safetensors")).unwrap();
        file[tensor_range(&file, "model.layers.0.mlp.down_proj.weight")].to_vec()
    };
    assert!(codes("floats").len() == codes("rounded").len() && codes("floats") != codes("rounded"));
    // So are those whose scale is static, which the calibration data give before the block learns: it starts farther from the float block.
    let start = |out: &str| place.record(out)["tunings"][0]["loss_before"].as_f64().unwrap();
    assert!(start("global_rounded") > 1.5 * start("global_floats"));
}

#[test]
fn tuned_scales_and_norms_keep_codes_and_lose_less() {
    let place = place();
    let tensor = |out: &str, name: &str| {
        let file = std::fs::read(place.path(out).join("model.safetensors")).unwrap();
        file[tensor_range(&file, name)].to_vec()
    };
    let run = |out: &str, algorithm: &str| {
        place.succeed(&quantize(&["-s", "int2:g64:search", "--algorithm", algorithm, "-o", out]));
        place.divergence(out)
    };
    // The first block reads the same whatever the ones behind it become.
    let layer = "model.layers.0.mlp.up_proj";
    let norm = "model.layers.0.post_attention_layernorm.weight";
    let (codes, scales) = (format!("{layer}.weight"), format!("{layer}.weight_scale"));
    let before = run("before", "qronos:rounds=4");
    let tuned = run("tuned", "qronos:rounds=4,tune:iterations=40");
    assert!(tuned < before, "{tuned} {before}");
    assert!(tensor("tuned", &codes) == tensor("before", &codes), "codes stay");
    assert!(tensor("tuned", &scales) != tensor("before", &scales), "scales move");
    assert!(tensor("tuned", norm) != tensor("before", norm), "norms move");
    let record = place.record("tuned");
    let blocks = record["tunings"].as_array().unwrap();
    assert_eq!(blocks.len(), 4, "{record}");
    for block in blocks {
        let loss = |key: &str| block[key].as_f64().unwrap();
        assert!(block["tuning"] == "tune" && loss("loss_after") <= loss("loss_before"), "{block}");
    }
    assert!(blocks.iter().any(|block| block["loss_after"] != block["loss_before"]), "{record}");
    // Without a rate, norms stay; with weights, codes change.
    let weights = run("weights", "qronos:rounds=4,tune:iterations=40:weights=on:norms=0");
    assert!(weights < before, "{weights} {before}");
    assert!(tensor("weights", norm) == tensor("before", norm), "norms stay");
    let codes = (0..4).map(|block| format!("model.layers.{block}.mlp.up_proj.weight"));
    assert!(codes.into_iter().any(|codes| tensor("weights", &codes) != tensor("before", &codes)), "codes change");
}

#[test]
fn trained_roundings_lose_less_than_rtn() {
    let place = place();
    place.succeed(&["quantize", "nano_llama", "-s", "int3:g128", "-o", "rtn"]);
    let nearest = place.divergence("rtn");
    for (out, algorithm) in
        [("adaround", "adaround:num_iterations=100"), ("adaquant", "adaquant:num_iterations=400:learning_rate=0.001")]
    {
        place.succeed(&quantize(&["-s", "int3:g128", "--algorithm", algorithm, "-o", out]));
        let record = place.record(out);
        let layers = record["layers"].as_array().unwrap();
        let loss = |layer: &serde_json::Value, key: &str| layer[key].as_f64().unwrap();
        assert!(layers.iter().all(|layer| layer["algorithm"] == out), "{record}");
        let gained = layers.iter().filter(|layer| loss(layer, "loss") < loss(layer, "loss_rtn")).count();
        assert!(gained > 14, "{out}: {gained} of 28");
        assert!(place.divergence(out) < nearest, "{out}");
    }
}

#[test]
fn hqq_needs_no_data_and_changes_only_zero_points() {
    let place = place();
    place.succeed(&["quantize", "nano_llama", "-s", "uint2:g64:zp", "-o", "rtn"]);
    place.succeed(&["quantize", "nano_llama", "-s", "uint2:g64:zp", "--algorithm", "hqq", "-o", "hqq"]);
    let weights = |out: &str| std::fs::read(place.path(&format!("{out}/model.safetensors"))).unwrap();
    assert!(weights("hqq") != weights("rtn"));
    // With integer zero points the search changes little: it neither gains nor loses.
    let (searched, nearest) = (place.divergence("hqq"), place.divergence("rtn"));
    assert!((searched / nearest - 1.0).abs() < 0.02, "{searched} beside {nearest}");
    let run = place.run(&["quantize", "nano_llama", "-s", "int4_wo_128", "--algorithm", "hqq", "-o", "no"]);
    assert!(run.code == Some(1) && run.stderr.contains("`hqq` is not for layer"), "{run:?}");
    assert!(!names(&place.path("")).iter().any(|name| name.starts_with("no")));
}

/// Gives the attention of the small model biases of zeros: it computes what it did.
fn add_biases(place: &Place) {
    let model = place.path("nano_llama/model.safetensors");
    let bytes = std::fs::read(&model).unwrap();
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let mut header: serde_json::Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
    let mut data = bytes[8 + length..].to_vec();
    for layer in 0..4 {
        for (name, size) in [("q", 128), ("k", 64), ("v", 64), ("o", 128)] {
            let start = data.len();
            data.resize(start + 2 * size, 0);
            let entry = serde_json::json!({"dtype": "BF16", "shape": [size], "data_offsets": [start, data.len()]});
            header[format!("model.layers.{layer}.self_attn.{name}_proj.bias")] = entry;
        }
    }
    let mut header = header.to_string().into_bytes();
    header.resize(header.len().next_multiple_of(8), b' ');
    std::fs::write(model, [&(header.len() as u64).to_le_bytes()[..], &header, &data].concat()).unwrap();
    let config = place.path("nano_llama/config.json");
    let text = std::fs::read_to_string(&config).unwrap();
    std::fs::write(config, text.replace("\"attention_bias\": false", "\"attention_bias\": true")).unwrap();
}

#[test]
fn corrected_biases_bring_outputs_nearer_and_leave_codes_as_they_are() {
    let place = place();
    add_biases(&place);
    let checkpoint = |out: &str| kvant_container::Checkpoint::open(&place.path(out)).unwrap();
    for algorithm in ["rtn", "hqq"] {
        let (scheme, name, corrected) = ("uint2:g64:zp", algorithm, format!("{algorithm}_corrected"));
        place.succeed(&quantize(&["-s", scheme, "--algorithm", algorithm, "-o", name]));
        let both = format!("{algorithm},bias-correction");
        place.succeed(&quantize(&["-s", scheme, "--algorithm", &both, "-o", &corrected]));
        let (plain, better) = (checkpoint(name), checkpoint(&corrected));
        let mut biases = 0;
        for tensor in plain.tensors() {
            let other = better.tensor(tensor.name()).unwrap();
            let is_bias = tensor.name().ends_with("_proj.bias");
            biases += usize::from(is_bias);
            // Neither sees data: codes do not depend on biases before them.
            assert_eq!(tensor.bytes() != other.bytes(), is_bias, "{algorithm}: {}", tensor.name());
        }
        assert_eq!((biases, better.tensors().count()), (16, plain.tensors().count()), "{algorithm}");
        let (found, before) = (place.divergence(&corrected), place.divergence(name));
        assert!(found < before, "{algorithm}: {found} beside {before}");
        let record = place.record(&corrected);
        let notes = |layer: &&serde_json::Value| layer["note"] == "no bias to correct";
        assert_eq!(record["layers"].as_array().unwrap().iter().filter(notes).count(), 12, "{record}");
    }
}

#[test]
fn no_strength_changes_no_byte_of_weights_and_biases() {
    let place = place();
    add_biases(&place);
    let weights = |out: &str| std::fs::read(place.path(&format!("{out}/model.safetensors"))).unwrap();
    place.succeed(&quantize(&["-s", "int3:g64", "--algorithm", "gptq", "-o", "gptq"]));
    for (out, strength) in [("none", "0"), ("all", "1")] {
        let algorithm = format!("gptq,bias-correction:strength={strength}");
        place.succeed(&quantize(&["-s", "int3:g64", "--algorithm", &algorithm, "-o", out]));
    }
    assert!(weights("none") == weights("gptq") && weights("all") != weights("gptq"));
}

#[test]
fn corrected_biases_do_not_depend_on_threads_memory_or_interruptions() {
    let place = place();
    add_biases(&place);
    let algorithms = ["bias-correction", "awq,gptaq,bias-correction"];
    for (number, algorithm) in algorithms.into_iter().enumerate() {
        let options = ["-s", "uint4_wo_128", "--algorithm", algorithm];
        let run = |out: &str, more: &[&str]| {
            let out = format!("{out}{number}");
            place.succeed(&quantize(&[&options[..], &["-o", &out], more].concat()));
            contents(&place.path(&out))
        };
        let one = run("one", &["--threads", "1"]);
        assert!(run("three", &["--threads", "3"]) == one, "{algorithm}: threads");
        assert!(run("tight", &["--max-memory", "1KB"]) == one, "{algorithm}: memory");
        // A run that is killed with its first blocks done.
        let out = format!("killed{number}");
        let state = place.path(&format!("{out}.partial.blocks/state.json"));
        let args = quantize(&[&options[..], &["-o", &out]].concat()).into_iter().map(str::to_owned).collect::<Vec<_>>();
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let null = std::process::Stdio::null;
        let mut child = place.command(&args).stdout(null()).stderr(null()).spawn().unwrap();
        while child.try_wait().unwrap().is_none() && !state.exists() {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        let _ = child.kill();
        child.wait().unwrap();
        if !place.path(&out).exists() {
            place.succeed(&args);
        }
        assert!(contents(&place.path(&out)) == one, "{algorithm}: resumed");
    }
}

#[test]
fn a_model_without_biases_is_refused_before_the_work() {
    let place = place();
    let run = place.run(&quantize(&["-s", "int4_wo_128", "--algorithm", "bias-correction", "-o", "out"]));
    assert!(run.code != Some(0) && run.stderr.contains("finds no layer with a bias"), "{run:?}");
    assert!(run.stderr.contains("leave bias-correction out of --algorithm"), "{run:?}");
    assert!(!names(&place.path("")).iter().any(|name| name.starts_with("out")));
}

#[test]
fn algorithms_combine_with_shared_scales_and_clipping() {
    let place = place();
    let run = |out: &str, scheme: &str, algorithm: &str| {
        place.succeed(&quantize(&["-s", scheme, "--algorithm", algorithm, "-o", out]));
        place.divergence(out)
    };
    place.succeed(&quantize(&["-s", "nvfp4", "-o", "nvfp4"]));
    let nearest = place.divergence("nvfp4");
    for algorithm in ["smoothquant", "awq", "gptq"] {
        let found = run(&format!("nvfp4_{algorithm}"), "nvfp4", algorithm);
        assert!(found < 1.5 * nearest, "nvfp4 {algorithm}: {found} beside {nearest}");
    }
    place.succeed(&["quantize", "nano_llama", "-s", "int3:g64", "-o", "int3"]);
    let nearest = place.divergence("int3");
    for (out, algorithm) in [("first", "awq,smoothquant"), ("last", "smoothquant,awq")] {
        let found = run(out, "int3:g64", algorithm);
        assert!(found < 1.2 * nearest, "int3 {algorithm}: {found} beside {nearest}");
    }
}

#[test]
fn algorithm_output_does_not_depend_on_threads_or_memory() {
    let place = place();
    for (name, scheme, algorithm) in [
        ("a", "uint4_wo_128", "awq,gptaq"),
        ("b", "int8", "autosmoothquant,gptq"),
        ("c", "int3:g64", "adaround:num_iterations=12"),
        ("d", "uint4_wo_128", "hqq"),
        ("e", "int3:g64", "gptq,autoround:iterations=3,tune:iterations=3"),
    ] {
        let run = |out: &str, options: &[&str]| {
            let out = format!("{name}{out}");
            place.succeed(&quantize(&[&["-s", scheme, "--algorithm", algorithm, "-o", &out], options].concat()));
            contents(&place.path(&out))
        };
        let one = run("one", &["--threads", "1"]);
        assert!(run("three", &["--threads", "3"]) == one, "{algorithm}: threads");
        assert!(run("tight", &["--max-memory", "1KB"]) == one, "{algorithm}: memory");
    }
}

#[test]
fn algorithms_without_data_are_refused_first() {
    let place = place();
    let run = place.run(&["quantize", "nano_llama", "-s", "int4_wo_128", "--algorithm", "gptq", "-o", "out"]);
    assert_eq!(run.code, Some(2), "{run:?}");
    assert!(run.stderr.contains("--calib"), "{run:?}");
    assert!(!names(&place.path("")).iter().any(|name| name.starts_with("out")));
}

/// The memory use of the process is sampled while it runs, where the system reports it.
#[cfg(target_os = "linux")]
#[test]
fn memory_stays_within_the_planned_figure() {
    use std::process::Stdio;
    let place = place();
    let of_process = |id: u32| {
        let status = std::fs::read_to_string(format!("/proc/{id}/status")).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
        line.map_or(0, |line| line.split_whitespace().next().unwrap().parse::<u64>().unwrap() * 1024)
    };
    for (scheme, algorithm) in [
        ("uint4_wo_128", "gptq"),
        ("uint4_wo_128", "awq,gptaq"),
        ("uint4_wo_128", "smoothquant"),
        ("uint4_wo_128", "adaround:num_iterations=12"),
        ("uint4_wo_128", "tune:iterations=3:weights=on"),
        ("Q4_K_M", "imatrix"),
    ] {
        let options = ["-s", scheme, "--algorithm", algorithm, "--threads", "2"];
        let told = place.succeed(&[&["plan", "nano_llama", "--json"], &options[..], &DATA].concat()).json();
        let told = told["peak_memory"].as_u64().unwrap();
        let args = quantize(&[&options[..], &["-o", algorithm]].concat());
        let mut child = place.command(&args).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let mut taken = 0;
        while child.try_wait().unwrap().is_none() {
            taken = of_process(child.id()).max(taken);
        }
        assert!(taken > told / 20 && taken <= told, "{algorithm}: {taken} of {told}");
    }
}

#[cfg(unix)]
#[test]
fn killed_blockwise_run_resumes_with_identical_output() {
    use std::process::Stdio;
    use std::time::{Duration, Instant};
    let place = place();
    fn args(out: &str) -> Vec<&str> {
        let algorithm = "awq,gptaq,tune:iterations=3";
        quantize(&["-s", "uint4_wo_128", "--algorithm", algorithm, "--threads", "2", "-o", out])
    }
    let begun = Instant::now();
    place.succeed(&args("whole"));
    let (whole, expected) = (begun.elapsed(), contents(&place.path("whole")));
    let mut resumed = 0;
    for round in 0..6 {
        let out = format!("out{round}");
        // Moments in the first block, between, and in the last one.
        let mut child = place.command(&args(&out)).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(whole.mul_f64(0.2 + 0.13 * f64::from(round)));
        child.kill().unwrap();
        child.wait().unwrap();
        resumed += usize::from(place.path(&format!("{out}.partial.blocks/state.json")).exists());
        if !place.path(&out).exists() {
            place.succeed(&args(&out));
        }
        assert!(contents(&place.path(&out)) == expected, "round {round}");
        let left: Vec<_> =
            names(&place.path("")).into_iter().filter(|name| name.starts_with(&format!("{out}."))).collect();
        assert!(left.is_empty(), "round {round}: {left:?}");
        if begun.elapsed() > Duration::from_secs(60) {
            break;
        }
    }
    assert!(resumed > 0, "no run was killed between blocks");
}

#[test]
fn quality_levels_choose_scales_and_algorithms() {
    let place = Place::new();
    place.write("text.txt", &"The tower stood where the river turns. ".repeat(400));
    let base = ["quantize", "nano_llama", "-s", "int4:g64"];
    let data = ["--calib", "text.txt", "--seq-len", "64", "--num-samples", "8"];
    let fast = place.succeed(&[&base[..], &["--quality", "fast", "-o", "fast"]].concat());
    assert!(fast.stderr.contains("--quality fast is rounding to nearest with searched scales"), "{fast:?}");
    place.succeed(&[&base[..], &["--scales", "search", "-o", "spelled"]].concat());
    let weights = |name: &str| std::fs::read(place.path(name).join("model.safetensors")).unwrap();
    assert_eq!(weights("fast"), weights("spelled"));
    let planned = place.succeed(&["plan", "nano_llama", "-s", "int4:g64", "--quality", "balanced"]);
    assert!(planned.stdout.contains("qronos:rounds=4") && planned.stdout.contains("calibration data"), "{planned:?}");
    let blind = place.run(&[&base[..], &["--quality", "balanced", "-o", "out"]].concat());
    assert!(blind.code == Some(2) && blind.stderr.contains("use --quality fast, which needs none"), "{blind:?}");
    let best = ["plan", "nano_llama", "-s", "int4:g64", "--quality", "best"];
    let few = place.succeed(&[&best[..], &data].concat());
    assert!(
        few.stderr.contains("tune:weights=on:iterations=600 with searched scales; the model writes 504 of 512"),
        "{few:?}"
    );
    let enough = place.succeed(&[&best[..], &data[..4], &["--num-samples", "512"]].concat());
    assert!(enough.stderr.contains("--quality best is ") && !enough.stderr.contains("the model writes"), "{enough:?}");
    let balanced = place.succeed(&[&base[..], &data, &["--quality", "balanced", "-o", "balanced"]].concat());
    assert!(balanced.stderr.contains("--quality balanced is qronos:rounds=4 with searched scales"), "{balanced:?}");
    let spelled = ["--algorithm", "qronos:rounds=4", "--scales", "search", "-o", "qronos"];
    place.succeed(&[&base[..], &data, &spelled].concat());
    assert_eq!(weights("balanced"), weights("qronos"));
    let file = ["quantize", "nano_llama", "-s", "Q4_0", "--quality", "balanced", "-o", "out.gguf"];
    assert!(place.succeed(&[&file[..], &data].concat()).stderr.contains("is qronos:rounds=4\n"));
}

#[test]
fn quality_levels_that_do_not_run_on_a_model_become_lower_ones() {
    let place = Place::new();
    write_unknown_experts(&place.path("strange"));
    let told = place.succeed(&["quantize", "strange", "-s", "int4:g64", "--quality", "best", "-o", "out"]);
    assert!(told.stderr.contains("--quality best falls back to fast for this model, rounding to nearest"), "{told:?}");
    for (given, reason) in
        [(&["--algorithm", "gptq"][..], "--algorithm is given too"), (&["--scales", "search"], "--scales is given too")]
    {
        let line = ["quantize", "nano_llama", "-s", "int4:g64", "--quality", "best", "-o", "no"];
        let refused = place.run(&[&line[..], given].concat());
        assert!(refused.code == Some(2) && refused.stderr.contains(reason), "{refused:?}");
    }
    place.write("recipe.toml", "version = 2\nscheme = \"int4:g64\"\nalgorithm = [\"gptq\"]\n");
    let refused = place.run(&["plan", "nano_llama", "-r", "recipe.toml", "--quality", "fast"]);
    assert!(
        refused.code == Some(2) && refused.stderr.contains("`algorithm` of the recipe is given too"),
        "{refused:?}"
    );
    assert_eq!(place.run(&["plan", "nano_llama", "-s", "int4", "--quality", "good"]).code, Some(2));
    // No level is the cause.
    write_encoder(&place.path("bert"));
    let refused = place.run(&["plan", "bert", "-s", "Q4_0", "--quality", "balanced"]);
    assert!(refused.code == Some(1) && !refused.stderr.contains("falls back"), "{refused:?}");
    assert!(refused.stderr.contains("BertModel cannot be written as GGUF"), "{refused:?}");
    // Static scales need data at every level; a file that is rounded to nearest has no use for them.
    let blind =
        ["quantize", "nano_llama", "-s", "int8:channel+int8:tensor!static", "--quality", "balanced", "-o", "no"];
    let blind = place.run(&blind);
    assert!(blind.code == Some(2) && !blind.stderr.contains("--quality fast"), "{blind:?}");
    place.write("text.txt", &"The tower stood where the river turns. ".repeat(40));
    let file = ["quantize", "nano_llama", "-s", "Q8_0", "--quality", "best", "--calib", "text.txt", "-o", "q8.gguf"];
    assert!(place.succeed(&file).stderr.contains("--quality best is rounding to nearest"));
}
