//! From the keys of a recipe file to settings, and back.

use std::fmt::Display;
use std::str::FromStr;

use kvant_quant::recipe::{ModelKind, OverrideEntry, RecipeFile, VERSION};

use super::{PairLayout, Settings, SettingsError};

impl Settings {
    /// Reads a TOML recipe; `name` is the file's, for messages.
    ///
    /// # Errors
    /// Those of [`RecipeFile::from_toml`] and of the conversion from its keys.
    pub fn from_toml(name: &str, text: &str) -> Result<Settings, SettingsError> {
        Settings::try_from(RecipeFile::from_toml(name, text)?)
    }

    /// The recipe as TOML of the current version, which reads back as the same. What is not given is left out.
    pub fn to_toml(&self) -> String {
        // In a file exclusions come before overrides: those that win over overrides of layers are overrides behind them.
        let reorders = self.overrides.iter().any(|entry| entry.layers.is_some());
        let (exclude, behind) = if reorders {
            (Vec::new(), self.exclude.iter().map(|nodes| keep(nodes)).collect())
        } else {
            (self.exclude.clone(), Vec::new())
        };
        let file = RecipeFile {
            version: VERSION,
            scheme: self.preset.clone(),
            weights_only: self.weights_only,
            algorithm: self.algorithm.clone(),
            exclude,
            activation: text(self.activation),
            weight: text(self.weight),
            symmetric: self.symmetric,
            per_channel: self.per_channel,
            per_channel_activations: self.per_channel_activations,
            reduce_range: self.reduce_range,
            calibration_method: text(self.calibration_method),
            weight_method: text(self.weight_method),
            percentile: self.percentile,
            bias: text(self.bias),
            op_domain: text(self.form),
            graph_format: text(self.layout),
            io_dtype: text(self.boundary),
            op_types: self.op_types.clone(),
            more_op_types: self.more_op_types.clone(),
            exclude_op_types: self.exclude_op_types.clone(),
            nodes: self.nodes.clone(),
            exclude_subgraph: self.exclude_subgraph.clone(),
            enable_pass: self.enable_pass.clone(),
            disable_pass: self.disable_pass.clone(),
            overrides: self.overrides.iter().cloned().chain(behind).collect(),
            ..RecipeFile::default()
        };
        file.to_toml()
    }
}

/// The keys of a file for ONNX graphs.
impl TryFrom<RecipeFile> for Settings {
    type Error = SettingsError;

    fn try_from(mut file: RecipeFile) -> Result<Settings, SettingsError> {
        if file.is_foreign {
            // The checkpoint format in which the other tool writes its results.
            (file.format, file.pack_method) = (None, None);
        }
        file.refuse_keys_of_others(ModelKind::Graph)?;
        let exclusions_win = file.exclusions_win();
        let first: Vec<OverrideEntry> =
            if exclusions_win { Vec::new() } else { file.exclude.iter().map(|nodes| keep(nodes)).collect() };
        // Without overrides of layers, the order does not matter, and exclusions stay what they are called.
        let reorders = !exclusions_win && file.overrides.iter().any(|entry| entry.layers.is_some());
        let (first, exclude) = if reorders { (first, Vec::new()) } else { (Vec::new(), file.exclude) };
        let name = file.name.as_str();
        Ok(Settings {
            preset: file.scheme,
            weights_only: file.weights_only,
            activation: word(name, "activation", file.activation)?,
            weight: word(name, "weight", file.weight)?,
            symmetric: file.symmetric,
            per_channel: file.per_channel,
            per_channel_activations: file.per_channel_activations,
            algorithm: file.algorithm,
            reduce_range: file.reduce_range,
            calibration_method: word(name, "calibration_method", file.calibration_method)?,
            weight_method: word(name, "weight_method", file.weight_method)?.or(word(name, "scales", file.scales)?),
            percentile: file.percentile,
            bias: word(name, "bias", file.bias)?,
            form: word(name, "op_domain", file.op_domain)?,
            layout: word(name, "graph_format", file.graph_format)?,
            boundary: word(name, "io_dtype", file.io_dtype)?,
            op_types: file.op_types,
            more_op_types: file.more_op_types,
            exclude_op_types: file.exclude_op_types,
            nodes: file.nodes,
            exclude,
            exclude_subgraph: file.exclude_subgraph,
            enable_pass: file.enable_pass,
            disable_pass: file.disable_pass,
            overrides: first.into_iter().chain(file.overrides).collect(),
            ranges: None,
            notes: file.notes,
        })
    }
}

fn keep(nodes: &str) -> OverrideEntry {
    OverrideEntry::of_layers(nodes, "keep")
}

fn text<T: Display>(value: Option<T>) -> Option<String> {
    value.map(|value| value.to_string())
}

fn word<T>(file: &str, key: &str, text: Option<String>) -> Result<Option<T>, SettingsError>
where
    T: FromStr,
    T::Err: Display,
{
    let wrong = |error: T::Err| SettingsError::File { file: file.to_owned(), problem: format!("`{key}`: {error}") };
    text.map(|text| text.parse().map_err(wrong)).transpose()
}

impl Display for PairLayout {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            PairLayout::Qdq => "qdq",
            PairLayout::Qoperator => "qoperator",
        })
    }
}

impl FromStr for PairLayout {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.to_ascii_lowercase().as_str() {
            "qdq" => Ok(PairLayout::Qdq),
            "qoperator" => Ok(PairLayout::Qoperator),
            _ => Err(format!("`{}` is neither qdq nor qoperator", text.escape_debug())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::element::Element;
    use crate::recipe::{BiasKind, Boundary, Form};

    #[test]
    fn written_settings_read_back() {
        let settings = Settings {
            preset: Some("A8W8".to_owned()),
            activation: Some(Element::UInt8),
            calibration_method: "layerwise-percentile".parse().ok(),
            percentile: Some(99.995),
            bias: Some(BiasKind::LikeWeight),
            form: Some(Form::Microsoft),
            boundary: Some(Boundary::Integer),
            layout: Some(PairLayout::Qoperator),
            symmetric: Some(false),
            exclude: vec!["a".to_owned()],
            overrides: vec![
                OverrideEntry::of_tensors("x\ny", "int16:symmetric"),
                OverrideEntry::of_tensors("*", "int16"),
            ],
            ..Settings::default()
        };
        let text = settings.to_toml();
        assert_eq!(Settings::from_toml("r", &text).unwrap(), settings, "{text}");
        assert!(text.contains("op_domain = \"microsoft\"") && text.contains("io_dtype = \"integer\""), "{text}");
        assert_eq!(Settings::default().to_toml(), "version = 2\n");
    }

    #[test]
    fn version_1_exclusions_keep_winning_when_written() {
        let text = "exclude = [\"fc*\"]\n[[override]]\nlayers = \"fc1\"\nscheme = \"int4\"";
        let excluded = |settings: &Settings| {
            let settings = Settings { preset: Some("A8W8".to_owned()), ..settings.clone() };
            let rules = settings.resolve().unwrap().recipe.selection.node_rules;
            rules.iter().rev().find(|rule| rule.nodes.matches("fc1")).is_some_and(|rule| rule.excluded)
        };
        let old = Settings::from_toml("r", &format!("version = 1\n{text}")).unwrap();
        let new = Settings::from_toml("r", &format!("version = 2\n{text}")).unwrap();
        assert!(excluded(&old) && !excluded(&new));
        assert!(old.notes[0].contains("has version 1") && new.notes.is_empty());
        for settings in [old, new] {
            let again = Settings::from_toml("r", &settings.to_toml()).unwrap();
            assert_eq!(excluded(&again), excluded(&settings), "{}", settings.to_toml());
        }
    }

    #[test]
    fn invalid_graph_recipes_are_refused() {
        let problem = |text: &str| Settings::from_toml("r.toml", text).unwrap_err().to_string();
        assert!(problem("version = 3").contains("version 3"));
        assert!(problem("version = 2\nscheme = 3").contains("scheme"));
        assert_eq!(problem("version = 2\nkv_cache = \"fp8\""), "r.toml: `kv_cache` does not apply to ONNX graphs");
        assert!(problem("version = 1\nactivation = \"int7\"").starts_with("r.toml: `activation`: `int7`"));
        assert!(problem("version = 1\nlayout = \"x\"").contains("`graph_format`: `x` is neither"));
        assert!(problem("version = ").starts_with("r.toml, line 1: "));
    }

    #[test]
    fn options_win_over_the_file_and_lists_are_joined() {
        let file =
            Settings::from_toml("r", "version = 2\npreset = \"A8W8\"\nper_channel = true\nexclude = [\"a\"]").unwrap();
        let options =
            Settings { preset: Some("XINT8".to_owned()), exclude: vec!["b".to_owned()], ..Settings::default() };
        let both = options.over(file);
        assert_eq!((both.preset.as_deref(), both.per_channel), (Some("XINT8"), Some(true)));
        assert_eq!(both.exclude, ["a", "b"]);
    }
}
