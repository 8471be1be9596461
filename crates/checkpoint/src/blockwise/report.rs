//! The report of a calibrated run on every layer and smoothing pair: part of `calibration.json` beside the checkpoint, and of the table
//! at the end of a run. Computes nothing but totals.

use kvant_data::calibration::HeldOut;
use serde::{Deserialize, Serialize};

/// The result for one layer. Losses are squared errors of the layer's outputs over all held-out tokens, or over all
/// calibration tokens without any, `tr((W - Q) H (W - Q)^T)`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LayerReport {
    /// Its name in the output.
    pub layer: String,
    /// The rounding used: `gptq`, `rtn`.
    pub algorithm: String,
    /// Calibration tokens that reached it.
    pub tokens: u64,
    /// Held-out tokens that reached it, over which the losses are taken; none where they are those of calibration tokens, which
    /// say little of other text.
    pub held_out: Option<u64>,
    /// The loss without any algorithm: the source's weights rounded to nearest, scales moved afterwards,
    /// for the same outputs. For weights with more than a thousand rows, estimated on a subset of rows.
    pub loss_rtn: Option<f64>,
    /// The loss of the codes that were written.
    pub loss: Option<f64>,
    /// The damping added to the diagonal of the Hessian.
    pub damping: Option<f64>,
    /// Inputs that were zero in all tokens.
    pub dead_columns: usize,
    /// Deviations from the request, with reasons.
    pub note: Option<String>,
}

impl LayerReport {
    /// The loss as a share of that of rounding to nearest, where both are known and there is something to improve.
    pub fn share(&self) -> Option<f64> {
        let nearest = self.loss_rtn.filter(|loss| *loss > 0.0)?;
        Some(self.loss? / nearest)
    }
}

/// The effect of a transform on one smoothing pair.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LinkReport {
    /// The block.
    pub block: usize,
    /// The module whose outputs are divided.
    pub from: String,
    /// The modules whose inputs are multiplied.
    pub into: Vec<String>,
    /// The transform's name.
    pub transform: String,
    /// The exponent that was chosen, where one was searched for.
    pub ratio: Option<f32>,
    /// The loss without the transform: over the tokens on which it is searched for, or held-out ones where those are few.
    pub loss_before: Option<f64>,
    /// The loss with it.
    pub loss_after: Option<f64>,
    /// The largest scale.
    pub largest_scale: Option<f32>,
    /// The reason that nothing was done, or the low number of tokens.
    pub note: Option<String>,
}

/// The effect of a tuning on a block. Losses are squared errors of the block's output as a share of the float output's square, the mean over tokens.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TuningReport {
    /// The block.
    pub block: usize,
    /// The tuning's name.
    pub tuning: String,
    /// Tokens over which the losses are taken: held-out ones, or those of calibration where none are held out.
    pub tokens: u64,
    /// The loss at the start.
    pub loss_before: f64,
    /// The loss of what was kept: that at the start if the tuning did not lower it.
    pub loss_after: f64,
}

/// A layer reached by too few tokens, and its treatment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct InsufficientCalibration {
    /// Its name in the output.
    pub layer: String,
    /// Calibration tokens that reached it.
    pub tokens: u64,
    /// Its inputs: with fewer tokens than these an algorithm knows less than it decides.
    pub inputs: usize,
    /// The treatment by each transform and by the rounding, joined by `and`.
    pub treatment: String,
}

impl InsufficientCalibration {
    /// The note on the layer.
    pub(super) fn words(&self) -> String {
        format!("few calibration tokens ({} for {} inputs): {}", self.tokens, self.inputs, self.treatment)
    }
}

/// The report of a calibrated run, in the order of its work.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct BlockwiseReport {
    /// The layers.
    pub layers: Vec<LayerReport>,
    /// The links.
    pub links: Vec<LinkReport>,
    /// The tunings of blocks.
    #[serde(default)]
    pub tunings: Vec<TuningReport>,
    /// The layers that too few tokens reached.
    pub starved: Vec<InsufficientCalibration>,
    /// The sequences on which losses are measured; none where the data had no more than what calibration took.
    #[serde(default)]
    pub held_out: Option<HeldOut>,
}

impl BlockwiseReport {
    /// Adds what came later.
    pub fn extend(&mut self, later: BlockwiseReport) {
        self.layers.extend(later.layers);
        self.links.extend(later.links);
        self.tunings.extend(later.tunings);
        self.starved.extend(later.starved);
    }

    /// Reports a layer reached by too few tokens; a further treatment is added to an existing entry.
    pub(super) fn starve(&mut self, starved: InsufficientCalibration) {
        match self.starved.iter_mut().find(|known| known.layer == starved.layer) {
            Some(known) => {
                known.tokens = known.tokens.min(starved.tokens);
                known.treatment = format!("{} and {}", known.treatment, starved.treatment);
            }
            None => self.starved.push(starved),
        }
    }

    /// The note on a layer, if too few tokens reached it.
    pub(super) fn scarcity(&self, layer: &str) -> Option<String> {
        self.starved.iter().find(|starved| starved.layer == layer).map(InsufficientCalibration::words)
    }

    /// The geometric mean of the layers' [shares](LayerReport::share): losses of different layers do not add up.
    pub fn mean_share(&self) -> Option<f64> {
        let logarithms = self.layers.iter().filter_map(LayerReport::share).filter(|share| *share > 0.0).map(f64::ln);
        let (count, sum) = logarithms.fold((0_u32, 0.0), |(count, sum), next| (count + 1, sum + next));
        (count > 0).then(|| (sum / f64::from(count)).exp())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layer(loss_rtn: Option<f64>, loss: Option<f64>) -> LayerReport {
        LayerReport {
            layer: "fc".to_owned(),
            algorithm: "gptq".to_owned(),
            tokens: 3,
            held_out: None,
            loss_rtn,
            loss,
            damping: None,
            dead_columns: 0,
            note: None,
        }
    }

    #[test]
    fn share_is_known_only_for_known_losses() {
        let shares = [(Some(4.0), Some(1.0)), (Some(0.0), Some(0.0)), (None, Some(1.0)), (Some(1.0), None)];
        let shares: Vec<_> = shares.map(|(nearest, loss)| layer(nearest, loss).share()).to_vec();
        assert_eq!(shares, [Some(0.25), None, None, None]);
    }

    #[test]
    fn insufficient_calibration_is_reported_once_per_layer() {
        let starved = |layer: &str, tokens, treatment: &str| InsufficientCalibration {
            layer: layer.to_owned(),
            tokens,
            inputs: 128,
            treatment: treatment.to_owned(),
        };
        let mut report = BlockwiseReport::default();
        report.starve(starved("fc", 7, "not scaled by awq"));
        report.starve(starved("other", 7, "scaled by awq"));
        report.starve(starved("fc", 5, "rounded to nearest"));
        let words = "few calibration tokens (5 for 128 inputs): not scaled by awq and rounded to nearest";
        assert_eq!((report.starved.len(), report.scarcity("fc").as_deref()), (2, Some(words)));
        assert_eq!(report.scarcity("third"), None);
    }

    #[test]
    fn blockwise_reports_add_up_and_read_back() {
        let mut report = BlockwiseReport { layers: vec![layer(Some(4.0), Some(1.0))], ..BlockwiseReport::default() };
        assert_eq!(BlockwiseReport::default().mean_share(), None);
        let treatment = "rounded to nearest".to_owned();
        let starved = InsufficientCalibration { layer: "fc".to_owned(), tokens: 0, inputs: 4, treatment };
        report.extend(BlockwiseReport {
            layers: vec![layer(Some(1.0), Some(1.0))],
            links: vec![],
            tunings: vec![TuningReport {
                block: 1,
                tuning: "tune".to_owned(),
                tokens: 8,
                loss_before: 0.5,
                loss_after: 0.25,
            }],
            starved: vec![starved],
            held_out: None,
        });
        assert_eq!((report.layers.len(), report.starved.len(), report.tunings.len()), (2, 1, 1));
        assert_eq!(report.mean_share(), Some(0.5));
        let json = serde_json::to_string(&report).unwrap();
        assert_eq!(serde_json::from_str::<BlockwiseReport>(&json).unwrap(), report);
    }
}
