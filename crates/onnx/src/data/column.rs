//! One input's values for every sample, from arrays in files: how arrays are cut into samples.
//!
//! A model's input of `r` axes, the first of them the batch, takes from an array of `r` axes as many rows at a time as its
//! batch is (one where that is open); an array of one axis more holds whole inputs; an array of one axis less is one sample.

use std::path::PathBuf;

use kvant_samples::{Array, Stored};

use super::error::DataError;
use super::inputs::{Axis, Input, display_axes};

/// The values of one input for every sample.
pub(crate) trait Column: Send {
    /// Number of samples.
    fn len(&self) -> usize;

    /// The values of one sample, of a shape the input takes. In order this is cheapest.
    fn sample(&mut self, index: usize) -> Result<Array<'_>, DataError>;

    /// The images of a sample; none of other data.
    fn images(&self, index: usize) -> &[PathBuf] {
        let _ = index;
        &[]
    }

    /// The file that a sample comes from, with the array in it if there is one.
    fn place(&self, index: usize) -> PathBuf;
}

/// A column of arrays, one after the other.
#[derive(Debug)]
pub(super) struct ArrayColumn {
    input: String,
    parts: Vec<Part>,
}

#[derive(Debug)]
struct Part {
    stored: Stored,
    samples: usize,
    /// The shape of one sample, as the model takes it.
    shape: Vec<usize>,
}

impl ArrayColumn {
    /// Checks that each array fits the input.
    pub fn new(input: &Input, arrays: Vec<Stored>) -> Result<Self, DataError> {
        let parts = arrays.into_iter().map(|stored| Part::new(input, stored)).collect::<Result<_, _>>()?;
        Ok(Self { input: input.name.clone(), parts })
    }
}

impl Column for ArrayColumn {
    fn len(&self) -> usize {
        self.parts.iter().map(|part| part.samples).sum()
    }

    fn sample(&mut self, index: usize) -> Result<Array<'_>, DataError> {
        let mut rest = index;
        for part in &mut self.parts {
            if rest < part.samples {
                let places: usize = part.shape.iter().product();
                return Ok(part.stored.read(rest * places, part.shape.clone())?);
            }
            rest -= part.samples;
        }
        Err(DataError::Mismatch { input: self.input.clone(), problem: format!("there is no sample {index}") })
    }

    fn place(&self, index: usize) -> PathBuf {
        let ends = self.parts.iter().scan(0, |sum, part| {
            *sum += part.samples;
            Some((*sum, part))
        });
        let holds = |(end, _): &(usize, &Part)| index < *end;
        ends.into_iter().find(holds).map_or_else(PathBuf::new, |(_, part)| part.stored.place.clone())
    }
}

impl Part {
    fn new(input: &Input, stored: Stored) -> Result<Self, DataError> {
        let wrong = |what: String| {
            let problem = format!("{}: {what}", stored.place.display());
            DataError::Mismatch { input: input.name.clone(), problem }
        };
        let cut = cut(input.axes.as_deref(), &stored.shape);
        let (samples, shape) = cut.ok_or_else(|| {
            let axes = input.axes.as_deref().map(display_axes).unwrap_or_default();
            wrong(format!("an array of shape {:?} is not a sequence of samples of shape {axes}", stored.shape))
        })?;
        match samples {
            0 => Err(wrong(format!("an array of shape {:?} has not one sample", stored.shape))),
            _ => Ok(Self { stored, samples, shape }),
        }
    }
}

/// Number of samples in an array, and the shape of one; `None` if it does not fit the axes.
fn cut(axes: Option<&[Axis]>, shape: &[usize]) -> Option<(usize, Vec<usize>)> {
    let rows = |batch: usize| Some((shape.first()? / batch.max(1), [&[batch], &shape[1..]].concat()));
    let Some(axes) = axes else { return rows(1) };
    let (samples, one) = match shape.len() as i64 - axes.len() as i64 {
        1 => (shape[0], shape[1..].to_vec()),
        0 if axes.is_empty() => (1, Vec::new()),
        0 => rows(match axes[0] {
            Axis::Fixed(batch) => batch,
            Axis::Open(_) => 1,
        })?,
        -1 => (1, [&[1], shape].concat()),
        _ => return None,
    };
    axes.iter().zip(&one).all(|(axis, &size)| axis.fits(size)).then_some((samples, one))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrays_are_split_by_the_models_axes() {
        let open = || Axis::Open(None);
        let image = [open(), Axis::Fixed(3), Axis::Fixed(8)];
        assert_eq!(cut(Some(&image), &[5, 3, 8]), Some((5, vec![1, 3, 8])));
        assert_eq!(cut(Some(&image), &[3, 8]), Some((1, vec![1, 3, 8])));
        assert_eq!(cut(Some(&image), &[5, 2, 3, 8]), Some((5, vec![2, 3, 8])));
        assert_eq!(cut(Some(&image), &[5, 3, 9]), None);
        assert_eq!(cut(Some(&image), &[8]), None);
        let fixed = [Axis::Fixed(2), Axis::Fixed(8)];
        assert_eq!(cut(Some(&fixed), &[5, 8]), Some((2, vec![2, 8])));
        assert_eq!(cut(Some(&fixed), &[7, 2, 8]), Some((7, vec![2, 8])));
        assert_eq!(cut(Some(&fixed), &[8]), None);
        assert_eq!(cut(Some(&[]), &[]), Some((1, vec![])));
        assert_eq!(cut(Some(&[]), &[4]), Some((4, vec![])));
        assert_eq!(cut(None, &[4, 7]), Some((4, vec![1, 7])));
        assert_eq!(cut(None, &[]), None);
    }
}
