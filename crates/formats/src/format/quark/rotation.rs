//! Rotations of inputs that Quark's loader computes while the model runs: the entry of `algo_config`, and the matrix beside each weight.
//!
//! The loader wraps the layers that `online_rotation_layers` lists, else those called `down_proj` (`r4`) and the targets of
//! `online_r1_rotation`, where their weights are quantized. A matrix of 1 and -1 is divided by the root of its size; one that was trained
//! is taken as it is. Where it is as wide as the layer, the loader computes it by itself.

use crate::format::InputRotation;
use crate::format::stored::ModuleTensors;
use crate::format::stored::scalars::matrix;
use kvant_container::{Dtype, TensorView};
use kvant_quant::glob::Glob;
use kvant_quant::rotation::Rotation;
use kvant_weights::import_error::ImportError;
use kvant_weights::parts::CannotHold;
use kvant_weights::recipe_error::RecipeError;
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// The tensor with the matrix, beside a weight.
pub(super) const INPUT_ROTATION: &str = "input_rotation";

/// What stands before the size in the name of a matrix that all layers of that size share.
const SHARED: &str = "shared_input_rotation_";

const HINT: &str = "use a checkpoint without this rotation";

/// Adds the rotation to a configuration, as Quark describes that of down projections.
///
/// # Errors
/// [`CannotHold`] where layers are rotated by matrices of several sizes, for which there is one number.
pub(super) fn describe(config: &mut Value, rotations: &[(&str, InputRotation)]) -> Result<(), CannotHold> {
    if rotations.is_empty() {
        return Ok(());
    }
    let mut layers: Vec<&str> = rotations.iter().map(|(name, _)| *name).collect();
    layers.sort_unstable();
    let rotation = json!({
        "backbone": "model",
        "mlp": "mlp",
        "model_decoder_layers": "model.layers",
        "name": "rotation",
        "o_proj": "self_attn.o_proj",
        "online_config": {"online_rotation_layers": layers, "shared_parallel": false, "use_input_prescale": false},
        "online_r1_rotation": null,
        "r1": false,
        "r2": false,
        "r3": false,
        "r4": true,
        "random_r1": false,
        "random_r2": false,
        "rotation_size": InputRotation::common_size(rotations)?,
        "scaling_layers": {"first_layer": [], "last_layer": [], "middle_layers": []},
        "self_attn": "self_attn",
        "smooth_positions": null,
        "train_smooth": null,
        "trainable": false,
        "v_proj": "self_attn.v_proj",
    });
    // Rotations come before all other algorithms.
    match &mut config["algo_config"] {
        Value::Array(algorithms) => algorithms.insert(0, rotation),
        none => *none = json!([rotation]),
    }
    Ok(())
}

/// The rotation of a checkpoint that the loader computes.
#[derive(Clone, Debug)]
pub(super) struct StoredRotation {
    /// Whether matrices are floats that were trained.
    is_trained: bool,
    /// The channels of a matrix; `None` for those of the layer.
    size: Option<usize>,
    /// The layers, where they are listed.
    listed: Vec<String>,
    /// Whether layers called `down_proj` are among them.
    down: bool,
    /// Patterns of the others.
    targets: Vec<Glob>,
}

impl StoredRotation {
    /// Reads the algorithms of a configuration; `None` where nothing is rotated while the model runs.
    ///
    /// # Errors
    /// *Unsupported* for rotations behind rotary embeddings, and for factors on inputs; *invalid* for a size that is none.
    pub(super) fn read(algorithms: Option<&Value>) -> Result<Option<StoredRotation>, RecipeError> {
        let list = algorithms.and_then(Value::as_array).into_iter().flatten();
        let fields = list.filter_map(Value::as_object).find(|fields| {
            let name = fields.get("name").and_then(Value::as_str);
            name.is_some_and(super::algorithms::is_rotation)
        });
        let Some(fields) = fields else { return Ok(None) };
        // Under the older name all rotations are on that the configuration does not turn off.
        let is_older =
            fields.get("name").and_then(Value::as_str).is_some_and(|name| name.eq_ignore_ascii_case("quarot"));
        let is_on = |key: &str| {
            let default = is_older && ["r3", "r4"].contains(&key);
            fields.get(key).and_then(Value::as_bool).unwrap_or(default)
        };
        let refused = |key: &str, reason: &str| RecipeError::unsupported(format!("algo_config.{key}"), reason, HINT);
        if is_on("r3") {
            return Err(refused(
                "r3",
                "rotations of queries and keys are not computed, nor does amd-quark reload such a checkpoint",
            ));
        }
        let online = fields.get("online_config").and_then(Value::as_object);
        if online.and_then(|online| online.get("use_input_prescale")).and_then(Value::as_bool) == Some(true) {
            return Err(refused("online_config.use_input_prescale", "factors on inputs are not computed"));
        }
        let (down, of_stream) = (is_on("r4"), is_on("online_r1_rotation"));
        if !down && !of_stream {
            return Ok(None);
        }
        let size = match fields.get("rotation_size").filter(|size| !size.is_null()) {
            None => None,
            Some(size) => Some(size.as_u64().and_then(|size| usize::try_from(size).ok()).ok_or_else(|| {
                RecipeError::invalid("algo_config.rotation_size", "must be a number of channels", HINT)
            })?),
        };
        let listed = online.and_then(|online| online.get("online_rotation_layers")).and_then(Value::as_array);
        let texts = listed.into_iter().flatten().filter_map(Value::as_str);
        Ok(Some(StoredRotation {
            is_trained: is_on("trainable"),
            size,
            listed: texts.map(str::to_owned).collect(),
            down,
            targets: if of_stream { targets(fields) } else { Vec::new() },
        }))
    }

    /// Returns whether the loader rotates the inputs of a quantized layer.
    fn reaches(&self, module: &str) -> bool {
        if !self.listed.is_empty() {
            return self.listed.iter().any(|listed| listed == module);
        }
        self.down && module.ends_with("down_proj") || self.targets.iter().any(|target| target.matches(module))
    }

    /// The rotation of the inputs of a quantized layer, which has so many.
    ///
    /// # Errors
    /// *Invalid* where there is no matrix, or it does not fit the layer.
    pub(super) fn of_layer(
        &self,
        module: &ModuleTensors<'_, '_>,
        columns: usize,
    ) -> Result<Option<Arc<Rotation>>, ImportError> {
        if !self.reaches(module.name) {
            return Ok(None);
        }
        let size = self.size.unwrap_or(columns);
        let shared = || module.anywhere(&format!("{SHARED}{size}"));
        let view = match module.tensor(INPUT_ROTATION).or_else(shared) {
            Some(view) => view,
            None => module.need(INPUT_ROTATION)?,
        };
        if size == 0 || view.shape() != [size, size] || !columns.is_multiple_of(size) {
            let reason = format!("shape {:?} is not that of a rotation of {size} of {columns} inputs", view.shape());
            return Err(ImportError::invalid(view.name(), reason));
        }
        let found = match (self.is_trained, size == columns) {
            (true, _) => Rotation::of_matrix(size, matrix(view)?),
            // The loader does not look at the tensor either.
            (false, true) if size.is_power_of_two() => Rotation::sylvester(size),
            (false, _) => signs(view, size)?,
        };
        let found =
            found.ok_or_else(|| ImportError::unsupported(view.name(), format!("is of {size} channels"), HINT))?;
        Ok(Some(Arc::new(found)))
    }
}

/// The patterns of the layers that the rotation of the stream targets: `layer_id` stands for the number of a block.
fn targets(fields: &Map<String, Value>) -> Vec<Glob> {
    let places = fields.get("scaling_layers").and_then(Value::as_object).into_iter().flatten();
    let places = places.filter(|(place, _)| *place != "last_layer");
    let entries = places.flat_map(|(_, entries)| entries.as_array().into_iter().flatten());
    // Without targets of its own, an entry means the layers behind the norm.
    let names = entries.filter_map(|entry| {
        let own = entry.get("target_modules").filter(|targets| !targets.is_null());
        own.or(entry.get("next_modules"))?.as_array()
    });
    let names = names.flatten().filter_map(Value::as_str);
    names.map(|name| Glob::new(&name.replace("pre_layer_id", "*").replace("layer_id", "*"))).collect()
}

/// A matrix of 1 and -1 as a rotation.
fn signs(view: TensorView<'_>, size: usize) -> Result<Option<Rotation>, ImportError> {
    if view.dtype() != Dtype::I8 {
        return Err(ImportError::invalid(view.name(), format!("is {}; a rotation of 1 and -1 is I8", view.dtype())));
    }
    let bytes = view.bytes();
    if let Some(other) = bytes.iter().map(|byte| *byte as i8).find(|value| value.abs() != 1) {
        return Err(ImportError::invalid(view.name(), format!("holds {other}, and a rotation has 1 and -1 alone")));
    }
    let is_minus = |index: usize| ((index / size) & (index % size)).count_ones() % 2 == 1;
    if size.is_power_of_two() && bytes.iter().enumerate().all(|(index, byte)| (*byte as i8 == -1) == is_minus(index)) {
        return Ok(Rotation::sylvester(size));
    }
    let root = (size as f64).sqrt();
    Ok(Rotation::of_matrix(size, bytes.iter().map(|byte| f64::from(*byte as i8) / root).collect()))
}
