//! The samples of a float model as a model that was made from it takes them.

use std::collections::HashSet;

use kvant_container::onnx::GraphProto;

use super::codes::EndCodes;
use super::turned::turned;
use super::{EvaluationError, is_float};
use crate::data::{Array, DataError, Input, Sample, Values, inputs};

/// What a model takes instead of the inputs of its float model.
pub(super) struct Recast {
    inputs: Vec<Input>,
    /// Images that it takes with channels last.
    pub turned: HashSet<String>,
    /// The codes that it takes and returns instead of floats.
    pub codes: EndCodes,
}

impl Recast {
    pub fn of(reference: &GraphProto, quantized: &GraphProto) -> Self {
        let (turned, codes) = (turned(reference, quantized), EndCodes::of(quantized));
        Self { inputs: inputs(quantized), turned, codes }
    }

    /// The sample in the types and shapes the model takes: one of half precision takes such inputs, one with an integer
    /// boundary takes codes.
    pub fn sample<'a>(&self, sample: &'a Sample<'_>) -> Result<Sample<'a>, EvaluationError> {
        let one = |(name, array): &'a (&str, Array<'_>)| {
            let turned = self.turned.contains(*name).then(|| array.channels_last()).flatten();
            let array = turned.unwrap_or_else(|| array.view());
            let declared = self.inputs.iter().find(|input| input.name == *name);
            let to = declared.map_or(array.data_type(), |input| input.data_type);
            let float = matches!(array.values(), Values::F32(_) | Values::F64(_) | Values::F16(_) | Values::Bf16(_));
            let mismatch = |problem: String| DataError::Mismatch { input: (*name).to_owned(), problem };
            if let Some(codes) = self.codes.quantized(name, &array).filter(|_| float) {
                return Ok((*name, codes.map_err(|e| mismatch(e.to_string()))?));
            }
            if float && !is_float(to) {
                return Err(EvaluationError::NoCodes { input: (*name).to_owned() });
            }
            let problem = || format!("its values do not fit the quantized model's type {to:?}");
            Ok((*name, array.cast(to).ok_or_else(|| mismatch(problem()))?))
        };
        let known = |(name, _): &&(&str, Array<'_>)| self.inputs.iter().any(|input| input.name == *name);
        sample.iter().filter(known).map(one).collect()
    }
}
