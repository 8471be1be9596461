//! Sums over data from which the importance of inputs follows.

/// Sums over the inputs of a tensor, which has one matrix, or one an expert.
#[derive(Clone, Debug, PartialEq)]
pub struct InputSums {
    /// Input channels of a matrix.
    pub columns: usize,
    /// Squares of the inputs, matrix after matrix.
    pub squares: Vec<f64>,
    /// Rows that were summed, for each matrix.
    pub counts: Vec<u64>,
}

/// The origin of sums.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Provenance {
    /// The file that they were read from.
    pub file: Option<String>,
    /// The data.
    pub datasets: Vec<String>,
    /// Sequences.
    pub chunks: u32,
    /// Tokens of a sequence.
    pub chunk_size: u32,
}

impl InputSums {
    /// Nothing yet.
    pub fn new(columns: usize, matrices: usize) -> InputSums {
        InputSums { columns, squares: vec![0.0; columns * matrices], counts: vec![0; matrices] }
    }

    /// Adds rows that a matrix reads.
    pub fn add(&mut self, matrix: usize, rows: &[f32]) {
        let sums = &mut self.squares[matrix * self.columns..][..self.columns];
        for row in rows.chunks_exact(self.columns.max(1)) {
            sums.iter_mut().zip(row).for_each(|(sum, x)| *sum += f64::from(*x) * f64::from(*x));
            self.counts[matrix] += 1;
        }
    }
}
