//! Making a plan: from a checkpoint's headers, its config.json and a recipe.

use super::error::PlanError;
use super::{DroppedTensor, KeptTensor, LayerOutput, Plan, PlannedLayer, SourceWeight, Treatment, config, names};
use crate::export::{Export, LayerSpec};
use crate::family::Orientation;
use crate::model_config::ModelConfig;
use crate::network::{ExpertsStorage, FusedExperts, Linear, Network, Notice, TensorMeta};
use crate::recipe::{Decision, Recipe};
use kvant_container::{Checkpoint, Dtype, Layout, TensorDeclaration, TensorView};
use kvant_numeric::kernel::Source;
use kvant_quant::scheme::{Cast, LayerScheme, TensorScheme};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use xxhash_rust::xxh3::xxh3_128;

impl Plan {
    /// Plans what a recipe makes of a checkpoint.
    ///
    /// # Errors
    /// Whatever can be refused: see [`PlanError`].
    pub fn new(checkpoint: &Checkpoint, recipe: Recipe) -> Result<Plan, PlanError> {
        let json = checkpoint.config()?;
        let config = json.as_ref().map_or_else(|| Ok(ModelConfig::default()), ModelConfig::from_json)?;
        let tensors: Vec<TensorView<'_>> = checkpoint.tensors().collect();
        let network = Network::recognise(&config, &metas(&tensors));
        refuse_quantized(&network, &config)?;
        let export = recipe.export();
        let mut builder = Builder {
            tensors,
            network,
            config,
            recipe,
            export,
            layers: vec![],
            kept: vec![],
            dropped: vec![],
            declarations: vec![],
            excluded: vec![],
            taken: BTreeSet::new(),
        };
        builder.plan_linears()?;
        builder.plan_experts()?;
        builder.keep_the_rest()?;
        builder.check()?;
        builder.finish(checkpoint, json)
    }
}

fn metas(tensors: &[TensorView<'_>]) -> Vec<TensorMeta> {
    tensors.iter().map(|t| TensorMeta::new(t.name(), t.shape(), t.dtype().to_string())).collect()
}

fn refuse_quantized(network: &Network, config: &ModelConfig) -> Result<(), PlanError> {
    let found = network.notices().iter().find_map(|notice| match notice {
        Notice::AlreadyQuantized { tensors, first } => Some((*tensors, first.clone())),
        _ => None,
    });
    let method = config.quantization.as_ref().and_then(|q| q.get("quant_method")?.as_str().map(str::to_owned));
    found.map_or(Ok(()), |(tensors, first)| Err(PlanError::AlreadyQuantized { tensors, first, method }))
}

/// A plan in the making.
struct Builder<'a> {
    tensors: Vec<TensorView<'a>>,
    network: Network,
    config: ModelConfig,
    recipe: Recipe,
    export: Export,
    layers: Vec<PlannedLayer>,
    kept: Vec<KeptTensor>,
    dropped: Vec<DroppedTensor>,
    declarations: Vec<TensorDeclaration>,
    /// Modules that loaders must not expect quantized.
    excluded: Vec<String>,
    /// Positions of tensors that have found their place.
    taken: BTreeSet<usize>,
}

impl Builder<'_> {
    /// The scheme of a module, or why it is kept.
    fn decide(&self, module: &str, family_keeps: bool) -> Result<LayerScheme, &'static str> {
        match self.recipe.decide(module) {
            Decision::Excluded => Err("excluded"),
            Decision::Override(scheme) => Ok(scheme),
            Decision::Default(_) if family_keeps && self.recipe.keep_defaults() => Err("kept by default"),
            Decision::Default(scheme) => Ok(scheme),
        }
    }

    /// A module's name in the output.
    fn output_name(&self, module: &str) -> String {
        match (self.export, self.network.family()) {
            (Export::Quark, Some(family)) => names::in_memory(family, module),
            _ => module.to_owned(),
        }
    }

    fn plan_linears(&mut self) -> Result<(), PlanError> {
        let linears = self.network.linears().to_vec();
        self.check_siblings(&linears)?;
        for linear in &linears {
            match self.decide(&linear.module, linear.kept) {
                Ok(scheme) => self.plan_linear(linear, scheme)?,
                Err(reason) => self.keep_linear(linear, reason)?,
            }
        }
        Ok(())
    }

    /// Layers that loaders fuse into one must have one scheme, or be kept together.
    fn check_siblings(&self, linears: &[Linear]) -> Result<(), PlanError> {
        if self.export == Export::Fake {
            return Ok(());
        }
        for group in self.network.siblings() {
            let text = |linear: &Linear| {
                let scheme = self.decide(&linear.module, linear.kept);
                scheme.map_or_else(|_| "kept".to_owned(), |scheme| scheme.to_string())
            };
            let members: Vec<&Linear> = group.members.iter().map(|id| self.network.linear(*id)).collect();
            debug_assert!(members.iter().all(|member| linears.contains(member)));
            let first = text(members[0]);
            if let Some(other) = members.iter().find(|member| text(member) != first) {
                let (name, scheme) = (other.module.clone(), text(other));
                return Err(PlanError::Siblings {
                    first: members[0].module.clone(),
                    first_scheme: first,
                    second: name,
                    second_scheme: scheme,
                });
            }
        }
        Ok(())
    }

    fn plan_linear(&mut self, linear: &Linear, scheme: LayerScheme) -> Result<(), PlanError> {
        let (rows, columns) = (linear.out_features, linear.in_features);
        if rows == 0 || columns == 0 {
            return self.keep_linear(linear, "empty");
        }
        let source = SourceWeight {
            tensor: self.tensors[linear.weight].name().to_owned(),
            position: linear.weight,
            expert: None,
            input_major: linear.orientation == Orientation::InOut,
            dtype: self.source_type(linear.weight)?,
            scales: self.scales(linear)?,
        };
        let shares = scheme.weight.needs_tensor_range() && shares_scale(scheme);
        let layer = PlannedLayer {
            name: self.output_name(&linear.module),
            role: linear.role.name(),
            rows,
            columns,
            scheme,
            source,
            shares_scale: linear.siblings.filter(|_| shares).map(|group| group.index()),
            output: LayerOutput::Values { tensor: 0, offset: 0, dtype: Dtype::F32 },
        };
        self.take(linear.weight);
        if let Some(scale) = linear.scale {
            self.drop_tensor(scale, "scales of a weight that is quantized anew");
        }
        let shape = self.tensors[linear.weight].shape().to_vec();
        self.add_layer(layer, shape)
    }

    /// Declares a layer's tensors.
    fn add_layer(&mut self, mut layer: PlannedLayer, source_shape: Vec<usize>) -> Result<(), PlanError> {
        self.check_layer(&layer)?;
        if self.export == Export::Fake {
            let dtype = values_type(&layer);
            let tensor = self.declare(layer.source.tensor.clone(), dtype, source_shape);
            layer.output = LayerOutput::Values { tensor, offset: 0, dtype };
        } else {
            layer.output = self.declare_parts(&layer)?;
        }
        self.layers.push(layer);
        Ok(())
    }

    fn check_layer(&self, layer: &PlannedLayer) -> Result<(), PlanError> {
        let (name, scheme) = (layer.name.clone(), layer.scheme);
        if scheme.needs_calibration() {
            return Err(PlanError::Calibration { layer: name, scheme });
        }
        let fits = scheme.weight.check_shape(layer.rows, layer.columns);
        fits.map_err(|problem| PlanError::Shape { layer: name, scheme, problem })
    }

    fn declare_parts(&mut self, layer: &PlannedLayer) -> Result<LayerOutput, PlanError> {
        let problem = |problem| PlanError::Export { layer: layer.name.clone(), scheme: layer.scheme, problem };
        if layer.source.input_major && layer.source.expert.is_none() {
            return Err(problem(names::no_linear_module(self.export)));
        }
        let spec = LayerSpec {
            name: &layer.name,
            rows: layer.rows,
            columns: layer.columns,
            scheme: layer.scheme,
            source: layer.source.dtype,
            order: self.recipe.nibble_order(),
        };
        let parts = self.export.parts(&spec).map_err(problem)?;
        let first = self.declarations.len();
        self.declarations
            .extend(parts.iter().map(|p| TensorDeclaration::new(p.name.clone(), p.dtype, p.shape.clone())));
        Ok(LayerOutput::Parts { parts, first })
    }

    fn declare(&mut self, name: String, dtype: Dtype, shape: Vec<usize>) -> usize {
        self.declarations.push(TensorDeclaration::new(name, dtype, shape));
        self.declarations.len() - 1
    }

    fn take(&mut self, position: usize) {
        self.taken.insert(position);
    }

    fn drop_tensor(&mut self, position: usize, reason: &'static str) {
        self.take(position);
        self.dropped.push(DroppedTensor { name: self.tensors[position].name().to_owned(), reason });
    }

    fn keep_linear(&mut self, linear: &Linear, reason: &'static str) -> Result<(), PlanError> {
        self.excluded.push(self.output_name(&linear.module));
        let Some(scale) = linear.scale else {
            self.copy(linear.weight, reason);
            return Ok(());
        };
        // A loader of the output has no use for fp8 weights with the source's scales.
        let scales = self.scales(linear)?.unwrap_or_default();
        let shape = (linear.out_features, linear.in_features);
        let dtype = self.source_type(linear.weight)?;
        let name = format!("{}.weight", self.output_name(&linear.module));
        let tensor = self.declare(name, Dtype::BF16, vec![shape.0, shape.1]);
        self.take(linear.weight);
        self.drop_tensor(scale, "scales of a weight that is widened to bf16");
        let (source, position) = (self.tensors[linear.weight].name().to_owned(), linear.weight);
        self.kept.push(KeptTensor {
            source,
            position,
            tensor,
            treatment: Treatment::Widen { dtype, shape, scales },
            reason,
        });
        Ok(())
    }

    fn copy(&mut self, position: usize, reason: &'static str) {
        let view = self.tensors[position];
        let name = names::of_tensor(view.name(), |module| self.output_name(module));
        let tensor = self.declare(name, view.dtype(), view.shape().to_vec());
        let treatment = Treatment::Copy(0..view.bytes().len());
        self.take(position);
        self.kept.push(KeptTensor { source: view.name().to_owned(), position, tensor, treatment, reason });
    }

    fn source_type(&self, position: usize) -> Result<Source, PlanError> {
        let view = &self.tensors[position];
        match view.dtype() {
            Dtype::F32 => Ok(Source::F32),
            Dtype::F16 => Ok(Source::F16),
            Dtype::BF16 => Ok(Source::Bf16),
            Dtype::F8_E4M3 => Ok(Source::E4m3),
            Dtype::F8_E5M2 => Ok(Source::E5m2),
            dtype => Err(PlanError::SourceType { tensor: view.name().to_owned(), dtype: dtype.to_string() }),
        }
    }

    /// The tensor with a weight's scales, and the rows and columns that share one.
    fn scales(&self, linear: &Linear) -> Result<Option<(String, (usize, usize))>, PlanError> {
        let Some(scale) = linear.scale.map(|scale| &self.tensors[scale]) else {
            return Ok(None);
        };
        let (rows, columns) = (linear.out_features, linear.in_features);
        let float = matches!(scale.dtype(), Dtype::F32 | Dtype::F16 | Dtype::BF16);
        let block = scale_block(scale.shape(), rows, columns, self.stated_block()).filter(|_| float);
        let block = block.ok_or_else(|| PlanError::SourceScales {
            scale: scale.name().to_owned(),
            shape: scale.shape().to_vec(),
            weight: self.tensors[linear.weight].name().to_owned(),
            rows,
            columns,
        })?;
        Ok(Some((scale.name().to_owned(), block)))
    }

    /// `weight_block_size` of the source's quantization_config.
    fn stated_block(&self) -> Option<(usize, usize)> {
        let block = self.config.quantization.as_ref()?.get("weight_block_size")?.as_array()?;
        let size = |i: usize| block.get(i)?.as_u64().filter(|size| *size > 0).map(|size| size as usize);
        Some((size(0)?, size(1)?))
    }

    fn plan_experts(&mut self) -> Result<(), PlanError> {
        for experts in self.network.experts().to_vec() {
            let weight = match experts.storage {
                ExpertsStorage::Float { weight } => weight,
                ExpertsStorage::Mxfp4 { blocks, .. } => {
                    let first = self.tensors[blocks].name().to_owned();
                    return Err(PlanError::AlreadyQuantized { tensors: 2, first, method: Some("mxfp4".to_owned()) });
                }
            };
            let schemes: Vec<_> = (0..experts.experts)
                .map(|e| self.decide(&names::of_expert(&experts.module, e), experts.kept))
                .collect();
            match schemes.iter().find_map(|scheme| scheme.err()) {
                None => self.plan_fused(&experts, weight, &schemes)?,
                // The tensor is one: if one expert is kept, all are.
                Some(reason) => {
                    self.excluded.push(self.output_name(&experts.module));
                    self.copy(weight, reason);
                }
            }
        }
        Ok(())
    }

    fn plan_fused(
        &mut self,
        experts: &FusedExperts,
        weight: usize,
        schemes: &[Result<LayerScheme, &'static str>],
    ) -> Result<(), PlanError> {
        self.take(weight);
        let view = self.tensors[weight];
        let dtype = self.source_type(weight)?;
        let mut shared = None;
        for (expert, scheme) in schemes.iter().enumerate() {
            let Ok(scheme) = *scheme else { continue };
            let layer = PlannedLayer {
                name: self.output_name(&names::of_expert(&experts.module, expert)),
                role: experts.role.name(),
                rows: experts.out_features,
                columns: experts.in_features,
                scheme,
                source: SourceWeight {
                    tensor: view.name().to_owned(),
                    position: weight,
                    expert: Some(expert),
                    input_major: experts.orientation == Orientation::InOut,
                    dtype,
                    scales: None,
                },
                shares_scale: None,
                output: LayerOutput::Values { tensor: 0, offset: 0, dtype: Dtype::F32 },
            };
            if self.export == Export::Fake {
                self.add_fused_values(layer, view.shape(), &mut shared)?;
            } else {
                self.add_layer(layer, Vec::new())?;
            }
        }
        if let (Some(bias), true) = (experts.bias, self.export != Export::Fake) {
            self.split_bias(experts, bias);
        }
        Ok(())
    }

    /// The matrix of an expert inside the tensor of all.
    fn add_fused_values(
        &mut self,
        mut layer: PlannedLayer,
        shape: &[usize],
        shared: &mut Option<usize>,
    ) -> Result<(), PlanError> {
        self.check_layer(&layer)?;
        let dtype = values_type(&layer);
        let tensor = *shared.get_or_insert_with(|| self.declare(layer.source.tensor.clone(), dtype, shape.to_vec()));
        let matrix = layer.rows * layer.columns * dtype.bitsize() / 8;
        layer.output =
            LayerOutput::Values { tensor, offset: (layer.source.expert.unwrap_or(0) * matrix) as u64, dtype };
        self.layers.push(layer);
        Ok(())
    }

    /// The biases of experts that become linear layers of their own.
    fn split_bias(&mut self, experts: &FusedExperts, bias: usize) {
        let view = self.tensors[bias];
        let length = view.bytes().len() / experts.experts.max(1);
        for expert in 0..experts.experts {
            let module = self.output_name(&names::of_expert(&experts.module, expert));
            let tensor = self.declare(format!("{module}.bias"), view.dtype(), vec![experts.out_features]);
            let treatment = Treatment::Copy(expert * length..(expert + 1) * length);
            self.kept.push(KeptTensor {
                source: view.name().to_owned(),
                position: bias,
                tensor,
                treatment,
                reason: "bias",
            });
        }
        self.take(bias);
    }

    /// Whatever has no place yet is carried over as it is.
    fn keep_the_rest(&mut self) -> Result<(), PlanError> {
        for position in 0..self.tensors.len() {
            if !self.taken.contains(&position) {
                let reason = names::reason(self.network.places()[position]);
                self.copy(position, reason);
            }
        }
        Ok(())
    }

    fn check(&self) -> Result<(), PlanError> {
        if !self.layers.is_empty() {
            return Ok(());
        }
        let reason = if self.network.linears().is_empty() && self.network.experts().is_empty() {
            "no linear layers are found in the checkpoint"
        } else {
            "every linear layer is excluded or kept by default"
        };
        Err(PlanError::Nothing { reason: reason.to_owned() })
    }

    /// Modules that are not quantized, for the configuration: loaders do not infer them.
    fn exclude_list(&self) -> Vec<String> {
        let quantized: BTreeSet<&str> = self.layers.iter().map(|layer| layer.name.as_str()).collect();
        let kept = self.network.kept_modules().into_iter().map(|module| self.output_name(module));
        let tied = self.network.is_tied().then(|| names::head(&self.network));
        let names: BTreeSet<String> = self.excluded.iter().cloned().chain(kept).chain(tied).collect();
        names.into_iter().filter(|name| !quantized.contains(name.as_str())).collect()
    }

    fn finish(self, checkpoint: &Checkpoint, json: Option<Value>) -> Result<Plan, PlanError> {
        let exclude = self.exclude_list();
        let config =
            json.map(|json| config::quantized(json, self.export, &self.recipe, &self.layers, &exclude)).transpose()?;
        let mut metadata: BTreeMap<String, String> = checkpoint.metadata();
        metadata.entry("format".to_owned()).or_insert_with(|| "pt".to_owned());
        let layout = Layout::new(self.declarations, self.recipe.max_shard_size(), metadata)
            .map_err(kvant_container::Error::from)?;
        let fingerprint = fingerprint(checkpoint, &self.recipe, &layout, config.as_ref());
        Ok(Plan {
            notices: names::notices(&self.network, &self.recipe, &self.layers, checkpoint),
            family: self.network.family().map(|family| family.name),
            architecture: architecture(&self.config),
            export: self.export,
            layers: self.layers,
            kept: self.kept,
            dropped: self.dropped,
            source_bytes: self.tensors.iter().map(TensorView::byte_len).sum(),
            recipe: self.recipe,
            layout,
            config,
            fingerprint,
        })
    }
}

fn shares_scale(scheme: LayerScheme) -> bool {
    matches!(scheme.weight, TensorScheme::Float(float) if float.scale.has_tensor_scale())
}

/// The type in which simulated values are stored: that of the source, or of the cast.
fn values_type(layer: &PlannedLayer) -> Dtype {
    match (layer.scheme.weight, layer.source.dtype) {
        (TensorScheme::Cast(Cast::F16), _) | (_, Source::F16) => Dtype::F16,
        (TensorScheme::Cast(Cast::Bf16), _) | (_, Source::Bf16 | Source::E4m3 | Source::E5m2) => Dtype::BF16,
        (_, Source::F32) => Dtype::F32,
    }
}

/// Rows and columns that share a scale, from the shape of the scales; `None` where it does not fit the weight.
fn scale_block(shape: &[usize], rows: usize, columns: usize, stated: Option<(usize, usize)>) -> Option<(usize, usize)> {
    let (down, across) = match *shape {
        [] | [1] => return Some((rows, columns)),
        [down] => (down, 1),
        [down, across] => (down, across),
        _ => return None,
    };
    let fits = |(r, c): &(usize, usize)| rows.div_ceil(*r) == down && columns.div_ceil(*c) == across;
    let even = (down > 0 && across > 0).then(|| (rows.div_ceil(down.max(1)), columns.div_ceil(across.max(1))));
    [stated, Some((128, 128)), even].into_iter().flatten().filter(|(r, c)| *r > 0 && *c > 0).find(fits)
}

fn architecture(config: &ModelConfig) -> String {
    let name = config.architectures.first().or(config.model_types.first());
    name.cloned().unwrap_or_else(|| "unknown".to_owned())
}

/// A hash of all that decides the output's bytes: the source's files (their headers, lengths and times), the recipe, the
/// layout and the version of Kvant.
fn fingerprint(checkpoint: &Checkpoint, recipe: &Recipe, layout: &Layout, config: Option<&Value>) -> String {
    let mut text = format!("kvant {}\n{}\n", env!("CARGO_PKG_VERSION"), recipe.canonical());
    for shard in checkpoint.shards() {
        let modified = shard.path().metadata().and_then(|m| m.modified()).ok();
        text.push_str(&format!("{} {} {modified:?}\n", shard.path().display(), shard.map().len()));
    }
    for tensor in checkpoint.tensors() {
        text.push_str(&format!("{} {} {:?}\n", tensor.name(), tensor.dtype(), tensor.shape()));
    }
    for shard in layout.shards() {
        text.push_str(&String::from_utf8_lossy(shard.header()));
    }
    text.push_str(&config.map(Value::to_string).unwrap_or_default());
    format!("{:032x}", xxh3_128(text.as_bytes()))
}
