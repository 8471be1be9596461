//! Runs calibration data through the source model, in floats, while the statistics of a plan's places are gathered.

use super::error::CalibrationError;
use super::statistics::Statistics;
use kvant_forward::forward::ops::Ops;
use kvant_forward::forward::{self, ActivationHook, Decoder, Pass, Rows, chunks};
use kvant_numeric::simd::Isa;
use kvant_quant::activation::ActivationStatistic;
use kvant_quant::distribution::Distribution;
use kvant_weights::activation_point::ActivationPoint;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

/// Statistics of `sequences`, added to `statistics` in their order: the same at any number of threads.
///
/// Activations that exceed `memory` bytes are kept in a temporary file. `watch` receives the block, the tokens done and
/// the total; a token in one of `n` blocks counts as `1 / n`.
///
/// # Errors
///
/// Tokens outside the vocabulary, sequences longer than the model can take, and a stop.
pub fn observe(
    decoder: &Decoder<'_>,
    ops: &dyn Ops,
    sequences: &[Vec<u32>],
    statistics: Statistics,
    memory: u64,
    cancelled: &AtomicBool,
    mut watch: impl FnMut(usize, u64, u64),
) -> Result<Statistics, CalibrationError> {
    let chunks = chunks(decoder, sequences.iter().map(Vec::as_slice));
    let tokens: usize = chunks.iter().map(|chunk| chunk.tokens.len()).sum();
    let watcher = ObserverHook::new(statistics);
    let mut pass = Pass::begin(decoder, ops, &chunks, memory, Some(&watcher))?;
    let blocks = decoder.blueprint().blocks.len();
    let mut done = 0;
    for block in 0..blocks {
        decoder.check_block(block)?;
        for (index, chunk) in chunks.iter().enumerate() {
            if cancelled.load(Ordering::Relaxed) {
                return Err(CalibrationError::Cancelled);
            }
            pass.block(block, index, |_| {})?;
            done += chunk.tokens.len();
            watch(block, (done / blocks) as u64, tokens as u64);
        }
    }
    // Some layers stand behind the blocks.
    for chunk in 0..chunks.len() {
        let hidden = pass.hidden(chunk)?;
        decoder.readouts().iter().for_each(|readout| drop(pass.readout_rows(chunk, readout, &hidden)));
    }
    drop(pass);
    Ok(watcher.statistics())
}

/// Takes in what passes.
pub(crate) struct ObserverHook {
    sites: BTreeMap<ActivationPoint, Mutex<ObservedPoint>>,
    /// Distributions of points that others observe.
    others: BTreeMap<ActivationPoint, Distribution>,
}

/// A point that is observed.
struct ObservedPoint {
    statistic: ActivationStatistic,
    distribution: Option<Distribution>,
}

impl ObserverHook {
    pub(crate) fn new(statistics: Statistics) -> ObserverHook {
        let point = |(site, statistic): (&ActivationPoint, &ActivationStatistic)| {
            let (statistic, distribution) = (statistic.clone(), statistics.distribution(site).cloned());
            (site.clone(), Mutex::new(ObservedPoint { statistic, distribution }))
        };
        let sites: BTreeMap<_, _> = statistics.iter().map(point).collect();
        let others = statistics.distributions().iter().filter(|(site, _)| !sites.contains_key(*site));
        let others = others.map(|(site, distribution)| (site.clone(), distribution.clone())).collect();
        ObserverHook { sites, others }
    }

    /// The statistics with the new observations.
    pub(crate) fn statistics(self) -> Statistics {
        let mut statistics = Statistics::default();
        for (site, observed) in self.sites {
            let ObservedPoint { statistic, distribution } =
                observed.into_inner().unwrap_or_else(PoisonError::into_inner);
            distribution
                .into_iter()
                .for_each(|distribution| statistics.insert_distribution(site.clone(), distribution));
            statistics.insert(site, statistic);
        }
        for (site, distribution) in self.others {
            statistics.insert_distribution(site, distribution);
        }
        statistics
    }
}

impl ActivationHook for ObserverHook {
    fn wants(&self, site: forward::ActivationPoint<'_>) -> bool {
        self.sites.contains_key(&site.into())
    }

    fn see(&self, site: forward::ActivationPoint<'_>, rows: Rows<'_>) {
        let Some(observed) = self.sites.get(&site.into()) else { return };
        let mut observed = observed.lock().unwrap_or_else(PoisonError::into_inner);
        for sequence in rows.sequences() {
            observed.statistic.update(Isa::best(), sequence, rows.columns);
            if let Some(distribution) = &mut observed.distribution {
                distribution.update(Isa::best(), sequence);
            }
        }
    }
}
