//! Checkpoints that hold all experts of a block in one tensor, seen with a matrix for each: the layout that loaders of quantized
//! checkpoints know of most families. Reads headers only.

use kvant_container::{Checkpoint, Dtype, Error, TensorEntry, TensorPart};
use kvant_model::family::{self, ExpertLayout, ExpertStorage, Family, Orientation, Role, RowOrder};
use kvant_model::model_config::ModelConfig;

/// The checkpoint with the tensors of all experts of a block seen as one matrix for each projection of each expert, where its family
/// has a layout with these. Others stay as they are: families without such a layout or whose first layout is one tensor, which is
/// what transformers looks for, and tensors that are not floats.
///
/// # Errors
///
/// Those of config.json, and tensors that are there in both layouts.
pub fn divided(checkpoint: Checkpoint) -> Result<Checkpoint, Error> {
    let config = checkpoint.config()?.and_then(|config| ModelConfig::from_json(&config).ok());
    let family = config.filter(|config| config.quantization.is_none()).as_ref().and_then(family::of_config);
    match family.and_then(Layouts::of) {
        Some(layouts) => checkpoint.divided(|entry| layouts.parts(entry)),
        None => Ok(checkpoint),
    }
}

/// The two layouts of a family.
struct Layouts {
    fused: ExpertLayout,
    separate: ExpertLayout,
}

impl Layouts {
    fn of(family: &Family) -> Option<Layouts> {
        let layouts = family.moe?.experts;
        if layouts.first()?.storage == ExpertStorage::Fused {
            return None;
        }
        let find = |storage: ExpertStorage| {
            let mut layouts = layouts.iter();
            layouts.find(|layout| layout.storage == storage && layout.orientation == Orientation::OutIn).copied()
        };
        let fused = find(ExpertStorage::Fused).filter(|layout| layout.gate_up_rows == RowOrder::Stacked)?;
        Some(Layouts { fused, separate: find(ExpertStorage::Separate)? })
    }

    /// The matrices in a tensor.
    fn parts(&self, entry: &TensorEntry) -> Option<Vec<TensorPart>> {
        let &[count, rows, columns] = entry.shape() else { return None };
        let (role, before) = self.role(entry.name())?;
        let is_float = matches!(entry.dtype(), Dtype::F32 | Dtype::F16 | Dtype::BF16);
        let roles: &[Role] = if role == Role::GateUp { &[Role::Gate, Role::Up] } else { &[role] };
        if !is_float || !rows.is_multiple_of(roles.len()) || entry.shape().contains(&0) {
            return None;
        }
        let names: Vec<&str> = roles.iter().map(|role| self.name(*role)).collect::<Option<_>>()?;
        let shape = vec![rows / roles.len(), columns];
        let of_expert = |expert: usize| {
            let shape = shape.clone();
            names.iter().map(move |name| {
                let name = format!("{before}{}.weight", name.replace("{}", &expert.to_string()));
                TensorPart { name, shape: shape.clone() }
            })
        };
        // A count that the data bound: none of the dimensions is 0.
        Some((0..count).flat_map(of_expert).collect())
    }

    /// The role of a tensor of all experts, and what stands before its path in a block.
    fn role<'n>(&self, name: &'n str) -> Option<(Role, &'n str)> {
        self.fused.linears.iter().find_map(|(role, path)| {
            let before = name.strip_suffix(".weight").unwrap_or(name).strip_suffix(path)?;
            let block = before.strip_suffix('.')?.rsplit('.').next()?;
            (!block.is_empty() && block.bytes().all(|byte| byte.is_ascii_digit())).then_some((*role, before))
        })
    }

    fn name(&self, role: Role) -> Option<&'static str> {
        self.separate.linears.iter().find(|(listed, _)| *listed == role).map(|(_, path)| *path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvant_container::{Durability, Layout, TensorDeclaration, Writer};
    use std::collections::BTreeMap;

    fn names(model_type: &str, dtype: Dtype) -> Vec<String> {
        let dir = tempfile::tempdir().unwrap();
        let experts = "model.language_model.layers.3.mlp.experts.";
        let tensors = vec![
            TensorDeclaration::new(format!("{experts}gate_up_proj"), dtype, [2, 6, 4]),
            TensorDeclaration::new(format!("{experts}down_proj"), dtype, [2, 4, 3]),
        ];
        let writer = Writer::create(dir.path(), Layout::new(tensors, u64::MAX, BTreeMap::new()).unwrap()).unwrap();
        let bytes = dtype.bitsize() / 8;
        writer.write_at(0, 0, &vec![0; 48 * bytes]).unwrap();
        writer.write_at(1, 0, &vec![0; 24 * bytes]).unwrap();
        writer.finish(Durability::Process).unwrap();
        std::fs::write(dir.path().join("config.json"), format!(r#"{{"model_type":"{model_type}"}}"#)).unwrap();
        let checkpoint = divided(Checkpoint::open(dir.path()).unwrap()).unwrap();
        let short = |name: &str| name.strip_prefix(experts).unwrap().to_owned();
        checkpoint.tensors().map(|tensor| format!("{} {:?}", short(tensor.name()), tensor.shape())).collect()
    }

    #[test]
    fn experts_in_one_tensor_become_those_of_the_other_layout() {
        let expected = [
            "0.gate_proj.weight [3, 4]",
            "0.up_proj.weight [3, 4]",
            "1.gate_proj.weight [3, 4]",
            "1.up_proj.weight [3, 4]",
            "0.down_proj.weight [4, 3]",
            "1.down_proj.weight [4, 3]",
        ];
        assert_eq!(names("qwen3_5_moe", Dtype::BF16), expected);
    }

    #[test]
    fn other_families_and_codes_stay_in_one_tensor() {
        let whole = ["gate_up_proj [2, 6, 4]", "down_proj [2, 4, 3]"];
        assert_eq!(names("qwen3_vl_moe", Dtype::BF16), whole, "transformers looks for one tensor");
        assert_eq!(names("gpt_oss", Dtype::BF16), whole);
        assert_eq!(names("llama", Dtype::BF16), whole);
        assert_eq!(names("qwen3_5_moe", Dtype::U8), whole);
    }
}
