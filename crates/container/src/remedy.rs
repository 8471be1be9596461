//! Ways out of errors, as values: what a front end shows as options or arguments, and a program can act on.

use std::fmt;

/// A remedy for an error. Its text is part of a sentence, with settings in single angle quotes: `use ‹restart› to ...`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Remedy {
    /// Give text to calibrate a language model on.
    GiveCalibrationData,
    /// Give samples to calibrate a graph on.
    GiveSamples,
    /// Quantize the weights alone, which needs no data.
    QuantizeWeightsOnly,
    /// Keep the layer or node of this name as it is.
    ExcludeLayer(String),
    /// Use another scheme, in these words.
    UseScheme(String),
    /// Use another checkpoint format, in these words.
    UseFormat(String),
    /// Choose another output.
    ChooseOutput,
    /// Replace what is there.
    Overwrite,
    /// Discard the unfinished run.
    Restart,
    /// Give the output its name without verification, for this end: `write it anyway`.
    SkipVerification(&'static str),
    /// Accept the loss of quantizing a second time.
    Requantize,
    /// Leave a setting out.
    LeaveOut {
        /// Its name.
        setting: &'static str,
        /// The effect, as the rest of the sentence; may be empty.
        effect: &'static str,
    },
    /// Give a setting a value.
    Setting {
        /// Its name.
        name: &'static str,
        /// The value; none where only its direction is known.
        value: Option<String>,
        /// The whole advice, with the setting in it.
        text: String,
    },
    /// One of these was probably meant.
    ChooseOneOf(Vec<String>),
    /// A command that shows more.
    Command {
        /// The command and its arguments, without the program: `inspect MODEL`.
        command: String,
        /// Its effect.
        effect: &'static str,
    },
    /// Anything else, in words.
    Text(String),
}

impl Remedy {
    /// Advice in words alone.
    pub fn text(text: impl Into<String>) -> Remedy {
        Remedy::Text(text.into())
    }

    /// A setting to change, and the whole advice, with the setting in it.
    pub fn setting(name: &'static str, text: impl Into<String>) -> Remedy {
        Remedy::Setting { name, value: None, text: text.into() }
    }

    /// The same with the value that it should have.
    pub fn setting_to(name: &'static str, value: impl Into<String>, text: impl Into<String>) -> Remedy {
        Remedy::Setting { name, value: Some(value.into()), text: text.into() }
    }

    /// A setting to leave out.
    pub fn leave_out(setting: &'static str) -> Remedy {
        Remedy::LeaveOut { setting, effect: "" }
    }

    /// A command that shows or does more.
    pub fn command(command: impl Into<String>, effect: &'static str) -> Remedy {
        Remedy::Command { command: command.into(), effect }
    }

    /// The one piece of advice that a hint in words is.
    pub fn of_hint(hint: Option<String>) -> Vec<Remedy> {
        hint.map(Remedy::Text).into_iter().collect()
    }

    /// Its kind, as data call it.
    pub fn kind(&self) -> &'static str {
        match self {
            Remedy::GiveCalibrationData => "give-calibration-data",
            Remedy::GiveSamples => "give-samples",
            Remedy::QuantizeWeightsOnly => "quantize-weights-only",
            Remedy::ExcludeLayer(_) => "exclude-layer",
            Remedy::UseScheme(_) => "use-scheme",
            Remedy::UseFormat(_) => "use-format",
            Remedy::ChooseOutput => "choose-output",
            Remedy::Overwrite => "overwrite",
            Remedy::Restart => "restart",
            Remedy::SkipVerification(_) => "skip-verification",
            Remedy::Requantize => "requantize",
            Remedy::LeaveOut { .. } => "leave-out",
            Remedy::Setting { .. } => "setting",
            Remedy::ChooseOneOf(_) => "choose-one-of",
            Remedy::Command { .. } => "command",
            Remedy::Text(_) => "text",
        }
    }

    /// The setting that it is about, by the name that messages have in single angle quotes.
    pub fn names(&self) -> Option<&'static str> {
        match self {
            Remedy::GiveCalibrationData => Some("calib"),
            Remedy::GiveSamples => Some("data"),
            Remedy::QuantizeWeightsOnly => Some("weights-only"),
            Remedy::ExcludeLayer(_) => Some("exclude"),
            Remedy::UseScheme(_) => Some("scheme"),
            Remedy::UseFormat(_) => Some("format"),
            Remedy::ChooseOutput => Some("output"),
            Remedy::Overwrite => Some("overwrite"),
            Remedy::Restart => Some("restart"),
            Remedy::SkipVerification(_) => Some("no-verify"),
            Remedy::Requantize => Some("requantize"),
            Remedy::LeaveOut { setting: name, .. } | Remedy::Setting { name, .. } => Some(*name),
            Remedy::ChooseOneOf(_) | Remedy::Command { .. } | Remedy::Text(_) => None,
        }
    }

    /// Its values: the layer to exclude, the value of a setting, the command, the names to choose from.
    pub fn values(&self) -> Vec<String> {
        match self {
            Remedy::ExcludeLayer(name) => vec![name.clone()],
            Remedy::Setting { value, .. } => value.iter().cloned().collect(),
            Remedy::ChooseOneOf(names) => names.clone(),
            Remedy::Command { command, .. } => vec![command.clone()],
            _ => Vec::new(),
        }
    }

    /// All remedies as one hint: `a, b, or c`; `None` if there are none.
    pub fn hint(remedies: &[Remedy]) -> Option<String> {
        let texts: Vec<String> = remedies.iter().map(Remedy::to_string).collect();
        match texts.as_slice() {
            [] => None,
            [only] => Some(only.clone()),
            [first @ .., last] => Some(format!("{}, or {last}", first.join(", "))),
        }
    }
}

impl fmt::Display for Remedy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Remedy::GiveCalibrationData => f.write_str("give a text with ‹calib› FILE"),
            Remedy::GiveSamples => f.write_str(
                "give samples with ‹data›: an .npz with one array for each input, a folder of .npy or images; or `‹data› random`",
            ),
            Remedy::QuantizeWeightsOnly => f.write_str("quantize only the weights with ‹weights-only›"),
            Remedy::ExcludeLayer(name) => write!(f, "keep the layer with ‹exclude› '{name}'"),
            Remedy::UseScheme(words) | Remedy::UseFormat(words) => f.write_str(words),
            Remedy::ChooseOutput => f.write_str("choose another output with ‹output›"),
            Remedy::Overwrite => f.write_str("replace it with ‹overwrite›"),
            Remedy::Restart => f.write_str("use ‹restart› to discard the unfinished run"),
            Remedy::SkipVerification(end) => write!(f, "use ‹no-verify› to {end}"),
            Remedy::Requantize => f.write_str("accept the loss of both quantizations with ‹requantize›"),
            Remedy::LeaveOut { setting, effect: "" } => write!(f, "leave ‹{setting}› out"),
            Remedy::LeaveOut { setting, effect } if effect.starts_with(':') => write!(f, "leave ‹{setting}› out{effect}"),
            Remedy::LeaveOut { setting, effect } => write!(f, "leave ‹{setting}› out {effect}"),
            Remedy::Setting { text, .. } | Remedy::Text(text) => f.write_str(text),
            Remedy::ChooseOneOf(names) => write!(f, "did you mean {}?", names.join(" or ")),
            Remedy::Command { command, effect } => write!(f, "`kvant {command}` {effect}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_remedies_form_one_sentence() {
        let [data, weights] = [Remedy::GiveCalibrationData, Remedy::QuantizeWeightsOnly];
        assert_eq!(Remedy::hint(&[]), None);
        assert_eq!(Remedy::hint(std::slice::from_ref(&data)).as_deref(), Some("give a text with ‹calib› FILE"));
        let all = [data, weights, Remedy::LeaveOut { setting: "algorithm", effect: "to round to nearest" }];
        assert_eq!(
            Remedy::hint(&all).as_deref(),
            Some(
                "give a text with ‹calib› FILE, quantize only the weights with ‹weights-only›, or leave ‹algorithm› out to \
                 round to nearest"
            )
        );
    }

    #[test]
    fn remedy_names_the_setting_in_its_text() {
        let all = [
            Remedy::GiveCalibrationData,
            Remedy::GiveSamples,
            Remedy::QuantizeWeightsOnly,
            Remedy::ExcludeLayer("a".to_owned()),
            Remedy::ChooseOutput,
            Remedy::Overwrite,
            Remedy::Restart,
            Remedy::SkipVerification("continue anyway"),
            Remedy::Requantize,
            Remedy::LeaveOut { setting: "kv-cache", effect: "" },
            Remedy::ChooseOneOf(vec!["a".to_owned()]),
            Remedy::Command { command: "inspect MODEL".to_owned(), effect: "shows all" },
        ];
        for remedy in all {
            let text = remedy.to_string();
            match remedy.names() {
                Some(name) => assert!(text.contains(&format!("‹{name}›")), "{text}"),
                None => assert!(!text.contains('‹'), "{text}"),
            }
        }
    }
}
