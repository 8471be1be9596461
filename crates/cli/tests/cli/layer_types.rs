//! Convolutions and embeddings: quantized by their kind, or by name.

use crate::json::check;
use crate::kvant::{Place, names};
use kvant_container::{Checkpoint, Dtype, Durability, Layout, TensorDeclaration, Writer};
use std::fs;

/// A network with a convolution, a transposed one, an embedding and a linear layer.
fn net() -> Place {
    let place = Place::new();
    let shapes: [(&str, &[usize]); 5] = [
        ("stem.convolution.weight", &[8, 3, 3, 3]),
        ("stem.normalization.weight", &[8]),
        ("up.conv_transpose.weight", &[8, 4, 2, 2]),
        ("words.embedding.weight", &[16, 8]),
        ("layers.0.dense.weight", &[8, 8]),
    ];
    let declared = shapes.iter().map(|(name, shape)| TensorDeclaration::new(*name, Dtype::F32, shape.to_vec()));
    let layout = Layout::new(declared.collect(), u64::MAX, Default::default()).unwrap();
    let writer = Writer::create(&place.path("net"), layout).unwrap();
    for (tensor, (_, shape)) in shapes.iter().enumerate() {
        let count = shape.iter().product::<usize>();
        let values = (0..count).flat_map(|at| ((at * 7 % 31) as f32 * 0.01 - 0.15).to_le_bytes());
        writer.write_at(tensor, 0, &values.collect::<Vec<u8>>()).unwrap();
    }
    writer.finish(Durability::Process).unwrap();
    place.write("net/config.json", r#"{"model_type": "resnet", "architectures": ["ResNetForImageClassification"]}"#);
    place
}

/// The type and the shape of a tensor.
fn stored(place: &Place, model: &str, tensor: &str) -> (Dtype, Vec<usize>) {
    let checkpoint = Checkpoint::open(&place.path(model)).unwrap();
    let tensor = checkpoint.tensor(tensor).unwrap();
    (tensor.dtype(), tensor.shape().to_vec())
}

#[test]
fn kinds_of_layers_become_codes_of_the_shape_of_their_weights() {
    let place = net();
    let kinds = ["--layer-type", "conv2d=int8:channel", "--layer-type", "conv_transpose2d=int8:tensor"];
    let line = [&["net", "--format", "quark", "--no-verify"], &kinds[..]].concat();
    let plan = check(&place, "plan", &[&["plan"], &line[..]].concat());
    assert_eq!(plan["quantized_layers"], 2, "{plan}");
    place.succeed(&[&["quantize"], &line[..], &["-o", "codes"]].concat());
    assert_eq!(stored(&place, "codes", "stem.convolution.weight"), (Dtype::I8, vec![8, 3, 3, 3]));
    assert_eq!(stored(&place, "codes", "stem.convolution.weight_scale"), (Dtype::F32, vec![8]));
    assert_eq!(stored(&place, "codes", "up.conv_transpose.weight"), (Dtype::I8, vec![8, 4, 2, 2]));
    for kept in ["words.embedding.weight", "layers.0.dense.weight"] {
        assert_eq!(stored(&place, "codes", kept).0, Dtype::F32, "{kept}");
    }
    let config: serde_json::Value =
        serde_json::from_slice(&fs::read(place.path("codes/config.json")).unwrap()).unwrap();
    let excluded = config["quantization_config"]["exclude"].to_string();
    assert!(excluded.contains("layers.0.dense") && excluded.contains("words.embedding"), "{excluded}");
}

#[test]
fn recipe_and_options_mean_the_same_and_floats_are_on_the_grid_of_the_codes() {
    let place = net();
    place.write(
        "recipe.toml",
        "version = 2\nscheme = \"int8:channel\"\nformat = \"fake\"\n[layer_types]\nembedding = \"e4m3:tensor\"\n\
         [layer_types.conv2d]\nscheme = \"int4:channel\"\n",
    );
    place.succeed(&["quantize", "net", "--recipe", "recipe.toml", "-o", "by_recipe"]);
    let line = ["--layer-type", "conv2d=int4:channel", "--layer-type", "Embedding=e4m3:tensor", "-f", "fake"];
    place.succeed(&[&["quantize", "net", "--scheme", "int8:channel", "-o", "by_option"], &line[..]].concat());
    let read = |model: &str| fs::read(place.path(&format!("{model}/model.safetensors"))).unwrap();
    assert!(read("by_recipe") == read("by_option"));
    let made = Checkpoint::open(&place.path("by_option")).unwrap();
    let weight = made.tensor("stem.convolution.weight").unwrap();
    let values: Vec<f32> = weight.bytes().chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
    for channel in values.chunks_exact(27) {
        let distinct: std::collections::BTreeSet<u32> = channel.iter().map(|value| value.to_bits()).collect();
        assert!(distinct.len() <= 16, "{channel:?}");
    }
    assert_eq!(stored(&place, "by_option", "up.conv_transpose.weight").0, Dtype::F32);
}

/// A GGUF file's embedding is blocks, whose values are read.
#[test]
fn embeddings_that_are_codes_already_are_requantized() {
    let place = Place::new();
    place.succeed(&["quantize", "nano_llama", "--scheme", "Q8_0", "-o", "q8.gguf"]);
    place.succeed(&["convert", "q8.gguf", "--to", "float", "--dtype", "f32", "-o", "float"]);
    let line = ["quantize", "q8.gguf", "--scheme", "int8:channel", "--layer-type", "embedding=int8:channel"];
    place.succeed(&[&line[..], &["--requantize", "--format", "fake", "-o", "again"]].concat());
    let values = |model: &str| {
        let checkpoint = Checkpoint::open(&place.path(model)).unwrap();
        let embedding = checkpoint.tensor("model.embed_tokens.weight").unwrap();
        let bytes = embedding.bytes().chunks_exact(4);
        bytes.map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect::<Vec<f32>>()
    };
    let (source, made) = (values("float"), values("again"));
    let largest = source.iter().fold(0.0f32, |most, value| most.max(value.abs()));
    let furthest = source.iter().zip(&made).fold(0.0f32, |most, (a, b)| most.max((a - b).abs()));
    assert!(source.len() == made.len() && source != made && furthest < largest / 100.0, "{furthest} of {largest}");
}

#[test]
fn what_says_nothing_of_their_kind_leaves_them_in_float() {
    let place = net();
    let options = ["--scheme", "int8:channel", "--override", "*=int4:channel", "-f", "fake"];
    let plan = check(&place, "plan", &[&["plan", "net"], &options[..]].concat());
    assert_eq!(plan["quantized_layers"], 1, "{plan}");
    let named = ["--scheme", "int8:channel", "--override", "stem.convolution=int4:channel", "-f", "fake"];
    let plan = check(&place, "plan", &[&["plan", "net"], &named[..]].concat());
    assert_eq!(plan["quantized_layers"], 2, "{plan}");
}

#[test]
fn kinds_that_cannot_be_as_asked_are_refused_before_the_work() {
    let place = net();
    let refused = |options: &[&str], code: i32, parts: &[&str]| {
        let run = place.run(&[&["quantize", "net", "-o", "out"], options].concat());
        assert_eq!(run.code, Some(code), "{run:?}");
        assert!(parts.iter().all(|part| run.stderr.contains(part)), "{parts:?}: {}", run.stderr);
    };
    refused(&["--layer-type", "conv2=int8:channel"], 2, &["conv_transpose1d"]);
    refused(&["--layer-type", "conv1d=int8:channel", "-f", "fake"], 1, &["no conv1d layer", "1 conv2d layer"]);
    refused(&["--layer-type", "conv_transpose2d=int8:channel", "-f", "fake"], 1, &["second axis", "int8:tensor"]);
    refused(&["--layer-type", "conv2d=int8:tensor+int8:tensor!static", "-f", "fake"], 1, &["not calibrated in files"]);
    refused(&["--layer-type", "embedding=int4:g8", "-f", "quark", "--no-verify"], 1, &["as bytes", "--format fake"]);
    refused(&["--layer-type", "embedding=int8:channel", "-f", "awq"], 1, &["holds linear layers"]);
    refused(&["--layer-type", "conv2d=int8:channel"], 1, &["no known loader", "raises on codes of convolutions"]);
    refused(&["--scheme", "Q8_0", "--layer-type", "conv2d=int8:channel"], 2, &["does not apply to GGUF"]);
    assert_eq!(names(&place.path("")), ["nano_llama", "net"]);
}

#[test]
fn biases_of_recipes_are_refused_for_gguf_files_as_those_of_options() {
    let place = Place::new();
    place.write("all.toml", "version = 2\nbias = \"int8:tensor\"\n");
    place.write("kind.toml", "version = 2\n[layer_types]\nconv2d = { bias = \"int8:tensor\" }\n");
    place.write("float.toml", "version = 2\nbias = \"float\"\n");
    for scheme in ["Q8_0", "int4:g32"] {
        let plan = ["plan", "nano_llama", "-s", scheme, "--format", "gguf"];
        for (given, words) in [
            (["--bias", "int8:tensor"], "--bias does not apply to GGUF"),
            (["--recipe", "all.toml"], "`bias` in all.toml does not apply to GGUF"),
            (["--recipe", "kind.toml"], "`bias` in kind.toml does not apply to GGUF"),
        ] {
            let run = place.run(&[&plan[..], &given].concat());
            assert!(run.code == Some(2) && run.stderr.contains(words), "{scheme} {given:?}: {run:?}");
        }
        place.succeed(&[&plan[..], &["--recipe", "float.toml"]].concat());
    }
}
