//! Rounding the bias of a quantized layer to nearest.

use super::{Engine, EngineError, file_of};
use crate::plan::{KeptTensor, TensorAction, bias_shape};
use kvant_container::unfinished::Written;
use kvant_quant::rounding::{RoundingError, Rtn, TensorContext};
use kvant_weights::parts::{Packer, Piece, ScaleEncoding, encode};
use kvant_weights::weight::Band;
use std::borrow::Cow;

impl Engine<'_> {
    /// Writes the codes of a bias, or its values on their grid.
    pub(super) fn round_bias(&self, kept: &KeptTensor, values: &[f32]) -> Result<Vec<Written>, EngineError> {
        let TensorAction::Round { scheme, from, parts, .. } = &kept.action else { return Ok(Vec::new()) };
        let (rows, columns) = bias_shape(*scheme, values.len());
        let context = TensorContext::new(from.arithmetic());
        let rounded = Rtn::new(*scheme, context).and_then(|rtn| rtn.on(self.isa).round(values, rows, columns));
        let tensor = rounded.map_err(|error| self.bias_error(kept, &error))?;
        if parts.is_empty() {
            let encoding = ScaleEncoding::of_floats(self.plan.layout().declarations()[kept.tensor].dtype);
            let piece = Piece { offset: 0, bytes: Cow::Owned(encode(encoding, &tensor.dequantize())) };
            return Ok(vec![self.write(kept.tensor, &piece)?]);
        }
        let (band, whole) = (Band { rows: 0..rows, columns: 0..columns }, (rows, columns).into());
        let (mut packer, mut written) = (Packer::default(), Vec::new());
        for (index, part) in parts.iter().enumerate() {
            if let Some(piece) = packer.pack(self.isa, part, (&tensor).into(), &band, &whole) {
                written.push(self.write(kept.tensor + index, &piece)?);
            }
        }
        Ok(written)
    }

    fn bias_error(&self, kept: &KeptTensor, error: &RoundingError) -> EngineError {
        let (tensor, file) = (kept.source.clone(), file_of(self.checkpoint, &kept.source, None));
        EngineError::Weight { tensor, excludable: None, file, reason: error.to_string() }
    }
}
