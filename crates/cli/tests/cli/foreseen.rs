//! What an output would not pass is refused before the work: a config.json of another model, a name that llama.cpp stumbles over.

use crate::kvant::{Place, copy_dir, names};
use serde_json::{Value, json};
use std::fs;

/// Changes config.json of the small model.
fn configured(change: impl FnOnce(&mut Value)) -> Place {
    let place = Place::new();
    let path = place.path("nano_llama/config.json");
    let mut config: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    change(&mut config);
    fs::write(path, config.to_string()).unwrap();
    place
}

#[test]
fn a_configuration_of_another_model_is_refused_with_both_numbers() {
    let cases: [(&str, Value, [&str; 2]); 6] = [
        ("vocab_size", json!(4096), ["has 2048 rows", "vocab_size of config.json is 4096"]),
        ("num_hidden_layers", json!(9), ["block 4", "is 9, and 4 are there"]),
        ("num_hidden_layers", json!(3), ["block 3", "num_hidden_layers of config.json is 3"]),
        ("intermediate_size", json!(512), ["has 384 input channels", "512"]),
        ("architectures", json!(["MixtralForCausalLM"]), ["block 0", "down projection"]),
        ("architectures", json!([]), ["config.json", "neither a model_type nor architectures"]),
    ];
    for (key, value, parts) in cases {
        let place = configured(|config| {
            config[key] = value.clone();
            if key == "architectures" {
                config["model_type"] = if value[0].is_string() { json!("mixtral") } else { Value::Null };
                config["num_local_experts"] = json!(4);
            }
        });
        let plan = ["plan", "nano_llama", "--scheme", "int4_wo_128"];
        let quantize = ["quantize", "nano_llama", "--scheme", "int4_wo_128", "-o", "out"];
        let file = ["quantize", "nano_llama", "--scheme", "Q8_0", "-o", "out.gguf"];
        let lines: [&[&str]; 3] = [&plan, &quantize, &file];
        // What a file needs of a family is refused there in other words.
        for line in if key == "architectures" { &lines[..2] } else { &lines[..] } {
            let refused = place.run(line);
            assert_eq!(refused.code, Some(1), "{line:?}: {refused:?}");
            let told = |part: &&str| refused.stderr.contains(*part);
            assert!(parts.iter().all(told) && refused.stderr.contains("hint: "), "{line:?}: {}", refused.stderr);
        }
        assert_eq!(names(&place.path("")), ["nano_llama"], "{key}");
    }
}

#[test]
fn a_damaged_tokenizer_is_refused() {
    let place = Place::new();
    place.write("nano_llama/tokenizer.json", "{");
    let refused = place.run(&["quantize", "nano_llama", "--scheme", "int4_wo_128", "-o", "out"]);
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.stderr.contains("tokenizer.json") && refused.stderr.contains("original"), "{}", refused.stderr);
    assert_eq!(names(&place.path("")), ["nano_llama"]);
}

#[test]
fn what_is_known_to_be_wrong_can_be_made_all_the_same() {
    let place = configured(|config| config["num_hidden_layers"] = json!(9));
    place.succeed(&["quantize", "nano_llama", "--scheme", "int4_wo_128", "--no-verify", "-o", "out"]);
    let untied = configured(|config| {
        config["num_hidden_layers"] = json!(3);
        config["num_nextn_predict_layers"] = json!(1);
    });
    untied.succeed(&["plan", "nano_llama", "--scheme", "int4_wo_128"]);
}

#[test]
fn a_name_that_llama_cpp_looks_up_tokens_for_is_refused() {
    let place = Place::empty();
    copy_dir(&crate::kvant::nano_llama(), &place.path("my-Phi-3-model"));
    let lines: [&[&str]; 3] = [
        &["plan", "my-Phi-3-model", "--scheme", "Q8_0"],
        &["quantize", "my-Phi-3-model", "--scheme", "Q8_0", "-o", "out.gguf"],
        &["quantize", "my-Phi-3-model", "--scheme", "int4:g32", "--format", "gguf", "-o", "out.gguf"],
    ];
    for line in lines {
        let refused = place.run(line);
        assert_eq!(refused.code, Some(1), "{refused:?}");
        assert!(refused.stderr.contains("says phi3") && refused.stderr.contains("another name"), "{}", refused.stderr);
    }
    assert_eq!(names(&place.path("")), ["my-Phi-3-model"]);
}
