//! Tests of the recipe language.

use super::*;

fn read(text: &str) -> Result<RecipeFile, RecipeFileError> {
    RecipeFile::from_toml("recipe.toml", text)
}

fn refused(text: &str) -> (String, String) {
    let error = read(text).unwrap_err();
    (error.to_string(), error.hint)
}

#[test]
fn key_table_lists_all_fields_in_order() {
    let fields = serde_json::to_value(RecipeFile::default()).unwrap();
    let fields: Vec<&String> = fields.as_object().unwrap().keys().collect();
    assert_eq!(fields, KEYS.iter().map(|key| key.name).collect::<Vec<_>>());
}

#[test]
fn old_and_new_key_spellings_are_read() {
    let old = read("version = 1\npreset = \"A8W8\"\nform = \"quark\"\nlayout = \"qdq\"\nboundary = \"float\"").unwrap();
    let new =
        read("version = 1\nscheme = \"A8W8\"\nop-domain = \"quark\"\ngraph-format = \"qdq\"\nio-dtype = \"float\"");
    assert_eq!(old, new.unwrap());
    assert_eq!(old.io_dtype.as_deref(), Some("float"));
    let (message, _) = refused("version = 2\nform = \"quark\"\nop_domain = \"quark\"");
    assert_eq!(message, "recipe.toml, line 3: `op_domain` is given twice, once by another spelling");
}

#[test]
fn unknown_keys_are_refused_with_a_suggestion() {
    let (message, hint) = refused("version = 2\nscheme = \"int4\"\nexcludes = [\"a\"]");
    assert_eq!(message, "recipe.toml, line 3: unknown key `excludes`");
    assert!(hint.starts_with("did you mean `exclude`?"), "{hint}");
    let (message, _) = refused("version = 2\n\n[[override]]\nlayer = \"a\"\nscheme = \"int4\"");
    assert_eq!(message, "recipe.toml, line 3, override 1: unknown key `layer`; did you mean `layers`?");
    assert!(!refused("version = 2\nzzzzzz = 1").1.contains("did you mean"));
}

#[test]
fn values_of_wrong_type_name_their_line() {
    assert!(refused("version = 2\nscheme = 3").0.starts_with("recipe.toml, line 2: `scheme`: invalid type"));
    assert!(refused("version = 2\nseed = -1").0.starts_with("recipe.toml, line 2: `seed`: "));
    assert!(refused("version = ").0.starts_with("recipe.toml, line 1: "));
    assert!(refused("version = \"2\"").0.contains("line 1: the version is not a whole number"));
    assert!(refused("version = 2\n[[override]]\nlayers = \"*\"").0.ends_with("override 1: `scheme` is missing"));
    assert!(refused("version = 2\n[[override]]\nscheme = \"int4\"").0.ends_with("`layers` is missing"));
    let both = "version = 2\n[[override]]\nlayers = \"a\"\ntensors = \"b\"\nscheme = \"int4\"";
    assert!(refused(both).0.ends_with("names both `layers` and `tensors`"));
    assert!(refused(&"[".repeat(100_000)).0.len() < 1000);
}

#[test]
fn newer_recipe_version_is_unsupported() {
    let error = read("version = 3\nsomething_new = true").unwrap_err();
    assert!(error.is_unsupported && error.to_string().contains("version 3"), "{error}");
}

#[test]
fn version_1_files_are_read_with_an_upgrade_note() {
    for (text, note) in [
        (
            "scheme = \"int4\"",
            "recipe.toml has no version and is read as version 1; to upgrade, write `version = 2`, which means the same",
        ),
        (
            "version = 1\nexclude = [\"a\"]\n[[override]]\nlayers = \"a\"\nscheme = \"int4\"",
            "recipe.toml has version 1; to upgrade, write `version = 2`, in which the last match wins",
        ),
    ] {
        let file = read(text).unwrap();
        assert!(file.exclusions_win() && file.notes[0].starts_with(note), "{:?}", file.notes);
    }
    let file = read("version = 2\nscheme = \"int4\"").unwrap();
    assert!(!file.exclusions_win() && file.notes.is_empty());
}

#[test]
fn keys_for_other_model_kinds_are_refused_by_name() {
    let file = read("version = 2\nscheme = \"int8\"\nexclude = [\"a\"]\nkv_cache = \"fp8\"").unwrap();
    assert_eq!(file.refuse_keys_of_others(ModelKind::Checkpoint), Ok(()));
    let error = file.refuse_keys_of_others(ModelKind::Graph).unwrap_err();
    assert_eq!(error.to_string(), "recipe.toml: `kv_cache` does not apply to ONNX graphs");
    let file = read("version = 2\nscheme = \"A8W8\"\nper_channel = false").unwrap();
    let error = file.refuse_keys_of_others(ModelKind::Checkpoint).unwrap_err();
    assert_eq!(error.to_string(), "recipe.toml: `per_channel` does not apply to checkpoints and GGUF files");
    assert_eq!(error.hint, "remove it: it is a key of recipes for ONNX graphs");
}

#[test]
fn algorithms_may_be_strings_or_tables() {
    let algorithms = |text: &str| read(&format!("version = 2\nalgorithm = {text}")).map(|file| file.algorithm);
    assert_eq!(algorithms("\"gptq\"").unwrap(), ["gptq"]);
    let mixed = "[\"awq:clip=off\", { name = \"gptq\", damping = 0.05, order = \"stored\" }]";
    assert_eq!(algorithms(mixed).unwrap(), ["awq:clip=off", "gptq:damping=0.05:order=stored"]);
    assert_eq!(algorithms("{ name = \"smoothquant\", clamp_min = 1 }").unwrap(), ["smoothquant:clamp-min=1"]);
    assert_eq!(algorithms("[{ name = \"awq\", clip = false }]").unwrap(), ["awq:clip=off"]);
    for wrong in ["3", "[3]", "{ damping = 1 }", "{ name = \"gptq\", order = [] }"] {
        assert!(algorithms(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn written_recipes_read_back() {
    let file = RecipeFile {
        version: VERSION,
        scheme: Some("A8W8".to_owned()),
        exclude: vec!["a \"b\" \\ \u{1} \u{7f} é".to_owned()],
        percentile: Some(99.995),
        symmetric: Some(false),
        overrides: vec![OverrideEntry::of_tensors("x\ny", "int16"), OverrideEntry::of_layers("*", "keep")],
        name: "recipe.toml".to_owned(),
        ..RecipeFile::default()
    };
    assert_eq!(read(&file.to_toml()).unwrap(), file, "{}", file.to_toml());
    assert_eq!(RecipeFile::default().to_toml(), "version = 2\n");
}

#[test]
fn advice_is_in_the_language_of_the_file() {
    let value = || serde_json::json!({"exclude": ["a"], "override": [{"layers": "b", "scheme": "int4"}]});
    let notes = |file: Result<RecipeFile, RecipeFileError>| file.unwrap().notes.join("");
    let json = notes(RecipeFile::from_json("r.json", value()));
    assert!(json.contains("write `\"version\": 2`, in which") && json.ends_with("`\"scheme\": \"keep\"`"), "{json}");
    let yaml = notes(RecipeFile::from_yaml("r.yaml", value()));
    assert!(yaml.contains("write `version: 2`, in which") && yaml.ends_with("`scheme: \"keep\"`"), "{yaml}");
    let toml = notes(read("exclude = [\"a\"]\n[[override]]\nlayers = \"b\"\nscheme = \"int4\""));
    assert!(toml.contains("write `version = 2`, in which") && toml.contains("an [[override]]"), "{toml}");
    let hint = |value: serde_json::Value| RecipeFile::from_yaml("r.yaml", value).unwrap_err().hint;
    assert_eq!(hint(serde_json::json!({"version": "x"})), "write `version: 2`");
    assert!(!hint(serde_json::json!({"override": 1})).contains("[["));
    assert!(!hint(serde_json::json!([1])).contains('='));
}
