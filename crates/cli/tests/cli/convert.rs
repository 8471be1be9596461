//! `kvant convert` at the command line: options without effect, and existing files at the output path.

use crate::kvant::{Place, names};
use std::fs;

/// A directory with a quantized checkpoint in it, as `int4`.
fn place() -> Place {
    let place = Place::new();
    place.succeed(&["quantize", "nano_llama", "--scheme", "int4:g32:f16", "--format", "quark", "-o", "int4"]);
    place
}

#[test]
fn file_conversion_refuses_checkpoint_options_but_accepts_sync() {
    let place = place();
    for (target, file) in [("gguf", "out.gguf"), ("onnx", "out.onnx")] {
        for option in [&["--max-shard-size", "1GB"][..], &["--dtype", "bf16"]] {
            let refused = place.run(&[&["convert", "int4", "--to", target, "-o", file], option].concat());
            assert_eq!(refused.code, Some(2), "{refused:?}");
            assert!(refused.stderr.contains(option[0]) && refused.stderr.contains("hint"), "{}", refused.stderr);
        }
        place.succeed(&["convert", "int4", "--to", target, "-o", file, "--sync"]);
        assert!(place.path(file).is_file());
    }
    assert_eq!(names(&place.path("")), ["int4", "nano_llama", "out.gguf", "out.onnx"]);
}

#[test]
fn codes_are_written_to_gguf_alone_or_beside_checkpoints() {
    let place = Place::new();
    place.write("text.txt", &"The iterator yields every element of the slice, in order. ".repeat(200));
    let scheme = ["quantize", "nano_llama", "--scheme", "int4:g32", "--algorithm", "awq,gptq"];
    let data = ["--calib", "text.txt", "--num-samples", "4", "--seq-len", "32"];
    place.succeed(&[&scheme[..], &data, &["--format", "gguf", "-o", "alone.gguf"]].concat());
    place.succeed(&[&scheme[..], &data, &["--format", "awq", "--format", "gguf", "-o", "both"]].concat());
    assert_eq!(names(&place.path("")), ["alone.calibration.json", "alone.gguf", "both", "nano_llama", "text.txt"]);
    assert_eq!(names(&place.path("both/gguf")), ["kvant_manifest.json", "model.calibration.json", "model.gguf"]);
    let (alone, beside) =
        (fs::read(place.path("alone.gguf")).unwrap(), fs::read(place.path("both/gguf/model.gguf")).unwrap());
    assert!(alone == beside, "the same codes, and the name of the model that was quantized");
    place.succeed(&["convert", "both/awq", "--to", "gguf", "-o", "converted.gguf"]);
    let compare = ["eval", "alone.gguf", "--reference", "both/awq", "--data", "text.txt", "--seq-len", "64", "--json"];
    let found: serde_json::Value = serde_json::from_str(&place.succeed(&compare).stdout).unwrap();
    // The same products, which processors with AMX sum in another order where weights are stored in another type.
    assert!(found["kl_mean"].as_f64().unwrap() < 1e-6, "{found}");
}

#[test]
fn codes_without_gguf_blocks_are_refused_first() {
    let place = Place::new();
    for (scheme, options, reason) in [
        ("int8:g16", &[][..], "not a multiple of 32"),
        ("fp8", &["--weights-only"][..], "no blocks of"),
        ("Q4_K_M", &["--format", "awq"][..], "only to GGUF"),
    ] {
        let line =
            [&["quantize", "nano_llama", "--scheme", scheme, "--format", "gguf", "-o", "out"][..], options].concat();
        let refused = place.run(&line);
        assert_ne!(refused.code, Some(0), "{line:?}");
        assert!(refused.stderr.contains(reason) && refused.stderr.contains("hint"), "{}", refused.stderr);
    }
    assert_eq!(names(&place.path("")), ["nano_llama"]);
}

/// The journal of an output that is whole, of a run with another recipe.
fn whole(place: &Place, journal: &str) {
    place.write(journal, "{\"kvant_journal\":1,\"plan\":\"another\"}\n{\"whole\":true}\n");
}

#[test]
fn conflicting_further_outputs_are_refused_first() {
    let place = place();
    fs::create_dir(place.path("out")).unwrap();
    fs::rename(place.path("int4"), place.path("out/awq")).unwrap();
    whole(&place, "out/awq.partial.journal");
    let quantize =
        ["quantize", "nano_llama", "--scheme", "int4:g32:f16", "--format", "quark", "--format", "awq", "-o", "out"];
    let refused = place.run(&quantize);
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.stderr.contains("awq exists already"), "{}", refused.stderr);
    assert_eq!(names(&place.path("out")), ["awq", "awq.partial.journal"]);
    place.succeed(&[&quantize[..], &["--overwrite"]].concat());
    assert_eq!(names(&place.path("out")), ["awq", "quark"]);
}

#[test]
fn foreign_graph_is_kept_despite_interrupted_work() {
    let place = place();
    fs::rename(place.path("int4"), place.path(".model.onnx.kvant-checkpoint")).unwrap();
    whole(&place, ".model.onnx.kvant-checkpoint.partial.journal");
    place.write("model.onnx", "mine");
    let refused =
        place.run(&["quantize", "nano_llama", "--scheme", "int4:g32:f16", "--format", "onnx", "-o", "model.onnx"]);
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(
        refused.stderr.contains("model.onnx exists") && refused.stderr.contains("--overwrite"),
        "{}",
        refused.stderr
    );
    assert_eq!(fs::read_to_string(place.path("model.onnx")).unwrap(), "mine");
}

/// Blocks that are copied are not quantized, and are looked at nevertheless.
#[test]
fn non_finite_blocks_of_a_gguf_source_are_refused_unless_verification_is_skipped() {
    let place = place();
    assert_eq!(place.run(&["quantize", "nano_llama", "-s", "Q8_0", "-o", "made.gguf"]).code, Some(0));
    let whole = fs::read(place.path("made.gguf")).unwrap();
    let file = kvant_container::gguf::GgufFile::open(&place.path("made.gguf")).unwrap();
    let block = file.tensor("blk.1.ffn_down.weight").unwrap().bytes()[..34].to_vec();
    drop(file);
    let mut bytes = whole.clone();
    let at = bytes.windows(34).position(|window| window == block).unwrap();
    bytes[at..at + 2].copy_from_slice(&0x7c00_u16.to_le_bytes());
    fs::write(place.path("damaged.gguf"), bytes).unwrap();
    let line = ["convert", "damaged.gguf", "--to", "gguf", "-o", "out.gguf"];
    let run = place.run(&line);
    assert_eq!(run.code, Some(1), "{run:?}");
    assert!(run.stderr.contains("blk.1.ffn_down.weight: 1 block scale is NaN or infinite"), "{}", run.stderr);
    assert!(!place.path("out.gguf").exists());
    assert_eq!(place.run(&[&line[..], &["--no-verify"]].concat()).code, Some(0));
    assert_eq!(place.run(&["convert", "made.gguf", "--to", "gguf", "-o", "again.gguf"]).code, Some(0));
    assert!(fs::read(place.path("again.gguf")).unwrap() == whole);
}

#[test]
fn gguf_files_are_split_into_several_and_read_back() {
    let place = Place::new();
    place.write("text.txt", &"The iterator yields every element of the slice, in order. ".repeat(50));
    place.succeed(&["quantize", "nano_llama", "-s", "Q8_0", "-o", "whole.gguf"]);
    let split = ["convert", "whole.gguf", "--to", "gguf", "--max-shard-size", "300KB", "-o", "split"];
    let first = place.succeed(&split).stdout;
    let files = names(&place.path("split"));
    let (parts, others): (Vec<&String>, Vec<&String>) = files.iter().partition(|name| name.ends_with(".gguf"));
    assert!(parts.len() > 2 && others == ["kvant_manifest.json"], "{files:?}");
    assert!(first.trim_end().ends_with(&format!("split-00001-of-{:05}.gguf", parts.len())), "{first}");
    let sizes = parts.iter().map(|name| fs::metadata(place.path("split").join(name)).unwrap().len());
    assert!(sizes.skip(1).all(|size| size < 310_000), "{files:?}");
    place.succeed(&["verify", first.trim_end()]);
    let compare =
        ["eval", first.trim_end(), "--reference", "whole.gguf", "--data", "text.txt", "--seq-len", "64", "--json"];
    let found: serde_json::Value = serde_json::from_str(&place.succeed(&compare).stdout).unwrap();
    assert_eq!(found["kl_mean"].as_f64(), Some(0.0), "{found}");
    place.succeed(&["convert", first.trim_end(), "--to", "gguf", "-o", "again.gguf"]);
    assert!(fs::read(place.path("again.gguf")).unwrap() == fs::read(place.path("whole.gguf")).unwrap());
    let existing = place.run(&split);
    assert!(existing.code != Some(0) && existing.stderr.contains("split"), "{existing:?}");
    let named = place.run(&["convert", "whole.gguf", "--to", "gguf", "--max-shard-size", "300KB", "-o", "out.gguf"]);
    assert!(named.code == Some(2) && named.stderr.contains("choose a name without .gguf"), "{named:?}");
}

#[test]
fn gguf_files_are_quantized_into_several() {
    let place = Place::new();
    place.write("text.txt", &"The iterator yields every element of the slice, in order. ".repeat(50));
    fs::create_dir(place.path("converted")).unwrap();
    place.succeed(&["quantize", "nano_llama", "-s", "Q8_0", "-o", "whole.gguf"]);
    place.succeed(&["convert", "whole.gguf", "--to", "gguf", "--max-shard-size", "300KB", "-o", "converted/split"]);
    let quantize = ["quantize", "nano_llama", "-s", "Q8_0", "--max-shard-size", "300KB"];
    let gate = ["--eval", "text.txt", "--seq-len", "32", "--max-kl", "1"];
    let first = place.succeed(&[&quantize[..], &gate, &["-o", "split"]].concat()).stdout;
    assert!(first.trim_end().contains("split-00001-of-"), "{first}");
    let files = names(&place.path("split"));
    assert!(files.iter().filter(|name| name.ends_with(".gguf")).count() > 2, "{files:?}");
    for name in files.iter().filter(|name| name.ends_with(".gguf")) {
        let [quantized, converted] =
            ["split", "converted/split"].map(|folder| fs::read(place.path(folder).join(name)).unwrap());
        assert!(quantized == converted, "{name}");
    }
    place.succeed(&["verify", first.trim_end()]);
    let plan = place.succeed(&[&["plan"], &quantize[1..], &["-o", "other"]].concat());
    assert!(plan.stdout.contains("Q8_0"), "{plan:?}");
    let named = place.run(&[&quantize[..], &["-o", "out.gguf"]].concat());
    assert!(named.code == Some(2) && named.stderr.contains("choose a name without .gguf"), "{named:?}");
    let existing = place.run(&[&quantize[..], &["-o", "split"]].concat());
    assert!(existing.code == Some(1) && existing.stderr.contains("split"), "{existing:?}");
    for codes in [&["-s", "int4:g32", "--format", "gguf"][..], &["-s", "Q4_0", "--algorithm", "gptq"]] {
        let line = [&["plan", "nano_llama", "--max-shard-size", "300KB"], codes].concat();
        let refused = place.run(&line);
        assert!(refused.code == Some(2) && refused.stderr.contains("kvant convert FILE --to gguf"), "{refused:?}");
    }
}

#[test]
fn floats_are_converted_to_another_type_of_floats() {
    let place = Place::new();
    let refused = place.run(&["convert", "nano_llama", "--to", "float", "-o", "out"]);
    assert!(refused.code == Some(1) && refused.stderr.contains("is in floats already"), "{refused:?}");
    assert!(refused.stderr.contains("--dtype") && !refused.stderr.contains("kvant quantize"), "{}", refused.stderr);
    let config = |name: &str| fs::read_to_string(place.path(&format!("{name}/config.json"))).unwrap();
    let own = ["bf16", "f16", "f32"].into_iter().find(|dtype| {
        let refused = place.run(&["convert", "nano_llama", "--to", "float", "--dtype", dtype, "-o", dtype]);
        refused.code == Some(1)
    });
    let own = own.unwrap();
    assert_eq!(own, "bf16", "{}", config("nano_llama"));
    let wide = place.succeed(&["convert", "nano_llama", "--to", "float", "--dtype", "f32", "-o", "wide"]);
    assert!(!wide.stderr.contains("rounded"), "{}", wide.stderr);
    assert!(config("wide").contains("float32"), "{}", config("wide"));
    let back = place.succeed(&["convert", "wide", "--to", "float", "--dtype", own, "-o", "back"]);
    assert!(back.stderr.contains("are rounded"), "{}", back.stderr);
    let weights = |name: &str| kvant_container::Checkpoint::open(&place.path(name)).unwrap();
    let (before, after) = (weights("nano_llama"), weights("back"));
    for tensor in before.tensors() {
        let found = after.tensor(tensor.name()).unwrap();
        assert!(found.dtype() == tensor.dtype() && found.bytes() == tensor.bytes(), "{}", tensor.name());
    }
    place.succeed(&["verify", "wide"]);
}
