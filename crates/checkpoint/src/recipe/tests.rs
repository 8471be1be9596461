//! Tests of how recipes are resolved and how their text is read.

use super::*;
use kvant_quant::scheme::PRESETS;

fn scheme(text: &str) -> Settings {
    Settings { scheme: Some(text.to_owned()), ..Settings::default() }
}

fn resolve(line: &Settings) -> Result<Recipe, RecipeError> {
    Recipe::resolve(line, &Settings::default())
}

fn toml(text: &str) -> Result<Settings, RecipeError> {
    Settings::from_toml("recipe.toml", text)
}

fn layer_scheme(text: &str) -> LayerScheme {
    text.parse().unwrap()
}

const FILE: &str = r#"
version = 1
scheme = "uint4_wo_32"
format = "quark"
pack_method = "order"
exclude = ["*.gate", "a"]
keep_defaults = false
weights_only = true
max_shard_size = "500MB"
seed = 7

[[override]]
layers = "*.down_proj"
scheme = "int8"

[[override]]
layers = "*.3.*"
scheme = "keep"
"#;

#[test]
fn recipe_file_sets_everything() {
    let recipe = Recipe::resolve(&Settings::default(), &toml(FILE).unwrap()).unwrap();
    assert_eq!(recipe.default_choice().scheme(), Some(layer_scheme("uint4:g32:zp")));
    assert_eq!((recipe.format(), recipe.nibble_order()), (OutputFormat::QUARK, NibbleOrder::Natural));
    assert_eq!((recipe.keep_defaults(), recipe.weights_only()), (false, true));
    assert_eq!((recipe.max_shard_size(), recipe.seed()), (500_000_000, 7));
    let rules: Vec<(&str, String)> =
        recipe.rules().iter().map(|rule| (rule.layers.pattern(), rule.choice.spelling())).collect();
    let expected = [("*.down_proj", "int8:tensor"), ("*.3.*", "keep"), ("*.gate", "keep"), ("a", "keep")];
    assert_eq!(rules, expected.map(|(glob, scheme)| (glob, scheme.to_owned())));
}

#[test]
fn rule_order_is_file_command_line_exclusions() {
    let of = |overrides: &[&str]| overrides.iter().map(|text| text.parse().unwrap()).collect::<Vec<OverrideText>>();
    let overrides = of(&["*=int8:tensor", "*.up=int4:g64"]);
    let file = Settings { overrides, exclude: vec!["*.gate".into()], ..scheme("int4:g32") };
    let line = Settings { overrides: of(&["x.*=int4:g128", "x.down=keep"]), ..Settings::default() };
    let recipe = Recipe::resolve(&line, &file).unwrap();
    let said = |module: &str| match recipe.decide(module) {
        RuleMatch::Override(scheme) => scheme.to_string(),
        other => format!("{other:?}"),
    };
    assert_eq!([said("y.down"), said("y.up"), said("y.gate")], ["int8:tensor", "int4:g64", "Excluded"]);
    assert_eq!([said("x.up"), said("x.gate"), said("x.down")], ["int4:g128", "int4:g128", "Excluded"]);
}

#[test]
fn single_algorithm_needs_no_list() {
    let read = |text: &str| {
        toml(&format!("version = 1\nscheme = \"int4:g32\"\nalgorithm = {text}")).map(|file| file.algorithm)
    };
    assert_eq!(read("\"gptq\"").unwrap(), read("[\"gptq\"]").unwrap());
    assert_eq!(read("[{ name = \"gptq\", damping = 0.05 }]").unwrap(), read("\"gptq:damping=0.05\"").unwrap());
    assert!(read("3").unwrap_err().to_string().contains("a text, a table with `name`"));
}

#[test]
fn documented_recipe_parses_and_covers_every_field() {
    let page = include_str!("../../../../docs/reference/recipes.md");
    let example: Vec<&str> = page.lines().filter_map(|line| line.strip_prefix("    ")).collect();
    let recipe = Recipe::resolve(&Settings::default(), &toml(&example.join("\n")).unwrap()).unwrap();
    assert_eq!((recipe.format(), recipe.rules().len()), (OutputFormat::QUARK, 2));
    for field in serde_json::to_value(&recipe).unwrap().as_object().unwrap().keys() {
        assert!(page.contains(&format!("| `{field}` |")) || field == "override", "{field}");
    }
    for field in kvant_quant::recipe::KEYS.iter().map(|key| key.name).filter(|name| *name != "override") {
        assert!(page.contains(&format!("| `{field}` |")), "{field}");
    }
    assert!(page.contains("| `[[override]]` |"));
}

#[test]
fn pack_method_is_refused_where_the_layout_fixes_it() {
    let asked = |format: &str, also: Vec<OutputFormat>| {
        let format = Some(format.parse().unwrap());
        resolve(&Settings { format, also, pack_method: Some(PackMethod::Order), ..scheme("int4:g32") })
    };
    let refused = asked("compressed-tensors", vec![]).unwrap_err().to_string();
    assert!(refused.contains("‹pack-method›") && refused.contains("compressed-tensors"), "{refused}");
    assert!(asked("quark", vec![]).is_ok() && asked("compressed-tensors", vec![OutputFormat::QUARK]).is_ok());
}

#[test]
fn command_line_wins_over_the_file() {
    let line = Settings {
        scheme: Some("mxfp4".to_owned()),
        overrides: vec!["*.gate=int8:channel".parse().unwrap()],
        exclude: vec!["*.0.down_proj".to_owned()],
        keep_defaults: Some(true),
        weights_only: Some(false),
        seed: Some(1),
        ..Settings::default()
    };
    let recipe = Recipe::resolve(&line, &toml(FILE).unwrap()).unwrap();
    assert_eq!(recipe.decide("m.up_proj"), RuleMatch::Default(layer_scheme("e2m1:g32:e8m0+e2m1:g32:e8m0!dynamic")));
    // Excluded by the file, quantized by the command line.
    assert_eq!(recipe.decide("m.gate"), RuleMatch::Override(layer_scheme("int8:channel")));
    // Quantized by the file, excluded by the command line.
    assert_eq!(recipe.decide("m.0.down_proj"), RuleMatch::Excluded);
    assert_eq!(recipe.decide("m.1.down_proj"), RuleMatch::Override(layer_scheme("int8:tensor+int8:tensor!static")));
    assert_eq!((recipe.keep_defaults(), recipe.seed(), recipe.max_shard_size()), (true, 1, 500_000_000));
}

#[test]
fn exclusions_win_over_overrides_and_the_last_match_wins() {
    let line = Settings {
        overrides: ["*=int2:g32", "*.a=int4:g32", "*.a=int8:channel"].map(|text| text.parse().unwrap()).to_vec(),
        exclude: vec!["x.*".to_owned()],
        ..scheme("int4:g128")
    };
    let recipe = resolve(&line).unwrap();
    assert_eq!(recipe.decide("x.a"), RuleMatch::Excluded);
    assert_eq!(recipe.decide("y.a"), RuleMatch::Override(layer_scheme("int8:channel")));
    assert_eq!(recipe.decide("y.b"), RuleMatch::Override(layer_scheme("int2:g32")));
}

#[test]
fn rules_without_a_match_are_found() {
    let line = Settings { exclude: vec!["*.a".to_owned(), "*.down_porj".to_owned()], ..scheme("int4:g128") };
    let recipe = resolve(&line).unwrap();
    let idle: Vec<&str> = recipe.idle_rules(["x.a", "x.b"].into_iter()).iter().map(|r| r.layers.pattern()).collect();
    assert_eq!(idle, ["*.down_porj"]);
}

#[test]
fn weights_only_drops_all_inputs() {
    let line =
        Settings { weights_only: Some(true), overrides: vec!["*.a=ptpc_fp8".parse().unwrap()], ..scheme("int8") };
    let recipe = resolve(&line).unwrap();
    assert!(recipe.schemes().all(|scheme| scheme.input.is_none() && !scheme.needs_calibration()));
    assert_eq!(recipe.scheme_name(), "int8 (int8:tensor)");
}

#[test]
fn attention_schemes_are_set_by_name_or_spelling() {
    let line = Settings {
        kv_cache: Some("fp8".to_owned()),
        min_kv_scale: Some(0.25),
        probabilities: Some("e5m2:tensor".to_owned()),
        ..scheme("int4:g128")
    };
    let file = Settings {
        kv_cache: Some("int8".to_owned()),
        kv_cache_post_rope: Some(true),
        queries: Some("int8:tensor:mse!static".to_owned()),
        ..Settings::default()
    };
    let attention = Recipe::resolve(&line, &file).unwrap().attention();
    let cache = attention.key_value.unwrap();
    assert_eq!((cache.scheme.to_string().as_str(), cache.min_scale.value()), ("e4m3:tensor!static", 0.25));
    assert_eq!(attention.rotary, Rotary::After);
    assert_eq!(attention.query.unwrap().to_string(), "int8:tensor:mse!static");
    assert_eq!(attention.probabilities.unwrap().to_string(), "e5m2:tensor!static");
    let none = Settings { kv_cache: Some("none".to_owned()), ..scheme("int4:g128") };
    assert!(Recipe::resolve(&none, &Settings::default()).unwrap().attention().is_empty());
    let recipe = Recipe::resolve(&line, &file).unwrap();
    let again = Settings::from_json("recipe", &recipe.canonical()).unwrap();
    assert_eq!(resolve(&again).unwrap().attention(), attention);
}

#[test]
fn invalid_attention_settings_are_named() {
    for (line, part) in [
        (Settings { kv_cache: Some("fp9".to_owned()), ..scheme("int4:g128") }, "‹kv-cache›"),
        (Settings { queries: Some("x".to_owned()), ..scheme("int4:g128") }, "‹attention›"),
        (Settings { min_kv_scale: Some(f32::NAN), ..scheme("int4:g128") }, "‹min-kv-scale›"),
    ] {
        let error = resolve(&line).unwrap_err();
        assert!(error.to_string().contains(part), "{error}");
    }
}

#[test]
fn scheme_name_selects_the_format() {
    let format = |text: &str| resolve(&scheme(text)).unwrap().format();
    for preset in PRESETS {
        let expected = match preset.name {
            "mx6" | "mx9" | "bfp16" => OutputFormat::PlainFloats,
            name if name.starts_with(char::is_lowercase) => OutputFormat::QUARK,
            _ => OutputFormat::COMPRESSED_TENSORS,
        };
        assert_eq!(format(preset.name), expected, "{}", preset.name);
    }
    assert_eq!(format("int4:g96"), OutputFormat::QUARK);
    assert_eq!(format("int5:g128"), OutputFormat::COMPRESSED_TENSORS);
    assert_eq!(format("bf16"), OutputFormat::PlainFloats);
    let asked = Settings { format: Some(OutputFormat::COMPRESSED_TENSORS), ..scheme("int4_wo_128") };
    assert_eq!(resolve(&asked).unwrap().format(), OutputFormat::COMPRESSED_TENSORS);
}

#[test]
fn keep_as_scheme_quantizes_only_overrides() {
    let line = Settings { overrides: vec!["*.a=int8:channel".parse().unwrap()], ..scheme("keep") };
    let recipe = resolve(&line).unwrap();
    assert_eq!(recipe.decide("x.b"), RuleMatch::Excluded);
    assert_eq!(recipe.decide("x.a"), RuleMatch::Override(layer_scheme("int8:channel")));
    assert!(resolve(&scheme("keep")).unwrap_err().to_string().contains("nothing is selected for quantization"));
    assert!(resolve(&Settings::default()).unwrap_err().to_string().contains("no scheme is given"));
}

#[test]
fn canonical_text_is_stable_and_reads_back() {
    let canonical = |text: &str| resolve(&scheme(text)).unwrap().canonical();
    assert_eq!(canonical("int4_wo_128"), canonical("int4:g128"));
    assert_ne!(canonical("int4_wo_128"), canonical("int4_wo_64"));
    // The same codes, another format.
    assert_ne!(canonical("int4_wo_128"), canonical("W4A16"));
    for file in [toml(FILE).unwrap(), scheme("nvfp4"), scheme("W4A16")] {
        let recipe = Recipe::resolve(&Settings::default(), &file).unwrap();
        let read = Settings::from_json("recipe.json", &recipe.canonical()).unwrap();
        let again = Recipe::resolve(&Settings::default(), &read).unwrap();
        assert_eq!(again.canonical(), recipe.canonical());
        assert_eq!((again.rules(), again.format()), (recipe.rules(), recipe.format()));
    }
}

#[test]
fn algorithms_of_the_command_line_replace_those_of_the_file() {
    let file = toml("version = 2\nscheme = \"int4:g128\"\nalgorithm = [\"awq:clip=off\", \"gptq\"]").unwrap();
    let recipe = Recipe::resolve(&Settings::default(), &file).unwrap();
    assert_eq!(recipe.algorithms().to_string(), "awq:clip=off,gptq");
    let read = Settings::from_json("recipe.json", &recipe.canonical()).unwrap();
    assert_eq!(Recipe::resolve(&Settings::default(), &read).unwrap().canonical(), recipe.canonical());
    let list = ["smooth".to_owned(), "qronos".to_owned()];
    let line = Settings::default().with_algorithms(&list).unwrap();
    assert_eq!(Recipe::resolve(&line, &file).unwrap().algorithms().to_string(), "smoothquant,qronos");
    let plain = Settings::default().with_algorithms(&["rtn".to_owned()]).unwrap();
    let plain = Recipe::resolve(&plain, &file).unwrap();
    assert!(plain.algorithms().is_plain());
    assert_eq!(plain, resolve(&scheme("int4:g128")).unwrap());
    let wrong = Settings { algorithm: Some(vec!["gptp".to_owned()]), ..scheme("int4:g128") };
    assert_eq!(resolve(&wrong).unwrap_err().to_string(), "‹algorithm›: unknown algorithm `gptp`");
}

#[test]
fn quark_algorithm_files_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("algorithms.json");
    let name = file.display().to_string();
    let read = |text: &str| {
        std::fs::write(&file, text).unwrap();
        Settings::default().with_algorithms(&["smoothquant".to_owned(), name.clone()])
    };
    let expected = Some(["smoothquant", "gptq:order=stored"].map(str::to_owned).to_vec());
    assert_eq!(read(r#"{"name": "gptq", "desc_act": false}"#).unwrap().algorithm, expected);
    let whole = read(r#"{"algo_config": [{"name": "gptq", "desc_act": false, "model_decoder_layers": "m"}]}"#).unwrap();
    assert_eq!((whole.algorithm, whole.notes.len()), (expected, 1));
    assert!(read("{").unwrap_err().to_string().starts_with(&name));
    assert!(matches!(read(r#"{"name": "quarot"}"#).unwrap_err(), RecipeError::Unsupported(_)));
    let missing = Settings::default().with_algorithms(&["nowhere.json".to_owned()]);
    assert!(matches!(missing.unwrap_err(), RecipeError::Read { .. }));
}

#[test]
fn recipe_mistakes_name_their_line() {
    let message = |text: &str| toml(text).unwrap_err().to_string();
    assert!(message("version = 1\nscheme = 3").starts_with("recipe.toml, line 2: "));
    assert!(message("version = 1\nschema = \"int4\"").contains("line 2: unknown key `schema`"));
    assert!(message("version = 1\n[[override]]\nlayers = \"*\"").contains("`scheme` is missing"));
    assert!(message("version = 1\n[[override]]\nlayers = \"*\"\nscheme = \"int4\"\nx = 1").contains("unknown key `x`"));
    assert!(message("version = 1\nformat = \"ggml\"").contains("ggml"));
    assert!(message("version = 1\nmax_shard_size = \"5 apples\"").contains("5 apples"));
    assert!(message("version = 1\nseed = -1").contains("line 2"));
    assert!(message("version = ").contains("line 1"));
    assert!(message(&"[".repeat(100_000)).len() < 1000);
}

#[test]
fn graph_keys_and_tensor_overrides_are_refused_by_name() {
    let message = |text: &str| toml(&format!("version = 2\nscheme = \"int4\"\n{text}")).unwrap_err().to_string();
    assert_eq!(message("io_dtype = \"float\""), "recipe.toml: `io_dtype` does not apply to checkpoints and GGUF files");
    assert_eq!(
        message("[[override]]\ntensors = \"x\"\nscheme = \"keep\""),
        "recipe.toml: override of `x`: `tensors` does not apply to checkpoints and GGUF files"
    );
}

/// A file whose override and exclusion both match `a.down` and `b.down`.
fn broad_exclusion(version: &str) -> Recipe {
    let text = format!(
        "{version}\nscheme = \"int4:g32\"\nexclude = [\"*.down\"]\n[[override]]\nlayers = \"a.*\"\nscheme = \"int8:channel\""
    );
    Recipe::resolve(&Settings::default(), &toml(&text).unwrap()).unwrap()
}

#[test]
fn overrides_win_over_exclusions_in_version_2_only() {
    let wide = RuleMatch::Override(layer_scheme("int8:channel"));
    for (version, expected) in [("version = 2", wide), ("version = 1", RuleMatch::Excluded), ("", RuleMatch::Excluded)]
    {
        let recipe = broad_exclusion(version);
        assert_eq!(recipe.decide("a.down"), expected, "{version}");
        assert_eq!((recipe.decide("a.up"), recipe.decide("b.down")), (wide, RuleMatch::Excluded), "{version}");
        assert_eq!(recipe.notes().len(), usize::from(version != "version = 2"));
    }
}

#[test]
fn version_1_recipe_is_recorded_with_the_same_meaning() {
    let old = broad_exclusion("version = 1");
    let again = Settings::from_json("recipe.json", &old.canonical()).unwrap();
    assert_eq!(again.version, Some(VERSION));
    let again = Recipe::resolve(&Settings::default(), &again).unwrap();
    assert_eq!((again.rules(), again.canonical()), (old.rules(), old.canonical()));
}

#[test]
fn override_text_needs_both_sides() {
    for text in ["", "=", "a=", "=int4", "int4"] {
        assert!(text.parse::<OverrideText>().is_err(), "{text}");
    }
    let line = Settings { overrides: vec!["*.a=int4_wo_12".parse().unwrap()], ..scheme("int4") };
    let error = resolve(&line).unwrap_err();
    assert_eq!(error.to_string(), "‹override› `*.a`: unknown scheme `int4_wo_12`");
}

#[test]
fn recipe_files_are_read_by_content_not_name() {
    let folder = std::env::temp_dir().join(format!("kvant-recipe-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let write = |name: &str, text: &str| {
        std::fs::write(folder.join(name), text).unwrap();
        Settings::read(&folder.join(name))
    };
    let new = FILE.replace("version = 1", "version = 2");
    for name in ["recipe.toml", "recipe.json", "recipe"] {
        assert_eq!(write(name, &new).unwrap(), toml(&new).unwrap(), "{name}");
    }
    let json = r#"{"version": 1, "scheme": "int4"}"#;
    assert_eq!(write("recipe.toml", json).unwrap().scheme.as_deref(), Some("int4"));
    assert!(matches!(Settings::read(&folder.join("missing.toml")).unwrap_err(), RecipeError::Read { .. }));
    std::fs::write(folder.join("binary.toml"), [0xff, 0xfe, 0]).unwrap();
    let refused = Settings::read(&folder.join("binary.toml")).unwrap_err();
    let hint = kvant_container::Diagnostic::hint(&refused).unwrap();
    assert!(hint.contains("text file") && !hint.contains("permissions"), "{hint}");
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn biases_have_schemes_for_all_layers_and_for_kinds() {
    let file = Settings::from_toml(
        "r.toml",
        "version = 2\nscheme = \"int8:channel\"\nbias = \"int8:tensor\"\n[layer_types]\nconv2d = { scheme = \"int8:channel\", bias = \"float\" }\n\
         conv1d = { bias = \"e4m3:channel\" }",
    );
    let recipe = Recipe::resolve(&Settings::default(), &file.unwrap()).unwrap();
    let of = |recipe: &Recipe, kind| recipe.biases().of_kind(kind).map(|scheme| scheme.to_string());
    let all = |recipe: &Recipe| [LayerKind::Linear, LayerKind::Conv2d, LayerKind::Conv1d].map(|kind| of(recipe, kind));
    let expected = [Some("int8:tensor"), None, Some("e4m3:channel")].map(|text| text.map(str::to_owned));
    assert_eq!(all(&recipe), expected);
    assert_eq!(recipe.decide_shaped(LayerKind::Conv1d, "c"), None);
    // What an output says of its recipe means the same.
    let again = Settings::from_json("r.json", &recipe.canonical()).unwrap();
    let again = Recipe::resolve(&Settings::default(), &again).unwrap();
    assert_eq!((all(&again), again.canonical()), (expected, recipe.canonical()));
    for (text, reason) in [
        ("int32", "is for biases of ONNX graphs"),
        ("mx9", "are not quantized in"),
        ("int8:g32", "are not quantized in"),
        ("what", "is not a scheme of a tensor"),
    ] {
        let line = Settings { bias: Some(text.to_owned()), ..scheme("int8:channel") };
        let error = resolve(&line).unwrap_err();
        assert!(error.to_string().contains(reason), "{text}: {error}");
    }
}
