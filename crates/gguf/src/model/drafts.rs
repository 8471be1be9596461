//! The tensors of a model's GGUF file, without their types: each with its source rows.

use super::content::{Change, Content, TensorSlice};
use super::metadata::dense_prefix;
use super::{BlockNumbers, GgufPlanError, names, rope};
use crate::ftype::Category;
use crate::model::architecture::Architecture;
use kvant_model::family::{Family, Part, RecurrentMixer, Role};
use kvant_model::model_config::ModelConfig;
use kvant_model::network::{DroppedTensor, Linear, Network, TensorMeta};
use kvant_weights::weight::RowMap;
use std::collections::{BTreeMap, BTreeSet};

/// A draft with its source rows, if any.
pub fn drafts_of(draft: &Draft) -> Option<(&Draft, &[TensorSlice])> {
    match &draft.content {
        Content::Slabs(slabs) => Some((draft, slabs)),
        Content::Taken(_) | Content::Values(_) | Content::Integers(_) => None,
    }
}

/// The file tensors for these tensors of a model, without their types; also used to find a file's tensors
/// in a model.
///
/// # Errors
/// [`GgufPlanError`] where the family or a tensor is unsupported in such files.
pub(crate) fn drafts(config: &ModelConfig, metas: &[TensorMeta]) -> Result<Vec<Draft>, GgufPlanError> {
    let network = Network::recognise(config, metas);
    Ok(Builder::of_network(config, metas, &network)?.drafts)
}

fn architecture(
    network: &Network,
    config: &ModelConfig,
) -> Result<(&'static Family, &'static Architecture), GgufPlanError> {
    let found = network.family().and_then(|family| Some((family, Architecture::of_model(family, config)?)));
    found.ok_or_else(|| {
        if network.linears().is_empty() && network.experts().is_empty() {
            return GgufPlanError::NoLayers;
        }
        let name = config.architectures.first().or(config.model_types.first());
        GgufPlanError::Family { architecture: name.cloned().unwrap_or_else(|| "an unknown architecture".to_owned()) }
    })
}

/// A tensor of the file whose type is still to be chosen.
#[derive(Clone)]
pub struct Draft {
    /// Its name in the file.
    pub name: String,
    /// Its dimensions, the slowest first.
    pub shape: Vec<usize>,
    /// What it is made of.
    pub content: Content,
    /// The decoder block that it belongs to.
    pub block: Option<usize>,
    /// What the rules that choose types take it for.
    pub category: Category,
    /// Its source modules.
    pub modules: Vec<String>,
    /// Whether loaders take it as F32 only.
    pub fixed: bool,
}

impl Draft {
    /// How many matrices it has, each of equally many slabs.
    pub fn matrices(&self) -> usize {
        self.shape.iter().rev().skip(2).product()
    }

    /// The scales that the graph multiplies its products with, one a matrix.
    pub fn scales(&self, scales: Vec<f32>) -> Draft {
        Draft {
            name: names::of_scale(&self.name),
            shape: vec![scales.len()],
            content: Content::Values(scales),
            block: self.block,
            category: Category::Other,
            modules: Vec::new(),
            fixed: true,
        }
    }
}

/// A plan being built.
pub struct Builder<'a> {
    /// The tensors of the source.
    pub tensors: &'a [TensorMeta],
    /// The model that they are.
    pub network: &'a Network,
    /// Its config.json.
    pub config: &'a ModelConfig,
    /// Its family.
    pub family: &'static Family,
    /// The architecture of the file.
    pub architecture: &'static Architecture,
    /// The tensors of the file.
    pub drafts: Vec<Draft>,
    /// The tensors of the source that are numbers of the metadata.
    pub numbers: Vec<BlockNumbers>,
    /// The tensors of the source that have no place in the file.
    pub dropped: Vec<DroppedTensor>,
    /// Positions of tensors that have found their place.
    pub(crate) taken: BTreeSet<usize>,
}

impl<'a> Builder<'a> {
    /// All tensors of a model of a known family, with their positions.
    ///
    /// # Errors
    /// [`GgufPlanError`] where the family or a tensor is unsupported in such files.
    pub fn of_network(
        config: &'a ModelConfig,
        tensors: &'a [TensorMeta],
        network: &'a Network,
    ) -> Result<Builder<'a>, GgufPlanError> {
        let (family, architecture) = architecture(network, config)?;
        if let Some(kind) = rope::unknown_scaling(&config.rope.main, architecture.name) {
            return Err(GgufPlanError::Scaling(kind.to_owned()));
        }
        let mut builder = Builder {
            tensors,
            network,
            config,
            family,
            architecture,
            drafts: Vec::new(),
            numbers: Vec::new(),
            dropped: Vec::new(),
            taken: BTreeSet::new(),
        };
        builder.check_experts()?;
        builder.add_all()?;
        builder.check_expected()?;
        Ok(builder)
    }

    /// The rows of a matrix: of the only one of a tensor, or one of several.
    pub(crate) fn slab(
        &mut self,
        tensor: usize,
        (matrix, matrices): (usize, usize),
        size: (usize, usize),
        rows: RowMap,
    ) -> Result<TensorSlice, GgufPlanError> {
        let elements = self.tensors[tensor].shape.iter().try_fold(1usize, |product, dim| product.checked_mul(*dim));
        let expected = size.0.checked_mul(size.1).and_then(|one| one.checked_mul(matrices));
        if elements.is_none() || elements != expected || rows.count() == 0 {
            let reason = format!("{matrices} of {} x {} are expected", size.0, size.1);
            return Err(self.shape_error(tensor, reason));
        }
        self.taken.insert(tensor);
        Ok(TensorSlice {
            tensor,
            matrix,
            size,
            is_transposed: false,
            rows,
            transposed: false,
            columns: None,
            change: Change::None,
        })
    }

    /// The error that a tensor is not as it must be.
    pub fn shape_error(&self, tensor: usize, reason: impl Into<String>) -> GgufPlanError {
        let TensorMeta { name, shape, .. } = &self.tensors[tensor];
        GgufPlanError::Shape { tensor: name.clone(), shape: shape.clone(), reason: reason.into() }
    }

    /// The two dimensions of a tensor that must be a matrix.
    pub(crate) fn matrix_shape(&self, tensor: usize) -> Result<(usize, usize), GgufPlanError> {
        match *self.tensors[tensor].shape.as_slice() {
            [rows, columns] if rows > 0 && columns > 0 => Ok((rows, columns)),
            _ => Err(self.shape_error(tensor, "it is not a matrix")),
        }
    }

    pub(crate) fn drop_tensor(&mut self, tensor: usize, reason: &'static str) {
        if self.taken.insert(tensor) {
            self.dropped.push(DroppedTensor { name: self.tensors[tensor].name.clone(), reason });
        }
    }

    fn add_all(&mut self) -> Result<(), GgufPlanError> {
        self.add_embedding()?;
        self.add_linears()?;
        self.add_fused_experts()?;
        self.add_norms()?;
        self.add_numbers()?;
        self.add_rest()?;
        self.add_missing_biases();
        self.add_unused_keys();
        Ok(())
    }

    /// Keys and values of the last blocks of Gemma 3n, which attend to those of others: its loader wants them all the same, and newer classes
    /// do not have them. They are those of the block before.
    fn add_unused_keys(&mut self) {
        if self.architecture.name != "gemma3n" {
            return;
        }
        for stem in ["attn_k.weight", "attn_v.weight", "attn_k_norm.weight"] {
            let mut last: Option<Draft> = None;
            for block in 0..self.network.blocks().len() {
                let name = names::in_block(Some(block), stem);
                match (self.drafts.iter().find(|draft| draft.name == name), &last) {
                    (Some(own), _) => last = Some(own.clone()),
                    (None, Some(last)) => self.drafts.push(Draft { name, block: Some(block), ..last.clone() }),
                    (None, None) => {}
                }
            }
        }
    }

    /// Adds zeros for missing biases of Mamba's convolutions: llama.cpp's graphs add them unconditionally, and crash without them.
    fn add_missing_biases(&mut self) {
        let mixer = self.family.recurrent.map(|recurrent| recurrent.mixer);
        if !matches!(mixer, Some(RecurrentMixer::Mamba1 { .. } | RecurrentMixer::Mamba2 { .. })) {
            return;
        }
        let names: BTreeSet<&str> = self.drafts.iter().map(|draft| draft.name.as_str()).collect();
        let bias = |weight: &Draft| {
            let stem = weight.name.strip_suffix(".weight").filter(|stem| stem.ends_with(".ssm_conv1d"))?;
            let name = Some(format!("{stem}.bias")).filter(|name| !names.contains(name.as_str()))?;
            let shape = vec![weight.shape[0]];
            let content = Content::Values(vec![0.0; shape[0]]);
            let (block, category) = (weight.block, Category::Other);
            Some(Draft { name, shape, content, block, category, modules: Vec::new(), fixed: true })
        };
        let missing: Vec<Draft> = self.drafts.iter().filter_map(bias).collect();
        self.drafts.extend(missing);
    }

    /// Refuses mixtures without what llama.cpp's graphs of mixtures compute in every block: experts, and experts that all tokens
    /// pass. It looks for tensors that are not there, or aborts. Where a graph has dense blocks, they are the first ones.
    fn check_experts(&self) -> Result<(), GgufPlanError> {
        let Some(moe) = &self.family.moe else { return Ok(()) };
        let form = |reason: String| Err(GgufPlanError::Form { architecture: self.architecture.name, reason });
        let is_mixture = self.config.experts.is_some();
        if !is_mixture && self.architecture.name != "llama" && !self.architecture.has_any_experts {
            return form("config.json states no experts".to_owned());
        }
        let routed = self.network.routed_blocks();
        let dense = if self.architecture.has_dense_prefix { dense_prefix(self.config) } else { 0 };
        // Those that ask which blocks have experts take any.
        let all = is_mixture && !self.architecture.has_any_experts;
        let blocks = 0..if all { self.network.blocks().len() } else { 0 };
        if let Some(block) = blocks.into_iter().find(|block| routed.contains(block) == (*block < dense)) {
            return form(match block < dense {
                true => format!("the dense layers of block {block} are missing"),
                false => format!("block {block} has no experts"),
            });
        }
        let is_shared = |linear: &&Linear| linear.part == Part::SharedExperts && linear.role == Role::Down;
        let has_width = |linear: &&Linear| linear.in_features > 0 && linear.out_features > 0;
        let linears = self.network.linears().iter();
        let with: BTreeSet<usize> =
            linears.filter(is_shared).filter(has_width).filter_map(|linear| linear.block).collect();
        let mut without = routed.into_iter().filter(|block| !moe.shared.is_empty() && !with.contains(block));
        match without.next() {
            Some(block) => form(format!("the shared experts of block {block} are missing or of width 0")),
            None => Ok(()),
        }
    }

    pub(crate) fn no_place(&self, tensor: usize) -> GgufPlanError {
        let TensorMeta { name, dtype, .. } = &self.tensors[tensor];
        match self.tensors[tensor].is_float() {
            true => GgufPlanError::NoPlace { tensor: name.clone(), architecture: self.architecture.name },
            false => GgufPlanError::SourceType { tensor: name.clone(), dtype: dtype.clone() },
        }
    }

    /// A tensor that is F32 in all files.
    pub(crate) fn add_small(&mut self, name: String, block: Option<usize>, shape: Vec<usize>, slabs: Vec<TensorSlice>) {
        let content = Content::Slabs(slabs);
        let category = Category::Other;
        self.drafts.push(Draft { name, shape, content, block, category, modules: Vec::new(), fixed: true });
    }
}

/// Groups that become one tensor, in order.
pub(crate) type Grouped<K, V> = BTreeMap<K, Vec<V>>;

#[cfg(test)]
#[allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)] // Helpers of tests.
#[path = "../../../model/tests/support/mod.rs"]
mod support;

#[cfg(test)]
mod tests {
    use super::support::Checkpoint;
    use super::*;
    use kvant_container::{Diagnostic, ErrorKind};
    use serde_json::json;

    fn refusal(checkpoint: &Checkpoint) -> Option<GgufPlanError> {
        drafts(&ModelConfig::from_json(&checkpoint.config).unwrap(), &checkpoint.tensors).err()
    }

    /// The fixture with shared experts of width 0, as classes create them where there are none.
    fn without_width(fixture: &str, key: &str) -> Checkpoint {
        let mut checkpoint = Checkpoint::read(fixture).with_config(key, json!(0));
        for tensor in checkpoint.tensors.iter_mut().filter(|tensor| tensor.name.contains("mlp.shared_expert")) {
            match tensor.name.contains("down_proj") {
                true => tensor.shape[1] = 0,
                false if tensor.name.contains("proj") => tensor.shape[0] = 0,
                false => {}
            }
        }
        checkpoint
    }

    #[test]
    fn mixtures_without_shared_experts_are_refused_where_graphs_compute_them() {
        for (fixture, key, architecture) in [
            ("qwen2_moe", "shared_expert_intermediate_size", "qwen2moe"),
            ("deepseek_v2", "n_shared_experts", "deepseek2"),
            ("deepseek_v3", "n_shared_experts", "deepseek2"),
            ("glm4_moe", "n_shared_experts", "glm4moe"),
        ] {
            assert!(refusal(&Checkpoint::read(fixture)).is_none(), "{fixture}");
            let missing = Checkpoint::read(fixture)
                .renamed(|name| (!name.contains("mlp.shared_expert")).then(|| name.to_owned()));
            for checkpoint in [without_width(fixture, key), missing] {
                let refused = refusal(&checkpoint).unwrap();
                let text = refused.to_string();
                assert!(text.contains("shared experts of block") && text.contains(architecture), "{fixture}: {text}");
                assert!(refused.kind() == ErrorKind::Unsupported && refused.hint().is_some(), "{fixture}");
            }
        }
    }

    #[test]
    fn dense_blocks_are_refused_where_graphs_have_experts_in_every_block() {
        for (fixture, architecture) in [
            ("qwen2_moe", "qwen2moe"),
            ("olmoe", "olmoe"),
            ("mixtral", "llama"),
            ("phimoe", "phimoe"),
            ("gpt_oss", "gpt-oss"),
            ("granitemoe", "granitemoe"),
            ("minimax_m2", "minimax-m2"),
            ("deepseek_v3", "deepseek2"),
        ] {
            // llama.cpp wants other things of these two than the small models have.
            let is_refused = ["olmoe", "phimoe"].contains(&fixture);
            let whole = refusal(&Checkpoint::read(fixture)).map(|refused| refused.to_string());
            assert!(whole.is_some() == is_refused, "{fixture}: {whole:?}");
            assert!(whole.is_none_or(|told| !told.contains("has no experts")), "{fixture}");
            let is_of_experts = |name: &str| ["mlp.", "block_sparse_moe."].iter().any(|part| name.contains(part));
            let dense = Checkpoint::read(fixture)
                .renamed(|name| (!name.contains("layers.1.") || !is_of_experts(name)).then(|| name.to_owned()));
            let text = refusal(&dense).unwrap().to_string();
            assert!(text.contains("block 1 has no experts") && text.contains(architecture), "{fixture}: {text}");
        }
        let listed = refusal(&Checkpoint::read("qwen3_moe")).unwrap();
        assert!(listed.to_string().contains("block 0 has no experts"), "it is in mlp_only_layers");
        let shorter = Checkpoint::read("deepseek_v3").with_config("first_k_dense_replace", json!(0));
        assert!(refusal(&shorter).unwrap().to_string().contains("block 0 has no experts"));
        let longer = Checkpoint::read("deepseek_v3").with_config("first_k_dense_replace", json!(2));
        assert!(refusal(&longer).unwrap().to_string().contains("the dense layers of block 1 are missing"));
    }

    #[test]
    fn mixtures_without_experts_are_refused() {
        for (fixture, key) in
            [("qwen2_moe", "num_experts"), ("qwen3_moe", "num_local_experts"), ("olmoe", "num_experts")]
        {
            let dense = Checkpoint::read(fixture).with_config(key, json!(0));
            let refused = refusal(&dense).unwrap();
            assert!(refused.to_string().contains("states no experts"), "{fixture}: {refused}");
        }
    }

    /// The tensors of the file that a fixture becomes, with their shapes.
    fn shapes(checkpoint: &Checkpoint) -> BTreeMap<String, Vec<usize>> {
        let config = ModelConfig::from_json(&checkpoint.config).unwrap();
        let drafts = drafts(&config, &checkpoint.tensors).unwrap_or_else(|refused| panic!("{refused}"));
        drafts.into_iter().map(|draft| (draft.name, draft.shape)).collect()
    }

    #[test]
    fn recurrent_mixers_become_the_tensors_of_llama_cpps_graphs() {
        let convolution = shapes(&Checkpoint::read("lfm2"));
        assert_eq!(convolution["blk.0.shortconv.conv.weight"], [64, 3]);
        assert_eq!(convolution["token_embd_norm.weight"], [64]);
        assert!(!convolution.contains_key("blk.0.attn_q.weight") && convolution.contains_key("blk.1.attn_q.weight"));
        let state = shapes(&Checkpoint::read("falcon_h1").with_config("mamba_norm_before_gate", json!(false)));
        assert_eq!((&state["blk.0.ssm_a"], &state["blk.0.ssm_in.weight"]), (&vec![4, 1], &vec![220, 64]));
        assert!(state.contains_key("blk.0.ffn_norm") && !state.contains_key("blk.0.ffn_norm.weight"));
        let delta = shapes(&Checkpoint::read("bailing_hybrid"));
        assert_eq!((&delta["blk.0.ssm_a"], &delta["blk.0.ssm_conv1d_q.weight"]), (&vec![4, 1], &vec![1, 48, 1, 4]));
        assert!(delta.contains_key("blk.0.ssm_f_a.weight") && delta.contains_key("blk.1.attn_gate.weight"));
        let lightning = shapes(&Checkpoint::read("minimax"));
        assert_eq!(
            (&lightning["blk.0.attn_qkv.weight"], &lightning["blk.0.attn_norm_2.weight"]),
            (&vec![192, 64], &vec![64])
        );
    }

    #[test]
    fn missing_biases_of_mamba_convolutions_are_zeros() {
        let bare = Checkpoint::read("falcon_h1")
            .with_config("mamba_norm_before_gate", json!(false))
            .renamed(|name| (!name.ends_with("conv1d.bias")).then(|| name.to_owned()));
        let config = ModelConfig::from_json(&bare.config).unwrap();
        let drafts = drafts(&config, &bare.tensors).unwrap_or_else(|refused| panic!("{refused}"));
        let bias = drafts.iter().find(|draft| draft.name == "blk.0.ssm_conv1d.bias").unwrap();
        let Content::Values(zeros) = &bias.content else { panic!("{:?}", bias.content) };
        assert!(zeros.len() == bias.shape[0] && zeros.iter().all(|zero| *zero == 0.0));
    }

    #[test]
    fn numbers_of_blocks_are_taken_for_the_metadata() {
        let apertus = Checkpoint::read("apertus");
        let config = ModelConfig::from_json(&apertus.config).unwrap();
        let network = Network::recognise(&config, &apertus.tensors);
        let model =
            Builder::of_network(&config, &apertus.tensors, &network).unwrap_or_else(|refused| panic!("{refused}"));
        let keys: Vec<(&str, usize)> =
            model.numbers.iter().map(|numbers| (numbers.key, numbers.tensors.len())).collect();
        assert_eq!(keys, [("xielu.alpha_n", 2), ("xielu.alpha_p", 2), ("xielu.beta", 2), ("xielu.eps", 2)]);
        let less = Checkpoint::read("apertus")
            .renamed(|name| (name != "model.layers.1.mlp.act_fn.beta").then(|| name.to_owned()));
        let text = refusal(&less).unwrap().to_string();
        assert!(text.contains("`mlp.act_fn.beta` in block 1"), "{text}");
        let mut wide = Checkpoint::read("apertus");
        wide.tensors
            .iter_mut()
            .filter(|tensor| tensor.name.ends_with("alpha_p"))
            .for_each(|tensor| tensor.shape = vec![2]);
        assert!(refusal(&wide).unwrap().to_string().contains("one number is expected"));
    }

    #[test]
    fn forms_that_graphs_do_not_compute_are_refused_with_the_reason() {
        for (fixture, key, value, reason) in [
            ("falcon_h1", "mamba_norm_before_gate", json!(true), "behind their gate"),
            ("lfm2_moe", "routed_scaling_factor", json!(1.5), "weights of experts by 1"),
            ("mimo_v2_flash", "routed_scaling_factor", json!(2.0), "weights of experts by 1"),
            ("afmoe", "mup_enabled", json!(false), "root of their width"),
            ("bailing_hybrid", "kda_safe_gate", json!(false), "bounds the decays"),
            ("bamba", "mamba_n_groups", json!(2), "norms each group of heads"),
            ("deepseek_v4", "hc_mult", json!(3), "four residual streams"),
            ("kimi_linear", "linear_num_heads", json!(2), "as many heads in delta nets as in attention"),
            ("minimax", "mlp_alpha_factor", json!(2.0), "one factor on all residuals"),
            ("exaone4", "sliding_window", json!(8), "models of 64 blocks"),
            ("falcon_alibi", "alibi", json!(true), "architecture falcon"),
            ("llama4_text", "attention_chunk_size", json!(32), "chunks of 8192"),
            (
                "arcee",
                "rope_parameters",
                json!({"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}),
                "whole heads",
            ),
        ] {
            let told = refusal(&Checkpoint::read(fixture).with_config(key, value)).map(|told| told.to_string());
            assert!(told.as_ref().is_some_and(|told| told.contains(reason)), "{fixture}: {told:?}");
        }
    }

    /// As llama.cpp's own loader said of such files.
    #[test]
    fn models_that_loaders_of_the_architecture_do_not_find_whole_are_refused() {
        let with = |fixture: &str, name: &str, shape: &[usize]| {
            let mut checkpoint = Checkpoint::read(fixture);
            let like = checkpoint.tensors[0].clone();
            checkpoint.tensors.push(TensorMeta { name: name.to_owned(), shape: shape.to_vec(), ..like });
            refusal(&checkpoint).map(|refused| refused.to_string()).unwrap_or_default()
        };
        let output = "model.layers.0.self_attn.o_proj.bias";
        let width = |fixture: &str| Checkpoint::read(fixture).config["hidden_size"].as_u64().unwrap() as usize;
        for fixture in ["qwen3", "olmo2", "qwen2_moe", "gemma2"] {
            let told = with(fixture, output, &[width(fixture)]);
            assert!(told.contains(output) && told.contains("has no place"), "{fixture}: {told}");
        }
        assert_eq!(with("llama", output, &[width("llama")]), "");
        let without = |fixture: &str, end: &str| {
            let less = Checkpoint::read(fixture).renamed(|name| (!name.ends_with(end)).then(|| name.to_owned()));
            refusal(&less).map(|refused| refused.to_string()).unwrap_or_default()
        };
        for (fixture, end, stem) in [
            ("starcoder2", "o_proj.bias", "attn_output.bias"),
            ("gpt_neox", "attention.dense.bias", "attn_output.bias"),
            ("phimoe", "lm_head.bias", "output.bias"),
        ] {
            let told = without(fixture, end);
            assert!(told.contains(stem), "{fixture}: {told}");
        }
        assert!(refusal(&Checkpoint::read("olmoe")).unwrap().to_string().contains("as many heads of keys"));
        let wider = Checkpoint::read("nemotron").with_config("head_dim", json!(2));
        assert!(refusal(&wider).unwrap().to_string().contains("queries as wide as hidden states"));
        let lite = Checkpoint::read("deepseek_v3").renamed(|name| Some(name.replace("q_a_proj", "q_proj")));
        let lite = lite
            .renamed(|name| (!name.contains("q_a_layernorm") && !name.contains("q_b_proj")).then(|| name.to_owned()));
        assert!(refusal(&lite).is_some());
    }
}
