//! Recipes in the forms of llm-compressor's documentation, examples and tests, with the command line that asks for the same.

use super::*;
use crate::recipe::{Recipe, Settings, read_text};
use kvant_container::Diagnostic;

fn read(text: &str) -> Result<RecipeFile, RecipeError> {
    read_text("recipe.yaml", text)
}

/// The same recipe as text: all that decides the output.
fn canonical(line: &Settings, file: RecipeFile) -> String {
    Recipe::resolve(line, &Settings::try_from(file).unwrap()).unwrap().canonical()
}

/// `--scheme`, `--algorithm`, overrides and exclusions of a command line, with `--format compressed-tensors`.
fn command_line(scheme: &str, algorithm: &[&str], overrides: &[&str], exclude: &[&str]) -> String {
    let line = Settings {
        scheme: Some(scheme.to_owned()),
        format: Some("compressed-tensors".parse().unwrap()),
        algorithm: (!algorithm.is_empty()).then(|| algorithm.iter().map(|text| (*text).to_owned()).collect()),
        overrides: overrides.iter().map(|text| text.parse().unwrap()).collect(),
        exclude: exclude.iter().map(|text| (*text).to_owned()).collect(),
        ..Settings::default()
    };
    Recipe::resolve(&line, &Settings::default()).unwrap().canonical()
}

fn stage(modifiers: &str) -> String {
    let indented: String = modifiers.lines().map(|line| format!("    {line}\n")).collect();
    format!("quant_stage:\n  quant_modifiers:\n{indented}")
}

#[test]
fn llm_compressor_recipes_match_command_line_settings() {
    let int4 = "weights: {num_bits: 4, type: int, symmetric: true, strategy: group, group_size: 128}";
    let int8 = "weights: {num_bits: 8, type: int, symmetric: true, strategy: channel}";
    let group =
        |parts: &str| format!("  ignore: [lm_head]\n  config_groups:\n    group_0:\n{parts}\n      targets: [Linear]");
    let cases: &[(String, &str, &[&str], &[&str])] = &[
        (format!("GPTQModifier:\n{}", group(&format!("      {int4}"))), "int4:g128", &["gptq"], &[]),
        (
            format!("GPTQModifier:\n  dampening_frac: 0.1\n  block_size: 64\n  actorder: null\n{}", group(&format!("      {int4}"))),
            "int4:g128",
            &["gptq:damping=0.1:order=stored:block=64"],
            &[],
        ),
        (
            format!("GPTQModifier:\n  actorder: weight\n  sequential_update: true\n  offload_hessians: True\n{}", group(&format!("      {int4}"))),
            "int4:g128",
            &["gptq"],
            &[],
        ),
        (
            format!(
                "SmoothQuantModifier:\n  smoothing_strength: 0.8\nGPTQModifier:\n  actorder: null\n{}",
                group(&format!("      {int8}\n      input_activations: {{num_bits: 8, symmetric: false, dynamic: true, strategy: token, type: int}}"))
            ),
            "int8:channel+int8:channel:zp!dynamic",
            &["smoothquant:alpha=0.8", "gptq:order=stored"],
            &[],
        ),
        (
            "SmoothQuantModifier:\n  smoothing_strength: 0.8\nGPTQModifier:\n  targets: [\"Linear\"]\n  ignore: [lm_head]\n  scheme: W8A8".to_owned(),
            "W8A8",
            &["smoothquant:alpha=0.8", "gptq"],
            &[],
        ),
        (
            "AWQModifier:\n  duo_scaling: false\n  n_grid: 10\nQuantizationModifier:\n  ignore: [\"lm_head\"]\n  scheme: \"NVFP4\"\n  targets: [\"Linear\"]".to_owned(),
            "NVFP4",
            &["awq:ratios=10:duo=off:clip=off"],
            &[],
        ),
        (
            "AWQModifier:\n  ignore: [lm_head]\n  scheme: w4a16_asym\n  targets: Linear".to_owned(),
            "W4A16_ASYM",
            &["awq:duo=on:clip=off"],
            &[],
        ),
        (
            // A group for some layers and one for others.
            "QuantizationModifier:\n  ignore: [lm_head]\n  config_groups:\n    group_0:\n      weights: {num_bits: 8, type: float, strategy: channel, dynamic: false, symmetric: true}\n      input_activations: {num_bits: 8, type: float, strategy: token, dynamic: true, symmetric: true}\n      targets: [\"re:.*\\\\.down_proj$\"]\n    group_1:\n      weights: {num_bits: 4, type: float, strategy: tensor_group, group_size: 16, scale_dtype: float8_e4m3fn}\n      input_activations: {num_bits: 4, type: float, strategy: tensor_group, dynamic: local, symmetric: true, group_size: 16}\n      targets:\n        - \"re:.*self_attn\\\\.(k|o|q|v)_proj$\"\n        - \"re:.*\\\\.(gate|up)_proj$\"".to_owned(),
            "keep",
            &[],
            &["re:.*\\.(gate|up)_proj$=NVFP4", "re:.*self_attn\\.(k|o|q|v)_proj$=NVFP4", "re:.*\\.down_proj$=FP8_DYNAMIC"],
        ),
        (
            "QuantizationModifier:\n  ignore: [lm_head]\n  scheme: {FP8_DYNAMIC: [\"re:.*mlp.*\"], W4A16: Linear}".to_owned(),
            "W4A16",
            &[],
            &["re:.*mlp.*=FP8_DYNAMIC"],
        ),
        (
            "QuantizationModifier:\n  targets: [Linear]\n  ignore: [lm_head]\n  scheme:\n    weights: {num_bits: 8, type: int, symmetric: true, strategy: channel, observer: mse}".to_owned(),
            "int8:channel:mse",
            &[],
            &[],
        ),
        (
            "GPTQModifier:\n  block_size: 128\n  dampening_frac: 0.001\n  offload_hessians: False\n  actorder: static\n  ignore: [lm_head]\n  config_groups:\n    group_0:\n      targets:\n        - \"Linear\"\n      input_activations: null\n      output_activations: null\n      weights:\n        num_bits: 8\n        type: \"int\"\n        symmetric: true\n        strategy: group\n        group_size: 128".to_owned(),
            "int8:g128",
            &["gptq:damping=0.001"],
            &[],
        ),
        (
            format!(
                "QuantizationModifier:\n{}",
                group("      weights: {num_bits: 8, type: float, strategy: tensor, dynamic: false, symmetric: true}\n      input_activations: {num_bits: 8, type: float, strategy: tensor, dynamic: false, symmetric: true}")
            ),
            "FP8",
            &[],
            &[],
        ),
        (
            // Older recipes: the scheme in one modifier, the algorithm in another.
            format!("QuantizationModifier:\n{}\nGPTQModifier:\n  block_size: 128", group(&format!("      {int4}"))),
            "int4:g128",
            &["gptq"],
            &[],
        ),
    ];
    for (text, scheme, algorithm, overrides) in cases {
        let file = read(&stage(text)).unwrap_or_else(|error| panic!("{text}\n{error}"));
        assert!(file.is_foreign && file.notes.is_empty(), "{text}: {:?}", file.notes);
        assert_eq!(
            canonical(&Settings::default(), file),
            command_line(scheme, algorithm, overrides, &["lm_head"]),
            "{text}"
        );
    }
}

#[test]
fn kv_cache_modifier_is_read_beside_weights() {
    let text = "GPTQModifier:\n  ignore: [lm_head]\n  scheme: W4A16\nQuantizationModifier:\n  kv_cache_scheme: {num_bits: 8, type: float, symmetric: true, strategy: tensor, dynamic: false}";
    let file = read(&stage(text)).unwrap();
    assert_eq!((file.kv_cache.as_deref(), &file.algorithm), (Some("e4m3:tensor!static"), &vec!["gptq".to_owned()]));
}

#[test]
fn unmatched_ignores_are_accepted_and_command_line_settings_win() {
    let text = stage("QuantizationModifier:\n  ignore: [lm_head, \"re:vision_tower.*\"]\n  scheme: W4A16");
    let line = Settings { scheme: Some("int8:channel".to_owned()), ..Settings::default() };
    let recipe = Recipe::resolve(&line, &Settings::try_from(read(&text).unwrap()).unwrap()).unwrap();
    assert!(recipe.rules().iter().all(|rule| rule.may_be_idle));
    assert_eq!(recipe.default_choice().spelling(), "int8:channel");
    // The same recipe as JSON.
    let json = r#"{"quant_stage": {"quant_modifiers": {"QuantizationModifier": {"ignore": ["lm_head", "re:vision_tower.*"], "scheme": "W4A16"}}}}"#;
    assert_eq!(read(json).unwrap(), read(&text).unwrap());
}

#[test]
fn mappings_and_head_targets_are_noted() {
    let text = "SmoothQuantModifier:\n  mappings:\n  - - ['re:.*q_proj']\n    - re:.*input_layernorm\nGPTQModifier:\n  scheme: W8A8";
    let notes = read(&stage(text)).unwrap().notes;
    assert!(notes[0].starts_with("quant_stage.quant_modifiers.SmoothQuantModifier.mappings is not used"), "{notes:?}");
    assert!(notes[1].contains("‹no-keep-defaults›"), "{notes:?}");
}

#[test]
fn unsupported_modifiers_are_named() {
    let quantization = "QuantizationModifier:\n  scheme: W4A16\n";
    for (text, place) in [
        ("SparseGPTModifier:\n  sparsity: 0.5\n", "SparseGPTModifier: prunes weights"),
        ("ConstantPruningModifier:\n  start: 0\n", "ConstantPruningModifier: prunes weights"),
        ("AutoRoundModifier:\n  scheme: W4A16\n", "AutoRoundModifier: trains roundings"),
        ("SpinQuantModifier: {}\n", "SpinQuantModifier: rotates weights"),
        ("WeightClampModifier:\n  max_weight_magnitude: 0.5\n", "WeightClampModifier: is a modifier"),
        ("AWQModifier:\n  duo_scaling: both\n", "AWQModifier.duo_scaling: "),
        ("SmoothQuantModifier:\n  ignore: [a]\n", "SmoothQuantModifier.ignore: "),
        ("SmoothQuantModifier:\n  num_calibration_steps: 5\n", "SmoothQuantModifier.num_calibration_steps: "),
        ("SmoothQuantModifier:\n  algorithm: log_equalization\n", "SmoothQuantModifier.algorithm: "),
        ("SmoothQuantModifier:\n  smoothing_strength: 7\n", "SmoothQuantModifier: `7`"),
        (
            "SmoothQuantModifier:\n  smoothing_strength: much\n",
            "SmoothQuantModifier.smoothing_strength: is not a number",
        ),
        ("GPTQModifier:\n  actorder: group\n", "GPTQModifier.actorder: "),
        ("GPTQModifier:\n  sequential_update: false\n", "GPTQModifier.sequential_update: "),
        ("GPTQModifier:\n  start: 3\n", "GPTQModifier.start: "),
        ("GPTQModifier:\n  surprise: 1\n", "GPTQModifier.surprise: "),
        (
            "GPTQModifier:\n  scheme: W8A8\n",
            "quantizes further layers besides those of quant_stage.quant_modifiers.GPTQModifier",
        ),
        ("GPTQModifier:\n  scheme: W4A5\n", "GPTQModifier.scheme: the scheme `W4A5`"),
        ("GPTQModifier:\n  scheme: W4A16\n  config_groups: {g: {}}\n", "GPTQModifier.scheme: is given together with"),
        ("GPTQModifier:\n  targets: [a]\n  config_groups: {g: {targets: [Linear]}}\n", "GPTQModifier.targets: "),
        ("GPTQModifier:\n  weight_observer: mse\n  scheme: W4A16\n", "GPTQModifier.weight_observer: "),
        ("GPTQModifier:\n  weights: {num_bits: 4}\n", "GPTQModifier.weights: "),
        ("GPTQModifier:\n  targets: [LlamaAttention]\n  scheme: W4A16\n", "GPTQModifier.targets: `LlamaAttention`"),
    ] {
        let error = read(&stage(&format!("{text}{quantization}"))).unwrap_err();
        assert!(
            error.to_string().contains(place) && error.hint().is_some_and(|hint| !hint.is_empty()),
            "{text}: {error}"
        );
        assert!(error.to_string().starts_with("recipe.yaml: quant_stage.quant_modifiers."), "{error}");
    }
    for (text, part) in [
        ("GPTQModifier:\n  scheme: W4A16", "GPTQModifier: is outside a stage"),
        ("quant_stage:\n  run_type: train\n", "quant_stage.run_type: "),
        ("quant_stage: {}\nargs: {a: 1}", "args: "),
        (
            "quant_stage:\n  quant_modifiers:\n    QuantizationModifier:\n      kv_cache_scheme: {type: float}",
            "quantizes keys and values",
        ),
    ] {
        let error = read(text).unwrap_err();
        assert!(error.to_string().contains(part), "{text}: {error}");
    }
}
