//! Rotary embeddings of a file's source model. Factors that divide frequencies are those of Llama 3 if its
//! formula gives them, or LongRoPE's two lists; others are not read.

use super::Stated;
use crate::model::architecture::Restoration;
use crate::model::rope::long_attention_factor;
use crate::model::values::values;
use kvant_container::gguf::GgufTensor;
use kvant_model::family::{Family, Positions};
use kvant_numeric::simd::Isa;
use kvant_weights::import_error::ImportError;
use serde_json::{Map, Value, json};
use std::f64::consts::TAU;

/// Adds base, part and scaling to a config.json.
pub(crate) fn restore(
    stated: &Stated<'_>,
    family: &Family,
    restoration: &Restoration,
    config: &mut Map<String, Value>,
) -> Result<(), ImportError> {
    let Positions::Rotary { partial, .. } = family.math.positions else { return Ok(()) };
    let word = |key: &str, usual: &'static str| {
        restoration.words.iter().find(|(stored, _)| *stored == key).map_or(usual, |(_, name)| *name)
    };
    let base = stated.number("rope.freq_base").unwrap_or(10_000.0);
    config.insert(word("rope.freq_base", "rope_theta").to_owned(), json!(base));
    let part = word("rope.dimension_count", "partial_rotary_factor");
    let sizes = stated.size("rope.dimension_count").zip(stated.head_width()).filter(|_| !part.is_empty());
    if let Some((dim, width)) = sizes.filter(|(dim, width)| dim != width || partial != 1.0) {
        config.insert(part.to_owned(), json!(fraction(dim, width)));
    }
    if let Some(local) = stated.number("rope.freq_base_swa") {
        config.insert("rope_local_base_freq".to_owned(), json!(local));
    }
    if let Some(scaling) = scaling(stated, base)? {
        config.insert("rope_scaling".to_owned(), scaling);
    }
    Ok(())
}

/// `dim / width`, a little more where the product with `width` would fall below `dim` and be cut off.
fn fraction(dim: usize, width: usize) -> f64 {
    let exact = dim as f64 / width.max(1) as f64;
    if (exact * width as f64) < dim as f64 { exact.next_up().next_up() } else { exact }
}

fn scaling(stated: &Stated<'_>, base: f64) -> Result<Option<Value>, ImportError> {
    // Not all files name this type: graphs look for the tensors.
    if LONG_ROPE.iter().any(|(tensor, _)| stated.has(tensor)) {
        return long_rope(stated).map(Some);
    }
    // The default of llama.cpp if the type is not stated, and the key of files before there were types.
    let kind = stated.text("rope.scaling.type").unwrap_or("linear");
    let factor = stated.number("rope.scaling.factor").or_else(|| stated.number("rope.scale_linear"));
    match (kind, factor.filter(|factor| *factor != 0.0 && *factor != 1.0)) {
        ("none", _) | ("linear", None) => divided(stated, base),
        (_, Some(_)) if stated.has(FACTORS) => Err(unread("scaled, and divided by factors too")),
        ("linear", Some(factor)) => Ok(Some(json!({"rope_type": "linear", "factor": factor}))),
        ("yarn", Some(factor)) => yarn(stated, factor).map(Some),
        _ => Err(unread(&format!("of the type {}", kvant_weights::recipe_error::quoted(kind)))),
    }
}

fn unread(what: &str) -> ImportError {
    let reason = format!("rotary embeddings {what} are not read");
    ImportError::unsupported("rope.scaling.type", reason, "use the checkpoint that the file was made of")
}

/// The tensor of factors that divide frequencies.
const FACTORS: &str = "rope_freqs.weight";

/// The tensors of LongRoPE's factors, for long texts and for short ones, and what config.json calls them.
const LONG_ROPE: [(&str, &str); 2] =
    [("rope_factors_long.weight", "long_factor"), ("rope_factors_short.weight", "short_factor")];

fn long_rope(stated: &Stated<'_>) -> Result<Value, ImportError> {
    let (context, original) = (stated.need("context_length")?, stated.need("rope.scaling.original_context_length")?);
    let mut scaling = Map::from_iter([("type".to_owned(), json!("longrope"))]);
    for (tensor, name) in LONG_ROPE {
        let found = stated.file.tensor(tensor).ok_or_else(|| ImportError::invalid(tensor, "is missing"))?;
        scaling.insert(name.to_owned(), json!(factors(stated, found)?));
    }
    // A file that states none is run without.
    let (usual, attention) =
        (long_attention_factor(context, original), stated.number("rope.scaling.attn_factor").unwrap_or(1.0));
    if (attention - f64::from(usual)).abs() > 1e-6 {
        scaling.insert("attention_factor".to_owned(), json!(attention));
    }
    Ok(Value::Object(scaling))
}

/// The divisors of the frequencies, one for each pair of components.
fn factors(stated: &Stated<'_>, tensor: GgufTensor<'_>) -> Result<Vec<f32>, ImportError> {
    let width = stated.size("rope.dimension_count").or_else(|| stated.head_width());
    if width.is_some_and(|width| tensor.shape().iter().product::<usize>() != width / 2) {
        return Err(ImportError::invalid(tensor.name(), "has not a factor for each pair of components"));
    }
    let factors = values(Isa::best(), tensor).filter(|factors| factors.iter().all(|f| f.is_finite() && *f > 0.0));
    factors.ok_or_else(|| ImportError::invalid(tensor.name(), "holds no factors"))
}

fn yarn(stated: &Stated<'_>, factor: f64) -> Result<Value, ImportError> {
    let original = stated.need("rope.scaling.original_context_length")?;
    let mut scaling = Map::new();
    scaling.insert("rope_type".to_owned(), json!("yarn"));
    scaling.insert("factor".to_owned(), json!(factor));
    scaling.insert("original_max_position_embeddings".to_owned(), json!(original));
    let more =
        [("yarn_attn_factor", "attention_factor"), ("yarn_beta_fast", "beta_fast"), ("yarn_beta_slow", "beta_slow")];
    for (key, name) in more {
        if let Some(number) = stated.number(&format!("rope.scaling.{key}")) {
            scaling.insert(name.to_owned(), json!(number));
        }
    }
    // What it is multiplied by is YaRN's usual factor.
    if let Some(attention) = stated.number("rope.scaling.attn_factor") {
        scaling.insert("attention_factor".to_owned(), json!(attention * (0.1 * factor.ln() + 1.0)));
    }
    Ok(Value::Object(scaling))
}

/// The scaling that divides frequencies by the file's factors.
fn divided(stated: &Stated<'_>, base: f64) -> Result<Option<Value>, ImportError> {
    let Some(tensor) = stated.file.tensor(FACTORS) else { return Ok(None) };
    let factors = factors(stated, tensor)?;
    if factors.iter().all(|factor| *factor == 1.0) {
        return Ok(None);
    }
    llama3(&factors, base).map(Some).ok_or_else(|| unread("divided by factors that are not Llama 3's"))
}

/// Llama 3's scaling of frequencies: `1/f = (1 - s)/F + s` with `s = (o/w - low)/(high - low)` between 0 and 1, `w` the wavelength.
/// See `crate::model::rope`, which writes the factors `f`.
struct Llama3 {
    /// `F`.
    factor: f64,
    low: f64,
    high: f64,
    /// `o`.
    original: f64,
}

impl Llama3 {
    /// Bounds as all published models have them.
    const LOW: f64 = 1.0;
    const HIGH: f64 = 4.0;
    /// The largest difference from the file's factors, as a share of each.
    const ROUNDED: f64 = 1e-5;

    /// Returns whether the scaling gives these factors of components with such frequencies.
    fn gives(&self, factors: &[f64], frequencies: &[f64]) -> bool {
        let expected = |frequency: f64| {
            let smooth = ((self.original * frequency - self.low) / (self.high - self.low)).clamp(0.0, 1.0);
            1.0 / ((1.0 - smooth) / self.factor + smooth)
        };
        let differs = |(factor, frequency): (&f64, &f64)| (factor / expected(*frequency) - 1.0).abs() > Self::ROUNDED;
        self.low > 0.0 && self.high > self.low && !factors.iter().zip(frequencies).any(differs)
    }

    fn to_json(&self) -> Value {
        json!({
            "rope_type": "llama3", "factor": self.factor, "low_freq_factor": self.low, "high_freq_factor": self.high,
            "original_max_position_embeddings": self.original as u64,
        })
    }
}

/// The parameters of Llama 3's formula that give these factors, with the published bounds where these do.
fn llama3(factors: &[f32], base: f64) -> Option<Value> {
    let factors: Vec<f64> = factors.iter().map(|factor| f64::from(*factor)).collect();
    let frequencies: Vec<f64> =
        (0..factors.len()).map(|i| base.powf(-(i as f64) / factors.len() as f64) / TAU).collect();
    let factor = factors.iter().copied().fold(1.0, f64::max);
    if factors.iter().all(|found| *found == factor) {
        return Some(json!({"rope_type": "linear", "factor": factor}));
    }
    let line = Line::of(&factors, &frequencies, factor)?;
    let published = {
        let (low, high) = (Llama3::LOW, Llama3::HIGH);
        Llama3 { factor, low, high, original: (line.slope * (high - low)).round() }
    };
    let solved = line.scaling(factor);
    let decimals = |value: f64| (value * 1e4).round() / 1e4;
    let rounded = Llama3 { low: decimals(solved.low), high: decimals(solved.high), ..solved };
    let found = [published, rounded, solved].into_iter().find(|one| one.gives(&factors, &frequencies))?;
    Some(found.to_json())
}

/// The line `s = slope * frequency + offset`, whose part between 0 and 1 is interpolated.
struct Line {
    slope: f64,
    offset: f64,
}

impl Line {
    /// A line that gives the factors of components with such falling frequencies, the largest of which is `factor`: through the
    /// interpolated ones where there are two. With fewer, many lines do, and that of the published bounds is taken or one as
    /// near to it as the other components allow.
    fn of(factors: &[f64], frequencies: &[f64], factor: f64) -> Option<Line> {
        let smooth = |found: f64| (1.0 / found - 1.0 / factor) / (1.0 - 1.0 / factor);
        let first_between = factors.iter().position(|found| *found > 1.0)?;
        let first_scaled = factors.iter().position(|found| *found == factor)?;
        let (x, s) = match (first_scaled - first_between, first_between) {
            (0, 0) => return None,
            (0, _) => (frequencies[first_scaled], 0.0),
            _ => (frequencies[first_between], smooth(factors[first_between])),
        };
        if first_scaled > first_between + 1 {
            let (other, of_other) = (frequencies[first_scaled - 1], smooth(factors[first_scaled - 1]));
            let slope = (s - of_other) / (x - other);
            return Some(Line { slope, offset: s - slope * x });
        }
        let published = (s + Llama3::LOW / (Llama3::HIGH - Llama3::LOW)) / x;
        let above = first_between.checked_sub(1).map(|kept| (1.0 - s) / (frequencies[kept] - x));
        let below = frequencies.get(first_scaled).filter(|scaled| **scaled < x).map(|scaled| s / (x - scaled));
        let slope = [above, below].into_iter().flatten().fold(published, f64::max);
        Some(Line { slope, offset: s - slope * x })
    }

    /// The scaling of this line whose lower bound is next to 1: bounds and context may be multiplied together.
    fn scaling(&self, factor: f64) -> Llama3 {
        let original = (-self.slope / self.offset).round();
        let between = original / self.slope;
        let low = -self.offset * between;
        Llama3 { factor, low, high: low + between, original }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partial_rotary_fraction_restores_the_exact_dimension() {
        for width in 1..300 {
            for dim in 1..=width {
                assert_eq!((fraction(dim, width) * width as f64) as usize, dim, "{dim} of {width}");
            }
        }
    }

    #[test]
    fn llama3_rope_is_recognised_by_its_factors() {
        // Those of 3.1 with heads of 128: see the test of what is written.
        let between = [1.207_484, 1.553_415, 2.026_313, 2.694_53, 3.684_253, 5.257_327];
        let mut factors = vec![1.0; 29];
        factors.extend(between);
        factors.resize(64, 8.0);
        let found = llama3(&factors, 500_000.0).unwrap();
        assert_eq!((&found["factor"], &found["original_max_position_embeddings"]), (&json!(8.0), &json!(8192)));
        factors[3] = 1.5;
        assert!(llama3(&factors, 500_000.0).is_none());
    }

    /// Parameters are found that give the same factors.
    #[test]
    fn llama3_rope_with_other_bounds_is_restored() {
        let written = |low: f64, high: f64, original: f64, factor: f64, count: usize, base: f64| -> Vec<f32> {
            let of_component = |i: usize| {
                let ratio = original / (TAU * base.powf(i as f64 / count as f64));
                let smooth = ((ratio - low) / (high - low)).clamp(0.0, 1.0);
                (1.0 / ((1.0 - smooth) / factor + smooth)) as f32
            };
            (0..count).map(of_component).collect()
        };
        let mut tried = 0;
        for (low, high) in [(1.0, 4.0), (1.0, 8.0), (2.0, 3.0), (0.5, 2.0), (0.3, 7.7), (1.0, 1.01), (3.0, 32.0)] {
            for original in [32.0, 64.0, 100.0, 4096.0, 8192.0, 131_072.0] {
                for (factor, base) in [(8.0, 500_000.0), (32.0, 10_000.0), (1.5, 1e6)] {
                    for count in [4, 8, 32, 64] {
                        let factors = written(low, high, original, factor, count, base);
                        if factors.iter().all(|factor| *factor == 1.0) {
                            continue;
                        }
                        let case = format!("{low} {high} {original} {factor} {base} {count}");
                        let found = llama3(&factors, base).unwrap_or_else(|| panic!("{case}: {factors:?}"));
                        let number = |key: &str| found[key].as_f64().unwrap();
                        tried += 1;
                        if found["rope_type"] == "linear" {
                            assert!(factors.iter().all(|one| f64::from(*one) == number("factor")), "{case}");
                            continue;
                        }
                        let (low, high) = (number("low_freq_factor"), number("high_freq_factor"));
                        let original = number("original_max_position_embeddings");
                        let again = written(low, high, original, number("factor"), count, base);
                        let far = |(a, b): (&f32, &f32)| (a / b - 1.0).abs() > 1e-5;
                        assert!(!factors.iter().zip(&again).any(far), "{case}: {found} {factors:?} {again:?}");
                    }
                }
            }
        }
        assert!(tried > 300, "{tried}");
    }
}
