//! Which activations share a scale, and which combinations of that with the time of finding it exist. Not the scales.

use super::ActivationError;
use crate::observer::ObserverRef;
use crate::scheme::{ActivationScheme, Axis, Granularity, TensorScheme, Timing};

/// Which elements of a `[tokens, features]` matrix share a scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spread {
    /// All of them.
    Whole,
    /// All values of a feature.
    Features,
    /// All values of a token.
    Tokens,
    /// So many consecutive ones of a token; fewer at the end of a row.
    Groups(usize),
}

impl Spread {
    /// The sharing of scales in a scheme that is valid for activations.
    pub(super) fn of(scheme: ActivationScheme) -> Result<Spread, ActivationError> {
        let refuse = |reason| Err(ActivationError::Scheme { scheme: scheme.to_string(), reason });
        if let Some(reason) = scheme.scheme.observer_refusal(false) {
            return Err(ActivationError::Observer {
                observer: scheme.scheme.observer(),
                scheme: scheme.to_string(),
                reason,
            });
        }
        let spread = match (scheme.scheme, scheme.scheme.granularity()) {
            (TensorScheme::Progressive { .. }, _) => return refuse("two stages are for weights"),
            (TensorScheme::Gguf(_), _) => return refuse("blocks of GGUF are for weights"),
            (_, Some(Granularity::Block { .. })) => return refuse("blocks would span tokens"),
            (_, Some(Granularity::Group { axis: Axis::Rows, .. })) => return refuse("groups would span tokens"),
            (_, Some(Granularity::Group { size: Some(size), .. })) => Spread::Groups(size.get() as usize),
            (_, Some(Granularity::Group { size: None, .. }) | Some(Granularity::Channel(Axis::Rows))) => Spread::Tokens,
            (_, Some(Granularity::Channel(Axis::Columns))) => Spread::Features,
            (_, Some(Granularity::Tensor) | None) => Spread::Whole,
        };
        match (scheme.timing, spread) {
            _ if scheme.timing != Timing::Dynamic && is_scaleless(scheme.scheme) => refuse("it is not stored"),
            (Timing::Dynamic, _) if scheme.scheme.observer() != ObserverRef::MIN_MAX => {
                refuse("dynamic scales cover the whole range")
            }
            (Timing::Dynamic, Spread::Features) => refuse("a feature has no scale before all tokens are there"),
            (Timing::Local, _) if !has_global_scale(scheme.scheme) => refuse("it has no scale over block scales"),
            (Timing::Static, Spread::Tokens | Spread::Groups(_)) => refuse("tokens differ from run to run"),
            _ => Ok(spread),
        }
    }
}

/// Formats that carry their scales with them, and casts.
pub(super) fn is_scaleless(scheme: TensorScheme) -> bool {
    matches!(scheme, TensorScheme::Block(_) | TensorScheme::Cast(_))
}

/// Returns whether block scales are relative to a global scale.
pub(super) fn has_global_scale(scheme: TensorScheme) -> bool {
    matches!(scheme, TensorScheme::Float(float) if float.scale.has_global_scale())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meaningless_activation_spreads_are_refused() {
        let of = |text: &str| Spread::of(text.parse().unwrap());
        for text in [
            "int8:g64!static",
            "int8:channel!static",
            "int8:channel@1!dynamic",
            "int8:tensor!local",
            "int8:tensor:mse!dynamic",
            "e4m3:b128x128!dynamic",
            "int4:g32@0!dynamic",
            "int4:channel/e4m3:tensor!dynamic",
            "mx6!static",
            "bf16!local",
            "e2m1:g16:e4m3:f32!static",
        ] {
            assert!(of(text).is_err_and(|error| error.is_unsupported()), "{text}");
        }
        assert_eq!(of("e2m1:g16:e4m3:f32!local"), Ok(Spread::Groups(16)));
        assert_eq!(of("e4m3:channel!dynamic"), Ok(Spread::Tokens));
        assert_eq!(of("int8:channel@1:ema0.9!static"), Ok(Spread::Features));
        assert_eq!(of("mx9!dynamic"), Ok(Spread::Groups(16)));
        assert_eq!(of("f16!dynamic"), Ok(Spread::Whole));
    }
}
