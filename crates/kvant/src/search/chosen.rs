//! The mix for a target: the best by prediction, measured; corrected where the prediction was wrong.

use super::compared::Compared;
use super::kept::MeasuredMix;
use super::measured::{Measuring, Singles};
use super::prediction::{Loss, Prediction};
use super::setup::Budget;
use crate::error::{Error, ErrorKind};
use kvant_checkpoint::sensitivity::Trial;
use kvant_container::Remedy;
use kvant_quant::allocation::{Front, Selection};

/// How far a prediction may be off before it is corrected.
const TOLERANCE: f64 = 0.2;

/// Mixes that are measured for a limit of the loss, at most.
const TRIES: usize = 4;

/// Changes of a size in the headers of files that are made up for, at most.
const SIZES: usize = 8;

/// The mix that was chosen.
#[derive(Clone, Debug)]
pub(super) struct ChosenMix {
    pub(super) choices: Vec<usize>,
    pub(super) measured: MeasuredMix,
    /// Whether it is not the first that was measured for the target.
    pub(super) is_corrected: bool,
}

/// Finds the mix; `None` without a target.
///
/// # Errors
/// Targets that no mix reaches.
pub(super) fn chosen(
    measuring: &mut Measuring<'_, '_, '_>,
    singles: &Singles,
    compared: &[Compared],
    (budget, other_bytes): (Option<Budget>, u64),
) -> Result<Option<ChosenMix>, Error> {
    let Some(budget) = budget else { return Ok(None) };
    let prediction = |loss| Prediction::new(measuring.mixture, singles, compared, loss);
    let mut choice = Choosing { kl: prediction(Loss::Kl), compared, measuring };
    let found = match budget {
        Budget::FileBytes(bytes) => choice.within_bytes(|choice, front| choice.in_files(front, bytes, other_bytes)),
        Budget::GroupBytes(bytes) => choice.within_bytes(|_, front| Ok(front.within_bytes(bytes))),
        Budget::Kl(limit) => {
            let prediction = choice.kl.clone();
            choice.within_loss(Loss::Kl, &prediction, limit)
        }
        Budget::Top1(share) => {
            let prediction = Prediction::new(choice.measuring.mixture, singles, compared, Loss::Changes);
            choice.within_loss(Loss::Changes, &prediction, (1.0 - share).powi(2))
        }
    }?;
    match Trial::whole(choice.measuring.mixture, &found.choices).is_float() {
        true => Err(only_float()),
        false => Ok(Some(found)),
    }
}

/// The error for a target that asks for no quantization.
fn only_float() -> Error {
    let message = "for this target the best mix is the model in float: there is nothing to quantize";
    let looser = Remedy::text("give a smaller size or a larger loss");
    let remedies = vec![looser, Remedy::setting("options", "add larger ‹options›")];
    Error::new(ErrorKind::Invalid, message).with_remedies(remedies)
}

struct Choosing<'c, 's, 'a, 'e> {
    measuring: &'c mut Measuring<'s, 'a, 'e>,
    compared: &'c [Compared],
    kl: Prediction,
}

impl Choosing<'_, '_, '_, '_> {
    fn measured(&mut self, choices: Vec<usize>, is_corrected: bool) -> Result<ChosenMix, Error> {
        let measured = self.measuring.mixes(std::slice::from_ref(&choices))?[0];
        Ok(ChosenMix { choices, measured, is_corrected })
    }

    /// The mix within a size; one that it is compared with, if that is as small and turns out to lose less.
    fn within_bytes(
        &mut self,
        select: impl FnOnce(&Self, &Front) -> Result<Option<Selection>, Error>,
    ) -> Result<ChosenMix, Error> {
        let mixture = self.measuring.mixture;
        let front = Front::new(&self.kl.choices(mixture));
        let selection = select(self, &front)?.ok_or_else(|| Error::internal("no mix is small enough"))?;
        let bytes = selection.bytes;
        let best = self.measured(selection.choices, false)?;
        let better = self.compared.iter().filter(|mix| mixture.bytes(&mix.choices) <= bytes);
        let better = better.min_by(|a, b| a.measured.kl.total_cmp(&b.measured.kl));
        match better.filter(|mix| mix.measured.kl < best.measured.kl) {
            Some(mix) => self.measured(mix.choices.clone(), true),
            None => Ok(best),
        }
    }

    /// The selection whose files are at most this large, headers included.
    fn in_files(&self, front: &Front, bytes: u64, other_bytes: u64) -> Result<Option<Selection>, Error> {
        let mixture = self.measuring.mixture;
        // Headers are about as long as those of any mix.
        let mut limit = bytes.saturating_sub(other_bytes);
        for _ in 0..SIZES {
            let Some(selection) = front.within_bytes(limit).or_else(|| front.smallest()) else { return Ok(None) };
            if Trial::whole(mixture, &selection.choices).is_float() {
                return Ok(Some(selection));
            }
            let found = mixture.plan(&selection.choices)?.bytes();
            if found <= bytes {
                return Ok(Some(selection));
            }
            limit = selection.bytes.saturating_sub((found - bytes).max(1));
        }
        Ok(front.smallest())
    }

    /// The smallest mix with at most this loss, as measured.
    fn within_loss(&mut self, loss: Loss, prediction: &Prediction, limit: f64) -> Result<ChosenMix, Error> {
        let mixture = self.measuring.mixture;
        let front = Front::new(&prediction.choices(mixture));
        let is_met = |found: MeasuredMix| loss.of(found) <= limit;
        let mut best: Option<ChosenMix> = None;
        let mut scale = 1.0;
        for at in 0..TRIES {
            let Some(selection) = front.within_loss(limit / scale).or_else(|| front.best()) else { break };
            let is_again = best.as_ref().is_some_and(|best| best.choices == selection.choices);
            let predicted = selection.loss;
            let mix = self.measured(selection.choices, at > 0)?;
            let found = loss.of(mix.measured);
            let bytes = |mix: &ChosenMix| mixture.bytes(&mix.choices);
            let is_smaller = best.as_ref().is_none_or(|best| bytes(&mix) < bytes(best));
            let met = is_met(mix.measured);
            if met && is_smaller {
                best = Some(mix);
            }
            // A limit is a limit: what is above it is corrected however little, what is below only once.
            let is_off = (predicted / found.max(f64::MIN_POSITIVE) - 1.0).abs() > TOLERANCE;
            if is_again || met && (at > 0 || !is_off) || predicted <= 0.0 {
                break;
            }
            let ratio = found / predicted;
            scale = if met { ratio } else { (ratio * 1.02).max(scale * 1.05) };
        }
        let compared = self.compared.iter().filter(|mix| is_met(mix.measured));
        let compared = compared.min_by_key(|mix| mixture.bytes(&mix.choices));
        let smaller = compared
            .filter(|mix| best.as_ref().is_none_or(|best| mixture.bytes(&mix.choices) < mixture.bytes(&best.choices)));
        if let Some(mix) = smaller {
            best = Some(self.measured(mix.choices.clone(), true)?);
        }
        if let Some(best) = best {
            return Ok(best);
        }
        let last = front.best().ok_or_else(|| Error::internal("no group has a choice"))?;
        let last = self.measured(last.choices, true)?;
        match is_met(last.measured) {
            true => Ok(last),
            false => Err(unreachable(loss, limit, last.measured)),
        }
    }
}

/// The error for a limit that the best mix exceeds.
fn unreachable(loss: Loss, limit: f64, best: MeasuredMix) -> Error {
    let (message, setting, way) = match loss {
        Loss::Kl => (
            format!("no mix of these options has a KL divergence of at most {limit} nats: the best has {:.6}", best.kl),
            "max-kl",
            "give a larger ‹max-kl›",
        ),
        Loss::Changes => (
            format!(
                "no mix of these options agrees with the model on the likeliest token for {:.2} % of the tokens: the best does \
                 for {:.2} %",
                100.0 * (1.0 - limit.sqrt()),
                100.0 * best.top1_agreement.unwrap_or_default()
            ),
            "min-top1",
            "give a smaller ‹min-top1›",
        ),
    };
    let remedies = vec![Remedy::setting("options", "add larger ‹options›, or float"), Remedy::setting(setting, way)];
    Error::new(ErrorKind::Invalid, message).with_remedies(remedies)
}
