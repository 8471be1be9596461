//! `kvant eval` of several models, on questions with choices, on some windows, and by position.

use super::json::check;
use super::kvant::Place;
use serde_json::Value;

const TEXT: &str = "The quick brown fox jumps over the lazy dog, and the dog does not care about it at all. ";

fn place() -> Place {
    let place = Place::new();
    place.write("text.txt", &TEXT.repeat(60));
    place.succeed(&["quantize", "nano_llama", "-s", "int4:g32", "-o", "int4"]);
    place.succeed(&["quantize", "nano_llama", "-s", "Q4_0", "-o", "q4.gguf"]);
    place
}

const ON_TEXT: [&str; 4] = ["--data", "text.txt", "--seq-len", "64"];

fn refused(place: &Place, args: &[&str], code: i32, words: &[&str]) {
    let run = place.run(&[&["eval"], args].concat());
    assert_eq!(run.code, Some(code), "{args:?}: {run:?}");
    for words in words {
        assert!(run.stderr.contains(words), "{args:?}: {words}: {run:?}");
    }
    assert!(run.stdout.is_empty(), "{args:?}: {run:?}");
}

#[test]
fn several_models_have_the_figures_of_each_alone() {
    let place = place();
    let several = [&["eval", "int4", "q4.gguf", "--reference", "nano_llama"], &ON_TEXT[..]].concat();
    let all = check(&place, "eval", &several);
    for (index, model) in ["int4", "q4.gguf"].into_iter().enumerate() {
        let alone = [&["eval", model, "--reference", "nano_llama", "--json"], &ON_TEXT[..]].concat();
        let alone = place.succeed(&alone).json();
        let found = &all["models"][index];
        assert_eq!(found["model"], model);
        for key in [
            "perplexity",
            "perplexity_error",
            "kl_mean",
            "kl_mean_error",
            "top1_agreement",
            "blocks",
            "positions",
            "tokens",
        ] {
            assert_eq!(found[key], alone[key], "{model}: {key}");
        }
        let bits = found["bits_per_weight"].as_f64().unwrap();
        assert!((4.0..16.0).contains(&bits), "{model}: {bits}");
    }
    assert_eq!(all["reference"]["model"], "nano_llama");
    assert!(all["reference"]["bytes"].as_u64().unwrap() > all["models"][0]["bytes"].as_u64().unwrap());
    let run = place.succeed(&[&several[..], &["--report", "both.md"]].concat());
    let rows: Vec<&str> = run.stdout.lines().collect();
    assert!(rows[0].contains("bpw") && rows[1].contains("nano_llama") && rows[1].contains("reference"), "{run:?}");
    assert!(rows[2].contains("int4") && rows[3].contains("q4.gguf") && rows[2].contains('±'), "{run:?}");
    let page = std::fs::read_to_string(place.path("both.md")).unwrap();
    assert!(page.contains("# 2 models") && page.contains("| q4.gguf |"), "{page}");
    place.write("all.json", &all.to_string());
    place.succeed(&["report", "all.json", "-o", "again.md"]);
    let again = std::fs::read_to_string(place.path("again.md")).unwrap();
    // It cannot say which files they were, but has all figures.
    let (_, figures) = again.split_once("\n\n").unwrap();
    assert!(figures.contains("| q4.gguf |") && page.ends_with(figures), "{page} {again}");
}

#[test]
fn graphs_checkpoints_and_gguf_files_are_one_table() {
    let place = place();
    place.succeed(&["convert", "int4", "--to", "onnx", "-o", "int4.onnx"]);
    std::fs::copy(place.path("nano_llama/tokenizer.json"), place.path("tokenizer.json")).unwrap();
    let engine = ["--runtime", "rten", "--precision", "f32"];
    let line = [&["eval", "nano_llama", "int4.onnx", "int4", "q4.gguf"], &ON_TEXT[..], &engine].concat();
    let all = check(&place, "eval", &line);
    let perplexity = |index: usize| all["models"][index]["perplexity"].as_f64().unwrap();
    assert!((perplexity(1) / perplexity(2) - 1.0).abs() < 1e-3, "{all}");
    assert!(all["models"][1]["engine"].is_string() && all["models"][1]["bits_per_weight"].is_null(), "{all}");
    assert!(perplexity(0) != perplexity(2) && all["reference"].is_null(), "{all}");
    place.succeed(&["convert", "nano_llama", "--to", "onnx", "-o", "float.onnx"]);
    let graphs = ["eval", "int4.onnx", "float.onnx", "--reference", "float.onnx", "--runtime", "rten"];
    let all = check(&place, "eval", &[&graphs[..], &ON_TEXT].concat());
    assert!(all["models"][1]["kl_mean"].as_f64().unwrap() < 1e-6, "{all}");
    let mixed = [&["int4", "int4.onnx", "--reference", "nano_llama", "--runtime", "rten"], &ON_TEXT[..]].concat();
    refused(&place, &mixed, 2, &["int4.onnx", "is no ONNX graph"]);
}

#[test]
fn models_that_cannot_be_compared_are_refused_before_the_work() {
    let place = place();
    let on_text = |args: &[&'static str]| [args, &ON_TEXT[..]].concat();
    refused(&place, &on_text(&["int4", "none", "q4.gguf"]), 2, &["none"]);
    refused(&place, &on_text(&["int4", "./int4"]), 2, &["./int4 is named twice"]);
    refused(&place, &on_text(&["int4", "q4.gguf", "--lora", "int4"]), 2, &["--lora belongs to one model"]);
    refused(&place, &["int4", "q4.gguf"], 2, &["--data"]);
    crate::made_model::write_encoder(&place.path("bert"));
    refused(&place, &on_text(&["int4", "bert", "--reference", "nano_llama"]), 2, &["bert", "encoder"]);
    // Another tokenizer of the same size.
    let tokenizer = std::fs::read_to_string(place.path("int4/tokenizer.json")).unwrap();
    let mut changed: Value = serde_json::from_str(&tokenizer).unwrap();
    changed["model"]["merges"] = Value::Array(Vec::new());
    place.succeed(&["quantize", "nano_llama", "-s", "int8:channel", "-o", "other"]);
    place.write("other/tokenizer.json", &changed.to_string());
    refused(&place, &on_text(&["int4", "other"]), 2, &["tokenizers of int4 and other", "--tokenizer"]);
    place.succeed(&[&["eval", "int4", "other", "--tokenizer", "nano_llama"], &ON_TEXT[..]].concat());
}

#[test]
fn encoders_are_compared_one_by_one() {
    let place = Place::empty();
    crate::made_model::write_encoder(&place.path("bert"));
    place.write("tokens.jsonl", "[1, 5, 9, 22]\n[7, 3, 60, 2, 11]\n");
    place.succeed(&["quantize", "bert", "-s", "int8:channel", "-o", "int8"]);
    let line = ["eval", "bert", "int8", "--reference", "bert", "--data", "tokens.jsonl"];
    let all = check(&place, "eval", &line);
    assert_eq!(all["models"][0]["embedding_cosine_mean"], 1.0);
    assert!(all["models"][1]["hidden_sqnr_db"].as_f64().unwrap() > 10.0, "{all}");
    let table = place.succeed(&line).stdout;
    assert!(table.contains("embedding cosine") && table.contains("int8"), "{table}");
}

#[test]
fn only_some_windows_are_evaluated_with_their_standard_error() {
    let place = place();
    let eval = |more: &[&str]| {
        let line = [&["eval", "int4", "--reference", "nano_llama", "--json"], &ON_TEXT[..], more].concat();
        place.succeed(&line).json()
    };
    let (all, three, one) = (eval(&[]), eval(&["--num-samples", "3"]), eval(&["--num-samples", "1"]));
    assert_eq!((three["windows"].as_u64(), three["tokens"].as_u64()), (Some(3), Some(3 * 63)));
    assert!(
        all["windows"].as_u64() > Some(3) && all["kl_mean_error"].is_number() && three["perplexity_error"].is_number()
    );
    assert!(one["kl_mean"].is_number() && one["kl_mean_error"].is_null() && one["perplexity_error"].is_null(), "{one}");
    assert_eq!(eval(&["--num-samples", "1000"])["perplexity"], all["perplexity"]);
    let shown = place.succeed(&[&["eval", "int4", "--num-samples", "1"], &ON_TEXT[..]].concat()).stdout;
    assert!(!shown.contains('±') && !shown.contains("NaN"), "{shown}");
}

#[test]
fn losses_by_position_hold_every_token() {
    let place = place();
    let line = ["eval", "int4", "--reference", "nano_llama", "--data", "text.txt", "--seq-len", "512"];
    let found = check(&place, "eval", &line);
    let positions = found["positions"].as_array().unwrap();
    let sum: u64 = positions.iter().map(|range| range["tokens"].as_u64().unwrap()).sum();
    assert_eq!((positions.len(), sum), (2, found["tokens"].as_u64().unwrap()));
    let weighted = |key: &str| -> f64 {
        let terms = positions.iter().map(|range| range["tokens"].as_f64().unwrap() * range[key].as_f64().unwrap());
        terms.sum::<f64>() / sum as f64
    };
    let close = |a: f64, b: &Value| (a / b.as_f64().unwrap() - 1.0).abs() < 1e-9;
    assert!(close(weighted("kl_mean"), &found["kl_mean"]) && close(weighted("loss_mean").exp(), &found["perplexity"]));
    assert!(close(weighted("reference_loss_mean").exp(), &found["reference_perplexity"]));
    let shown = place.succeed(&[&line[..], &["--by-position", "--report", "page.html"]].concat()).stdout;
    assert!(shown.contains("256-511") && !place.succeed(&line).stdout.contains("256-511"), "{shown}");
    assert!(std::fs::read_to_string(place.path("page.html")).unwrap().contains("KL divergence by position"));
    let both = ["eval", "int4", "q4.gguf", "--data", "text.txt", "--seq-len", "512", "--by-position"];
    let shown = place.succeed(&both).stdout;
    assert!(shown.contains("loss of q4.gguf"), "{shown}");
}

const ARC: &str = r#"{"id": "M1", "question": "Which is hot?", "choices": {"text": ["ice", "fire", "snow"], "label": ["A", "B", "C"]}, "answerKey": "B"}
{"id": "M2", "question": "What do cows eat?", "choices": {"text": ["grass", "stones"], "label": ["1", "2"]}, "answerKey": "1"}
{"id": "M3", "question": "How many legs has a spider?", "choices": {"text": ["two", "four", "eight", "nine"], "label": ["A", "B", "C", "D"]}, "answerKey": "C"}
"#;
const WINOGRANDE: &str = r#"[{"sentence": "Ian helped Dennis because _ was kind.", "option1": "Ian", "option2": "Dennis", "answer": "1"},
{"sentence": "The trophy does not fit into the case because the _ is too large.", "option1": "trophy", "option2": "case", "answer": "1"}]"#;

#[test]
fn questions_are_answered_by_likelihood() {
    let place = place();
    place.write("arc.jsonl", ARC);
    place.write("winogrande.json", WINOGRANDE);
    let alone = check(&place, "eval", &["eval", "int4", "--choices", "arc.jsonl"]);
    assert_eq!((alone["form"].as_str(), alone["questions"].as_u64()), (Some("ARC"), Some(3)));
    let shares: Vec<f64> = (0..=3).map(|right| f64::from(right) / 3.0).collect();
    assert!(shares.contains(&alone["accuracy"].as_f64().unwrap()), "{alone}");
    let same = check(&place, "eval", &["eval", "nano_llama", "--choices", "winogrande.json", "-r", "nano_llama"]);
    assert_eq!((same["flips"].as_u64(), same["right_probability_change"].as_f64()), (Some(0), Some(0.0)));
    assert_eq!(same["accuracy"], same["reference_accuracy"]);
    assert_eq!(same["accuracy"], same["accuracy_norm"], "one text is scored for all choices");
    let several = ["eval", "int4", "q4.gguf", "--reference", "nano_llama", "--choices", "arc.jsonl"];
    let all = check(&place, "eval", &several);
    assert_eq!(all["models"][0]["accuracy"], alone["accuracy"]);
    assert!(all["models"][1]["right_probability_change"].as_f64().unwrap() > 0.0, "{all}");
    let table = place.succeed(&several).stdout;
    assert!(table.contains("flips") && table.contains("reference") && table.contains("3 questions of ARC"), "{table}");
    let few = check(&place, "eval", &["eval", "int4", "--choices", "arc.jsonl", "--num-samples", "1"]);
    assert!(few["questions"] == 1 && few["accuracy_error"].is_null(), "{few}");
    place.succeed(&["eval", "int4", "--choices", "arc.jsonl", "--report", "arc.html"]);
    assert!(std::fs::read_to_string(place.path("arc.html")).unwrap().contains("accuracy"));
}

#[test]
fn questions_that_cannot_be_answered_are_refused_by_name() {
    let place = place();
    place.write("arc.jsonl", ARC);
    place.write("mine.jsonl", "{\"ask\": \"x\", \"options\": [1, 2]}\n");
    place.write("one.jsonl", "{\"question\": \"x\", \"choices\": [\"a\"], \"answer\": 0}\n");
    place.write("empty.jsonl", "");
    crate::made_model::write_encoder(&place.path("bert"));
    place.succeed(&["convert", "nano_llama", "--to", "onnx", "-o", "float.onnx"]);
    for (args, code, words) in [
        (&["int4", "--choices", "mine.jsonl"][..], 1, &["mine.jsonl, row 1", "ask, options", "HellaSwag (ctx"][..]),
        (&["int4", "--choices", "one.jsonl"], 1, &["at least two choices"]),
        (&["int4", "--choices", "empty.jsonl"], 1, &["holds no question"]),
        (&["int4", "--choices", "none.jsonl"], 2, &["none.jsonl"]),
        (&["int4", "--choices", "text.txt"], 1, &["JSON lines and Parquet"]),
        (&["int4", "--choices", "int4"], 2, &["is a directory"]),
        (&["int4", "--choices", "arc.jsonl", "--data", "text.txt"], 2, &["cannot be used with"]),
        (&["int4", "--choices", "arc.jsonl", "--stride", "4"], 2, &["--stride does not apply"]),
        (&["int4", "--choices", "arc.jsonl", "--labels", "y"], 2, &["--labels"]),
        (&["bert", "--choices", "arc.jsonl"], 1, &["bert: bert is a family of encoders"]),
        (&["float.onnx", "--choices", "arc.jsonl"], 1, &["float.onnx is an ONNX graph"]),
        (&["int4", "-r", "float.onnx", "--choices", "arc.jsonl"], 1, &["float.onnx is an ONNX graph"]),
    ] {
        refused(&place, args, code, words);
    }
    std::fs::remove_file(place.path("int4/tokenizer.json")).unwrap();
    refused(&place, &["int4", "--choices", "arc.jsonl"], 1, &["tokenizer.json is missing"]);
    place.succeed(&["eval", "int4", "--choices", "arc.jsonl", "--tokenizer", "nano_llama"]);
}
