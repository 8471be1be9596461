//! One override as it is written: a pattern of tensors and words between colons.

use kvant_quant::glob::Glob;
use serde::{Deserialize, Serialize};

use super::SettingsError;
use crate::element::{Element, UnknownElement};
use crate::recipe::Override;

/// What is said of the tensors whose names match.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OverrideText {
    /// A glob on names of tensors.
    pub tensors: String,
    /// `keep`, or an element type, `channel` or `tensor`, `symmetric` or `asymmetric`, a calibration method: whichever of them, with
    /// colons between. A type alone is symmetric where it is signed.
    pub scheme: String,
}

impl OverrideText {
    /// What it means. Errors: a word that is none of those.
    pub fn resolve(&self) -> Result<Override, SettingsError> {
        let mut made = Override::of(Glob::new(&self.tensors));
        for word in self.scheme.split(':').map(str::trim) {
            let wrong = |problem: UnknownElement| SettingsError::Override {
                tensors: self.tensors.clone(),
                problem: problem.to_string(),
            };
            take(&mut made, word).map_err(wrong)?;
        }
        Ok(made)
    }
}

fn take(made: &mut Override, word: &str) -> Result<(), UnknownElement> {
    match word {
        "keep" | "float" => made.float = true,
        "channel" => made.per_channel = Some(true),
        "tensor" => made.per_channel = Some(false),
        "symmetric" => made.symmetric = Some(true),
        "asymmetric" => made.symmetric = Some(false),
        _ => match word.parse() {
            Ok(method) => made.method = Some(method),
            Err(_) => {
                let element: Element = word.parse()?;
                made.element = Some(element);
                made.symmetric = made.symmetric.or(Some(element.is_signed()));
            }
        },
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(scheme: &str) -> Result<Override, SettingsError> {
        OverrideText { tensors: "x*".to_owned(), scheme: scheme.to_owned() }.resolve()
    }

    #[test]
    fn words_say_one_thing_each() {
        let wide = read("uint16").unwrap();
        assert_eq!((wide.element, wide.symmetric, wide.per_channel), (Some(Element::UInt16), Some(false), None));
        let all = read("asymmetric:int8:channel:entropy").unwrap();
        assert_eq!((all.element, all.symmetric), (Some(Element::Int8), Some(false)));
        assert_eq!((all.per_channel, all.method), (Some(true), "entropy".parse().ok()));
        assert!(read("keep").unwrap().float && read("tensor").unwrap().element.is_none());
        assert!(read("int7").unwrap_err().to_string().contains("x*: `int7`"));
    }
}
