//! Quality levels of ONNX graphs: the scales and algorithms that a level stands for, chosen for a recipe by what was measured
//! (docs/benchmarks/onnx-algorithms.md, "Quality levels").

use super::recipe;
use crate::error::{Error, ErrorKind};
use crate::job::Job;
use crate::settings::first_given;
use kvant_checkpoint::recipe::{QualityChoice, QualityLevel};
use kvant_container::Remedy;
use kvant_onnx::recipe::{Layout, Recipe};
use kvant_onnx::settings::Resolved;
use kvant_quant::observer::ObserverRef;

/// Weights of more bits lose hardly anything by their codes.
const MOST_BITS: u32 = 4;

/// Those of the levels that choose codes.
const ROUNDINGS: [&str; 3] = ["gptq", "qronos", "adaround"];

/// Replaces a level by what it stands for, and returns what is to be said of it.
///
/// # Errors
/// Scales or algorithms beside a level. What else is wrong with a job is for its plan to say.
pub fn settle(job: &mut Job, level: QualityLevel) -> Result<Option<String>, Error> {
    // What cannot be read is for the plan to say.
    let Ok(settings) = recipe::settings(job) else { return Ok(None) };
    let given = [
        (!settings.algorithm.is_empty(), "an algorithm"),
        (settings.weight_method.is_some(), "a method for the scales of weights"),
        (job.recipe.graph.auto, "‹auto›"),
    ];
    if let Some(option) = first_given(&given) {
        let message = format!("‹quality› {level} chooses scales and algorithms, and {option} is given too");
        let failure = Error::new(ErrorKind::Usage, message);
        return Err(failure.with_remedies(vec![Remedy::text("leave one of them out")]));
    }
    let Ok(Resolved { recipe, .. }) = settings.resolve() else { return Ok(None) };
    let choice = choose(level, &recipe);
    job.recipe.scales = choice.scales;
    job.recipe.algorithm = choice.algorithms.iter().map(|name| (*name).to_owned()).collect();
    Ok(Some(format!("‹quality› {level} is {choice}")))
}

/// Scales and algorithms for the weights and the layout of a recipe.
fn choose(level: QualityLevel, recipe: &Recipe) -> QualityChoice {
    let bits = recipe.weight.element.integer_bits();
    let is_narrow = bits.is_some_and(|bits| bits <= MOST_BITS);
    let algorithms: &[&str] = match (recipe.layout, level, bits) {
        (Layout::Float(_) | Layout::Dynamic, ..) | (_, _, None) => &[],
        // Without it, filters of very different sizes leave nothing of some networks.
        (Layout::Qdq | Layout::QOperator, QualityLevel::Fast, _) => &["cle"],
        (Layout::MatMulNBits { .. }, QualityLevel::Fast, _) => &[],
        // Activations in float: their outliers are nothing but scales of weights.
        (Layout::MatMulNBits { .. }, ..) if is_narrow => &["awq", "gptq"],
        (Layout::MatMulNBits { .. }, ..) => &[],
        (Layout::Qdq | Layout::QOperator, QualityLevel::Balanced, _) if is_narrow => {
            &["cle", "smoothquant", "qronos", "bias-correction"]
        }
        (Layout::Qdq | Layout::QOperator, _, _) if is_narrow => {
            &["cle", "smoothquant", "adaround", "autoround", "bias-correction"]
        }
        (Layout::Qdq | Layout::QOperator, QualityLevel::Balanced, _) => &["cle", "smoothquant", "bias-correction"],
        (Layout::Qdq | Layout::QOperator, ..) => &["cle", "smoothquant", "gptq", "bias-correction"],
    };
    // Bounds for each channel double the time of MobileNet V2 in ONNX Runtime, and scales per channel gain as much.
    let kept_clips =
        |name: &&'static str| if *name == "cle" && recipe.weight.per_channel { "cle:clip=keep" } else { name };
    // A preset such as INT8_CNN_ACCURATE chooses codes itself, which is done once.
    let is_left = |name: &&&str| !(recipe.algorithms.choose_codes() && ROUNDINGS.contains(name));
    let algorithms: Vec<_> = algorithms.iter().filter(is_left).map(kept_clips).collect();
    let is_searched = is_narrow
        && level != QualityLevel::Fast
        && !algorithms.is_empty()
        && !matches!(recipe.layout, Layout::MatMulNBits { .. });
    let scales = is_searched.then_some(ObserverRef::SEARCH);
    QualityChoice { scales, algorithms, fill_up: None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvant_onnx::element::Element;
    use kvant_onnx::preset::Preset;

    fn chosen(preset: &str, weight: Option<Element>, level: QualityLevel) -> String {
        let mut recipe = Preset::find(preset).unwrap().recipe();
        recipe.weight.element = weight.unwrap_or(recipe.weight.element);
        choose(level, &recipe).to_string()
    }

    #[test]
    fn levels_follow_bits_and_layout() {
        use QualityLevel::{Balanced, Best, Fast};
        assert_eq!(chosen("A8W8", Some(Element::Int4), Fast), "cle");
        assert_eq!(chosen("MATMUL_NBITS", None, Fast), "rounding to nearest");
        assert_eq!(chosen("A8W8", None, Balanced), "cle,smoothquant,bias-correction");
        let narrow = chosen("A8W8", Some(Element::Int4), Balanced);
        assert_eq!(narrow, "cle,smoothquant,qronos,bias-correction with searched scales");
        assert!(chosen("A8W8", Some(Element::UInt4), Best).contains("autoround"));
        assert_eq!(chosen("A8W4", None, Fast), "cle:clip=keep");
        assert_eq!(chosen("INT8_CNN_ACCURATE", None, Best), "cle,smoothquant,bias-correction");
        assert_eq!(chosen("MATMUL_NBITS", None, Best), "awq,gptq");
        assert_eq!(chosen("INT8_DYNAMIC_QUANT", None, Best), "rounding to nearest");
        assert_eq!(chosen("FP16_MODEL", None, Best), "rounding to nearest");
    }
}
