//! The results of a transform for the products that read a tensor, kept for resuming: the search is expensive, its application is not.

use serde::{Deserialize, Serialize};

use super::limits::Shares;
use crate::algorithm::data::Data;
use crate::algorithm::input_scaling::SharedInputGroup;
use crate::error::AlgorithmError;

/// The scales of a tensor and the limits of its products' weights.
#[derive(Default)]
pub(super) struct Found {
    /// The scales; none where ones are best, or where no sample had the tensor.
    pub scales: Option<Vec<f32>>,
    /// Why there are none, if something kept the transform from finding them.
    pub reason: Option<String>,
    /// The limits.
    pub shares: Vec<Shares>,
}

#[derive(Serialize, Deserialize)]
struct StoredResult {
    tensor: String,
    /// The bits of the scales.
    scales: Option<Vec<u32>>,
    reason: Option<String>,
    shares: Vec<StoredShares>,
}

/// The limits of a weight.
#[derive(Serialize, Deserialize)]
pub(super) struct StoredShares {
    pub weight: String,
    pub group: usize,
    /// Their bits.
    pub shares: Vec<u32>,
}

impl Found {
    /// Keeps it.
    pub fn keep(&self, name: &str, readers: &SharedInputGroup, data: &Data<'_>) -> Result<(), AlgorithmError> {
        let bits = |scales: &Vec<f32>| scales.iter().map(|scale| scale.to_bits()).collect();
        let stored = StoredResult {
            tensor: readers.tensor.clone(),
            scales: self.scales.as_ref().map(bits),
            reason: self.reason.clone(),
            shares: self.shares.iter().map(Shares::stored).collect(),
        };
        data.keep(name, &stored, &[])
    }

    /// The results of an interrupted run.
    pub fn kept(name: &str, readers: &SharedInputGroup, data: &Data<'_>) -> Option<Found> {
        let (stored, _): (StoredResult, _) = data.kept(name)?;
        let scales = stored.scales.map(|bits| bits.into_iter().map(f32::from_bits).collect::<Vec<f32>>());
        let fits = stored.tensor == readers.tensor && scales.as_ref().is_none_or(|all| all.len() == readers.channels);
        let shares = stored.shares.into_iter().map(|stored| Shares::of_stored(stored, readers));
        let found = Found { scales, reason: stored.reason, shares: shares.collect::<Option<_>>()? };
        fits.then_some(found)
    }
}
