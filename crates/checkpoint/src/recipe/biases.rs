//! The schemes of biases: of all quantized layers, and of kinds of layers.

use super::Settings;
use super::file::FLOAT;
use kvant_model::network::LayerKind;
use kvant_quant::scheme::{Axis, FloatScale, Granularity, TensorScheme};
use kvant_weights::recipe_error::{RecipeError, quoted};
use std::collections::BTreeMap;

/// How biases of ONNX graphs are stored, which are no schemes.
const OF_GRAPHS: [&str; 4] = ["int32", "int32-all", "int16", "weight"];

/// The schemes of biases. They stay floats unless a recipe says otherwise.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BiasSchemes {
    all: Option<TensorScheme>,
    kinds: BTreeMap<LayerKind, Option<TensorScheme>>,
}

impl BiasSchemes {
    /// The schemes of the command line, else those of the file.
    ///
    /// # Errors
    /// *Invalid* for what is no scheme, *unsupported* for schemes that biases do not have.
    pub(super) fn of(line: &Settings, file: &Settings) -> Result<BiasSchemes, RecipeError> {
        let all = match (&line.bias, &file.bias) {
            (Some(text), _) => bias_scheme("‹bias›", text)?,
            (None, Some(text)) => bias_scheme("bias", text)?,
            (None, None) => None,
        };
        let kinds = file.layer_type_biases.iter().map(|(kind, text)| {
            let place = format!("bias of {kind}");
            Ok((*kind, bias_scheme(&place, text)?))
        });
        Ok(BiasSchemes { all, kinds: kinds.collect::<Result<_, RecipeError>>()? })
    }

    /// Returns whether the command line or the file asks for biases that are no floats, in whatever scheme.
    pub fn are_asked(line: &Settings, file: &Settings) -> bool {
        let all = line.bias.as_ref().or(file.bias.as_ref());
        all.into_iter().chain(file.layer_type_biases.values()).any(|text| text != FLOAT)
    }

    /// The scheme of the biases of a kind of layers; `None` for floats.
    pub fn of_kind(&self, kind: LayerKind) -> Option<TensorScheme> {
        self.kinds.get(&kind).copied().unwrap_or(self.all)
    }

    /// Returns whether all biases stay floats.
    pub fn is_empty(&self) -> bool {
        self.all.is_none() && self.kinds.values().all(Option::is_none)
    }

    /// The scheme of all layers, as it is written.
    pub(super) fn spelling(&self) -> Option<String> {
        self.all.map(|scheme| scheme.to_string())
    }

    /// Those of kinds of layers, as they are written.
    pub(super) fn kinds(&self) -> impl Iterator<Item = (LayerKind, String)> {
        let text = |scheme: &Option<TensorScheme>| scheme.map_or(FLOAT.to_owned(), |scheme| scheme.to_string());
        self.kinds.iter().map(move |(kind, scheme)| (*kind, text(scheme)))
    }
}

fn bias_scheme(place: &str, text: &str) -> Result<Option<TensorScheme>, RecipeError> {
    const EXAMPLE: &str = "give a scheme with one scale or one for each value, e.g. int8:tensor or int8:channel";
    if text == FLOAT {
        return Ok(None);
    }
    if OF_GRAPHS.contains(&text) {
        return Err(RecipeError::invalid(place, format!("{} is for biases of ONNX graphs", quoted(text)), EXAMPLE));
    }
    let scheme: TensorScheme = text
        .parse()
        .map_err(|_| RecipeError::invalid(place, format!("{} is not a scheme of a tensor", quoted(text)), EXAMPLE))?;
    let is_plain = match scheme {
        TensorScheme::Int(_) => true,
        TensorScheme::Float(float) => matches!(float.scale, FloatScale::Plain(_)),
        _ => false,
    };
    let is_shared = matches!(scheme.granularity(), Some(Granularity::Tensor | Granularity::Channel(Axis::Rows)));
    match is_plain && is_shared {
        true => Ok(Some(scheme)),
        false => Err(RecipeError::unsupported(place, format!("biases are not quantized in {}", quoted(text)), EXAMPLE)),
    }
}
