//! `kvant generate`: text of a model on stdout, and what is refused before any work.

use crate::kvant::Place;
use serde_json::Value;

const PROMPT: &str = "The iterator yields every element of the";

fn json(place: &Place, args: &[&str]) -> Value {
    serde_json::from_str(&place.succeed(&[&["generate"], args, &["--json"]].concat()).stdout).unwrap()
}

#[test]
fn continuation_alone_is_on_stdout() {
    let place = Place::new();
    let run = place.succeed(&["generate", "nano_llama", "--prompt", PROMPT, "--max-new-tokens", "12"]);
    let found = json(&place, &["nano_llama", "--prompt", PROMPT, "--max-new-tokens", "12"]);
    let text = found["prompts"][0]["text"].as_str().unwrap();
    assert_eq!(run.stdout, format!("{text}\n"));
    assert!(run.stderr.contains("12 tokens in"), "{}", run.stderr);
    assert_eq!(found["prompts"][0]["finish"], "length");
    assert_eq!(place.succeed(&["generate", "nano_llama", "-p", PROMPT, "-n", "12", "--quiet"]).stderr, "");
}

#[test]
fn reference_is_shown_below_the_model() {
    let place = Place::new();
    place.succeed(&["quantize", "nano_llama", "--scheme", "int2:g32", "-o", "int2"]);
    place.write("prompt.txt", "fn main() {");
    let args = ["generate", "int2", "--reference", "nano_llama", "--prompt", PROMPT, "--prompt-file", "prompt.txt"];
    let run = place.succeed(&args);
    let parts = ["[prompt]\nThe iterator", "[model]\n", "[reference]\n", "[prompt]\nfn main() {\n[model]\n"];
    assert!(parts.iter().all(|part| run.stdout.contains(part)), "{}", run.stdout);
    assert!(run.stderr.contains("prompt 1: the texts first differ after"), "{}", run.stderr);
    let same = place.succeed(&["generate", "nano_llama", "--reference", "nano_llama", "--prompt", PROMPT, "-n", "5"]);
    assert!(same.stderr.contains("both texts are the same 5 tokens"), "{}", same.stderr);
}

#[test]
fn quantized_models_of_every_kind_are_continued() {
    let place = Place::new();
    place.write("text.txt", &PROMPT.repeat(100));
    let calibrated = ["--kv-cache", "fp8", "--calib", "text.txt", "--num-samples", "4"];
    place.succeed(&["quantize", "nano_llama", "--scheme", "Q8_0", "-o", "q8.gguf"]);
    place.succeed(&[&["quantize", "nano_llama", "--scheme", "fp8", "-o", "cache"], &calibrated[..]].concat());
    let tokens = |model: &str| json(&place, &[model, "--prompt", PROMPT, "-n", "6"])["prompts"][0]["tokens"].clone();
    assert_eq!(tokens("q8.gguf"), tokens("nano_llama"));
    assert_eq!(tokens("cache").as_array().unwrap().len(), 6);
}

#[test]
fn samples_depend_on_the_seed_alone() {
    let place = Place::new();
    let sampled = |seed: &str, threads: &str, prompt: &[&str]| {
        let args = ["--temperature", "1.5", "--top-k", "50", "--top-p", "0.9", "--seed", seed, "--threads", threads];
        json(&place, &[&["nano_llama"], &args[..], prompt].concat())["prompts"][0]["tokens"].clone()
    };
    let one = sampled("1", "1", &["--prompt", PROMPT]);
    assert_eq!(sampled("1", "2", &["--prompt", PROMPT, "--prompt", "Another"]), one);
    assert_ne!(sampled("2", "1", &["--prompt", PROMPT]), one);
}

#[test]
fn stop_text_ends_the_continuation() {
    let place = Place::new();
    let all = json(&place, &["nano_llama", "--prompt", PROMPT, "-n", "20"])["prompts"][0].clone();
    let word = all["text"].as_str().unwrap().split(' ').rfind(|word| word.len() > 2).unwrap().to_owned();
    let found = json(&place, &["nano_llama", "--prompt", PROMPT, "-n", "20", "--stop", &word])["prompts"][0].clone();
    assert_eq!(found["finish"], "stop");
    let text = found["text"].as_str().unwrap();
    assert!(all["text"].as_str().unwrap().starts_with(text) && !text.contains(&word), "{found} {all}");
    // Text is printed as it comes, and what may begin the stop text is not.
    let run = place.succeed(&["generate", "nano_llama", "--prompt", PROMPT, "-n", "20", "--stop", &word]);
    assert_eq!(run.stdout, format!("{text}\n"));
}

#[test]
fn chat_puts_the_prompt_into_the_template() {
    let place = Place::new();
    let plain = json(&place, &["nano_llama", "--prompt", "Hello", "-n", "1"]);
    let run = place.run(&["generate", "nano_llama", "--prompt", "Hello", "--chat"]);
    assert_eq!(run.code, Some(2));
    assert!(run.stderr.contains("nano_llama has no chat template") && run.stderr.contains("--chat"), "{}", run.stderr);
    let template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if add_generation_prompt %}<answer>{% endif %}";
    place.write("nano_llama/chat_template.jinja", template);
    let chat = json(&place, &["nano_llama", "--prompt", "Hello", "--chat", "-n", "1"]);
    let same = json(&place, &["nano_llama", "--prompt", "<user>Hello<answer>", "-n", "1"]);
    assert_eq!(chat["prompts"][0]["tokens"], same["prompts"][0]["tokens"]);
    assert_eq!(chat["prompts"][0]["prompt_tokens"], same["prompts"][0]["prompt_tokens"]);
    assert_ne!(chat["prompts"][0]["prompt_tokens"], plain["prompts"][0]["prompt_tokens"]);
}

#[test]
fn impossible_generations_are_refused_before_the_work() {
    let place = Place::new();
    place.write("empty.txt", "");
    place.write("graph.onnx", "");
    let lines: [(&[&str], &str); 12] = [
        (&["nano_llama"], "--prompt"),
        (&["nano_llama", "--prompt", ""], "a prompt is empty"),
        (&["nano_llama", "--prompt-file", "empty.txt"], "empty.txt is empty"),
        (&["nano_llama", "--prompt-file", "none.txt"], "there is no such file"),
        (&["nano_llama", "--prompt", "a", "-n", "100000"], "longer than the 512 that the model was made for"),
        (&["nano_llama", "--prompt", "a", "-n", "0"], "--max-new-tokens"),
        (&["nano_llama", "--prompt", "a", "--temperature", "-1"], "--temperature"),
        (&["nano_llama", "--prompt", "a", "--temperature", "1", "--top-p", "1.5"], "--top-p is 1.5"),
        (&["nano_llama", "--prompt", "a", "--top-k", "5"], "--temperature"),
        (&["nano_llama", "--prompt", "a", "--temperature", "0", "--top-k", "5"], "--top-k has no effect"),
        (&["nano_llama", "--prompt", "a", "--max-memory", "1kB"], "--max-memory"),
        (&["nowhere", "--prompt", "a"], "nowhere"),
    ];
    for (line, message) in lines {
        let run = place.run(&[&["generate"], line].concat());
        assert_eq!((run.code, run.stdout.as_str()), (Some(2), ""), "{line:?}: {run:?}");
        assert!(run.stderr.contains(message), "{line:?}: {}", run.stderr);
    }
    let graph = place.run(&["generate", "graph.onnx", "--prompt", "a"]);
    assert!(graph.code == Some(1) && graph.stderr.contains("is an ONNX graph"), "{graph:?}");
    std::fs::remove_file(place.path("nano_llama/tokenizer.json")).unwrap();
    let none = place.run(&["generate", "nano_llama", "--prompt", "a"]);
    assert!(none.code == Some(1) && none.stderr.contains("tokenizer.json is missing"), "{none:?}");
}

#[test]
fn report_shows_both_texts_and_replaces_no_file() {
    let place = Place::new();
    let args = [
        "generate",
        "nano_llama",
        "--reference",
        "nano_llama",
        "--prompt",
        PROMPT,
        "-n",
        "4",
        "--report",
        "texts.html",
    ];
    place.succeed(&args);
    let page = std::fs::read_to_string(place.path("texts.html")).unwrap();
    assert!(page.contains("reference: 4 tokens") && page.contains("1 of 1"), "{page}");
    let again = place.run(&args);
    assert_eq!((again.code, again.stdout.as_str()), (Some(1), ""));
    assert!(again.stderr.contains("texts.html exists already"), "{}", again.stderr);
    let inside = place.run(&["generate", "nano_llama", "--prompt", PROMPT, "--report", "nano_llama/texts.html"]);
    assert_eq!(inside.code, Some(2), "{}", inside.stderr);
}
