//! Model cards: what they say, that they are part of the output, and what becomes of the source's card.

use crate::kvant::{Place, contents, copy_dir, names};
use serde_json::Value;

const TEXT: &str = "The tower stood where the river turns. Nobody had seen who built it, and nobody asked any more. ";

fn card(place: &Place, output: &str) -> String {
    std::fs::read_to_string(place.path(output).join("README.md")).unwrap()
}

/// The first block of code of a language.
pub fn block<'t>(text: &'t str, language: &str) -> &'t str {
    let start = text.split_once(&format!("```{language}\n")).unwrap().1;
    start.split_once("\n```").unwrap().0
}

#[test]
fn card_says_what_was_done_and_how_to_repeat_it() {
    let place = Place::new();
    place.write("text.txt", &TEXT.repeat(60));
    let config = std::fs::read_to_string(place.path("nano_llama/config.json")).unwrap();
    let mut config: Value = serde_json::from_str(&config).unwrap();
    config["_name_or_path"] = "nano/llama".into();
    place.write("nano_llama/config.json", &config.to_string());
    let eval = ["--eval", "text.txt"];
    let scheme = ["-s", "W4A16", "-x", "*.1.mlp.*", "--override", "*.o_proj=int8:channel"];
    let calib = ["--algorithm", "gptq", "--calib", "text.txt", "--num-samples", "4", "--seq-len", "32"];
    for output in ["out", "again"] {
        place.succeed(&[&["quantize", "nano_llama", "-o", output], &scheme[..], &calib, &eval].concat());
    }
    assert!(contents(&place.path("out")) == contents(&place.path("again")));
    let text = card(&place, "out");
    let front = "---\nbase_model: nano/llama\nbase_model_relation: quantized\nlibrary_name: transformers\n\
                 pipeline_tag: text-generation\ntags:\n- compressed-tensors\n- int4\n- \"4-bit\"\n---\n";
    assert!(text.starts_with(front), "{text}");
    for shown in [
        "# llama, ",
        "Kvant 0",
        "vllm serve PATH",
        "| text.txt | ",
        "KL divergence",
        "layer average",
        "AutoModelForCausalLM",
    ] {
        assert!(text.contains(shown), "{shown}: {text}");
    }
    let machine = std::fs::canonicalize(place.path("")).unwrap();
    assert!(!text.contains(machine.to_str().unwrap()) && !text.contains(place.path("").to_str().unwrap()));
    let command = block(&text, "sh");
    assert_eq!(
        command,
        "kvant quantize nano/llama --recipe recipe.toml --calib text.txt --num-samples 4 --seq-len 32 -o OUT"
    );
    place.write("recipe.toml", block(&text, "toml"));
    let repeated = command.replace("nano/llama", "nano_llama").replace("OUT", "repeated");
    place.succeed(&repeated.split(' ').skip(1).collect::<Vec<_>>());
    let weights = |output: &str| std::fs::read(place.path(output).join("model.safetensors")).unwrap();
    assert!(weights("repeated") == weights("out"));
    let manifest: Value =
        serde_json::from_slice(&std::fs::read(place.path("out/kvant_manifest.json")).unwrap()).unwrap();
    assert!(manifest["files"]["README.md"].is_object(), "{manifest}");
    place.succeed(&["verify", "out"]);
}

#[test]
fn changed_cards_are_not_replaced() {
    let place = Place::new();
    let quantize = ["quantize", "nano_llama", "-s", "int4:g32", "-o", "out"];
    place.succeed(&quantize);
    assert!(card(&place, "out").starts_with("---\nlibrary_name: "), "no name is made up");
    place.succeed(&[&quantize[..], &["--overwrite"]].concat());
    place.write("out/README.md", "my own words");
    let refused = place.run(&[&quantize[..], &["--overwrite"]].concat());
    assert!(refused.code == Some(1) && refused.stderr.contains("README.md (changed)"), "{refused:?}");
    assert_eq!(card(&place, "out"), "my own words");
}

#[test]
fn card_of_the_source_is_kept_below() {
    let place = Place::new();
    place.write(
        "nano_llama/README.md",
        "---\nlicense: mit\nlanguage: [en, no]\ntags: [stories, awq, \"8-bit\"]\nwidget: 1\n---\n# Nano\n\nIts text.\n",
    );
    place.succeed(&["quantize", "nano_llama", "-s", "int4:g32", "-o", "out"]);
    let text = card(&place, "out");
    assert!(text.starts_with("---\nlicense: mit\nlanguage:\n- en\n- \"no\"\n"), "{text}");
    assert!(text.contains("tags:\n- stories\n- quark\n- int4\n- \"4-bit\"\n---"), "{text}");
    let original = text.split_once("## Original model card").unwrap().1;
    assert!(original.contains("widget: 1") && original.ends_with("# Nano\n\nIts text.\n"), "{text}");

    let source = std::fs::read(place.path("nano_llama/README.md")).unwrap();
    place.succeed(&["quantize", "nano_llama", "-s", "int4:g32", "-o", "none", "--no-model-card"]);
    assert_eq!(std::fs::read(place.path("none/README.md")).unwrap(), source);

    place.write("nano_llama/README.md", "---\nlicense: !!python/object:os.system x\n---\nbody");
    let run = place.succeed(&["quantize", "nano_llama", "-s", "int4:g32", "-o", "hostile"]);
    assert!(run.stderr.contains("the front matter of nano_llama/README.md cannot be read"), "{run:?}");
    let text = card(&place, "hostile");
    assert!(text.starts_with("---\nlibrary_name: ") && text.contains("!!python") && text.ends_with("body\n"), "{text}");

    std::fs::write(place.path("nano_llama/README.md"), b"\xff\xfe").unwrap();
    let run = place.succeed(&["quantize", "nano_llama", "-s", "int4:g32", "-o", "copied"]);
    assert!(run.stderr.contains("README.md is not UTF-8"), "{run:?}");
    assert_eq!(std::fs::read(place.path("copied/README.md")).unwrap(), b"\xff\xfe");
}

#[test]
fn each_format_has_a_card_of_its_own_and_files_have_none() {
    let place = Place::new();
    let quantize = ["quantize", "nano_llama", "-s", "uint4:g32:f16:zp", "-f", "awq", "-f", "gptq", "-o", "both"];
    place.succeed(&quantize);
    for (format, other) in [("awq", "gptq"), ("gptq", "awq")] {
        let text = card(&place, &format!("both/{format}"));
        assert!(text.contains(&format!("\n- {format}\n")) && !text.contains(&format!("\n- {other}\n")), "{text}");
        assert!(text.contains("--format awq --format gptq -o OUT") && !text.contains("Original"), "{text}");
    }
    place.succeed(&["convert", "both/awq", "--to", "gptq", "-o", "converted"]);
    let text = card(&place, "converted");
    let (own, original) = text.split_once("## Original model card").unwrap();
    assert!(own.contains("\n- gptq\n") && !own.contains("\n- awq\n") && own.contains("converted from"), "{text}");
    assert!(original.contains("\n- awq\n") && original.contains("--format awq --format gptq -o OUT"), "{text}");
    place.succeed(&["verify", "converted"]);

    copy_dir(&place.path("both/awq"), &place.path("mine"));
    place.write("mine/README.md", "# Mine\n");
    place.succeed(&["convert", "mine", "--to", "gptq", "-o", "of-mine"]);
    assert_eq!(card(&place, "of-mine"), "# Mine\n", "the user's words hold for any format");

    place.succeed(&["quantize", "nano_llama", "-s", "Q8_0", "-o", "a.gguf"]);
    place.succeed(&["quantize", "nano_llama", "-s", "int4:g32", "--no-model-card", "-o", "none"]);
    assert!(!names(&place.path("")).contains(&"README.md".to_owned()) && !place.path("none/README.md").exists());
}
