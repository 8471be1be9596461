//! `kvant quantize`, from checkpoint to checkpoint.

use crate::kvant::{Place, contents, names};
use crate::made_model::MadeModel;
use std::fs;

const FILES: [&str; 5] =
    ["config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"];

#[test]
fn the_whole_dialogue() {
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
fn every_scheme_ends_well_or_is_refused_for_want_of_data() {
    let place = Place::new();
    let schemes = place.succeed(&["list", "schemes", "--json"]).json();
    for row in schemes.as_array().unwrap() {
        let name = row["name"].as_str().unwrap();
        let run = place.run(&["quantize", "nano_llama", "--scheme", name, "-o", name, "--json"]);
        if row["calibrated"] == true {
            assert_eq!(run.code, Some(2), "{name}: {run:?}");
            assert!(run.json()["error"]["hint"].as_str().unwrap().contains("--weights-only"));
            assert!(!place.path(name).exists());
        }
        let run = if row["calibrated"] == true {
            place.run(&["quantize", "nano_llama", "--scheme", name, "-o", name, "--json", "--weights-only"])
        } else {
            run
        };
        assert_eq!(run.code, Some(0), "{name}: {run:?}");
        let done = run.json();
        assert_eq!(done["export"], row["export"], "{name}");
        if row["export"] == "gguf" {
            assert!(place.path(name).is_file() && done["quantized_tensors"].is_number(), "{name}: {done}");
            continue;
        }
        assert_eq!((&done["quantized_layers"], &done["kept_tensors"]), (&28.into(), &11.into()), "{name}");
        assert_eq!(names(&place.path(name)), FILES, "{name}");
    }
}

#[test]
fn the_bytes_do_not_depend_on_threads() {
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
fn an_output_is_replaced_only_when_asked() {
    let place = Place::new();
    let quantize = |more: &[&str]| place.run(&[&["quantize", "nano_llama", "-o", "out", "--scheme"], more].concat());
    assert_eq!(quantize(&["mxfp4"]).code, Some(0));
    place.write("out/mine.txt", "kept until it is replaced");
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
fn missing_parents_are_made() {
    let place = Place::new();
    let run = place.succeed(&["quantize", "nano_llama", "--scheme", "mxfp4", "-o", "a/b/out"]);
    assert!(run.stdout.trim_end().ends_with("a/b/out"));
    assert_eq!(names(&place.path("a/b/out")), FILES);
}

#[test]
fn a_file_in_place_of_a_parent_is_reported() {
    let place = Place::new();
    place.write("file", "");
    let run = place.run(&["quantize", "nano_llama", "--scheme", "mxfp4", "-o", "file/out"]);
    assert_eq!((run.code, run.stdout.as_str()), (Some(1), ""));
    assert!(run.stderr.starts_with("error: cannot ") && run.stderr.contains("file"), "{}", run.stderr);
}

#[cfg(unix)]
#[test]
fn a_directory_without_permission_is_reported() {
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
fn shards_are_no_larger_than_asked() {
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
fn a_recipe_file_says_the_same_as_options() {
    let place = Place::new();
    let recipe = "version = 1\nscheme = \"ptpc_fp8\"\nexclude = [\"*.layers.3.*\"]\n\n\
                  [[override]]\nlayers = \"*.down_proj\"\nscheme = \"int8:channel\"\n";
    place.write("recipe.toml", recipe);
    place.succeed(&["quantize", "nano_llama", "--recipe", "recipe.toml", "-o", "by_file"]);
    let options = ["--scheme", "ptpc_fp8", "--exclude", "*.layers.3.*", "--override", "*.down_proj=int8:channel"];
    place.succeed(&[&["quantize", "nano_llama", "-o", "by_options"], &options[..]].concat());
    assert_eq!(contents(&place.path("by_file")), contents(&place.path("by_options")));
}

#[test]
fn the_configuration_of_an_output_is_a_recipe() {
    let place = Place::new();
    place.succeed(&["quantize", "nano_llama", "--scheme", "uint4_wo_64", "--exclude", "*.layers.1.*", "-o", "first"]);
    place.succeed(&["quantize", "nano_llama", "--recipe", "first/config.json", "-o", "again"]);
    assert_eq!(contents(&place.path("first")), contents(&place.path("again")));
}

#[test]
fn a_single_file_is_a_checkpoint() {
    let place = Place::new();
    place.succeed(&["quantize", "nano_llama/model.safetensors", "--scheme", "W4A16", "-o", "out", "--quiet"]);
    assert_eq!(names(&place.path("out")), ["model.safetensors"]);
}

#[test]
fn quiet_and_json() {
    let place = Place::new();
    let quiet = place.succeed(&["quantize", "nano_llama", "--scheme", "mxfp4", "-o", "out", "--quiet"]);
    assert_eq!((quiet.stdout.lines().count(), quiet.stderr.as_str()), (1, ""));
    assert!(quiet.stdout.trim_end().ends_with("out"));
    let json = place.succeed(&["quantize", "nano_llama", "--scheme", "mxfp4", "-o", "out2", "--json"]);
    assert_eq!(json.stdout.lines().count(), 1);
    let done = json.json();
    assert!(done["output"].as_str().unwrap().ends_with("out2") && done["seconds"].as_f64().unwrap() > 0.0);
    assert_eq!((&done["resumed_jobs"], &done["recipe"]["version"]), (&0.into(), &1.into()));
}

#[test]
fn progress_in_lines_when_asked() {
    let place = Place::new();
    let quantize = |when: &str| {
        let args = ["quantize", "nano_llama", "-s", "mxfp4", "-o", "out", "--overwrite", "-q", "--progress", when];
        place.succeed(&args).stderr
    };
    assert!(quantize("always").contains(" %  "));
    assert_eq!(quantize("auto") + &quantize("never"), "");
}

#[test]
fn weights_that_are_no_numbers_are_refused_by_name() {
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

#[cfg(target_os = "linux")]
#[test]
fn paths_need_not_be_text() {
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
