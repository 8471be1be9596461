//! How a model card says what repeats a quantization: a recipe file and a command line, without paths of the machine that it ran on.

use crate::job::{Data, Job, Precision};
use crate::text::shell_word;
use kvant_checkpoint::blockwise::Propagate;
use serde_json::{Map, Value};
use std::path::Path;

/// The name of the recipe file in the command.
const RECIPE_FILE: &str = "recipe.toml";
/// Keys that the command has options for, or that follow from the file's version.
const NOT_IN_FILE: [&str; 2] = ["version", "also"];

/// A resolved recipe as the text of a recipe file. Keys with their usual values are left out.
pub(super) fn recipe_file(recipe: &Value) -> String {
    let none = Map::new();
    let fields = recipe.as_object().unwrap_or(&none);
    let mut text = format!("version = {}\n", recipe["version"]);
    for (key, value) in fields {
        if is_given(recipe, key, value) && !value.is_object() && key != "override" {
            text.push_str(&format!("{key} = {}\n", toml(value)));
        }
    }
    if let Some(kinds) = recipe["layer_types"].as_object().filter(|kinds| !kinds.is_empty()) {
        text.push_str("\n[layer_types]\n");
        kinds.iter().for_each(|(kind, scheme)| text.push_str(&format!("{kind} = {}\n", toml(scheme))));
    }
    for entry in recipe["override"].as_array().into_iter().flatten() {
        text.push_str(&format!(
            "\n[[override]]\nlayers = {}\nscheme = {}\n",
            toml(&entry["layers"]),
            toml(&entry["scheme"])
        ));
    }
    text
}

/// Whether a key says something that is not so anyway.
fn is_given(recipe: &Value, key: &str, value: &Value) -> bool {
    let is_usual = match key {
        "pack_method" => recipe["format"] != "quark" || value == "reorder",
        "keep_defaults" => value == true,
        "weights_only" | "kv_cache_post_rope" => value == false,
        "min_kv_scale" => recipe["kv_cache"].is_null(),
        "max_shard_size" => value == "5GB",
        "seed" => value == 0,
        _ => false,
    };
    let is_empty = value.is_null() || value.as_array().is_some_and(Vec::is_empty);
    !is_usual && !is_empty && !NOT_IN_FILE.contains(&key)
}

/// A value in TOML's spelling, which is JSON's but for tables and one character.
fn toml(value: &Value) -> String {
    match value {
        Value::Object(fields) => {
            let fields: Vec<String> = fields.iter().map(|(key, value)| format!("{key} = {}", toml(value))).collect();
            format!("{{ {} }}", fields.join(", "))
        }
        value => value.to_string().replace('\u{7f}', "\\u007F"),
    }
}

/// The command that makes the model again, with the recipe in a file. `model` is the source.
pub(super) fn command(job: &Job, model: &str, reads_data: bool) -> String {
    let mut words =
        ["kvant", "quantize", &shell_word(Path::new(model)), "‹recipe›", RECIPE_FILE].map(str::to_owned).to_vec();
    let mut option = |name: &str, value: String| words.extend([format!("‹{name}›"), shell_word(Path::new(&value))]);
    if job.sinks.formats.len() > 1 {
        job.sinks.formats.iter().for_each(|format| option("format", format.name().to_owned()));
    }
    job.source.adapters.iter().for_each(|adapter| option("lora", name(adapter)));
    if let Some(given) = &job.recipe.statistics {
        option("statistics", name(&given.path));
    }
    if reads_data {
        data_options(&job.data, &mut option);
    }
    if reads_data && job.data.shuffle {
        words.push("‹shuffle›".to_owned());
    }
    words.extend(["-o", "OUT"].map(str::to_owned));
    words.join(" ")
}

fn data_options(data: &Data, option: &mut impl FnMut(&str, String)) {
    let usual = Data::default();
    match data.shares.is_empty() {
        true => data.files.iter().for_each(|file| option("calib", name(file))),
        false => {
            let shared = data.files.iter().zip(&data.shares).map(|(file, share)| format!("{}:{share}", name(file)));
            option("calib", shared.collect::<Vec<_>>().join(","));
        }
    }
    if data.num_samples != usual.num_samples {
        option("num-samples", data.num_samples.to_string());
    }
    data.seq_len.iter().for_each(|length| option("seq-len", length.to_string()));
    data.packing.iter().for_each(|packing| option("packing", packing.name().to_owned()));
    data.column.iter().for_each(|column| option("column", column.clone()));
    if data.seed != usual.seed {
        option("seed", data.seed.to_string());
    }
    if data.precision == Precision::Bf16 {
        option("precision", data.precision.name().to_owned());
    }
    if data.propagate == Propagate::Float {
        option("propagate", data.propagate.name().to_owned());
    }
}

/// The last part of a path: the rest is of the machine.
pub(super) fn name(path: &Path) -> String {
    path.file_name().map_or_else(|| path.to_string_lossy(), |name| name.to_string_lossy()).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn usual_values_are_left_out_of_recipe_files() {
        let recipe = json!({
            "version": 2, "scheme": "int4:g128", "format": "awq", "also": ["gptq"], "pack_method": "order", "exclude": [],
            "override": [{"layers": "*.\"x\"", "scheme": "keep"}], "layer_types": {"conv2d": {"scheme": "int8:channel", "bias": "float"}},
            "keep_defaults": true, "weights_only": false, "algorithm": ["awq", "gptq:damping=0.05"], "kv_cache": null,
            "kv_cache_post_rope": false, "min_kv_scale": null, "max_shard_size": "5GB", "seed": 3, "requantize": true,
        });
        let expected = "version = 2\nscheme = \"int4:g128\"\nformat = \"awq\"\nalgorithm = [\"awq\",\"gptq:damping=0.05\"]\nseed = 3\n\
                        requantize = true\n\n[layer_types]\nconv2d = { scheme = \"int8:channel\", bias = \"float\" }\n\n[[override]]\n\
                        layers = \"*.\\\"x\\\"\"\nscheme = \"keep\"\n";
        assert_eq!(recipe_file(&recipe), expected);
    }

    #[test]
    fn commands_name_files_and_not_their_folders() {
        let mut job = Job::new("/home/me/secret/model");
        job.data.files = vec!["/home/me/my text.txt".into()];
        job.data.seq_len = Some(64);
        job.data.shuffle = true;
        job.source.adapters = vec!["/home/me/adapter".into()];
        let expected = "kvant quantize org/name ‹recipe› recipe.toml ‹lora› adapter ‹calib› 'my text.txt' ‹seq-len› 64 ‹shuffle› -o OUT";
        assert_eq!(command(&job, "org/name", true), expected);
        job.data.files.push("b.txt".into());
        job.data.shares = vec![0.75, 0.25];
        assert!(command(&job, "MODEL", true).contains(" ‹calib› 'my text.txt:0.75,b.txt:0.25' "));
        assert!(!command(&job, "MODEL", false).contains("calib"));
    }
}
