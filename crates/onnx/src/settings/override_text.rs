//! One override as it is written: a pattern, and words between colons.

use kvant_quant::glob::Glob;
use kvant_quant::recipe::OverrideEntry;

use super::SettingsError;
use crate::UnknownWord;
use crate::element::Element;
use crate::recipe::Override;

/// What an override means. Its scheme is `keep`, or an element type, `channel` or `tensor`, `symmetric` or `asymmetric`, `full-range` and a
/// calibration method in any order, with colons between. A type alone is symmetric where it is signed.
///
/// # Errors
/// A word that is none of those.
pub(super) fn resolve(entry: &OverrideEntry) -> Result<Override, SettingsError> {
    let (pattern, of_layers) = match (&entry.tensors, &entry.layers) {
        (Some(tensors), _) => (tensors.as_str(), false),
        (None, layers) => (layers.as_deref().unwrap_or_default(), true),
    };
    let mut made = Override { of_layers, ..Override::of(Glob::new(pattern)) };
    for word in entry.scheme.split(':').map(str::trim) {
        let wrong = |problem: UnknownWord| SettingsError::Override {
            tensors: pattern.to_owned(),
            problem: problem.to_string(),
        };
        take(&mut made, word).map_err(wrong)?;
    }
    Ok(made)
}

fn take(made: &mut Override, word: &str) -> Result<(), UnknownWord> {
    match word {
        "keep" | "float" => made.float = true,
        "channel" => made.per_channel = Some(true),
        "tensor" => made.per_channel = Some(false),
        "symmetric" => made.symmetric = Some(true),
        "asymmetric" => made.symmetric = Some(false),
        "full-range" => made.full_range = true,
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
        resolve(&OverrideEntry::of_tensors("x*", scheme))
    }

    #[test]
    fn override_words_set_one_thing_each() {
        let wide = read("uint16").unwrap();
        assert_eq!((wide.element, wide.symmetric, wide.per_channel), (Some(Element::UInt16), Some(false), None));
        let all = read("asymmetric:int8:channel:entropy").unwrap();
        assert_eq!((all.element, all.symmetric), (Some(Element::Int8), Some(false)));
        assert_eq!((all.per_channel, all.method), (Some(true), "entropy".parse().ok()));
        assert!(!all.full_range && read("int8:asymmetric:full-range").unwrap().full_range);
        assert!(read("keep").unwrap().float && read("tensor").unwrap().element.is_none());
        assert!(read("int7").unwrap_err().to_string().contains("x*: `int7`"));
    }
}
