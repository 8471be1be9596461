//! Graphs of decoders on text: `kvant eval`, and what it refuses.

use super::kvant::Place;

const TEXT: &str = "The quick brown fox jumps over the lazy dog, and the dog does not care about it at all. ";

/// The small model, and its graph without a tokenizer.
fn place() -> Place {
    let place = Place::new();
    place.write("text.txt", &TEXT.repeat(30));
    place.succeed(&["convert", "nano_llama", "--to", "onnx", "-o", "float.onnx"]);
    place
}

fn evaluated(place: &Place, args: &[&str]) -> serde_json::Value {
    let all = ["eval", "--data", "text.txt", "--seq-len", "64", "--json"];
    place.succeed(&[&all[..], args].concat()).json()
}

fn assert_close(found: &serde_json::Value, expected: &serde_json::Value, keys: &[&str], limit: f64) {
    for key in keys {
        let (a, b) = (found[key].as_f64().unwrap(), expected[key].as_f64().unwrap());
        assert!((a - b).abs() <= limit * b.abs(), "{key}: {a}, expected {b}");
    }
}

#[test]
fn graph_and_checkpoint_have_the_same_perplexity_and_divergence() {
    let place = place();
    let engine = ["--tokenizer", "nano_llama", "--runtime", "rten"];
    let of_graph = evaluated(&place, &[&["float.onnx"], &engine[..]].concat());
    let of_checkpoint = evaluated(&place, &["nano_llama"]);
    assert_close(&of_graph, &of_checkpoint, &["perplexity"], 1e-5);
    assert_close(&of_graph, &of_checkpoint, &["tokens", "windows", "seq_len"], 0.0);
    assert!(of_graph["engine"].as_str().unwrap().starts_with("rten") && of_graph["blocks"].is_null(), "{of_graph}");

    place.succeed(&["quantize", "nano_llama", "-s", "int4:g32", "-o", "int4"]);
    place.succeed(&["convert", "int4", "--to", "onnx", "-o", "int4.onnx"]);
    let args = ["int4.onnx", "--reference", "float.onnx", "--stride", "48"];
    let of_graph = evaluated(&place, &[&args[..], &engine[..]].concat());
    let of_checkpoint = evaluated(&place, &["int4", "--reference", "nano_llama", "--stride", "48"]);
    let keys = ["perplexity", "reference_perplexity", "perplexity_ratio", "top1_agreement", "tokens"];
    assert_close(&of_graph, &of_checkpoint, &keys, 1e-4);
    assert_close(&of_graph, &of_checkpoint, &["kl_mean", "kl_p99", "kl_mean_error"], 1e-3);
}

#[test]
fn tokenizer_and_context_are_found_beside_a_graph_and_above() {
    let place = place();
    let eval = |graph: &str| {
        place.succeed(&["eval", graph, "--data", "text.txt", "--runtime", "rten", "--json"]).json()["seq_len"].clone()
    };
    std::fs::create_dir(place.path("nano_llama/onnx")).unwrap();
    for graph in ["nano_llama/model.onnx", "nano_llama/onnx/model.onnx"] {
        std::fs::copy(place.path("float.onnx"), place.path(graph)).unwrap();
        assert_eq!(eval(graph), 512, "{graph}: the longest context of config.json");
    }
    std::fs::remove_file(place.path("nano_llama/config.json")).unwrap();
    place.write("nano_llama/genai_config.json", r#"{"model": {"context_length": 96}}"#);
    assert_eq!(eval("nano_llama/onnx/model.onnx"), 96);
}

#[test]
fn graphs_without_text_to_measure_are_refused_with_a_way_out() {
    let place = place();
    let data = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../onnx/tests/data");
    std::fs::copy(data.join("tinycnn.float.onnx"), place.path("image.onnx")).unwrap();
    let refused = |args: &[&str], code: i32, words: &[&str]| {
        let run = place.run(&[&["eval", "--runtime", "rten"], args].concat());
        assert_eq!(run.code, Some(code), "{args:?}: {run:?}");
        for words in words {
            assert!(run.stderr.contains(words), "{args:?}: {words}: {run:?}");
        }
    };
    let text = ["--data", "text.txt"];
    refused(
        &[&["float.onnx"], &text[..]].concat(),
        1,
        &["no tokenizer.json beside float.onnx", "--tokenizer", "copy tokenizer.json"],
    );
    let named = [&text[..], &["--tokenizer", "nano_llama"]].concat();
    refused(
        &[&["image.onnx"], &named[..]].concat(),
        1,
        &["image.onnx", "no decoder", "`input_ids`", "--data FILE.npz"],
    );
    refused(
        &[&["float.onnx", "--reference", "nano_llama"], &named[..]].concat(),
        2,
        &["is no ONNX graph", "kvant convert CHECKPOINT --to onnx"],
    );
    refused(&[&["float.onnx", "--precision", "bf16"], &named[..]].concat(), 2, &["--precision", "leave it out"]);
    place.write("rows.jsonl", "{\"text\": \"a\"}\n");
    refused(
        &["float.onnx", "--data", "rows.jsonl", "--tokenizer", "nano_llama"],
        1,
        &["1 token does not fill", "longer text"],
    );
    // A vocabulary that has not all tokens of the text, and two that differ.
    let graph = std::fs::read(place.path("float.onnx")).unwrap();
    let (whole, fewer): (&[u8], &[u8]) = (&[0x08, 0x80, 0x10], &[0x08, 0x80, 0x01]);
    let at = graph.windows(3).rposition(|bytes| bytes == whole).unwrap();
    let changed = [&graph[..at], fewer, &graph[at + 3..]].concat();
    std::fs::write(place.path("nano_llama/other.onnx"), changed).unwrap();
    refused(&[&["nano_llama/other.onnx"], &text[..]].concat(), 1, &["not in the vocabulary of 128"]);
    refused(
        &[&["nano_llama/other.onnx", "--reference", "float.onnx"], &text[..]].concat(),
        1,
        &["the vocabulary of the model is 128, that of the reference 2048", "--reference"],
    );
}

/// The quality that a run over a graph reports of its result on text.
fn quality(run: &serde_json::Value) -> serde_json::Value {
    assert_eq!(run["quality"]["samples_from"], "held-out", "{run}");
    run["quality"]["text"].clone()
}

#[test]
fn decoder_graph_is_calibrated_on_text_and_on_tokens() {
    let place = place();
    std::fs::copy(place.path("float.onnx"), place.path("nano_llama/model.onnx")).unwrap();
    let quantize = |graph: &str, data: &str, output: &str| {
        let preset = ["quantize", graph, "--preset", "INT8_TRANSFORMER_DEFAULT", "--runtime", "rten", "--json"];
        let data = ["--data", data, "--num-samples", "4", "--seq-len", "32", "-o", output];
        place.succeed(&[&preset[..], &data[..]].concat()).json()
    };
    let of_text = quality(&quantize("nano_llama/model.onnx", "text.txt", "text.onnx"));
    let divergence = of_text["kl_mean"].as_f64().unwrap();
    assert!(divergence > 0.0 && divergence < 0.2 && of_text["tokens"].as_u64().unwrap() >= 31, "{of_text}");
    let found = evaluated(&place, &["text.onnx", "--reference", "nano_llama/model.onnx", "--runtime", "rten"]);
    let whole = found["kl_mean"].as_f64().unwrap();
    assert!(whole > divergence / 4.0 && whole < divergence * 4.0, "{whole}, {divergence} on the held-out sequences");

    // Rows of tokens need no tokenizer.
    let row = |first: u32| serde_json::json!({"input_ids": (first..first + 40).collect::<Vec<u32>>()}).to_string();
    place.write("rows.jsonl", &(0..6).map(|i| row(100 * i + 5) + "\n").collect::<String>());
    let of_tokens = quality(&quantize("float.onnx", "rows.jsonl", "tokens.onnx"));
    assert_eq!(of_tokens["tokens"], 62, "two rows of 32 tokens are left");
}

#[test]
fn text_for_graphs_that_cannot_take_it_is_refused() {
    let place = place();
    let data = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../onnx/tests/data");
    std::fs::copy(data.join("tinycnn.float.onnx"), place.path("image.onnx")).unwrap();
    std::fs::copy(data.join("tinycnn.calib.npz"), place.path("calib.npz")).unwrap();
    for (line, code, words) in [
        ("quantize image.onnx --preset A8W8 --data text.txt -o out.onnx", 1, "no decoder of text"),
        ("sensitivity image.onnx --preset A8W8 --data text.txt", 1, "no decoder of text"),
        ("sensitivity image.onnx --preset A8W8 --data calib.npz --eval text.txt", 1, "no decoder of text"),
        (
            "quantize image.onnx --preset A8W8 --data calib.npz --seq-len 9 -o out.onnx",
            2,
            "--seq-len applies only to text",
        ),
        ("quantize float.onnx --preset A8W8 --data text.txt -o out.onnx", 1, "tokenizer.json is missing"),
        (
            "quantize float.onnx --preset A8W8 --data text.txt --preprocess size=8 -o out.onnx",
            2,
            "does not apply to text",
        ),
    ] {
        let run = place.run(&[&line.split(' ').collect::<Vec<_>>()[..], &["--runtime", "rten"]].concat());
        assert!(run.code == Some(code) && run.stderr.contains(words), "{line}: {run:?}");
        assert!(!place.path("out.onnx").exists());
    }
}
