//! Errors of measuring sensitivities and reaching a target.

use kvant_container::{Diagnostic, ErrorKind};

use crate::calibration::CalibrationError;
use crate::error::QuantizeError;
use crate::evaluation::EvaluationError;
use crate::settings::SettingsError;

/// A problem of a search.
#[derive(Debug, thiserror::Error)]
pub enum SensitivityError {
    /// The recipe.
    #[error("{0}")]
    Settings(#[from] SettingsError),
    /// The model, or the recipe on it.
    #[error("{0}")]
    Quantize(#[from] QuantizeError),
    /// The pass over the calibration data.
    #[error("{0}")]
    Calibration(#[from] CalibrationError),
    /// The run over the held-out samples.
    #[error("{0}")]
    Evaluation(#[from] EvaluationError),
    /// The layout has no types that can be mixed.
    #[error("types are mixed in the layouts qdq and qoperator only")]
    Layout,
    /// All layers are as the recipe's overrides say.
    #[error("the overrides of the recipe leave no layer to choose types for")]
    NoLayers,
    /// No override is given, and what is quantized lies inside of nodes.
    #[error(
        "no layer of the graph itself is quantized: those inside of If, Loop and Scan cannot be measured one by one"
    )]
    OnlyInBodies,
    /// No mix of the candidates reaches the target.
    #[error("no mix of {candidates} reaches the target: the best found has {best}")]
    Unreachable {
        /// The candidates.
        candidates: String,
        /// The quality of the best.
        best: String,
    },
    /// Nothing is left to be quantized.
    #[error(
        "only the float model reaches the target: the recipe has {recipe}, and no mix with a quantized layer was found"
    )]
    OnlyFloat {
        /// The quality of the recipe.
        recipe: String,
        /// The candidates.
        candidates: String,
    },
    /// The recipe's own types are larger already.
    #[error("the constants have {least} bytes with the types of the recipe, more than the requested {asked}")]
    TooLarge {
        /// With the recipe's types.
        least: u64,
        /// Asked for.
        asked: u64,
        /// The bits of the recipe's weights.
        bits: u32,
    },
    /// The user asked to stop.
    #[error("stopped while layers were measured")]
    Cancelled,
}

/// The fewest bits of weights that presets have.
const FEWEST_BITS: u32 = 4;

/// The remedy where the candidates do not suffice: those of these that are not among them yet, or a lower target.
fn more_of(candidates: &str, more: &[&str]) -> String {
    let given: Vec<&str> = candidates.split(", ").filter(|name| !name.is_empty()).collect();
    let lacks = |name: &&str| !given.iter().any(|known| known.eq_ignore_ascii_case(name));
    let missing: Vec<&str> = more.iter().copied().filter(lacks).collect();
    if missing.is_empty() {
        return "ask for less".to_owned();
    }
    let (floats, bits): (Vec<&str>, Vec<&str>) = given.into_iter().chain(missing).partition(|name| *name == "float");
    format!("ask for less, or allow more bits: ‹candidates› {}", [bits, floats].concat().join(","))
}

impl Diagnostic for SensitivityError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Settings(error) => error.kind(),
            Self::Quantize(error) => error.kind(),
            Self::Calibration(error) => error.kind(),
            Self::Evaluation(error) => error.kind(),
            Self::Layout => ErrorKind::Unsupported,
            Self::Cancelled => ErrorKind::Cancelled,
            Self::NoLayers
            | Self::OnlyInBodies
            | Self::OnlyFloat { .. }
            | Self::Unreachable { .. }
            | Self::TooLarge { .. } => ErrorKind::Invalid,
        }
    }

    fn hint(&self) -> Option<String> {
        let hint = match self {
            Self::Settings(error) => return error.hint(),
            Self::Quantize(error) => return error.hint(),
            Self::Calibration(error) => return error.hint(),
            Self::Evaluation(error) => return error.hint(),
            Self::Layout => "choose a preset with static codes, e.g. A8W8",
            Self::NoLayers => "leave some overrides out",
            Self::OnlyInBodies => {
                "quantize it as it is: `kvant quantize` does what the preset says inside of nodes too"
            }
            Self::Unreachable { candidates, .. } => return Some(more_of(candidates, &["float"])),
            Self::OnlyFloat { candidates, .. } => return Some(more_of(candidates, &["A16W8", "A16W16"])),
            Self::TooLarge { bits, .. } if *bits <= FEWEST_BITS => "ask for more: no preset has smaller weights",
            Self::TooLarge { .. } => "choose a preset with smaller weights, e.g. A8W4, or ask for more",
            Self::Cancelled => return None,
        };
        Some(hint.to_owned())
    }
}
