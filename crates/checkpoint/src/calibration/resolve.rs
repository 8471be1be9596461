//! From the statistics of a plan's places to the parameters that its output stores. Pure: no model, no data.

use super::error::CalibrationError;
use super::report::{Filled, Report};
use super::statistics::Statistics;
use crate::plan::{ParameterTensor, Plan};
use kvant_numeric::kernel::Range;
use kvant_quant::activation::StaticParameters;
use kvant_weights::activation_point::{Parameters, PlannedActivationPoint};
use kvant_weights::parts::{ParameterContent, ScaleEncoding};
use std::collections::BTreeMap;

/// The result of calibration.
#[derive(Clone, Debug, PartialEq)]
pub struct Resolved {
    /// The stored parameters.
    pub parameters: Parameters,
    /// Notices for the user.
    pub report: Report,
}

/// Parameters from statistics.
///
/// * Places that share a scale (the inputs of layers that loaders fuse under one global scale, of all experts of a block
///   under such a scale, keys and values before the rotary embedding) get that of their joined ranges: for symmetric
///   schemes the largest.
/// * An unobserved point, such as an expert that no token was routed to, gets the joined ranges of its group:
///   the same projection of the block's other experts, and modules with the same input. The report names it.
/// * Scales are at least the minimum scale of their point.
///
/// * Values that are NaN or infinite are left out and reported, up to one for every ten tokens: beyond that the model computes
///   nothing with these activations at any scale.
///
/// # Errors
/// [`CalibrationError`], where neither a point nor its group was observed, or the statistics are not of this plan.
pub fn resolve(plan: &Plan, statistics: &Statistics) -> Result<Resolved, CalibrationError> {
    resolve_points(plan, plan.sites().iter(), statistics)
}

/// The same of some points, with all that share a scale with one of them.
pub(crate) fn resolve_points<'p>(
    plan: &Plan,
    points: impl Iterator<Item = &'p PlannedActivationPoint>,
    statistics: &Statistics,
) -> Result<Resolved, CalibrationError> {
    let observed = points.map(|planned| Observed::new(planned, statistics)).collect::<Result<Vec<_>, _>>()?;
    let scale_group = ScaleGroups::of(&observed);
    let mut report = Report { tokens: extremes(&observed), ..Report::default() };
    let mut parameters = BTreeMap::new();
    for place in &observed {
        if place.not_finite > place.tokens / 10 {
            return Err(place.unseen());
        }
        let ranges = scale_group.ranges(place, &mut report).ok_or_else(|| place.unseen())?;
        let found = place.parameters(&ranges, &mut report);
        place.check_scales(plan, &found)?;
        parameters.insert(place.planned.site.clone(), found);
        if place.not_finite > 0 {
            report.not_finite.push((place.planned.site.clone(), place.not_finite));
        }
    }
    Ok(Resolved { parameters: Parameters::new(parameters), report })
}

fn extremes(observed: &[Observed<'_>]) -> (u64, u64) {
    let tokens = || observed.iter().map(|place| place.tokens);
    (tokens().min().unwrap_or(0), tokens().max().unwrap_or(0))
}

/// A point with its observations.
struct Observed<'a> {
    planned: &'a PlannedActivationPoint,
    /// The ranges to cover; none where nothing was seen.
    ranges: Option<Vec<Range>>,
    tokens: u64,
    not_finite: u64,
}

impl<'a> Observed<'a> {
    /// The reason that there is no range.
    fn unseen(&self) -> CalibrationError {
        let site = self.planned.site.clone();
        match self.not_finite {
            0 => CalibrationError::Unobserved(site),
            count => CalibrationError::NotFinite { site, count, tokens: self.tokens },
        }
    }

    fn new(planned: &'a PlannedActivationPoint, statistics: &Statistics) -> Result<Observed<'a>, CalibrationError> {
        let statistic = statistics.get(&planned.site).ok_or_else(|| CalibrationError::Missing(planned.site.clone()))?;
        Ok(Observed {
            planned,
            ranges: statistic.ranges(planned.scheme.scheme, planned.arithmetic),
            tokens: statistic.tokens(),
            not_finite: statistic.not_finite(),
        })
    }

    /// Refuses scales that would be stored as infinity.
    fn check_scales(&self, plan: &Plan, found: &StaticParameters) -> Result<(), CalibrationError> {
        let site = &self.planned.site;
        let is_half = |tensor: &ParameterTensor| {
            tensor.part.site == *site && tensor.part.content == ParameterContent::Scales(ScaleEncoding::F16)
        };
        let largest = if plan.parameter_tensors().iter().any(is_half) { f32::from(half::f16::MAX) } else { f32::MAX };
        match found.scales.iter().find(|scale| **scale > largest || scale.is_nan()) {
            Some(scale) => Err(CalibrationError::TooLarge { site: site.clone(), scale: *scale }),
            None => Ok(()),
        }
    }

    fn parameters(&self, ranges: &[Range], report: &mut Report) -> StaticParameters {
        let PlannedActivationPoint { scheme, arithmetic, min_scale, site, .. } = self.planned;
        let mut parameters = StaticParameters::of_ranges(scheme.scheme, ranges, *arithmetic);
        let least = arithmetic.round(min_scale.value());
        if parameters.scales.iter().any(|scale| *scale < least) {
            report.raised.push(site.clone());
            parameters.scales.iter_mut().for_each(|scale| *scale = scale.max(least));
        }
        parameters
    }
}

/// The joined ranges of points that substitute for one another.
struct ScaleGroups<'a> {
    groups: BTreeMap<usize, Vec<&'a Observed<'a>>>,
}

impl<'a> ScaleGroups<'a> {
    fn of(observed: &'a [Observed<'a>]) -> ScaleGroups<'a> {
        let mut groups: BTreeMap<usize, Vec<&Observed<'_>>> = BTreeMap::new();
        for place in observed {
            if let Some(scale_group) = place.planned.scale_group {
                groups.entry(scale_group).or_default().push(place);
            }
        }
        ScaleGroups { groups }
    }

    /// The ranges that a point must cover.
    fn ranges(&self, place: &Observed<'_>, report: &mut Report) -> Option<Vec<Range>> {
        let own = place.ranges.clone();
        if own.is_some() && !place.planned.shares {
            return own;
        }
        let Some(members) = place.planned.scale_group.and_then(|scale_group| self.groups.get(&scale_group)) else {
            return own;
        };
        let length = own.as_ref().map(Vec::len);
        let fits = |ranges: &&Vec<Range>| length.is_none_or(|length| length == ranges.len());
        let seen = || members.iter().filter_map(|member| member.ranges.as_ref()).filter(fits);
        let joined = seen().skip(1).fold(seen().next()?.clone(), join);
        if own.is_none() {
            let (from, tokens) = (seen().count(), members.iter().map(|member| member.tokens).sum());
            report.filled.push(Filled { site: place.planned.site.clone(), from, tokens });
        }
        Some(joined)
    }
}

fn join(a: Vec<Range>, b: &Vec<Range>) -> Vec<Range> {
    a.into_iter().zip(b).map(|(a, b)| a.join(*b)).collect()
}
