//! The settings of AWQ, by the names that the other flow has for it.

use kvant_quant::transform::{Awq, Clip};

use super::Algorithm;
use super::option::{AlgorithmOption, COUNT, SWITCH, Shown, count, option, switch};

/// The settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AwqSettings {
    /// Exponents that are tried.
    pub ratios: u32,
    /// Whether scales are divided by a power of the weights' relative means too.
    pub duo: bool,
    /// The search of limits that follows, if any.
    pub clip: Option<Clip>,
}

impl AwqSettings {
    /// Twenty exponents of the inputs alone, then limits.
    pub const DEFAULTS: Self =
        Self { ratios: Awq::DEFAULTS.ratios, duo: Awq::DEFAULTS.duo_scaling, clip: Awq::DEFAULTS.clip };
}

/// What can be set.
pub(super) const OPTIONS: &[AlgorithmOption] = &[
    option!(Awq.ratios, "ratios", COUNT, "exponents that are tried", count),
    option!(Awq.duo, "duo", SWITCH, "whether scales are divided by a power of the weights' means too", switch),
    AlgorithmOption {
        name: "clip",
        values: SWITCH,
        about: "whether limits of weights are searched after scales",
        get: |algorithm| Some(settings(algorithm)?.clip.is_some().shown()),
        set: |algorithm, text| {
            let clip = &mut settings_mut(algorithm)?.clip;
            *clip = switch(text)?.then_some(clip.unwrap_or(Clip::DEFAULTS));
            Some(())
        },
    },
    AlgorithmOption {
        name: "tokens",
        values: COUNT,
        about: "inputs that are sampled to search limits",
        get: |algorithm| Some(settings(algorithm)?.clip?.tokens.to_string()),
        set: |algorithm, text| {
            settings_mut(algorithm)?.clip.as_mut()?.tokens = count(text)? as usize;
            Some(())
        },
    },
];

fn settings(algorithm: &Algorithm) -> Option<&AwqSettings> {
    if let Algorithm::Awq(settings) = algorithm { Some(settings) } else { None }
}

fn settings_mut(algorithm: &mut Algorithm) -> Option<&mut AwqSettings> {
    if let Algorithm::Awq(settings) = algorithm { Some(settings) } else { None }
}

#[cfg(test)]
mod tests {
    #[test]
    fn limits_are_searched_unless_they_are_switched_off() {
        let same = |text: &str| text.parse::<crate::algorithm::Algorithm>().map(|algorithm| algorithm.to_string());
        assert_eq!(same("awq:clip=on").unwrap(), "awq");
        assert_eq!(same("awq:clip=off:duo=on").unwrap(), "awq:duo=on:clip=off");
        assert_eq!(same("awq:tokens=64").unwrap(), "awq:tokens=64");
        assert!(same("awq:clip=off:tokens=64").is_err());
    }
}
