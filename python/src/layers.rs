//! Layers of models that are quantized in memory: their schemes, and what checkpoints hold of them besides weights.

use crate::tensor::{Array, Packed, raised};
use kvant::Error;
use kvant::tensor::{
    LayerActivations, StaticParameters, algorithms_json, layer_scheme as scheme_of, packed_activations as packed,
    quantization_config as config_of, scheme_json,
};
use numpy::IntoPyArray;
use pyo3::prelude::*;

/// The parts of a layer's scheme as JSON.
#[pyfunction]
pub fn layer_scheme(py: Python<'_>, text: &str) -> PyResult<String> {
    scheme_of(text).map(|scheme| scheme_json(scheme).to_string()).map_err(|error| raised(py, error))
}

/// The algorithms of a list as JSON.
#[pyfunction]
pub fn algorithms(py: Python<'_>, text: &str) -> PyResult<String> {
    algorithms_json(text).map(|found| found.to_string()).map_err(|error| raised(py, error))
}

/// The tensors of static activations. `which` is the layer's name and `input` or `output`; `like` is an array of the model's type.
#[pyfunction]
pub fn packed_activations<'py>(
    py: Python<'py>,
    format: &str,
    which: (String, String),
    scheme: &str,
    features: usize,
    parameters: (Vec<f32>, Vec<f32>),
    like: Array<'_>,
) -> PyResult<Vec<Packed<'py>>> {
    let (name, side) = which;
    let made = || {
        let parsed = scheme_of(&format!("int8:tensor+{scheme}"))?;
        let scheme = parsed.input.ok_or_else(|| Error::internal("activations have a scheme"))?;
        let parameters = StaticParameters { scales: parameters.0, zero_points: parameters.1 };
        let activations = LayerActivations { name: &name, is_output: side == "output", scheme, features, parameters };
        packed(activations, format, &like.matrix()?)
    };
    let tensors = made().map_err(|error| raised(py, error))?.into_iter();
    Ok(tensors.map(|t| (t.name, t.dtype.to_string(), t.shape, t.bytes.into_pyarray(py))).collect())
}

/// The configuration of a checkpoint as JSON. `layers` are names with the schemes of layers, and of biases where they are quantized.
#[pyfunction]
pub fn quantization_config(
    py: Python<'_>,
    format: &str,
    layers: Vec<(String, String, Option<String>)>,
    exclude: Vec<String>,
) -> PyResult<String> {
    let made = || {
        let schemes = layers.iter().map(|(name, text, _)| Ok((name.as_str(), scheme_of(text)?)));
        let schemes = schemes.collect::<Result<Vec<_>, Error>>()?;
        let biases = layers.iter().filter_map(|(name, _, bias)| Some((name.as_str(), bias.as_deref()?)));
        let biases =
            biases.map(|(name, text)| Ok((name, scheme_of(text)?.weight))).collect::<Result<Vec<_>, Error>>()?;
        let exclude: Vec<&str> = exclude.iter().map(String::as_str).collect();
        config_of(format, &schemes, &biases, &exclude)
    };
    made().map(|config| config.to_string()).map_err(|error| raised(py, error))
}
