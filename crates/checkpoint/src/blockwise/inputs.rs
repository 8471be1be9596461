//! Input statistics of a block for transforms: magnitudes per channel over all data, and a sample of the rows.

use kvant_forward::forward::{ActivationHook, ActivationPoint, ImageSpan, Rows, Spans};
use kvant_quant::transform::ChannelStatistic;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

/// Which rows are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Keep {
    /// Keeps one of every n rows.
    Rows(usize),
    /// Keeps one of every n sequences.
    Sequences(usize),
}

/// A sequence that is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct KeptSequence {
    /// Its rows.
    pub(super) length: usize,
    /// The images in it.
    pub(super) images: Vec<ImageSpan>,
}

/// The kept inputs of one module.
#[derive(Clone, Debug)]
pub(super) struct Inputs {
    pub(super) statistic: ChannelStatistic,
    pub(super) columns: usize,
    pub(super) keep: Keep,
    seen: usize,
    /// The rows that are kept.
    pub(super) rows: Vec<f32>,
    /// The sequences that they are of, where sequences are kept.
    pub(super) sequences: Vec<KeptSequence>,
}

impl Inputs {
    pub(super) fn new(columns: usize, keep: Keep) -> Inputs {
        let (rows, sequences) = (Vec::new(), Vec::new());
        Inputs { statistic: ChannelStatistic::new(columns), columns, keep, seen: 0, rows, sequences }
    }

    /// Divides the kept rows per channel; the statistic remains that of the original inputs.
    pub(super) fn divide(&mut self, scales: &[f32]) {
        for row in self.rows.chunks_mut(self.columns.max(1)) {
            row.iter_mut().zip(scales).for_each(|(x, scale)| *x /= scale);
        }
    }

    fn add(&mut self, rows: Rows<'_>) {
        self.statistic.update(rows.data);
        match self.keep {
            Keep::Rows(step) => self.add_rows(rows.data, step),
            Keep::Sequences(step) => {
                let images = if let Spans::One(images) = rows.spans { images } else { &[] };
                rows.sequences().for_each(|sequence| self.add_sequence(sequence, images, step));
            }
        }
    }

    fn add_rows(&mut self, rows: &[f32], step: usize) {
        let (columns, count) = (self.columns, rows.len() / self.columns.max(1));
        let first = self.seen.next_multiple_of(step) - self.seen;
        for row in (first..count).step_by(step) {
            self.rows.extend_from_slice(&rows[row * columns..(row + 1) * columns]);
        }
        self.seen += count;
    }

    fn add_sequence(&mut self, rows: &[f32], images: &[ImageSpan], step: usize) {
        if self.seen.is_multiple_of(step) {
            self.rows.extend_from_slice(rows);
            let length = rows.len() / self.columns.max(1);
            self.sequences.push(KeptSequence { length, images: images.to_vec() });
        }
        self.seen += 1;
    }
}

/// Looks at the inputs of modules.
#[derive(Debug, Default)]
pub(super) struct InputsTap {
    inputs: HashMap<String, Mutex<Inputs>>,
}

impl InputsTap {
    pub(super) fn new(inputs: impl Iterator<Item = (String, Inputs)>) -> InputsTap {
        InputsTap { inputs: inputs.map(|(module, inputs)| (module, Mutex::new(inputs))).collect() }
    }

    /// The observed inputs.
    pub(super) fn into_inputs(self) -> HashMap<String, Inputs> {
        let inner = |inputs: Mutex<Inputs>| inputs.into_inner().unwrap_or_else(PoisonError::into_inner);
        self.inputs.into_iter().map(|(module, inputs)| (module, inner(inputs))).collect()
    }
}

impl ActivationHook for InputsTap {
    fn wants(&self, site: ActivationPoint<'_>) -> bool {
        matches!(site, ActivationPoint::Input(module) if self.inputs.contains_key(module))
    }

    fn see(&self, site: ActivationPoint<'_>, rows: Rows<'_>) {
        let ActivationPoint::Input(module) = site else { return };
        let Some(inputs) = self.inputs.get(module) else { return };
        inputs.lock().unwrap_or_else(PoisonError::into_inner).add(rows);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(keep: Keep, parts: &[usize], spans: Spans<'_>) -> (Vec<f32>, Vec<usize>, u64) {
        let rows: Vec<f32> = (0..40).map(|i| (i / 2) as f32).collect();
        let (mut inputs, mut rest) = (Inputs::new(2, keep), rows.as_slice());
        for part in parts {
            let (first, others) = rest.split_at(part * 2);
            inputs.add(Rows { data: first, columns: 2, spans });
            rest = others;
        }
        let lengths = inputs.sequences.iter().map(|sequence| sequence.length).collect();
        (inputs.rows.iter().step_by(2).copied().collect(), lengths, inputs.statistic.tokens())
    }

    #[test]
    fn rows_are_sampled_evenly_regardless_of_chunks() {
        let whole = kept(Keep::Rows(3), &[20], Spans::Even(4));
        assert_eq!(whole, (vec![0.0, 3.0, 6.0, 9.0, 12.0, 15.0, 18.0], vec![], 20));
        assert_eq!(whole, kept(Keep::Rows(3), &[1, 1, 3, 0, 7, 8], Spans::Even(1)));
    }

    #[test]
    fn input_rows_are_divided_by_channel() {
        let mut inputs = Inputs::new(2, Keep::Rows(1));
        inputs.add(Rows { data: &[1.0, 2.0, 3.0, 4.0], columns: 2, spans: Spans::Even(2) });
        inputs.divide(&[1.0, 0.5]);
        assert_eq!(inputs.rows, [1.0, 4.0, 3.0, 8.0]);
    }

    #[test]
    fn sequences_are_kept_whole() {
        let whole = kept(Keep::Sequences(3), &[8, 12], Spans::Even(4));
        assert_eq!(whole, (vec![0.0, 1.0, 2.0, 3.0, 12.0, 13.0, 14.0, 15.0], vec![4, 4], 20));
    }
}
