//! Single tensors: their bytes as numpy has them, and quantized ones as objects. Shapes of more than two dimensions and the types of other
//! libraries are the business of `kvant/_tensors.py`.

use crate::run::error_json;
use crate::spelling::Spelling;
use kvant::tensor::{
    self, Codes, FloatDType, GraphAffine, GraphProduct, InputStatistics as Statistics, InputSums, Matrix,
    QuantizedMatrix, ScaleKind, SmoothingPair, StaticParameters, TensorObserver, WeightScheme, clipped,
    fake_quantize as faked, layer_scheme, round, smoothing_scales,
};
use kvant::{Error, ErrorKind};

use numpy::{IntoPyArray, PyArray1, PyReadonlyArray1};
use pyo3::exceptions::PyKeyboardInterrupt;
use pyo3::prelude::*;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The time between two looks for signals.
const INTERVAL: Duration = Duration::from_millis(50);

/// A matrix: its numbers as bytes, the name of their type in safetensors files, rows and columns.
#[derive(FromPyObject)]
pub struct Array<'py>(PyReadonlyArray1<'py, u8>, String, usize, usize);

impl Array<'_> {
    pub fn matrix(&self) -> Result<Matrix<'_>, Error> {
        let bytes = self.0.as_slice().map_err(|error| Error::internal(error.to_string()))?;
        Matrix::new(&self.1, bytes, self.2, self.3)
    }
}

/// The exception of an error.
pub fn raised(py: Python<'_>, error: Error) -> PyErr {
    if error.kind == ErrorKind::Interrupted {
        return PyKeyboardInterrupt::new_err(());
    }
    let fields = error_json(error, "quantize", &Spelling::of_command("quantize")).to_string();
    let made = || {
        let fields = py.import("json")?.call_method1("loads", (fields,))?;
        py.import("kvant._errors")?.call_method1("error_of", (fields,))
    };
    made().map_or_else(|error| error, PyErr::from_value)
}

/// A quantized matrix.
#[pyclass(frozen, module = "kvant._kvant")]
pub struct QuantTensor(QuantizedMatrix);

#[pymethods]
impl QuantTensor {
    /// The spelling of the scheme.
    #[getter]
    fn scheme(&self) -> String {
        self.0.scheme().to_string()
    }

    /// Codes of at most eight bits, one byte each, or the blocks of a GGUF type. None for wider ones and schemes without codes.
    #[getter]
    fn bytes<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyArray1<u8>>> {
        let bytes = match self.0.codes() {
            Some(Codes::Bytes(codes)) => Some(codes.as_slice()),
            Some(Codes::Wide(_)) => None,
            None => self.0.blocks(),
        };
        bytes.map(|bytes| bytes.to_vec().into_pyarray(py))
    }

    /// Codes of more than eight bits.
    #[getter]
    fn wide_codes<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyArray1<i64>>> {
        match self.0.codes() {
            Some(Codes::Wide(codes)) => Some(codes.clone().into_pyarray(py)),
            _ => None,
        }
    }

    /// The dtype of the codes, such as `int4` or `e4m3`; None without codes.
    #[getter]
    fn dtype(&self) -> Option<String> {
        self.0.tensor().map(|tensor| tensor.scheme().format().to_string())
    }

    /// Rows and columns of the scales.
    #[getter]
    fn scale_shape(&self) -> (usize, usize) {
        self.0.scale_shape()
    }

    /// The scales, row-major; None without.
    #[getter]
    fn scales<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyArray1<f32>>> {
        self.0.tensor().map(|tensor| tensor.scales().to_vec().into_pyarray(py))
    }

    /// The zero points, one for each scale; None where zero is code 0.
    #[getter]
    fn zero_points<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyArray1<f64>>> {
        let points = self.0.tensor().map(|tensor| tensor.zero_points()).filter(|points| !points.is_empty());
        points.map(|points| points.to_vec().into_pyarray(py))
    }

    /// The scale over block scales; None without.
    #[getter]
    fn global_scale(&self) -> Option<f32> {
        self.0.tensor().and_then(|tensor| tensor.global_scale())
    }

    /// The values of the codes, row-major.
    fn dequantize<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<f32>> {
        py.detach(|| self.0.dequantize()).into_pyarray(py)
    }

    /// The same as bits of float16 or bfloat16, two bytes each.
    fn dequantize_to_half<'py>(&self, py: Python<'py>, is_bfloat16: bool) -> Bound<'py, PyArray1<u8>> {
        let dtype = if is_bfloat16 { FloatDType::Bf16 } else { FloatDType::F16 };
        py.detach(|| self.0.dequantize_to_half(dtype)).into_pyarray(py)
    }

    /// The tensors that it becomes in a format: names, types, shapes and bytes.
    fn packed<'py>(&self, py: Python<'py>, format: &str, name: &str) -> PyResult<Vec<Packed<'py>>> {
        let tensors = py.detach(|| self.0.packed(format, name)).map_err(|error| raised(py, error))?;
        let packed = tensors.into_iter();
        Ok(packed.map(|t| (t.name, t.dtype.to_string(), t.shape, t.bytes.into_pyarray(py))).collect())
    }
}

/// Name, type, shape and bytes.
pub type Packed<'py> = (String, String, Vec<usize>, Bound<'py, PyArray1<u8>>);

/// An array of numbers.
type Floats<'py> = Bound<'py, PyArray1<f32>>;

/// Rounds a matrix to nearest; under scales and zero points where these are given.
#[pyfunction]
pub fn quantize_tensor(
    py: Python<'_>,
    array: Array<'_>,
    scheme: &str,
    format: Option<&str>,
    parameters: Option<(Vec<f32>, Vec<f32>)>,
) -> PyResult<QuantTensor> {
    let matrix = array.matrix().map_err(|error| raised(py, error))?;
    let quantized = py.detach(|| match (scheme_of(scheme, format)?, parameters) {
        (scheme, None) => QuantizedMatrix::nearest(&matrix, &scheme),
        (scheme, Some((scales, zero_points))) => {
            QuantizedMatrix::with_parameters(&matrix, &scheme, StaticParameters { scales, zero_points })
        }
    });
    quantized.map(QuantTensor).map_err(|error| raised(py, error))
}

fn scheme_of(scheme: &str, format: Option<&str>) -> Result<WeightScheme, Error> {
    let scheme: WeightScheme = scheme.parse()?;
    format.map_or(Ok(scheme), |format| scheme.for_format(format))
}

/// The values of a matrix after quantization, row-major; with scales and zero points where these are given.
#[pyfunction]
pub fn fake_quantize<'py>(
    py: Python<'py>,
    array: Array<'_>,
    scheme: &str,
    parameters: Option<(Vec<f32>, Vec<f32>)>,
) -> PyResult<Bound<'py, PyArray1<f32>>> {
    let matrix = array.matrix().map_err(|error| raised(py, error))?;
    let given = parameters.map(|(scales, zero_points)| StaticParameters { scales, zero_points });
    let values = py.detach(|| faked(&matrix, scheme, given)).map_err(|error| raised(py, error))?;
    Ok(values.into_pyarray(py))
}

/// Chooses codes with an algorithm, and returns them with the loss if it is known.
#[pyfunction]
pub fn round_tensor(
    py: Python<'_>,
    array: Array<'_>,
    scheme: &str,
    algorithm: &str,
    hessian: Option<&Hessian>,
    format: Option<&str>,
) -> PyResult<(QuantTensor, Option<f64>)> {
    let matrix = array.matrix().map_err(|error| raised(py, error))?;
    let sums = hessian.map(|hessian| hessian.0.lock().unwrap_or_else(PoisonError::into_inner).clone());
    let cancelled = AtomicBool::new(false);
    let work = || round(&matrix, &scheme_of(scheme, format)?, algorithm, sums.as_ref(), &cancelled);
    let rounded = interruptible(py, work, &cancelled)?.map_err(|error| raised(py, error))?;
    Ok((QuantTensor(rounded.matrix), rounded.loss))
}

/// Does work in a thread of its own, while this one listens for signals. An exception of their handlers cancels the work and is raised
/// once it has stopped.
fn interruptible<T: Send>(py: Python<'_>, work: impl FnOnce() -> T + Send, cancelled: &AtomicBool) -> PyResult<T> {
    let (sender, receiver) = mpsc::channel();
    let receiver = Mutex::new(receiver);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let _ = sender.send(work());
        });
        let mut raised = None;
        loop {
            let received = py.detach(|| {
                let receiver = receiver.lock().unwrap_or_else(PoisonError::into_inner);
                receiver.recv_timeout(INTERVAL)
            });
            match (received, raised.take()) {
                (Ok(_), Some(error)) => return Err(error),
                (Ok(done), None) => return Ok(done),
                (Err(RecvTimeoutError::Disconnected), _) => {
                    return Err(raised_internal(py, "the thread that worked has ended"));
                }
                (Err(RecvTimeoutError::Timeout), known) => raised = known,
            }
            if raised.is_none()
                && let Err(error) = py.check_signals()
            {
                cancelled.store(true, Ordering::Relaxed);
                raised = Some(error);
            }
        }
    })
}

fn raised_internal(py: Python<'_>, message: &str) -> PyErr {
    raised(py, Error::internal(message))
}

/// The sums over a layer's inputs.
#[pyclass(frozen, module = "kvant._kvant")]
pub struct Hessian(Mutex<InputSums>);

#[pymethods]
impl Hessian {
    /// The sums of no tokens.
    #[new]
    fn new(features: usize, mismatch: bool) -> Hessian {
        Hessian(Mutex::new(InputSums::new(features, mismatch)))
    }

    /// Sums from elsewhere, row-major.
    #[staticmethod]
    fn of_matrices(
        py: Python<'_>,
        features: usize,
        hessian: PyReadonlyArray1<'_, f32>,
        mismatch: Option<PyReadonlyArray1<'_, f32>>,
    ) -> PyResult<Hessian> {
        let mismatch = mismatch.as_ref().map(|values| values.as_slice()).transpose()?;
        let sums = InputSums::of_matrices(features, hessian.as_slice()?, mismatch);
        sums.map(|sums| Hessian(Mutex::new(sums))).map_err(|error| raised(py, error))
    }

    /// Input channels.
    #[getter]
    fn features(&self) -> usize {
        self.locked().features()
    }

    /// Adds the inputs of some tokens, and the same tokens' inputs in the float model.
    fn add(&self, py: Python<'_>, inputs: Array<'_>, float_inputs: Option<Array<'_>>) -> PyResult<()> {
        let matrix = inputs.matrix().map_err(|error| raised(py, error))?;
        let float = float_inputs.as_ref().map(Array::matrix).transpose().map_err(|error| raised(py, error))?;
        py.detach(|| self.locked().add(&matrix, float.as_ref())).map_err(|error| raised(py, error))
    }

    /// The Hessian, row-major.
    fn matrix<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<f32>> {
        py.detach(|| self.locked().matrix()).into_pyarray(py)
    }
}

impl Hessian {
    fn locked(&self) -> MutexGuard<'_, InputSums> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What transforms need to know of the inputs of layers.
#[pyclass(frozen, module = "kvant._kvant")]
pub struct InputStatistics(Mutex<Statistics>);

#[pymethods]
impl InputStatistics {
    /// The statistics of no inputs.
    #[new]
    fn new(features: usize) -> InputStatistics {
        InputStatistics(Mutex::new(Statistics::new(features)))
    }

    /// Adds inputs.
    fn add(&self, py: Python<'_>, inputs: Array<'_>) -> PyResult<()> {
        let matrix = inputs.matrix().map_err(|error| raised(py, error))?;
        py.detach(|| self.locked().add(&matrix)).map_err(|error| raised(py, error))
    }

    /// The scales that a transform finds for weights that read these inputs; None where they stay as they are.
    fn scales<'py>(
        &self,
        py: Python<'py>,
        weights: Vec<Array<'_>>,
        scheme: &str,
        algorithm: &str,
    ) -> PyResult<Option<Floats<'py>>> {
        let matrices: Result<Vec<Matrix<'_>>, Error> = weights.iter().map(Array::matrix).collect();
        let matrices = matrices.map_err(|error| raised(py, error))?;
        let cancelled = AtomicBool::new(false);
        let find = || {
            let (scheme, inputs) = (layer_scheme(scheme)?, self.locked());
            let pair = SmoothingPair { weights: &matrices, scheme: &scheme, inputs: &inputs, cancelled: &cancelled };
            smoothing_scales(pair, algorithm)
        };
        let found = interruptible(py, find, &cancelled)?.map_err(|error| raised(py, error))?;
        Ok(found.map(|scales| scales.into_pyarray(py)))
    }

    /// A weight after the search of clipping thresholds that belongs to a transform; None for transforms without one.
    fn clipped<'py>(
        &self,
        py: Python<'py>,
        weight: Array<'_>,
        scheme: &str,
        algorithm: &str,
    ) -> PyResult<Option<Floats<'py>>> {
        let matrix = weight.matrix().map_err(|error| raised(py, error))?;
        let found = py.detach(|| clipped(&matrix, &layer_scheme(scheme)?, &self.locked(), algorithm));
        Ok(found.map_err(|error| raised(py, error))?.map(|values| values.into_pyarray(py)))
    }
}

impl InputStatistics {
    fn locked(&self) -> MutexGuard<'_, Statistics> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An observer of activations.
#[pyclass(frozen, module = "kvant._kvant")]
pub struct Observer(Mutex<TensorObserver>);

#[pymethods]
impl Observer {
    /// An observer for a scheme.
    #[new]
    fn new(py: Python<'_>, scheme: &str) -> PyResult<Observer> {
        let observer = TensorObserver::new(scheme).map_err(|error| raised(py, error))?;
        Ok(Observer(Mutex::new(observer)))
    }

    /// The spelling of the scheme.
    #[getter]
    fn scheme(&self) -> String {
        self.locked().scheme().to_string()
    }

    /// Takes a batch in.
    fn update(&self, py: Python<'_>, array: Array<'_>) -> PyResult<()> {
        let matrix = array.matrix().map_err(|error| raised(py, error))?;
        py.detach(|| self.locked().update(&matrix));
        Ok(())
    }

    /// The least and the greatest value; None before the first.
    #[getter]
    fn range(&self) -> Option<(f32, f32)> {
        self.locked().range()
    }

    /// Values that were NaN or infinite.
    #[getter]
    fn not_finite(&self) -> u64 {
        self.locked().not_finite()
    }

    /// An observer of the same batches, for `copy.deepcopy`.
    fn __deepcopy__(&self, _memo: Bound<'_, PyAny>) -> Observer {
        Observer(Mutex::new(self.locked().clone()))
    }

    /// Scales, and zero points, of which there are none where zero is code 0.
    fn parameters<'py>(&self, py: Python<'py>) -> PyResult<(Floats<'py>, Floats<'py>)> {
        let found = py.detach(|| self.locked().parameters()).map_err(|error| raised(py, error))?;
        Ok((found.scales.into_pyarray(py), found.zero_points.into_pyarray(py)))
    }
}

impl Observer {
    fn locked(&self) -> MutexGuard<'_, TensorObserver> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Scale and zero point of a tensor of a graph.
type Affine = (f32, i64);

fn pair(affine: GraphAffine) -> Affine {
    (affine.scale, affine.zero_point)
}

/// How a tensor of a graph is quantized.
#[pyclass(frozen, module = "kvant._kvant")]
pub struct GraphScheme(tensor::GraphScheme);

#[pymethods]
impl GraphScheme {
    /// A scheme by the names of its dtype and its observer.
    #[new]
    fn new(
        py: Python<'_>,
        dtype: &str,
        is_symmetric: bool,
        has_power_of_two_scales: bool,
        observer: &str,
    ) -> PyResult<GraphScheme> {
        let scale = if has_power_of_two_scales { ScaleKind::PowerOfTwo } else { ScaleKind::Float };
        let scheme = tensor::GraphScheme::new(dtype, is_symmetric, scale, observer);
        scheme.map(GraphScheme).map_err(|error| raised(py, error))
    }

    /// Scale and zero point of a range.
    fn range_parameters(&self, min: f32, max: f32) -> Affine {
        pair(self.0.range_parameters(min, max))
    }

    /// Scale and zero point of each row of a weight.
    fn row_parameters(&self, py: Python<'_>, weight: Array<'_>) -> PyResult<Vec<Affine>> {
        let matrix = weight.matrix().map_err(|error| raised(py, error))?;
        Ok(py.detach(|| self.0.row_parameters(&matrix)).into_iter().map(pair).collect())
    }

    /// An observer that has seen nothing.
    fn observer(&self) -> GraphObserver {
        GraphObserver(Mutex::new(self.0.observer()))
    }
}

/// An observer of an activation of a graph.
#[pyclass(frozen, module = "kvant._kvant")]
pub struct GraphObserver(Mutex<tensor::GraphObserver>);

#[pymethods]
impl GraphObserver {
    /// Takes a sample in.
    fn update(&self, py: Python<'_>, array: Array<'_>) -> PyResult<()> {
        let matrix = array.matrix().map_err(|error| raised(py, error))?;
        py.detach(|| self.locked().update(&matrix));
        Ok(())
    }

    /// Scale and zero point; None before the first value.
    fn parameters(&self, py: Python<'_>) -> Option<Affine> {
        py.detach(|| self.locked().parameters()).map(pair)
    }

    /// An observer of the same samples, for `copy.deepcopy`.
    fn __deepcopy__(&self, _memo: Bound<'_, PyAny>) -> GraphObserver {
        GraphObserver(Mutex::new(self.locked().clone()))
    }
}

impl GraphObserver {
    fn locked(&self) -> MutexGuard<'_, tensor::GraphObserver> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The scales of the weight and the bias of a product, with which all values of the bias have codes.
#[pyfunction]
pub fn product_scales(
    py: Python<'_>,
    bias: Array<'_>,
    input: f32,
    weights: Vec<Affine>,
    reads_bytes: bool,
    has_power_of_two_scales: bool,
) -> PyResult<(Vec<f32>, Vec<f32>)> {
    let bias = bias.matrix().map_err(|error| raised(py, error))?;
    let weights: Vec<GraphAffine> =
        weights.into_iter().map(|(scale, zero_point)| GraphAffine { scale, zero_point }).collect();
    let found = GraphProduct { input, weights: &weights, reads_bytes, has_power_of_two_scales }.scales(&bias);
    Ok((found.weights, found.bias))
}

/// The position of a scale: `-log2(scale)`, rounded to the nearest integer.
#[pyfunction]
pub fn position(scale: f64) -> i32 {
    tensor::position(scale)
}

/// The scale of a position: `2^-position`.
#[pyfunction]
pub fn power_of_two(position: i32) -> f32 {
    tensor::power_of_two(position)
}
