//! A small matrix as a factor of a Kronecker product.

/// A square matrix, row by row.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Factor {
    size: usize,
    values: Vec<f64>,
}

impl Factor {
    /// Of `size * size` values.
    pub fn new(size: usize, values: Vec<f64>) -> Self {
        Self { size, values }
    }

    /// Of what a row and a column have where they meet.
    pub fn of(size: usize, element: impl Fn(usize, usize) -> f64) -> Self {
        Self::new(size, (0..size * size).map(|i| element(i / size, i % size)).collect())
    }

    /// Rows and columns.
    pub fn size(&self) -> usize {
        self.size
    }

    /// The element of a row and a column.
    pub fn at(&self, row: usize, column: usize) -> f64 {
        self.values[row * self.size + column]
    }

    /// Divided by the root of its order: orthogonal, if it is a Hadamard matrix.
    pub fn normalized(mut self) -> Self {
        let root = (self.size as f64).sqrt();
        self.values.iter_mut().for_each(|value| *value /= root);
        self
    }

    /// The product with another of its size.
    pub fn times(&self, other: &Self) -> Self {
        let sum = |row: usize, column: usize| (0..self.size).map(|k| self.at(row, k) * other.at(k, column)).sum();
        Self::of(self.size, sum)
    }

    /// Rows as columns.
    pub fn transposed(&self) -> Self {
        Self::of(self.size, |row, column| self.at(column, row))
    }

    /// The largest magnitude.
    pub fn peak(&self) -> f64 {
        self.values.iter().fold(0f64, |most, value| most.max(value.abs()))
    }

    /// The first factor `A` of the product `A x H`, where `H` is the normalized Hadamard matrix of order two; `None` where the matrix
    /// is no such product.
    pub fn without_hadamard(&self) -> Option<Self> {
        let half = Some(self.size / 2).filter(|half| *half > 0 && self.size.is_multiple_of(2))?;
        let is_product = |row: usize, column: usize| {
            let value = self.at(2 * row, 2 * column);
            let others = [(0, 1), (1, 0), (1, 1)].map(|(r, c)| self.at(2 * row + r, 2 * column + c));
            others == [value, value, -value]
        };
        let all = (0..half).all(|row| (0..half).all(|column| is_product(row, column)));
        all.then(|| Self::of(half, |row, column| self.at(2 * row, 2 * column) * std::f64::consts::SQRT_2))
    }

    /// Multiplies from the right the interleaved vectors of a longer vector, whose elements are `stride` apart.
    pub fn apply(&self, vector: &mut [f64], stride: usize) {
        if self.size == 2 {
            return self.apply_pairs(vector, stride);
        }
        let mut before = vec![0f64; self.size * stride];
        for block in vector.chunks_exact_mut(self.size * stride) {
            before.copy_from_slice(block);
            for (column, sums) in block.chunks_exact_mut(stride).enumerate() {
                sums.fill(0.0);
                for (row, values) in before.chunks_exact(stride).enumerate() {
                    let factor = self.at(row, column);
                    sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += value * factor);
                }
            }
        }
    }

    /// The same for a matrix of order two, of which products of Hadamard matrices have many.
    fn apply_pairs(&self, vector: &mut [f64], stride: usize) {
        let [a, b, c, d] = [self.at(0, 0), self.at(0, 1), self.at(1, 0), self.at(1, 1)];
        for block in vector.chunks_exact_mut(2 * stride) {
            let (first, second) = block.split_at_mut(stride);
            for (x, y) in first.iter_mut().zip(second) {
                (*x, *y) = (*x * a + *y * c, *x * b + *y * d);
            }
        }
    }
}
