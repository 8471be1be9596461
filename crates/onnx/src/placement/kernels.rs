//! Types of data and weights of which ONNX Runtime makes integer kernels that it does not have: it refuses the graph then, whatever it
//! computes. Measured with 1.31.1: Conv, Gemm and MatMul with all integer types of both, and all operators that are ever quantized
//! with data of 4 and 16 bits.

use kvant_container::onnx::{GraphProto, NodeProto};

use super::placed::Placement;
use crate::element::Element;
use crate::error::QuantizeError;
use crate::graph::{Index, called, is};
use crate::recipe::{Form, Layout, Recipe};

/// Refuses operators whose types have no kernel.
///
/// # Errors
/// The first such operator.
pub fn check(recipe: &Recipe, placement: &Placement, graph: &GraphProto) -> Result<(), QuantizeError> {
    if recipe.layout != Layout::Qdq {
        return Ok(());
    }
    let pairs = Pairs { graph, index: Index::new(graph), placement, form: recipe.form };
    match graph.node.iter().find_map(|node| Some((node, pairs.without_kernel(node)?))) {
        Some((node, (activation, weight))) => Err(QuantizeError::NoKernel {
            operator: node.op_type().to_owned(),
            node: called(node).to_owned(),
            types: match weight {
                Some(weight) => format!("{activation} data and {weight} weights"),
                None => format!("{activation} data"),
            },
            way_out: match weight {
                Some(Element::Int32) => WIDE_WEIGHTS,
                Some(_) => NARROW_DATA,
                None => NARROW_CODES,
            },
        }),
        None => Ok(()),
    }
}

/// The remedies.
const WIDE_WEIGHTS: &str =
    "choose weights of 4, 8 or 16 bits (‹weight› int16), or int16 activations (‹activation› int16)";
const NARROW_DATA: &str = "choose weights of 4 bits too (‹weight› int4), or activations of 8 (‹activation› int8); ‹exclude-op-types› Conv leaves convolutions in float";
const NARROW_CODES: &str =
    "choose activations of 8 or 16 bits (‹activation› int8), or such for its tensors with ‹override› 'NAME=int8'";

struct Pairs<'g> {
    graph: &'g GraphProto,
    index: Index,
    placement: &'g Placement,
    form: Form,
}

impl Pairs<'_> {
    /// The types of data and weight that ONNX Runtime would make a kernel of which there is not.
    fn without_kernel(&self, node: &NodeProto) -> Option<(Element, Option<Element>)> {
        if is(node, "MaxPool") || is(node, "ReduceMax") || is(node, "Clip") {
            return self.moved(node).map(|element| (element, None));
        }
        let convolution = is(node, "Conv");
        if !convolution && !is(node, "Gemm") && !is(node, "MatMul") {
            return None;
        }
        let weight = self.placement.weights.get(node.input.get(1)?)?.scheme.element;
        let data = self.bits(node.input.first()?)?;
        let fits = |bits: u32| data.integer_bits() == Some(bits) && self.makes(node, data);
        let refused = match weight.integer_bits()? {
            8 => convolution && fits(4),
            // Quark's own operators hold these.
            32 if self.form != Form::Quark => fits(8) || convolution && fits(4),
            _ => false,
        };
        refused.then_some((data, Some(weight)))
    }

    /// The type of 4 bits that an operator takes the largest of, or that is made of what it limits.
    fn moved(&self, node: &NodeProto) -> Option<Element> {
        let output = self.bits(node.output.first()?).filter(|element| element.integer_bits() == Some(4))?;
        let input = || self.bits(node.input.first()?);
        (is(node, "Clip") || input() == Some(output)).then_some(output)
    }

    fn bits(&self, tensor: &str) -> Option<Element> {
        self.placement.activations.get(tensor).map(|activation| activation.scheme.element)
    }

    /// Whether codes of a type stand behind a product, perhaps behind what limits it: it is left in float where they do not.
    fn makes(&self, node: &NodeProto, element: Element) -> bool {
        let Some(output) = node.output.first() else { return false };
        let clamp = self.index.only_consumer(output).map(|at| &self.graph.node[at]);
        let clamped = clamp.filter(|node| is(node, "Relu") || is(node, "Clip")).and_then(|node| node.output.first());
        [Some(output), clamped].into_iter().flatten().any(|name| self.bits(name) == Some(element))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::node;
    use crate::preset::Preset;
    use crate::quantize::prepare;
    use crate::test_models::{floats, model, typed};
    use kvant_container::onnx::{AttributeProto, AttributeType};

    /// Returns whether a network of an operator is refused with these types.
    fn refused(op: &str, activation: Element, weight: Element, form: Form) -> bool {
        let (shape, data): (&[usize], _) = match op {
            "Conv" => (&[3, 3, 1, 1], typed("x", &[1, 3, 8, 8])),
            _ => (&[3, 3], typed("x", &[1, 3])),
        };
        let nodes = vec![node(op, "product", &["x", "w"], &["a"]), node("Relu", "relu", &["a"], &["y"])];
        let mut model = model(17, nodes, vec![floats("w", shape, &[0.5; 9])], &[], &["y"]);
        model.graph.as_mut().unwrap().input = vec![data];
        let mut recipe = Preset::find("A8W8").unwrap().recipe();
        recipe.activation.as_mut().unwrap().element = activation;
        (recipe.weight.element, recipe.form) = (weight, form);
        let made = prepare(model, recipe.clone(), &recipe.passes(), None);
        assert!(matches!(made, Ok(_) | Err(QuantizeError::NoKernel { .. })), "{made:?}");
        made.is_err()
    }

    #[test]
    fn dtypes_without_kernels_are_refused() {
        use Element::*;
        for (op, activation, weight, expected) in [
            ("Conv", Int4, Int8, true),
            ("Conv", UInt4, UInt8, true),
            ("Conv", UInt4, UInt4, false),
            ("Conv", Int4, Int16, false),
            ("Gemm", Int4, Int8, false),
            ("MatMul", UInt4, UInt8, false),
            ("Conv", Int8, Int4, false),
            ("Conv", Int8, Int32, true),
            ("Gemm", UInt8, Int32, true),
            ("MatMul", Int8, Int32, true),
            ("MatMul", Int4, Int32, false),
            ("MatMul", Int16, Int32, false),
        ] {
            assert_eq!(refused(op, activation, weight, Form::Standard), expected, "{op} {activation} {weight}");
        }
        assert!(!refused("Gemm", Int8, Int32, Form::Quark));
    }

    #[test]
    fn int4_activations_are_not_pooled_or_clipped() {
        for (op, expected) in [("MaxPool", true), ("Clip", true), ("Relu", false)] {
            let inputs: &[&str] = if op == "Clip" { &["a", "low", "high"] } else { &["a"] };
            let mut second = node(op, "second", inputs, &["y"]);
            if op == "MaxPool" {
                second.attribute.push(AttributeProto {
                    name: Some("kernel_shape".to_owned()),
                    type_: Some(AttributeType::INTS.into()),
                    ints: vec![2, 2],
                    ..AttributeProto::default()
                });
            }
            let nodes = vec![node("Conv", "first", &["x", "w"], &["a"]), second];
            let ends = [floats("low", &[], &[0.0]), floats("high", &[], &[6.0])];
            let weights = ends.into_iter().chain([floats("w", &[3, 3, 1, 1], &[0.5; 9])]).collect();
            let mut model = model(17, nodes, weights, &[], &["y"]);
            model.graph.as_mut().unwrap().input = vec![typed("x", &[1, 3, 8, 8])];
            let mut recipe = Preset::find("A8W4").unwrap().recipe();
            let is_refused = |recipe: Recipe| {
                let made = prepare(model.clone(), recipe.clone(), &recipe.passes(), None);
                assert!(matches!(made, Ok(_) | Err(QuantizeError::NoKernel { .. })), "{op} {made:?}");
                made.is_err()
            };
            assert!(!is_refused(recipe.clone()), "{op}");
            recipe.activation.as_mut().unwrap().element = Element::Int4;
            assert_eq!(is_refused(recipe), expected, "{op}");
        }
    }
}
