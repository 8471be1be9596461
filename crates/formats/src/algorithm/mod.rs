//! The requested algorithms, their order and settings: `awq:clip=off,gptq:damping=0.05`. Not how they
//! work: see [`kvant_quant::transform`], [`kvant_quant::rounding`], [`kvant_quant::tuning`] and
//! [`kvant_quant::bias_correction`].

mod one;

pub use one::{Algorithm, AlgorithmRow};

use kvant_quant::bias_correction::BiasCorrection;
use kvant_quant::rotation::Rotate;
use kvant_quant::rounding::{AnyRounding, Needs};
use kvant_quant::transform::AnyTransform;
use kvant_quant::tuning::Tuning;
use kvant_weights::recipe_error::RecipeError;
use std::fmt;
use std::str::FromStr;

/// What is done to weights: a rotation, transforms in this order, then a rounding, then tunings of what it chose; then to biases.
///
/// ```
/// use kvant_formats::algorithm::Algorithms;
///
/// let algorithms: Algorithms = "awq:clip=off,gptq:damping=0.05:order=activation".parse()?;
/// assert_eq!(algorithms.to_string(), "awq:clip=off,gptq:damping=0.05");
/// assert!("gptq,awq".parse::<Algorithms>().is_err());
/// # Ok::<(), kvant_weights::recipe_error::RecipeError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Algorithms {
    /// Whether the model is rotated first, and how.
    pub rotation: Option<Rotate>,
    /// The transforms before rounding; no two of a kind.
    pub transforms: Vec<AnyTransform>,
    /// The rounding.
    pub rounding: AnyRounding,
    /// How what the rounding chose is tuned block by block, one after the other; no two of a kind.
    pub tunings: Vec<Tuning>,
    /// Whether biases make up for the mean error of codes, and how.
    pub correction: Option<BiasCorrection>,
}

/// Round to nearest alone.
impl Default for Algorithms {
    fn default() -> Algorithms {
        Algorithms {
            rotation: None,
            transforms: Vec::new(),
            rounding: AnyRounding::nearest(),
            tunings: Vec::new(),
            correction: None,
        }
    }
}

impl Algorithms {
    /// The algorithms of a list, each item of which may be a list with commas.
    ///
    /// # Errors
    /// *Invalid* for unknown names and options, wrong values, and invalid lists; *unsupported* for algorithms
    /// that others have. Messages begin with `place`.
    pub fn of_list<S: AsRef<str>>(place: &str, list: &[S]) -> Result<Algorithms, RecipeError> {
        let mut algorithms = List { place, items: Vec::new() };
        for text in list.iter().flat_map(|item| item.as_ref().split(',')) {
            algorithms.push(Algorithm::find(place, text.trim())?)?;
        }
        Ok(algorithms.finish())
    }

    /// Returns whether nothing is asked for but rounding to nearest.
    pub fn is_default(&self) -> bool {
        self.rotation.is_none() && self.is_plain()
    }

    /// Returns whether weights are only rounded to nearest, those of a rotated model included.
    pub fn is_plain(&self) -> bool {
        let adjusts = !self.tunings.is_empty() || self.correction.is_some();
        self.transforms.is_empty() && self.rounding.is_nearest() && !adjusts
    }

    /// Returns whether one of them needs layer inputs, so that the model is run block by block.
    pub fn need_data(&self) -> bool {
        !self.transforms.is_empty() || self.see_inputs() || !self.tunings.is_empty()
    }

    /// The rotation, where its matrices are learned from data.
    pub fn learned_rotation(&self) -> Option<Rotate> {
        self.rotation.filter(Rotate::learns)
    }

    /// Returns whether what follows the transforms must know what layers read in the quantized model.
    pub fn see_inputs(&self) -> bool {
        self.rounding.needs() > Needs::Nothing || self.correction.is_some()
    }

    /// The algorithms one by one, round to nearest only where it is alone.
    pub fn items(&self) -> Vec<Algorithm> {
        let rotation = self.rotation.map(Algorithm::Rotation);
        let transforms = self.transforms.iter().cloned().map(Algorithm::Transform);
        let says_more = !self.rounding.is_nearest() || self.is_default();
        let rounding = says_more.then(|| Algorithm::Rounding(self.rounding.clone()));
        let tunings = self.tunings.iter().copied().map(Algorithm::Tuning);
        let correction = self.correction.map(Algorithm::Correction);
        rotation.into_iter().chain(transforms).chain(rounding).chain(tunings).chain(correction).collect()
    }

    /// The algorithms one by one as they are spelled.
    pub fn spellings(&self) -> Vec<String> {
        self.items().iter().map(Algorithm::to_string).collect()
    }
}

impl fmt::Display for Algorithms {
    /// The spelling: names in order, each with what differs from its usual settings.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.spellings().join(","))
    }
}

impl FromStr for Algorithms {
    type Err = RecipeError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Algorithms::of_list("‹algorithm›", &[text])
    }
}

/// A list being built.
struct List<'a> {
    place: &'a str,
    items: Vec<Algorithm>,
}

impl List<'_> {
    fn push(&mut self, next: Algorithm) -> Result<(), RecipeError> {
        let invalid = |reason: String, hint: String| Err(RecipeError::invalid(self.place, reason, hint));
        let name = next.name().to_owned();
        if self.items.iter().any(|item| item.name() == name) {
            return invalid(format!("`{name}` is given twice"), "give it once, with all of its options".to_owned());
        }
        let is_rounding = |item: &&Algorithm| matches!(item, Algorithm::Rounding(_));
        let rounding = self.items.iter().find(is_rounding).map(Algorithm::name);
        let tuning = self.items.iter().find(|item| matches!(item, Algorithm::Tuning(_))).map(Algorithm::name);
        let reason = match (&next, rounding, tuning) {
            (Algorithm::Rotation(_), ..) if !self.items.is_empty() => {
                let reason = format!("`{name}` rotates the model before anything else is done to it");
                return invalid(reason, format!("give `{name}` first"));
            }
            (Algorithm::Rounding(_), Some(first), _) => {
                let reason = format!("`{first}` and `{name}` both choose codes, which can be done once");
                return invalid(reason, "keep one of them".to_owned());
            }
            (Algorithm::Transform(_), Some(first), _) => {
                format!("`{name}` changes weights, which `{first}` before it has rounded already")
            }
            (Algorithm::Transform(_), None, Some(first)) => {
                format!("`{name}` changes weights, whose codes `{first}` before it has tuned already")
            }
            (Algorithm::Rounding(_), None, Some(first)) => {
                format!("`{name}` chooses codes, which `{first}` before it has tuned already")
            }
            _ => {
                self.items.push(next);
                return Ok(());
            }
        };
        let mut ordered: Vec<&Algorithm> = self.items.iter().chain([&next]).collect();
        ordered.sort_by_key(|item| stage(item));
        let ordered: Vec<String> = ordered.into_iter().map(Algorithm::to_string).collect();
        invalid(reason, format!("give `{name}` first: {}", ordered.join(",")))
    }

    fn finish(self) -> Algorithms {
        let mut algorithms = Algorithms::default();
        for item in self.items {
            match item {
                Algorithm::Rotation(rotation) => algorithms.rotation = Some(rotation),
                Algorithm::Transform(transform) => algorithms.transforms.push(transform),
                Algorithm::Rounding(rounding) => algorithms.rounding = rounding,
                Algorithm::Tuning(tuning) => algorithms.tunings.push(tuning),
                Algorithm::Correction(correction) => algorithms.correction = Some(correction),
            }
        }
        algorithms
    }
}

/// The place of an algorithm among others.
fn stage(algorithm: &Algorithm) -> usize {
    match algorithm {
        Algorithm::Rotation(_) => 0,
        Algorithm::Transform(_) => 1,
        Algorithm::Rounding(_) => 2,
        Algorithm::Tuning(_) => 3,
        Algorithm::Correction(_) => 4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvant_container::Diagnostic;

    fn error(text: &str) -> RecipeError {
        text.parse::<Algorithms>().unwrap_err()
    }

    #[test]
    fn algorithm_list_spellings_round_trip() {
        for text in [
            "rtn",
            "awq",
            "gptq",
            "awq,gptq",
            "smoothquant:alpha=0.75:clamp-min=0.01,awq:ratios=10:duo=on:clip=off,qronos:damping=0.0001:order=stored",
            "autosmoothquant:loss=mae,gptaq:damping=0.05:alpha=1",
            "awq:tokens=64",
            "bias-correction",
            "awq,gptq,bias-correction:strength=0.5",
            "rotate:size=32:steps=100:rate=0.25,qronos",
            "qronos:rounds=4,autoround:preset=light:seed=7,tune:weights=on",
            "tune,autoround",
        ] {
            assert_eq!(text.parse::<Algorithms>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn default_options_are_omitted() {
        let same = |text: &str| text.parse::<Algorithms>().unwrap().to_string();
        assert_eq!(same("smooth, gptq:order=activation:damping=1e-2"), "smoothquant,gptq");
        assert_eq!(same("awq:clip=on,rtn"), "awq");
        assert_eq!(same("gptq:groups=dynamic:order=stored:block=64"), "gptq:order=stored:groups=dynamic:block=64");
        let list = Algorithms::of_list("algorithm", &["awq", "gptq:damping=0.5"]).unwrap();
        assert_eq!(list, "awq,gptq:damping=0.5".parse().unwrap());
        assert_eq!(list.spellings(), ["awq", "gptq:damping=0.5"]);
        assert!(Algorithms::default().is_plain() && !list.is_plain());
        assert_eq!(same("bc,gptq"), "gptq,bias-correction", "biases are corrected last, wherever that is said");
        assert_eq!(same("rtn,bias-correction"), "bias-correction");
    }

    #[test]
    fn a_correction_of_biases_needs_data_and_what_layers_read() {
        let needs = |text: &str| {
            let algorithms = text.parse::<Algorithms>().unwrap();
            (algorithms.need_data(), algorithms.see_inputs())
        };
        assert_eq!(needs("bias-correction"), (true, true));
        assert_eq!((needs("hqq"), needs("awq"), needs("gptq")), ((false, false), (true, false), (true, true)));
    }

    #[test]
    fn invalid_algorithm_orders_are_explained() {
        let message = |text: &str| error(text).to_string();
        assert_eq!(
            message("gptq,qronos"),
            "‹algorithm›: `gptq` and `qronos` both choose codes, which can be done once"
        );
        assert!(message("gptq,awq").ends_with("`awq` changes weights, which `gptq` before it has rounded already"));
        assert_eq!(error("gptq,awq").hint().unwrap(), "give `awq` first: awq,gptq");
        assert!(message("rtn,awq").contains("`rtn` before it"));
        assert_eq!(error("gptq,tune,awq").hint().unwrap(), "give `awq` first: awq,gptq,tune");
        assert_eq!(
            message("tune:weights=on,gptq"),
            "‹algorithm›: `gptq` chooses codes, which `tune` before it has tuned already"
        );
        assert_eq!(error("tune:weights=on,gptq").hint().unwrap(), "give `gptq` first: gptq,tune:weights=on");
        assert!(
            message("autoround,awq")
                .ends_with("`awq` changes weights, whose codes `autoround` before it has tuned already")
        );
        assert_eq!(message("tune,autoround,tune"), "‹algorithm›: `tune` is given twice");
        assert_eq!(message("awq,awq:clip=off"), "‹algorithm›: `awq` is given twice");
    }
}
