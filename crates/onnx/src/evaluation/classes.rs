//! Classification: whether the classes a model finds most likely are those of the labels, or of another model.

use super::shown::TopClass;

/// The number of largest values considered.
const FIRST: usize = 5;

/// Counts over the rows of an output of shape `[rows, classes]`.
#[derive(Debug, Clone, Default)]
pub(super) struct Classes {
    rows: u64,
    classes: usize,
    labelled: bool,
    agree: [u64; 2],
    reference: [u64; 2],
    quantized: [u64; 2],
    each: Vec<RowClasses>,
}

/// The likeliest classes of a row in both models; `None` where there are no numbers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct RowClasses {
    pub reference: Option<TopClass>,
    pub quantized: Option<TopClass>,
}

/// The most rows whose classes are kept one by one.
const KEPT: usize = 1 << 16;

/// Shares of rows, for the largest class and for the largest five; these are `None` where there are no more than five.
pub(super) type Shares = (Option<f64>, Option<f64>);

impl Classes {
    /// Adds the rows of one sample, with a label for each where there are labels.
    pub fn add(&mut self, classes: usize, reference: &[f32], quantized: &[f32], labels: Option<&[i64]>) {
        self.classes = classes;
        self.labelled |= labels.is_some();
        let rows = reference.chunks_exact(classes).zip(quantized.chunks_exact(classes));
        for (row, (reference, quantized)) in rows.enumerate() {
            if self.each.len() < KEPT {
                self.each.push(RowClasses { reference: TopClass::of(reference), quantized: TopClass::of(quantized) });
            }
            // A row without numbers ranks no classes.
            if reference.iter().any(|value| value.is_nan()) || !reference.iter().any(|value| value.is_finite()) {
                continue;
            }
            self.rows += 1;
            let (reference, quantized) = (largest(reference), largest(quantized));
            count(&mut self.agree, &quantized, reference.first().copied());
            let label = labels.and_then(|labels| usize::try_from(*labels.get(row)?).ok());
            count(&mut self.reference, &reference, label);
            count(&mut self.quantized, &quantized, label);
        }
    }

    /// The classes of each row, of the first ones if there are very many.
    pub fn each(&self) -> &[RowClasses] {
        &self.each
    }

    /// The share of rows whose reference class is the quantized model's first, or among its first five.
    pub fn agreement(&self) -> Shares {
        self.shares(&self.agree, true)
    }

    /// The share of rows whose label is the reference's first class, or among its first five.
    pub fn reference_accuracy(&self) -> Shares {
        self.shares(&self.reference, self.labelled)
    }

    /// The share of rows whose label is the quantized model's first class, or among its first five.
    pub fn accuracy(&self) -> Shares {
        self.shares(&self.quantized, self.labelled)
    }

    fn shares(&self, counts: &[u64; 2], known: bool) -> Shares {
        let share = |count: u64, known: bool| (known && self.rows > 0).then(|| count as f64 / self.rows as f64);
        (share(counts[0], known), share(counts[1], known && self.classes > FIRST))
    }
}

fn count(counts: &mut [u64; 2], largest: &[usize], class: Option<usize>) {
    let Some(class) = class else { return };
    counts[0] += u64::from(largest.first() == Some(&class));
    counts[1] += u64::from(largest.contains(&class));
}

/// The places of the largest values, the largest first; of equal ones the earlier.
fn largest(values: &[f32]) -> Vec<usize> {
    let mut best: Vec<usize> = Vec::with_capacity(FIRST + 1);
    for (place, value) in values.iter().enumerate() {
        let at = best.iter().position(|&b| value > &values[b]).unwrap_or(best.len());
        if at < FIRST {
            best.insert(at, place);
            best.truncate(FIRST);
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn top_five_are_sorted_with_ties_by_index() {
        assert_eq!(largest(&[1.0, 5.0, 3.0, 5.0, 0.0, 4.0, 2.0]), [1, 3, 5, 2, 6]);
        assert_eq!(largest(&[0.0, 1.0]), [1, 0]);
    }

    #[test]
    fn rows_without_numbers_do_not_count() {
        let mut classes = Classes::default();
        classes.add(2, &[f32::NAN, 1.0, f32::INFINITY, f32::INFINITY], &[0.0; 4], None);
        assert_eq!(classes.agreement(), (None, None));
        classes.add(2, &[f32::NEG_INFINITY, 1.0], &[0.0, 1.0], None);
        assert_eq!(classes.agreement().0, Some(1.0));
    }

    #[test]
    fn agreement_and_accuracy_are_row_shares() {
        let mut classes = Classes::default();
        let first = [9.0, 8.0, 7.0, 6.0, 5.0, 4.0];
        let sixth = [4.0, 5.0, 6.0, 7.0, 8.0, 9.0];
        let second = [8.0, 9.0, 7.0, 6.0, 5.0, 4.0];
        classes.add(6, &first, &first, Some(&[0]));
        classes.add(6, &first, &sixth, Some(&[5]));
        classes.add(6, &first, &second, Some(&[1]));
        classes.add(6, &second, &second, Some(&[1]));
        assert_eq!(classes.agreement(), (Some(0.5), Some(0.75)));
        assert_eq!(classes.accuracy(), (Some(1.0), Some(1.0)));
        assert_eq!(classes.reference_accuracy(), (Some(0.5), Some(0.75)));
        let mut few = Classes::default();
        few.add(2, &[1.0, 0.0], &[1.0, 0.0], None);
        assert_eq!((few.agreement(), few.accuracy()), ((Some(1.0), None), (None, None)));
    }
}
