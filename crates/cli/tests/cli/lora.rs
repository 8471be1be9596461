//! LoRA adapters at the command line.

use crate::kvant::Place;
use kvant_container::{Dtype, Durability, Layout, TensorDeclaration, Writer};
use std::fs;

/// Writes an adapter of a layer of the small model, of rank 2.
fn adapter(place: &Place, name: &str) {
    let module = "base_model.model.model.layers.1.mlp.up_proj";
    let declarations = vec![
        TensorDeclaration::new(format!("{module}.lora_A.weight"), Dtype::F32, [2, 128]),
        TensorDeclaration::new(format!("{module}.lora_B.weight"), Dtype::F32, [384, 2]),
    ];
    let layout = Layout::new(declarations, u64::MAX, Default::default()).unwrap();
    let writer = Writer::create(&place.path(name), layout).unwrap();
    for (tensor, count) in [(0, 256), (1, 768)] {
        let values = (0..count).flat_map(|at| ((at % 7) as f32 * 0.01 - 0.02).to_le_bytes());
        writer.write_at(tensor, 0, &values.collect::<Vec<u8>>()).unwrap();
    }
    writer.finish(Durability::Process).unwrap();
    fs::rename(
        place.path(&format!("{name}/model.safetensors")),
        place.path(&format!("{name}/adapter_model.safetensors")),
    )
    .unwrap();
    place.write(&format!("{name}/adapter_config.json"), r#"{"peft_type": "LORA", "lora_alpha": 64, "r": 2}"#);
}

#[test]
fn merged_weights_have_the_type_that_is_asked_for() {
    let place = Place::new();
    adapter(&place, "lora");
    for (dtype, stored) in [("f32", "F32"), ("f16", "F16")] {
        place.succeed(&["convert", "nano_llama", "--to", "float", "--lora", "lora", "--dtype", dtype, "-o", dtype]);
        let types = place.succeed(&["inspect", dtype, "--json"]).json()["types"].clone();
        assert_eq!(types.as_object().unwrap().keys().collect::<Vec<_>>(), [stored]);
    }
    place.succeed(&["quantize", "nano_llama", "--scheme", "int4:g32", "-o", "codes"]);
    place.succeed(&["convert", "codes", "--to", "float", "--dtype", "f32", "-o", "widened"]);
    let types = place.succeed(&["inspect", "widened", "--json"]).json()["types"].clone();
    assert_eq!(types.as_object().unwrap().keys().collect::<Vec<_>>(), ["F32"]);
}

#[test]
fn adapter_is_merged_but_is_not_a_model() {
    let place = Place::new();
    adapter(&place, "lora");
    let refused = place.run(&["quantize", "lora", "--scheme", "int4:g128", "-o", "out"]);
    assert_eq!(refused.code, Some(1));
    assert!(refused.stderr.contains("LoRA adapter") && refused.stderr.contains("--lora"), "{refused:?}");
    let onto = place.run(&["quantize", "nano_llama", "--lora", "lora", "-s", "int4:g128", "-o", "lora", "--overwrite"]);
    assert_eq!(onto.code, Some(2), "{onto:?}");

    let plan = place.succeed(&["plan", "nano_llama", "--lora", "lora", "--scheme", "int4:g128"]);
    assert!(plan.stderr.contains("lora is merged into 1 weight"), "{plan:?}");
    place.succeed(&["quantize", "nano_llama", "--lora", "lora", "--scheme", "int4:g128", "-o", "at_once"]);
    place.succeed(&["convert", "nano_llama", "--to", "float", "--lora", "lora", "-o", "merged"]);
    place.succeed(&["quantize", "merged", "--scheme", "int4:g128", "-o", "one_by_one"]);
    place.succeed(&["quantize", "nano_llama", "--scheme", "int4:g128", "-o", "without"]);
    let read = |model: &str| fs::read(place.path(&format!("{model}/model.safetensors"))).unwrap();
    assert!(read("at_once") == read("one_by_one"));
    assert!(read("at_once") != read("without"));

    place.write("text.txt", &"Every word counts, and the same word again. ".repeat(40));
    let perplexity = |model: &[&str]| {
        let run = place.succeed(&[&["eval", "--data", "text.txt", "--seq-len", "64", "--json"], model].concat());
        run.json()["perplexity"].as_f64().unwrap()
    };
    // Processors that multiply stored weights as they are sum them in another order than merged ones.
    let (at_once, merged) = (perplexity(&["nano_llama", "--lora", "lora"]), perplexity(&["merged"]));
    assert!((at_once / merged - 1.0).abs() < 1e-5, "{at_once} {merged}");
    assert_ne!(perplexity(&["nano_llama"]), perplexity(&["merged"]));
}

#[test]
fn non_finite_adapter_values_do_not_blame_the_model() {
    let place = Place::new();
    adapter(&place, "lora");
    let weights = place.path("lora/adapter_model.safetensors");
    let mut bytes = fs::read(&weights).unwrap();
    let end = bytes.len();
    bytes[end - 4..].copy_from_slice(&f32::NAN.to_le_bytes());
    fs::write(&weights, bytes).unwrap();
    for args in [
        &["quantize", "--scheme", "int4:g128", "-o", "out"][..],
        &["quantize", "--scheme", "Q8_0", "-o", "out.gguf"],
        &["convert", "--to", "float", "-o", "out"],
    ] {
        let refused = place.run(&[&args[..1], &["nano_llama", "--lora", "lora"], &args[1..]].concat());
        assert_eq!(refused.code, Some(1), "{refused:?}");
        let told = "up_proj.lora_B.weight` in lora/adapter_model.safetensors: the value at [383, 1] is NaN";
        assert!(refused.stderr.contains(told), "{}", refused.stderr);
    }
}
