//! Sources of samples: files by extension, folders, or random values.

use kvant_quant::counts::number;
use std::collections::BTreeSet;
use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use kvant_container::onnx::DataType;
use kvant_samples::{Array, SampleError, Stored, arrays, files, is_image};

use super::column::{ArrayColumn, Column};
use super::error::DataError;
use super::images;
use super::inputs::Input;
use super::preprocessing::Preprocessing;
use super::random::{Distribution, RandomColumn};
use super::samples::Samples;

/// The default number of random samples.
const RANDOM_SAMPLES: usize = 16;

/// The source of samples. Spelled as a path, or `random`, `random:normal` or `random:uniform`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SampleSource {
    /// An `.npz`, `.npy` or `.safetensors` file, or a folder of such files or of images.
    Path(PathBuf),
    /// Made-up values.
    Random(Distribution),
}

impl FromStr for SampleSource {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(match text {
            "random" | "random:normal" => Self::Random(Distribution::Normal),
            "random:uniform" => Self::Random(Distribution::Uniform),
            path => Self::Path(path.into()),
        })
    }
}

/// The options of reading data.
#[derive(Debug, Clone, Default)]
pub struct DataOptions {
    /// Use at most this number of samples, the first ones.
    pub num_samples: Option<usize>,
    /// The steps from an image to the model's input.
    pub preprocessing: Option<Preprocessing>,
    /// The seed of random values.
    pub seed: u64,
    /// The name of an array that holds labels and is for no input.
    pub labels: Option<String>,
}

impl SampleSource {
    /// Opens the data for a model's inputs. Names, shapes and numbers of samples are checked here; values are read later.
    pub fn open(&self, inputs: &[Input], options: &DataOptions) -> Result<Samples, DataError> {
        let (columns, random) = match self {
            Self::Random(_) if options.preprocessing.is_some() => {
                return Err(DataError::IdlePreprocessing { data: "random".to_owned() });
            }
            Self::Random(distribution) => (random(inputs, *distribution, options)?, true),
            Self::Path(path) => (columns(path, inputs, options)?, false),
        };
        Samples::new(columns, options.num_samples, random)
    }

    /// The integers of an array in the data, one per sample: labels of classes.
    pub fn labels(&self, name: &str) -> Result<Vec<i64>, DataError> {
        let missing = |found: Vec<String>| DataError::MissingLabels { labels: name.to_owned(), found };
        let Self::Path(path) = self else { return Err(missing(Vec::new())) };
        let mut labels = Vec::new();
        let arrays = arrays(&files(path)?)?;
        let names = names(&arrays);
        for mut stored in arrays.into_iter().filter(|stored| stored.name == name) {
            let place = stored.place.clone();
            let count = stored.shape.iter().product();
            let values = stored.read(0, vec![count])?.cast(DataType::INT64);
            let values = values.ok_or_else(|| SampleError::invalid(place, "labels that are not integers"))?;
            labels.extend(integers(&values));
        }
        if labels.is_empty() { Err(missing(names)) } else { Ok(labels) }
    }
}

fn integers(array: &Array<'_>) -> Vec<i64> {
    match array.values() {
        super::Values::I64(values) => values.to_vec(),
        _ => Vec::new(),
    }
}

type InputColumn = (Input, Box<dyn Column>);
type Columns = Vec<InputColumn>;

fn random(inputs: &[Input], distribution: Distribution, options: &DataOptions) -> Result<Columns, DataError> {
    let samples = options.num_samples.unwrap_or(RANDOM_SAMPLES);
    let column = |input: &Input| {
        let column = RandomColumn::new(input, distribution, options.seed, samples)?;
        Ok((input.clone(), Box::new(column) as Box<dyn Column>))
    };
    inputs.iter().map(column).collect()
}

fn columns(path: &Path, inputs: &[Input], options: &DataOptions) -> Result<Columns, DataError> {
    let files = files(path)?;
    let images: Vec<PathBuf> = files.iter().filter(|file| is_image(file)).cloned().collect();
    if !images.is_empty() {
        return of_images(path, inputs, images, options);
    }
    if options.preprocessing.is_some() {
        return Err(DataError::IdlePreprocessing { data: path.display().to_string() });
    }
    let mut arrays = arrays(&files)?;
    arrays.retain(|stored| Some(&stored.name) != options.labels.as_ref());
    let found = names(&arrays);
    let missing = |input: &Input| DataError::MissingInput { input: input.name.clone(), found: found.clone() };
    inputs.iter().map(|input| array_column(input, inputs, &mut arrays)?.ok_or_else(|| missing(input))).collect()
}

/// The arrays of an input, which are taken out; nothing where there are none.
fn array_column(input: &Input, inputs: &[Input], arrays: &mut Vec<Stored>) -> Result<Option<InputColumn>, DataError> {
    let mine = match inputs {
        [_] if !arrays.iter().any(|a| belongs(&a.name, input, inputs)) && of_one_name(arrays) => std::mem::take(arrays),
        _ => arrays.extract_if(.., |stored| belongs(&stored.name, input, inputs)).collect(),
    };
    match mine.is_empty() {
        true => Ok(None),
        false => Ok(Some((input.clone(), Box::new(ArrayColumn::new(input, mine)?)))),
    }
}

/// Returns whether an array is an input's: by its name, or by its name and a number, `x_0`, `x_1`.
fn belongs(array: &str, input: &Input, inputs: &[Input]) -> bool {
    if let Some(named) = inputs.iter().find(|other| other.name == array) {
        return named.name == input.name;
    }
    let number = array.strip_prefix(&input.name).and_then(|rest| rest.strip_prefix('_'));
    number.is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
}

/// Returns whether arrays can only be those of one input: all of one name, or files of their own.
fn of_one_name(arrays: &[Stored]) -> bool {
    let files = arrays.iter().all(|stored| stored.place.extension().is_some_and(|e| e == "npy"));
    files || names(arrays).len() == 1
}

fn names(arrays: &[Stored]) -> Vec<String> {
    arrays.iter().map(|stored| stored.name.clone()).collect::<BTreeSet<_>>().into_iter().collect()
}

fn of_images(path: &Path, inputs: &[Input], files: Vec<PathBuf>, options: &DataOptions) -> Result<Columns, DataError> {
    let [input] = inputs else {
        let problem = format!("images for a model of {}", number(inputs.len(), "input"));
        return Err(SampleError::unsupported(path, problem).into());
    };
    let steps = options.preprocessing.clone();
    let steps =
        steps.ok_or_else(|| DataError::Preprocessing("images need declared steps to the model's input".into()))?;
    Ok(vec![(input.clone(), images::column(input, files, steps)?)])
}
