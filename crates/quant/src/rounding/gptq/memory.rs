//! The memory that rounding takes, for plans. Not how it is kept small, which is where it is spent.

use super::sweep::BAND;
use super::{Gptq, Variant};

impl Gptq {
    /// An upper estimate of the memory of [`prepare`](Gptq::prepare) and then [`round`](super::GptqFactors::round) for a weight
    /// of `rows` and `features` columns, beside the Hessian and the weight, on as many threads as the current rayon pool has.
    ///
    /// A factor in f64 takes `4 features^2`, the factors of columns in f32 `2 features^2`, those of the input mismatch up to as much
    /// again, twice while they are found.
    pub fn peak_bytes(&self, features: usize, rows: usize) -> u64 {
        let (square, threads) = ((features as u64).pow(2), rayon::current_num_threads() as u64);
        let (features, rows) = (features as u64, rows as u64);
        let (finding, mismatch) = match self.variant {
            Variant::Gptq => (0, 0),
            Variant::Gptaq { .. } => (4 * square + 8 * 128 * features * threads, 2 * square),
            Variant::Qronos => (4 * square + 8 * 128 * features * threads, 4 * square),
        };
        let factor = 4 * square + 4 * 256 * features;
        let factors = 2 * square + 2 * self.block as u64 * features;
        // Codes twice; of a band weights by rows and by columns, errors, arguments, and codes twice.
        let rounding = 2 * rows * features + threads.min(rows.div_ceil(BAND as u64)) * BAND as u64 * features * 18;
        // The factor is freed while the factors are computed from it.
        (factor + mismatch + finding.max(factors / 4)).max(factors + mismatch + rounding)
    }
}
