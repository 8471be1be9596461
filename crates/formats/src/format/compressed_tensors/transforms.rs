//! The `transform_config` of compressed-tensors: rotations of inputs that loaders compute while the model runs, written and read. Those of
//! weights are folded into what is stored.
//!
//! The matrix is stored beside the weight as 1 and -1, in the module `GROUP_input`, and divided by the root of its size by who reads it.

use super::read::{ModuleClass, Target, target};
use crate::format::selector::{Selector, select};
use crate::format::stored::ModuleTensors;
use crate::format::stored::scalars::matrix as values;
use crate::format::{InputRotation, Pattern};
use kvant_container::{Dtype, TensorView};
use kvant_numeric::kernel::FloatDType;
use kvant_quant::rotation::Rotation;
use kvant_weights::import_error::ImportError;
use kvant_weights::parts::{CannotHold, Content, LayerSpec, Part};
use kvant_weights::recipe_error::{RecipeError, quoted};
use serde_json::{Value, json};
use std::sync::Arc;

/// The group of the rotation of inputs of down projections, as llm-compressor calls it.
const GROUP: &str = "R4";

const HINT: &str = "use a checkpoint without this transform";

/// The tensor with the matrix beside a layer's weight, in the type of the model's floats.
pub(super) fn matrix(layer: &LayerSpec<'_>, size: usize) -> Part {
    let dtype = match layer.source {
        FloatDType::F32 => Dtype::F32,
        FloatDType::F16 => Dtype::F16,
        FloatDType::Bf16 | FloatDType::E4m3 | FloatDType::E5m2 => Dtype::BF16,
    };
    layer.part(&format!("{GROUP}_input.weight"), dtype, [size, size], Content::Hadamard)
}

/// The `transform_config`. `modules` are all quantized ones, under all their names.
///
/// # Errors
/// [`CannotHold`] where layers are rotated by matrices of several sizes.
pub(super) fn describe(
    rotations: &[(&str, InputRotation)],
    modules: &[&str],
    others: &[&str],
) -> Result<Value, CannotHold> {
    if rotations.is_empty() {
        return Ok(json!({}));
    }
    let is_rotated = |module: &str| rotations.iter().any(|(name, _)| *name == module);
    let keyed: Vec<(&str, bool)> = modules.iter().map(|module| (*module, is_rotated(module))).collect();
    let rotated = select(&keyed, others).into_iter().filter(|(is_rotated, _)| *is_rotated);
    let targets: Vec<String> = rotated.flat_map(|(_, selectors)| selectors).map(|one| Selector::regex(&one)).collect();
    let apply = |location: &str, inverse: bool| json!({"ignore": [], "inverse": inverse, "location": location, "targets": targets});
    Ok(json!({"config_groups": {GROUP: {
        "apply": [apply("input", false), apply("weight_input", true)],
        "head_dim": InputRotation::common_size(rotations)?,
        "precision": "torch.float32",
        "randomize": false,
        "requires_grad": false,
        "type": "hadamard",
    }}}))
}

/// A transform of a checkpoint.
#[derive(Clone, Debug)]
pub(super) struct StoredTransform {
    group: String,
    /// Whether the matrix is that of a tensor, and not the one that Sylvester's construction gives.
    is_random: bool,
    /// The channels of a matrix; `None` for those of the layer.
    size: Option<usize>,
    /// Where it is applied to the inputs of layers.
    inputs: Vec<Inputs>,
}

/// Layers whose inputs a transform rotates.
#[derive(Clone, Debug)]
struct Inputs {
    targets: Vec<Target>,
    ignore: Vec<Pattern>,
    inverse: bool,
}

impl StoredTransform {
    /// Reads the transforms of a `quantization_config`.
    ///
    /// # Errors
    /// *Invalid* for what is not of the library's form, *unsupported* for transforms of anything but weights and inputs.
    pub(super) fn read_all(config: &Value) -> Result<Vec<StoredTransform>, RecipeError> {
        let groups = config.get("transform_config").and_then(|transforms| transforms.get("config_groups"));
        let groups = groups.and_then(Value::as_object).into_iter().flatten();
        groups.map(|(name, group)| StoredTransform::read(name, group)).collect()
    }

    fn read(name: &str, group: &Value) -> Result<StoredTransform, RecipeError> {
        let place = format!("transform_config.{name}");
        let refused = |key: &str, reason: String| Err(RecipeError::unsupported(format!("{place}.{key}"), reason, HINT));
        let kind = group.get("type").and_then(Value::as_str);
        let kind = kind.ok_or_else(|| RecipeError::invalid(format!("{place}.type"), "is missing", HINT))?;
        let mut inputs = Vec::new();
        for apply in group.get("apply").and_then(Value::as_array).into_iter().flatten() {
            match apply.get("location").and_then(Value::as_str) {
                Some("weight_input" | "weight_output") => {}
                Some("input") => inputs.push(Inputs::read(&place, apply)?),
                other => {
                    let reason = format!("transforms of {} are not computed", quoted(other.unwrap_or_default()));
                    return refused("apply.location", reason);
                }
            }
        }
        if inputs.is_empty() {
            return Ok(StoredTransform { group: name.to_owned(), is_random: false, size: None, inputs });
        }
        let is_random = match kind {
            "hadamard" => false,
            "random-hadamard" => true,
            other => return refused("type", format!("{} is not computed", quoted(other))),
        };
        if group.get("randomize").and_then(Value::as_bool) == Some(true) {
            return refused("randomize", "permuted matrices are not computed".to_owned());
        }
        let size = match group.get("head_dim").filter(|size| !size.is_null()) {
            None => None,
            Some(size) => Some(size.as_u64().and_then(|size| usize::try_from(size).ok()).ok_or_else(|| {
                RecipeError::invalid(format!("{place}.head_dim"), "must be a number of channels", HINT)
            })?),
        };
        Ok(StoredTransform { group: name.to_owned(), is_random, size, inputs })
    }

    /// Returns whether a tensor belongs to the transform, and not to the model.
    pub(super) fn owns(&self, tensor: &str) -> bool {
        let module = tensor.rsplit_once('.').map_or("", |(module, _)| module);
        let leaf = module.rsplit('.').next().unwrap_or(module);
        let location = leaf.strip_prefix(self.group.as_str()).and_then(|rest| rest.strip_prefix('_'));
        location.is_some_and(|location| ["input", "weight_input", "weight_output"].contains(&location))
    }

    /// The rotation of a layer's inputs, of which there are so many.
    ///
    /// # Errors
    /// *Invalid* for sizes that do not fit, and for matrices that are not there.
    pub(super) fn of_layer(
        &self,
        module: &ModuleTensors<'_, '_>,
        columns: usize,
    ) -> Result<Option<Arc<Rotation>>, ImportError> {
        let Some(inputs) = self.inputs.iter().find(|inputs| inputs.reach(module.name)) else { return Ok(None) };
        let size = self.size.unwrap_or(columns);
        let invalid = |reason: String| ImportError::invalid(module.name, reason);
        if size == 0 || !columns.is_multiple_of(size) {
            return Err(invalid(format!("has {columns} inputs, which transform_config rotates in groups of {size}")));
        }
        let found = match self.is_random {
            false => Rotation::sylvester(size),
            true => self.stored(module, size, inputs.inverse)?,
        };
        let found = found.ok_or_else(|| invalid(format!("has inputs that a matrix of {size} channels rotates")))?;
        Ok(Some(Arc::new(found)))
    }

    /// The matrix of a tensor: that of the layer, or the one that all layers share.
    fn stored(
        &self,
        module: &ModuleTensors<'_, '_>,
        size: usize,
        inverse: bool,
    ) -> Result<Option<Rotation>, ImportError> {
        let suffix = format!("{}_input.weight", self.group);
        let fits = |view: &TensorView<'_>| view.shape() == [size, size];
        let view = module.tensor(&suffix).or_else(|| module.ending_with(&suffix).find(fits));
        let view = view.filter(fits).ok_or_else(|| ImportError::missing(module.tensor_name(&suffix), "the layer"))?;
        let (all, root) = (values(view)?, (size as f64).sqrt());
        let at = |index: usize| if inverse { index % size * size + index / size } else { index };
        Ok(Rotation::of_matrix(size, (0..all.len()).map(|index| all[at(index)] / root).collect()))
    }
}

impl Inputs {
    fn read(place: &str, apply: &Value) -> Result<Inputs, RecipeError> {
        let texts = |key: &str| -> Vec<&str> {
            match apply.get(key) {
                Some(Value::String(text)) => vec![text.as_str()],
                list => list.and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).collect(),
            }
        };
        let ignore = texts("ignore").into_iter().map(|text| Pattern::new(&format!("{place}.ignore"), text));
        Ok(Inputs {
            targets: texts("targets").into_iter().map(|text| target(place, text)).collect::<Result<_, _>>()?,
            ignore: ignore.collect::<Result<_, _>>()?,
            inverse: apply.get("inverse").and_then(Value::as_bool).unwrap_or(false),
        })
    }

    fn reach(&self, module: &str) -> bool {
        !self.ignore.iter().any(|pattern| pattern.matches(module))
            && self.targets.iter().any(|target| target.matches(module, ModuleClass::Linear))
    }
}
