//! What a rotation changes in a model, tensor by tensor, found from its network alone.

use super::{InputRotations, LearnedRotations, MatrixPlace};
use kvant_model::model_config::ModelConfig;
use kvant_model::network::{
    Consumer, ExpertsStorage, Input, Network, NormId, PairPath, ScaleSource, SmoothingPair, StreamObstacle, TensorMeta,
    expert_module,
};
use kvant_quant::rotation::{Rotate, Rotation, RotationPlace};
use kvant_weights::weight::{ImportedTensor, PlacedRotation, RotatedRows};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The rotation that is asked for.
#[derive(Clone, Copy)]
pub(super) struct Asked<'r> {
    pub rotate: &'r Rotate,
    /// What was learned of its matrices, if anything.
    pub learned: Option<&'r LearnedRotations>,
}

impl Asked<'_> {
    /// The rotation of a place, with what was learned of it.
    fn placed(&self, place: RotationPlace, rotation: Rotation) -> Result<PlacedRotation, Refusal> {
        let rotation = match self.learned {
            None => Some(rotation),
            Some(learned) => learned.get(place).and_then(|learned| rotation.followed_by(Arc::clone(learned))),
        };
        let wrong = || Refusal::new(format!("has a rotation `{place}` that the learned matrices do not fit"));
        Ok(PlacedRotation { place, rotation: Arc::new(rotation.ok_or_else(wrong)?) })
    }
}

/// The reason that a model cannot be rotated, and the tensor that is concerned.
pub(super) struct Refusal {
    pub tensor: Option<usize>,
    pub reason: String,
    /// Whether it is about the residual stream, so that values may be rotated all the same.
    pub of_stream: bool,
}

impl Refusal {
    fn new(reason: impl Into<String>) -> Refusal {
        Refusal { tensor: None, reason: reason.into(), of_stream: false }
    }

    fn of(tensor: usize, reason: &str) -> Refusal {
        Refusal { tensor: Some(tensor), ..Refusal::new(reason) }
    }

    fn of_stream(self) -> Refusal {
        Refusal { of_stream: true, ..self }
    }
}

/// The change of a weight.
#[derive(Clone, Debug)]
pub(super) struct WeightChange {
    pub place: MatrixPlace,
    /// The norm whose weights it takes over.
    pub norm: Option<NormId>,
    pub inputs: Option<PlacedRotation>,
    pub outputs: Option<RotatedRows>,
}

/// What a rotation changes, by the positions of tensors.
pub(super) struct Changes {
    pub weights: BTreeMap<usize, WeightChange>,
    /// The modules whose inputs must be rotated while the model runs.
    pub inputs: InputRotations,
    pub biases: BTreeMap<usize, RotatedRows>,
    /// Norms whose weights move into what reads them.
    pub norms: BTreeSet<NormId>,
    /// Whether the head needs a separate weight.
    pub separate_head: bool,
    /// The rotation of the residual stream.
    stream: Option<PlacedRotation>,
    /// Channels of the residual stream.
    pub channels: usize,
    table: Option<usize>,
    last_norm: Option<NormId>,
}

/// A head that shared its weight with a table.
pub(super) struct SeparateHead {
    pub name: String,
    pub table: usize,
    pub norm: Option<NormId>,
    pub rotation: PlacedRotation,
}

/// A weight, and the bias with it.
struct Layer {
    weight: usize,
    bias: Option<usize>,
    place: MatrixPlace,
    rows: usize,
}

impl Changes {
    /// What a rotation changes in a network.
    ///
    /// # Errors
    /// [`Refusal`] where it would change the model's function.
    pub fn of(
        network: &Network,
        metas: &[TensorMeta],
        asked: Asked<'_>,
        config: &ModelConfig,
    ) -> Result<Changes, Refusal> {
        let mut changes = Changes {
            weights: BTreeMap::new(),
            inputs: InputRotations::new(),
            biases: BTreeMap::new(),
            norms: BTreeSet::new(),
            separate_head: false,
            stream: None,
            channels: 0,
            table: None,
            last_norm: None,
        };
        if asked.rotate.stream {
            changes.add_stream(network, metas, asked, config).map_err(Refusal::of_stream)?;
        }
        if asked.rotate.heads {
            for (number, path) in network.value_paths().iter().enumerate() {
                changes.add_values(network, (RotationPlace::Values(number), path), asked)?;
            }
        }
        if asked.rotate.down {
            changes.add_down(network, asked.rotate)?;
        }
        match changes.weights.is_empty() {
            true => Err(Refusal::new("nothing in it can be rotated with these options")),
            false => Ok(changes),
        }
    }

    /// A vector of the residual stream, rotated.
    pub fn rotate_stream(&self, mut vector: Vec<f64>) -> Vec<f64> {
        if let Some(stream) = &self.stream {
            stream.rotation.apply(&mut vector, &mut Vec::new());
        }
        vector
    }

    /// The head that has to be separated from the embeddings.
    pub fn head_of(&self, network: &Network, tensors: &[ImportedTensor<'_>]) -> Option<SeparateHead> {
        let (table, rotation) = (self.table?, self.stream.clone()?);
        let name = format!("{}.weight", network.family()?.trunk.heads.first()?);
        let is_missing = network.head().is_none() && tensors.iter().all(|tensor| tensor.meta.name != name);
        is_missing.then_some(SeparateHead { name, table, norm: self.last_norm, rotation })
    }

    fn add_stream(
        &mut self,
        network: &Network,
        metas: &[TensorMeta],
        asked: Asked<'_>,
        config: &ModelConfig,
    ) -> Result<(), Refusal> {
        if network.family().is_some_and(|family| family.encoder.is_some()) {
            return Err(Refusal::new("is an encoder, whose hidden states would be rotated"));
        }
        if network.head().is_none() && !config.architectures.iter().any(|name| has_head(name)) {
            return Err(Refusal::new("has no head, so that its hidden states, which are its output, would be rotated"));
        }
        let stream = network.residual_stream().map_err(|obstacle| match obstacle {
            StreamObstacle::Tensor { tensor, what } => Refusal::of(tensor, what),
            other => Refusal::new(format!("has a residual stream that cannot be rotated: {other}")),
        })?;
        (self.table, self.last_norm) = (stream.embedding, stream.last_norm);
        let table = self.table.ok_or_else(|| Refusal::new("has no embeddings"))?;
        let [_, channels] = *metas[table].shape.as_slice() else {
            return Err(Refusal::of(table, "is not a matrix"));
        };
        let rotate = asked.rotate;
        let rotation = rotate.of_stream(channels, stream.subtracts_mean).ok_or_else(|| {
            let groups = if rotate.size == 0 { String::new() } else { format!(" in groups of {}", rotate.size) };
            Refusal::new(format!(
                "has {channels} channels in its residual stream, for which there is no rotation{groups}"
            ))
        })?;
        let rotation = asked.placed(RotationPlace::Stream, rotation)?;
        self.channels = channels;
        self.stream = Some(rotation.clone());
        if network.is_tied() && network.head().is_some() {
            return Err(Refusal::new("shares the embeddings with its head, but has a tensor for the head as well"));
        }
        self.separate_head = network.is_tied();
        self.norms.extend(stream.readers.iter().filter_map(|(_, norm)| *norm).chain(stream.last_norm));
        for table in stream.embedding.into_iter().chain(stream.positions) {
            let change =
                WeightChange { place: MatrixPlace::WHOLE, norm: None, inputs: Some(rotation.clone()), outputs: None };
            self.weights.insert(table, change);
        }
        for (consumer, norm) in &stream.readers {
            let layer = layer(network, *consumer)?;
            let change = self.change(&layer);
            (change.norm, change.inputs) = (*norm, Some(rotation.clone()));
        }
        for consumer in &stream.writers {
            let layer = layer(network, *consumer)?;
            let outputs = |rows: Vec<_>| RotatedRows { rows, by: rotation.clone() };
            self.change(&layer).outputs = Some(outputs(std::iter::once(0..layer.rows).collect()));
            if let Some(bias) = layer.bias {
                let experts = (0..layer.place.count).map(|expert| expert * layer.rows..(expert + 1) * layer.rows);
                self.biases.insert(bias, outputs(experts.collect()));
            }
        }
        Ok(())
    }

    fn add_values(
        &mut self,
        network: &Network,
        (place, path): (RotationPlace, &SmoothingPair),
        asked: Asked<'_>,
    ) -> Result<(), Refusal> {
        let (ScaleSource::Linear { linear, rows }, PairPath::Heads { head_dim, .. }) = (&path.from, path.through)
        else {
            return Ok(());
        };
        let missing = || Refusal::new(format!("has heads of {head_dim} values, for which there is no rotation"));
        let rotation = asked.placed(place, asked.rotate.of_values(head_dim).ok_or_else(missing)?)?;
        let values = layer(network, Consumer::Linear(*linear))?;
        let outputs = RotatedRows { rows: rows.clone(), by: rotation.clone() };
        self.change(&values).outputs = Some(outputs.clone());
        self.biases.extend(values.bias.map(|bias| (bias, outputs)));
        for consumer in &path.into {
            let output = layer(network, *consumer)?;
            self.change(&output).inputs = Some(rotation.clone());
        }
        Ok(())
    }

    /// The down projections of feed-forward networks and experts: their weights are those of rotated inputs.
    fn add_down(&mut self, network: &Network, rotate: &Rotate) -> Result<(), Refusal> {
        let stages = network.blocks().iter().flat_map(|block| network.stages(*block));
        let is_hidden = |input: Input| matches!(input, Input::Hidden | Input::SharedHidden | Input::RoutedHidden(_));
        let mut all = Vec::new();
        for stage in stages.filter(|stage| is_hidden(stage.input)) {
            all.extend(stage.linears.iter().map(|id| (Consumer::Linear(*id), network.linear(*id).in_features)));
            let experts = stage.experts.iter();
            all.extend(experts.map(|id| (Consumer::Experts(*id), network.experts()[id.index()].in_features)));
        }
        if all.is_empty() {
            return Err(Refusal::new("has no down projections, whose inputs could be rotated"));
        }
        let rotation = rotate.of_down(all.iter().map(|(_, channels)| *channels)).map(Arc::new).ok_or_else(|| {
            let widths: BTreeSet<usize> = all.iter().map(|(_, channels)| *channels).collect();
            let widths: Vec<String> = widths.iter().map(usize::to_string).collect();
            let groups = if rotate.size == 0 { String::new() } else { format!(" in groups of {}", rotate.size) };
            let reason =
                "down projections with this number of inputs, for which there is no Hadamard matrix of a power of two";
            Refusal::new(format!("has {reason}{groups}: {}", widths.join(", ")))
        })?;
        for (consumer, _) in all {
            let layer = layer(network, consumer)?;
            let place = RotationPlace::Down;
            self.change(&layer).inputs = Some(PlacedRotation { place, rotation: Arc::clone(&rotation) });
            let modules = match consumer {
                Consumer::Linear(id) => vec![network.linear(id).module.clone()],
                Consumer::Experts(id) => {
                    let experts = &network.experts()[id.index()];
                    (0..experts.experts).map(|expert| expert_module(&experts.module, expert)).collect()
                }
            };
            self.inputs.extend(modules.into_iter().map(|module| (module, Arc::clone(&rotation))));
        }
        Ok(())
    }

    fn change(&mut self, layer: &Layer) -> &mut WeightChange {
        let none = WeightChange { place: layer.place, norm: None, inputs: None, outputs: None };
        self.weights.entry(layer.weight).or_insert(none)
    }
}

/// Returns whether models of a class have a head, which may be their embedding.
fn has_head(class: &str) -> bool {
    ["ForCausalLM", "LMHeadModel", "ForConditionalGeneration"].iter().any(|ending| class.ends_with(ending))
}

fn layer(network: &Network, consumer: Consumer) -> Result<Layer, Refusal> {
    match consumer {
        Consumer::Linear(id) => {
            let linear = network.linear(id);
            if linear.scale.is_some() {
                return Err(Refusal::of(linear.weight, "is quantized already"));
            }
            let place = MatrixPlace { count: 1, orientation: linear.orientation };
            Ok(Layer { weight: linear.weight, bias: linear.bias, place, rows: linear.out_features })
        }
        Consumer::Experts(id) => {
            let experts = &network.experts()[id.index()];
            let ExpertsStorage::Float { weight } = experts.storage else {
                return Err(Refusal::of(experts.weight(), "is quantized already"));
            };
            let place = MatrixPlace { count: experts.experts, orientation: experts.orientation };
            Ok(Layer { weight, bias: experts.bias, place, rows: experts.out_features })
        }
    }
}
