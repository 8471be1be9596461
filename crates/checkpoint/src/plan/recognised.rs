//! The first stage of a plan: the source's tensors, the network that they are recognised as, and what is asked of it. What follows from
//! these alone is asked of this stage; it never changes.

use super::PlannedLayer;
use super::error::PlanError;
use super::layer::LayerDraft;
use super::names;
use super::source::SourceTensor;
use crate::recipe::Recipe;
use kvant_formats::format::{InputRotation, ModuleNames, OutputFormat, StackedExpert};
use kvant_formats::import::Import;
use kvant_model::model_config::ModelConfig;
use kvant_model::network::{Network, Notice, ShapedLayer, TensorMeta, in_memory_module, on_disk_module};
use kvant_quant::counts::number;
use kvant_weights::import_error::ImportError;
use kvant_weights::parts::{Fused, LayerSpec, Part};
use std::collections::{BTreeMap, BTreeSet};

/// A source that is recognised, and the recipe for it. Tensors are named by their index among `tensors`.
pub(super) struct Recognised<'a> {
    pub(super) tensors: Vec<SourceTensor<'a>>,
    pub(super) network: Network,
    /// Convolutions and embeddings.
    pub(super) shaped: Vec<ShapedLayer>,
    pub(super) config: ModelConfig,
    pub(super) recipe: Recipe,
    pub(super) format: OutputFormat,
    /// The channels that each Hadamard matrix mixes by which the inputs of modules are rotated while the model runs.
    pub(super) input_rotations: BTreeMap<String, usize>,
}

impl<'a> Recognised<'a> {
    /// Recognises what the tensors are.
    ///
    /// # Errors
    /// [`PlanError::AlreadyQuantized`] for codes that nothing was imported of.
    pub(super) fn new(
        tensors: Vec<SourceTensor<'a>>,
        config: ModelConfig,
        recipe: Recipe,
    ) -> Result<Recognised<'a>, PlanError> {
        let metas: Vec<TensorMeta> = tensors.iter().map(SourceTensor::meta).collect();
        let network = Network::recognise(&config, &metas);
        let shaped = network.shaped_layers(&metas);
        refuse_quantized(&network, &config, &metas)?;
        let input_rotations = BTreeMap::new();
        Ok(Recognised { format: recipe.format(), tensors, network, shaped, config, recipe, input_rotations })
    }

    /// The same with the rotations of inputs that go with the imported weights.
    ///
    /// # Errors
    /// *Unsupported* where the format has no place for them.
    pub(super) fn with_rotations(self, import: &Import<'_>) -> Result<Recognised<'a>, PlanError> {
        if !self.format.capabilities().input_rotations {
            import.refuse_input_rotations()?;
        }
        let mut input_rotations = BTreeMap::new();
        for (module, rotation) in import.input_rotations() {
            if !rotation.is_sylvester() {
                let reason =
                    "has inputs that another matrix than Sylvester's Hadamard matrix rotates while the model runs";
                return Err(ImportError::unsupported(module, reason, "use the checkpoint as it is").into());
            }
            input_rotations.insert(module.clone(), rotation.channels());
        }
        Ok(Recognised { input_rotations, ..self })
    }

    /// Refuses layers that stay float, whose inputs would be rotated while the model runs.
    ///
    /// # Errors
    /// *Unsupported*, with the first of them.
    pub(super) fn refuse_float_rotations(&self, layers: &[PlannedLayer]) -> Result<(), PlanError> {
        let quantized: BTreeSet<&str> = layers.iter().map(|layer| layer.module.as_str()).collect();
        match self.input_rotations.keys().find(|module| !quantized.contains(module.as_str())) {
            None => Ok(()),
            Some(module) => {
                let reason = "stays float, and loaders rotate the inputs of quantized layers alone";
                let hint = "quantize all down projections, or leave down=on out of the algorithm `rotate`";
                Err(ImportError::unsupported(module, reason, hint).into())
            }
        }
    }

    /// What the user should know of inputs that are rotated while the model runs.
    pub(super) fn rotation_notice(&self) -> Option<String> {
        let most = self.input_rotations.values().max()?;
        let layers = number(self.input_rotations.len(), "layer");
        Some(format!(
            "the inputs of {layers} are rotated while the model runs, {most} channels at a time: loaders that do not rotate them compute \
             something else"
        ))
    }

    /// How the inputs of a layer are rotated while the model runs.
    pub(super) fn input_rotation(&self, layer: &PlannedLayer) -> Option<InputRotation> {
        let size = *self.input_rotations.get(&layer.module)?;
        Some(InputRotation { size, is_whole: size == layer.columns })
    }
}

impl Recognised<'_> {
    /// That the source's weights lie on the grid of other codes.
    pub(super) fn already_fake(&self) -> PlanError {
        let linears = || self.network.linears().iter().filter(|linear| !linear.kept);
        let first = linears().next().map(|linear| linear.module.clone()).unwrap_or_default();
        PlanError::AlreadyQuantized { tensors: linears().count(), first, method: Some("fake".to_owned()) }
    }

    /// A module's name in the output.
    pub(super) fn output_name(&self, module: &str) -> String {
        match self.network.family() {
            Some(family) if self.format.capabilities().module_names == ModuleNames::OnDisk => {
                on_disk_module(family, module)
            }
            _ => self.in_memory_name(module),
        }
    }

    /// A module's name in a model that transformers has loaded.
    pub(super) fn in_memory_name(&self, module: &str) -> String {
        self.network.family().map_or_else(|| module.to_owned(), |family| in_memory_module(family, module))
    }

    /// The modules of the source's tensors that are none of these.
    pub(super) fn modules_besides<'s>(&'s self, quantized: &[&str]) -> Vec<&'s str> {
        let quantized: BTreeSet<&str> = quantized.iter().copied().collect();
        let modules = self.tensors.iter().map(|tensor| tensor.name.rsplit_once('.').map_or("", |(module, _)| module));
        modules.filter(|module| !quantized.contains(module)).collect()
    }

    /// Where the matrix of an expert goes, if the format has those of all experts of a block in one tensor.
    pub(super) fn stacked(&self, module: &str) -> Option<StackedExpert> {
        self.format.checkpoint()?.stacked(self.network.family()?.name, module)
    }

    /// The tensors of a layer; `act_order` says that input channels are grouped otherwise than as they stand.
    pub(super) fn parts(
        &self,
        layer: &LayerDraft,
        fused: Option<Fused<'_>>,
        act_order: bool,
    ) -> Result<Vec<Part>, PlanError> {
        let problem =
            |problem| PlanError::CannotHold { layer: layer.name.clone(), scheme: layer.scheme.to_string(), problem };
        if layer.source.is_transposed && layer.source.expert.is_none() {
            return Err(problem(names::no_linear_module(self.network.family().is_some())));
        }
        let spec = LayerSpec {
            name: &layer.name,
            rows: layer.rows,
            columns: layer.columns,
            scheme: layer.scheme,
            source: layer.source.dtype,
            order: self.recipe.nibble_order(),
            fused,
            act_order,
            input_rotation: self.input_rotations.get(&layer.module).copied(),
        };
        self.format.parts(&spec).map_err(problem)
    }
}

fn refuse_quantized(network: &Network, config: &ModelConfig, metas: &[TensorMeta]) -> Result<(), PlanError> {
    let found = network.notices().iter().find_map(|notice| match notice {
        Notice::AlreadyQuantized { tensors, first } => Some((*tensors, first.clone())),
        _ => None,
    });
    let Some((tensors, first)) = found else { return Ok(()) };
    let method = config.quantization.as_ref().and_then(|q| q.get("quant_method")?.as_str().map(str::to_owned));
    // No layout has codes this wide in a weight.
    let weight = metas.iter().find(|meta| meta.name == first && meta.name.ends_with(".weight"));
    match weight.filter(|meta| method.is_none() && ["I16", "I32", "I64"].contains(&meta.dtype.as_str())) {
        Some(meta) => Err(PlanError::SourceType { dtype: meta.dtype.clone(), tensor: first }),
        None => Err(PlanError::AlreadyQuantized { tensors, first, method }),
    }
}
