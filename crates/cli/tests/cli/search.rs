//! `kvant search`: mixes for every kind of target, recipes that quantize to the size and the divergence that was promised, measurements
//! that later searches reuse, and requests that cannot succeed.

use crate::kvant::Place;
use serde_json::Value;
use std::fs;

const OPTIONS: &str = "int3:g128,int4:g128,int8:channel";
const FEW: [&str; 6] = ["--data", "text.txt", "--num-samples", "4", "--seq-len", "64"];

fn place() -> Place {
    let place = Place::new();
    let sentence = |i: usize| {
        format!(
            "The tower stood where the river turns. In year {i} a flood took {} houses and the bridge. ",
            i * 7 % 13
        )
    };
    place.write("text.txt", &(0..60).map(sentence).collect::<String>());
    place
}

fn search(place: &Place, more: &[&str]) -> Value {
    let line = [&["search", "nano_llama", "--options", OPTIONS, "--json", "-q"], &FEW[..], more].concat();
    place.succeed(&line).json()
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is not a number"))
}

/// A measured mix of a report.
fn compared<'r>(report: &'r Value, name: &str) -> &'r Value {
    report["compared"].as_array().unwrap().iter().find(|mix| mix["name"] == name).unwrap()
}

#[test]
fn mix_within_a_size_loses_less_than_uniform_and_quantizes_to_that_size() {
    let place = place();
    place.succeed(&["quantize", "nano_llama", "-s", "int4:g128", "-o", "uniform", "--format", "quark"]);
    let uniform = fs::metadata(place.path("uniform/model.safetensors")).unwrap().len();
    let size = format!("{uniform}B");
    let report = search(&place, &["--format", "quark", "--target-size", &size, "-o", "mix.toml"]);
    let chosen = &report["chosen"];
    let four = compared(&report, "int4:g128");
    assert!(number(&chosen["bytes"]) <= uniform as f64, "{chosen}");
    assert!(number(&chosen["kl"]) <= number(&four["kl"]), "{chosen} {four}");
    // Groups that engines fuse have one option.
    let groups = report["groups"].as_array().unwrap();
    assert_eq!(groups.len(), 16);
    assert_eq!(groups[0]["group"], "model.layers.0.self_attn.{q_proj,k_proj,v_proj}");
    place.succeed(&["quantize", "nano_llama", "--recipe", "mix.toml", "-o", "mixed"]);
    let made = fs::metadata(place.path("mixed/model.safetensors")).unwrap().len();
    assert_eq!(number(&chosen["bytes"]), made as f64);
    // The checkpoint is what was measured: on the same windows it has the same divergence.
    let eval = ["eval", "mixed", "--reference", "nano_llama", "--data", "text.txt", "--seq-len", "64", "--json"];
    let found = number(&place.succeed(&eval).json()["kl_mean"]);
    let measured = search(
        &place,
        &[
            "--format",
            "quark",
            "--target-size",
            &size,
            "--eval",
            "text.txt",
            "--sensitivities",
            "mix.sensitivities.json",
        ],
    );
    assert!((number(&measured["chosen"]["kl"]) / found - 1.0).abs() < 1e-3, "{found} {}", measured["chosen"]);
}

#[test]
fn targets_of_loss_give_the_smallest_mix_that_was_measured_to_reach_them() {
    let place = place();
    let kept = ["--sensitivities", "kept.json"];
    let all = search(&place, &kept);
    assert!(all["chosen"].is_null() && all["recipe"].is_null(), "{all}");
    let (three, eight) = (compared(&all, "int3:g128"), compared(&all, "int8:channel"));
    let limit = (number(&three["kl"]) * number(&eight["kl"])).sqrt();
    let found = search(&place, &[&kept[..], &["--max-kl", &limit.to_string()]].concat());
    let chosen = &found["chosen"];
    assert!(number(&chosen["kl"]) <= limit, "{chosen}");
    assert!(number(&chosen["bytes"]) < number(&eight["bytes"]), "{chosen}");
    let share = (number(&three["top1_agreement"]) + number(&eight["top1_agreement"])) / 2.0;
    let found = search(&place, &[&kept[..], &["--min-top1", &share.to_string()]].concat());
    assert!(number(&found["chosen"]["top1_agreement"]) >= share, "{}", found["chosen"]);
    let found = search(&place, &[&kept[..], &["--target-bpw", "5"]].concat());
    assert!(number(&found["chosen"]["bits_per_weight"]) <= 5.0, "{}", found["chosen"]);
    let refused = |more: &[&str]| {
        let line = [&["search", "nano_llama", "--options", OPTIONS, "-q"], &FEW[..], &kept, more].concat();
        let run = place.run(&line);
        assert_eq!(run.code, Some(1), "{more:?} {run:?}");
        run.stderr
    };
    assert!(refused(&["--max-kl", "1e-9"]).contains("no mix of these options has a KL divergence of at most"));
    assert!(refused(&["--min-top1", "0.999999"]).contains("agrees with the model"));
    assert!(refused(&["--target-bpw", "2"]).contains("the smallest has 3."));
    assert!(refused(&["--target-size", "1kB"]).contains("no mix of these options is as small as"));
}

#[test]
fn measurements_are_reused_and_survive_an_interruption() {
    let place = place();
    let line = ["search", "nano_llama", "--options", OPTIONS, "--target-bpw", "4.5", "-o", "mix.toml"];
    let whole = place.succeed(&[&line[..], &FEW].concat());
    let recipe = fs::read(place.path("mix.toml")).unwrap();
    assert!(!whole.stderr.contains("known already"), "{whole:?}");
    // Another target, and a further option: only that is measured.
    let again = place.succeed(&[&line[..4], &FEW, &["--target-bpw", "5", "-o", "mix.toml", "--overwrite"]].concat());
    assert!(again.stderr.contains("48 of 48 measurements are known already"), "{again:?}");
    let more = ["search", "nano_llama", "--options", "int3:g128,int4:g128,int8:channel,int6:g128"];
    let more = place.succeed(&[&more[..], &FEW, &["--sensitivities", "mix.sensitivities.json"]].concat());
    assert!(more.stderr.contains("48 of 64 measurements are known already"), "{more:?}");
    // What a killed run has kept is the measurements of the blocks before.
    let kept = place.path("mix.sensitivities.json");
    let mut contents: Value = serde_json::from_slice(&fs::read(&kept).unwrap()).unwrap();
    let groups = contents["sensitivities"].as_object_mut().unwrap();
    groups.retain(|name, _| name.contains("layers.0.") || name.contains("layers.1."));
    contents["mixes"] = serde_json::json!({});
    fs::write(&kept, contents.to_string()).unwrap();
    let resumed = place.succeed(&[&line[..], &FEW, &["--overwrite"]].concat());
    assert!(resumed.stderr.contains("24 of 48 measurements are known already"), "{resumed:?}");
    assert_eq!(fs::read(place.path("mix.toml")).unwrap(), recipe);
    // Other data are other measurements.
    let other = ["--data", "text.txt", "--num-samples", "3", "--seq-len", "64", "-q"];
    let run = place.run(&[&line[..6], &other, &["--sensitivities", "mix.sensitivities.json"]].concat());
    assert_eq!(run.code, Some(1));
    assert!(run.stderr.contains("of another model, or on other data") && run.stderr.contains("--overwrite"), "{run:?}");
}

#[cfg(unix)]
#[test]
fn killed_search_resumes_from_the_measured_blocks() {
    let place = place();
    let line =
        ["search", "nano_llama", "--options", OPTIONS, "--target-bpw", "4.5", "-o", "mix.toml", "--data", "text.txt"];
    let line = [&line[..], &["--num-samples", "16", "--seq-len", "64"]].concat();
    let mut killed = place.command(&line).stderr(std::process::Stdio::null()).spawn().unwrap();
    let kept = place.path("mix.sensitivities.json");
    let begun = std::time::Instant::now();
    while !kept.exists() && begun.elapsed().as_secs() < 120 {
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    killed.kill().unwrap();
    killed.wait().unwrap();
    assert!(kept.exists());
    let resumed = place.succeed(&line);
    assert!(resumed.stderr.contains("of 48 measurements are known already"), "{resumed:?}");
    let recipe = fs::read(place.path("mix.toml")).unwrap();
    fs::remove_file(&kept).unwrap();
    place.succeed(&[&line[..], &["--overwrite", "-q"]].concat());
    assert_eq!(fs::read(place.path("mix.toml")).unwrap(), recipe);
}

#[test]
fn gguf_mix_names_every_tensor_and_is_written_behind_the_search() {
    let place = place();
    let line = ["search", "nano_llama", "--for", "llama.cpp", "--options", "Q4_0,Q5_0,Q8_0", "--target-bpw", "5.2"];
    let then = ["-o", "mix.toml", "--json", "-q", "--then", "quantize", "-o", "mixed.gguf"];
    let report = place.succeed(&[&line[..], &FEW, &then].concat()).json();
    assert_eq!(report["format"], "gguf");
    let groups: Vec<&str> =
        report["groups"].as_array().unwrap().iter().map(|group| group["group"].as_str().unwrap()).collect();
    assert_eq!((groups.len(), groups[0], groups[1]), (30, "token_embd", "blk.0.ffn_down"), "{groups:?}");
    let made = fs::metadata(place.path("mixed.gguf")).unwrap().len();
    let promised = number(&report["chosen"]["bytes"]);
    // The name of the file is in its header.
    assert!((promised - made as f64).abs() < 256.0, "{promised} {made}");
    assert!(report["quantized"][0].as_str().unwrap().ends_with("mixed.gguf"), "{}", report["quantized"]);
    // The file is what was measured.
    let eval = ["eval", "mixed.gguf", "--reference", "nano_llama", "--data", "text.txt", "--seq-len", "64", "--json"];
    let found = number(&place.succeed(&eval).json()["kl_mean"]);
    let more = ["--eval", "text.txt", "--sensitivities", "mix.sensitivities.json", "--json", "-q"];
    let measured = place.succeed(&[&line[..], &FEW, &more].concat()).json();
    let kl = number(&measured["chosen"]["kl"]);
    assert!((kl / found - 1.0).abs() < 0.02, "{found} {kl}");
}

#[test]
fn float_is_an_option_and_the_head_is_one_if_asked() {
    let place = place();
    let line =
        ["search", "nano_llama", "--options", "int4:g128,float", "--no-keep-defaults", "--target-bpw", "9", "-q"];
    place.succeed(&[&line[..], &FEW, &["-o", "mix.toml"]].concat());
    let recipe = fs::read_to_string(place.path("mix.toml")).unwrap();
    assert!(recipe.contains("layers = \"lm_head\"") && recipe.contains("scheme = \"keep\""), "{recipe}");
    place.succeed(&["quantize", "nano_llama", "--recipe", "mix.toml", "-o", "mixed", "-q"]);
    // The smallest mix with hardly any loss is the model itself.
    let line = ["search", "nano_llama", "--options", "int4:g128,float", "--sensitivities", "kept.json", "-q"];
    for target in [["--max-kl", "1e-12"], ["--target-size", "100%"]] {
        let run = place.run(&[&line[..], &FEW, &target].concat());
        assert!(run.code == Some(1) && run.stderr.contains("nothing to quantize"), "{target:?} {run:?}");
    }
    place.succeed(&[&line[..], &FEW, &["--target-size", "60%"]].concat());
}

#[test]
fn searches_that_cannot_succeed_are_refused_before_the_work() {
    let place = place();
    place.write("mix.toml", "version = 2\n");
    place.write("notes.txt", "these are notes");
    fs::create_dir(place.path("full")).unwrap();
    place.write("full/file", "mine");
    let base = ["search", "nano_llama", "--options", OPTIONS];
    for (line, code, text) in [
        (vec!["--target-bpw", "4.5", "-o", "new.toml"], 2, "none is given"),
        (vec!["--data", "none.txt", "--target-bpw", "4.5"], 2, "there is no such file"),
        (vec!["--data", "text.txt", "--target-bpw", "4.5", "-o", "mix.toml"], 1, "mix.toml exists already"),
        (vec!["--data", "text.txt", "--target-bpw", "4.5", "-o", "notes.txt", "--overwrite"], 1, "it is not a recipe"),
        (vec!["--data", "text.txt", "--target-bpw", "4.5", "--sensitivities", "text.txt"], 2, "--sensitivities"),
        (
            vec!["--data", "text.txt", "--target-bpw", "4.5", "--sensitivities", "notes.txt"],
            1,
            "it does not hold sensitivities",
        ),
        (vec!["--data", "text.txt", "-o", "new.toml"], 2, "only for a target"),
        (vec!["--data", "text.txt", "--target-bpw", "4.5", "--max-kl", "1"], 2, "cannot be used with"),
        (vec!["--data", "text.txt", "--target-bpw", "-1"], 2, "target-bpw"),
        (vec!["--data", "text.txt", "--min-top1", "95"], 2, "between 0 and 1"),
        (vec!["--data", "text.txt", "--target-bpw", "0"], 2, "--target-bpw must be a positive number"),
        (vec!["--data", "text.txt", "--target-bpw", "4.5", "-o", "model.gguf"], 2, "a recipe is TOML"),
        (
            vec!["--data", "text.txt", "--target-bpw", "4.5", "--then", "quantize", "-o", "out"],
            2,
            "--then reads the recipe",
        ),
        (
            vec!["--data", "text.txt", "--target-bpw", "4.5", "-o", "n.toml", "--then", "eval"],
            2,
            "--then takes `quantize`, not `eval`",
        ),
        (vec!["--data", "text.txt", "--target-bpw", "4.5", "-o", "n.toml", "--then", "quantize"], 2, "behind --then"),
        (
            vec!["--data", "text.txt", "--target-bpw", "4.5", "-o", "n.toml", "--then", "quantize", "-o", "full"],
            1,
            "full exists already",
        ),
        (
            vec![
                "--data",
                "text.txt",
                "--target-bpw",
                "4.5",
                "-o",
                "n.toml",
                "--then",
                "quantize",
                "-o",
                "out",
                "--json",
            ],
            2,
            "--json behind --then",
        ),
        (vec!["--data", "text.txt", "--target-bpw", "4.5", "--format", "fake"], 2, "size of the source"),
        (vec!["--data", "text.txt", "--target-bpw", "4.5", "--for", "llama.cpp"], 2, "not a tensor type"),
    ] {
        let run = place.run(&[&base[..], &line].concat());
        assert_eq!(run.code, Some(code), "{line:?} {run:?}");
        assert!(run.stderr.contains(text), "{line:?} {run:?}");
    }
    let run = place.run(&["search", "nano_llama", "--options", "int4:g128,Q4_K", "--data", "text.txt"]);
    assert!(run.code == Some(2) && run.stderr.contains("Q4_K"), "{run:?}");
    let run = place.run(&[
        "search",
        "nano_llama",
        "--options",
        "int4:g128,int8:tensor",
        "--data",
        "text.txt",
        "--for",
        "vllm",
    ]);
    assert!(run.code == Some(1) && run.stderr.contains("vLLM does not read --options int8:tensor"), "{run:?}");
    let none = ["search", "nano_llama", "--options", "int8:tensor", "--data", "text.txt", "--for", "vllm"];
    let run = place.run(&none);
    assert!(run.code == Some(1) && run.stderr.contains("vLLM reads this model in none of these options"), "{run:?}");
    assert!(run.stderr.contains("hint: leave out --for"), "{run:?}");
    let run = place.run(&["search", "nano_llama", "--options", "float", "--data", "text.txt"]);
    assert!(run.code == Some(2) && run.stderr.contains("nothing is given"), "{run:?}");
    assert_eq!(fs::read_to_string(place.path("mix.toml")).unwrap(), "version = 2\n");
    assert!(!place.path("n.toml").exists() && !place.path("n.sensitivities.json").exists());
}

#[test]
fn graphs_have_a_search_of_their_own() {
    let place = Place::empty();
    place.write("a.onnx", "");
    place.write("text.txt", "text");
    let run = place.run(&["search", "a.onnx", "--target-bpw", "4", "--data", "text.txt"]);
    assert!(run.code == Some(1) && run.stderr.contains("kvant sensitivity"), "{run:?}");
}

#[test]
fn estimated_mix_is_about_as_good_as_a_measured_one() {
    let place = place();
    let line = ["--target-bpw", "4.5", "--sensitivities", "kept.json"];
    let measured = search(&place, &line);
    let estimated = search(&place, &[&line[..], &["--method", "estimated"]].concat());
    assert_eq!((&measured["method"], &estimated["method"]), (&"measured".into(), &"estimated".into()));
    assert!(estimated["groups"][0]["choices"][0]["kl_error"].is_null());
    let (best, found) = (number(&measured["chosen"]["kl"]), number(&estimated["chosen"]["kl"]));
    assert!(found <= 1.3 * best, "{best} {found}");
    let run = place.run(&["search", "nano_llama", "--options", "mxfp8", "--method", "estimated", "--data", "text.txt"]);
    assert!(run.code == Some(1) && run.stderr.contains("quantizes activations"), "{run:?}");
}
