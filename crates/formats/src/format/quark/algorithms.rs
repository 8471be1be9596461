//! Quark's `algo_config`: the algorithms for weights, and their settings, read and written. Its lists of a model's
//! layers (pairs to smooth, modules to round, paths of blocks) are ignored: they follow from the family here.

use super::read::is_empty;
use crate::algorithm::{Algorithm, Algorithms};
use kvant_quant::rotation::Rotate;
use kvant_quant::rounding::{ColumnOrder, Damping, Gptq, Groups, Rounding, Variant};
use kvant_quant::transform::Transform;
use kvant_weights::recipe_error::{RecipeError, quoted};
use serde_json::{Map, Value, json};

/// Fields of algorithms that are options here, in the order in which they are set, and the spellings of false and true. The
/// `alpha` of Qronos is what is called damping elsewhere.
const OPTIONS: &[(&str, &str, [&str; 2])] = &[
    ("alpha", "alpha", NO_SWITCH),
    ("compute_scale_loss", "loss", NO_SWITCH),
    ("damp_percent", "damping", NO_SWITCH),
    ("desc_act", "order", ["stored", "activation"]),
    ("static_groups", "groups", ["dynamic", "static"]),
    ("block_size", "block", NO_SWITCH),
    ("scale_clamp_min", "clamp-min", NO_SWITCH),
];

const NO_SWITCH: [&str; 2] = ["false", "true"];

/// Fields that name parts of a model.
const OF_MODELS: &[&str] =
    &["inside_layer_modules", "model_decoder_layers", "num_attention_heads", "num_key_value_heads", "scaling_layers"];

/// Fields that change how the result is computed, and not the result; and the name.
const OF_COMPUTATION: &[&str] = &["beta", "name"];

const REMOVE: &str = "remove it, or give ‹algorithm› instead";

/// The algorithms of `algo_config`, a list or one object, and what the user should know of how they were read.
///
/// # Errors
/// *Invalid* where it is not of Quark's form, *unsupported* for algorithms and settings that are not here.
///
/// ```
/// use kvant_formats::format::quark::read_algorithms;
///
/// let json = serde_json::json!([{"name": "awq"}, {"name": "gptq", "damp_percent": 0.05, "block_size": 128}]);
/// let (algorithms, notes) = read_algorithms(&json)?;
/// assert_eq!(algorithms.to_string(), "awq,gptq:damping=0.05");
/// assert!(notes.is_empty());
/// # Ok::<(), kvant_weights::recipe_error::RecipeError>(())
/// ```
pub fn read_algorithms(value: &Value) -> Result<(Algorithms, Vec<String>), RecipeError> {
    let items = match value {
        Value::Null => &[],
        Value::Array(items) => items.as_slice(),
        one => std::slice::from_ref(one),
    };
    let (mut spellings, mut notes) = (Vec::new(), Vec::new());
    for item in items {
        let fields =
            item.as_object().ok_or_else(|| RecipeError::invalid(PLACE, "must be a list of objects", REMOVE))?;
        let algorithm = read_algorithm(fields)?;
        notes.extend(note_of(&algorithm, fields));
        spellings.push(algorithm.to_string());
    }
    let algorithms = if spellings.is_empty() { Algorithms::default() } else { Algorithms::of_list(PLACE, &spellings)? };
    Ok((algorithms, notes))
}

const PLACE: &str = "algo_config";

fn read_algorithm(fields: &Map<String, Value>) -> Result<Algorithm, RecipeError> {
    let name = fields.get("name").and_then(Value::as_str);
    let name = name.ok_or_else(|| RecipeError::invalid(PLACE, "an algorithm has no `name`", REMOVE))?;
    if is_rotation(name) {
        return read_rotation(fields);
    }
    let mut given: Vec<(&str, &str, String)> = Vec::new();
    for (field, option, switch) in OPTIONS {
        if let Some(value) = fields.get(*field).filter(|value| !value.is_null()) {
            let option =
                if (*field, name.eq_ignore_ascii_case("qronos")) == ("alpha", true) { "damping" } else { option };
            given.push((field, option, text(value, switch)));
        }
    }
    let options: Vec<(&str, &str)> = given.iter().map(|(_, option, value)| (*option, value.as_str())).collect();
    let unsupported =
        || RecipeError::unsupported(PLACE, format!("the algorithm {} is not supported", quoted(name)), REMOVE);
    // Its AutoRound has other settings.
    let found = Algorithm::named(name, &options).filter(|found| !matches!(found, Ok(Algorithm::Tuning(_))));
    let algorithm = found.ok_or_else(unsupported)?.map_err(|problem| {
        let field = given.iter().find(|(_, option, _)| problem.is_of(option)).map_or("", |(field, ..)| field);
        RecipeError::invalid(format!("{PLACE}.{name}.{field}"), problem.to_string(), problem.hint())
    })?;
    check_others(&algorithm, fields)?;
    Ok(algorithm)
}

pub(super) fn is_rotation(name: &str) -> bool {
    ["rotation", "quarot"].iter().any(|known| name.eq_ignore_ascii_case(known))
}

/// Quark's rotation: `r1` and `r2` are folded into the weights, `r4` rotates the inputs of down projections while the model runs; the other
/// options rotate other activations or train the rotation. Under the older name `quarot`, all four rotations are on unless the configuration
/// turns them off. Whether `r1` and `r2` are random does not matter: those of Kvant have random signs, which change no model's function.
fn read_rotation(fields: &Map<String, Value>) -> Result<Algorithm, RecipeError> {
    let is_on = |key: &str, default: bool| fields.get(key).and_then(Value::as_bool).unwrap_or(default);
    let is_older = fields.get("name").and_then(Value::as_str).is_some_and(|name| name.eq_ignore_ascii_case("quarot"));
    let asked = [("r3", is_older), ("online_r1_rotation", false), ("trainable", false)];
    if let Some((key, _)) = asked.into_iter().find(|(key, default)| is_on(key, *default)) {
        let reason = match key {
            "trainable" => "how the rotation is trained is stated elsewhere",
            "r3" => "queries and keys are not rotated: no loader does so to a checkpoint, amd-quark refuses it",
            _ => {
                "the rotation of the residual stream (r1) is folded into weights, and not computed while the model runs"
            }
        };
        let hint = match key {
            "trainable" => "set it to false, or give the rotation by name: `rotate:steps=100`",
            _ => "set it to false",
        };
        return Err(RecipeError::unsupported(format!("{PLACE}.rotation.{key}"), reason, hint));
    }
    let size = match fields.get("rotation_size").filter(|size| !size.is_null()) {
        None => Some(0),
        Some(size) => size.as_u64().and_then(|size| u32::try_from(size).ok()),
    };
    let place = || format!("{PLACE}.rotation.rotation_size");
    let size = size.ok_or_else(|| RecipeError::invalid(place(), "must be a number of channels", REMOVE))?;
    let (stream, heads, down) = (is_on("r1", true), is_on("r2", is_older), is_on("r4", is_older));
    Ok(Algorithm::Rotation(Rotate { stream, heads, down, size, ..Rotate::DEFAULTS }))
}

fn check_others(algorithm: &Algorithm, fields: &Map<String, Value>) -> Result<(), RecipeError> {
    let known = |key: &str| {
        OPTIONS.iter().any(|(field, ..)| *field == key) || OF_MODELS.contains(&key) || OF_COMPUTATION.contains(&key)
    };
    match fields.iter().find(|(key, value)| !known(key) && !is_empty(value)) {
        None => Ok(()),
        Some((key, _)) => {
            let place = format!("{PLACE}.{}.{key}", algorithm.name());
            Err(RecipeError::unsupported(place, "is not a known field", "remove the field"))
        }
    }
}

/// A value as an option of an algorithm spells it.
fn text(value: &Value, switch: &[&str; 2]) -> String {
    match value {
        Value::Bool(on) => switch[usize::from(*on)].to_owned(),
        Value::String(text) => text.to_ascii_lowercase(),
        other => other.to_string(),
    }
}

fn note_of(algorithm: &Algorithm, fields: &Map<String, Value>) -> Option<String> {
    let is_said = |key: &&&str| fields.get(**key).is_some_and(|value| !is_empty(value) && value != &json!(""));
    let said: Vec<&str> = OF_MODELS.iter().filter(is_said).copied().collect();
    let reason = "which layers belong together follows from the model's family";
    (!said.is_empty())
        .then(|| format!("{} of `{}` in {PLACE} is not used: {reason}", said.join(", "), algorithm.name()))
}

/// The `algo_config` of algorithms: what Quark knows of them. Lists of layers are left empty, so that Quark looks for them.
pub fn algo_config(algorithms: &Algorithms) -> Value {
    if algorithms.is_plain() {
        return Value::Null;
    }
    algorithms.items().iter().filter_map(config_of).collect()
}

fn config_of(algorithm: &Algorithm) -> Option<Value> {
    match algorithm {
        Algorithm::Transform(transform) => config_of_transform(&**transform),
        // Quark names no others.
        Algorithm::Rounding(rounding) => rounding.downcast().map(config_of_gptq),
        // What is folded into weights is nothing that a loader has to know. What it computes is described with the layers.
        Algorithm::Rotation(_) | Algorithm::Tuning(_) | Algorithm::Correction(_) => None,
    }
}

/// The settings that Quark has fields for.
fn config_of_transform(transform: &dyn Transform) -> Option<Value> {
    let mut config = json!({ "model_decoder_layers": "", "name": transform.quark_name()?, "scaling_layers": [] });
    for (name, text) in transform.settings() {
        if let Some((field, ..)) = OPTIONS.iter().find(|(_, option, _)| *option == name) {
            // Quark writes names in capital letters.
            config[*field] =
                text.parse::<f64>().map_or_else(|_| json!(text.to_ascii_uppercase()), |number| json!(number));
        }
    }
    config.sort_all_objects();
    Some(config)
}

fn config_of_gptq(gptq: &Gptq) -> Value {
    let (Damping::OfMeanDiagonal(damping) | Damping::OfLargestEigenvalue(damping)) = gptq.damping;
    let mut config = json!({
        "block_size": gptq.block, "desc_act": gptq.order == ColumnOrder::Activation, "inside_layer_modules": [],
        "model_decoder_layers": "", "name": gptq.name(),
        "static_groups": gptq.order.groups() == Groups::Static,
    });
    match gptq.variant {
        Variant::Gptq => config["damp_percent"] = json!(damping),
        Variant::Gptaq { alpha } => {
            config["damp_percent"] = json!(damping);
            config["alpha"] = plain(alpha);
        }
        Variant::Qronos => {
            config["alpha"] = json!(damping);
            config["beta"] = json!(1e4);
        }
    }
    config.sort_all_objects();
    config
}

/// A number with the digits that distinguish it from its neighbours in f32.
fn plain(number: f32) -> Value {
    number.to_string().parse::<f64>().map_or(Value::Null, |number| json!(number))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rotations_are_read_where_they_are_folded_or_of_down_projections() {
        let read = |json: Value| read_algorithms(&json).map(|(algorithms, _)| algorithms.to_string());
        assert_eq!(read(json!({"name": "rotation"})).unwrap(), "rotate:heads=off");
        let both = json!([{"name": "rotation", "r2": true, "rotation_size": 32, "scaling_layers": {"first_layer": []}}, {"name": "gptq"}]);
        assert_eq!(read(both).unwrap(), "rotate:size=32,gptq");
        assert_eq!(
            read(json!({"name": "rotation", "r1": false, "r4": true})).unwrap(),
            "rotate:stream=off:heads=off:down=on"
        );
        let unread =
            [("r3", true), ("online_r1_rotation", true), ("trainable", true)].map(|(key, on)| (key, json!(on)));
        for (key, value) in unread.into_iter().chain([("rotation_size", json!("x"))]) {
            let mut rotation = json!({"name": "rotation"});
            rotation[key] = value;
            assert!(read(rotation).unwrap_err().to_string().contains(key), "{key}");
        }
        assert!(read(json!({"name": "quarot"})).is_err());
    }

    fn read(value: &Value) -> Result<(Algorithms, Vec<String>), RecipeError> {
        read_algorithms(value)
    }

    #[test]
    fn quark_algorithms_round_trip() {
        for text in [
            "rtn",
            "awq,gptq:damping=0.05:order=stored",
            "gptq:order=stored:groups=dynamic:block=64",
            "smoothquant:alpha=0.8:clamp-min=0.01",
            "autosmoothquant:loss=mae,gptaq:alpha=0.5",
            "qronos:damping=0.000001",
        ] {
            let algorithms: Algorithms = text.parse().unwrap();
            assert_eq!(read(&algo_config(&algorithms)).unwrap(), (algorithms, vec![]), "{text}");
        }
        assert_eq!(algo_config(&Algorithms::default()), Value::Null);
    }

    #[test]
    fn single_algorithm_object_is_a_list_and_layer_lists_are_noted() {
        let gptq = json!({"name": "gptq", "inside_layer_modules": ["q_proj"], "model_decoder_layers": "model.layers"});
        let (algorithms, notes) = read(&gptq).unwrap();
        assert_eq!((algorithms.to_string().as_str(), notes.len()), ("gptq", 1));
        assert!(
            notes[0].starts_with("inside_layer_modules, model_decoder_layers of `gptq` in algo_config is not used: ")
        );
    }

    #[test]
    fn unsupported_quark_algorithms_are_named() {
        let message = |value: Value| read(&value).unwrap_err().to_string();
        assert_eq!(message(json!([{"name": "svdquant"}])), "algo_config: the algorithm `svdquant` is not supported");
        assert!(
            message(json!([{"name": "gptq", "static_groups": false}])).starts_with("algo_config.gptq.static_groups: ")
        );
        assert!(message(json!([{"name": "gptq", "what": 1}])).ends_with("what: is not a known field"));
        assert!(message(json!([{"name": "gptq", "damp_percent": 7}])).contains("`7` is not a value"));
        assert!(message(json!([{"name": "gptq"}, {"name": "awq"}])).contains("has rounded already"));
        assert!(message(json!(["gptq"])).contains("list of objects"));
        assert!(message(json!([{}])).contains("no `name`"));
        assert!(matches!(read(&json!([{"name": "autoround"}])).unwrap_err(), RecipeError::Unsupported(_)));
        assert!(matches!(read(&json!([{"name": "gptq", "desc_act": 3}])).unwrap_err(), RecipeError::Invalid(_)));
    }
}
