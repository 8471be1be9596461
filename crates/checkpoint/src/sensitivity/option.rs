//! The options of a search as they are written: schemes of checkpoints or tensor types of GGUF, and float.

use super::error::MixError;
use crate::recipe::NamedScheme;
use kvant_container::gguf::TensorType;
use kvant_gguf::model::codec;
use kvant_weights::recipe_error::{RecipeError, quoted};

/// What is written of a mix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MixKind {
    /// A checkpoint, whose layers have schemes.
    Checkpoint,
    /// A GGUF file, whose tensors have types.
    Gguf,
}

/// What a group of layers may become.
#[derive(Clone, Debug, PartialEq)]
pub enum MixOption {
    /// As in the source.
    Float,
    /// A scheme, by the name that it was asked for.
    Scheme(String, Box<NamedScheme>),
    /// A tensor type of GGUF.
    Type(TensorType),
}

impl MixOption {
    /// Its name.
    pub fn name(&self) -> &str {
        match self {
            MixOption::Float => "float",
            MixOption::Scheme(name, _) => name,
            MixOption::Type(kind) => kind.name(),
        }
    }
}

impl MixKind {
    /// What options by these names are of: types of GGUF if all are that and some are no schemes.
    pub fn of(names: &[String]) -> MixKind {
        let all = || names.iter().filter(|name| !is_float(name));
        let is_type = |name: &String| tensor_type(name).is_some();
        let is_scheme = |name: &String| NamedScheme::find("‹options›", name).is_ok();
        match all().all(is_type) && !all().all(is_scheme) {
            true => MixKind::Gguf,
            false => MixKind::Checkpoint,
        }
    }
}

/// The options of these names, each once, in their order.
///
/// # Errors
/// *Invalid* for names that are no option of this kind, and where there is none but float; *unsupported* for schemes with calibrated
/// activations.
pub fn options(names: &[String], kind: MixKind, weights_only: bool) -> Result<Vec<MixOption>, MixError> {
    let mut all: Vec<MixOption> = Vec::new();
    for name in names.iter().map(|name| name.trim()) {
        let option = match kind {
            _ if is_float(name) => MixOption::Float,
            MixKind::Gguf => MixOption::Type(tensor_type(name).ok_or_else(|| no_type(name))?),
            MixKind::Checkpoint => scheme(name, weights_only)?,
        };
        if !all.contains(&option) {
            all.push(option);
        }
    }
    match all.iter().any(|option| *option != MixOption::Float) {
        true => Ok(all),
        false => Err(RecipeError::invalid(
            "‹options›",
            "nothing is given that layers could be quantized to",
            "name schemes, e.g. ‹options› int4:g128,int8:channel, or types of GGUF, e.g. Q4_K,Q6_K",
        )
        .into()),
    }
}

fn scheme(name: &str, weights_only: bool) -> Result<MixOption, MixError> {
    let found = NamedScheme::find("‹options›", name)?;
    let found = if weights_only { found.weights_only() } else { found };
    if found.scheme.needs_calibration() || found.scheme.output.is_some() {
        return Err(MixError::Option {
            option: name.to_owned(),
            reason: "its activations are quantized with stored scales, which a search does not calibrate".to_owned(),
            hint: "search with ‹weights-only›, or with a scheme whose activations have dynamic scales".to_owned(),
        });
    }
    Ok(MixOption::Scheme(name.to_owned(), Box::new(found)))
}

fn is_float(name: &str) -> bool {
    matches!(name.trim().to_ascii_lowercase().as_str(), "float" | "keep")
}

/// The type of this name that weights can be quantized to.
fn tensor_type(name: &str) -> Option<TensorType> {
    let written = TensorType::ALL.iter().copied().filter(|kind| codec::of(*kind).is_some());
    written.into_iter().find(|kind| kind.name().eq_ignore_ascii_case(name.trim()))
}

fn no_type(name: &str) -> MixError {
    let names = TensorType::ALL.iter().filter(|kind| codec::of(**kind).is_some()).map(|kind| kind.name());
    let hint = format!("a tensor can be one of {}, or float", names.collect::<Vec<_>>().join(", "));
    RecipeError::invalid("‹options›", format!("{} is not a tensor type of GGUF", quoted(name)), hint).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn kind_follows_from_names() {
        for types in [&["Q4_K", "q6_k", "float"][..], &["Q8_0"]] {
            assert_eq!(MixKind::of(&names(types)), MixKind::Gguf, "{types:?}");
        }
        for schemes in [&["int4:g128", "float"][..], &["mxfp4"], &["Q4_K", "int8:channel"]] {
            assert_eq!(MixKind::of(&names(schemes)), MixKind::Checkpoint, "{schemes:?}");
        }
    }

    #[test]
    fn options_are_read_once_in_order() {
        let all = options(&names(&["int4:g128", "float", "int8:channel", "int4:g128"]), MixKind::Checkpoint, false);
        let all = all.unwrap();
        assert_eq!(all.iter().map(MixOption::name).collect::<Vec<_>>(), ["int4:g128", "float", "int8:channel"]);
        let all = options(&names(&["q4_k", "Q6_K"]), MixKind::Gguf, false).unwrap();
        assert_eq!(all.iter().map(MixOption::name).collect::<Vec<_>>(), ["Q4_K", "Q6_K"]);
    }

    #[test]
    fn impossible_options_are_refused() {
        let error = |texts: &[&str], kind| options(&names(texts), kind, false).unwrap_err().to_string();
        assert!(error(&["float"], MixKind::Checkpoint).contains("nothing is given"));
        assert!(error(&["Q9_K"], MixKind::Gguf).contains("`Q9_K` is not a tensor type"));
        assert!(error(&["Q4_K"], MixKind::Checkpoint).contains("Q4_K"));
        assert!(error(&["e4m3:tensor+e4m3:tensor!static"], MixKind::Checkpoint).contains("stored scales"));
        let all = options(&names(&["e4m3:tensor+e4m3:tensor!static"]), MixKind::Checkpoint, true);
        assert!(matches!(&all.unwrap()[..], [MixOption::Scheme(_, named)] if named.scheme.input.is_none()));
    }
}
