//! `--family` and `kvant inspect --suggest-family`: architectures that Kvant has no description of.

use crate::kvant::Place;
use std::fs;

const TEXT: &str = "The tower stood where the river turns, and nobody asked who had built it. ";

/// The small model under the name of an architecture that has no description.
fn renamed() -> Place {
    let place = Place::new();
    let config = fs::read_to_string(place.path("nano_llama/config.json")).unwrap();
    let config = config.replace("LlamaForCausalLM", "NovelForCausalLM").replace("\"llama\"", "\"novel\"");
    place.write("nano_llama/config.json", &config);
    place.write("text.txt", &TEXT.repeat(60));
    place
}

#[test]
fn described_architecture_is_evaluated_and_calibrated() {
    let place = renamed();
    let eval = ["eval", "nano_llama", "--data", "text.txt", "--seq-len", "64", "--json"];
    assert_eq!(place.run(&eval).code, Some(1), "it has no description");
    place.write("novel.toml", "name = \"my-novel\"\nmodel_types = [\"novel\"]\n");
    let described = place.succeed(&[&eval[..], &["--family", "novel.toml"]].concat()).json();
    let known = {
        let place = Place::new();
        place.write("text.txt", &TEXT.repeat(60));
        place.succeed(&eval).json()
    };
    assert_eq!(described["perplexity"], known["perplexity"]);
    let quantize = ["quantize", "nano_llama", "-s", "int4:g32", "-a", "gptq", "--calib", "text.txt", "--seq-len", "64"];
    place.succeed(&[&quantize[..], &["--family", "novel.toml", "-f", "compressed-tensors", "-o", "out"]].concat());
    let plan = place.succeed(&["plan", "nano_llama", "-s", "int4:g32", "--family", "novel.toml"]);
    assert!(plan.stdout.starts_with("NovelForCausalLM (family my-novel)"), "{plan:?}");
    let listed = place.succeed(&["list", "families", "--family", "novel.toml", "--json"]).stdout;
    assert!(listed.contains("my-novel"));
}

#[test]
fn descriptions_that_do_not_fit_the_model_are_named_in_hints() {
    let place = renamed();
    let norms =
        "norms = [[\"attention-input\", \"absent_norm\"], [\"feed-forward-input\", \"post_attention_layernorm\"]]";
    place.write("novel.toml", &format!("name = \"my-novel\"\nlike = \"llama\"\nmodel_types = [\"novel\"]\n{norms}\n"));
    let run = place.run(&["eval", "nano_llama", "--data", "text.txt", "--seq-len", "64", "--family", "novel.toml"]);
    assert!(run.code == Some(1) && run.stderr.contains("--family"), "{run:?}");
}

#[test]
fn missing_keys_are_named_with_the_key_of_descriptions_that_renames_them() {
    let place = renamed();
    let config = fs::read_to_string(place.path("nano_llama/config.json")).unwrap();
    place.write("nano_llama/config.json", &config.replace("num_attention_heads", "heads_of_novel"));
    let eval = ["eval", "nano_llama", "--data", "text.txt", "--seq-len", "64", "--family", "novel.toml"];
    place.write("novel.toml", "name = \"my-novel\"\nmodel_types = [\"novel\"]\n");
    let run = place.run(&eval);
    assert!(run.code == Some(1) && run.stderr.contains("`config_like` in the description"), "{run:?}");
}

#[test]
fn draft_of_a_description_is_a_description() {
    let place = renamed();
    let draft = place.succeed(&["inspect", "nano_llama", "--suggest-family"]).stdout;
    assert!(draft.starts_with("name = \"my-novel\"\nlike = \"llama\"\n"), "{draft}");
    place.write("novel.toml", &draft);
    place.succeed(&["eval", "nano_llama", "--data", "text.txt", "--seq-len", "64", "--family", "novel.toml"]);
    let json = place.succeed(&["inspect", "nano_llama", "--suggest-family", "--json"]).json();
    assert_eq!((json["like"].as_str(), json["open"].as_array().map(Vec::len)), (Some("llama"), Some(0)));
    let known = Place::new().succeed(&["inspect", "nano_llama", "--suggest-family"]);
    assert!(known.stderr.contains("has a description, `llama`"), "{known:?}");
}

#[test]
fn descriptions_of_other_architectures_are_named() {
    let place = renamed();
    place.write("other.toml", "name = \"my-other\"\nmodel_types = [\"other\"]\n");
    let plan = ["plan", "nano_llama", "-s", "int4:g32", "--no-verify"];
    let run = place.succeed(&[&plan[..], &["--family", "other.toml"]].concat());
    assert!(run.stderr.contains("the description that --family names is of `other`"), "{run:?}");
    let known = Place::new();
    fs::copy(place.path("other.toml"), known.path("other.toml")).unwrap();
    let run = known.succeed(&[&plan[..], &["--family", "other.toml"]].concat());
    assert!(run.stderr.contains("is of `other`: the model's architecture is known"), "{run:?}");
    let trunk = "[trunk]\nblocks = \"nowhere\"\n";
    place.write("novel.toml", &format!("name = \"my-novel\"\nmodel_types = [\"novel\"]\n{trunk}"));
    let run = place.succeed(&[&plan[..], &["--family", "novel.toml"]].concat());
    assert!(run.stderr.contains("the description `my-novel` fits config.json, but"), "{run:?}");
}

#[test]
fn files_of_other_formats_are_not_described() {
    let place = Place::new();
    place.succeed(&["quantize", "nano_llama", "-s", "Q8_0", "-o", "out.gguf"]);
    let draft = place.run(&["inspect", "out.gguf", "--suggest-family"]);
    assert!(draft.code == Some(2) && draft.stderr.contains("is a GGUF file"), "{draft:?}");
}

#[test]
fn encoder_decoders_get_no_hint_to_descriptions() {
    let place = renamed();
    let config = fs::read_to_string(place.path("nano_llama/config.json")).unwrap();
    place.write("nano_llama/config.json", &config.replacen('{', r#"{"is_encoder_decoder": true, "#, 1));
    let draft = place.run(&["inspect", "nano_llama", "--suggest-family"]);
    assert!(draft.code == Some(1) && draft.stderr.contains("read tokens"), "{draft:?}");
    for line in [
        &["eval", "nano_llama", "--data", "text.txt"][..],
        &["plan", "nano_llama", "-s", "int4:g32", "-a", "gptq", "--calib", "text.txt", "--no-verify"],
    ] {
        let run = place.run(line);
        assert!(run.code == Some(1) && run.stderr.contains("kvant.torch"), "{run:?}");
        assert!(!run.stderr.contains("--suggest-family") && !run.stderr.contains("--family"), "{run:?}");
    }
    let plan = place.succeed(&["plan", "nano_llama", "-s", "int4:g32"]);
    assert!(plan.stderr.contains("no description") && !plan.stderr.contains("--family"), "{plan:?}");
}

#[test]
fn mistakes_in_descriptions_are_refused() {
    let place = renamed();
    let plan = ["plan", "nano_llama", "-s", "int4", "--family", "novel.toml"];
    assert_eq!(place.run(&plan).code, Some(2), "there is no such file");
    for (text, problem) in [
        ("name = \"my-novel\"", "missing field `model_types`"),
        ("name = \"llama\"\nmodel_types = [\"novel\"]", "the name `llama` is taken"),
        ("name = \"my-novel\"\nmodel_types = [\"novel\"]\nmpl = []", "unknown field `mpl`"),
    ] {
        place.write("novel.toml", text);
        let run = place.run(&plan);
        assert_eq!(run.code, Some(2), "{run:?}");
        assert!(run.stderr.contains("novel.toml") && run.stderr.contains(problem), "{run:?}");
    }
}

#[test]
fn other_description_does_not_resume_the_work() {
    let place = renamed();
    place.write("novel.toml", "name = \"my-novel\"\nmodel_types = [\"novel\"]\n");
    let quantize = ["quantize", "nano_llama", "-s", "int4:g32", "--family", "novel.toml", "-o", "out"];
    place.succeed(&quantize);
    let again = place.run(&quantize);
    place.write("novel.toml", "name = \"my-novel\"\nmodel_types = [\"novel\"]\nkeep = [\"*.down_proj\"]\n");
    let other = place.run(&quantize);
    assert_ne!(other.code, Some(0), "another description is another run: {other:?}, {again:?}");
}

#[test]
fn description_is_not_overwritten() {
    let place = renamed();
    place.write("novel.toml", "name = \"my-novel\"\nmodel_types = [\"novel\"]\n");
    let run = place.run(&[
        "quantize",
        "nano_llama",
        "-s",
        "Q4_0",
        "-a",
        "imatrix",
        "--calib",
        "text.txt",
        "--seq-len",
        "64",
        "--save-imatrix",
        "novel.toml",
        "-o",
        "out.gguf",
        "--overwrite",
        "--family",
        "novel.toml",
    ]);
    assert_eq!(run.code, Some(2), "{run:?}");
    assert!(run.stderr.contains("the description"), "{run:?}");
    assert!(fs::read_to_string(place.path("novel.toml")).unwrap().starts_with("name"));
}
