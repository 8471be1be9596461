//! Statistics of the inputs of layers in a file, which another program has gathered: for models whose forward pass is not here.
//!
//! The file is safetensors. For a layer, by its name in the checkpoint:
//!
//! | tensor | shape | values |
//! |---|---|---|
//! | `LAYER.input_min`, `LAYER.input_max` | `[]`, `[1]` or `[channels]` | the range of its inputs |
//! | `LAYER.output_min`, `LAYER.output_max` | likewise | the range of its outputs |
//! | `LAYER.input_mean_square` | `[channels]` | the mean of the squares of each input channel |
//! | `LAYER.hessian` | `[channels, channels]` | `X^T X / n` over `n` rows of inputs |
//!
//! Of convolutions, a channel is one of the input's. Tensors of other names are passed over. The file is hostile: types, shapes and
//! values are checked when it is opened, those of Hessians when they are read. Not which layers need what: that is the plan's.

mod error;
mod names;
mod read;

pub use error::{InputStatisticsError, OtherKind, StatisticsProblem};

use kvant_container::{MappedFile, TensorFile};
use kvant_numeric::kernel::Range;
use kvant_weights::activation_point::ActivationPoint;
pub(crate) use names::Renaming;
pub(crate) use read::{HESSIAN, INPUT, MEAN_SQUARE, OUTPUT};
use read::{checked_hessian, grouped};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::Path;
use xxhash_rust::xxh3::xxh3_128;

/// The statistics of a file, or those of one component of a pipeline in it.
#[derive(Debug)]
pub struct InputStatistics {
    file: TensorFile,
    layers: BTreeMap<String, LayerStatistics>,
    provenance: StatisticsProvenance,
}

/// The origin of the statistics, for the record of an output.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct StatisticsProvenance {
    /// The file's name, without directories.
    pub name: String,
    /// The component whose statistics these are, where the file has those of several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub component: Option<String>,
    /// Its length in bytes.
    pub bytes: u64,
    /// The XXH3 hash, 128 bits in hexadecimal digits, of all its bytes.
    pub xxh3_128: String,
}

/// The statistics of a layer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LayerStatistics {
    /// The range of inputs: one, or one a channel.
    pub input: Option<Vec<Range>>,
    /// The range of outputs: one, or one a channel.
    pub output: Option<Vec<Range>>,
    /// The mean square of each input channel, in proportion to the largest.
    pub mean_square: Option<Vec<f32>>,
    /// The channels of a Hessian, and its place among the tensors of the file.
    hessian: Option<(usize, usize)>,
}

/// The same bytes are the same statistics.
impl PartialEq for InputStatistics {
    fn eq(&self, other: &Self) -> bool {
        self.provenance == other.provenance
    }
}

impl InputStatistics {
    /// Reads a file, all but its Hessians. With a component, only names that begin with it and a dot count, without these.
    ///
    /// # Errors
    /// System errors; *invalid* for damaged files and values that no inputs have.
    pub fn open(path: &Path, component: Option<&str>) -> Result<InputStatistics, InputStatisticsError> {
        let file = TensorFile::open(path).map_err(|error| match other_kind(path) {
            Some(found) => InputStatisticsError::OtherKind { file: path.to_owned(), found },
            None => error.into(),
        })?;
        let layers = grouped(&file, component).map_err(|(tensor, problem)| InputStatisticsError::Tensor {
            file: path.to_owned(),
            tensor,
            problem,
        })?;
        let provenance = StatisticsProvenance {
            name: path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default(),
            component: component.map(str::to_owned),
            bytes: file.map().len() as u64,
            xxh3_128: format!("{:032x}", xxh3_128(file.map())),
        };
        if layers.is_empty() {
            let component = component.map(str::to_owned);
            return Err(InputStatisticsError::Empty { file: path.to_owned(), component });
        }
        Ok(InputStatistics { file, layers, provenance })
    }

    /// The path of the file.
    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// The origin, for the record of an output.
    pub fn provenance(&self) -> &StatisticsProvenance {
        &self.provenance
    }

    /// The names of all layers.
    pub fn layers(&self) -> impl Iterator<Item = &str> {
        self.layers.keys().map(String::as_str)
    }

    /// The statistics of a layer, by its name in the checkpoint.
    pub fn layer(&self, module: &str) -> Option<&LayerStatistics> {
        self.layers.get(module)
    }

    /// The ranges of the activations at a point: one, or one a channel.
    pub fn ranges(&self, point: &ActivationPoint) -> Option<&[Range]> {
        match point {
            ActivationPoint::Input(module) => self.layer(module)?.input.as_deref(),
            ActivationPoint::Output(module) => self.layer(module)?.output.as_deref(),
            ActivationPoint::Key(_)
            | ActivationPoint::Value(_)
            | ActivationPoint::Query(_)
            | ActivationPoint::Probabilities(_) => None,
        }
    }

    /// The Hessian of a layer's inputs, row by row.
    ///
    /// # Errors
    /// *Invalid* for values that no Hessian has.
    pub fn hessian(&self, module: &str) -> Result<Option<Vec<f32>>, InputStatisticsError> {
        let Some((channels, index)) = self.layer(module).and_then(|layer| layer.hessian) else { return Ok(None) };
        let Some(tensor) = self.file.get(index) else { return Ok(None) };
        checked_hessian(tensor, channels).map(Some).map_err(|problem| self.refused(module, HESSIAN, problem))
    }

    /// The error for one of a layer's tensors.
    pub(crate) fn refused(&self, module: &str, end: &str, problem: StatisticsProblem) -> InputStatisticsError {
        let component = self.provenance.component.as_ref().map(|name| format!("{name}.")).unwrap_or_default();
        let tensor = format!("{component}{module}.{end}");
        InputStatisticsError::Tensor { file: self.path().to_owned(), tensor, problem }
    }

    /// What the names of layers begin with in the file, and in the model, if they are those of `modules` but for that; `has_layer` says
    /// which layers the model has.
    pub(crate) fn renaming(&self, modules: &[String], has_layer: impl Fn(&str) -> bool) -> Option<Renaming> {
        names::renaming(modules, &self.layers, has_layer)
    }
}

/// The kind of a file that is no safetensors, where its beginning shows it.
fn other_kind(path: &Path) -> Option<OtherKind> {
    let map = MappedFile::open(path).ok()?;
    let beginning = map.get(..map.len().min(SHOWN_BEGINNING))?;
    let is_text = |byte: &u8| *byte >= b' ' || byte.is_ascii_whitespace();
    match beginning.starts_with(b"GGUF") {
        true => Some(OtherKind::Gguf),
        // The length of a header has zeros.
        false => (!beginning.is_empty() && beginning.iter().all(is_text)).then_some(OtherKind::Text),
    }
}

/// The bytes by which text is recognized.
const SHOWN_BEGINNING: usize = 256;

impl LayerStatistics {
    /// The channels of the Hessian, if there is one.
    pub fn hessian_channels(&self) -> Option<usize> {
        self.hessian.map(|(channels, _)| channels)
    }
}

#[cfg(test)]
mod tests;
