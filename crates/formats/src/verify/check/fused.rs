//! Layers that engines make one of: quantized alike, and with the scales that one layer has.

use crate::format::FormatHandle;
use crate::format::stored::scalars::floats;
use crate::import::survey::StoredWeight;
use crate::loader_rules::{Scale, Sharing};
use crate::verify::subject::CheckpointView;
use kvant_model::network::{Linear, Siblings};
use kvant_quant::finding::Findings;
use kvant_weights::parts::Content;

pub(super) fn schemes(subject: &CheckpointView<'_>, findings: &mut Findings) {
    if is_unfused(subject) {
        return;
    }
    for group in subject.network.siblings() {
        let members = members(subject, group);
        let is_excused = |member: &&Linear| subject.is_unread(&member.module) || is_blocks(subject, member);
        if members.iter().any(is_excused) {
            continue;
        }
        let scheme = |linear: &Linear| match subject.weight(&linear.module) {
            Some(weight) => subject.facts(weight).to_string(),
            None => "floats".to_owned(),
        };
        let Some(first) = members.first().map(|member| scheme(member)) else { continue };
        if let Some(other) = members.iter().find(|member| scheme(member) != first) {
            let reason =
                format!("is {}, and `{}`, which engines fuse with it, is {first}", scheme(other), members[0].module);
            findings.error(&other.module, reason, "give both the same scheme, or keep both in float");
        }
    }
}

/// Returns whether a layer is blocks of GGUF: llama.cpp fuses no tensors, and its mixes give them several types.
fn is_blocks(subject: &CheckpointView<'_>, linear: &Linear) -> bool {
    let weight = subject.weight(&linear.module);
    weight.is_some_and(|weight| weight.parts.iter().any(|(content, _)| *content == Content::Blocks))
}

fn members<'s>(subject: &'s CheckpointView<'_>, group: &Siblings) -> Vec<&'s Linear> {
    group.members.iter().map(|id| subject.network.linear(*id)).collect()
}

/// Returns whether loaders of the format fuse no layers.
fn is_unfused(subject: &CheckpointView<'_>) -> bool {
    FormatHandle::reading(subject.method()).is_some_and(|format| format.capabilities().fuses_nothing)
}

pub(super) fn scales(subject: &CheckpointView<'_>, findings: &mut Findings) {
    if is_unfused(subject) {
        return;
    }
    for group in subject.network.siblings() {
        let members = members(subject, group);
        let weights: Vec<_> = members.iter().filter_map(|member| subject.weight(&member.module)).collect();
        of_tensors(subject, &weights, findings);
    }
}

/// Scales of whole tensors, of which a fused layer has one.
fn of_tensors(subject: &CheckpointView<'_>, weights: &[&StoredWeight<'_>], findings: &mut Findings) {
    let scales: Vec<(&str, f32)> = weights.iter().filter_map(|weight| global_scale(subject, weight)).collect();
    let Some(((_, first), (name, other))) = scales.first().zip(scales.iter().find(|(_, scale)| *scale != scales[0].1))
    else {
        return;
    };
    let is_nvfp4 = weights.iter().any(|weight| subject.facts(weight).scale == Scale::E4m3WithGlobal);
    let both = format!("the scale of the tensor is {other}, that of `{}` is {first}", weights[0].module);
    if is_nvfp4 {
        let reason = format!("{both}: engines fuse both and take one of them");
        findings.error(*name, reason, "quantize the model again with a tool that gives both one scale");
    } else {
        let reason = format!("{both}: engines fuse both, and quantize them again with the larger");
        findings.note(*name, reason, "use a scale for each channel to keep the codes as they are");
    }
}

/// The scale of a tensor, where it has but one, or one over the others.
fn global_scale<'a>(subject: &CheckpointView<'_>, weight: &StoredWeight<'a>) -> Option<(&'a str, f32)> {
    let facts = subject.facts(weight);
    let only_one = facts.sharing == Sharing::Tensor && facts.scale == Scale::Plain && weight.float.is_some();
    let part = weight.parts.iter().find(|(content, _)| match content {
        Content::GlobalScale | Content::GlobalScaleReciprocal => true,
        Content::Scales { .. } => only_one,
        _ => false,
    });
    let (_, view) = part?;
    floats(*view).ok()?.first().map(|scale| (view.name(), *scale))
}
