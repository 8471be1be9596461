//! Made-up values, for a first look at a model without data. Ranges found with them mean little.

use std::path::PathBuf;

use kvant_container::onnx::DataType;
use kvant_samples::Array;

use super::column::Column;
use super::error::DataError;
use super::inputs::{Axis, Input};

/// The distribution of floats. Integers are 0 or 1, which any embedding table and any mask accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Distribution {
    /// Mean 0, variance 1.
    #[default]
    Normal,
    /// Evenly in 0..1.
    Uniform,
}

/// Random values for an input of known shape.
#[derive(Debug)]
pub(super) struct RandomColumn {
    input: Input,
    shape: Vec<usize>,
    distribution: Distribution,
    seed: u64,
    samples: usize,
}

impl RandomColumn {
    /// An open first axis is taken as 1; other open axes are an error.
    pub fn new(input: &Input, distribution: Distribution, seed: u64, samples: usize) -> Result<Self, DataError> {
        let refused = |problem: &str| DataError::NoRandom { input: input.name.clone(), problem: problem.to_owned() };
        let axes = input.axes.as_deref().ok_or_else(|| refused("the model does not say its shape"))?;
        let size = |(position, axis): (usize, &Axis)| match axis {
            Axis::Fixed(size) => Ok(*size),
            Axis::Open(_) if position == 0 => Ok(1),
            Axis::Open(_) => Err(refused("the model leaves the size of an axis open")),
        };
        let shape = axes.iter().enumerate().map(size).collect::<Result<Vec<_>, _>>()?;
        // Names keep the inputs' values apart, whatever their order.
        let seed = input.name.bytes().fold(seed, |seed, byte| SplitMix(seed ^ u64::from(byte)).next());
        Ok(Self { input: input.clone(), shape, distribution, seed, samples })
    }
}

impl Column for RandomColumn {
    fn len(&self) -> usize {
        self.samples
    }

    fn sample(&mut self, index: usize) -> Result<Array<'_>, DataError> {
        let mut random = SplitMix(self.seed ^ SplitMix(index as u64).next());
        let count = self.shape.iter().product();
        let float = matches!(
            self.input.data_type,
            DataType::FLOAT | DataType::DOUBLE | DataType::FLOAT16 | DataType::BFLOAT16 | DataType::UNDEFINED
        );
        let array = match (float, self.distribution) {
            (false, _) => {
                Array::of(self.shape.clone(), (0..count).map(|_| (random.next() >> 63) as u8).collect::<Vec<_>>())
            }
            (true, Distribution::Normal) => floats(&self.shape, count, || random.normal()),
            (true, Distribution::Uniform) => floats(&self.shape, count, || random.uniform() as f32),
        };
        array.ok_or_else(|| DataError::NoRandom {
            input: self.input.name.clone(),
            problem: "it is too large".to_owned(),
        })
    }

    fn place(&self, _: usize) -> PathBuf {
        PathBuf::from("random")
    }
}

fn floats(shape: &[usize], count: usize, mut draw: impl FnMut() -> f32) -> Option<Array<'static>> {
    Array::of(shape.to_vec(), (0..count).map(|_| draw()).collect::<Vec<f32>>())
}

/// Steele, Lea, Flood: Fast splittable pseudorandom number generators (2014).
struct SplitMix(u64);

impl SplitMix {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// In 0..1.
    fn uniform(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Box and Muller's transform.
    fn normal(&mut self) -> f32 {
        let radius = (-2.0 * (1.0 - self.uniform()).ln()).sqrt();
        (radius * (std::f64::consts::TAU * self.uniform()).cos()) as f32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn input(axes: Vec<Axis>, data_type: DataType) -> Input {
        Input { name: "x".to_owned(), data_type, axes: Some(axes) }
    }

    #[test]
    fn random_values_depend_only_on_seed_and_sample() {
        let input = input(vec![Axis::Open(None), Axis::Fixed(5000)], DataType::FLOAT);
        let mut column = RandomColumn::new(&input, Distribution::Normal, 7, 3).unwrap();
        let second = column.sample(1).unwrap().into_owned();
        assert_eq!(second.shape(), [1, 5000]);
        assert_ne!(column.sample(0).unwrap(), second);
        let mut again = RandomColumn::new(&input, Distribution::Normal, 7, 3).unwrap();
        assert_eq!(again.sample(1).unwrap(), second);
        let values = second.to_f32s();
        let mean = values.iter().sum::<f32>() / 5000.0;
        let variance = values.iter().map(|v| v * v).sum::<f32>() / 5000.0;
        assert!(mean.abs() < 0.05 && (variance - 1.0).abs() < 0.1, "{mean} {variance}");
    }

    #[test]
    fn random_integers_are_bits_and_open_axes_are_refused() {
        let ids = input(vec![Axis::Fixed(1), Axis::Fixed(64)], DataType::INT64);
        let mut column = RandomColumn::new(&ids, Distribution::Normal, 7, 3).unwrap();
        assert!(column.sample(0).unwrap().to_f32s().iter().all(|&v| v == 0.0 || v == 1.0));
        let open = input(vec![Axis::Fixed(1), Axis::Open(None)], DataType::INT64);
        assert!(matches!(RandomColumn::new(&open, Distribution::Normal, 7, 3), Err(DataError::NoRandom { .. })));
    }
}
