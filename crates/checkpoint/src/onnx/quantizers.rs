//! Quantized activations as nodes: QuantizeLinear and DequantizeLinear for static scales, DynamicQuantizeLinear for those that are
//! found in each run. Which schemes have nodes, and which forms of weights onnxruntime takes beside them, was measured with
//! onnxruntime 1.31 on a CPU: it fuses a product whose two operands come out of DequantizeLinear into MatMulIntegerToFloat, whatever
//! their types, and then refuses fp8 and a scale for each feature.

use super::builder::{Attribute, Value};
use super::decoder::Writer;
use super::error::OnnxExportError;
use kvant_container::onnx::DataType;
use kvant_forward::forward::Projection;
use kvant_forward::forward::blueprint::Block;
use kvant_numeric::format::{Int, MiniFloat};
use kvant_quant::activation::ActivationQuantizer;
use kvant_quant::scheme::{
    ActivationScheme, AttentionScheme, Axis, FloatScale, Granularity, LayerScheme, TensorScheme, Timing, ZeroPoint,
};

/// What unsigned codes of a byte are more than signed ones.
const MIDDLE_OF_BYTE: i64 = 128;

/// How a scheme of activations is expressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Nodes {
    /// QuantizeLinear to codes of a type. Signed bytes are stored as unsigned ones, moved by half of the range: onnxruntime converts
    /// them itself on x86, and the conversion fails where a Reshape follows DequantizeLinear.
    Static { codes: DataType },
    /// DynamicQuantizeLinear, whose codes are unsigned bytes.
    Dynamic,
}

impl Nodes {
    /// The nodes of a scheme; `None` where there are none.
    pub(super) fn of(scheme: ActivationScheme) -> Option<Nodes> {
        let granularity = scheme.scheme.granularity()?;
        let has_axis = matches!(granularity, Granularity::Tensor | Granularity::Channel(Axis::Columns));
        match (scheme.timing, scheme.scheme) {
            (Timing::Static, TensorScheme::Int(int)) if has_axis && int.zero_point != ZeroPoint::Float => {
                let codes = match int.format {
                    Int::INT8 | Int::UINT8 => DataType::UINT8,
                    Int::INT16 => DataType::INT16,
                    Int::UINT16 => DataType::UINT16,
                    _ => return None,
                };
                Some(Nodes::Static { codes })
            }
            (Timing::Static, TensorScheme::Float(float)) if has_axis && matches!(float.scale, FloatScale::Plain(_)) => {
                let codes = match float.format {
                    MiniFloat::E4M3 => DataType::FLOAT8E4M3FN,
                    MiniFloat::E5M2 => DataType::FLOAT8E5M2,
                    _ => return None,
                };
                Some(Nodes::Static { codes })
            }
            // Signed codes with zero points are the unsigned ones, moved by half of the range.
            (Timing::Dynamic, TensorScheme::Int(int)) => {
                let is_byte = matches!(int.format, Int::INT8 | Int::UINT8);
                let fits = is_byte && granularity == Granularity::Tensor && int.zero_point == ZeroPoint::Integer;
                fits.then_some(Nodes::Dynamic)
            }
            _ => None,
        }
    }
}

/// Whether a graph can hold codes of weights, and quantize activations, as these schemes of layers and of attention do.
///
/// # Errors
/// [`OnnxExportError::Weight`] for weights of a scheme for evaluation only, [`OnnxExportError::Activations`] for the first activation
/// that has no nodes, [`OnnxExportError::Attention`] for quantized attention, whose keys and values the graph keeps in float.
pub fn check_schemes<'l>(
    layers: impl IntoIterator<Item = (&'l str, LayerScheme)>,
    attention: &AttentionScheme,
) -> Result<(), OnnxExportError> {
    for (layer, scheme) in layers {
        if scheme.weight.is_for_evaluation_only() {
            return Err(OnnxExportError::Weight { layer: layer.to_owned(), scheme: scheme.weight.to_string() });
        }
        for (side, scheme) in [("input", scheme.input), ("output", scheme.output)] {
            scheme.map_or(Ok(()), |scheme| nodes_of(layer, side, scheme).map(|_| ()))?;
        }
    }
    if attention.is_empty() { Ok(()) } else { Err(OnnxExportError::Attention) }
}

fn nodes_of(layer: &str, side: &'static str, scheme: ActivationScheme) -> Result<Nodes, OnnxExportError> {
    let refused = || OnnxExportError::Activations { layer: layer.to_owned(), side, scheme: scheme.to_string() };
    Nodes::of(scheme).ok_or_else(refused)
}

impl Writer<'_, '_> {
    /// Returns whether a layer of the graph reads or gives fp8.
    pub(super) fn quantizes_to_fp8(&self) -> bool {
        let is_fp8 = |quantizer: &ActivationQuantizer| matches!(quantizer.scheme().scheme, TensorScheme::Float(_));
        let mut layers = self.decoder.blueprint().blocks.iter().flat_map(Block::layers);
        layers
            .any(|layer| [self.input_quantizer(layer), self.output_quantizer(layer)].into_iter().flatten().any(is_fp8))
    }

    /// Refuses a checkpoint whose attention is quantized.
    pub(super) fn check_attention(&self) -> Result<(), OnnxExportError> {
        let quantizes = self.decoder.quantizes_attention() && !self.weights_only;
        if quantizes { Err(OnnxExportError::Attention) } else { Ok(()) }
    }

    /// What a layer reads, quantized and dequantized where the checkpoint says so.
    pub(super) fn quantized_input(&mut self, layer: &Projection, x: &Value) -> Result<Value, OnnxExportError> {
        match self.input_quantizer(layer).cloned() {
            Some(quantizer) => self.quantized(layer, "input", &quantizer, x),
            None => Ok(x.clone()),
        }
    }

    /// The same of what it gives.
    pub(super) fn quantized_output(&mut self, layer: &Projection, x: Value) -> Result<Value, OnnxExportError> {
        match self.output_quantizer(layer).cloned() {
            Some(quantizer) => self.quantized(layer, "output", &quantizer, &x),
            None => Ok(x),
        }
    }

    /// Whether onnxruntime multiplies the codes of a layer's input with 8-bit codes of its weight, if those come out of
    /// DequantizeLinear: where the input has 8-bit integers with one scale. Rounding behind the product keeps it in float.
    pub(super) fn multiplies_codes(&self, layer: &Projection) -> bool {
        let is_byte = |quantizer: &ActivationQuantizer| {
            let one = quantizer.scheme().scheme.granularity() == Some(Granularity::Tensor);
            let nodes = Nodes::of(quantizer.scheme()).filter(|_| one);
            matches!(nodes, Some(Nodes::Dynamic | Nodes::Static { codes: DataType::UINT8 }))
        };
        self.input_quantizer(layer).is_some_and(is_byte) && self.output_quantizer(layer).is_none()
    }

    /// Returns whether a layer's input or output is quantized.
    pub(super) fn has_quantizers(&self, layer: &Projection) -> bool {
        self.input_quantizer(layer).is_some() || self.output_quantizer(layer).is_some()
    }

    fn input_quantizer(&self, layer: &Projection) -> Option<&ActivationQuantizer> {
        let quantizers = self.decoder.quantizers().layer(&layer.module).filter(|_| !self.weights_only)?;
        quantizers.input.as_ref()
    }

    fn output_quantizer(&self, layer: &Projection) -> Option<&ActivationQuantizer> {
        let quantizers = self.decoder.quantizers().layer(&layer.module).filter(|_| !self.weights_only)?;
        quantizers.output.as_ref()
    }

    /// `x` quantized and dequantized. Layers that read the same with the same scale share the nodes.
    fn quantized(
        &mut self,
        layer: &Projection,
        side: &'static str,
        quantizer: &ActivationQuantizer,
        x: &Value,
    ) -> Result<Value, OnnxExportError> {
        let nodes = nodes_of(&layer.module, side, quantizer.scheme())?;
        let known = self.quantized.iter().rev().find(|(value, other, _)| value == x && other == quantizer);
        if let Some((.., out)) = known {
            return Ok(out.clone());
        }
        let out = match nodes {
            Nodes::Dynamic => {
                let [codes, scale, zero_point] = self.builder.nodes("DynamicQuantizeLinear", &[x], &[]);
                self.builder.node("DequantizeLinear", &[&codes, &scale, &zero_point], &[])
            }
            Nodes::Static { codes } => self.quantized_statically(codes, quantizer, x),
        };
        self.quantized.push((x.clone(), quantizer.clone(), out.clone()));
        Ok(out)
    }

    fn quantized_statically(&mut self, codes: DataType, quantizer: &ActivationQuantizer, x: &Value) -> Value {
        let parameters = quantizer.parameters();
        let (count, per_feature) = (parameters.scales.len(), parameters.scales.len() > 1);
        let shape = if per_feature { vec![count] } else { vec![] };
        let axis = [("axis", Attribute::Int(-1))];
        let attributes = if per_feature { &axis[..] } else { &[] };
        let wide = matches!(codes, DataType::INT16 | DataType::UINT16);
        let is_signed_byte = matches!(quantizer.scheme().scheme, TensorScheme::Int(int) if int.format == Int::INT8);
        let shift = if is_signed_byte { MIDDLE_OF_BYTE } else { 0 };
        let point = |at: usize| shift + parameters.zero_points.get(at).map_or(0, |point| *point as i64);
        let bytes = |at: usize| point(at).to_le_bytes().into_iter().take(if wide { 2 } else { 1 });
        let scale = self.builder.numbers(&parameters.scales, &shape);
        let points = self.builder.constant(codes, &shape, (0..count).flat_map(bytes).collect());
        let inputs = [&scale, &points];
        let codes = self.builder.node("QuantizeLinear", &[x, inputs[0], inputs[1]], attributes);
        self.builder.node("DequantizeLinear", &[&codes, inputs[0], inputs[1]], attributes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvant_container::Diagnostic;

    #[test]
    fn schemes_without_onnx_nodes_are_refused_by_name() {
        let nodes = |text: &str| Nodes::of(text.parse().unwrap());
        for (text, codes) in [
            ("int8:tensor!static", DataType::UINT8),
            ("uint8:channel@1:zp!static", DataType::UINT8),
            ("int16:tensor!static", DataType::INT16),
            ("e4m3:tensor!static", DataType::FLOAT8E4M3FN),
            ("e5m2:tensor!static", DataType::FLOAT8E5M2),
        ] {
            assert_eq!(nodes(text), Some(Nodes::Static { codes }), "{text}");
        }
        assert_eq!(
            (nodes("uint8:tensor:zp!dynamic"), nodes("int8:tensor:zp!dynamic")),
            (Some(Nodes::Dynamic), Some(Nodes::Dynamic))
        );
        for text in
            ["int8:tensor!dynamic", "int8:channel!dynamic", "e4m3:channel!dynamic", "mx6!dynamic", "int4:tensor!static"]
        {
            assert_eq!(nodes(text), None, "{text}");
        }
        let layer = ("model.fc", "int8:channel+int8:channel!dynamic".parse().unwrap());
        let error = check_schemes([layer], &AttentionScheme::default()).unwrap_err();
        let hint = error.hint().unwrap();
        assert!(error.to_string().contains("`model.fc`") && hint.contains("‹weights-only›"), "{error}: {hint}");
        for evaluated in ["int16:tensor", "mx6"] {
            let error =
                check_schemes([("model.fc", evaluated.parse().unwrap())], &AttentionScheme::default()).unwrap_err();
            assert!(error.to_string().contains(&format!("`{evaluated}`")), "{error}");
        }
        let query = Some("e4m3:tensor!static".parse().unwrap());
        let error = check_schemes([], &AttentionScheme { query, ..AttentionScheme::default() }).unwrap_err();
        assert!(error.hint().unwrap().contains("‹kv-cache›"), "{error}");
    }
}
