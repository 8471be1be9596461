//! Angles of rotary embeddings (arXiv 2104.09864) with every scaling in use. Frequencies and angles are `f32`, as the
//! models were trained with. Turning itself is an operation of [`super::ops::Ops`].

use super::error::ForwardError;
use super::patches::PatchOrder;
use kvant_model::model_config::RopeParameters;
use std::f64::consts::PI;
use std::ops::Range;

/// Cosines and sines per position.
#[derive(Clone, Debug, PartialEq)]
pub struct Angles {
    /// The number of rotated components; a position has half as many angles.
    pub dim: usize,
    /// Tokens of a sequence; row `r` of a buffer has position `r % length`.
    pub length: usize,
    /// `cos` of every angle, position by position, times the scaling's attention factor.
    pub cos: Vec<f32>,
    /// `sin` likewise.
    pub sin: Vec<f32>,
}

/// A rule that gives the frequencies, with all that it needs.
#[derive(Clone, Debug, PartialEq)]
pub struct Rotary {
    dim: usize,
    theta: f64,
    scaling: Scaling,
}

#[derive(Clone, Debug, PartialEq)]
enum Scaling {
    None,
    Linear {
        factor: f64,
    },
    /// NTK by parts of the length (bloc97, emozilla).
    Dynamic {
        factor: f64,
        longest: f64,
        /// Stretches the base of sequences up to the longest (Hunyuan).
        alpha: f64,
    },
    /// By the place of a patch in its image: see `Positions::RotaryOfPatches`.
    Patches {
        /// Positions before the first patch, which do not turn.
        before: usize,
        /// Patches along the height and along the width.
        grid: [usize; 2],
    },
    /// By the row and column of a patch in an image of any size: see `Positions::RotaryOfGrid`.
    Grid {
        /// The order of patches.
        order: PatchOrder,
    },
    /// The first angles of a head turn, the others stay (Gemma 4).
    Proportional {
        angles: usize,
        factor: f64,
    },
    /// arXiv 2309.00071.
    Yarn {
        factor: f64,
        attention: f64,
        original: f64,
        fast: f64,
        slow: f64,
        truncate: bool,
    },
    /// arXiv 2407.21783.
    Llama3 {
        factor: f64,
        original: f64,
        low: f64,
        high: f64,
    },
    /// arXiv 2402.13753.
    LongRope {
        short: Vec<f64>,
        long: Vec<f64>,
        attention: f64,
        original: f64,
    },
}

impl Rotary {
    /// The rule of a checkpoint for heads with `dim` rotated components.
    ///
    /// # Errors
    ///
    /// An unknown kind of scaling, or one without a number that it needs.
    pub fn new(parameters: &RopeParameters, dim: usize, longest: Option<usize>) -> Result<Rotary, ForwardError> {
        if dim == 0 || !dim.is_multiple_of(2) {
            return Err(ForwardError::unsupported(format!("rotary embeddings of {dim} components")));
        }
        let scaling = RopeReader { parameters, longest }.scaling(dim)?;
        Ok(Rotary { dim, theta: parameters.theta.unwrap_or(10_000.0), scaling })
    }

    /// The rule for patches of images, behind `before` positions that do not turn, for heads with `dim` components.
    ///
    /// # Errors
    ///
    /// Heads that have no angle for each of two directions.
    pub fn of_patches(theta: f64, dim: usize, before: usize, grid: [usize; 2]) -> Result<Rotary, ForwardError> {
        match dim > 0 && dim.is_multiple_of(4) {
            true => Ok(Rotary { dim, theta, scaling: Scaling::Patches { before, grid } }),
            false => {
                Err(ForwardError::unsupported(format!("rotary embeddings of patches in heads of {dim} components")))
            }
        }
    }

    /// The rule for patches of images of any size, in this order, for heads with `dim` components.
    ///
    /// # Errors
    ///
    /// Heads that have no angle for each of two directions.
    pub fn of_grid(theta: f64, dim: usize, order: PatchOrder) -> Result<Rotary, ForwardError> {
        Ok(Rotary { scaling: Scaling::Grid { order }, ..Rotary::of_patches(theta, dim, 0, [1, 1])? })
    }

    /// Returns whether angles follow from the size of an image.
    pub(super) fn is_of_grid(&self) -> bool {
        matches!(self.scaling, Scaling::Grid { .. })
    }

    /// The angles of the patches of an image, of so many along its height and width.
    pub(super) fn angles_of_grid(&self, grid: [usize; 2]) -> Angles {
        let Scaling::Grid { order } = self.scaling else { return self.no_angles() };
        // Both directions have the frequencies of heads of half the width.
        let halves = Rotary { dim: self.dim / 2, ..self.clone() };
        let frequencies: Vec<f32> = halves.powers(self.theta).into_iter().map(|power| 1.0 / power).collect();
        let mut angles = self.no_angles();
        for place in order.places(grid) {
            angles.length += 1;
            for (at, frequency) in place.into_iter().flat_map(|at| frequencies.iter().map(move |f| (at, f))) {
                let angle = f64::from(at as f32 * frequency);
                angles.cos.push(angle.cos() as f32);
                angles.sin.push(angle.sin() as f32);
            }
        }
        angles
    }

    /// The angles of tokens with these times, rows and columns, by one of which each angle turns; `None` where frequencies depend on the length.
    pub(super) fn angles_of_places(&self, places: &[[usize; 3]], axes: &[usize]) -> Option<Angles> {
        let (frequencies, factor) = self.constant_frequencies()?;
        let mut angles = self.no_angles();
        angles.length = places.len();
        for place in places {
            for (frequency, axis) in frequencies.iter().zip(axes) {
                let angle = f64::from(place[*axis] as f32 * frequency);
                angles.cos.push(angle.cos() as f32 * factor);
                angles.sin.push(angle.sin() as f32 * factor);
            }
        }
        Some(angles)
    }

    /// Components of a head that turn.
    pub(super) fn components(&self) -> usize {
        self.dim
    }

    /// The angles of sequences of `length` tokens.
    pub fn angles(&self, length: usize) -> Angles {
        let mut angles = self.no_angles();
        self.extend(&mut angles, 0..length, length);
        angles
    }

    /// Appends the angles of some tokens of a sequence of `length` tokens.
    pub(super) fn extend(&self, angles: &mut Angles, positions: Range<usize>, length: usize) {
        if let Scaling::Patches { before, grid } = self.scaling {
            angles.length += positions.len();
            for angle in positions.flat_map(|position| self.angles_of_patch(position, before, grid)) {
                angles.cos.push(angle.cos() as f32);
                angles.sin.push(angle.sin() as f32);
            }
            return;
        }
        let (frequencies, factor) = self.frequencies(length);
        let angle = |position: usize, frequency: f32| f64::from(position as f32 * frequency);
        angles.length += positions.len();
        let all = positions.flat_map(|position| frequencies.iter().map(move |f| angle(position, *f)));
        for a in all {
            angles.cos.push(a.cos() as f32 * factor);
            angles.sin.push(a.sin() as f32 * factor);
        }
    }

    /// The angles of a position in an image, in the order of operations that the models were trained with.
    fn angles_of_patch(&self, position: usize, before: usize, [rows, columns]: [usize; 2]) -> Vec<f64> {
        let Some(patch) = position.checked_sub(before) else { return vec![0.0; self.dim / 2] };
        let middle = |at: usize, count: usize| 2.0 * ((at as f32 + 0.5) / count as f32) - 1.0;
        let places = [middle(patch / columns.max(1), rows), middle(patch % columns.max(1), columns)];
        let frequency = |at: usize| 1.0 / (self.theta.powf(f64::from(4.0 / self.dim as f32 * at as f32)) as f32);
        let of_place = |place: f32| {
            let turn = 2.0 * std::f32::consts::PI * place;
            (0..self.dim / 4).map(move |at| f64::from(turn * frequency(at)))
        };
        places.into_iter().flat_map(of_place).collect()
    }

    /// Angles of no tokens, to be extended.
    pub(super) fn no_angles(&self) -> Angles {
        Angles { dim: self.dim, length: 0, cos: Vec::new(), sin: Vec::new() }
    }

    /// Returns whether tokens turn by other angles in a sequence of `after` tokens than in one of `before`.
    pub(super) fn changes_between(&self, before: usize, after: usize) -> bool {
        self.constant_frequencies().is_none() && self.frequencies(before) != self.frequencies(after)
    }

    /// The angle per position of every pair, and the factor on cosines and sines, where they are the same for sequences of
    /// every length.
    pub fn constant_frequencies(&self) -> Option<(Vec<f32>, f32)> {
        match self.scaling {
            Scaling::Dynamic { .. } | Scaling::LongRope { .. } | Scaling::Patches { .. } | Scaling::Grid { .. } => None,
            _ => Some(self.frequencies(1)),
        }
    }

    /// Turns per position of every pair, and the factor on cosines and sines.
    fn frequencies(&self, length: usize) -> (Vec<f32>, f32) {
        let plain = || self.powers(self.theta).into_iter().map(|p| 1.0 / p);
        match &self.scaling {
            // Those of patches follow from their places.
            Scaling::None | Scaling::Patches { .. } | Scaling::Grid { .. } => (plain().collect(), 1.0),
            Scaling::Proportional { angles, factor } => {
                let turning =
                    plain().enumerate().map(|(pair, f)| if pair < *angles { f / *factor as f32 } else { 0.0 });
                (turning.collect(), 1.0)
            }
            Scaling::Linear { factor } => (plain().map(|f| f / *factor as f32).collect(), 1.0),
            Scaling::Dynamic { factor, longest, alpha } => {
                let stretch = match length as f64 > *longest {
                    true => factor * length as f64 / longest - (factor - 1.0),
                    false => *alpha,
                };
                let dim = self.dim as f64;
                let theta = self.theta * stretch.powf(dim / (dim - 2.0));
                (self.powers(theta).into_iter().map(|p| 1.0 / p).collect(), 1.0)
            }
            Scaling::Yarn { attention, .. } => (self.yarn(), *attention as f32),
            Scaling::Llama3 { .. } => (plain().map(|f| self.llama3(f)).collect(), 1.0),
            Scaling::LongRope { short, long, attention, original } => {
                let divisors = if length as f64 > *original { long } else { short };
                let both = self.powers(self.theta).into_iter().zip(divisors);
                (both.map(|(p, d)| 1.0 / (*d as f32 * p)).collect(), *attention as f32)
            }
        }
    }

    /// `theta^(2i/d)`.
    fn powers(&self, theta: f64) -> Vec<f32> {
        let exponent = |i: usize| f64::from((2 * i) as f32 / self.dim as f32);
        (0..self.dim / 2).map(|i| theta.powf(exponent(i)) as f32).collect()
    }

    fn yarn(&self) -> Vec<f32> {
        let Scaling::Yarn { factor, original, fast, slow, truncate, .. } = self.scaling else {
            return Vec::new();
        };
        let dim = self.dim as f64;
        let component = |turns: f64| dim * (original / (turns * 2.0 * PI)).ln() / (2.0 * self.theta.ln());
        let (low, high) = match truncate {
            true => (component(fast).floor(), component(slow).ceil()),
            false => (component(fast), component(slow)),
        };
        let (low, mut high) = (low.max(0.0), high.min(dim - 1.0));
        if low == high {
            high += 0.001;
        }
        let blend = |(i, power): (usize, f32)| {
            let ramp = ((i as f64 - low) / (high - low)).clamp(0.0, 1.0) as f32;
            1.0 / (factor as f32 * power) * ramp + 1.0 / power * (1.0 - ramp)
        };
        self.powers(self.theta).into_iter().enumerate().map(blend).collect()
    }

    fn llama3(&self, frequency: f32) -> f32 {
        let Scaling::Llama3 { factor, original, low, high } = self.scaling else {
            return frequency;
        };
        let wavelength = 2.0 * PI / f64::from(frequency);
        if wavelength < original / high {
            return frequency;
        }
        if wavelength > original / low {
            return frequency / factor as f32;
        }
        let smooth = ((original / wavelength - low) / (high - low)) as f32;
        (1.0 - smooth) * frequency / factor as f32 + smooth * frequency
    }
}

/// DeepSeek's factor on attention's scale: the square of YaRN's for `mscale_all_dim`, 1 without it.
pub fn attention_scale_of_yarn(parameters: &RopeParameters) -> f64 {
    let scaled = parameters.kind.as_deref().is_some_and(|kind| kind != "default");
    match (parameters.factor, parameters.mscale_all_dim) {
        (Some(factor), Some(mscale)) if scaled && mscale != 0.0 => yarn_factor(factor, mscale).powi(2),
        _ => 1.0,
    }
}

fn yarn_factor(factor: f64, mscale: f64) -> f64 {
    if factor <= 1.0 { 1.0 } else { 0.1 * mscale * factor.ln() + 1.0 }
}

struct RopeReader<'a> {
    parameters: &'a RopeParameters,
    longest: Option<usize>,
}

impl RopeReader<'_> {
    fn scaling(&self, dim: usize) -> Result<Scaling, ForwardError> {
        // Text has the same position on all axes of multimodal rotary embeddings.
        match self.parameters.kind.as_deref().unwrap_or("default") {
            "default" | "mrope" => Ok(Scaling::None),
            "linear" => Ok(Scaling::Linear { factor: self.need(self.parameters.factor, "factor")? }),
            "dynamic" => Ok(Scaling::Dynamic {
                factor: self.need(self.parameters.factor.or(self.parameters.alpha.map(|_| 1.0)), "factor")?,
                longest: self.need(self.longest, "max_position_embeddings")? as f64,
                alpha: self.parameters.alpha.filter(|alpha| *alpha != 0.0).unwrap_or(1.0),
            }),
            "proportional" => Ok(Scaling::Proportional {
                angles: (self.parameters.partial.unwrap_or(1.0) * dim as f64 / 2.0).floor() as usize,
                factor: self.parameters.factor.unwrap_or(1.0),
            }),
            "yarn" => self.yarn(),
            "llama3" => Ok(Scaling::Llama3 {
                factor: self.need(self.parameters.factor, "factor")?,
                original: self.original()?,
                low: self.need(self.parameters.low_freq_factor, "low_freq_factor")?,
                high: self.need(self.parameters.high_freq_factor, "high_freq_factor")?,
            }),
            "longrope" | "su" => self.long_rope(dim),
            kind => Err(ForwardError::unsupported(format!("rotary embeddings of the kind `{kind}`"))),
        }
    }

    fn need<T>(&self, value: Option<T>, key: &str) -> Result<T, ForwardError> {
        let kind = self.parameters.kind.as_deref().unwrap_or("default");
        value.ok_or_else(|| ForwardError::missing(format!("rope scaling `{kind}` of config.json"), format!("`{key}`")))
    }

    fn original(&self) -> Result<f64, ForwardError> {
        let original = self.parameters.original_max_positions.or(self.longest);
        Ok(self.need(original, "original_max_position_embeddings")? as f64)
    }

    /// As stated, else how much longer the context is than it was.
    fn factor(&self) -> Result<f64, ForwardError> {
        match self.parameters.factor {
            Some(factor) => Ok(factor),
            None => Ok(self.need(self.longest, "factor")? as f64 / self.original()?),
        }
    }

    fn yarn(&self) -> Result<Scaling, ForwardError> {
        let p = self.parameters;
        let factor = self.need(p.factor, "factor")?;
        let default = match (p.mscale.filter(|m| *m != 0.0), p.mscale_all_dim.filter(|m| *m != 0.0)) {
            (Some(above), Some(below)) => yarn_factor(factor, above) / yarn_factor(factor, below),
            _ => yarn_factor(factor, 1.0),
        };
        Ok(Scaling::Yarn {
            factor,
            attention: p.attention_factor.unwrap_or(default),
            original: self.original()?,
            fast: p.beta_fast.unwrap_or(32.0),
            slow: p.beta_slow.unwrap_or(1.0),
            truncate: p.truncate.unwrap_or(true),
        })
    }

    fn long_rope(&self, dim: usize) -> Result<Scaling, ForwardError> {
        let p = self.parameters;
        let (original, factor) = (self.original()?, self.factor()?);
        for (key, divisors) in [("short_factor", &p.short_factor), ("long_factor", &p.long_factor)] {
            if divisors.len() != dim / 2 {
                let found = format!("`{key}` of {} numbers", dim / 2);
                return Err(ForwardError::missing("rope scaling `longrope` of config.json", found));
            }
        }
        let default = if factor <= 1.0 { 1.0 } else { (1.0 + factor.ln() / original.ln()).sqrt() };
        Ok(Scaling::LongRope {
            short: p.short_factor.clone(),
            long: p.long_factor.clone(),
            attention: p.attention_factor.unwrap_or(default),
            original,
        })
    }
}
