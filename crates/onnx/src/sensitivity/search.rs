//! Sensitivity layer by layer, and the greedy search for the cheapest mix of types.
//!
//! The noise of a layer, `10^(-SQNR / 10)` of the outputs with it alone quantized, is taken to add up over layers. Steps, each of
//! which gives a layer its next types, are put in the order of what they take off the noise for each bit that they add to what is
//! read in an inference. The shortest beginning of that order which meets the target is found by halving, every model along the way
//! measured whole; then layers that turn out not to need their types are lowered again, the dearest first.

use super::bench::{Assignment, Bench, Watch};
use super::candidate::Candidate;
use super::error::SensitivityError;
use super::report::{Outcome, Row};
use super::target::Target;
use crate::evaluation::Quality;

/// Layers that are tried to be lowered again at most.
const TAKEN_BACK: usize = 32;

/// A layer gets a candidate's types.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct SearchStep {
    layer: usize,
    level: usize,
}

/// Measures each layer alone with the recipe's types and with each candidate's; with `leave_one_out` also all others without it.
pub fn sensitivities(
    bench: &mut Bench,
    leave_one_out: bool,
    watch: &mut Watch<'_>,
) -> Result<Vec<Row>, SensitivityError> {
    let levels: Vec<usize> = (0..=bench.candidates.len()).filter(|&level| !is_float(bench, level)).collect();
    let count = levels.len() + usize::from(leave_one_out);
    let all = (bench.layers.len() * count) as u64;
    let mut rows = Vec::with_capacity(bench.layers.len());
    for at in 0..bench.layers.len() {
        let mut alone = Vec::with_capacity(levels.len());
        for &level in &levels {
            alone.push(bench.measure(&only(bench, at, Some(level), None))?);
            watch((at * count + alone.len()) as u64, all);
        }
        let without = leave_one_out.then(|| bench.measure(&only(bench, at, None, Some(0)))).transpose()?;
        watch(((at + 1) * count) as u64, all);
        let layer = &bench.layers[at];
        let tensors = layer.parts.iter().flat_map(|&part| bench.parts[part].names.first().cloned()).collect();
        rows.push(Row { layer: layer.name.clone(), op: layer.op.clone(), tensors, alone, without, chosen: None });
    }
    Ok(rows)
}

fn is_float(bench: &Bench, level: usize) -> bool {
    level > 0 && bench.candidates[level - 1] == Candidate::Float
}

/// One layer in a choice, all others in another.
pub(super) fn only(bench: &Bench, layer: usize, choice: Option<usize>, others: Option<usize>) -> Assignment {
    let mut assignment = vec![others; bench.parts.len()];
    bench.layers[layer].parts.iter().for_each(|&part| assignment[part] = choice);
    assignment
}

/// Measures the recipe, and finds a mix that meets the target, if there is one. `watch` is told of models measured, of those that
/// may be needed.
///
/// Errors: a target that no mix reaches, or none but that of floats alone.
pub fn search(
    bench: &mut Bench,
    mut rows: Vec<Row>,
    target: Option<Target>,
    watch: &mut Watch<'_>,
) -> Result<Outcome, SensitivityError> {
    let plain = vec![0; bench.layers.len()];
    let recipe = bench.measure(&assignment(bench, &plain))?;
    let chosen = match target {
        None => None,
        Some(Target::Size(size)) => Some(within(bench, &rows, size)?),
        Some(target) if target.is_met_by(&recipe) => Some((plain.clone(), recipe)),
        Some(target) => Some(cheapest(bench, &rows, target, watch)?),
    };
    let levels = chosen.as_ref().map_or(&plain, |(levels, _)| levels);
    for (row, &level) in rows.iter_mut().zip(levels).filter(|(_, level)| **level > 0) {
        row.chosen = Some(bench.candidates[level - 1].to_string());
    }
    let mix = assignment(bench, levels);
    if bench.is_float(&mix)? {
        let recipe = format!("{:.2} dB", recipe.sqnr_db);
        return Err(SensitivityError::OnlyFloat { recipe, candidates: spelled(bench) });
    }
    let (float, least) = bench.bytes(&assignment(bench, &plain))?;
    let spelled = bench.candidates.iter().map(ToString::to_string);
    Ok(Outcome {
        candidates: std::iter::once("recipe".to_owned()).chain(spelled).collect(),
        layers: rows,
        recipe,
        mix: chosen.as_ref().map(|(_, quality)| *quality),
        bytes: [float, least, bench.bytes(&mix)?.1],
        trials: bench.trials,
        overrides: bench.overrides(&mix),
    })
}

/// What the parts become where layers have levels: the highest of the layers that share a part.
fn assignment(bench: &Bench, levels: &[usize]) -> Assignment {
    let mut assignment = vec![Some(0); bench.parts.len()];
    for (layer, &level) in bench.layers.iter().zip(levels) {
        layer.parts.iter().for_each(|&part| assignment[part] = assignment[part].max(Some(level)));
    }
    assignment
}

/// The noise of a layer alone, as a share of the signal.
pub(super) fn noise(bench: &Bench, rows: &[Row], layer: usize, level: usize) -> f64 {
    // Candidates but float have a measurement, in their order.
    let measured = (0..level).filter(|&below| !is_float(bench, below)).count();
    let sqnr = rows[layer].alone.get(measured).filter(|_| !is_float(bench, level)).map(|quality| quality.sqnr_db);
    sqnr.map_or(0.0, |sqnr| 10f64.powf(-sqnr / 10.0).min(1e30))
}

/// Bits of a layer at a level that an inference reads, or of its constants alone.
fn bits(bench: &Bench, layer: usize, level: usize, constants: bool) -> f64 {
    let part = |&part: &usize| {
        let (all, constant) = bench.bits(part, Some(level));
        if constants { constant as f64 } else { all as f64 }
    };
    bench.layers[layer].parts.iter().map(part).sum()
}

/// All steps, from the one that wins most for its bits.
fn steps(bench: &Bench, rows: &[Row], constants: bool) -> Vec<SearchStep> {
    let mut levels = vec![0; bench.layers.len()];
    let mut steps = Vec::new();
    let worth = |step: &SearchStep, levels: &[usize]| {
        let now = levels[step.layer];
        let gain = noise(bench, rows, step.layer, now) - noise(bench, rows, step.layer, step.level);
        let cost = bits(bench, step.layer, step.level, constants) - bits(bench, step.layer, now, constants);
        gain / cost.max(1.0)
    };
    loop {
        let open =
            |layer: usize| (levels[layer] + 1..=bench.candidates.len()).map(move |level| SearchStep { layer, level });
        let possible = (0..levels.len()).flat_map(open);
        let scored = possible.map(|step| (worth(&step, &levels), step));
        // The first of equals: the cheaper candidate of the earlier layer.
        let Some((_, best)) = scored.reduce(|best, next| if next.0 > best.0 { next } else { best }) else {
            return steps;
        };
        levels[best.layer] = best.level;
        steps.push(best);
    }
}

fn applied(bench: &Bench, steps: &[SearchStep]) -> Vec<usize> {
    let mut levels = vec![0; bench.layers.len()];
    steps.iter().for_each(|step| levels[step.layer] = step.level);
    levels
}

/// The shortest beginning of the steps that meets a target, without the steps that are not needed.
fn cheapest(
    bench: &mut Bench,
    rows: &[Row],
    target: Target,
    watch: &mut Watch<'_>,
) -> Result<(Vec<usize>, Quality), SensitivityError> {
    let steps = steps(bench, rows, false);
    // The best, those on the way to the shortest beginning, and those with a layer lowered again, at most.
    let halvings = steps.len().checked_ilog2().map_or(0, |halvings| halvings as usize + 1);
    let lowered = TAKEN_BACK.min(steps.len()) * bench.candidates.len();
    let expected = (1 + halvings + lowered) as u64;
    let mut measured = 0;
    let mut measure = |bench: &mut Bench, levels: &[usize]| {
        let quality = bench.measure(&assignment(bench, levels))?;
        measured += 1;
        watch(measured, expected);
        Ok::<_, SensitivityError>(quality)
    };
    let mut best = measure(bench, &applied(bench, &steps))?;
    if !target.is_met_by(&best) {
        return Err(unreachable(bench, &best));
    }
    let (mut misses, mut meets) = (0, steps.len());
    while meets - misses > 1 {
        let middle = misses.midpoint(meets);
        let quality = measure(bench, &applied(bench, &steps[..middle]))?;
        match target.is_met_by(&quality) {
            true => (meets, best) = (middle, quality),
            false => misses = middle,
        }
    }
    let mut levels = applied(bench, &steps[..meets]);
    for layer in dearest(bench, &levels) {
        for lower in 0..levels[layer] {
            let mut fewer = levels.clone();
            fewer[layer] = lower;
            let quality = measure(bench, &fewer)?;
            if target.is_met_by(&quality) {
                (levels, best) = (fewer, quality);
                break;
            }
        }
    }
    Ok((levels, best))
}

/// The layers with other types than the recipe's, those first that cost most.
fn dearest(bench: &Bench, levels: &[usize]) -> Vec<usize> {
    let added = |&layer: &usize| bits(bench, layer, levels[layer], false) - bits(bench, layer, 0, false);
    let mut raised: Vec<usize> = (0..levels.len()).filter(|&layer| levels[layer] > 0).collect();
    raised.sort_by(|a, b| added(b).total_cmp(&added(a)));
    raised.truncate(TAKEN_BACK);
    raised
}

fn spelled(bench: &Bench) -> String {
    bench.candidates.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

fn unreachable(bench: &Bench, best: &Quality) -> SensitivityError {
    let accuracy = best.top1.map_or_else(String::new, |top1| format!(" and {:.2} % top-1", top1 * 100.0));
    SensitivityError::Unreachable { candidates: spelled(bench), best: format!("{:.2} dB{accuracy}", best.sqnr_db) }
}

/// As many of the steps as a size has room for, in their order.
fn within(bench: &mut Bench, rows: &[Row], size: super::Size) -> Result<(Vec<usize>, Quality), SensitivityError> {
    let plain = vec![0; bench.layers.len()];
    let (float, least) = bench.bytes(&assignment(bench, &plain))?;
    let asked = size.bytes(float);
    if least > asked {
        return Err(SensitivityError::TooLarge { least, asked, bits: bench.weight_bits() });
    }
    let mut levels = plain;
    for step in steps(bench, rows, true) {
        let gains = noise(bench, rows, step.layer, levels[step.layer]) > noise(bench, rows, step.layer, step.level);
        let mut more = levels.clone();
        more[step.layer] = step.level;
        // Types that take no more constants are no matter of size: activations keep the recipe's.
        let grows = bits(bench, step.layer, step.level, true) > bits(bench, step.layer, levels[step.layer], true);
        if gains && grows && bench.bytes(&assignment(bench, &more))?.1 <= asked {
            levels = more;
        }
    }
    let quality = bench.measure(&assignment(bench, &levels))?;
    Ok((levels, quality))
}
