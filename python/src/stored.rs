//! Quantized checkpoints read layer by layer.

use crate::tensor::raised;
use kvant::Error;
use kvant::tensor::StoredModel as Model;
use numpy::IntoPyArray;
use pyo3::prelude::*;
use std::path::PathBuf;

/// A checkpoint of any format that Kvant reads.
#[pyclass(frozen, module = "kvant._kvant")]
pub struct StoredModel(Model);

#[pymethods]
impl StoredModel {
    #[new]
    fn new(py: Python<'_>, path: PathBuf) -> PyResult<StoredModel> {
        py.detach(|| Model::open(&path)).map(StoredModel).map_err(|error| raised(py, error))
    }

    /// The quantized layers as JSON.
    fn layers(&self, py: Python<'_>) -> PyResult<String> {
        py.detach(|| self.0.layers()).map(|layers| layers.to_string()).map_err(|error| raised(py, error))
    }

    /// Calls `deliver(name, dtype, shape, data)` with every tensor of the float model.
    fn read(&self, py: Python<'_>, deliver: &Bound<'_, PyAny>) -> PyResult<()> {
        let deliver = deliver.clone().unbind();
        let mut failed = None;
        let read = py.detach(|| {
            self.0.read(|tensor| {
                let delivered = Python::attach(|py| {
                    let data = tensor.bytes.into_pyarray(py);
                    deliver.call1(py, (tensor.name, tensor.dtype.to_string(), tensor.shape, data)).map(drop)
                });
                delivered.map_err(|error| {
                    failed = Some(error);
                    Error::internal("the receiver of tensors failed")
                })
            })
        });
        match (failed, read) {
            (Some(error), _) => Err(error),
            (None, read) => read.map_err(|error| raised(py, error)),
        }
    }
}
