//! `kvant quantize`, from checkpoint to checkpoint.

use crate::kvant::{Place, contents, contents_but_card, names};
use crate::made_model::MadeModel;
use crate::verify::replace;
use kvant_quant::scheme::EVALUATION_ONLY;
use std::fs;

const FILES: [&str; 7] = [
    "README.md",
    "config.json",
    "generation_config.json",
    "kvant_manifest.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
];

#[test]
fn quantize_and_overwrite_dialogue() {
    let place = Place::new();
    let args = ["quantize", "nano_llama", "--scheme", "int4_wo_128", "-o", "out"];
    insta::assert_snapshot!("quantize", place.show(&args));
    assert_eq!(names(&place.path("out")), FILES);
    assert_eq!(names(&place.path("")), ["nano_llama", "out"]);
    insta::assert_snapshot!("quantize_exists", place.show(&args));
    insta::assert_snapshot!(
        "quantize_fake",
        place.show(&["quantize", "nano_llama", "--scheme", "mx9", "-o", "floats"])
    );
}

#[test]
fn evaluation_only_schemes_are_described_consistently() {
    let words = &kvant::spelled(EVALUATION_ONLY, |setting| format!("--{setting}"));
    let place = Place::new();
    let said = |args: &[&str]| {
        let run = place.run(args);
        (run.stdout + &run.stderr).split_whitespace().collect::<Vec<_>>().join(" ")
    };
    for args in [
        &["quantize", "--help"][..],
        &["list", "schemes"],
        &["list", "dtypes"],
        &["plan", "nano_llama", "-s", "e5m2:g32:e8m0"],
        &["quantize", "nano_llama", "-s", "mx9", "-o", "mx9", "--json"],
    ] {
        assert!(said(args).contains(words.as_str()), "{args:?}: {}", said(args));
    }
    let end = place.succeed(&["quantize", "nano_llama", "-s", "int16:channel", "-o", "int16"]).stderr;
    assert!(end.contains(&format!("use              {words} but as floats\n")), "{end}");
    assert!(include_str!("../../../../docs/reference/checkpoint-formats.md").contains(words.as_str()));
    // No format points to another that has no place either.
    for format in ["quark", "compressed-tensors", "awq", "gptq", "fp8"] {
        let run = place.run(&["plan", "nano_llama", "-s", "mxint8", "--format", format]);
        assert!(run.code == Some(1) && run.stderr.contains(words.as_str()), "{format}: {run:?}");
        assert!(run.stderr.ends_with("hint: use --format fake\n"), "{format}: {run:?}");
        assert_eq!(run.stderr.matches("--format fake").count(), 1, "{format}: {run:?}");
    }
    // What is done already is no advice.
    assert!(!end.contains("--format fake"), "{end}");
}

#[test]
fn low_bit_per_tensor_scheme_gives_a_warning() {
    let place = Place::new();
    for (scheme, finer) in
        [("int4", "int4:g128"), ("uint4:tensor:zp", "uint4:g128:zp"), ("e2m1:tensor", "e2m1:g32:e8m0")]
    {
        let plan = place.succeed(&["plan", "nano_llama", "-s", scheme, "--format", "fake"]).stderr;
        assert!(plan.contains("single scale") && plan.contains(&format!("`{finer}`")), "{scheme}: {plan}");
    }
    let run = place.succeed(&["quantize", "nano_llama", "-s", "int4", "-o", "out"]).stderr;
    assert!(run.contains("`int4:tensor` gives each weight a single scale") && run.contains("`int4:g128`"), "{run}");
    for scheme in ["int4:g128", "int4:channel", "int8", "e4m3"] {
        let plan = place.succeed(&["plan", "nano_llama", "-s", scheme, "--weights-only"]).stderr;
        assert!(!plan.contains("single scale"), "{scheme}: {plan}");
    }
}

#[test]
fn every_scheme_succeeds_or_needs_data() {
    let place = Place::new();
    let schemes = place.succeed(&["list", "schemes", "--json"]).json();
    // Schemes that no loader reads are refused before data are asked for.
    let is_unread = |name: &str| name.starts_with("amdfp4_global");
    for row in schemes["rows"].as_array().unwrap() {
        let name = row["name"].as_str().unwrap();
        let run = place.run(&["quantize", "nano_llama", "--scheme", name, "-o", name, "--json"]);
        if row["calibrated"] == true && !is_unread(name) {
            assert_eq!(run.code, Some(2), "{name}: {run:?}");
            assert!(run.json()["error"]["hint"].as_str().unwrap().contains("--weights-only"));
            assert!(!place.path(name).exists());
        }
        let run = if row["calibrated"] == true {
            let weights = ["quantize", "nano_llama", "--scheme", name, "-o", name, "--json", "--weights-only"];
            let unread: &[&str] = if is_unread(name) { &["--no-verify"] } else { &[] };
            place.run(&[&weights, unread].concat())
        } else {
            run
        };
        assert_eq!(run.code, Some(0), "{name}: {run:?}");
        let done = run.json();
        assert_eq!(done["format"], row["format"], "{name}");
        if row["format"] == "gguf" {
            assert!(place.path(name).is_file() && done["quantized_layers"].is_number(), "{name}: {done}");
            continue;
        }
        assert_eq!((&done["quantized_layers"], &done["kept_tensors"]), (&28.into(), &11.into()), "{name}");
        assert_eq!(names(&place.path(name)), FILES, "{name}");
    }
}

#[test]
fn output_bytes_do_not_depend_on_threads() {
    let place = Place::empty();
    let model = MadeModel { layers: 2, hidden: 256, intermediate: 512, vocabulary: 300, max_shard_size: 1_000_000 };
    model.write(&place.path("model"));
    for scheme in ["int4_wo_128", "uint4:g64:zp", "mxfp4", "NVFP4A16", "int8:tensor", "ptpc_fp8", "mx9", "int4_fp8"] {
        let quantize = |threads: &str| {
            let out = format!("out{threads}");
            place.succeed(&["quantize", "model", "-s", scheme, "--threads", threads, "-o", &out, "--overwrite"]);
            contents(&place.path(&out))
        };
        let one = quantize("1");
        assert!(one == quantize("2") && one == quantize("5"), "{scheme}");
    }
}

#[test]
fn output_is_replaced_only_when_asked() {
    let place = Place::new();
    let quantize = |more: &[&str]| place.run(&[&["quantize", "nano_llama", "-o", "out", "--scheme"], more].concat());
    assert_eq!(quantize(&["mxfp4"]).code, Some(0));
    let before = contents(&place.path("out"));
    let refused = quantize(&["ptpc_fp8"]);
    assert_eq!(refused.code, Some(1));
    assert!(refused.stderr.contains("--overwrite"), "{}", refused.stderr);
    assert_eq!(contents(&place.path("out")), before);
    assert_eq!(quantize(&["ptpc_fp8", "--overwrite"]).code, Some(0));
    assert_eq!(names(&place.path("out")), FILES);
    assert_eq!(names(&place.path("")), ["nano_llama", "out"]);
}

#[test]
fn missing_parent_directories_are_created() {
    let place = Place::new();
    let run = place.succeed(&["quantize", "nano_llama", "--scheme", "mxfp4", "-o", "a/b/out"]);
    assert!(run.stdout.trim_end().ends_with("a/b/out"));
    assert_eq!(names(&place.path("a/b/out")), FILES);
}

#[test]
fn file_in_place_of_a_parent_is_reported() {
    let place = Place::new();
    place.write("file", "");
    let run = place.run(&["quantize", "nano_llama", "--scheme", "mxfp4", "-o", "file/out"]);
    assert_eq!((run.code, run.stdout.as_str()), (Some(2), ""));
    assert!(run.stderr.starts_with("error: cannot ") && run.stderr.contains("not a directory"), "{}", run.stderr);
}

#[cfg(unix)]
#[test]
fn unwritable_parent_is_reported() {
    use std::os::unix::fs::PermissionsExt;
    let place = Place::new();
    let parent = place.path("parent");
    fs::create_dir(&parent).unwrap();
    fs::set_permissions(&parent, fs::Permissions::from_mode(0o555)).unwrap();
    if fs::write(parent.join("probe"), "").is_ok() {
        return; // The superuser may write anywhere.
    }
    let run = place.run(&["quantize", "nano_llama", "--scheme", "mxfp4", "-o", "parent/out"]);
    assert_eq!((run.code, run.stdout.as_str()), (Some(1), ""));
    assert!(run.stderr.contains("parent"), "{}", run.stderr);
}

#[test]
fn shards_respect_the_maximum_size() {
    let place = Place::new();
    let args = ["quantize", "nano_llama", "--scheme", "int8:channel", "--max-shard-size", "600kB", "-o", "out"];
    place.succeed(&args);
    let shards: Vec<u64> = contents(&place.path("out"))
        .into_iter()
        .filter(|(name, _)| name.ends_with(".safetensors"))
        .map(|(_, bytes)| bytes.len() as u64)
        .collect();
    // The header comes on top.
    assert!(shards.len() >= 3 && shards.iter().all(|size| *size < 610_000), "{shards:?}");
    assert!(place.path("out/model.safetensors.index.json").exists());
    place.succeed(&["inspect", "out"]);
}

#[test]
fn recipe_file_equals_options() {
    let place = Place::new();
    let recipe = "version = 1\nscheme = \"ptpc_fp8\"\nexclude = [\"*.layers.3.*\"]\n\n\
                  [[override]]\nlayers = \"*.down_proj\"\nscheme = \"int8:channel\"\n";
    place.write("recipe.toml", recipe);
    place.succeed(&["quantize", "nano_llama", "--recipe", "recipe.toml", "-o", "by_file"]);
    let options = ["--scheme", "ptpc_fp8", "--exclude", "*.layers.3.*", "--override", "*.down_proj=int8:channel"];
    place.succeed(&[&["quantize", "nano_llama", "-o", "by_options"], &options[..]].concat());
    assert_eq!(contents(&place.path("by_file")), contents(&place.path("by_options")));

    // In version 2, the override is the last match for the third layer too.
    let notices =
        place.succeed(&["plan", "nano_llama", "--recipe", "recipe.toml", "--json"]).json()["notices"].to_string();
    assert!(notices.contains("recipe.toml has version 1; to upgrade, write `version = 2`"), "{notices}");
    place.write("recipe.toml", &recipe.replace("version = 1", "version = 2"));
    place.succeed(&["quantize", "nano_llama", "--recipe", "recipe.toml", "-o", "by_new_file"]);
    let rules = ["--override", "*.layers.3.*=keep", "--override", "*.down_proj=int8:channel"];
    place.succeed(&[&["quantize", "nano_llama", "-s", "ptpc_fp8", "-o", "by_rules"], &rules[..]].concat());
    assert_eq!(contents(&place.path("by_new_file")), contents(&place.path("by_rules")));
    assert_ne!(contents(&place.path("by_new_file")), contents(&place.path("by_file")));
}

#[test]
fn recipes_of_other_tools_give_identical_output() {
    let place = Place::new();
    let options =
        ["-s", "int4:g64", "--override", "re:.*down_proj$=int8:channel", "-x", "lm_head", "-x", "*.layers.0.*"];
    place.succeed(
        &[&["quantize", "nano_llama", "--format", "compressed-tensors", "-o", "options"], &options[..]].concat(),
    );
    let yaml = "quant_stage:\n  quant_modifiers:\n    QuantizationModifier:\n      \
                ignore: [lm_head, 're:.*\\.layers\\.0\\..*', 're:vision_tower.*']\n      config_groups:\n        group_0:\n          \
                targets: [Linear]\n          weights: {num_bits: 4, group_size: 64, strategy: group}\n        group_1:\n          \
                targets: ['re:.*down_proj$']\n          weights: {num_bits: 8, strategy: channel}\n";
    place.write("recipe.yaml", yaml);
    std::fs::copy(place.path("options/config.json"), place.path("config.json")).unwrap();
    // The content decides: the name says nothing.
    std::fs::copy(place.path("recipe.yaml"), place.path("recipe.toml")).unwrap();
    for file in ["recipe.yaml", "recipe.toml", "config.json"] {
        place.succeed(&["quantize", "nano_llama", "--recipe", file, "-o", "again", "--overwrite"]);
        assert_eq!(contents_but_card(&place.path("again")), contents_but_card(&place.path("options")), "{file}");
        let card = fs::read_to_string(place.path("again/README.md")).unwrap();
        place.write("of_card.toml", crate::model_card::block(&card, "toml"));
        place.succeed(&["quantize", "nano_llama", "--recipe", "of_card.toml", "-o", "repeated", "--overwrite"]);
        assert_eq!(contents_but_card(&place.path("repeated")), contents_but_card(&place.path("options")), "{card}");
    }
    place.write("recipe.yaml", &yaml.replace("num_bits: 4", "num_bits: 4, actorder: group"));
    let run = place.run(&["plan", "nano_llama", "--recipe", "recipe.yaml"]);
    let named =
        "recipe.yaml: quant_stage.quant_modifiers.QuantizationModifier.config_groups.group_0.weights.actorder: ";
    assert!(run.code == Some(1) && run.stderr.contains(named), "{run:?}");
}

#[test]
fn config_of_an_output_is_a_recipe() {
    let place = Place::new();
    place.succeed(&["quantize", "nano_llama", "--scheme", "uint4_wo_64", "--exclude", "*.layers.1.*", "-o", "first"]);
    place.succeed(&["quantize", "nano_llama", "--recipe", "first/config.json", "-o", "again"]);
    assert_eq!(contents_but_card(&place.path("first")), contents_but_card(&place.path("again")));
}

#[test]
fn single_file_is_quantized_with_its_neighbouring_files() {
    let place = Place::new();
    place.succeed(&["quantize", "nano_llama/model.safetensors", "--scheme", "W4A16", "-o", "out", "--quiet"]);
    place.succeed(&["quantize", "nano_llama", "--scheme", "W4A16", "-o", "of_directory", "--quiet"]);
    assert_eq!(contents(&place.path("out")), contents(&place.path("of_directory")));
    assert!(names(&place.path("out")).contains(&"tokenizer.json".to_owned()));
}

#[test]
fn weights_without_config_are_not_a_model() {
    let place = Place::new();
    std::fs::rename(place.path("nano_llama/model.safetensors"), place.path("bare.safetensors")).unwrap();
    let refused = place.run(&["quantize", "bare.safetensors", "--scheme", "W4A16", "--format", "quark", "-o", "out"]);
    assert_eq!(refused.code, Some(1));
    assert!(refused.stderr.contains("--format quark needs a config.json"), "{refused:?}");
    assert!(refused.stderr.contains("--format tensors"), "{refused:?}");

    let options = ["bare.safetensors", "--scheme", "W4A16"];
    let plan = place.succeed(&[&["plan"], &options[..]].concat());
    assert!(plan.stdout.contains("format tensors") && plan.stdout.contains("no runtime, as a model"), "{plan:?}");
    let run = place.succeed(&[&["quantize", "-o", "out"], &options[..]].concat());
    assert_eq!(run.stderr.matches("no runtime loads").count(), 2, "{run:?}");
    assert_eq!(names(&place.path("out")), ["kvant_manifest.json", "model.safetensors"]);
    let verified = place.succeed(&["verify", "out"]);
    assert!(verified.stdout.contains("no runtime loads them as a model"), "{verified:?}");
    let found = place.succeed(&["inspect", "out", "--json"]).json();
    let layer = &found["quantization"]["config"]["layers"]["model.layers.0.mlp.up_proj"];
    assert_eq!((&layer["scheme"], &layer["dtype"]), (&"int4:g128".into(), &"int4".into()));
    assert_eq!((&layer["shape"], &layer["group"]), (&serde_json::json!([384, 128]), &serde_json::json!([1, 128])));

    // The codes stand for the values that plain floats would have.
    place.succeed(&["convert", "out", "--to", "float", "-o", "floats"]);
    place.succeed(&[&["quantize", "--format", "fake", "-o", "fake"], &options[..]].concat());
    assert_eq!(contents(&place.path("floats")), contents(&place.path("fake")));
    place.succeed(&["verify", "floats"]);
}

#[test]
fn file_for_comfyui_is_whole_and_describes_its_layers() {
    let place = Place::new();
    std::fs::rename(place.path("nano_llama/model.safetensors"), place.path("bare.safetensors")).unwrap();
    // Its loader takes no shards.
    let options = ["bare.safetensors", "--format", "comfyui", "--max-shard-size", "100KB"];
    let run = place.succeed(&[&["quantize", "--scheme", "e4m3:tensor", "-o", "out"], &options[..]].concat());
    assert!(run.stderr.contains("load it with     ComfyUI: cp "), "{run:?}");
    assert_eq!(names(&place.path("out")), ["kvant_manifest.json", "model.safetensors"]);
    let verified = place.succeed(&["verify", "out", "--for", "comfyui"]);
    assert!(verified.stdout.contains("(comfyui): 0 errors, 0 warnings,"), "{verified:?}");
    let found = place.succeed(&["inspect", "out", "--json"]).json();
    let layer = &found["quantization"]["config"]["layers"]["model.layers.0.mlp.up_proj"];
    let stated = serde_json::json!({ "format": "float8_e4m3fn", "full_precision_matrix_mult": true });
    assert_eq!((&found["quantization"]["method"], layer), (&"comfyui".into(), &stated));

    let converted = place.succeed(&["convert", "out", "--to", "float", "-o", "floats", "--json"]).json();
    assert_eq!(converted["format"], "float", "{converted}");

    for (scheme, told) in
        [("int4:g32", "ComfyUI's layout has no `int4:g32:f32`"), ("e4m3:channel", "has no `e4m3:channel")]
    {
        let refused = place.run(&[&["plan", "--scheme", scheme], &options[..]].concat());
        assert!(refused.code == Some(1) && refused.stderr.contains(told), "{refused:?}");
        assert!(refused.stderr.contains("hint: use e4m3:tensor, int8:channel"), "{refused:?}");
    }
    std::fs::rename(place.path("bare.safetensors"), place.path("nano_llama/model.safetensors")).unwrap();
    let refused = place.run(&["plan", "nano_llama", "--scheme", "e4m3:tensor", "--format", "comfyui"]);
    assert!(refused.code == Some(1) && refused.stderr.contains("without a config.json"), "{refused:?}");
}

#[test]
fn auto_map_code_is_copied() {
    let place = Place::new();
    let map = "\"auto_map\": {\"AutoModelForCausalLM\": \"modeling_x.X\"}, \"vocab_size\": 2048";
    replace(&place, "nano_llama/config.json", "\"vocab_size\": 2048", map);
    let args = ["quantize", "nano_llama", "--scheme", "int4_wo_128", "-o", "out"];
    for command in [&args[..], &["plan", "nano_llama", "--scheme", "int4_wo_128"]] {
        let refused = place.run(command);
        assert_eq!(refused.code, Some(1));
        assert!(
            refused.stderr.contains("modeling_x.py") && refused.stderr.contains("config.json names it"),
            "{refused:?}"
        );
    }
    assert!(!place.path("out").exists());
    place.write("nano_llama/modeling_x.py", "from .parts.norm import Norm\n");
    std::fs::create_dir(place.path("nano_llama/parts")).unwrap();
    place.write("nano_llama/parts/norm.py", "raise SystemExit\n");
    let run = place.succeed(&args);
    assert!(run.stderr.contains("trust_remote_code"), "{run:?}");
    for file in ["modeling_x.py", "parts/norm.py"] {
        let read = |model: &str| std::fs::read(place.path(&format!("{model}/{file}"))).unwrap();
        assert_eq!(read("out"), read("nano_llama"));
    }
    std::fs::remove_file(place.path("out/parts/norm.py")).unwrap();
    let verified = place.run(&["verify", "out"]);
    assert_eq!(verified.code, Some(1));
    assert!(verified.stdout.contains("parts/norm.py"), "{verified:?}");
}

#[test]
fn module_folders_of_sentence_transformers_are_in_the_output() {
    let place = Place::new();
    let modules = r#"[{"idx": 0, "path": "", "type": "sentence_transformers.models.Transformer"},
                      {"idx": 1, "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}]"#;
    place.write("nano_llama/modules.json", modules);
    std::fs::create_dir(place.path("nano_llama/1_Pooling")).unwrap();
    place.write("nano_llama/1_Pooling/config.json", r#"{"word_embedding_dimension": 128}"#);
    place.succeed(&["quantize", "nano_llama", "--scheme", "int4:g32", "-o", "out"]);
    for file in ["modules.json", "1_Pooling/config.json"] {
        let read = |model: &str| std::fs::read(place.path(&format!("{model}/{file}"))).unwrap();
        assert_eq!(read("out"), read("nano_llama"), "{file}");
    }
    let manifest = std::fs::read(place.path("out/kvant_manifest.json")).unwrap();
    let manifest: serde_json::Value = serde_json::from_slice(&manifest).unwrap();
    assert!(manifest["files"]["1_Pooling/config.json"].is_object(), "{manifest}");
}

#[test]
fn quiet_and_json_output() {
    let place = Place::new();
    let quiet = place.succeed(&["quantize", "nano_llama", "--scheme", "mxfp4", "-o", "out", "--quiet"]);
    assert_eq!((quiet.stdout.lines().count(), quiet.stderr.as_str()), (1, ""));
    assert!(quiet.stdout.trim_end().ends_with("out"));
    let json = place.succeed(&["quantize", "nano_llama", "--scheme", "mxfp4", "-o", "out2", "--json"]);
    assert_eq!(json.stdout.lines().count(), 1);
    let done = json.json();
    assert!(done["output"].as_str().unwrap().ends_with("out2") && done["seconds"].as_f64().unwrap() > 0.0);
    assert_eq!((&done["resumed_jobs"], &done["recipe"]["version"]), (&0.into(), &2.into()));
}

#[test]
fn progress_lines_when_asked() {
    let place = Place::new();
    let quantize = |when: &str| {
        let args = ["quantize", "nano_llama", "-s", "mxfp4", "-o", "out", "--overwrite", "-q", "--progress", when];
        place.succeed(&args).stderr
    };
    assert!(quantize("always").contains(" %  "));
    assert_eq!(quantize("auto") + &quantize("never"), "");
}

#[test]
fn non_finite_weights_are_refused_by_name() {
    let place = Place::new();
    let path = place.path("nano_llama/model.safetensors");
    let mut bytes = fs::read(&path).unwrap();
    let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let json: serde_json::Value = serde_json::from_slice(&bytes[8..8 + header]).unwrap();
    let name = "model.layers.2.mlp.up_proj.weight";
    let at = 8 + header + json[name]["data_offsets"][0].as_u64().unwrap() as usize + 1000;
    bytes[at..at + 2].copy_from_slice(&0x7FC0u16.to_le_bytes());
    fs::write(&path, bytes).unwrap();
    let run = place.run(&["quantize", "nano_llama", "--scheme", "int4_wo_128", "-o", "out"]);
    assert_eq!((run.code, run.stdout.as_str()), (Some(1), ""));
    assert!(run.stderr.contains(name) && run.stderr.contains("hint: "), "{}", run.stderr);
    assert!(!place.path("out").exists());
}

#[test]
fn scales_beyond_f16_are_refused() {
    let place = Place::new();
    let path = place.path("nano_llama/model.safetensors");
    let mut bytes = fs::read(&path).unwrap();
    let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let json: serde_json::Value = serde_json::from_slice(&bytes[8..8 + header]).unwrap();
    let name = "model.layers.2.mlp.down_proj.weight";
    let at = 8 + header + json[name]["data_offsets"][0].as_u64().unwrap() as usize;
    // 1e6 and -3e6 in bfloat16: beyond f16 as they are, and with 4 bits so are their scales.
    bytes[at..at + 2].copy_from_slice(&0x4974u16.to_le_bytes());
    bytes[at + 768..at + 770].copy_from_slice(&0xCA37u16.to_le_bytes());
    fs::write(&path, bytes).unwrap();
    place.write("text.txt", &"Every word counts, and the same word again. ".repeat(40));
    let calibrated = ["--calib", "text.txt", "--num-samples", "4", "--seq-len", "32"];
    for options in [
        &["-s", "int4:g32", "-f", "awq", "-o", "out"][..],
        &["-s", "int4:g32", "-f", "gptq", "-o", "out"],
        &["-s", "int4:g32:f16", "-o", "out"],
        &["-s", "int4:g32:f16", "-f", "fake", "-o", "out"],
        &[&["-s", "int4:g32", "-f", "awq", "-a", "awq,gptq", "-o", "out"], &calibrated[..]].concat(),
        &["-s", "F16", "-o", "out.gguf"],
        &["-s", "Q4_0", "-o", "out.gguf"],
    ] {
        let run = place.run(&[&["quantize", "nano_llama"], options].concat());
        assert_eq!((run.code, run.stdout.as_str()), (Some(1), ""), "{options:?}: {run:?}");
        assert!(
            run.stderr.contains(name) && run.stderr.contains("e6") | run.stderr.contains("e5"),
            "{options:?}: {run:?}"
        );
        assert!(run.stderr.contains("--exclude"), "{options:?}: {run:?}");
        assert!(!place.path("out").exists() && !place.path("out.gguf").exists(), "{options:?}");
    }
    let excluded = ["-x", "*.layers.2.mlp.down_proj"];
    place.succeed(&[&["quantize", "nano_llama", "-s", "int4:g32", "-f", "awq", "-o", "awq"], &excluded[..]].concat());
    place.succeed(&["quantize", "nano_llama", "-s", "int4:g32", "-o", "quark"]);
    place.succeed(&["quantize", "nano_llama", "-s", "Q8_0", "-o", "q8.gguf"]);
}

/// GGUF files have no place for the codes of excluded layers; formats with such a place keep them.
#[test]
fn excluded_layers_of_quantized_sources_are_noted_or_refused_for_gguf_files() {
    let place = Place::new();
    place.succeed(&["quantize", "nano_llama", "-s", "FP8_DYNAMIC", "-o", "fp8"]);
    place.write("text.txt", &"A text to calibrate with, of some length. ".repeat(40));
    let data = ["--calib", "text.txt", "--num-samples", "2", "--seq-len", "32"];
    let scheme = ["-s", "fp8", "-f", "compressed-tensors", "-o", "static"];
    place.succeed(&[&["quantize", "nano_llama"], &scheme[..], &data].concat());

    let excluded = ["--requantize", "-x", "*down_proj", "-o", "out.gguf"];
    let told = place.succeed(&[&["quantize", "fp8", "-s", "Q4_0"], &excluded[..]].concat()).stderr;
    assert!(
        told.contains("`blk.0.ffn_down.weight` and 3 more are excluded and become floats: this file has no place"),
        "{told}"
    );
    let codes = ["quantize", "static", "-s", "int4:g32", "-f", "gguf"];
    let refused = place.run(&[&codes, &excluded[..4], &["other.gguf"]].concat());
    let told = "cannot be kept in --format gguf: its activations have static scales, which are only kept where all";
    assert!(refused.code == Some(1) && refused.stderr.contains(told), "{refused:?}");
}

#[test]
fn schemes_that_a_format_does_not_pack_are_noted() {
    let place = Place::new();
    let told = place.succeed(&["quantize", "nano_llama", "-s", "int2:g64", "-o", "out"]).stderr;
    assert!(told.contains("`int2:g64` takes 32 bits for each weight in the format quark"), "{told}");
    for line in [&["-s", "int2:g64", "-f", "compressed-tensors"][..], &["-s", "uint2:g64:zp"]] {
        let told = place.succeed(&[&["plan", "nano_llama"], line].concat());
        assert!(!told.stderr.contains("32 bits") && !told.stdout.contains("32 bits"), "{told:?}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn paths_need_not_be_utf8() {
    use std::os::unix::ffi::OsStrExt;
    let place = Place::new();
    let odd = std::ffi::OsStr::from_bytes(b"odd\xff");
    fs::rename(place.path("nano_llama"), place.path("").join(odd)).unwrap();
    for args in [
        &["plan", "-s", "mxfp4", "--json"][..],
        &["inspect", "--json"],
        &["quantize", "-s", "mxfp4", "-o", "out", "--json"],
    ] {
        let output = place.command(args).arg(odd).output().unwrap();
        assert!(output.status.success(), "{args:?}: {output:?}");
    }
    let output = place.command(&["quantize", "out", "-s", "mxfp4", "--json", "-o"]).arg(odd).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "what is quantized already is refused: {output:?}");
    let output = place.command(&["inspect", "--json"]).arg(place.path("").join(odd)).output().unwrap();
    assert!(output.status.success(), "{output:?}");
}
