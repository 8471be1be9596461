//! Scales of weights, inputs, outputs and the cache.

use super::DAMAGED;
use crate::format::stored::scalars::floats;
use crate::import::survey::StoredWeight;
use crate::verify::scan::{self, Scales};
use crate::verify::subject::CheckpointView;
use kvant_container::{Dtype, TensorView};
use kvant_quant::finding::Findings;
use kvant_weights::parts::{Content, ScaleEncoding};
use rayon::prelude::*;
use std::collections::HashSet;

/// Powers of two between the largest scale of a tensor and the median, from which on it is an outlier.
const FAR: u32 = 10;

/// A tensor of scales.
struct Stored<'a> {
    view: TensorView<'a>,
    encoding: ScaleEncoding,
    /// Whether a scale of 0 makes a group of zeros, and no division by it.
    may_be_zero: bool,
    /// Whether they multiply integers and do nothing else, so that the sign of one is one of its group's values.
    may_be_negative: bool,
}

/// The possible reasons for negative weight scales.
const SIGNED: &str = "searched scales and blocks of llama.cpp have such, and loaders multiply by them";

/// Scales that would all have come out below 0 by chance once in 65536 tensors; where signs are those of values, both occur.
const MANY: usize = 16;

/// Returns whether negative scales are what a format of signed scales makes, and no damage.
fn are_signed(stored: &Stored<'_>, found: &Scales) -> bool {
    // Groups of zeros have no sign.
    let signed = found.count - found.zero - found.not_finite;
    stored.may_be_negative && (found.negative < signed || signed < MANY)
}

pub(super) fn run(subject: &CheckpointView<'_>, findings: &mut Findings) {
    for (stored, found) in counted(subject) {
        report(&stored, &found, findings);
    }
    // Experts may share a tensor.
    let mut seen = HashSet::new();
    for weight in &subject.survey.weights {
        let view = part(weight, |content| matches!(content, Content::Biases { .. }));
        if let Some(view) = view.filter(|view| seen.insert(view.name())) {
            biases(weight, view, findings);
        }
    }
}

/// A tensor of a weight.
fn part<'a>(weight: &StoredWeight<'a>, is_wanted: impl Fn(&Content) -> bool) -> Option<TensorView<'a>> {
    weight.parts.iter().find(|(content, _)| is_wanted(content)).map(|(_, view)| *view)
}

/// What is added to codes times their scales: numbers, and none where the scale is 0, since no zero point stands for that.
fn biases(weight: &StoredWeight<'_>, view: TensorView<'_>, findings: &mut Findings) {
    let Ok(biases) = floats(view) else {
        return findings.error(view.name(), "some are NaN or infinite", DAMAGED);
    };
    let scales = part(weight, |content| matches!(content, Content::Scales { .. }));
    // Those that are no numbers are reported already.
    let scales = scales.and_then(|view| floats(view).ok()).unwrap_or_default();
    if scales.iter().zip(&biases).any(|(scale, bias)| *scale == 0.0 && *bias != 0.0) {
        findings.error(view.name(), "biases of groups whose scale is 0 are not 0", DAMAGED);
    }
}

pub(super) fn outliers(subject: &CheckpointView<'_>, findings: &mut Findings) {
    for (stored, found) in counted(subject).into_iter().filter(|(_, found)| found.spread() >= FAR) {
        let reason = format!("the largest scale, {}, is 2^{} times the median", found.largest, found.spread());
        findings.note(stored.view.name(), reason, "an outlier among the weights takes the resolution of its group");
    }
}

fn counted<'a>(subject: &CheckpointView<'a>) -> Vec<(Stored<'a>, Scales)> {
    let of_others = subject.survey.convolutions.iter().chain(&subject.survey.biases);
    let of_others = of_others.filter_map(|(_, scales)| of_floats(*scales));
    // Experts may share a tensor.
    let mut seen = HashSet::new();
    let all = of_weights(subject).chain(of_others).chain(of_activations(subject));
    let all: Vec<Stored<'a>> = all.filter(|stored| seen.insert(stored.view.name())).collect();
    let count = |stored: Stored<'a>| {
        let found = scan::scales(stored.view, stored.encoding);
        (stored, found)
    };
    all.into_par_iter().map(count).collect()
}

fn of_weights<'a>(subject: &CheckpointView<'a>) -> impl Iterator<Item = Stored<'a>> {
    let weights = subject.survey.weights.iter();
    let parts = weights.flat_map(|weight| weight.parts.iter().map(move |part| (weight, part)));
    parts.filter_map(|(weight, (content, view))| {
        let (view, is_integer) = (*view, weight.float.is_none());
        match content {
            Content::Scales { encoding, .. } => {
                let fits = view.bytes().len().is_multiple_of(encoding.size()) && is_encoded(view, *encoding);
                let is_plain = matches!(encoding, ScaleEncoding::F32 | ScaleEncoding::F16 | ScaleEncoding::Bf16);
                let may_be_negative = is_integer && is_plain;
                let may_be_zero = !is_of_tensor(weight) || has_no_values(weight);
                fits.then_some(Stored { view, encoding: *encoding, may_be_zero, may_be_negative })
            }
            Content::GlobalScale | Content::GlobalScaleReciprocal => of_floats(view),
            _ => None,
        }
    })
}

/// Returns whether a weight has one scale.
fn is_of_tensor(weight: &StoredWeight<'_>) -> bool {
    weight.tile.0 >= weight.rows && weight.tile.1 >= weight.columns
}

/// Returns whether all codes of a weight are the same: a layer of zeros, which another check tells.
fn has_no_values(weight: &StoredWeight<'_>) -> bool {
    let mut codes = weight.parts.iter().filter(|(content, _)| matches!(content, Content::Codes { .. }));
    codes.all(|(_, view)| scan::is_constant(*view))
}

/// What is stored otherwise than the scheme says is the layout's to report.
fn is_encoded(view: TensorView<'_>, encoding: ScaleEncoding) -> bool {
    view.dtype() == encoding.dtype() || (encoding == ScaleEncoding::E8m0 && view.dtype() == Dtype::F8_E8M0)
}

fn of_activations<'a>(subject: &CheckpointView<'a>) -> impl Iterator<Item = Stored<'a>> {
    let parameters = subject.survey.parameters.iter();
    parameters.filter(|(name, _)| !name.ends_with("zero_point")).filter_map(|(_, view)| of_floats(*view))
}

fn of_floats(view: TensorView<'_>) -> Option<Stored<'_>> {
    let encoding = ScaleEncoding::of_float(view.dtype())?;
    Some(Stored { view, encoding, may_be_zero: false, may_be_negative: false })
}

fn report(stored: &Stored<'_>, found: &Scales, findings: &mut Findings) {
    let name = stored.view.name();
    let of = |part: usize| format!("{part} of {} scales", found.count);
    if found.not_finite > 0 {
        findings.error(name, format!("{} are NaN or infinite", of(found.not_finite)), DAMAGED);
    }
    match (found.negative, are_signed(stored, found)) {
        (0, _) => {}
        (negative, false) => findings.error(name, format!("{} are negative", of(negative)), DAMAGED),
        (negative, true) => findings.note(name, format!("{} are negative", of(negative)), SIGNED),
    }
    match (found.zero, stored.may_be_zero) {
        (0, _) => {}
        (zero, false) => findings.error(name, format!("{} are 0: no value is left", of(zero)), DAMAGED),
        // In fp8, scales of groups that are small beside others vanish; nothing is lost but those.
        (zero, true) if stored.encoding == ScaleEncoding::E4m3 => {
            findings.note(name, format!("{} are 0: their groups are all zeros", of(zero)), "");
        }
        (zero, true) => findings.warning(name, format!("{} are 0: their groups are all zeros", of(zero)), DAMAGED),
    }
    if found.subnormal > 0 {
        let hint = "store scales in bf16 or f32, or keep such layers in float";
        let reason = format!("{} are below the least normal f16: they have lost precision", of(found.subnormal));
        findings.warning(name, reason, hint);
    }
}
