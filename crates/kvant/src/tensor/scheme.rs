//! The scheme of a weight by any name that `kvant list schemes` shows.

use super::packed;
use crate::error::{Error, ErrorKind};
use kvant_checkpoint::recipe::NamedScheme;
use kvant_gguf::ftype::Ftype;
use kvant_numeric::ggml::GgmlType;
use kvant_quant::scheme::LayerScheme;
use std::fmt;
use std::str::FromStr;

/// How a weight is quantized.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightScheme {
    /// To codes with scales. The scheme of its layer's activations is there for the formats that describe it.
    Layer(LayerScheme),
    /// To blocks of a GGUF type.
    Ggml(GgmlType),
}

impl WeightScheme {
    /// The scheme where scales can be given for it.
    pub(super) fn with_scales(&self) -> Result<&LayerScheme, Error> {
        match self {
            WeightScheme::Layer(layer) => Ok(layer),
            WeightScheme::Ggml(kind) => {
                let message = format!("{kind} stores scales in its blocks: it takes none");
                Err(Error::new(ErrorKind::Usage, message).with_hint(Some("leave them out".to_owned())))
            }
        }
    }

    /// The scheme that a run for this format has in its place: scales that would have the model's type get the format's before codes
    /// are made, so that these fit the scales that are stored.
    ///
    /// # Errors
    /// *Usage* for an unknown format.
    pub fn for_format(self, format: &str) -> Result<WeightScheme, Error> {
        match self {
            WeightScheme::Layer(layer) if format != "gguf" => {
                Ok(WeightScheme::Layer(packed::find(format)?.capabilities().fitted(layer)))
            }
            other => Ok(other),
        }
    }
}

impl FromStr for WeightScheme {
    type Err = Error;

    /// Takes a preset's name, a spelling, or the name of a GGUF type; one of a mix of types is its main type.
    fn from_str(text: &str) -> Result<WeightScheme, Error> {
        let unknown = match NamedScheme::find("‹scheme›", text) {
            Ok(named) => return Ok(WeightScheme::Layer(named.scheme)),
            Err(error) => error,
        };
        let base = text.parse::<Ftype>().ok().map(|mix| mix.row().base.id());
        let kind = base.and_then(GgmlType::from_id).or_else(|| text.parse().ok());
        kind.map(WeightScheme::Ggml).ok_or_else(|| unknown.into())
    }
}

impl fmt::Display for WeightScheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WeightScheme::Layer(scheme) => scheme.weight.fmt(f),
            WeightScheme::Ggml(kind) => f.write_str(kind.name()),
        }
    }
}
