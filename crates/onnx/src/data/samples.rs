//! The samples a model is run on: for each, one array per input, lent one sample at a time.

use kvant_quant::counts::number;
use kvant_samples::Array;
use std::collections::BTreeMap;
use std::path::PathBuf;

use super::column::Column;
use super::error::DataError;
use super::inputs::Input;

/// The arrays of one sample, with the names of the inputs they are for.
pub type Sample<'a> = Vec<(&'a str, Array<'a>)>;

/// All samples, of which one is in memory at a time.
pub struct Samples {
    columns: Vec<(Input, Box<dyn Column>)>,
    /// The place of the first of them in the data.
    first: usize,
    count: usize,
    random: bool,
}

impl Samples {
    pub(crate) fn new(
        columns: Vec<(Input, Box<dyn Column>)>,
        limit: Option<usize>,
        random: bool,
    ) -> Result<Self, DataError> {
        let Some((_, first)) = columns.first() else { return Err(DataError::NoInputs) };
        let count = first.len();
        if let Some((input, other)) = columns.iter().find(|(_, column)| column.len() != count) {
            let first = columns.first().map(|(input, _)| input.name.as_str()).unwrap_or_default();
            let problem = format!("{}, where `{first}` has {count}", number(other.len(), "sample"));
            return Err(DataError::Mismatch { input: input.name.clone(), problem });
        }
        match limit.unwrap_or(usize::MAX).min(count) {
            0 => Err(DataError::Empty),
            count => Ok(Self { columns, first: 0, count, random }),
        }
    }

    /// The samples of the data behind the first `used`, at most so many of them; `None` where there are none.
    pub fn behind(self, used: usize, most: usize) -> Option<Self> {
        let rest = self.columns.first().map_or(0, |(_, column)| column.len()).saturating_sub(used);
        let count = rest.min(most);
        (count > 0 && !self.random).then_some(Self { first: used, count, ..self })
    }

    /// Number of samples.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Never: data without samples are refused when they are opened.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// The image files of the samples, in order; empty for other data.
    pub fn images(&self) -> Vec<PathBuf> {
        let all = self.first..self.first + self.count;
        let images = all.flat_map(|index| self.columns.iter().flat_map(move |(_, column)| column.images(index)));
        images.cloned().collect()
    }

    /// Returns whether the values are random, which the user is warned of.
    pub fn random(&self) -> bool {
        self.random
    }

    /// The inputs of floats that have one and the same value in all samples, with that value. Integers are often constant rightly, as
    /// masks and token types are. No more samples are read than it takes to see two values of each.
    ///
    /// # Errors
    /// Data that cannot be read.
    pub fn constant_inputs(&mut self) -> Result<Vec<(String, f32)>, DataError> {
        let mut constant: BTreeMap<String, f32> = BTreeMap::new();
        for index in 0..self.count {
            let sample = self.sample(index)?;
            for (name, array) in sample.iter().filter(|(_, array)| index == 0 && array.is_float()) {
                // A single number, such as a threshold, is given as it is meant.
                let first = array.to_f32s().first().copied().filter(|_| array.shape().iter().product::<usize>() > 1);
                constant.extend(first.map(|first| ((*name).to_owned(), first)));
            }
            for (name, array) in &sample {
                let varies = |value: &f32| array.to_f32s().iter().any(|other| other != value);
                if constant.get(*name).is_some_and(varies) {
                    constant.remove(*name);
                }
            }
            if constant.is_empty() {
                break;
            }
        }
        Ok(constant.into_iter().collect())
    }

    /// The arrays of one sample, of the types and shapes the model takes. Reading in order is cheapest.
    pub fn sample(&mut self, index: usize) -> Result<Sample<'_>, DataError> {
        let index = self.first + index;
        self.columns.iter_mut().map(|(input, column)| one(input, column.as_mut(), index)).collect()
    }
}

fn one<'a>(input: &'a Input, column: &'a mut dyn Column, index: usize) -> Result<(&'a str, Array<'a>), DataError> {
    use kvant_container::onnx::{DataType, data_type_name};
    let place = column.place(index);
    let array = column.sample(index)?;
    let from = array.data_type();
    let array = match input.data_type {
        DataType::UNDEFINED => Some(array),
        to => array.cast(to),
    };
    let array = array.ok_or_else(|| {
        let (from, to) = (data_type_name(from), data_type_name(input.data_type));
        let problem = format!("sample {index}: values of type {from} are not all values of the model's type {to}");
        DataError::Mismatch { input: input.name.clone(), problem }
    })?;
    match array.first_not_finite() {
        None => Ok((&input.name, array)),
        Some((element, value)) => {
            let position = position(element, array.shape());
            Err(DataError::NotFinite { file: place, input: input.name.clone(), sample: index, value, position })
        }
    }
}

/// The index along each axis of an element of an array in row-major order.
fn position(element: usize, shape: &[usize]) -> Vec<usize> {
    let mut rest = element;
    let mut position: Vec<usize> = shape.iter().rev().map(|&size| (rest % size, rest /= size).0).collect();
    position.reverse();
    position
}
