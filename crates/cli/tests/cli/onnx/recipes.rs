//! Recipe files of graphs.

use super::place;
use crate::kvant::Place;
use std::path::Path;

#[test]
fn graph_recipe_equals_options() {
    let place = place();
    std::fs::write(place.path("r.toml"), "version = 1\npreset = \"A8W8\"\nper_channel = true\n").unwrap();
    let rest = ["--data", "calib.npz", "--runtime", "rten", "--overwrite", "-o", "out.onnx"];
    let bytes = |options: &[&str]| {
        place.succeed(&[&["quantize", "float.onnx"], options, &rest].concat());
        std::fs::read(place.path("out.onnx")).unwrap()
    };
    let by_options = bytes(&["--preset", "A8W8", "--per-channel"]);
    assert_eq!(bytes(&["--recipe", "r.toml"]), by_options);
    assert_ne!(bytes(&["--recipe", "r.toml", "--weight", "int4"]), by_options);
    std::fs::write(place.path("r.toml"), "version = 2\nscheme = \"A8W8\"\nper-channel = true\n").unwrap();
    assert_eq!(bytes(&["--recipe", "r.toml"]), by_options);
    for (text, code, named) in [
        ("version = 2\nscheme = \"A8W8\"\nkv_cache = \"fp8\"\n", 1, "r.toml: `kv_cache` does not apply to ONNX graphs"),
        ("version = 2\nscheme = \"A8W8\"\nboundry = \"float\"\n", 2, "did you mean `boundary`?"),
        ("version = 2\nscheme = \"W8A8\"\n", 1, "no graph expresses the scheme `W8A8`"),
    ] {
        place.write("r.toml", text);
        let run = place.run(&["quantize", "float.onnx", "--recipe", "r.toml", "-o", "no.onnx"]);
        assert!(run.code == Some(code) && run.stderr.contains(named) && run.stderr.contains("hint:"), "{run:?}");
    }
}

#[test]
fn one_recipe_means_the_same_for_checkpoint_and_graph() {
    let place = Place::new();
    let graph = Path::new(env!("CARGO_MANIFEST_DIR")).join("../onnx/tests/data/tinytransformer.float.onnx");
    std::fs::copy(graph, place.path("float.onnx")).unwrap();
    let (excluded, narrow) = ("re:(mm_fc.|.*(down_proj|up_proj|gate_proj))$", "re:(mm_fc2|.*down_proj)$");
    let rules = format!(
        "scheme = \"int8:channel\"\nexclude = [\"{excluded}\"]\n\n[[override]]\nlayers = \"{narrow}\"\nscheme = \"int4:channel\"\n"
    );
    place.write("old.toml", &format!("version = 1\n{rules}"));
    place.write("new.toml", &format!("version = 2\n{rules}"));
    let plan = |model: &str, options: &[&str]| {
        place.succeed(&[&["plan", model, "--json"], options].concat()).json()["tensors"].clone()
    };

    let weights = |options: &[&str]| -> Vec<String> {
        let tensors = plan("float.onnx", options);
        let weights = tensors.as_array().unwrap().iter().filter(|tensor| tensor["role"] == "weight");
        weights.map(|tensor| tensor["dtype"].as_str().unwrap().to_owned()).collect()
    };
    let of_type = |list: &[String], dtype: &str| list.iter().filter(|found| *found == dtype).count();
    let all = weights(&["--scheme", "int8:channel"]);
    let (old, new) = (weights(&["--recipe", "old.toml"]), weights(&["--recipe", "new.toml"]));
    assert_eq!((of_type(&old, "int8"), of_type(&old, "int4")), (all.len() - 2, 0), "{old:?}");
    assert_eq!((of_type(&new, "int8"), of_type(&new, "int4")), (all.len() - 2, 1), "{new:?}");

    let (keep, wide) = (format!("{excluded}=keep"), format!("{narrow}=int4:channel"));
    let scheme = ["-s", "int8:channel", "--override"];
    let checkpoint = |options: &[&str]| plan("nano_llama", options);
    assert_eq!(
        checkpoint(&["--recipe", "new.toml"]),
        checkpoint(&[&scheme[..], &[&keep, "--override", &wide]].concat())
    );
    assert_eq!(checkpoint(&["--recipe", "old.toml"]), checkpoint(&[&scheme[..], &[&wide, "-x", excluded]].concat()));
    assert_ne!(checkpoint(&["--recipe", "new.toml"]), checkpoint(&["--recipe", "old.toml"]));
}

/// As in recipes of checkpoints: of the file from top to bottom, then of the command line.
#[test]
fn last_override_of_a_tensor_decides() {
    let place = place();
    let file = |first: &str, second: &str| {
        let rule =
            |(tensors, scheme): (&str, &str)| format!("[[override]]\ntensors = \"{tensors}\"\nscheme = \"{scheme}\"\n");
        let rules: Vec<String> = [("r0", first), ("r*", second)].map(rule).into();
        place.write("recipe.toml", &format!("version = 2\npreset = \"A8W8\"\n{}", rules.concat()));
    };
    let dtype = |options: &[&str]| {
        let plan = place.succeed(&[&["plan", "float.onnx", "--json"], options].concat()).json();
        let tensors = plan["tensors"].as_array().unwrap();
        let found = tensors.iter().find(|tensor| tensor["name"] == "r0").unwrap();
        found["dtype"].as_str().unwrap().to_owned()
    };
    for (first, second) in [("int16", "int8"), ("int8", "int16")] {
        let options = [format!("r0={first}"), format!("r*={second}")];
        assert_eq!(dtype(&["--preset", "A8W8", "--override", &options[0], "--override", &options[1]]), second);
        file(first, second);
        assert_eq!(dtype(&["--recipe", "recipe.toml"]), second, "{first}, then {second}");
        assert_eq!(dtype(&["--recipe", "recipe.toml", "--override", &options[0]]), first, "options follow the file");
    }
}
