//! Whether the recipe's algorithms can be run on a checkpoint: refused here is what would else fail in the middle of a run.

use super::declared::Declared;
use super::error::{AlgorithmProblem, PlanError};
use super::{LayerId, PlannedBlock};
use kvant_container::Checkpoint;
use kvant_formats::algorithm::Algorithms;
use kvant_forward::evaluation::missing_gradient;
use kvant_forward::forward::{Decoder, gradient};
use kvant_model::family::has_two_towers;
use kvant_model::network::{Consumer, SmoothingPair};
use kvant_quant::scheme::TensorScheme;
use std::collections::HashSet;

impl Declared<'_> {
    /// Refuses algorithms where they have no data, or the model, the source or a scheme is not for them.
    pub(super) fn check_algorithms(&self, checkpoint: &Checkpoint, blocks: &[PlannedBlock]) -> Result<(), PlanError> {
        let algorithms = self.source.recipe.algorithms();
        let refused = |problem| Err(PlanError::Algorithm { algorithms: algorithms.to_string(), problem });
        if let Some(problem) = self.cannot_learn_rotation(algorithms, checkpoint)? {
            return refused(problem);
        }
        if algorithms.is_plain() {
            return Ok(());
        }
        if let Some(setting) = algorithms.rounding.needs_graph() {
            let rounding = algorithms.rounding.name().to_owned();
            return refused(AlgorithmProblem::Setting { rounding, setting });
        }
        if !self.runs_blocks() {
            return self.not_for_scheme(algorithms, self.chosen().collect()).map_or(Ok(()), refused);
        }
        if !self.source.recipe.is_calibrated() {
            return refused(AlgorithmProblem::NoData);
        }
        if let Some(problem) = self.unknown_inputs(checkpoint)? {
            return refused(problem);
        }
        let not_for_scheme = || self.not_for_scheme(algorithms, blocks.iter().flat_map(PlannedBlock::layers).collect());
        if let Some(problem) = self.without_codes(blocks).or_else(not_for_scheme) {
            return refused(problem);
        }
        // Before what another algorithm would solve: none runs on a model without a forward pass.
        let decoder = match Decoder::open_any(checkpoint) {
            Err(problem) => return refused(AlgorithmProblem::CannotRun(Box::new(problem))),
            Ok(decoder) => decoder,
        };
        let problem = self.without_links(algorithms, blocks).or_else(|| self.without_biases(algorithms, blocks));
        let problem = problem.or_else(|| self.without_gradients(algorithms, blocks, &decoder));
        problem.map_or(Ok(()), refused)
    }

    /// The reason that it is not known what layers read, if so.
    fn unknown_inputs(&self, checkpoint: &Checkpoint) -> Result<Option<AlgorithmProblem>, PlanError> {
        if self.source.network.family().is_some() {
            return Ok(None);
        }
        if checkpoint.config()?.is_none() {
            return Ok(Some(AlgorithmProblem::NoConfig));
        }
        // What has two towers is refused by the forward pass, which says what to do.
        let says_more = self.source.config.is_component || has_two_towers(&self.source.config);
        Ok((!says_more).then(|| AlgorithmProblem::Undescribed {
            architecture: super::build::architecture(&self.source.config),
            can_be_described: self.source.network.can_be_described(),
        }))
    }

    /// The reason that the matrices of a rotation cannot be learned, where they are to be: steps follow the gradient of the whole model.
    fn cannot_learn_rotation(
        &self,
        algorithms: &Algorithms,
        checkpoint: &Checkpoint,
    ) -> Result<Option<AlgorithmProblem>, PlanError> {
        if algorithms.learned_rotation().is_none() {
            return Ok(None);
        }
        if !self.source.recipe.is_calibrated() {
            return Ok(Some(AlgorithmProblem::NoData));
        }
        if let Some(problem) = self.unknown_inputs(checkpoint)? {
            return Ok(Some(problem));
        }
        let decoder = match Decoder::open(checkpoint) {
            Err(problem) => return Ok(Some(AlgorithmProblem::CannotRun(Box::new(problem)))),
            Ok(decoder) => decoder,
        };
        Ok(missing_gradient(&decoder).map(|step| AlgorithmProblem::CannotLearnRotation { step }))
    }

    /// Returns whether algorithms run the model block by block.
    pub(super) fn runs_blocks(&self) -> bool {
        let recipe = &self.source.recipe;
        recipe.algorithms().need_data() && !recipe.rounds_with_statistics()
    }

    /// Tuning follows the gradients of the blocks that have quantized layers.
    fn without_gradients(
        &self,
        algorithms: &Algorithms,
        blocks: &[PlannedBlock],
        decoder: &Decoder<'_>,
    ) -> Option<AlgorithmProblem> {
        let tuning = algorithms.tunings.first()?.name();
        blocks.iter().find_map(|block| {
            let layer = self.layers[block.layers().next()?.index()].name.clone();
            Some(AlgorithmProblem::NoGradients { tuning, layer, step: gradient::missing_step(decoder, block.index)? })
        })
    }

    /// A layer of a block whose scheme only simulates values.
    fn without_codes(&self, blocks: &[PlannedBlock]) -> Option<AlgorithmProblem> {
        let layers = blocks.iter().flat_map(PlannedBlock::layers).map(|index| &self.layers[index.index()]);
        let simulated = |scheme: TensorScheme| matches!(scheme, TensorScheme::Block(_) | TensorScheme::Cast(_));
        let layer = layers.into_iter().find(|layer| simulated(layer.scheme.weight))?;
        Some(AlgorithmProblem::NoCodes { layer: layer.name.clone(), scheme: layer.scheme.weight.to_string() })
    }

    /// A layer whose scheme the rounding or a tuning is not for.
    fn not_for_scheme(&self, algorithms: &Algorithms, layers: Vec<LayerId>) -> Option<AlgorithmProblem> {
        layers.into_iter().map(|index| &self.layers[index.index()]).find_map(|layer| {
            let scheme = layer.scheme.weight;
            let simulated = matches!(scheme, TensorScheme::Block(_) | TensorScheme::Cast(_));
            if simulated {
                return Some(AlgorithmProblem::NoCodes { layer: layer.name.clone(), scheme: scheme.to_string() });
            }
            let rounding = &algorithms.rounding;
            let of_rounding = rounding.refuses(&scheme).map(|reason| (rounding.name(), reason));
            let of_tuning = || algorithms.tunings.iter().find_map(|it| Some((it.name(), it.refuses(&scheme)?)));
            let (algorithm, reason) = of_rounding.or_else(of_tuning)?;
            Some(AlgorithmProblem::Scheme {
                algorithm: algorithm.to_owned(),
                reason,
                layer: layer.name.clone(),
                scheme: scheme.to_string(),
            })
        })
    }

    /// Transforms have nothing to do where no scale can be moved into a layer that is quantized.
    fn without_links(&self, algorithms: &Algorithms, blocks: &[PlannedBlock]) -> Option<AlgorithmProblem> {
        let transform = algorithms.transforms.first()?;
        let chosen = || self.chosen().map(|layer| &self.layers[layer.index()]);
        let modules: HashSet<&str> = chosen().map(|layer| layer.module.as_str()).collect();
        let positions: HashSet<usize> = chosen().map(|layer| layer.source.position).collect();
        let is_planned = |consumer: &Consumer| match consumer {
            Consumer::Linear(id) => modules.contains(self.source.network.linear(*id).module.as_str()),
            Consumer::Experts(id) => {
                let weight = self.source.network.experts()[id.index()].float_weight();
                weight.is_some_and(|weight| positions.contains(&self.source.tensors[weight].position))
            }
        };
        let serves = |link: &SmoothingPair| link.into.iter().any(is_planned);
        let none = !blocks.iter().flat_map(|block| &block.links).any(serves);
        none.then(|| AlgorithmProblem::NoLinks { transform: transform.name().to_owned() })
    }

    /// Correcting biases has nothing to do where no layer that is quantized has one: a new tensor would be unknown to loaders.
    fn without_biases(&self, algorithms: &Algorithms, blocks: &[PlannedBlock]) -> Option<AlgorithmProblem> {
        algorithms.correction?;
        let layers = blocks.iter().flat_map(PlannedBlock::layers).map(|index| &self.layers[index.index()]);
        let positions: HashSet<usize> = layers.map(|layer| layer.source.position).collect();
        let linears =
            self.source.network.linears().iter().filter(|linear| linear.bias.is_some()).map(|linear| linear.weight);
        let experts = self.source.network.experts().iter().filter(|experts| experts.bias.is_some());
        let mut biased = linears.chain(experts.filter_map(|experts| experts.float_weight()));
        let some = biased.any(|weight| positions.contains(&self.source.tensors[weight].position));
        (!some).then_some(AlgorithmProblem::NoBiases)
    }

    /// The layers whose codes are not those of the source.
    pub(super) fn chosen(&self) -> impl Iterator<Item = LayerId> + '_ {
        let layers = self.layers.iter().enumerate().filter(|(_, layer)| !layer.is_recoded());
        layers.map(|(index, _)| LayerId(index))
    }

    /// Layers that are rounded and that no block has: they are rounded to nearest.
    pub(super) fn outside(&self, blocks: &[PlannedBlock]) -> Vec<LayerId> {
        if !self.runs_blocks() {
            return Vec::new();
        }
        let inside: HashSet<LayerId> = blocks.iter().flat_map(PlannedBlock::layers).collect();
        self.chosen().filter(|index| !inside.contains(index)).collect()
    }
}
