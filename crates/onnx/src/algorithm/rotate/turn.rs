//! A constant with its channels rotated: in f64, rounded once.

use kvant_quant::rotation::Rotation;
use rayon::prelude::*;

/// The change of the vectors along one axis of a constant.
pub(super) struct Turn<'p> {
    pub axis: usize,
    /// The place of the stream in the plan: tells rotations apart.
    pub stream: usize,
    pub rotation: &'p Rotation,
    /// Whether the mean over the channels goes first.
    pub centred: bool,
    /// Factors of the channels, and their name; before anything else.
    pub gain: Option<(String, Vec<f32>)>,
}

impl Turn<'_> {
    /// Turns every block of channels along the axis of a tensor.
    pub fn apply(&self, values: &mut [f32], dims: &[usize]) {
        if values.is_empty() {
            return;
        }
        let length = dims[self.axis];
        let inner: usize = dims[self.axis + 1..].iter().product();
        if inner <= 1 {
            return self.blocks(values);
        }
        for slab in values.chunks_exact_mut(length * inner) {
            let mut lanes = transposed(slab, length, inner);
            self.blocks(&mut lanes);
            slab.copy_from_slice(&transposed(&lanes, inner, length));
        }
    }

    fn blocks(&self, values: &mut [f32]) {
        let buffers = || (Vec::new(), Vec::new());
        let blocks = values.par_chunks_exact_mut(self.rotation.channels());
        blocks.for_each_init(buffers, |(vector, scratch), block| self.block(block, vector, scratch));
    }

    fn block(&self, block: &mut [f32], vector: &mut Vec<f64>, scratch: &mut Vec<f64>) {
        vector.clear();
        vector.extend(block.iter().map(|&value| f64::from(value)));
        if let Some((_, gain)) = &self.gain {
            vector.iter_mut().zip(gain).for_each(|(value, &gain)| *value *= f64::from(gain));
        }
        if self.centred {
            let mean = vector.iter().sum::<f64>() / vector.len() as f64;
            vector.iter_mut().for_each(|value| *value -= mean);
        }
        self.rotation.apply(vector, scratch);
        block.iter_mut().zip(vector).for_each(|(place, value)| *place = *value as f32);
    }
}

/// Rows as columns.
fn transposed(values: &[f32], rows: usize, columns: usize) -> Vec<f32> {
    let mut made = vec![0f32; values.len()];
    made.par_chunks_exact_mut(rows).enumerate().for_each(|(column, lane)| {
        lane.iter_mut().enumerate().for_each(|(row, place)| *place = values[row * columns + column]);
    });
    made
}
