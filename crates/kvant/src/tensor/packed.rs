//! The tensors of a checkpoint that a quantized matrix becomes.

use super::quantized::{Content, QuantizedMatrix};
use super::scheme::WeightScheme;
use crate::error::{Error, ErrorKind};
use kvant_container::Dtype;
use kvant_formats::format::FormatHandle;
use kvant_numeric::pack::NibbleOrder;
use kvant_numeric::simd::Isa;
use kvant_weights::band::Band;
use kvant_weights::parts::{LayerSpec, Packer, Part, ScaleEncoding, Whole};

/// A tensor of a checkpoint.
#[derive(Clone, Debug, PartialEq)]
pub struct PackedTensor {
    /// Its name.
    pub name: String,
    /// Its type, whose `Display` is the name in safetensors files; that of GGUF blocks is `U8`.
    pub dtype: Dtype,
    /// Its shape.
    pub shape: Vec<usize>,
    /// Its little-endian bytes.
    pub bytes: Vec<u8>,
}

impl QuantizedMatrix {
    /// The tensors that it becomes in a format: those that a run writes for a layer of this name. `gguf` takes GGUF types and nothing
    /// else; their blocks are one tensor of bytes.
    ///
    /// # Errors
    /// *Usage* for an unknown format, *unsupported* where the format has no place for the scheme.
    pub fn packed(&self, format: &str, name: &str) -> Result<Vec<PackedTensor>, Error> {
        let full = |part: &str| if name.is_empty() { part.to_owned() } else { format!("{name}.{part}") };
        match (&self.content, self.scheme()) {
            (Content::Blocks(_, bytes), _) if format == "gguf" => {
                let rows = self.shape().0;
                let shape = vec![rows, bytes.len().checked_div(rows).unwrap_or(0)];
                Ok(vec![PackedTensor { name: full("weight"), dtype: Dtype::U8, shape, bytes: bytes.clone() }])
            }
            (Content::Codes(_), WeightScheme::Layer(_)) if format != "gguf" => self.in_format(find(format)?, name),
            (_, scheme) => {
                let hint = "GGUF types go to the format gguf, other schemes with codes to checkpoint formats; `kvant list schemes` \
                            shows the usual format of each";
                let error =
                    Error::new(ErrorKind::Unsupported, format!("`{scheme}` has no place in the format {format}"));
                Err(error.with_hint(Some(hint.to_owned())))
            }
        }
    }

    fn in_format(&self, format: FormatHandle, name: &str) -> Result<Vec<PackedTensor>, Error> {
        let (Content::Codes(tensor), WeightScheme::Layer(scheme)) = (&self.content, self.scheme()) else {
            return Ok(Vec::new());
        };
        let (rows, columns) = self.shape();
        let order = NibbleOrder::default();
        let (source, fused, act_order, input_rotation) = (self.source, None, false, None);
        let layer = LayerSpec { name, rows, columns, scheme, source, order, fused, act_order, input_rotation };
        let parts = format
            .parts(&layer)
            .map_err(|error| Error::new(ErrorKind::Unsupported, error.reason).with_hint(Some(error.hint)))?;
        check_scales(&parts, tensor.scales())?;
        let (band, whole) = (Band { rows: 0..rows, columns: 0..columns }, Whole::from((rows, columns)));
        let mut packer = Packer::default();
        let mut tensors = Vec::new();
        for part in parts {
            let piece = packer.pack(Isa::best(), &part, tensor.into(), &band, &whole);
            let bytes = piece.map(|piece| piece.bytes.into_owned()).unwrap_or_default();
            let name = part.name.strip_prefix('.').unwrap_or(&part.name).to_owned();
            tensors.push(PackedTensor { name, dtype: part.dtype, shape: part.shape, bytes });
        }
        Ok(tensors)
    }
}

/// The checkpoint format of a name.
pub(super) fn find(format: &str) -> Result<FormatHandle, Error> {
    format.parse().map_err(|_| {
        let known: Vec<&str> = FormatHandle::written().map(FormatHandle::name).collect();
        let error = Error::new(ErrorKind::Usage, format!("unknown checkpoint format `{format}`"));
        error.with_hint(Some(format!("known formats: {}", known.join(", "))))
    })
}

/// Refuses scales that the format would store as infinity.
fn check_scales(parts: &[Part], scales: &[f32]) -> Result<(), Error> {
    use kvant_weights::parts::Content::Scales;
    let is_half = |part: &Part| matches!(part.content, Scales { encoding: ScaleEncoding::F16, .. });
    let largest = scales.iter().copied().fold(0.0, f32::max);
    if largest <= 65_504.0 || !parts.iter().any(is_half) {
        return Ok(());
    }
    let message = format!("the format stores scales in float16, which holds 65504 at most, and one is {largest:e}");
    Err(Error::new(ErrorKind::Unsupported, message)
        .with_hint(Some("use a format with wider scales, such as quark".to_owned())))
}
