//! Recipes as TOML: fields as they are named in [`Settings`], overrides as `[[override]]` with `tensors` and `scheme`.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use serde_json::Value;

use super::{Settings, SettingsError, VERSION};

/// More than this is no recipe.
const MAX_BYTES: u64 = 64 << 20;

impl Settings {
    /// Reads a recipe from a TOML file. Errors: what the system says, and those of [`Settings::from_toml`].
    pub fn read(file: &Path) -> Result<Settings, SettingsError> {
        let mut text = String::new();
        let read = File::open(file).and_then(|opened| opened.take(MAX_BYTES + 1).read_to_string(&mut text));
        read.map_err(|cause| SettingsError::Read { file: file.to_owned(), cause })?;
        let name = file.display().to_string();
        if text.len() as u64 > MAX_BYTES {
            return Err(SettingsError::File { file: name, problem: format!("is longer than {MAX_BYTES} bytes") });
        }
        Settings::from_toml(&name, &text)
    }

    /// Reads a TOML recipe; `name` is the file's, for messages.
    ///
    /// Errors: text that is no TOML, unknown fields, values of the wrong type, a missing or another version.
    pub fn from_toml(name: &str, text: &str) -> Result<Settings, SettingsError> {
        let wrong = |problem: String| SettingsError::File { file: name.to_owned(), problem };
        let settings: Settings = toml::from_str(text).map_err(|error| wrong(error.to_string().trim().to_owned()))?;
        match settings.version {
            Some(VERSION) => Ok(settings),
            Some(version) => Err(SettingsError::Version { file: name.to_owned(), version }),
            None => Err(wrong(format!("version = {VERSION} is missing"))),
        }
    }

    /// The recipe as TOML, which reads back as the same; what is not said is left out.
    pub fn to_toml(&self) -> String {
        let fields = serde_json::to_value(self).unwrap_or_default();
        let said = |value: &&Value| !value.is_null() && value.as_array().is_none_or(|list| !list.is_empty());
        let fields =
            fields.as_object().into_iter().flatten().filter(|(name, _)| *name != "version" && *name != "override");
        let lines = fields.filter(|(_, value)| said(value)).map(|(name, value)| format!("{name} = {}\n", toml(value)));
        let text = |text: &str| toml(&Value::from(text));
        let overrides = self
            .overrides
            .iter()
            .map(|o| format!("\n[[override]]\ntensors = {}\nscheme = {}\n", text(&o.tensors), text(&o.scheme)));
        std::iter::once(format!("version = {VERSION}\n")).chain(lines).chain(overrides).collect()
    }
}

/// A value as TOML has it, which is JSON's spelling but for one character.
fn toml(value: &Value) -> String {
    value.to_string().replace('\u{7f}', "\\u007F")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::element::Element;
    use crate::recipe::{BiasKind, Boundary, Form};
    use crate::settings::{OverrideText, PairLayout};

    #[test]
    fn what_is_written_reads_back() {
        let override_text =
            |tensors: &str| OverrideText { tensors: tensors.to_owned(), scheme: "int16:symmetric".to_owned() };
        let settings = Settings {
            version: Some(VERSION),
            preset: Some("A8W8".to_owned()),
            activation: Some(Element::UInt8),
            calibration_method: "layerwise-percentile".parse().ok(),
            percentile: Some(99.995),
            bias: Some(BiasKind::LikeWeight),
            form: Some(Form::Microsoft),
            boundary: Some(Boundary::Integer),
            layout: Some(PairLayout::Qoperator),
            symmetric: Some(false),
            exclude: vec!["a \"b\" \\ \u{1} \u{7f} é".to_owned()],
            overrides: vec![override_text("x\ny"), override_text("*")],
            ..Settings::default()
        };
        let text = settings.to_toml();
        assert_eq!(Settings::from_toml("r", &text).unwrap(), settings, "{text}");
        assert_eq!(Settings { version: Some(1), ..Settings::default() }.to_toml(), "version = 1\n");
    }

    #[test]
    fn what_is_no_recipe_is_told() {
        let problem = |text: &str| Settings::from_toml("r.toml", text).unwrap_err().to_string();
        assert!(problem("preset = \"A8W8\"").contains("version = 1 is missing"));
        assert!(problem("version = 2").contains("version 2"));
        assert!(problem("version = 1\nscheme = 3").contains("scheme"));
        assert!(problem("version = 1\nactivation = \"int7\"").contains("int7"));
        assert!(problem("version = ").starts_with("r.toml: "));
    }

    #[test]
    fn options_win_and_lists_are_joined() {
        let file =
            Settings::from_toml("r", "version = 1\npreset = \"A8W8\"\nper_channel = true\nexclude = [\"a\"]").unwrap();
        let options =
            Settings { preset: Some("XINT8".to_owned()), exclude: vec!["b".to_owned()], ..Settings::default() };
        let both = options.over(file);
        assert_eq!((both.preset.as_deref(), both.per_channel), (Some("XINT8"), Some(true)));
        assert_eq!(both.exclude, ["a", "b"]);
    }
}
