//! The tensors of a file's source model: names and shapes, from the description of the family and the tensors
//! of the file. Not the positions of their values.

use crate::model::architecture::Architecture;
use crate::model::names::{has_gate_in_up, in_block, norm_ending, of_norm, of_parameter, of_role, recurrent_stems};
use crate::model::numbers;
use kvant_container::gguf::GgufFile;
use kvant_model::family::{
    ExpertLayout, ExpertStorage, Family, NormSite, Orientation, Part, RecurrentMixer, RecurrentParameter, Role,
};
use kvant_model::network::TensorMeta;
use std::collections::HashMap;

/// Tensors of the model, in an order that follows the file's.
pub(crate) fn expected(
    family: &Family,
    architecture: &Architecture,
    file: &GgufFile,
    blocks: usize,
) -> Vec<TensorMeta> {
    // An empty tensor has no bytes, and any number of rows.
    let shapes = file.tensors().filter(|tensor| tensor.byte_len() > 0).map(|tensor| (tensor.name(), tensor.shape()));
    let shapes = shapes.collect();
    let numbers = numbers::stated(architecture.name, file.metadata());
    let mut expectation = Expectation { family, architecture, shapes, numbers, found: Vec::new() };
    expectation.before_blocks();
    (0..blocks).for_each(|block| expectation.block(block));
    expectation.behind_blocks();
    expectation.found
}

/// The maximum number of experts, or of heads with their own norms, of a block.
const MOST: usize = 1 << 16;

struct Expectation<'a> {
    family: &'a Family,
    architecture: &'a Architecture,
    shapes: HashMap<&'a str, &'a [usize]>,
    /// Tensors of every block that the metadata hold.
    numbers: Vec<(&'static str, Vec<usize>)>,
    found: Vec<TensorMeta>,
}

impl Expectation<'_> {
    fn add(&mut self, name: String, shape: Vec<usize>) {
        self.found.push(TensorMeta::new(name, shape, "F32"));
    }

    fn shape(&self, block: Option<usize>, name: &str) -> Option<Vec<usize>> {
        self.shapes.get(in_block(block, name).as_str()).map(|shape| shape.to_vec())
    }

    /// A tensor that has the same shape in both.
    fn add_same(&mut self, block: Option<usize>, stored: &str, name: String) {
        if let Some(shape) = self.shape(block, stored) {
            self.add(name, shape);
        }
    }

    fn before_blocks(&mut self) {
        let trunk = self.family.trunk;
        self.add_same(None, "token_embd.weight", format!("{}.{}.weight", trunk.path, trunk.embedding));
        if let Some(positions) = trunk.positions {
            self.add_same(None, "position_embd.weight", format!("{}.{positions}.weight", trunk.path));
        }
    }

    fn behind_blocks(&mut self) {
        let trunk = self.family.trunk;
        for (site, name) in trunk.norms {
            self.norm(None, *site, &format!("{}.{name}", trunk.path));
        }
        if let Some(head) = trunk.heads.first() {
            self.add_same(None, "output.weight", format!("{head}.weight"));
            self.add_same(None, "output.bias", format!("{head}.bias"));
        }
    }

    fn block(&mut self, block: usize) {
        let family = self.family;
        let trunk = family.trunk;
        let path = |name: &str| format!("{}.{}.{block}.{name}", trunk.path, trunk.blocks);
        for (site, name) in family.norms {
            match self.architecture.name {
                "falcon" => self.norm_of_falcon(block, name, &path(name)),
                _ => self.norm(Some(block), *site, &path(name)),
            }
        }
        self.recurrent(block);
        self.numbers(block);
        let attention = family.attention.iter().map(|layer| (Part::Attention, layer));
        for (part, (role, name)) in attention.chain(family.mlp.iter().map(|layer| (Part::Mlp, layer))) {
            self.linear(block, *role, part, &path(name));
        }
        if let Some(moe) = family.moe {
            // Further names of the router are those of other tools.
            let mut known: Vec<Role> = Vec::new();
            for (role, name) in moe.routing {
                if !known.contains(role) {
                    self.linear(block, *role, Part::Routing, &path(name));
                    known.push(*role);
                }
            }
            let is_mixture = self.shape(Some(block), "ffn_gate_inp.weight").is_some();
            for (role, name) in moe.shared {
                match self.architecture.name {
                    "granitehybrid" if !is_mixture => self.linear(block, *role, Part::Mlp, &path(name)),
                    _ => self.linear(block, *role, Part::SharedExperts, &path(name)),
                }
            }
            if let Some(layout) = moe.experts.first() {
                self.experts(block, layout);
            }
        }
        for name in family.parameters {
            let Some(stored) = of_parameter(name) else { continue };
            match self.shape(Some(block), stored) {
                // A row in ERNIE 4.5.
                Some(shape) if name.contains("moe_statics") => self.add(path(name), [vec![1], shape].concat()),
                Some(shape) => self.add(path(name), shape),
                None => {}
            }
        }
    }

    /// Tensors of a block whose values are in the metadata.
    fn numbers(&mut self, block: usize) {
        let trunk = self.family.trunk;
        for (local, shape) in self.numbers.clone() {
            self.add(format!("{}.{}.{block}.{local}", trunk.path, trunk.blocks), shape);
        }
    }

    /// A norm of Falcon: of two before parallel branches, that of the feed-forward network has the name of the only one.
    fn norm_of_falcon(&mut self, block: usize, name: &str, path: &str) {
        let has_two = self.shape(Some(block), "attn_norm_2.weight").is_some();
        let stem = match (name, has_two) {
            ("input_layernorm", false) | ("ln_mlp", true) => "attn_norm",
            ("ln_attn", true) => "attn_norm_2",
            _ => return,
        };
        for leaf in ["weight", "bias"] {
            self.add_same(Some(block), &format!("{stem}.{leaf}"), format!("{path}.{leaf}"));
        }
    }

    /// A recurrent mixer, where the block has one.
    fn recurrent(&mut self, block: usize) {
        let Some(recurrent) = self.family.recurrent else { return };
        let trunk = self.family.trunk;
        let path = |name: &str| format!("{}.{}.{block}.{name}", trunk.path, trunk.blocks);
        let at = Some(block);
        for (role, name) in recurrent.linears {
            let stems = recurrent_stems(recurrent.mixer, *role);
            let shapes: Vec<Vec<usize>> =
                stems.iter().filter_map(|stem| self.shape(at, &format!("{stem}.weight"))).collect();
            let rows = shapes.iter().try_fold(0usize, |sum, shape| sum.checked_add(*shape.first()?));
            if let (Some(rows), Some([_, columns])) = (rows, shapes.first().map(Vec::as_slice)) {
                self.add(format!("{}.weight", path(name)), vec![rows, *columns]);
                let bias = stems.first().and_then(|stem| self.shape(at, &format!("{stem}.bias")));
                bias.into_iter().for_each(|shape| self.add(format!("{}.bias", path(name)), shape));
            }
        }
        for (parameter, name) in recurrent.parameters {
            let (stem, leaf) = match parameter {
                RecurrentParameter::Convolution => ("conv.weight", ".weight"),
                RecurrentParameter::DecayLog => ("ssm_a", ""),
                RecurrentParameter::StepBias => ("ssm_dt.bias", ""),
                RecurrentParameter::Skip => ("ssm_d", ""),
                _ => continue,
            };
            match parameter {
                RecurrentParameter::Convolution => {
                    let stem = match recurrent.mixer {
                        RecurrentMixer::ShortConvolution => "shortconv.conv",
                        _ => "ssm_conv1d",
                    };
                    if let Some([channels, kernel]) = self.shape(at, &format!("{stem}.weight")).as_deref() {
                        self.add(format!("{}{leaf}", path(name)), vec![*channels, 1, *kernel]);
                    }
                    self.add_same(at, &format!("{stem}.bias"), format!("{}.bias", path(name)));
                }
                // One number for each head.
                _ => match self.shape(at, stem).as_deref() {
                    Some([heads, 1]) => self.add(format!("{}{leaf}", path(name)), vec![*heads]),
                    Some(shape) => self.add(format!("{}{leaf}", path(name)), shape.to_vec()),
                    None => {}
                },
            }
        }
    }

    /// A norm; those that every head has for itself are stacked in the file.
    fn norm(&mut self, block: Option<usize>, site: NormSite, path: &str) {
        let stem = self.architecture.norm(site).unwrap_or_else(|| of_norm(site));
        for leaf in ["weight", "bias"] {
            let ending = if leaf == "weight" { norm_ending(self.architecture.name, stem) } else { ".bias" };
            match (self.shape(block, &format!("{stem}{ending}")), path.contains("{}")) {
                (Some(shape), true) if shape.len() == 2 && shape[0] <= MOST => {
                    for head in 0..shape[0] {
                        self.add(format!("{}.{leaf}", path.replace("{}", &head.to_string())), vec![shape[1]]);
                    }
                }
                // A row for each group in the file.
                (Some(shape), _) if site == NormSite::RecurrentOutput => {
                    let length = shape.iter().try_fold(1usize, |product, size| product.checked_mul(*size));
                    length.into_iter().for_each(|length| self.add(format!("{path}.{leaf}"), vec![length]));
                }
                (Some(shape), _) => self.add(format!("{path}.{leaf}"), shape),
                (None, _) => {}
            }
        }
    }

    fn linear(&mut self, block: usize, role: Role, part: Part, path: &str) {
        if let Some((rows, columns)) = self.size(block, role, part) {
            let shape = match self.family.orientation {
                Orientation::OutIn => vec![rows, columns],
                Orientation::InOut => vec![columns, rows],
            };
            self.add(format!("{path}.weight"), shape);
        }
        if let Some(rows) = of_role(role, part).and_then(|stem| self.shape(Some(block), &format!("{stem}.bias"))) {
            self.add(format!("{path}.bias"), rows);
        }
    }

    /// Output and input channels of a layer.
    fn size(&self, block: usize, role: Role, part: Part) -> Option<(usize, usize)> {
        let matrix = |role: Role| match *self.shape(Some(block), &format!("{}.weight", of_role(role, part)?))? {
            [rows, columns] => Some((rows, columns)),
            // The gate on the shared expert.
            [columns] => Some((1, columns)),
            _ => None,
        };
        match role {
            Role::KeyValueUp => self.latent_size(block),
            Role::GateUp if part != Part::Mlp || !has_gate_in_up(self.architecture.name) => {
                let ((gate, columns), (up, _)) = (matrix(Role::Gate)?, matrix(Role::Up)?);
                Some((gate.checked_add(up)?, columns))
            }
            role => matrix(role),
        }
    }

    /// The up projection of latent attention, whose keys are transposed in a separate tensor.
    fn latent_size(&self, block: usize) -> Option<(usize, usize)> {
        let (keys, values) = (self.shape(Some(block), "attn_k_b.weight")?, self.shape(Some(block), "attn_v_b.weight")?);
        let (&[heads, rank, nope], &[_, value, _]) = (keys.as_slice(), values.as_slice()) else { return None };
        Some((heads.checked_mul(nope.checked_add(value)?)?, rank))
    }

    fn experts(&mut self, block: usize, layout: &ExpertLayout) {
        let trunk = self.family.trunk;
        for (role, name) in layout.linears {
            let path = format!("{}.{}.{block}.{name}", trunk.path, trunk.blocks);
            let Some([experts, rows, columns]) = self.experts_size(block, *role) else { continue };
            match layout.storage {
                ExpertStorage::Separate => {
                    for expert in 0..experts {
                        self.add(format!("{}.weight", path.replace("{}", &expert.to_string())), vec![rows, columns]);
                    }
                }
                ExpertStorage::Stacked => {
                    let [first, second] = match layout.orientation {
                        Orientation::OutIn => [rows, columns],
                        Orientation::InOut => [columns, rows],
                    };
                    self.add(path, vec![experts.saturating_mul(first), second]);
                }
                ExpertStorage::Fused => {
                    let shape = match layout.orientation {
                        Orientation::OutIn => vec![experts, rows, columns],
                        Orientation::InOut => vec![experts, columns, rows],
                    };
                    // Parameters of a module of experts have no suffix, layers have one.
                    let is_parameter = name.contains("experts.");
                    if is_parameter && self.has_expert_bias(block, *role) {
                        self.add(format!("{path}_bias"), vec![experts, rows]);
                    }
                    self.add(if is_parameter { path } else { format!("{path}.weight") }, shape);
                }
            }
        }
    }

    fn has_expert_bias(&self, block: usize, role: Role) -> bool {
        let role = if role == Role::GateUp { Role::Gate } else { role };
        of_role(role, Part::Experts).is_some_and(|stem| self.shape(Some(block), &format!("{stem}.bias")).is_some())
    }

    fn experts_size(&self, block: usize, role: Role) -> Option<[usize; 3]> {
        let shape = |role: Role| -> Option<[usize; 3]> {
            let name = format!("{}.weight", of_role(role, Part::Experts)?);
            self.shape(Some(block), &name)?.try_into().ok().filter(|shape: &[usize; 3]| shape[0] <= MOST)
        };
        match role {
            Role::GateUp => {
                let ([experts, gate, columns], [_, up, _]) = (shape(Role::Gate)?, shape(Role::Up)?);
                Some([experts, gate.checked_add(up)?, columns])
            }
            role => shape(role),
        }
    }
}
