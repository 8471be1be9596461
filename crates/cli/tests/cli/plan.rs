//! `kvant plan`, and `kvant quantize --dry-run`.

use crate::kvant::{Place, names};
use serde_json::Value;

#[test]
fn plan_tables() {
    let place = Place::new();
    let plan = |more: &[&str]| place.show(&[&["plan", "nano_llama", "--threads", "2"], more].concat());
    insta::assert_snapshot!("plan", plan(&["--scheme", "int4_wo_128"]));
    let mixed = ["--scheme", "FP8_DYNAMIC", "--override", "*.down_proj=int8:channel", "--exclude", "*.layers.0.*"];
    insta::assert_snapshot!("plan_mixed", plan(&mixed));
    insta::assert_snapshot!("plan_fake", plan(&["--scheme", "mx6"]));
    insta::assert_snapshot!("plan_everything", plan(&["--scheme", "ptpc_fp8", "--no-keep-defaults"]));
    let several = ["--format", "gptq", "--format", "awq", "--format", "gguf", "--requantize"];
    insta::assert_snapshot!("plan_several", plan(&[&["--scheme", "W4A16"], &several[..]].concat()));
    insta::assert_snapshot!("plan_all", plan(&["--scheme", "nvfp4", "--weights-only", "--all"]));
}

#[test]
fn plan_tables_fit_the_terminal_unless_wide() {
    let place = Place::new();
    let widest = |columns: &str, more: &[&str]| {
        let args = [&["plan", "nano_llama", "--scheme", "FP8_DYNAMIC"], more].concat();
        let output = place.command(&args).env("COLUMNS", columns).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let table = text.split("\n\n").nth(1).unwrap();
        assert!(table.contains("model.layers.{0..3}.post_attention_layernorm.weight"), "{table}");
        table.lines().map(|line| line.chars().count()).max().unwrap()
    };
    assert!(widest("80", &[]) <= 80 && widest("", &[]) <= 100);
    let wide = widest("80", &["--wide"]);
    assert!(wide > 100 && widest("300", &[]) == wide, "{wide}");
}

#[test]
fn tables_of_all_commands_fit_the_terminal() {
    let place = Place::new();
    let data = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../onnx/tests/data");
    for name in ["tinycnn.float.onnx", "tinycnn.calib.npz"] {
        std::fs::copy(data.join(name), place.path(name)).unwrap();
    }
    place.write("text.txt", &"The iterator yields every element of the slice, in order. ".repeat(20));
    place.succeed(&["quantize", "nano_llama", "-s", "int4:g32", "-o", "out"]);
    place.succeed(&["quantize", "nano_llama", "-s", "Q4_0", "-o", "out.gguf"]);
    let graph = ["tinycnn.float.onnx", "--preset", "A8W8", "--data", "tinycnn.calib.npz", "--runtime", "rten"];
    place.succeed(&[&["quantize"], &graph[..], &["-o", "q.onnx"]].concat());
    let compared = ["--reference", "tinycnn.float.onnx", "--data", "tinycnn.calib.npz", "--runtime", "rten"];
    let lines: [Vec<&str>; 13] = [
        vec!["plan", "nano_llama", "-s", "int4:g32"],
        vec!["plan", "nano_llama", "-s", "Q4_K_M"],
        vec!["plan", "out.gguf", "-s", "Q2_K", "--requantize"],
        vec!["plan", "tinycnn.float.onnx", "--preset", "A8W8"],
        vec!["verify", "out"],
        vec!["verify", "out", "--tensor-parallel", "8"],
        vec!["verify", "out.gguf"],
        vec!["inspect", "out"],
        vec!["inspect", "out.gguf"],
        vec!["inspect", "q.onnx"],
        vec!["eval", "out", "--reference", "nano_llama", "--data", "text.txt", "--seq-len", "64"],
        [&["eval", "q.onnx"], &compared[..]].concat(),
        [&["sensitivity"], &graph[..]].concat(),
    ];
    for line in lines {
        for columns in [80, 100] {
            let output = place.command(&line).env("COLUMNS", columns.to_string()).output().unwrap();
            let text = String::from_utf8(output.stdout).unwrap();
            assert!(!text.is_empty(), "{line:?}: {}", String::from_utf8_lossy(&output.stderr));
            // Prose is not wrapped: it has no columns, but for a title.
            let is_titled = |row: &str| ["tensors  ", "layers  "].iter().any(|title| row.starts_with(title));
            for row in text.lines().filter(|row| row.trim().contains("  ") && !is_titled(row)) {
                let is_path = row.contains(place.path("").to_str().unwrap());
                assert!(is_path || row.chars().count() <= columns, "{line:?} at {columns}: {row}\n{text}");
            }
        }
    }
}

/// Experts of an unknown layout are most of the model.
#[test]
fn weights_left_in_floats_are_told_first() {
    let place = Place::empty();
    crate::made_model::write_unknown_experts(&place.path("strange"));
    let told = "67 % of the weights stay in float by default: `model.layers.*.feed_forward.experts.down_proj` (67 %)";
    let plan = place.succeed(&["plan", "strange", "-s", "int4:g32"]);
    assert_eq!(plan.stdout.lines().nth(1), Some(told), "{}", plan.stdout);
    let run = place.succeed(&["quantize", "strange", "-s", "int4:g32", "-o", "out"]);
    assert_eq!(run.stderr.lines().next(), Some(&*format!("note: {told}")), "{}", run.stderr);
}

#[test]
fn hints_for_unknown_architectures_name_the_description() {
    let place = Place::new();
    place.write("text.txt", "A text, of a few words.");
    let config = std::fs::read_to_string(place.path("nano_llama/config.json")).unwrap();
    let config = config.replace("LlamaForCausalLM", "GptNovelForCausalLM").replace("\"llama\"", "\"gpt_novel\"");
    place.write("nano_llama/config.json", &config);
    for line in [
        &["eval", "nano_llama", "--data", "text.txt"][..],
        &["quantize", "nano_llama", "-s", "int4:g32", "-a", "gptq", "--calib", "text.txt", "-o", "out"],
    ] {
        let refused = place.run(line);
        assert_eq!(refused.code, Some(1), "{refused:?}");
        let hint = refused.stderr.split_once("hint: ").unwrap().1;
        assert!(hint.contains("--family") && hint.contains("--suggest-family"), "{hint}");
        assert!(!hint.contains("quantize"), "{hint}");
    }
}

#[test]
fn plan_shows_the_cost_of_algorithms() {
    let place = Place::new();
    place.write("text.txt", "A text.");
    let args = ["--scheme", "uint4_wo_128", "--algorithm", "awq,gptq", "--calib", "text.txt", "--threads", "2"];
    let args = [&["plan", "nano_llama"], &args[..]].concat();
    insta::assert_snapshot!("plan_algorithms", place.show(&args));
    let json = |more: &[&str]| place.succeed(&[&args, more, &["--json"]].concat()).json()["calibration"].clone();
    let (usual, short) = (json(&[]), json(&["--num-samples", "4", "--seq-len", "64"]));
    assert_eq!((usual["tokens"].as_u64(), short["tokens"].as_u64()), (Some(128 * 512), Some(4 * 64)));
    // What a block reads and puts out, what attention leaves, and hidden activations; a tenth more sequences are held out.
    assert_eq!(usual["disk"].as_u64(), Some((128 + 13) * 512 * (3 * 128 + 384) * 4));
    assert!(usual["peak_memory"].as_u64() > short["peak_memory"].as_u64());
    let plain = place.succeed(&["plan", "nano_llama", "--scheme", "uint4_wo_128", "--json"]).json();
    assert!(plain["calibration"].is_null());
    let halved = json(&["--precision", "bf16"]);
    assert_eq!(halved["disk"].as_u64(), usual["disk"].as_u64().map(|disk| disk / 2));
}

#[test]
fn plan_refuses_invalid_calibration_data() {
    let place = Place::new();
    place.write("text.txt", "A text.");
    for (data, length, word, code) in
        [("text.txt", "100000", "100000 tokens", 1), ("nowhere.txt", "64", "nowhere.txt", 2)]
    {
        let more = ["--scheme", "int8", "--algorithm", "gptq", "--calib", data, "--seq-len", length];
        let run = place.run(&[&["plan", "nano_llama"], &more[..]].concat());
        assert!(run.code == Some(code) && run.stderr.contains(word), "{run:?}");
    }
}

#[test]
fn plan_refuses_what_a_run_would_refuse() {
    let place = Place::new();
    place.write("text.txt", "A text, of a few words.");
    place.write("empty.txt", "");
    std::fs::write(place.path("noise.txt"), [0xff, 0xfe, 0x00, 0x80]).unwrap();
    place.write("rows.jsonl", "{}");
    std::fs::create_dir(place.path("texts")).unwrap();
    let config = std::fs::read_to_string(place.path("nano_llama/config.json")).unwrap();
    std::fs::rename(place.path("nano_llama"), place.path("bert")).unwrap();
    place.write("bert/config.json", &config.replace("LlamaForCausalLM", "BertModel").replace("\"llama\"", "\"bert\""));
    crate::kvant::copy_dir(&crate::kvant::nano_llama(), &place.path("nano_llama"));
    let long = "a".repeat(300);
    let long = ["nano_llama", "-s", "int8:channel", "-o", &long];
    for (options, words) in [
        (&["bert", "-s", "fp8", "--calib", "text.txt"][..], "BertModel"),
        (&["nano_llama", "-s", "fp8", "--calib", "empty.txt"], "no sample"),
        (&["nano_llama", "-s", "fp8", "--calib", "noise.txt"], "UTF-8"),
        (&["nano_llama", "-s", "fp8", "--calib", "rows.jsonl"], "known field"),
        (&["nano_llama", "-s", "Q4_0", "-a", "imatrix", "--calib", "empty.txt"], "no sample"),
        (&["nano_llama", "-s", "fp8", "--calib", "text.txt", "--column", "nope"], "`nope`"),
        (&long, "name is too long"),
    ] {
        let run = place.run(&[&["plan"], options].concat());
        assert!(run.code.is_some_and(|code| code != 0) && run.stderr.contains(words), "{options:?}: {run:?}");
        assert!(run.stderr.contains("hint: "), "{options:?}: {run:?}");
    }
    for (options, words) in [
        (&["bert", "-s", "W8A16", "--max-kl", "1", "--eval", "text.txt"][..], "BertModel"),
        (&["nano_llama", "-s", "int8:channel", "--max-kl", "1", "--eval", "noise.txt"], "UTF-8"),
        (&["nano_llama", "-s", "Q4_0", "--max-kl", "1", "--eval", "empty.txt"], "no tokens"),
        (&["nano_llama", "-s", "int8:channel", "--max-kl", "1", "--eval", "texts"], "is a directory"),
    ] {
        let run = place.run(&[&["quantize", "--dry-run"], options].concat());
        assert!(run.code.is_some_and(|code| code != 0) && run.stderr.contains(words), "{options:?}: {run:?}");
    }
    let run = place.run(&["eval", "nano_llama", "--data", "texts"]);
    assert!(run.code == Some(2) && run.stderr.contains("hint: name one text file"), "{run:?}");
}

/// Not for root, who may write everywhere.
#[cfg(unix)]
#[test]
fn plan_refuses_an_unwritable_output() {
    use std::os::unix::fs::PermissionsExt;
    let place = Place::new();
    std::fs::create_dir(place.path("locked")).unwrap();
    std::fs::set_permissions(place.path("locked"), std::fs::Permissions::from_mode(0o555)).unwrap();
    if std::fs::write(place.path("locked/probe"), "").is_ok() {
        return;
    }
    let run = place.run(&["plan", "nano_llama", "-s", "int8:channel", "-o", "locked/out"]);
    assert!(run.code == Some(1) && run.stderr.contains("cannot write"), "{run:?}");
}

#[test]
fn plan_of_a_graph_output_describes_a_graph() {
    let place = Place::new();
    let options = ["plan", "nano_llama", "-s", "int8:channel", "-f", "onnx"];
    let plan = place.succeed(&[&options[..], &["--json"]].concat()).json();
    assert_eq!((plan["format"].as_str(), &plan["loaders"]), (Some("onnx"), &serde_json::json!(["onnxruntime"])));
    let made = place
        .succeed(&["quantize", "nano_llama", "-s", "int8:channel", "-f", "onnx", "-o", "graph.onnx", "--json"])
        .json();
    let ratio = plan["output_bytes"].as_f64().unwrap() / made["output_bytes"].as_f64().unwrap();
    assert!((0.9..1.1).contains(&ratio), "{ratio}");
    let text = place.succeed(&options).stdout;
    assert!(text.contains("format onnx") && text.contains("to about") && text.contains("ONNX Runtime"), "{text}");
    assert!(!text.contains("quark"), "{text}");
}

#[test]
fn usage_errors_have_no_tip_about_dashes() {
    let place = Place::new();
    for options in [&["--num-samples", "-1"][..], &["--max-kl", "1"]] {
        let run = place.run(&[&["plan", "nano_llama", "-s", "int8"], options].concat());
        assert!(run.code == Some(2) && !run.stderr.contains("tip:"), "{run:?}");
    }
}

#[test]
fn plan_json_lists_every_tensor_once_per_line() {
    let place = Place::new();
    let run = place.succeed(&["plan", "nano_llama", "--scheme", "int4_wo_128", "--json"]);
    let plan = run.json();
    let tensors = plan["tensors"].as_array().unwrap();
    let mut seen: Vec<&str> = tensors.iter().map(|tensor| tensor["name"].as_str().unwrap()).collect();
    let inspected = place.succeed(&["inspect", "nano_llama", "--json"]).json();
    let all: Vec<&str> = inspected["tensors"].as_array().unwrap().iter().map(|t| t["name"].as_str().unwrap()).collect();
    assert_eq!(seen, all);
    seen.dedup();
    assert_eq!(seen.len(), 39);
    assert_eq!(run.stdout.lines().filter(|line| line.contains("\"quantize\"")).count(), 28);
    let of = |key: &str| tensors.iter().map(|tensor| sum(tensor, key)).sum::<u64>();
    assert_eq!(plan["output_bytes"].as_u64().unwrap(), of("outputs"));
    assert_eq!(
        plan["source_bytes"].as_u64().unwrap(),
        tensors.iter().map(|t| t["bytes"].as_u64().unwrap()).sum::<u64>()
    );
}

fn sum(tensor: &Value, key: &str) -> u64 {
    tensor[key].as_array().unwrap().iter().map(|output| output["bytes"].as_u64().unwrap()).sum()
}

#[test]
fn dry_run_prints_the_plan_and_writes_nothing() {
    let place = Place::new();
    let options = ["nano_llama", "--scheme", "mxfp4", "--threads", "3"];
    let plan = place.succeed(&[&["plan"], &options[..]].concat());
    let dry = place.succeed(&[&["quantize"], &options[..], &["--dry-run", "-o", "out"]].concat());
    assert_eq!((plan.stdout, plan.stderr), (dry.stdout, dry.stderr));
    assert_eq!(names(&place.path("")), ["nano_llama"]);
}

#[test]
fn output_has_the_planned_size() {
    let place = Place::new();
    let plan = place.succeed(&["plan", "nano_llama", "--scheme", "uint4_wo_32", "--json"]).json();
    let done = place.succeed(&["quantize", "nano_llama", "--scheme", "uint4_wo_32", "--json", "-o", "out"]).json();
    let found = place.succeed(&["inspect", "out", "--json"]).json();
    assert_eq!(plan["output_bytes"], done["output_bytes"]);
    assert_eq!(plan["output_bytes"], found["bytes"]);
    assert_eq!(plan["bits_per_weight"], done["bits_per_weight"]);
}

#[test]
fn plan_needs_no_data_and_says_that_the_run_does() {
    let place = Place::new();
    for options in [
        &["--scheme", "fp8"][..],
        &["--scheme", "int4:g32", "--algorithm", "gptq"],
        &["--scheme", "int4:g32", "--kv-cache", "fp8"],
        &["--scheme", "int4:g32", "--algorithm", "gptq", "--format", "gguf"],
        &["--scheme", "Q4_0", "--algorithm", "imatrix"],
    ] {
        let run = place.succeed(&[&["plan", "nano_llama"], options].concat());
        let said = format!("{}{}", run.stdout, run.stderr);
        assert!(said.contains("calibration data") && said.contains("--calib"), "{options:?}: {said}");
    }
    let needs = |more: &[&str]| {
        place.succeed(&[&["plan", "nano_llama", "--json"], more].concat()).json()["needs_data"].as_bool().unwrap()
    };
    assert!(needs(&["--scheme", "fp8"]) && !needs(&["--scheme", "int4:g32"]));
    place.write("text.txt", "A text.");
    assert!(!needs(&["--scheme", "fp8", "--calib", "text.txt"]));
}
