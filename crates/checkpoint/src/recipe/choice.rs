//! What a name on the command line or in a recipe asks of a layer: a scheme, by name or spelling, or to keep it. Not
//! which layers: see [`Rule`](super::Rule).

use super::Algorithm;
use kvant_gguf::ftype::Ftype;
use kvant_numeric::format::DTYPES;
use kvant_quant::observer::ObserverRef;
use kvant_quant::scheme::{Dialect, LayerScheme, PRESETS, Preset, SchemeError};
use kvant_weights::recipe_error::{RecipeError, quoted};
use std::fmt;

/// A layer scheme, with the name by which it was asked for.
#[derive(Clone, Copy, Debug)]
pub struct NamedScheme {
    /// The scheme.
    pub scheme: LayerScheme,
    /// The preset, where it was asked for by name.
    pub preset: Option<&'static Preset>,
}

impl NamedScheme {
    /// The scheme of a preset's name or of a spelling.
    ///
    /// # Errors
    /// *Invalid* for what is neither, *unsupported* for algorithms that only others have.
    pub fn find(place: &str, text: &str) -> Result<NamedScheme, RecipeError> {
        let preset = Preset::find(text);
        let scheme = match preset {
            Some(preset) => preset.scheme(),
            None => text.parse(),
        };
        scheme.map(|scheme| NamedScheme { scheme, preset }).map_err(|error| explain(place, text, error))
    }

    /// Whose name it was asked for by.
    pub fn dialect(&self) -> Option<Dialect> {
        self.preset.map(|preset| preset.dialect)
    }

    /// The same without quantized inputs.
    pub fn weights_only(self) -> NamedScheme {
        NamedScheme { scheme: LayerScheme::weight_only(self.scheme.weight), ..self }
    }
}

/// The preset does not count: another name of the same scheme is the same scheme.
impl PartialEq for NamedScheme {
    fn eq(&self, other: &Self) -> bool {
        self.scheme == other.scheme
    }
}

impl Eq for NamedScheme {}

impl fmt::Display for NamedScheme {
    /// The name and the spelling, the latter alone where there is no name: `int4_wo_128 (int4:g128)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.preset {
            Some(preset) => write!(f, "{} ({})", preset.name, self.scheme),
            None => write!(f, "{}", self.scheme),
        }
    }
}

/// The scheme of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SchemeChoice {
    /// It is quantized.
    Scheme(NamedScheme),
    /// It stays as it is.
    Keep,
}

impl SchemeChoice {
    /// A preset's name, a spelling, or `keep` (or `none`).
    ///
    /// # Errors
    /// Those of [`NamedScheme::find`].
    pub fn find(place: &str, text: &str) -> Result<SchemeChoice, RecipeError> {
        match text {
            "keep" | "none" => Ok(SchemeChoice::Keep),
            _ => NamedScheme::find(place, text).map(SchemeChoice::Scheme),
        }
    }

    /// The scheme, if there is one.
    pub fn scheme(self) -> Option<LayerScheme> {
        match self {
            SchemeChoice::Scheme(named) => Some(named.scheme),
            SchemeChoice::Keep => None,
        }
    }

    /// The text that [`SchemeChoice::find`] reads as this.
    pub fn spelling(self) -> String {
        self.scheme().map_or("keep".to_owned(), |scheme| scheme.to_string())
    }

    /// The same with the scales of weights found by an observer, unless the scheme names one.
    pub(super) fn with_observer(self, observer: ObserverRef) -> Result<SchemeChoice, RecipeError> {
        let SchemeChoice::Scheme(named) = self else { return Ok(self) };
        let scheme = LayerScheme { weight: named.scheme.weight.with_observer(observer), ..named.scheme };
        // Parsing refuses observers that do not support the scheme.
        let scheme = scheme.to_string().parse().map_err(|error| explain("‹scales›", &scheme.to_string(), error))?;
        Ok(SchemeChoice::Scheme(NamedScheme { scheme, ..named }))
    }

    pub(super) fn weights_only(self) -> SchemeChoice {
        match self {
            SchemeChoice::Scheme(named) => SchemeChoice::Scheme(named.weights_only()),
            SchemeChoice::Keep => SchemeChoice::Keep,
        }
    }
}

impl fmt::Display for SchemeChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SchemeChoice::Scheme(named) => named.fmt(f),
            SchemeChoice::Keep => f.write_str("keep"),
        }
    }
}

fn explain(place: &str, text: &str, error: SchemeError) -> RecipeError {
    if let Some(error) = explain_algorithm(place, text) {
        return error;
    }
    // What has several parts is a spelling with a mistake; a single word is a name.
    if text.contains([':', '+', '/']) {
        return RecipeError::invalid(place, error.to_string(), error.hint());
    }
    if text.parse::<Ftype>().is_ok() {
        let hint = "use another scheme, e.g. int4_wo_128 (`kvant list schemes`), or write nothing but a GGUF file of a language model";
        return RecipeError::invalid(place, format!("{} is a scheme for GGUF files only", quoted(text)), hint);
    }
    let commands = "`kvant list schemes` lists all names and spellings, `kvant list schemes ‹for› vllm` those that a loader reads, \
                    and `kvant plan MODEL ‹scheme› NAME` previews one";
    let hint = match nearest(text) {
        Some(name) => format!("did you mean `{name}`? {commands}"),
        None => commands.to_owned(),
    };
    RecipeError::invalid(place, format!("unknown scheme {}", quoted(text)), hint)
}

/// Algorithms are asked for beside a scheme.
fn explain_algorithm(place: &str, text: &str) -> Option<RecipeError> {
    let name = text.to_ascii_lowercase();
    let reason = format!("{} is an algorithm, not a scheme", quoted(text));
    if Algorithm::exists(&name) {
        let hint = format!("combine it with a scheme, e.g. ‹scheme› int4_wo_128 ‹algorithm› {name}");
        return Some(RecipeError::invalid(place, reason, hint));
    }
    let hint = "`kvant list algorithms` shows those that are supported";
    let reason = format!("{reason}, and is not supported");
    Algorithm::is_elsewhere(&name).then(|| RecipeError::unsupported(place, reason, hint))
}

/// The most alike of all names of schemes and formats, if it is alike at all.
fn nearest(text: &str) -> Option<&'static str> {
    let text: String = text.chars().take(64).collect::<String>().to_lowercase().replace('-', "_");
    let names = PRESETS.iter().map(|preset| preset.name).chain(DTYPES.iter().map(|row| row.name));
    let rated = names.map(|name| (strsim::normalized_damerau_levenshtein(&text, &name.to_lowercase()), name));
    // The first of the best, so that Quark's names win over the others.
    let best = rated.fold((0.0, ""), |best, next| if next.0 > best.0 { next } else { best });
    // Names are short words of few letters and digits: below this, what is alike is chance.
    (best.0 >= 0.7).then_some(best.1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvant_container::Diagnostic;

    fn find(text: &str) -> Result<SchemeChoice, RecipeError> {
        SchemeChoice::find("‹scheme›", text)
    }

    #[test]
    fn scheme_names_spellings_and_keep_are_found() {
        let by_name = find("int4_wo_128").unwrap();
        assert_eq!(by_name, find("int4:g128").unwrap());
        assert_eq!(by_name, find("w4a16").unwrap());
        assert_eq!(by_name.spelling(), "int4:g128");
        let SchemeChoice::Scheme(named) = by_name else { panic!("{by_name:?}") };
        assert_eq!(named.to_string(), "int4_wo_128 (int4:g128)");
        assert_eq!((find("keep").unwrap(), find("none").unwrap()), (SchemeChoice::Keep, SchemeChoice::Keep));
        assert_eq!(find("keep").unwrap().spelling(), "keep");
    }

    #[test]
    fn misspelt_scheme_name_gets_a_suggestion() {
        for (text, name) in [
            ("int4_wo_12", "int4_wo_128"),
            ("int4-wo-128", "int4_wo_128"),
            ("mxpf4", "mxfp4"),
            ("fp8_dynamc", "FP8_DYNAMIC"),
            ("nvpf4", "nvfp4"),
            ("W4A61", "W4A16"),
            ("itn4", "int4"),
        ] {
            let error = find(text).unwrap_err();
            assert!(matches!(error, RecipeError::Invalid(_)));
            assert!(
                error.hint().unwrap().starts_with(&format!("did you mean `{name}`?")),
                "{text}: {}",
                error.hint().unwrap()
            );
        }
        for text in ["", "THREE_BITS"] {
            assert!(find(text).unwrap_err().hint().unwrap().starts_with("`kvant list"), "{text}");
        }
        assert!(find(&"z".repeat(100_000)).unwrap_err().to_string().len() < 250);
    }

    #[test]
    fn invalid_spelling_is_explained_by_its_part() {
        let error = find("int4:g128:what").unwrap_err();
        assert_eq!(error.to_string(), "‹scheme›: `what` in the scheme `int4:g128:what` is unknown or given twice");
        assert!(error.hint().unwrap().contains("format[:granularity]"));
    }

    #[test]
    fn algorithm_as_scheme_is_refused() {
        let error = find("GPTQ").unwrap_err();
        assert_eq!(error.to_string(), "‹scheme›: `GPTQ` is an algorithm, not a scheme");
        assert!(error.hint().unwrap().ends_with("‹algorithm› gptq"));
        assert!(matches!(find("svdquant").unwrap_err(), RecipeError::Unsupported(_)));
    }
}
