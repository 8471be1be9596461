//! The distance of outputs from those of the float model.

use rayon::prelude::*;
use serde::{Deserialize, Serialize};

/// Elements that one thread adds up.
const CHUNK: usize = 1 << 14;

/// The mean of a power of the differences.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Loss {
    /// Of `d^2`.
    Mse,
    /// Of `|d|`.
    Mae,
    /// Of `sqrt |d|`: what AMD Quark names RMSE.
    Rmse,
}

impl Loss {
    /// Every loss with its name.
    pub const ALL: [(&'static str, Loss); 3] = [("mse", Loss::Mse), ("mae", Loss::Mae), ("rmse", Loss::Rmse)];

    /// The loss of that name.
    pub fn named(name: &str) -> Option<Loss> {
        Loss::ALL.iter().find(|(known, _)| *known == name).map(|(_, loss)| *loss)
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        Loss::ALL.iter().find(|(_, loss)| *loss == self).map_or("mse", |(name, _)| name)
    }

    /// The sum over elements, to be divided by their number once all are in. Sums run in a fixed order.
    ///
    /// # Panics
    /// If the numbers of elements differ.
    pub fn sum(self, reference: &[f32], output: &[f32]) -> f64 {
        assert_eq!(reference.len(), output.len(), "outputs come in pairs");
        let chunks = reference.par_chunks(CHUNK).zip(output.par_chunks(CHUNK));
        let sums: Vec<f64> = chunks.map(|(reference, output)| self.chunk_sum(reference, output)).collect();
        sums.iter().sum()
    }

    fn chunk_sum(self, reference: &[f32], output: &[f32]) -> f64 {
        let differences = reference.iter().zip(output).map(|(a, b)| f64::from((a - b).abs()));
        match self {
            Loss::Mse => differences.map(|d| d * d).sum(),
            Loss::Mae => differences.sum(),
            Loss::Rmse => differences.map(f64::sqrt).sum(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_sum_powers_of_differences() {
        let (a, b) = ([1.0, 2.0, 3.0], [5.0, 2.0, 2.0]);
        let sums = Loss::ALL.map(|(name, loss)| (Loss::named(name) == Some(loss), loss.sum(&a, &b)));
        assert_eq!(sums, [(true, 17.0), (true, 5.0), (true, 3.0)]);
        assert!(Loss::Mse.sum(&[f32::NAN], &[1.0]).is_nan());
    }
}
