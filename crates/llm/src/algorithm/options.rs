//! The settings of algorithms, as they are spelled behind a name: `:NAME=VALUE`. One row each; not what they do to a weight.

use super::one::Algorithm;
use kvant_quant::rounding::{ColumnOrder, Damping, Gptq, Groups, Rounding, Variant};
use kvant_quant::transform::{AutoSmoothQuant, Awq, Clip, Loss, SmoothQuant, Transform};
use std::ops::RangeInclusive;

/// A setting of some algorithms.
#[derive(Clone, Copy, Debug)]
pub struct AlgorithmOption {
    /// Its spelling. Algorithms that have nothing in common may have options of the same name, in rows of their own.
    pub name: &'static str,
    /// What it may be.
    pub values: &'static str,
    /// One line that explains it.
    pub about: &'static str,
    get: fn(&Algorithm) -> Option<String>,
    set: fn(&mut Algorithm, &str) -> Option<()>,
}

impl AlgorithmOption {
    /// Its value; `None` for algorithms that have no such option.
    pub fn get(&self, algorithm: &Algorithm) -> Option<String> {
        (self.get)(algorithm)
    }

    /// Gives it a value; `None` where that is none of its values.
    pub(super) fn set(&self, algorithm: &mut Algorithm, value: &str) -> Option<()> {
        (self.set)(algorithm, value)
    }
}

const SHARE: &str = "a number from 0 to 1";
const COUNT: &str = "a whole number from 1 to 1000000";
const SWITCH: &str = "on or off";

/// Every option, in the order in which they are spelled.
pub const ALGORITHM_OPTIONS: &[AlgorithmOption] = &[
    AlgorithmOption {
        name: "alpha",
        values: SHARE,
        about: "how much of the difficulty goes from inputs into weights",
        get: |algorithm| Some(smooth(algorithm)?.alpha.to_string()),
        set: |algorithm, value| {
            smooth_mut(algorithm)?.alpha = number(value, 0.0..=1.0)? as f32;
            Some(())
        },
    },
    AlgorithmOption {
        name: "clamp-min",
        values: "a number above 0 and up to 1",
        about: "the least scale",
        get: |algorithm| Some(smooth(algorithm)?.clamp_min.to_string()),
        set: |algorithm, value| {
            smooth_mut(algorithm)?.clamp_min = number(value, f64::from(f32::MIN_POSITIVE)..=1.0)? as f32;
            Some(())
        },
    },
    AlgorithmOption {
        name: "ratios",
        values: COUNT,
        about: "exponents that are tried",
        get: |algorithm| match algorithm {
            Algorithm::Transform(Transform::Awq(Awq { ratios, .. })) => Some(ratios.to_string()),
            Algorithm::Transform(Transform::AutoSmoothQuant(auto)) => Some(auto.ratios.to_string()),
            _ => None,
        },
        set: |algorithm, value| {
            let ratios = match algorithm {
                Algorithm::Transform(Transform::Awq(Awq { ratios, .. })) => ratios,
                Algorithm::Transform(Transform::AutoSmoothQuant(AutoSmoothQuant { ratios, .. })) => ratios,
                _ => return None,
            };
            *ratios = count(value)?;
            Some(())
        },
    },
    AlgorithmOption {
        name: "loss",
        values: "mse, mae or rmse",
        about: "how far outputs are from those of the float model",
        get: |algorithm| {
            let Algorithm::Transform(Transform::AutoSmoothQuant(auto)) = algorithm else { return None };
            Loss::ALL.iter().find(|(_, loss)| *loss == auto.loss).map(|(name, _)| (*name).to_owned())
        },
        set: |algorithm, value| {
            let Algorithm::Transform(Transform::AutoSmoothQuant(auto)) = algorithm else { return None };
            auto.loss = Loss::named(value)?;
            Some(())
        },
    },
    AlgorithmOption {
        name: "duo",
        values: SWITCH,
        about: "whether scales are divided by a power of the weights' means too",
        get: |algorithm| Some(spelled(awq(algorithm)?.duo_scaling)),
        set: |algorithm, value| {
            awq_mut(algorithm)?.duo_scaling = switch(value)?;
            Some(())
        },
    },
    AlgorithmOption {
        name: "clip",
        values: SWITCH,
        about: "whether limits of weights are searched after scales",
        get: |algorithm| Some(spelled(awq(algorithm)?.clip.is_some())),
        set: |algorithm, value| {
            let awq = awq_mut(algorithm)?;
            awq.clip = switch(value)?.then_some(awq.clip.unwrap_or(Clip::DEFAULTS));
            Some(())
        },
    },
    AlgorithmOption {
        name: "tokens",
        values: COUNT,
        about: "inputs that are sampled to search limits",
        get: |algorithm| Some(awq(algorithm)?.clip?.tokens.to_string()),
        set: |algorithm, value| {
            awq_mut(algorithm)?.clip.as_mut()?.tokens = count(value)? as usize;
            Some(())
        },
    },
    AlgorithmOption {
        name: "damping",
        values: SHARE,
        about: "what is added to the Hessian's diagonal: a share of its mean, in qronos of its largest eigenvalue",
        get: |algorithm| match gptq(algorithm)?.damping {
            Damping::OfMeanDiagonal(share) | Damping::OfLargestEigenvalue(share) => Some(share.to_string()),
        },
        set: |algorithm, value| {
            match &mut gptq_mut(algorithm)?.damping {
                Damping::OfMeanDiagonal(share) | Damping::OfLargestEigenvalue(share) => {
                    *share = number(value, 0.0..=1.0)?
                }
            }
            Some(())
        },
    },
    AlgorithmOption {
        name: "order",
        values: "activation or stored",
        about: "which columns are rounded first: those with the largest inputs, or as they stand",
        get: |algorithm| {
            let activation = gptq(algorithm)?.order == ColumnOrder::Activation;
            Some(if activation { "activation" } else { "stored" }.to_owned())
        },
        set: |algorithm, value| {
            let order = &mut gptq_mut(algorithm)?.order;
            *order = match (value, *order) {
                ("activation", _) => ColumnOrder::Activation,
                ("stored", ColumnOrder::Stored(groups)) => ColumnOrder::Stored(groups),
                ("stored", ColumnOrder::Activation) => ColumnOrder::Stored(Groups::Static),
                _ => return None,
            };
            Some(())
        },
    },
    AlgorithmOption {
        name: "groups",
        values: "static, or dynamic beside order=stored",
        about: "whether the scales of a group are those of the weights as they were, or as they are when it is reached",
        get: |algorithm| {
            let dynamic = gptq(algorithm)?.order.groups() == Groups::Dynamic;
            Some(if dynamic { "dynamic" } else { "static" }.to_owned())
        },
        set: |algorithm, value| {
            let order = &mut gptq_mut(algorithm)?.order;
            *order = match (value, *order) {
                ("static", ColumnOrder::Activation) => ColumnOrder::Activation,
                ("static", ColumnOrder::Stored(_)) => ColumnOrder::Stored(Groups::Static),
                ("dynamic", ColumnOrder::Stored(_)) => ColumnOrder::Stored(Groups::Dynamic),
                _ => return None,
            };
            Some(())
        },
    },
    AlgorithmOption {
        name: "block",
        values: COUNT,
        about: "columns whose errors are made up for together: for speed; codes differ by the rounding of sums only",
        get: |algorithm| Some(gptq(algorithm)?.block.to_string()),
        set: |algorithm, value| {
            gptq_mut(algorithm)?.block = count(value)? as usize;
            Some(())
        },
    },
    AlgorithmOption {
        name: "alpha",
        values: SHARE,
        about: "the share of the earlier layers' error that is made up for",
        get: |algorithm| match gptq(algorithm)?.variant {
            Variant::Gptaq { alpha } => Some(alpha.to_string()),
            _ => None,
        },
        set: |algorithm, value| {
            let Variant::Gptaq { alpha } = &mut gptq_mut(algorithm)?.variant else { return None };
            *alpha = number(value, 0.0..=1.0)? as f32;
            Some(())
        },
    },
];

fn smooth(algorithm: &Algorithm) -> Option<&SmoothQuant> {
    if let Algorithm::Transform(Transform::SmoothQuant(smooth)) = algorithm { Some(smooth) } else { None }
}

fn smooth_mut(algorithm: &mut Algorithm) -> Option<&mut SmoothQuant> {
    if let Algorithm::Transform(Transform::SmoothQuant(smooth)) = algorithm { Some(smooth) } else { None }
}

fn awq(algorithm: &Algorithm) -> Option<&Awq> {
    if let Algorithm::Transform(Transform::Awq(awq)) = algorithm { Some(awq) } else { None }
}

fn awq_mut(algorithm: &mut Algorithm) -> Option<&mut Awq> {
    if let Algorithm::Transform(Transform::Awq(awq)) = algorithm { Some(awq) } else { None }
}

fn gptq(algorithm: &Algorithm) -> Option<&Gptq> {
    if let Algorithm::Rounding(Rounding::ByColumns(gptq)) = algorithm { Some(gptq) } else { None }
}

fn gptq_mut(algorithm: &mut Algorithm) -> Option<&mut Gptq> {
    if let Algorithm::Rounding(Rounding::ByColumns(gptq)) = algorithm { Some(gptq) } else { None }
}

fn number(text: &str, range: RangeInclusive<f64>) -> Option<f64> {
    text.parse().ok().filter(|number| range.contains(number))
}

fn count(text: &str) -> Option<u32> {
    text.parse().ok().filter(|count| (1..=1_000_000).contains(count))
}

fn switch(text: &str) -> Option<bool> {
    match text {
        "on" => Some(true),
        "off" => Some(false),
        _ => None,
    }
}

fn spelled(on: bool) -> String {
    if on { "on" } else { "off" }.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_algorithm_has_two_options_of_a_name() {
        for row in Algorithm::table() {
            let mut names: Vec<&str> = row.algorithm.options().map(|(option, _)| option.name).collect();
            names.sort_unstable();
            assert!(names.windows(2).all(|pair| pair[0] != pair[1]), "{names:?}");
        }
    }

    #[test]
    fn every_option_is_one_of_an_algorithm_and_refuses_nonsense() {
        for option in ALGORITHM_OPTIONS {
            let mut of = Algorithm::table().filter(|row| option.get(&row.algorithm).is_some()).peekable();
            assert!(of.peek().is_some(), "{}", option.name);
            for mut row in of {
                for nonsense in ["", "x", "nan", "inf", "-1", "1e9", "ON"] {
                    assert_eq!(option.set(&mut row.algorithm, nonsense), None, "{} {nonsense}", option.name);
                }
                assert_eq!(Algorithm::named(row.name), Some(row.algorithm));
            }
        }
    }
}
