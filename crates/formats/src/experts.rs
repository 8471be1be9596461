//! Checkpoints that hold all experts of a block in one tensor, seen with a matrix for each: the layout that loaders of quantized
//! checkpoints know of most families. Reads headers only.

use kvant_container::{Checkpoint, Dtype, Error, TensorEntry, TensorPart};
use kvant_model::family::{self, ExpertLayout, ExpertStorage, Family, Orientation, Role, RowOrder};
use kvant_model::model_config::ModelConfig;
use kvant_model::network::{Network, TensorMeta};
use kvant_weights::import_error::ImportError;
use kvant_weights::weight::{
    ImportedTensor, MergedBase, MergedMatrix, PackedMatrix, Stored, StoredBytes, WeightMatrix,
};
use serde_json::Value;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// The form in which experts are seen that a checkpoint holds in one tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpertsForm {
    /// One tensor where transformers' class of the family has one, else a matrix for each projection of each expert.
    OfClass,
    /// A matrix for each projection of each expert, where the family has a layout with these.
    Separate,
}

/// The checkpoint with the tensors of all experts of a block seen in a form. Experts of families without a layout with a matrix for each
/// stay as they are, as do tensors that are not floats.
///
/// # Errors
///
/// Those of config.json, and tensors that are there in both layouts.
pub fn divided(checkpoint: Checkpoint, form: ExpertsForm) -> Result<Checkpoint, Error> {
    let config = checkpoint.config()?;
    let metas = checkpoint.tensors().map(|view| TensorMeta::new(view.name(), view.shape(), view.dtype().to_string()));
    let Some(layouts) = Layouts::of(config.as_ref(), metas, form) else { return Ok(checkpoint) };
    let is_regrouped = checkpoint.tensors().any(|view| {
        let stacked = layouts.stacked(view.name(), view.shape(), view.dtype());
        stacked.is_some_and(|stacked| stacked.orientation == Orientation::InOut)
    });
    let checkpoint = checkpoint.divided(|entry| layouts.parts(entry))?;
    Ok(if is_regrouped { checkpoint.with_regrouped_matrices() } else { checkpoint })
}

/// Tensors of all experts of a block as a tensor for each projection of each expert, where [`divided`] cannot divide their bytes: of
/// weights stored as `[experts, in, out]`, gate and up alternate in every row.
pub(crate) fn regroup(config: Option<&Value>, tensors: &mut Vec<ImportedTensor<'_>>) -> Result<(), ImportError> {
    let metas = tensors.iter().map(|tensor| tensor.meta.clone());
    let Some(layouts) = Layouts::of(config, metas, ExpertsForm::Separate) else { return Ok(()) };
    let names: HashSet<String> = tensors.iter().map(|tensor| tensor.meta.name.clone()).collect();
    let mut regrouped = Vec::with_capacity(tensors.len());
    for tensor in tensors.drain(..) {
        let Some(matrices) = layouts.matrices(&tensor) else {
            regrouped.push(tensor);
            continue;
        };
        if let Some(twice) = matrices.iter().find(|matrix| names.contains(&matrix.meta.name)) {
            return Err(ImportError::invalid(&twice.meta.name, format!("is also part of `{}`", tensor.meta.name)));
        }
        regrouped.extend(matrices);
    }
    *tensors = regrouped;
    Ok(())
}

/// The layouts of a model's family.
struct Layouts {
    fused: Vec<ExpertLayout>,
    separate: ExpertLayout,
    /// How the experts of modules are stored.
    orientations: HashMap<String, Orientation>,
}

/// A tensor of all experts of a block.
struct Stacked {
    count: usize,
    orientation: Orientation,
    /// What a row of outputs belongs to, in their order: gate and up, or one projection.
    roles: &'static [Role],
    /// Outputs and inputs of a projection.
    size: (usize, usize),
    /// The name before the path inside a block.
    before: String,
}

impl Layouts {
    /// `None` where experts stay as they are.
    fn of(config: Option<&Value>, metas: impl Iterator<Item = TensorMeta>, form: ExpertsForm) -> Option<Layouts> {
        let config = ModelConfig::from_json(config?).ok().filter(|config| config.quantization.is_none())?;
        let layouts = family::of_config(&config).and_then(|family: &Family| family.moe)?.experts;
        if layouts.first()?.storage == ExpertStorage::Fused && form == ExpertsForm::OfClass {
            return None;
        }
        let fused = layouts.iter().filter(|layout| layout.storage == ExpertStorage::Fused);
        let fused: Vec<ExpertLayout> =
            fused.filter(|layout| layout.gate_up_rows == RowOrder::Stacked).copied().collect();
        let separate = layouts.iter().find(|layout| layout.storage == ExpertStorage::Separate).copied()?;
        let network = Network::recognise(&config, &metas.collect::<Vec<_>>());
        let of_module = network.experts().iter().map(|experts| (experts.module.clone(), experts.orientation));
        Some(Layouts { fused, separate, orientations: of_module.collect() })
    }

    /// What a tensor of all experts holds.
    fn stacked(&self, name: &str, shape: &[usize], dtype: Dtype) -> Option<Stacked> {
        let &[count, first, second] = shape else { return None };
        let module = name.strip_suffix(".weight").unwrap_or(name);
        let known = self.orientations.get(module);
        let of_layout = |layout: &ExpertLayout| {
            let (role, before) = role_in(layout, module)?;
            known.is_none_or(|known| *known == layout.orientation).then_some((role, before, layout.orientation))
        };
        let (role, before, orientation) = self.fused.iter().find_map(of_layout)?;
        let roles: &[Role] = match role {
            Role::GateUp => &[Role::Gate, Role::Up],
            Role::Gate => &[Role::Gate],
            Role::Up => &[Role::Up],
            Role::Down => &[Role::Down],
            _ => return None,
        };
        let (rows, columns) = if orientation == Orientation::InOut { (second, first) } else { (first, second) };
        let is_float = matches!(dtype, Dtype::F32 | Dtype::F16 | Dtype::BF16);
        if !is_float || !rows.is_multiple_of(roles.len()) || shape.contains(&0) {
            return None;
        }
        let (size, before) = ((rows / roles.len(), columns), before.to_owned());
        Some(Stacked { count, orientation, roles, size, before })
    }

    /// The names of the matrices in a tensor, expert by expert.
    fn names(&self, stacked: &Stacked) -> Option<Vec<String>> {
        let path_of =
            |role: &Role| self.separate.linears.iter().find(|(listed, _)| listed == role).map(|(_, path)| *path);
        let paths: Vec<&str> = stacked.roles.iter().map(path_of).collect::<Option<_>>()?;
        // A count that the data bound: none of the dimensions is 0.
        let of_expert = |expert: usize| paths.iter().map(move |path| path.replace("{}", &expert.to_string()));
        Some((0..stacked.count).flat_map(of_expert).map(|path| format!("{}{path}.weight", stacked.before)).collect())
    }

    /// The matrices in a tensor, where each is a run of its bytes.
    fn parts(&self, entry: &TensorEntry) -> Option<Vec<TensorPart>> {
        let stacked = self.stacked(entry.name(), entry.shape(), entry.dtype())?;
        if stacked.orientation == Orientation::InOut {
            return None;
        }
        let (rows, columns) = stacked.size;
        let names = self.names(&stacked)?.into_iter();
        Some(names.map(|name| TensorPart { name, shape: vec![rows, columns] }).collect())
    }

    /// The matrices in a tensor, whichever bytes they are.
    fn matrices<'a>(&self, tensor: &ImportedTensor<'a>) -> Option<Vec<ImportedTensor<'a>>> {
        let Stored::Plain(view) = tensor.stored else { return None };
        let stacked = self.stacked(&tensor.meta.name, view.shape(), view.dtype())?;
        let source = kvant_weights::float_dtype::float_dtype(view.dtype())?;
        let (rows, columns) = stacked.size;
        let outputs = rows * stacked.roles.len();
        let length = outputs * columns * source.size();
        let is_transposed = stacked.orientation == Orientation::InOut;
        let mut names = self.names(&stacked)?.into_iter();
        let mut matrices = Vec::with_capacity(names.len());
        for expert in 0..stacked.count {
            let range = expert * length..(expert + 1) * length;
            let of_expert =
                WeightMatrix::plain(view.bytes().get(range.clone())?, source, (outputs, columns), is_transposed);
            for (at, name) in names.by_ref().take(stacked.roles.len()).enumerate() {
                let base = MergedBase {
                    matrix: of_expert.slice_rows(at * rows..(at + 1) * rows),
                    stored: Some(StoredBytes { view, range: range.clone() }),
                    name: Some(view.name()),
                    is_float: true,
                    dtype: view.dtype(),
                    bytes: (rows * columns * source.size()) as u64,
                };
                let meta = TensorMeta::new(name, [rows, columns], view.dtype().to_string());
                let matrix = Arc::new(PackedMatrix::Merged(MergedMatrix::new(base)));
                matrices.push(ImportedTensor { meta, stored: Stored::Packed(vec![matrix]) });
            }
        }
        Some(matrices)
    }
}

/// The role of a module of all experts in a layout, and what stands before its path in a block.
fn role_in<'n>(layout: &ExpertLayout, module: &'n str) -> Option<(Role, &'n str)> {
    layout.linears.iter().find_map(|(role, path)| {
        let before = module.strip_suffix(path)?;
        let block = before.strip_suffix('.')?.rsplit('.').next()?;
        (!block.is_empty() && block.bytes().all(|byte| byte.is_ascii_digit())).then_some((*role, before))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvant_container::{Durability, Layout, TensorDeclaration, Writer};
    use kvant_numeric::simd::Isa;
    use std::collections::BTreeMap;

    const EXPERTS: &str = "model.language_model.layers.3.mlp.experts.";

    /// A checkpoint with the experts of a block: two, of 8 inputs and 3 hidden values, whose elements are counted.
    fn checkpoint(
        model_type: &str,
        dtype: Dtype,
        gate_up: [usize; 3],
        down: [usize; 3],
    ) -> (tempfile::TempDir, Checkpoint) {
        let dir = tempfile::tempdir().unwrap();
        let tensors = vec![
            TensorDeclaration::new(format!("{EXPERTS}gate_up_proj"), dtype, gate_up),
            TensorDeclaration::new(format!("{EXPERTS}down_proj"), dtype, down),
        ];
        let writer = Writer::create(dir.path(), Layout::new(tensors, u64::MAX, BTreeMap::new()).unwrap()).unwrap();
        for (index, shape) in [gate_up, down].iter().enumerate() {
            let count = shape.iter().product::<usize>();
            let bytes = match dtype {
                Dtype::F32 => (0..count).flat_map(|at| (at as f32).to_le_bytes()).collect(),
                _ => vec![0; count * dtype.bitsize() / 8],
            };
            writer.write_at(index, 0, &bytes).unwrap();
        }
        writer.finish(Durability::Process).unwrap();
        let config = format!(r#"{{"model_type":"{model_type}","text_config":{{"hidden_size":8}}}}"#);
        std::fs::write(dir.path().join("config.json"), config).unwrap();
        let checkpoint = Checkpoint::open(dir.path()).unwrap();
        (dir, checkpoint)
    }

    fn names(model_type: &str, dtype: Dtype, form: ExpertsForm) -> Vec<String> {
        let (_dir, checkpoint) = checkpoint(model_type, dtype, [2, 6, 8], [2, 8, 3]);
        let checkpoint = divided(checkpoint, form).unwrap();
        let short = |name: &str| name.strip_prefix(EXPERTS).unwrap().to_owned();
        checkpoint.tensors().map(|tensor| format!("{} {:?}", short(tensor.name()), tensor.shape())).collect()
    }

    const SEPARATE: [&str; 6] = [
        "0.gate_proj.weight [3, 8]",
        "0.up_proj.weight [3, 8]",
        "1.gate_proj.weight [3, 8]",
        "1.up_proj.weight [3, 8]",
        "0.down_proj.weight [8, 3]",
        "1.down_proj.weight [8, 3]",
    ];

    #[test]
    fn experts_in_one_tensor_become_those_of_the_other_layout() {
        assert_eq!(names("qwen3_5_moe", Dtype::BF16, ExpertsForm::OfClass), SEPARATE);
        assert_eq!(names("qwen3_vl_moe", Dtype::BF16, ExpertsForm::Separate), SEPARATE);
    }

    #[test]
    fn other_families_and_codes_stay_in_one_tensor() {
        let whole = ["gate_up_proj [2, 6, 8]", "down_proj [2, 8, 3]"];
        let of_class = ExpertsForm::OfClass;
        assert_eq!(names("qwen3_vl_moe", Dtype::BF16, of_class), whole, "transformers looks for one tensor");
        for form in [of_class, ExpertsForm::Separate] {
            assert_eq!(names("gpt_oss", Dtype::BF16, form), whole);
            assert_eq!(names("llama", Dtype::BF16, form), whole);
            assert_eq!(names("qwen3_5_moe", Dtype::U8, form), whole);
        }
    }

    #[test]
    fn gate_and_up_that_alternate_in_every_row_are_read_apart() {
        let (_dir, checkpoint) = checkpoint("qwen3_vl_moe", Dtype::F32, [2, 8, 6], [2, 3, 8]);
        let checkpoint = divided(checkpoint, ExpertsForm::Separate).unwrap();
        let import = crate::import::open(&checkpoint).unwrap();
        let found = |name: &str| {
            let name = format!("{EXPERTS}{name}.weight");
            let tensor = import.tensors().iter().find(|tensor| tensor.meta.name == name).unwrap();
            let Stored::Packed(matrices) = &tensor.stored else { panic!("{name}") };
            let matrix = WeightMatrix::packed(Arc::clone(&matrices[0]));
            assert_eq!(tensor.meta.shape, [matrix.rows, matrix.columns]);
            matrix.all_values(Isa::best())
        };
        assert_eq!(import.tensors().len(), 6);
        // Element (output, input) of expert e stands at (e * 8 + input) * 6 + output, of up 3 outputs further.
        let expected = |expert: usize, first: usize| {
            let at = move |output, input| ((expert * 8 + input) * 6 + first + output) as f32;
            (0..3).flat_map(|output| (0..8).map(move |input| at(output, input))).collect::<Vec<_>>()
        };
        assert_eq!(found("1.gate_proj"), expected(1, 0));
        assert_eq!(found("1.up_proj"), expected(1, 3));
        let down = |output, input| ((3 + input) * 8 + output) as f32;
        assert_eq!(found("1.down_proj"), (0..8).flat_map(|o| (0..3).map(move |i| down(o, i))).collect::<Vec<_>>());
    }
}
