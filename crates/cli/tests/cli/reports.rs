//! Reports for people: pages of runs, pages of saved results, and files that are not replaced.

use crate::kvant::Place;

const TEXT: &str = "The tower stood where the river turns. Nobody had seen who built it, and nobody asked any more. ";

fn read(place: &Place, name: &str) -> String {
    std::fs::read_to_string(place.path(name)).unwrap()
}

#[test]
fn commands_write_pages_of_what_they_found() {
    let place = Place::new();
    place.write("text.txt", &TEXT.repeat(40));
    let calib = ["--calib", "text.txt", "--num-samples", "4", "--seq-len", "32", "--algorithm", "gptq"];
    let quantize = ["quantize", "nano_llama", "-s", "int4:g32", "-o", "int4", "--report", "int4.html"];
    place.succeed(&[&quantize[..], &calib].concat());
    let page = read(&place, "int4.html");
    let layers = page.matches("class=\"area\"").count();
    assert_eq!(layers, 28, "the weights of each layer");
    assert_eq!(page.matches("class=\"counts\"").count(), 16, "what layers read, each input once");
    for shown in ["Quantization: nano_llama", "int4:g32", "model.layers.0.mlp.down_proj", "text.txt", "<svg"] {
        assert!(page.contains(shown), "{shown}");
    }
    let eval = ["eval", "int4", "--reference", "nano_llama", "--data", "text.txt", "--seq-len", "64"];
    let result = place.succeed(&[&eval[..], &["--json", "--report", "eval.md"]].concat()).stdout;
    let page = read(&place, "eval.md");
    assert!(page.contains("# Evaluation: int4") && page.contains("| block 3 |"), "{page}");
    let found: serde_json::Value = serde_json::from_str(&result).unwrap();
    let changed = found["changed_tokens"].as_array().unwrap();
    let divergences: Vec<f64> = changed.iter().map(|token| token["kl"].as_f64().unwrap()).collect();
    assert!(changed.len() == 20 && divergences.is_sorted_by(|a, b| a >= b), "{divergences:?}");
    assert!(
        divergences[0] >= found["kl_p99"].as_f64().unwrap() && divergences[19] > found["kl_mean"].as_f64().unwrap()
    );
    let context = changed[0]["context"].as_str().unwrap();
    assert!(TEXT.repeat(2).contains(context.trim()) && changed[0]["context_tokens"].as_array().unwrap().len() <= 12);
    assert!(page.contains("Tokens that changed most"), "{page}");
    assert!(place.run(&[&eval[..], &["--report", "eval.md"]].concat()).stderr.contains("eval.md exists already"));

    place.write("a.json", &result);
    place.write("b.json", &result);
    assert_eq!(place.succeed(&["report", "a.json", "b.json", "-o", "both.html"]).stdout, "both.html\n");
    assert!(read(&place, "both.html").contains("2 models"));
    let made = place.succeed(&["report", "a.json", "-o", "one.md", "--json"]).json();
    assert_eq!(made["output"], "one.md");

    place.write("other.txt", &TEXT.repeat(39));
    let other = ["eval", "int4", "--reference", "nano_llama", "--data", "other.txt", "--seq-len", "64", "--json"];
    std::fs::create_dir(place.path("c")).unwrap();
    place.write("c/a.json", &place.succeed(&other).stdout);
    let run = place.succeed(&["report", "a.json", "c/a.json", "-o", "texts.md"]);
    assert!(run.stderr.contains("c/a and a were evaluated on different data (other.txt, text.txt)"), "{run:?}");
    let page = read(&place, "texts.md");
    assert!(page.contains("| c/a |") && page.contains("different data"), "{page}");

    let search =
        ["search", "nano_llama", "--options", "int4:g128,int8:channel", "--data", "text.txt", "--num-samples", "2"];
    place.succeed(&[&search[..], &["--seq-len", "32", "--report", "search.html"]].concat());
    assert!(read(&place, "search.html").contains("Size and divergence"));
}

#[test]
fn types_of_gguf_files_and_files_of_statistics_are_shown() {
    let place = Place::new();
    place.succeed(&["quantize", "nano_llama", "-s", "Q8_0", "-o", "a.gguf", "--report", "gguf.md"]);
    let page = read(&place, "gguf.md");
    assert!(page.contains("Q8\\_0") && page.contains("types of tensors") && page.contains(" F32"), "{page}");
}

#[test]
fn activations_are_shown_with_their_ranges_and_change_nothing() {
    let place = Place::new();
    place.write("text.txt", &TEXT.repeat(40));
    let quantize = |output: &str, more: &[&str]| {
        let calib = ["--calib", "text.txt", "--num-samples", "4", "--seq-len", "32", "--no-model-card"];
        place.succeed(&[&["quantize", "nano_llama", "-s", "int8", "-o", output], &calib[..], more].concat())
    };
    quantize("plain", &[]);
    quantize("shown", &["--report", "shown.html"]);
    let page = read(&place, "shown.html");
    assert_eq!((page.matches("class=\"covered\"").count(), page.matches("nothing clipped").count()), (16, 3 * 16));
    for name in ["model.safetensors", "calibration.json"] {
        let [plain, shown] = ["plain", "shown"].map(|folder| std::fs::read(place.path(folder).join(name)).ok());
        assert!(plain == shown, "{name} depends on the report");
    }
    place.succeed(&["quantize", "nano_llama", "-s", "FP8_DYNAMIC", "-o", "dynamic", "--report", "dynamic.html"]);
    assert!(read(&place, "dynamic.html").contains("Their scales are found while the model runs"));
}

/// A picture of one pixel, and the same in another colour.
const PIXELS: [&[u8]; 2] = [
    b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x01\0\0\0\x01\x08\x02\0\0\0\x90wS\xde\0\0\0\x0cIDATx\xdac8!\xc7\x05\0\x02\xa2\0\xf1\xfc\xd7\xad\xf2\0\0\0\0IEND\xaeB`\x82",
    b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x01\0\0\0\x01\x08\x02\0\0\0\x90wS\xde\0\0\0\x0cIDATx\xdac\xe0\x92\xbb\x03\0\x01:\x01\x05\xb4\x9e\x877\0\0\0\0IEND\xaeB`\x82",
];

#[test]
fn images_are_shown_with_the_classes_of_both_graphs() {
    let place = Place::empty();
    let data = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../onnx/tests/data");
    std::fs::copy(data.join("tinycnn.float.onnx"), place.path("float.onnx")).unwrap();
    std::fs::create_dir(place.path("images")).unwrap();
    for number in 0..30 {
        std::fs::write(place.path(&format!("images/{number:02}.png")), PIXELS[number % 2]).unwrap();
    }
    let data = ["--data", "images", "--preprocess", "size=16x16,scale=0.004", "--runtime", "rten"];
    let quantize = ["quantize", "float.onnx", "--preset", "A8W8", "-o", "q.onnx", "--report", "q.html"];
    place.succeed(&[&quantize[..], &data].concat());
    let page = read(&place, "q.html");
    let pictures = |page: &str| page.matches("<img src=\"data:image/jpeg;base64,").count();
    assert!(pictures(&page) == 24 && page.contains("00.png") && page.contains("class=\"covered\""), "{page}");
    let eval = ["eval", "q.onnx", "--reference", "float.onnx", "--report", "e.html"];
    place.succeed(&[&eval[..], &data].concat());
    let page = read(&place, "e.html");
    assert!(pictures(&page) == 24 && page.contains("24 of 30 images") && page.contains("class=\"outline\""), "{page}");
}

#[test]
fn files_that_are_no_pages_are_kept() {
    let place = Place::new();
    place.write("text.txt", &TEXT.repeat(40));
    place.write("mine.html", "<p>mine");
    place.write("plan.json", r#"{"schema": "kvant.plan/1"}"#);
    let eval = ["eval", "nano_llama", "--data", "text.txt", "--seq-len", "64", "--report"];
    let quantize = ["quantize", "nano_llama", "-s", "int4:g32", "-o", "out", "--report"];
    for (line, code, words) in [
        (&[&eval[..], &["mine.html"]].concat()[..], 1, "mine.html exists already"),
        (&[&eval[..], &["nano_llama/a.html"]].concat(), 2, "nano_llama"),
        (&[&eval[..], &["a.pdf"]].concat(), 2, "a.pdf: reports are pages in HTML or Markdown"),
        (&[&eval[..], &["none/a.html"]].concat(), 2, "none"),
        (&[&quantize[..], &["mine.html"]].concat(), 1, "mine.html exists already"),
        (&[&quantize[..], &["mine.html", "--overwrite"]].concat(), 1, "it is not a report of Kvant"),
        (&[&quantize[..], &["a.json"]].concat(), 2, "--report in JSON applies only to quantized ONNX graphs"),
        (&[&quantize[..], &["a.txt"]].concat(), 2, "name a file that ends in .html or .md"),
        (&["report", "plan.json", "-o", "a.html"], 1, "plan is not the result of"),
        (&["report", "text.txt", "-o", "a.html"], 1, "text.txt is not JSON"),
        (&["report", "none.json", "-o", "a.html"], 2, "none.json"),
        (&["report", "plan.json", "-o", "plan.json"], 2, "reports are pages"),
    ] {
        let run = place.run(line);
        assert!(run.code == Some(code) && run.stderr.contains(words), "{line:?}: {run:?}");
    }
    assert_eq!(read(&place, "mine.html"), "<p>mine");
    assert!(!place.path("out").exists() && !place.path("a.html").exists());
}
