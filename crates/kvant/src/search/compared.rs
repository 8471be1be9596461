//! Mixes that a search is compared with: every option everywhere, and the simple heuristic that gives the first and the last block the
//! next larger option.

use super::kept::MeasuredMix;
use super::measured::Measuring;
use crate::error::Error;
use kvant_checkpoint::sensitivity::{LayerGroup, MixOption, Mixture};
use kvant_forward::evaluation::ModelStage;

/// A mix that is measured for comparison.
#[derive(Clone, Debug)]
pub(super) struct Compared {
    pub(super) name: String,
    /// The option that it has everywhere.
    pub(super) uniform: Option<usize>,
    pub(super) choices: Vec<usize>,
    pub(super) measured: MeasuredMix,
}

/// Measures them.
pub(super) fn compared(measuring: &mut Measuring<'_, '_, '_>) -> Result<Vec<Compared>, Error> {
    let mixture = measuring.mixture;
    let mut mixes: Vec<(String, Option<usize>, Vec<usize>)> = Vec::new();
    let mut options: Vec<usize> = (0..mixture.options().len()).collect();
    options.sort_by_key(|option| mixture.bytes(&mixture.uniform(*option)));
    for (at, option) in options.iter().copied().enumerate() {
        if mixture.options()[option] == MixOption::Float {
            continue;
        }
        let (name, uniform) = (mixture.options()[option].name(), mixture.uniform(option));
        if mixes.iter().all(|(_, _, other)| *other != uniform) {
            mixes.push((name.to_owned(), Some(option), uniform));
        }
        let Some(next) = options.get(at + 1) else { continue };
        let larger = mixture.options()[*next].name();
        let mix = with_larger_ends(mixture, option, *next);
        let is_new = mixes.iter().all(|(_, _, other)| *other != mix);
        mixes.extend(is_new.then(|| (format!("{name}, first and last block {larger}"), None, mix)));
    }
    let choices: Vec<Vec<usize>> = mixes.iter().map(|(_, _, choices)| choices.clone()).collect();
    let measured = measuring.mixes(&choices)?;
    let all = mixes.into_iter().zip(measured);
    Ok(all.map(|((name, uniform, choices), measured)| Compared { name, uniform, choices, measured }).collect())
}

/// An option everywhere but in the first and the last block.
fn with_larger_ends(mixture: &Mixture<'_>, option: usize, larger: usize) -> Vec<usize> {
    let blocks = mixture.groups().iter().filter_map(block);
    let (first, last) = (blocks.clone().min(), blocks.max());
    let (plain, larger) = (mixture.uniform(option), mixture.uniform(larger));
    let is_end = |group: &LayerGroup| block(group).is_some_and(|block| Some(block) == first || Some(block) == last);
    let pairs = plain.into_iter().zip(larger);
    mixture
        .groups()
        .iter()
        .zip(pairs)
        .map(|(group, (plain, larger))| if is_end(group) { larger } else { plain })
        .collect()
}

fn block(group: &LayerGroup) -> Option<usize> {
    if let ModelStage::Block(block) = group.stage { Some(block) } else { None }
}
