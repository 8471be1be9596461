//! Measuring groups and mixes, with what is known already.

use super::kept::{KeptFile, MeasuredMix};
use crate::error::Error;
use crate::events::{Reporter, Resumption, Stage, Unit};
use crate::job::{Search, SearchMethod};
use kvant_checkpoint::sensitivity::{Estimates, MixError, Mixture, Trial, Trials};
use xxhash_rust::xxh3::xxh3_64;

/// What measuring takes.
pub(super) struct Measuring<'s, 'a, 'e> {
    pub(super) search: &'s Search,
    pub(super) mixture: &'s Mixture<'a>,
    /// The sequences that sensitivities are measured on.
    pub(super) sequences: &'s [Vec<u32>],
    /// The windows that whole mixes are measured on, if these are others.
    pub(super) windows: Option<&'s [Vec<u32>]>,
    pub(super) method: SearchMethod,
    pub(super) kept: KeptFile,
    pub(super) reporter: &'s Reporter<'e>,
}

/// Measurements of every choice of every group.
pub(super) type Singles = Vec<Vec<MeasuredMix>>;

impl Measuring<'_, '_, '_> {
    /// Every group alone in each of its choices.
    pub(super) fn singles(&mut self) -> Result<Singles, Error> {
        let mixture = self.mixture;
        let all = mixture.groups().iter().enumerate();
        let pairs: Vec<(usize, usize)> = all
            .flat_map(|(group, one)| (0..one.choices.len()).map(move |choice| (group, choice)))
            .filter(|(group, choice)| !mixture.is_float(*group, *choice))
            .collect();
        let method = self.method;
        let is_known = |kept: &KeptFile, pair: (usize, usize)| {
            let (group, option) = names(mixture, method, pair);
            kept.single(&group, &option).is_some()
        };
        let open: Vec<(usize, usize)> = pairs.iter().copied().filter(|pair| !is_known(&self.kept, *pair)).collect();
        if open.len() < pairs.len() {
            let (done, total) = (pairs.len() - open.len(), pairs.len());
            self.reporter.resumed(Resumption::Candidates { done: done as u64, total: total as u64 });
        }
        if self.method == SearchMethod::Estimated {
            self.estimate(&open)?;
        }
        let is_open = |pair: &(usize, usize)| !is_known(&self.kept, *pair);
        let open: Vec<(usize, usize)> = open.into_iter().filter(is_open).collect();
        let trials = open.iter().map(|(group, choice)| Trial::single(*group, *choice)).collect();
        let kept_names: Vec<(String, String)> = open.iter().map(|pair| self.names(*pair)).collect();
        self.run(trials, self.sequences, |kept, index, found| {
            kept.keep_single(&kept_names[index].0, &kept_names[index].1, found)
        })?;
        let found = |group: usize, choice: usize| {
            if mixture.is_float(group, choice) {
                return Some(MeasuredMix::FLOAT);
            }
            let (group, option) = names(mixture, method, (group, choice));
            self.kept.single(&group, &option)
        };
        let of_group = |group: usize| {
            let choices = 0..mixture.groups()[group].choices.len();
            choices.map(|choice| found(group, choice)).collect::<Option<Vec<_>>>()
        };
        (0..mixture.groups().len())
            .map(of_group)
            .collect::<Option<Vec<_>>>()
            .ok_or_else(|| Error::internal("a group was not measured"))
    }

    /// The group and the option of a pair, as they are kept.
    fn names(&self, pair: (usize, usize)) -> (String, String) {
        names(self.mixture, self.method, pair)
    }

    /// Estimates what can be of these pairs.
    fn estimate(&mut self, pairs: &[(usize, usize)]) -> Result<(), Error> {
        let (mixture, method, job) = (self.mixture, self.method, &self.search.job);
        let estimates = Estimates::new(mixture, pairs);
        if estimates.pairs().is_empty() {
            return Ok(());
        }
        let progress = self.reporter.stage(Stage::Search, Unit::Tokens);
        let watch = progress.watch_cancelled();
        let (ops, memory, sequences, kept) =
            (job.data.precision.ops(), job.limits.memory.0, self.sequences, &mut self.kept);
        let mut found = |group: usize, choice: usize, kl: f64| {
            let (group, option) = names(mixture, method, (group, choice));
            kept.keep_single(&group, &option, MeasuredMix::estimated(kl))
        };
        let work = || estimates.estimate(&ops, sequences, memory, &mut found, watch);
        Ok(job.limits.pool()?.install(work)?)
    }

    /// Whole mixes, on the windows if there are any.
    pub(super) fn mixes(&mut self, mixes: &[Vec<usize>]) -> Result<Vec<MeasuredMix>, Error> {
        let mixture = self.mixture;
        let sequences = self.windows.unwrap_or(self.sequences);
        let data = xxh3_64(&sequences.iter().flatten().flat_map(|token| token.to_le_bytes()).collect::<Vec<_>>());
        let key = |mix: &Vec<usize>| {
            let recipe = mixture.recipe(mix).to_toml();
            format!("{:016x}-{data:016x}", xxh3_64(recipe.as_bytes()))
        };
        let keys: Vec<String> = mixes.iter().map(key).collect();
        let open: Vec<usize> = (0..mixes.len()).filter(|index| self.kept.mix(&keys[*index]).is_none()).collect();
        let trials: Vec<Trial> = open.iter().map(|index| Trial::whole(mixture, &mixes[*index])).collect();
        let is_float: Vec<bool> = mixes.iter().map(|mix| Trial::whole(mixture, mix).is_float()).collect();
        self.run(trials, sequences, |kept, index, found| kept.keep_mix(keys[open[index]].clone(), found))?;
        let found = |index: usize| match is_float[index] {
            true => Some(MeasuredMix::FLOAT),
            false => self.kept.mix(&keys[index]),
        };
        (0..mixes.len()).map(found).collect::<Option<Vec<_>>>().ok_or_else(|| Error::internal("a mix was not measured"))
    }

    fn run(
        &mut self,
        trials: Vec<Trial>,
        sequences: &[Vec<u32>],
        mut keep: impl FnMut(&mut KeptFile, usize, MeasuredMix) -> Result<(), MixError> + Send,
    ) -> Result<(), Error> {
        if trials.iter().all(Trial::is_float) {
            return Ok(());
        }
        let job = &self.search.job;
        let trials = Trials::new(self.mixture, trials);
        let progress = self.reporter.stage(Stage::Search, Unit::Tokens);
        let watch = progress.watch_cancelled();
        let (ops, memory, kept) = (job.data.precision.ops(), job.limits.memory.0, &mut self.kept);
        let mut found = |index: usize, comparison| keep(kept, index, MeasuredMix::from(&comparison));
        let work = || trials.measure(&ops, sequences, memory, &mut found, watch);
        Ok(job.limits.pool()?.install(work)?)
    }
}

/// The names of a group and of one of its options, under which they are kept: estimates apart from measurements.
fn names(mixture: &Mixture<'_>, method: SearchMethod, (group, choice): (usize, usize)) -> (String, String) {
    let option = mixture.choice_name(group, choice);
    let option = match method {
        SearchMethod::Measured => option,
        SearchMethod::Estimated => format!("{option}, {}", method.name()),
    };
    (mixture.groups()[group].name.clone(), option)
}
