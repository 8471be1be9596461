//! Functions that layers put their outputs through, and their derivatives. Not the loops over them.

use kvant_numeric::linalg::{erf, exp, sigmoid, tanh};

/// The activation function of a layer, element by element.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum ActivationFunction {
    /// Nothing.
    #[default]
    None,
    /// `max(x, 0)`.
    Relu,
    /// `x` above zero, `alpha x` below.
    LeakyRelu {
        /// The slope.
        alpha: f32,
    },
    /// As LeakyRelu, with a slope for each output of the layer, or one for all.
    PRelu {
        /// The slopes.
        slopes: Vec<f32>,
    },
    /// `min(max(x, low), high)`.
    Clip {
        /// The lower bound.
        low: f32,
        /// The upper bound.
        high: f32,
    },
    /// `1 / (1 + e^-x)`.
    Sigmoid,
    /// `min(max(alpha x + beta, 0), 1)`.
    HardSigmoid {
        /// The slope.
        alpha: f32,
        /// The value at zero.
        beta: f32,
    },
    /// `x min(max(x / 6 + 1/2, 0), 1)`.
    HardSwish,
    /// The hyperbolic tangent.
    Tanh,
    /// `x (1 + erf(x / sqrt 2)) / 2`.
    Gelu,
    /// Gelu in the form with a hyperbolic tangent.
    GeluTanh,
}

/// A function with its derivative, for the loops that are compiled for each. Both are inlined into them.
pub(super) trait Curve: Copy + Sync {
    /// The value and the derivative.
    fn at(self, x: f32) -> (f32, f32);
}

/// Something done with the curve of a function.
pub(super) trait WithCurve {
    /// The value.
    type Output;

    /// Does it.
    fn with<C: Curve>(self, curve: C) -> Self::Output;
}

#[derive(Clone, Copy)]
struct Line;
#[derive(Clone, Copy)]
struct Bent(f32);
#[derive(Clone, Copy)]
struct Clipped(f32, f32);
#[derive(Clone, Copy)]
struct Logistic;
#[derive(Clone, Copy)]
struct HardLogistic(f32, f32);
#[derive(Clone, Copy)]
struct HardSwishing;
#[derive(Clone, Copy)]
struct HyperbolicTangent;
#[derive(Clone, Copy)]
struct GeluOfErf;
#[derive(Clone, Copy)]
struct GeluOfTanh;

impl Curve for Line {
    #[inline(always)]
    fn at(self, x: f32) -> (f32, f32) {
        (x, 1.0)
    }
}

impl Curve for Bent {
    #[inline(always)]
    fn at(self, x: f32) -> (f32, f32) {
        let slope = if x > 0.0 { 1.0 } else { self.0 };
        (x * slope, slope)
    }
}

impl Curve for Clipped {
    #[inline(always)]
    fn at(self, x: f32) -> (f32, f32) {
        let inside = x >= self.0 && x <= self.1;
        (x.max(self.0).min(self.1), if inside { 1.0 } else { 0.0 })
    }
}

impl Curve for Logistic {
    #[inline(always)]
    fn at(self, x: f32) -> (f32, f32) {
        let y = sigmoid(x);
        (y, y * (1.0 - y))
    }
}

impl Curve for HardLogistic {
    #[inline(always)]
    fn at(self, x: f32) -> (f32, f32) {
        let line = self.0 * x + self.1;
        let inside = line > 0.0 && line < 1.0;
        (line.clamp(0.0, 1.0), if inside { self.0 } else { 0.0 })
    }
}

impl Curve for HardSwishing {
    #[inline(always)]
    fn at(self, x: f32) -> (f32, f32) {
        let (gate, slope) = HardLogistic(1.0 / 6.0, 0.5).at(x);
        (x * gate, gate + x * slope)
    }
}

impl Curve for HyperbolicTangent {
    #[inline(always)]
    fn at(self, x: f32) -> (f32, f32) {
        let y = tanh(x);
        (y, 1.0 - y * y)
    }
}

impl Curve for GeluOfErf {
    #[inline(always)]
    fn at(self, x: f32) -> (f32, f32) {
        let share = 0.5 + 0.5 * erf(x * std::f32::consts::FRAC_1_SQRT_2);
        // The density of the normal distribution.
        let density = 0.398_942_3 * exp(-0.5 * x * x);
        (x * share, share + x * density)
    }
}

impl Curve for GeluOfTanh {
    #[inline(always)]
    fn at(self, x: f32) -> (f32, f32) {
        const SLOPE: f32 = 0.797_884_6;
        const CUBIC: f32 = 0.044_715;
        let t = tanh(SLOPE * (x + CUBIC * x * x * x));
        let inner = SLOPE * (1.0 + 3.0 * CUBIC * x * x);
        (0.5 * x * (1.0 + t), 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * inner)
    }
}

impl ActivationFunction {
    /// The value for an output of the layer.
    pub fn apply(&self, output: usize, x: f32) -> f32 {
        self.at(output, x).0
    }

    /// The value for an output of the layer, and the derivative.
    pub fn at(&self, output: usize, x: f32) -> (f32, f32) {
        struct Both(f32);
        impl WithCurve for Both {
            type Output = (f32, f32);
            fn with<C: Curve>(self, curve: C) -> (f32, f32) {
                curve.at(self.0)
            }
        }
        self.with_curve(output, Both(x))
    }

    /// Returns whether the loss is a quadratic function of the weights.
    pub(super) fn is_linear(&self) -> bool {
        *self == Self::None
    }

    /// Does something with the curve of one output of the layer.
    pub(super) fn with_curve<W: WithCurve>(&self, output: usize, body: W) -> W::Output {
        match self {
            Self::None => body.with(Line),
            Self::Relu => body.with(Bent(0.0)),
            Self::LeakyRelu { alpha } => body.with(Bent(*alpha)),
            Self::PRelu { slopes } => {
                let slope = if slopes.len() == 1 { slopes.first() } else { slopes.get(output) };
                body.with(Bent(slope.copied().unwrap_or(1.0)))
            }
            Self::Clip { low, high } => body.with(Clipped(*low, *high)),
            Self::Sigmoid => body.with(Logistic),
            Self::HardSigmoid { alpha, beta } => body.with(HardLogistic(*alpha, *beta)),
            Self::HardSwish => body.with(HardSwishing),
            Self::Tanh => body.with(HyperbolicTangent),
            Self::Gelu => body.with(GeluOfErf),
            Self::GeluTanh => body.with(GeluOfTanh),
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// One of each.
    pub fn all() -> Vec<ActivationFunction> {
        use ActivationFunction::*;
        let leaky = LeakyRelu { alpha: 0.1 };
        let (clip, hard) = (Clip { low: -0.5, high: 1.5 }, HardSigmoid { alpha: 0.2, beta: 0.5 });
        let slopes = PRelu { slopes: vec![0.25, -0.1, 0.5, 0.0, 0.3, 0.2] };
        vec![None, Relu, leaky, slopes, clip, Sigmoid, hard, HardSwish, Tanh, Gelu, GeluTanh]
    }

    #[test]
    fn derivatives_match_finite_differences() {
        for function in all() {
            for x in (-400..400).map(|i| i as f32 * 0.02 + 0.007) {
                let value = |x: f32| f64::from(function.apply(1, x));
                let step = 1e-2f32;
                let difference = (value(x + step) - value(x - step)) / f64::from((x + step) - (x - step));
                let (_, slope) = function.at(1, x);
                // At a kink of a function, the difference is between its slopes.
                let bends = [-3.0f32, -2.5, -0.5, 0.0, 1.5, 2.5, 3.0].iter().any(|bend| (x - bend).abs() <= step);
                assert!(
                    bends || (difference - f64::from(slope)).abs() < 2e-3,
                    "{function:?} at {x}: {slope}, {difference}"
                );
            }
        }
    }

    #[test]
    fn activation_functions_match_their_definitions() {
        use ActivationFunction::*;
        let of = |f: ActivationFunction| [-4.0, -1.0, 0.5, 9.0].map(|x| (f.apply(0, x) * 1e4).round() / 1e4);
        assert_eq!(of(Relu), [0.0, 0.0, 0.5, 9.0]);
        assert_eq!(of(PRelu { slopes: vec![0.5] }), [-2.0, -0.5, 0.5, 9.0]);
        assert_eq!(of(Clip { low: -1.0, high: 6.0 }), [-1.0, -1.0, 0.5, 6.0]);
        assert_eq!(of(HardSwish), [0.0, -0.3333, 0.2917, 9.0]);
        assert_eq!(of(Gelu), [-0.0001, -0.1587, 0.3457, 9.0]);
    }
}
