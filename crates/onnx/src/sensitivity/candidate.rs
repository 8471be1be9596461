//! The types that a layer may get instead of the recipe's, and how they are written as overrides of its tensors.

use std::fmt;
use std::str::FromStr;

use super::target::Target;
use crate::UnknownWord;
use crate::element::Element;
use crate::recipe::{Recipe, TensorScheme};

/// Types of the data and the weights of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Candidate {
    /// No codes.
    Float,
    /// Integers of so many bits, with a sign and symmetric where the recipe's are.
    Bits {
        /// Of the data.
        activation: u32,
        /// Of the weights.
        weight: u32,
        /// Whether each output channel of a weight has a scale.
        per_channel: bool,
    },
    /// Element types, symmetric where they are signed.
    Elements {
        /// Of the data.
        activation: Element,
        /// Of the weights.
        weight: Element,
    },
}

/// Which part of a layer a tensor is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Its device.
    Activation,
    /// A constant.
    Weight,
}

impl Candidate {
    /// The element type of a tensor that the recipe gives a scheme; `None` for floats.
    pub(super) fn element(self, scheme: &TensorScheme, role: Role) -> Option<Element> {
        match (self, role) {
            (Self::Float, _) => None,
            (Self::Bits { activation: bits, .. }, Role::Activation)
            | (Self::Bits { weight: bits, .. }, Role::Weight) => Some(integer(bits, scheme.element.is_signed())),
            (Self::Elements { activation, .. }, Role::Activation) => Some(activation),
            (Self::Elements { weight, .. }, Role::Weight) => Some(weight),
        }
    }

    /// The words of an override for a tensor that the recipe gives a scheme.
    pub(super) fn words(self, scheme: &TensorScheme, role: Role) -> String {
        let Some(element) = self.element(scheme, role) else { return "keep".to_owned() };
        let symmetric = match self {
            Self::Elements { .. } => element.is_signed(),
            _ => scheme.symmetric,
        };
        let channels = matches!(self, Self::Bits { per_channel: true, .. }) && role == Role::Weight;
        words(&TensorScheme { element, symmetric, per_channel: scheme.per_channel || channels, ..*scheme })
    }
}

/// The words of an override that gives a tensor what a scheme says.
pub(super) fn words(scheme: &TensorScheme) -> String {
    let symmetry = if scheme.symmetric { "symmetric" } else { "asymmetric" };
    let channels = if scheme.per_channel { ":channel" } else { "" };
    let full_range = if scheme.full_range { ":full-range" } else { "" };
    format!("{}:{symmetry}{channels}{full_range}:{}", scheme.element, scheme.method)
}

fn integer(bits: u32, signed: bool) -> Element {
    use Element::*;
    match (bits, signed) {
        (4, true) => Int4,
        (4, false) => UInt4,
        (16, true) => Int16,
        (16, false) => UInt16,
        (_, true) => Int8,
        (_, false) => UInt8,
    }
}

/// What is tried where nothing is said, from cheap to dear: where weights have fewer than 8 bits first 8, then activations of 16 bits,
/// then floats. For a size activations do not count, and only weights change.
pub fn candidates(recipe: &Recipe, target: Option<&Target>) -> Vec<Candidate> {
    let bits = |element: Element| element.integer_bits().unwrap_or(8);
    let activation = recipe.activation.map_or(8, |a| bits(a.element));
    let of = |activation, weight| Candidate::Bits { activation, weight, per_channel: false };
    let narrow = bits(recipe.weight.element) < 8;
    let eight = narrow.then(|| of(activation, 8));
    match target {
        Some(Target::Size(_)) => eight.into_iter().chain([of(activation, 16), Candidate::Float]).collect(),
        _ => {
            let wide = (activation < 16 && recipe.activation.is_some()).then(|| of(16, 8));
            eight.into_iter().chain(wide).chain([Candidate::Float]).collect()
        }
    }
}

impl fmt::Display for Candidate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Float => f.write_str("float"),
            Self::Bits { activation, weight, per_channel } => {
                write!(f, "A{activation}W{weight}{}", if *per_channel { ":channel" } else { "" })
            }
            Self::Elements { activation, weight } => write!(f, "{activation}/{weight}"),
        }
    }
}

const EXPECTED: &str = "a candidate: write A16W8, A8W8:channel, an activation/weight pair of element types, or float";

impl FromStr for Candidate {
    type Err = UnknownWord;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let unknown = || UnknownWord::new(text, EXPECTED);
        let lower = text.trim().to_ascii_lowercase();
        if lower == "float" {
            return Ok(Self::Float);
        }
        if let Some((activation, weight)) = lower.split_once('/') {
            let element = |word: &str| word.parse::<Element>().map_err(|_| unknown());
            return Ok(Self::Elements { activation: element(activation)?, weight: element(weight)? });
        }
        let (types, per_channel) = match lower.strip_suffix(":channel") {
            Some(types) => (types, true),
            None => (&lower[..], false),
        };
        let (activation, weight) = types.strip_prefix('a').and_then(|t| t.split_once('w')).ok_or_else(unknown)?;
        let bits = |text: &str| text.parse().ok().filter(|bits| [4, 8, 16].contains(bits)).ok_or_else(unknown);
        Ok(Self::Bits { activation: bits(activation)?, weight: bits(weight)?, per_channel })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::preset::Preset;
    use crate::sensitivity::Size;

    #[test]
    fn candidate_spellings_round_trip() {
        for text in ["float", "A16W8", "A8W4:channel", "bfloat16/int8"] {
            assert_eq!(text.parse::<Candidate>().unwrap().to_string(), text);
        }
        for wrong in ["A7W8", "W8", "int9/int8", ""] {
            assert!(wrong.parse::<Candidate>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn candidates_keep_sign_and_symmetry_of_the_recipe() {
        let recipe = Preset::find("U8S8_AAWS").unwrap().recipe();
        let wide: Candidate = "A16W8:channel".parse().unwrap();
        assert_eq!(wide.words(&recipe.activation.unwrap(), Role::Activation), "uint16:asymmetric:percentile");
        assert_eq!(wide.words(&recipe.weight, Role::Weight), "int8:symmetric:channel:minmax");
        assert_eq!(Candidate::Float.words(&recipe.weight, Role::Weight), "keep");
    }

    #[test]
    fn candidates_fit_the_recipe() {
        let spelled = |preset: &str, target| {
            let found = candidates(&Preset::find(preset).unwrap().recipe(), target);
            found.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(spelled("A8W8", None), ["A16W8", "float"]);
        assert_eq!(spelled("A8W4", None), ["A8W8", "A16W8", "float"]);
        assert_eq!(spelled("A16W8", None), ["float"]);
        assert_eq!(spelled("A8W4", Some(&Target::Size(Size::Share(0.2)))), ["A8W8", "A8W16", "float"]);
    }
}
