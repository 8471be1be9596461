//! What is said of a prepared model before the work.

use kvant_quant::counts::{number, number_are};

use super::Prepared;
use crate::algorithm::Algorithm;
use crate::element::Element;
use crate::placement::Skipped;
use crate::recipe::{FloatType, Form, Layout, Override, TensorScheme};
use crate::writing::float16;

impl Prepared {
    /// Which activations an override gives a scale for each channel in vain.
    fn keeps_one_scale(&self, said: &Override) -> Option<String> {
        let activations = self.placement.activations.iter().filter(|_| said.per_channel == Some(true));
        let kept =
            activations.filter(|(name, a)| !said.of_layers && said.tensors.matches(name) && a.channels.is_none());
        let kept: Vec<&String> = kept.map(|(name, _)| name).collect();
        let first = kept.first()?.escape_debug();
        let more =
            if kept.len() > 1 { format!(" and {} more tensors keep", kept.len() - 1) } else { " keeps".to_owned() };
        Some(format!(
            "‹override› {}: `{first}`{more} one scale: an operator that reads or writes it supports only one, or its channels are unknown",
            said.tensors.pattern().escape_debug()
        ))
    }

    /// Notices for the user before the work.
    pub fn notices(&self) -> Vec<String> {
        let blocks = |scheme: &TensorScheme| matches!(scheme.element, Element::Block(_));
        let products = self.recipe.products.iter().flat_map(|products| [&products.activation, &products.weight]);
        let plug_in = self.recipe.activation.iter().chain([&self.recipe.weight]).chain(products).any(blocks)
            || self.recipe.form == Form::Quark;
        let mut notices: Vec<String> = self.recipe.notes.iter().chain(&self.unmatched).cloned().collect();
        notices.extend(self.about_ranges());
        let equalizes = |algorithm: &Algorithm| matches!(algorithm, Algorithm::Equalization(_));
        if self.recipe.algorithms.iter().any(equalizes) && self.equalized.is_empty() {
            notices.push("no two layers of the model can be equalized".to_owned());
        }
        if self.recipe.algorithms.iter().any(|algorithm| matches!(algorithm, Algorithm::Rotate(_))) {
            notices.extend(self.rotations.notice());
        }
        if let [first, more @ ..] = &self.fixed_inputs[..] {
            let (more, are) = match more.len() {
                0 => (String::new(), "is"),
                count => (format!(" and {}", number(count, "more input")), "are"),
            };
            let first = first.escape_debug();
            notices
                .push(format!("`{first}`{more}, which had a default among the constants, {are} no input any longer"));
        }
        notices.extend(self.coarse_weights());
        notices.extend(self.recipe.overrides.iter().filter_map(|said| self.keeps_one_scale(said)));
        if self.placement.activations.values().any(|a| a.channels.is_some()) {
            notices.push(
                "scales for each channel of an activation are computed in float: no integer kernel takes them"
                    .to_owned(),
            );
        }
        let is_float8 = |a: &TensorScheme| a.element.is_float8();
        if self.recipe.activation.as_ref().is_some_and(is_float8) {
            notices.push(
                "onnxruntime opens 8-bit floats only with its graph optimizations switched off (ORT_DISABLE_ALL)"
                    .to_owned(),
            );
        }
        if plug_in {
            notices.push(
                "the model will use operators of com.amd.quark: it runs only where Quark's library is loaded"
                    .to_owned(),
            );
        }
        notices.extend(self.newer_opset());
        if self.recipe.layout == Layout::Float(FloatType::BFloat16) {
            notices.push(
                "ONNX Runtime's CPU kernels do not support bfloat16: the model will run on other devices only"
                    .to_owned(),
            );
        }
        notices
    }

    /// What is said of the ranges of a file.
    fn about_ranges(&self) -> Vec<String> {
        let given = &self.placement.given;
        let missing: Vec<String> = self.missing_ranges().into_iter().map(str::to_owned).collect();
        let said = |tensors: &[String], kind: &str, what: &str| {
            let first = tensors.first()?.escape_debug();
            Some(format!("‹ranges›: {}, `{first}` for one, {what}", number(tensors.len(), kind)))
        };
        [
            said(&missing, "activation", "without a range in the file: found on data"),
            said(
                &given.rescaled,
                "activation",
                "with other codes in the file: its range is kept, and the scale is new",
            ),
            said(
                &given.unused,
                "constant",
                "with other codes or channels in the file: its scales follow from its values",
            ),
        ]
        .into_iter()
        .flatten()
        .collect()
    }

    /// The opset that would convert nodes that this one leaves in f32.
    fn newer_opset(&self) -> Option<String> {
        let Layout::Float(to) = self.recipe.layout else { return None };
        let is_left = |skipped: &&Skipped| skipped.reason == float16::OF_NEWER_OPSET;
        let left = self.placement.skipped.iter().filter(is_left).count();
        let opset = float16::better_opset(&self.model, to).filter(|_| left > 0)?;
        Some(format!(
            "{} computed in float32, which ONNX has in {} in newer opsets only: export the model with opset {opset} to convert more",
            number_are(left, "node"),
            to.name()
        ))
    }

    /// What is said of weights of few bits with one scale for all of a tensor.
    fn coarse_weights(&self) -> Option<String> {
        let weight = &self.recipe.weight;
        let is_placed = matches!(self.recipe.layout, Layout::Qdq | Layout::QOperator);
        let is_coarse = matches!(weight.element, Element::Int4 | Element::UInt4) && !weight.per_channel && is_placed;
        let is_used = self.placement.weights.values().any(|w| w.axis.is_none() && w.scheme.element == weight.element);
        (is_coarse && is_used).then(|| {
            let element = weight.element;
            format!(
                "`{element}` gives each weight a single scale, which costs accuracy: ‹per-channel› gives each output channel its own, and \
                 ‹scheme› {element}:g128 each block of a matrix"
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use crate::error::QuantizeError;
    use crate::graph::node;
    use crate::preset::Preset;
    use crate::quantize::prepare;
    use crate::test_models::{floats, model, typed};

    #[test]
    fn few_bits_with_one_scale_for_a_weight_are_noted() {
        let weights: Vec<f32> = (0..64).map(|at| at as f32 / 64.0 - 0.5).collect();
        let mut made =
            model(21, vec![node("MatMul", "m", &["x", "w"], &["y"])], vec![floats("w", &[8, 8], &weights)], &[], &[]);
        let graph = made.graph.as_mut().unwrap();
        (graph.input, graph.output) = (vec![typed("x", &[1, 8])], vec![typed("y", &[1, 8])]);
        let noted = |per_channel: bool| {
            let mut recipe = Preset::find("A8W4").unwrap().recipe();
            recipe.weight.per_channel = per_channel;
            let notices = prepare(made.clone(), recipe.clone(), &recipe.passes(), None).unwrap().notices();
            notices.iter().any(|notice| notice.contains("`int4` gives each weight a single scale"))
        };
        assert!(noted(false) && !noted(true));
    }
    #[test]
    fn opset_that_would_convert_more_is_noted() {
        let of = |opset: i64, nodes| {
            let mut made = model(opset, nodes, vec![floats("w", &[4, 4], &[0.5; 16])], &[], &[]);
            let graph = made.graph.as_mut().unwrap();
            (graph.input, graph.output) = (vec![typed("x", &[1, 4])], vec![typed("y", &[1, 4])]);
            let recipe = Preset::find("BF16_MODEL").unwrap().recipe();
            prepare(made, recipe.clone(), &recipe.passes(), None)
        };
        let nodes = || vec![node("MatMul", "m", &["x", "w"], &["h"]), node("Elu", "e", &["h"], &["y"])];
        let noted = |opset| of(opset, nodes()).unwrap().notices().iter().any(|said| said.contains("with opset 22"));
        assert!(noted(17) && !noted(22));
        let refused = of(17, vec![node("Elu", "e", &["x"], &["y"])]).unwrap_err();
        assert!(
            matches!(&refused, QuantizeError::NothingToDo { .. }) && refused.to_string().contains("newer opsets"),
            "{refused}"
        );
    }
}
