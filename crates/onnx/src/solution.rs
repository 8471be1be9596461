//! Scales and zero points of every quantized tensor of a graph: from observed ranges, weights and the placement.

pub mod bias_scales;
mod pools;

pub(crate) use pools::{averaged, fits_kernel, unfit_pools};

use std::collections::BTreeMap;

use half::f16;
use kvant_container::onnx::{GraphProto, Spill, TensorProto, shape, tensor_bytes};

use crate::block_map::BlockMap;
use crate::calibration_method::{WeightMethod, weighed_parameters, weight_parameters};
use crate::element::Element;
use crate::error::QuantizeError;
use crate::graph::Index;
use crate::placement::{Bias, Placement, Weight};
use crate::quantization::{Affine, Range, ScaleKind, ZERO, affine};
use crate::recipe::{Align, TensorScheme};

/// Scale and zero point by tensor.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Solution {
    /// Of activations with one scale; those with a provider have the provider's.
    pub activations: BTreeMap<String, Affine>,
    /// Of activations with a scale for each channel.
    pub channels: BTreeMap<String, Vec<Affine>>,
    /// Of constants, one for each channel.
    pub weights: BTreeMap<String, Vec<Affine>>,
    /// The blocks of constants whose parameters are those of blocks, and the type of their codes.
    pub blocks: BTreeMap<String, (BlockMap, Element)>,
    /// Codes of constants that an algorithm chose; the others have the nearest.
    pub codes: BTreeMap<String, Vec<i32>>,
}

/// Ranges of activations by tensor, and of those of their channels that each have one.
#[derive(Debug, Clone, Default)]
pub struct Ranges {
    /// Of all values of a tensor.
    pub whole: BTreeMap<String, Range>,
    /// Of each channel.
    pub channels: BTreeMap<String, Vec<Range>>,
}

impl Weight {
    /// The way to this weight's codes.
    pub fn method(&self) -> WeightMethod {
        self.scheme.into()
    }
}

impl From<TensorScheme> for WeightMethod {
    fn from(scheme: TensorScheme) -> WeightMethod {
        let TensorScheme { element, symmetric, scale, method, reduce_range, full_range, .. } = scheme;
        WeightMethod { element, symmetric, scale, method, reduce_range, full_range }
    }
}

/// The f32 values of a constant.
pub fn values(tensor: &TensorProto) -> Result<Vec<f32>, QuantizeError> {
    let bytes = tensor_bytes(tensor).map_err(QuantizeError::Model)?;
    Ok(bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect())
}

/// The ratio of a Gemm's factors of its product and its bias: codes of both are added.
pub fn unit(product: &kvant_container::onnx::NodeProto) -> f32 {
    let factor = |name: &str| crate::graph::float_attribute(product, name).filter(|&f| f != 0.0).unwrap_or(1.0).abs();
    if product.op_type() == "Gemm" { factor("alpha") / factor("beta") } else { 1.0 }
}

/// Returns whether a bias is that of a product whose data have 8 bits.
fn reads_bytes(placement: &Placement, bias: &Bias) -> bool {
    let activation = placement.activations.get(&bias.input).map(|a| a.scheme.element);
    let element = activation.or_else(|| placement.weights.get(&bias.input).map(|w| w.scheme.element));
    element.and_then(Element::integer_bits).is_some_and(|bits| bits <= 8)
}

/// Solves for all tensors.
///
/// `ranges` holds the observed ranges; `importance` has how much the error of each element of a weight counts, where that is known; `spill`
/// checks for cancellation. Errors: a tensor that must have a range and has
/// none, NaN in a weight.
pub fn solve(
    graph: &GraphProto,
    placement: &Placement,
    ranges: &Ranges,
    importance: &dyn Fn(&GraphProto, &str) -> Option<Vec<f32>>,
    spill: Option<&Spill>,
) -> Result<Solution, QuantizeError> {
    let index = Index::new(graph);
    let mut solution = Solution::default();
    for (name, weight) in &placement.weights {
        spill.map_or(Ok(()), Spill::check)?;
        let Some(tensor) = index.constant(graph, name) else { continue };
        let importance = importance(graph, name);
        solution.weights.insert(name.clone(), solve_weight(name, tensor, importance.as_deref(), weight)?);
    }
    for (name, activation) in placement.activations.iter().filter(|(_, a)| a.provider.is_none()) {
        let s = activation.scheme;
        let made = |range: Range| affine(range, s.element, s.symmetric, s.scale);
        match (&activation.given[..], activation.channels) {
            ([given], None) => {
                solution.activations.insert(name.clone(), *given);
                continue;
            }
            (given, Some(_)) if !given.is_empty() => {
                solution.channels.insert(name.clone(), given.to_vec());
                continue;
            }
            _ => {}
        }
        if let Some(channels) = ranges.channels.get(name).filter(|_| activation.channels.is_some()) {
            solution.channels.insert(name.clone(), channels.iter().copied().map(made).collect());
            continue;
        }
        let observed = activation.range.or_else(|| ranges.whole.get(name).copied());
        let needed = s.element.has_range();
        if needed && (observed.is_none() || activation.channels.is_some()) {
            return Err(QuantizeError::NoRange { tensor: name.clone() });
        }
        solution.activations.insert(name.clone(), made(observed.unwrap_or(ZERO)));
    }
    solution.follow_providers(placement);
    Ok(solution)
}

/// Refuses a weight with NaN.
pub(crate) fn refuse_nan(name: &str, values: &[f32]) -> Result<(), QuantizeError> {
    refuse(name, values, f32::is_nan)
}

/// Refuses a weight with NaN or infinite values.
pub(crate) fn refuse_not_finite(name: &str, values: &[f32]) -> Result<(), QuantizeError> {
    refuse(name, values, |value| !value.is_finite())
}

/// Refuses a weight with values that float16 does not hold.
pub(crate) fn refuse_beyond_float16(name: &str, values: &[f32]) -> Result<(), QuantizeError> {
    refuse_not_finite(name, values)?;
    let found = values.iter().position(|value| value.abs() > f16::MAX.to_f32());
    let beyond =
        |position: usize| QuantizeError::BeyondFloat16 { tensor: name.to_owned(), value: values[position], position };
    found.map_or(Ok(()), |position| Err(beyond(position)))
}

fn refuse(name: &str, values: &[f32], wrong: impl Fn(f32) -> bool) -> Result<(), QuantizeError> {
    match values.iter().position(|&value| wrong(value)) {
        Some(position) => {
            let value = if values[position].is_nan() { "NaN" } else { "an infinite value" };
            Err(QuantizeError::NotFinite { tensor: name.to_owned(), value, position })
        }
        None => Ok(()),
    }
}

fn solve_weight(
    name: &str,
    tensor: &TensorProto,
    importance: Option<&[f32]>,
    weight: &Weight,
) -> Result<Vec<Affine>, QuantizeError> {
    let values = values(tensor)?;
    refuse_nan(name, &values)?;
    if !weight.given.is_empty() {
        return Ok(weight.given.clone());
    }
    if let Some(range) = weight.range {
        let s = weight.scheme;
        return Ok(vec![affine(range, s.element, s.symmetric, s.scale)]);
    }
    let shape = shape(tensor).map_err(QuantizeError::Model)?;
    Ok(match importance.filter(|importance| importance.len() == values.len()) {
        Some(importance) => weighed_parameters(&values, importance, &shape, weight.axis, weight.method()),
        None => weight_parameters(&values, &shape, weight.axis, weight.method()),
    })
}

impl Solution {
    /// Raises the scales of weights so that every bias has int32 codes: where `s_input * s_weight` is so small that
    /// `bias / (s_input * s_weight)` leaves int32. The weight's codes are computed from the raised scale. Biases that stay in
    /// float count as well, because ONNX Runtime makes such codes of them.
    ///
    /// Returns the weights whose scale was raised. Biases that still do not fit: [`Self::wide_biases`].
    pub fn make_room_for_biases(
        &mut self,
        graph: &GraphProto,
        placement: &Placement,
    ) -> Result<Vec<String>, QuantizeError> {
        let index = Index::new(graph);
        let mut raised = Vec::new();
        for (name, bias) in placement.biases.iter().chain(&placement.float_biases) {
            let Some(least) = self.least_scales(graph, &index, name, bias)? else { continue };
            let powers = placement.weights.get(&bias.weight).is_some_and(|w| w.scheme.scale == ScaleKind::PowerOfTwo);
            let Some(weights) = self.weights.get_mut(&bias.weight) else { continue };
            let of_bytes = reads_bytes(placement, bias);
            let is_wanted = bias.element == Element::Int32 && (of_bytes || !placement.float_biases.contains_key(name));
            if is_wanted && bias_scales::raise(weights, &least, of_bytes, powers) {
                raised.push(bias.weight.clone());
            }
        }
        raised.dedup();
        Ok(raised)
    }

    /// Returns whether the biases of bytes' products with a weight still have int32 codes if its scales shrink to a share of themselves.
    pub(crate) fn has_room_for_biases(
        &self,
        graph: &GraphProto,
        placement: &Placement,
        weight: &str,
        share: f32,
    ) -> Result<bool, QuantizeError> {
        let index = Index::new(graph);
        let biases = placement.biases.iter().chain(&placement.float_biases);
        for (name, bias) in biases.filter(|(_, bias)| bias.weight == weight && reads_bytes(placement, bias)) {
            let Some(least) = self.least_scales(graph, &index, name, bias)? else { continue };
            let scales = self.weights.get(weight).into_iter().flatten();
            let mut shrunk: Vec<Affine> = scales.map(|a| Affine { scale: a.scale * share, ..*a }).collect();
            if bias_scales::raise(&mut shrunk, &least, true, false) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The biases that int32 codes with the scale of the product cannot hold, where a product reads more than 8 bits. ONNX
    /// Runtime would cut them, those in float too.
    pub fn wide_biases(&self, graph: &GraphProto, placement: &Placement) -> Result<Vec<String>, QuantizeError> {
        let index = Index::new(graph);
        let mut wide = Vec::new();
        for (name, bias) in placement.biases.iter().chain(&placement.float_biases) {
            if bias.element != Element::Int32 || reads_bytes(placement, bias) {
                continue;
            }
            let Some(least) = self.least_scales(graph, &index, name, bias)? else { continue };
            let weights = self.weights.get(&bias.weight).map_or(&[][..], Vec::as_slice);
            if bias_scales::is_wide(weights, &least) {
                wide.push(name.clone());
            }
        }
        Ok(wide)
    }

    /// The least scales of a product's weight with which a bias has int32 codes, one for each scale that the weight has.
    fn least_scales(
        &self,
        graph: &GraphProto,
        index: &Index,
        name: &str,
        bias: &Bias,
    ) -> Result<Option<Vec<f64>>, QuantizeError> {
        let input = self.activations.get(&bias.input).or_else(|| self.weights.get(&bias.input).and_then(|w| w.first()));
        let (Some(input), Some(weights), Some(tensor)) =
            (input, self.weights.get(&bias.weight), index.constant(graph, name))
        else {
            return Ok(None);
        };
        let values = values(tensor)?;
        let unit = graph.node.get(bias.node).map_or(1.0, |node| f64::from(unit(node)));
        let magnitudes = bias_scales::magnitudes(&values, weights.len());
        Ok(Some(bias_scales::least_weight_scales(&magnitudes, f64::from(input.scale) * unit)))
    }

    /// Makes the scales at joints equal: those of Concat and Pad the largest of inputs and output, so that nothing is cut; the
    /// output of pooling and Slice gets the input's. Where an NPU's positions are refined, that does more.
    pub fn align(&mut self, graph: &GraphProto, placement: &Placement, align: Align) {
        for node in &graph.node {
            let (wanted, widest) = match node.op_type() {
                "Concat" => (align.concat, true),
                "Pad" => (align.pad, true),
                "MaxPool" | "AveragePool" | "GlobalAveragePool" => (align.pool, false),
                "Slice" => (align.slice, false),
                _ => continue,
            };
            let tensors: Vec<&String> = node.input.iter().chain(&node.output).collect();
            let affines = || tensors.iter().filter_map(|name| self.activations.get(*name)).copied();
            let chosen = match widest {
                true => affines().reduce(|a, b| if b.scale > a.scale { b } else { a }),
                false => affines().next(),
            };
            // One zero point fits all only where it is the same for all.
            let alike = affines().all(|a| chosen.is_some_and(|c| c.zero_point == a.zero_point));
            let Some(affine) = chosen.filter(|_| wanted && (alike || !widest)) else { continue };
            tensors.iter().for_each(|name| self.set(placement, name, affine));
        }
        self.follow_providers(placement);
    }

    /// Sets the parameters of the tensor that a tensor has its own from.
    fn set(&mut self, placement: &Placement, name: &str, affine: Affine) {
        let provider = placement.activations.get(name).and_then(|a| a.provider.as_deref());
        if let Some(own) = self.activations.get_mut(provider.unwrap_or(name)) {
            *own = affine;
        }
    }

    /// Gives the tensors that share a scale the one of their provider.
    pub fn follow_providers(&mut self, placement: &Placement) {
        for (name, activation) in &placement.activations {
            let Some(provider) = &activation.provider else { continue };
            let found = self.activations.get(provider).or_else(|| self.weights.get(provider).and_then(|w| w.first()));
            if let Some(&affine) = found {
                self.activations.insert(name.clone(), affine);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use kvant_container::onnx::{DataType, ModelProto, data_type, tensor_bytes};
    use kvant_quant::glob::Glob;

    use crate::calibration::Observed;
    use crate::graph::{Index, node};
    use crate::preset::Preset;
    use crate::quantization::Range;
    use crate::quantize::prepare;
    use crate::recipe::{BiasKind, Override, Recipe};
    use crate::report::Report;
    use crate::solution::values;
    use crate::test_models::{floats, model, typed};

    /// A convolution of data from -0.06 to 0.06 with weights up to 1, and its bias.
    fn made(recipe: Recipe, bias: [f32; 2]) -> (ModelProto, Report) {
        let constants = vec![floats("w", &[2, 1, 1, 1], &[1.0, -0.5]), floats("b", &[2], &bias)];
        let mut float = model(17, vec![node("Conv", "conv", &["x", "w", "b"], &["y"])], constants, &[], &[]);
        let graph = float.graph.as_mut().unwrap();
        (graph.input, graph.output) = (vec![typed("x", &[1, 1, 2, 2])], vec![typed("y", &[1, 2, 2, 2])]);
        let mut observed = Observed { samples: 1, ..Observed::default() };
        let largest = bias[0].abs().max(bias[1].abs()) + 0.06;
        for (name, high) in [("x", 0.06), ("y", largest)] {
            observed.ranges.whole.insert(name.to_owned(), Range { min: -high, max: high });
        }
        finished(float, recipe, &observed)
    }

    /// A graph quantized with ranges that were observed elsewhere.
    fn finished(float: ModelProto, recipe: Recipe, observed: &Observed) -> (ModelProto, Report) {
        let passes = recipe.passes();
        let prepared = prepare(float, recipe, &passes, None).unwrap();
        prepared.transformed(None, None).unwrap().finish_with(observed, None, None).unwrap()
    }

    fn recipe(preset: &str, bias: BiasKind) -> Recipe {
        Recipe { bias, ..Preset::find(preset).unwrap().recipe() }
    }

    fn numbers(model: &ModelProto, name: &str) -> Vec<f32> {
        values(Index::new(&model.graph).constant(&model.graph, name).unwrap()).unwrap()
    }

    /// The type of a bias's codes and their values.
    fn bias(model: &ModelProto) -> (DataType, Vec<f64>) {
        let codes = Index::new(&model.graph).constant(&model.graph, "b_quantized").unwrap().clone();
        let scales = numbers(model, "b_quantized_scale");
        let bytes = tensor_bytes(&codes).unwrap();
        let codes_of: Vec<i64> = match data_type(&codes) {
            DataType::INT16 => bytes.chunks(2).map(|b| i16::from_le_bytes([b[0], b[1]]).into()).collect(),
            _ => bytes.chunks(4).map(|b| i32::from_le_bytes([b[0], b[1], b[2], b[3]]).into()).collect(),
        };
        let value = |(i, code): (usize, i64)| code as f64 * f64::from(scales[i % scales.len()]);
        (data_type(&codes), codes_of.into_iter().enumerate().map(value).collect())
    }

    fn is_near(found: &[f64], expected: [f32; 2]) -> bool {
        found.iter().zip(expected).all(|(f, e)| (f - f64::from(e)).abs() < 1e-4 * 3.0)
    }

    #[test]
    fn biases_beyond_int32_get_16_bit_codes() {
        let kept = Override { float: true, ..Override::of(Glob::literal("b")) };
        for preset in ["A16W16", "INT16_CNN"] {
            for (kind, overrides) in
                [(BiasKind::Int32, vec![]), (BiasKind::Float, vec![]), (BiasKind::Int32, vec![kept.clone()])]
            {
                let (made, report) = made(Recipe { overrides, ..recipe(preset, kind) }, [3.0, -0.25]);
                let (element, found) = bias(&made);
                assert_eq!((element, &report.wide_biases[..]), (DataType::INT16, &["b".to_owned()][..]), "{preset}");
                assert!(is_near(&found, [3.0, -0.25]) && report.adjusted.is_empty(), "{preset}: {found:?}");
                let stored = report.tensors.iter().find(|tensor| tensor.name == "b").unwrap();
                assert_eq!(stored.element, "int16");
            }
        }
    }

    #[test]
    fn nearly_fitting_biases_raise_a_scale() {
        let (made_, report) = made(recipe("A16W16", BiasKind::Int32), [0.15, 0.1]);
        let (element, found) = bias(&made_);
        assert_eq!((element, &report.adjusted[..]), (DataType::INT32, &["w".to_owned()][..]));
        assert!(is_near(&found, [0.15, 0.1]), "{found:?}");
        let (made_, report) = made(recipe("A16W16", BiasKind::Int32), [0.05, 0.01]);
        assert_eq!((bias(&made_).0, report.adjusted.len()), (DataType::INT32, 0));
        let (made_, report) = made(recipe("A16W16", BiasKind::Float), [0.05, 0.01]);
        assert_eq!((numbers(&made_, "b"), report.wide_biases.len()), (vec![0.05, 0.01], 0), "float is float");
    }

    #[test]
    fn byte_activations_raise_a_scale_for_any_bias() {
        for kind in [BiasKind::Int32, BiasKind::Float] {
            let (made, report) = made(recipe("A8W8", kind), [9e4, 1.0]);
            assert_eq!((&report.adjusted[..], report.wide_biases.len()), (&["w".to_owned()][..], 0));
            // The product that ONNX Runtime computes, regardless of the graph.
            let product = f64::from(numbers(&made, "x_scale")[0]) * f64::from(numbers(&made, "w_scale")[0]);
            assert!(9e4 / product < f64::from(i32::MAX), "{kind:?}: {product:e}");
        }
    }

    #[test]
    fn pools_with_unsupported_scale_ratios_stay_float() {
        let made = |high: f32| {
            let nodes = vec![
                node("Relu", "relu", &["x"], &["r"]),
                node("GlobalAveragePool", "pool", &["r"], &["p"]),
                node("Flatten", "flat", &["p"], &["f"]),
                node("Gemm", "gemm", &["f", "w", "b"], &["y"]),
            ];
            let constants = vec![floats("w", &[2, 2], &[1.0; 4]), floats("b", &[2], &[1.0; 2])];
            let mut float = model(17, nodes, constants, &[], &[]);
            let graph = float.graph.as_mut().unwrap();
            (graph.input, graph.output) = (vec![typed("x", &[1, 2, 2, 2])], vec![typed("y", &[1, 2])]);
            let mut observed = Observed { samples: 1, ..Observed::default() };
            for (name, high) in [("x", 1.0), ("r", 1.0), ("p", high), ("f", high), ("y", 1.0)] {
                observed.ranges.whole.insert(name.to_owned(), Range { min: -high, max: high });
            }
            finished(float, recipe("A8W8", BiasKind::Int32), &observed)
        };
        let quantizes = |model: &ModelProto, name: &str| {
            model.graph.node.iter().any(|node| node.op_type() == "QuantizeLinear" && node.input[0] == name)
        };
        let (good, report) = made(1.0 / 1000.0);
        assert!(quantizes(&good, "p") && report.left_in_float.is_empty(), "{:?}", report.left_in_float);
        let (made, report) = made(1.0 / 1100.0);
        assert!(!quantizes(&made, "p") && quantizes(&made, "r"));
        assert!(report.left_in_float.iter().any(|(name, reason)| name == "p" && reason.contains("kernel")));
        assert!(crate::verify::runs(&crate::verify::verify(&made)) && !crate::verify::fails_in_a_run(&made));
    }
}
