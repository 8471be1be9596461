//! Diffusers pipelines: which components are quantized, what goes along, how runs resume, and what is refused.

use crate::counts::graph_data;
use crate::json::check;
use crate::kvant::{Place, copy_dir, names, nano_llama, tensor_range};
use crate::made_model::MadeModel;
use serde_json::{Value, json};
use std::path::Path;

/// A component of diffusers with layers of this width.
fn write_component(dir: &Path, class: &str, hidden: usize) {
    let model = MadeModel { layers: 2, hidden, intermediate: 2 * hidden, vocabulary: 64, max_shard_size: u64::MAX };
    model.write(dir);
    std::fs::rename(dir.join("model.safetensors"), dir.join("diffusion_pytorch_model.safetensors")).unwrap();
    std::fs::write(dir.join("config.json"), json!({ "_class_name": class }).to_string()).unwrap();
}

/// A pipeline `pipe` with a transformer, a text encoder, a VAE, a scheduler and a tokenizer.
pub fn place() -> Place {
    let place = Place::new();
    let index = json!({
        "_class_name": "FluxPipeline",
        "transformer": ["diffusers", "FluxTransformer2DModel"],
        "text_encoder": ["transformers", "LlamaModel"],
        "vae": ["diffusers", "AutoencoderKL"],
        "scheduler": ["diffusers", "EulerDiscreteScheduler"],
        "image_encoder": [null, null],
    });
    std::fs::create_dir_all(place.path("pipe/scheduler")).unwrap();
    place.write("pipe/model_index.json", &index.to_string());
    place.write("pipe/README.md", "mine");
    place.write("pipe/scheduler/scheduler_config.json", "{}");
    write_component(&place.path("pipe/transformer"), "FluxTransformer2DModel", 256);
    write_component(&place.path("pipe/vae"), "AutoencoderKL", 256);
    copy_dir(&nano_llama(), &place.path("pipe/text_encoder"));
    place
}

fn by_name<'j>(report: &'j Value, name: &str) -> &'j Value {
    report["components"].as_array().unwrap().iter().find(|component| component["name"] == name).unwrap()
}

#[test]
fn pipelines_are_inspected() {
    let place = place();
    let found = check(&place, "inspect", &["inspect", "pipe"]);
    let names: Vec<&str> =
        found["components"].as_array().unwrap().iter().map(|component| component["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["text_encoder", "transformer", "vae"]);
    assert_eq!(by_name(&found, "transformer")["class"], "FluxTransformer2DModel");
    let bytes: u64 =
        ["text_encoder", "transformer", "vae"].iter().map(|n| by_name(&found, n)["bytes"].as_u64().unwrap()).sum();
    assert_eq!(found["bytes"].as_u64(), Some(bytes));
    assert_eq!(found["notices"], json!([]));
    let all = place.run(&["inspect", "pipe", "--all"]);
    assert!(all.stdout.contains("transformer/model.layers.0.self_attn.q_proj.weight"), "{}", all.stdout);
    std::fs::remove_dir_all(place.path("pipe/scheduler")).unwrap();
    let found = check(&place, "inspect", &["inspect", "pipe"]);
    assert!(found["notices"][0].as_str().unwrap().contains("scheduler"));
}

#[test]
fn large_components_are_quantized_and_the_rest_is_copied() {
    let place = place();
    let line = ["pipe", "--scheme", "int8:channel"];
    let plan = check(&place, "plan", &[&["plan"], &line[..]].concat());
    let report = check(&place, "quantize", &[&["quantize"], &line[..], &["-o", "out"]].concat());
    assert_eq!(plan["components"], report["components"]);
    assert_eq!(by_name(&report, "transformer")["format"], "torchao");
    assert_eq!(by_name(&report, "transformer")["loaders"], json!(["diffusers with torchao"]));
    assert!(by_name(&report, "vae")["reason"].as_str().unwrap().contains("AutoencoderKL"));
    let out = place.path("out");
    let made =
        ["README.md", "kvant_manifest.json", "model_index.json", "scheduler", "text_encoder", "transformer", "vae"];
    assert_eq!(names(&out), made);
    assert!(out.join("transformer/diffusion_pytorch_model.safetensors").exists());
    assert!(out.join("text_encoder/tokenizer.json").exists());
    let weights = "vae/diffusion_pytorch_model.safetensors";
    assert_eq!(std::fs::read(out.join(weights)).unwrap(), std::fs::read(place.path("pipe").join(weights)).unwrap());
    assert_eq!(names(&place.path(".")).len(), 3, "nothing is left beside the output");
    assert_eq!(check(&place, "verify", &["verify", "out"])["passes"], true);
    let table = place.succeed(&["plan", "pipe", "--scheme", "int8:channel"]).stdout;
    assert!(table.starts_with("FluxPipeline, 3 components") && table.contains("AutoencoderKL"), "{table}");

    // What was written is Kvant's to replace, but not with a file of the user's in it.
    let again = ["quantize", "pipe", "--component", "transformer=e4m3:channel", "-o", "out"];
    assert_eq!(place.run(&again).code, Some(1));
    place.write("out/transformer/notes.txt", "mine");
    let refused = place.run(&[&again[..], &["--overwrite"]].concat());
    assert!(refused.code == Some(1) && refused.stderr.contains("notes.txt"), "{refused:?}");
    std::fs::remove_file(place.path("out/transformer/notes.txt")).unwrap();
    let report = check(&place, "quantize", &[&again[..], &["--overwrite"]].concat());
    assert!(by_name(&report, "text_encoder")["reason"].as_str().unwrap().starts_with("not named with "));

    std::fs::remove_dir_all(place.path("out/scheduler")).unwrap();
    let damaged = place.run(&["verify", "out"]);
    assert!(damaged.code == Some(1) && damaged.stderr.contains("`scheduler`"), "{damaged:?}");
}

#[test]
fn files_that_are_not_copied_and_damaged_components_are_named() {
    let place = place();
    std::fs::create_dir(place.path("pipe/vae/notes")).unwrap();
    let line = ["pipe", "--scheme", "int8:channel"];
    let told = place.succeed(&[&["quantize"], &line[..], &["-o", "out"]].concat()).stderr;
    assert!(told.contains("note: vae: notes is not carried along"), "{told}");
    let keep = ["--component", "transformer=keep", "--component", "text_encoder=keep"];
    let kept = place.run(&[&["plan"], &line[..], &keep].concat());
    assert!(kept.code == Some(1) && kept.stderr.contains("name others"), "{kept:?}");

    // A component of another class than model_index.json names.
    let config = place.path("pipe/vae/config.json");
    let fits = std::fs::read_to_string(&config).unwrap();
    std::fs::write(&config, fits.replace("AutoencoderKL", "UNet2DConditionModel")).unwrap();
    let refused = place.run(&[&["plan"], &line[..]].concat());
    let told =
        "vae: its config.json is of the class `UNet2DConditionModel`, and model_index.json names `AutoencoderKL`";
    assert!(refused.code == Some(1) && refused.stderr.contains(told), "{refused:?}");
    let verified = place.run(&["verify", "pipe"]);
    assert!(verified.code == Some(1) && verified.stdout.contains(told), "{verified:?}");
    std::fs::write(&config, fits).unwrap();

    let weights = place.path("pipe/vae/diffusion_pytorch_model.safetensors");
    let mut bytes = std::fs::read(&weights).unwrap();
    let start = tensor_range(&bytes, "model.norm.weight").start;
    bytes[start..start + 2].copy_from_slice(&0x7fc0_u16.to_le_bytes());
    std::fs::write(weights, bytes).unwrap();
    let refused = place.run(&[&["plan"], &line[..]].concat());
    assert!(refused.code == Some(1) && refused.stderr.contains("vae: tensor `model.norm.weight`"), "{refused:?}");
}

#[test]
fn schemes_that_diffusers_does_not_load_become_floats() {
    let place = place();
    let line =
        ["quantize", "pipe", "--component", "transformer=int4:g32", "-x", "transformer.*.down_proj", "-o", "out"];
    let report = place.succeed(&[&line[..], &["--json"]].concat()).json();
    let transformer = by_name(&report, "transformer");
    assert_eq!((&transformer["format"], &transformer["quantized_layers"]), (&json!("fake"), &json!(12)));
    assert_eq!(transformer["output_bytes"], transformer["source_bytes"]);
}

#[test]
fn interrupted_pipelines_resume_at_the_component() {
    let place = place();
    // Names are worked on in order: the text encoder is made, and the transformer has no room for its work file.
    place.write(".out.kvant-part-transformer.partial", "mine");
    let line = ["quantize", "pipe", "--scheme", "int8:channel", "-o", "out"];
    let stopped = place.run(&line);
    assert!(stopped.code == Some(1) && stopped.stderr.contains("transformer: "), "{stopped:?}");
    assert!(place.path(".out.kvant-part-text_encoder").is_dir() && !place.path("out").exists());
    let other = place.run(&["quantize", "pipe", "--scheme", "e4m3:channel", "-o", "out"]);
    assert!(other.code == Some(1) && other.stderr.contains("--restart"), "{other:?}");
    assert!(place.path(".out.kvant-part-text_encoder").is_dir());
    std::fs::remove_file(place.path(".out.kvant-part-transformer.partial")).unwrap();
    let config = place.path(".out.kvant-part-text_encoder/config.json");
    std::fs::rename(&config, place.path("away")).unwrap();
    let lacking = place.run(&line);
    assert!(lacking.code == Some(1) && lacking.stderr.contains("it lacks config.json"), "{lacking:?}");
    std::fs::rename(place.path("away"), &config).unwrap();
    let report = place.succeed(&[&line[..], &["--json"]].concat()).json();
    assert_eq!(report["resumed_components"], 1);
    assert_eq!(names(&place.path(".")), ["nano_llama", "out", "pipe"]);
    let straight = place.succeed(&["quantize", "pipe", "--scheme", "int8:channel", "-o", "straight", "--json"]).json();
    assert_eq!(straight["resumed_components"], 0);
    for file in ["transformer/diffusion_pytorch_model.safetensors", "text_encoder/model.safetensors"] {
        let read = |out: &str| std::fs::read(place.path(out).join(file)).unwrap();
        assert_eq!(read("out"), read("straight"), "{file}");
    }
}

#[test]
fn what_does_not_apply_to_pipelines_is_refused() {
    let place = place();
    let pipe = ["plan", "pipe", "--scheme", "int8:channel"];
    for (line, code, told) in [
        (&["--component", "transfromer=fp8"][..], 2, "no component `transfromer`"),
        (&["-x", "*.down_proj"], 2, "names no component"),
        (&["--override", "down=int8:channel"], 2, "names no component"),
        (&["-x", "vae.*"], 2, "`vae.*` changes nothing: the component vae is kept"),
        (&["-x", "transformer.nothing"], 1, "transformer: "),
        (&["--lora", "nano_llama"], 2, "--lora does not apply"),
        (&["--format", "quark"], 1, "diffusers does not load the format quark"),
        (&["--component", "transformer=fp8"], 1, "components of pipelines do not run in Kvant"),
        (&["--format", "gguf"], 2, "does not apply to a diffusers pipeline"),
        (&["--format", "fake", "--format", "torchao"], 2, "more than one --format"),
        (&["--algorithm", "gptq", "--calib", "pipe/README.md"], 1, "it needs calibration data"),
    ] {
        let run = place.run(&[&pipe[..], line].concat());
        assert!(run.code == Some(code) && run.stderr.contains(told), "{line:?}: {run:?}");
    }
    let kept = place.run(&["plan", "pipe", "--component", "transformer=keep"]);
    assert!(kept.code == Some(1) && kept.stderr.contains("no component of the pipeline is quantized"), "{kept:?}");
    std::fs::copy(graph_data("tinycnn.float.onnx"), place.path("float.onnx")).unwrap();
    for other in [&["nano_llama", "--scheme", "fp8", "--weights-only"][..], &["float.onnx", "--preset", "FP16_MODEL"]] {
        let run = place.run(&[&["plan"], other, &["--component", "a=fp8"]].concat());
        assert!(run.code == Some(2) && run.stderr.contains("only to diffusers pipelines"), "{run:?}");
    }
    let eval = place.run(&["eval", "pipe", "--data", "pipe/README.md"]);
    assert!(eval.code == Some(1) && eval.stderr.contains("diffusers runs the rest"), "{eval:?}");
    let file = place.run(&["quantize", "pipe", "--scheme", "int8:channel", "-o", "out.gguf"]);
    assert!(file.code == Some(2) && file.stderr.contains("a pipeline is a folder"), "{file:?}");
    place.succeed(&["quantize", "pipe", "--scheme", "int8:channel", "-o", "int8"]);
    let again = place.run(&["quantize", "int8", "--scheme", "e4m3:channel", "--no-keep-defaults", "-o", "again"]);
    assert!(again.code == Some(1) && again.stderr.contains("quantized already"), "{again:?}");
    place.succeed(&["verify", "int8", "--for", "diffusers"]);
    for (file, told) in
        [("vae/diffusion_pytorch_model.safetensors", "no weights"), ("scheduler/scheduler_config.json", "is empty")]
    {
        std::fs::rename(place.path("int8").join(file), place.path("away")).unwrap();
        let verified = place.run(&["verify", "int8"]);
        assert!(verified.code == Some(1) && verified.stderr.contains(told), "{file}: {verified:?}");
        let planned = place.run(&["plan", "int8", "--scheme", "int8:channel", "--requantize"]);
        assert!(planned.code == Some(1) && planned.stderr.contains(told), "{file}: {planned:?}");
        std::fs::rename(place.path("away"), place.path("int8").join(file)).unwrap();
    }
    for (file, text, told) in [
        ("scheduler/scheduler_config.json", "{", "is not JSON"),
        ("model_index.json", r#"{"_class_name": "FluxPipeline"}"#, "names no component"),
    ] {
        let whole = std::fs::read_to_string(place.path("pipe").join(file)).unwrap();
        place.write(&format!("pipe/{file}"), text);
        for line in [&["plan", "pipe", "--scheme", "int8:channel"][..], &["verify", "pipe", "--for", "diffusers"]] {
            let run = place.run(line);
            assert!(run.code == Some(1) && run.stderr.contains(told), "{file}: {run:?}");
        }
        place.write(&format!("pipe/{file}"), &whole);
    }
    let names = ["diffusion_pytorch_model.safetensors", "diffusion_pytorch_model.fp16.safetensors"];
    let [plain, variant] = names.map(|name| place.path("pipe/vae").join(name));
    std::fs::rename(&plain, &variant).unwrap();
    let run = place.run(&pipe);
    assert!(run.code == Some(1) && run.stderr.contains("is not a name that diffusers looks for"), "{run:?}");
    let verified = place.run(&["verify", "pipe"]);
    assert!(verified.code == Some(1) && verified.stderr.contains("looks for"), "{verified:?}");
    std::fs::rename(&variant, &plain).unwrap();
    let alone = place.run(&["plan", "pipe/transformer", "--scheme", "int8"]);
    assert!(alone.code == Some(1) && alone.stderr.contains("int8:channel or e4m3:channel"), "{alone:?}");
    let started = place.run(&["quantize", "pipe/transformer", "--scheme", "int8", "-o", "alone"]);
    assert_eq!((started.code, started.stderr), (alone.code, alone.stderr), "data would not help");
    let inside = place.run(&["quantize", "pipe", "--scheme", "int8:channel", "-o", "pipe/out"]);
    assert!(inside.code == Some(2), "{inside:?}");
}
