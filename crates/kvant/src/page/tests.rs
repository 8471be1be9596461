use super::*;
use crate::paths::is_page;
use serde_json::json;

fn result(name: &str, value: Value) -> NamedResult {
    NamedResult { name: name.to_owned(), value }
}

fn evaluation(kl: f64) -> Value {
    json!({"schema": "kvant.eval/1", "perplexity": 47.6, "tokens": 100, "windows": 2, "seq_len": 64, "kl_mean": kl, "kl_mean_error": 0.0001,
           "top1_agreement": 0.94, "blocks": [{"block": 0, "sqnr_db": 24.6}, {"block": 1, "sqnr_db": null}]})
}

#[test]
fn pages_show_figures_charts_and_tables() {
    let quantized = json!({"schema": "kvant.quantize/1", "output": "out", "format": "quark", "recipe": {"scheme": "int4:g128", "algorithm": ["gptq"]},
        "source_bytes": 2000, "output_bytes": 1000, "bits_per_weight": 4.16, "quantized_layers": 2, "kept_tensors": 1, "seconds": 1.5,
        "loading": [{"loader": "vLLM", "line": "vllm serve out"}], "notices": ["a notice"],
        "calibration": {"data": {"files": [{"name": "a.txt", "xxh3_128": "00ff", "bytes": 10, "rows_used": 1}]},
            "layers": [{"layer": "a.q_proj", "algorithm": "gptq", "loss": 1.0, "loss_rtn": 4.0, "tokens": 64}]}});
    let page = Page::of(&[result("model", quantized)]).unwrap();
    let html = page.render(PageFormat::Html);
    for shown in ["2.0 kB", "int4:g128", "vllm serve out", "25.00 %", "a.q_proj", "00ff", "a notice", "<svg"] {
        assert!(html.contains(shown), "{shown}");
    }
    // Everything is in the file.
    assert!(!html.contains("src=") && !html.contains("href="), "{html}");
    let markdown = page.render(PageFormat::Markdown);
    assert!(markdown.contains("| a.q\\_proj | gptq | 1.562e-2 | 6.250e-2 | 25.00 | 64 |"), "{markdown}");
}

#[test]
fn losses_are_those_of_a_token_of_the_data_that_they_are_measured_on() {
    let layer = json!({"layer": "a", "algorithm": "gptq", "loss": 1.0, "loss_rtn": 4.0, "tokens": 64, "held_out": 8});
    let value = json!({"schema": "kvant.quantize/1", "calibration": {"layers": [layer]}});
    let markdown = Page::of(&[result("a", value)]).unwrap().render(PageFormat::Markdown);
    assert!(markdown.contains("| a | gptq | 1.250e-1 | 5.000e-1 | 25.00 | 64 |"), "{markdown}");
}

#[test]
fn files_of_statistics_are_shown_with_their_hash() {
    let statistics = json!({"name": "s.safetensors", "bytes": 12, "xxh3_128": "00ab"});
    let value = json!({"schema": "kvant.quantize/1", "calibration": {"statistics": statistics}});
    let html = Page::of(&[result("a", value)]).unwrap().render(PageFormat::Html);
    assert!(html.contains("s.safetensors") && html.contains("00ab") && html.contains("Statistics of inputs"), "{html}");
}

#[test]
fn evaluations_of_other_texts_and_windows_are_told_apart() {
    let on = |name: &str, hash: &str| {
        let mut value = evaluation(0.1);
        value["data"] = json!({"name": name, "xxh3_128": hash});
        value
    };
    let compare = |first: Value, second: Value| Page::of(&[result("a", first), result("b", second)]).unwrap();
    let page = compare(on("x.txt", "1"), on("y.txt", "2"));
    assert!(page.warnings()[0].starts_with("b and a were evaluated on different data (y.txt, x.txt)"), "{page:?}");
    assert!(page.render(PageFormat::Html).contains("different data"));
    assert!(compare(on("x.txt", "1"), on("x.txt", "1")).warnings().is_empty());
    // Of an older version, without a hash.
    assert!(compare(on("x.txt", "1"), evaluation(0.2)).warnings().is_empty());
    let mut longer = evaluation(0.2);
    longer["seq_len"] = json!(128);
    let page = compare(evaluation(0.1), longer);
    assert!(page.warnings()[0].contains("100 tokens scored in 2 windows of 128"), "{page:?}");
}

#[test]
fn result_is_kept_where_its_page_cannot_be_written() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("gone");
    let found = || {
        let mut value = evaluation(0.1);
        value.as_object_mut().unwrap().remove("schema");
        value
    };
    let error = write(Some(&folder.join("a.html")), Path::new("m"), "eval", &[], found).unwrap_err();
    assert!(error.kind == ErrorKind::System && error.message.ends_with("; everything else is complete"), "{error}");
    let command = error.remedies[0].values().remove(0);
    let kept = command.strip_prefix("report ").unwrap().strip_suffix(" -o FILE").unwrap();
    let output = dir.path().join("again.html");
    Page::make(&PageRequest { results: vec![kept.into()], output: output.clone(), overwrite: false }).unwrap();
    assert!(is_page(&output));
    std::fs::remove_file(kept).unwrap();
}

#[test]
fn page_says_first_what_it_is_about() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("a.md");
    let about = [("model", "models/out".to_owned()), ("reference", String::new()), ("data", "held.txt".to_owned())];
    write(Some(&file), Path::new("models/out"), "eval", &about, || evaluation(0.1)).unwrap();
    let page = std::fs::read_to_string(file).unwrap();
    let place = |text: &str| page.find(text).unwrap_or_else(|| panic!("{text}: {page}"));
    assert!(place("models/out") < place("held.txt") && place("held.txt") < place("perplexity"));
    assert!(!page.contains("| reference |"), "{page}");
}

#[test]
fn quantization_shows_sizes_warnings_and_the_load_of_experts() {
    let layer = |expert: u32, tokens: u32| json!({"layer": format!("b.experts.{expert}.up"), "loss": 1.0, "loss_rtn": 4.0, "tokens": tokens, "held_out": 10});
    let value = json!({"schema": "kvant.quantize/1",
        "sizes": [{"kind": "up", "quantized": true, "tensors": 2, "bytes": 3000}, {"kind": "norm", "quantized": false, "tensors": 1, "bytes": 1000}],
        "calibration": {"layers": [layer(0, 100), layer(1, 40), layer(2, 60), layer(3, 0)],
            "tunings": [{"block": 0, "tuning": "tune", "tokens": 50, "loss_before": 2.0, "loss_after": 1.5}],
            "starved": [{"layer": "b.experts.3.up", "tokens": 0, "inputs": 8, "treatment": "rounded to nearest"}],
            "data": {"samples": 4, "sequence_length": 50, "tokens": 200, "held_out": {"samples": 1, "tokens": 50}}}});
    let page = Page::of(&[result("a", value)]).unwrap();
    let markdown = page.render(PageFormat::Markdown);
    for words in [
        "| up | quantized | 2 | 3.0 kB | 75.00 % |",
        "| norm | kept | 1 | 1.0 kB | 25.00 % |",
        "b.experts.3.up saw only 0 calibration tokens for 8 inputs: rounded to nearest",
        "on held-out tokens",
        "200 tokens in 4 sequences of 50 at most; 50 further tokens are held out to measure errors.",
        "| 0 | tune | 2.000e0 | 1.500e0 | 25.00 % |",
        // The median of an even number is between the two in the middle.
        "| b | 4 | 0 | 50 | 100 | 1 |",
    ] {
        assert!(markdown.contains(words), "{words}: {markdown}");
    }
    assert!(page.render(PageFormat::Html).contains("class=\"hollow\""));
    // Tuning alone counts the tokens of experts and reads no inputs of layers: what these lose is not known.
    let layer = json!({"layer": "b.experts.0.up", "loss": null, "loss_rtn": null, "tokens": 200, "held_out": null});
    let tuned = json!({"schema": "kvant.quantize/1", "calibration": {"layers": [layer]}, "weights": [{"layer": "a", "limit": 1.0, "before": [1], "after": [1]}]});
    let markdown = Page::of(&[result("a", tuned)]).unwrap().render(PageFormat::Markdown);
    assert!(markdown.contains("| b | 1 | 200 | 200 | 200 | 0 |") && !markdown.contains("## Layers"), "{markdown}");
    assert!(
        !markdown.contains("## Weights"),
        "charts of shapes have no place in Markdown, nor has their heading: {markdown}"
    );
}

#[test]
fn bars_of_negative_values_end_at_zero() {
    let svg = |rows: &[f64]| {
        let rows = rows.iter().map(|value| (format!("{value}"), *value)).collect();
        Bars { title: String::new(), unit: "dB".to_owned(), rows }.svg()
    };
    let drawing = svg(&[30.0, -10.0]);
    assert!(drawing.contains("x=\"20%\"") && drawing.contains("width=\"60%\""), "{drawing}");
    assert!(drawing.contains("x=\"0%\"") && drawing.contains("width=\"20%\""), "{drawing}");
    assert!(svg(&[-5.0, -10.0]).contains("width=\"40%\""));
}

#[test]
fn names_are_not_markup() {
    let name = "<script>alert(1)</script>|`x`";
    let value = json!({"schema": "kvant.quantize/1", "output": name, "calibration": {"layers": [{"layer": name, "loss": 1, "loss_rtn": 2}]}});
    let page = Page::of(&[result(name, value)]).unwrap();
    assert!(!page.render(PageFormat::Html).contains("<script>alert"));
    let markdown = page.render(PageFormat::Markdown);
    assert!(!markdown.contains("<script>") && markdown.contains("\\|\\`x\\`"), "{markdown}");
}

#[test]
fn answers_to_different_questions_are_not_compared_silently() {
    let answers = |form: &str, questions: u32, hash: &str| {
        json!({"schema": "kvant.eval/1", "accuracy": 0.5, "accuracy_norm": 0.5, "form": form, "questions": questions,
               "data": {"name": "q.jsonl", "xxh3_128": hash}})
    };
    let compare = |first: Value, second: Value| {
        Page::of(&[result("a", first), result("b", second)]).unwrap().warnings().join("\n")
    };
    assert_eq!(compare(answers("arc", 20, "1"), answers("arc", 20, "1")), "");
    assert!(compare(answers("arc", 20, "1"), answers("arc", 20, "2")).contains("different data"));
    let fewer = compare(answers("arc", 20, "1"), answers("arc", 10, "1"));
    assert_eq!(fewer, "b (10 questions of the form arc) and a (20 questions of the form arc) do not compare");
}

#[test]
fn evaluations_are_compared() {
    let page = Page::of(&[result("a", evaluation(0.004)), result("b", evaluation(0.02))]).unwrap();
    let html = page.render(PageFormat::Html);
    assert!(html.contains("2 models") && html.contains("0.004000 nats") && html.contains("<polyline"), "{html}");
    let other = result("c", json!({"schema": "kvant.plan/1"}));
    let error = Page::of(&[result("a", evaluation(0.1)), other.clone()]).unwrap_err();
    assert!(error.message.contains("c is not the evaluation"), "{error}");
    assert!(Page::of(&[other]).is_err() && Page::of(&[]).is_err());
    let answers = json!({"schema": "kvant.eval/1", "form": "ARC", "questions": 4, "accuracy": 0.5, "accuracy_error": 0.25, "flips": 3});
    let error = Page::of(&[result("a", evaluation(0.1)), result("b", answers.clone())]).unwrap_err();
    assert!(
        error.message.contains("b is the evaluation of answers to questions, and a that of a language model"),
        "{error}"
    );
    let markdown =
        Page::of(&[result("a", answers.clone()), result("b", answers)]).unwrap().render(PageFormat::Markdown);
    assert!(markdown.contains("| a | 50.00 % ± 25.00 | 4 | 3 |"), "{markdown}");
}

#[test]
fn models_of_one_evaluation_are_compared() {
    let model = |path: &str, kl: f64| {
        let mut object = evaluation(kl);
        object.as_object_mut().unwrap().remove("schema");
        object["model"] = path.into();
        object["bytes"] = 2_000_000.into();
        object["positions"] = json!([{"from": 0, "to": 255, "tokens": 9, "loss_mean": 3.0, "kl_mean": 0.1},
                                     {"from": 256, "to": 511, "tokens": 9, "loss_mean": 2.5, "kl_mean": 0.2}]);
        object
    };
    let several =
        json!({"schema": "kvant.eval/1", "models": [model("a/int4", 0.004), model("b/int3", 0.02)], "seconds": 1.0});
    let page = Page::of(&[result("int4", several)]).unwrap();
    let markdown = page.render(PageFormat::Markdown);
    assert!(markdown.contains("# 2 models") && markdown.contains("| int3 | 2.0 MB | 47.60 |"), "{markdown}");
    assert!(page.render(PageFormat::Html).contains("KL divergence by position"), "{markdown}");
}

#[test]
fn losses_by_position_are_a_chart_where_there_are_several_ranges() {
    let mut one = evaluation(0.1);
    let range = |from: u64, to: u64| json!({"from": from, "to": to, "tokens": 9, "loss_mean": 3.0, "reference_loss_mean": 2.9, "kl_mean": 0.1});
    one["positions"] = json!([range(0, 255)]);
    assert!(!Page::of(&[result("a", one.clone())]).unwrap().render(PageFormat::Html).contains("by position"));
    one["positions"] = json!([range(0, 255), range(256, 511)]);
    let html = Page::of(&[result("a", one)]).unwrap().render(PageFormat::Html);
    assert!(html.contains("Loss by position") && html.contains("KL divergence by position"), "{html}");
}

#[test]
fn searches_and_sensitivities_have_pages() {
    let mix = |name: &str, bytes: u64, kl: f64| json!({"name": name, "bytes": bytes, "bits_per_weight": 4.2, "predicted_kl": kl, "kl": kl, "top1_agreement": 0.9});
    let choice = |option: &str, kl: f64| json!({"option": option, "bytes": 10, "kl": kl});
    let mut compared = mix("int4", 1000, 0.01);
    compared["kl_error"] = json!(0.0005);
    let search = json!({"schema": "kvant.search/1", "format": "quark", "options": ["int4", "float"], "method": "measured",
        "groups": [{"group": "a.mlp", "chosen": "int4", "choices": [choice("int4", 0.01), choice("float", 0.0)]}],
        "front": [mix("front", 900, 0.02), mix("front", 90_000, 0.0002)], "compared": [compared], "chosen": mix("search", 950, 0.009)});
    let html = Page::of(&[result("search", search)]).unwrap().render(PageFormat::Html);
    assert!(html.contains("a.mlp") && html.contains("<circle") && html.contains("0.009000"), "{html}");
    assert!(html.contains("0.01000 ± 0.0005000") && html.contains("nats, logarithmic"), "{html}");
    assert!(html.contains("int4, nats") && html.contains("1.000e-2") && html.contains("0.0009500 MB"), "{html}");
    let sensitivity = json!({"schema": "kvant.sensitivity/1", "candidates": ["recipe", "float"], "recipe": {"sqnr_db": 30.0},
        "layers": [{"layer": "conv", "op": "Conv", "alone": [{"sqnr_db": 12.5}]}]});
    let html = Page::of(&[result("graph", sensitivity)]).unwrap().render(PageFormat::Html);
    assert!(html.contains("conv: 12.50 dB"), "{html}");
}

#[test]
fn graphs_have_pages() {
    let output = json!({"name": "y", "op": "Gemm", "sqnr_db": 31.25, "cosine": 0.999, "max_error": 0.1});
    let graph = json!({"schema": "kvant.quantize/1", "format": "onnx", "output": "a.onnx", "source_bytes": 400, "output_bytes": 100,
        "quality": {"samples": 4, "outputs": [output.clone()], "warnings": ["slow"], "suggestions": [{"option": "‹per-channel›", "about": "more scales"}]},
        "report": {"nodes": 3, "quantized_nodes": 2, "tensors": [{"name": "x", "role": "activation", "dtype": "uint8", "scale": 0.5, "range": {"low": -1.0, "high": 2.0}}]}});
    let html = Page::of(&[result("a", graph)]).unwrap().render(PageFormat::Html);
    assert!(html.contains("31.25") && html.contains("slow") && html.contains("uint8"), "{html}");
    assert!(html.contains("What may help") && html.contains("--per-channel: more scales"), "{html}");
    let evaluated = json!({"schema": "kvant.eval/1", "samples": 4, "top1_agreement": 0.5, "outputs": [output]});
    let html = Page::of(&[result("a", evaluated)]).unwrap().render(PageFormat::Html);
    assert!(html.contains("50.00 %") && html.contains("31.25"), "{html}");
}

#[test]
fn pages_of_kvant_are_known() {
    let dir = tempfile::tempdir().unwrap();
    let page = Page::of(&[result("a", evaluation(0.1))]).unwrap();
    for name in ["a.html", "a.MD"] {
        let file = dir.path().join(name);
        page.write(&file).unwrap();
        assert!(is_page(&file));
        std::fs::write(&file, "mine").unwrap();
        assert!(!is_page(&file));
    }
    assert!(page.write(&dir.path().join("a.txt")).is_err());
    // One of the names has a character of two bytes where the beginning that is read ends.
    for start in ["", "x"] {
        let name = format!("{start}{}", "ü".repeat(300));
        let file = dir.path().join("long.md");
        Page::of(&[result(&name, evaluation(0.1))]).unwrap().write(&file).unwrap();
        assert!(is_page(&file), "{start}");
    }
}

#[test]
fn tokens_that_changed_most_are_shown_with_text_or_numbers() {
    let prediction = |text: Value| json!({"token": 7, "text": text, "probability": 0.5, "expected_probability": 0.25});
    let token = |text: Value| {
        json!({"window": 0, "position": 3, "context": text, "context_tokens": [1, 2], "expected": text, "expected_token": 9,
               "model": prediction(text.clone()), "reference": prediction(text.clone()), "kl": 1.5})
    };
    let mut value = evaluation(0.1);
    value["changed_tokens"] = json!([token(json!(" a|<b>\n")), token(Value::Null)]);
    let page = Page::of(&[result("m", value)]).unwrap();
    let html = page.render(PageFormat::Html);
    assert!(html.contains("Tokens that changed most") && html.contains("“ a|&lt;b&gt;↵” (50.00\u{a0}%)"), "{html}");
    let markdown = page.render(PageFormat::Markdown);
    assert!(
        markdown.contains("| 1 2 | 9 | 7 (50.00\u{a0}%) | 7 (50.00\u{a0}%) | 25.00 % | 25.00 % | 1.500 |"),
        "{markdown}"
    );
    assert!(!Page::of(&[result("m", evaluation(0.1))]).unwrap().render(PageFormat::Markdown).contains("changed"));
}

#[test]
fn loads_of_experts_are_the_tokens_of_their_layers() {
    let layer = |name: String, tokens: u64| json!({"layer": name, "tokens": tokens, "loss": 1.0, "loss_rtn": 2.0});
    let experts = (0..12).map(|expert| layer(format!("m.0.mlp.experts.{expert}.up_proj"), 10 * expert));
    let others = [layer("m.0.self_attn.q_proj".to_owned(), 999), layer("m.0.mlp.experts.x.up_proj".to_owned(), 9)];
    let layers: Vec<Value> = experts.chain(others).collect();
    let value = json!({"schema": "kvant.quantize/1", "calibration": {"layers": layers}});
    let page = Page::of(&[result("m", value)]).unwrap();
    let markdown = page.render(PageFormat::Markdown);
    assert!(markdown.contains("| m.0.mlp | 12 | 0 | 55 | 110 | 1 |"), "{markdown}");
    let html = page.render(PageFormat::Html);
    // Experts are in the order of their numbers, not of their names.
    assert!(html.contains("m.0.mlp, expert 10: 100 tokens") && html.matches("class=\"hollow\"").count() == 1, "{html}");
}

#[test]
fn weights_are_drawn_for_each_layer() {
    let layer = json!({"layer": "a<b", "limit": 0.25, "before": [1, 2, 1], "after": [0, 4, 0]});
    let value = json!({"schema": "kvant.quantize/1", "weights": [layer]});
    let page = Page::of(&[result("m", value)]).unwrap();
    let html = page.render(PageFormat::Html);
    assert!(html.contains("a&lt;b: -0.2500 to 0.2500") && html.matches("<polyline").count() == 2, "{html}");
    // The greatest share is as high as the chart: 100 % of the weights after, half of them before.
    assert!(html.contains("73.33,4 146.67,4") && html.contains("73.33,37 146.67,37"), "{html}");
}

fn point(point: &str, layers: &[&str], range: Value, clipped: Value) -> Value {
    json!({"point": point, "layers": layers, "scheme": "int8:tensor!static", "timing": "static", "values": 103, "min": -1.0, "max": 3.0,
           "bins": {"low": -1.0, "high": 3.0}, "counts": [1, 100, 0, 2], "range": range, "clipped": clipped})
}

#[test]
fn activations_are_drawn_with_the_range_of_their_scale() {
    let range = json!({"low": -1.0, "high": 2.0});
    let names = ["m.0.attn.q_proj", "m.0.attn.k_proj"];
    let points = [
        point("input:m.0.attn.q_proj", &names, range, json!(0.02)),
        point("key:3", &[], json!({"low": -4.0, "high": 4.0}), json!(0.0)),
    ];
    let value = json!({"schema": "kvant.quantize/1", "activations": points, "input_schemes": [{"scheme": "int8:tensor!static", "timing": "static", "layers": 2}]});
    let page = Page::of(&[result("m", value)]).unwrap();
    let html = page.render(PageFormat::Html);
    assert!(html.contains("The inputs of 2 layers are quantized as int8:tensor!static.</p>"), "{html}");
    // The name, and what the picture says in words.
    assert!(html.contains("m.<wbr>0.<wbr>attn.<wbr>q_proj, k_proj"), "{html}");
    assert!(html.contains("q_proj, k_proj: -1.000 to 3.000; -1.000 to 2.000 covered, 2.00 % clipped"), "{html}");
    // Three of four quarters of the width are covered; the last bin is outside, and the empty one before it is not drawn.
    assert!(html.contains("class=\"covered\" height=\"70\" width=\"165\" x=\"0\""), "{html}");
    assert_eq!(html.matches("class=\"clipped\"").count(), 1, "{html}");
    assert!(html.contains("keys of block 3") && html.contains("nothing clipped"), "{html}");
    let markdown = page.render(PageFormat::Markdown);
    assert!(markdown.contains("| -1.000 | 3.000 | -1.000 | 2.000 | 2.00 % | 103 |"), "{markdown}");
}

#[test]
fn activations_without_ranges_say_why() {
    let scheme = |text: &str, timing: &str| json!({"scheme": text, "timing": timing, "layers": 28});
    let dynamic = json!({"schema": "kvant.quantize/1", "activations": null, "input_schemes": [scheme("int8:channel!dynamic", "dynamic")]});
    let html = Page::of(&[result("m", dynamic)]).unwrap().render(PageFormat::Html);
    assert!(html.contains("The inputs of 28 layers are quantized as int8:channel!dynamic."), "{html}");
    let mut unquantized = point("input:a", &["a"], Value::Null, Value::Null);
    unquantized["timing"] = Value::Null;
    let value = json!({"schema": "kvant.quantize/1", "activations": [unquantized], "input_schemes": []});
    let html = Page::of(&[result("m", value)]).unwrap().render(PageFormat::Html);
    assert!(html.contains("a: -1.000 to 3.000; not quantized") && !html.contains("class=\"covered\""), "{html}");
    let none = json!({"schema": "kvant.quantize/1", "activations": null, "input_schemes": []});
    assert!(!Page::of(&[result("m", none)]).unwrap().render(PageFormat::Html).contains("Activations"));
}

#[test]
fn tensors_of_graphs_and_outputs_have_histograms() {
    let histogram = json!({"values": 3, "min": 0.0, "max": 2.0, "bins": {"low": 0.0, "high": 2.0}, "counts": [1, 2], "range": {"low": 0.0, "high": 2.0}, "clipped": 0.000_01});
    let output = json!({"name": "y", "op": "Gemm", "sqnr_db": 31.25, "histogram": {"bins": {"low": -1.0, "high": 1.0}, "before": [1, 2], "after": [0, 3]}});
    let graph = json!({"schema": "kvant.quantize/1", "format": "onnx", "quality": {"samples": 4, "outputs": [output]},
        "report": {"tensors": [{"name": "x", "role": "activation", "dtype": "uint8", "histogram": histogram}, {"name": "w", "role": "weight", "dtype": "int8"}]}});
    let html = Page::of(&[result("a", graph)]).unwrap().render(PageFormat::Html);
    assert!(html.contains("<dt>activations</dt><dd>1 of uint8</dd><dt>weights</dt><dd>1 of int8</dd>"), "{html}");
    assert!(html.contains("x: 0 to 2.000; 0 to 2.000 covered, less than 0.01 % clipped"), "{html}");
    assert!(html.contains("y: -1.000 to 1.000") && html.matches("class=\"outline\"").count() == 1, "{html}");
}

#[test]
fn many_histograms_are_folded() {
    let layer = |index: usize| json!({"layer": format!("fc{index}"), "limit": 1.0, "before": [1, 2], "after": [2, 1]});
    let page = |layers: usize| {
        let weights: Vec<Value> = (0..layers).map(layer).collect();
        let value = json!({"schema": "kvant.quantize/1", "output": "out", "weights": weights});
        Page::of(&[result("a", value)]).unwrap().render(PageFormat::Html)
    };
    let (few, many) = (page(24), page(30));
    assert!(!few.contains("<details>") && many.contains("<details><summary>6 more</summary>"), "{many}");
    assert_eq!(many.matches("class=\"outline\"").count(), 30);
}

#[test]
fn images_are_marked_where_the_graphs_differ() {
    let top = |class: u32, probability: f64| json!({"class": class, "probability": probability});
    let image = |name: &str, picture: Value, quantized: Value| json!({"name": name, "picture": picture, "reference": top(7, 0.75), "quantized": quantized});
    let images = [
        image("a<b.png", json!("data:image/jpeg;base64,/9j/4A=="), top(3, 0.5)),
        image("same.png", json!("https://elsewhere/x.jpg"), top(7, 0.7)),
        image("none.png", json!("data:image/jpeg;base64,\"onerror=\""), Value::Null),
    ];
    let value = json!({"schema": "kvant.eval/1", "samples": 40, "outputs": [], "images": images});
    let page = Page::of(&[result("a", value)]).unwrap();
    let html = page.render(PageFormat::Html);
    assert!(html.contains("<img src=\"data:image/jpeg;base64,/9j/4A==\" alt=\"a&lt;b.png\">"), "{html}");
    assert!(html.contains("float: 7 (75.0\u{a0}%)") && html.contains("quantized: no class"), "{html}");
    assert_eq!((html.matches("different class").count(), html.matches("<img").count()), (2, 1), "{html}");
    assert!(!html.contains("elsewhere") && !html.contains("onerror"), "pages fetch nothing: {html}");
    let markdown = page.render(PageFormat::Markdown);
    assert!(markdown.contains("| same.png | 7 (75.0\u{a0}%) | 7 (70.0\u{a0}%) |  |"), "{markdown}");
}

#[test]
fn texts_are_beside_each_other_and_marked_from_the_first_difference_on() {
    let reference = json!({"text": " of Frånce <b>", "tokens": [1, 2, 3], "finish": "eos"});
    let differs = json!({"prompt": "The capital", "text": " of Fråud", "tokens": [1, 4], "finish": "length", "reference": reference, "first_difference": 1});
    let same = json!({"prompt": "A & B", "text": "", "tokens": [], "finish": "stop", "reference": {"text": "", "tokens": [], "finish": "stop"}});
    let value = json!({"schema": "kvant.generate/1", "prompts": [differs, same], "tokens_per_second": 12.5, "quantized_activations": []});
    let page = Page::of(&[result("model", value)]).unwrap();
    let html = page.render(PageFormat::Html);
    assert!(
        html.contains("<pre> of Frå<mark>nce &lt;b&gt;</mark></pre>")
            && html.contains("<pre> of Frå<mark>ud</mark></pre>"),
        "{html}"
    );
    assert!(html.contains("reference: 3 tokens, to the end of the text") && html.contains("<dd>1 of 2</dd>"), "{html}");
    assert!(html.contains("A &amp; B") && html.matches("<mark>").count() == 2, "{html}");
    let markdown = page.render(PageFormat::Markdown);
    assert!(markdown.contains("model: 2 tokens") && markdown.contains(" of Fråud"), "{markdown}");
    // Without a reference nothing differs.
    let alone = json!({"schema": "kvant.generate/1", "prompts": [{"prompt": "a", "text": "b", "tokens": [1], "finish": "length"}]});
    let html = Page::of(&[result("model", alone)]).unwrap().render(PageFormat::Html);
    assert!(html.contains("<pre>b</pre>") && !html.contains("same text"), "{html}");
}
