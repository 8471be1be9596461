//! Facts for loader rules: the quantization of a layer, and properties of a model that affect loaders. Derived from the
//! schemes of a plan, or from a checkpoint.

use super::written::ModelTraits;
use crate::format::OutputFormat;
use crate::import::StoredActivation;
use kvant_model::family::ExpertStorage;
use kvant_model::network::Network;
use kvant_numeric::DType;
use kvant_numeric::format::MiniFloat;
use kvant_quant::scheme::{
    ActivationScheme, Axis, FloatScale, Granularity, LayerScheme, TensorScheme, Timing, ZeroPoint,
};
use serde::Deserialize;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// The encoding of scales.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Scale {
    /// Floats.
    Plain,
    /// Powers of two in bytes.
    PowerOfTwo,
    /// fp8 e4m3 under an f32 scale of the tensor.
    E4m3WithGlobal,
    /// fp8 e5m3.
    E5m3,
    /// fp8 e5m3 under an f32 scale of the tensor.
    E5m3WithGlobal,
    /// Scales of codes, and one of their values.
    TwoStage,
    /// No separate scales.
    None,
}

/// Which weights share a scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Sharing {
    /// All.
    Tensor,
    /// All values of an output channel.
    Channel,
    /// All values of an input channel.
    InputChannel,
    /// Input channels of a row.
    Group,
    /// Rows of an input channel.
    RowGroup,
    /// Rows and columns.
    Block,
    /// None do.
    None,
}

/// When the scales of inputs are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum When {
    /// In advance.
    Static,
    /// For every token.
    Dynamic,
    /// A static global scale with dynamic block scales.
    Local,
}

/// The quantization of queries, keys, values and the softmax.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Attention {
    /// Not at all.
    #[default]
    None,
    /// In fp8 with one static scale: what inference engines know.
    Fp8,
    /// In another way.
    Other,
}

/// The quantization of a layer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LayerFacts {
    /// The format of codes.
    pub(crate) element: String,
    pub(crate) scale: Scale,
    pub(crate) sharing: Sharing,
    /// The size of groups of input channels.
    pub(crate) group: Option<usize>,
    /// Rows and columns of a block.
    pub(crate) block: Option<(usize, usize)>,
    pub(crate) zero_points: bool,
    /// The format of inputs, and when their scales are found.
    pub(crate) input: Option<(String, When)>,
    /// The size of groups of inputs.
    pub(crate) input_group: Option<usize>,
    pub(crate) output: bool,
    /// Whether groups are not runs of input channels.
    pub(crate) act_order: bool,
    /// The suffix of the tensor of scales, if it exists already.
    pub(crate) scale_name: Option<String>,
}

/// Properties of a model that affect loaders for every scheme.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ModelFacts {
    /// Whether loaders know its architecture.
    pub described: bool,
    /// The name of its built-in description.
    pub family: Option<&'static str>,
    /// The `model_type` of a model around the language model, if that is of another family.
    pub wrapper: Option<String>,
    /// Whether config.json ties the head of the whole model, and not that of the language model in it.
    pub untied_section: bool,
    /// Whether the head is another tensor than the embeddings.
    pub separate_head: bool,
    /// Whether the head is quantized.
    pub quantized_head: bool,
    /// Whether config.json has no `model_type`.
    pub lacks_model_type: bool,
    /// Whether `architectures` of config.json names a class of another model than `model_type`.
    pub foreign_class: bool,
    /// Whether its tensors have other names than the architecture's.
    pub foreign_names: bool,
    /// Whether it is a component of a diffusers pipeline.
    pub component: bool,
    pub experts: bool,
    pub fused_experts: bool,
    pub kept_experts: bool,
    /// Whether experts that see every token stay floats.
    pub kept_shared_experts: bool,
    /// Whether some blocks of a mixture have no experts.
    pub dense_blocks: bool,
    /// Whether layers that choose experts are quantized.
    pub quantized_routers: bool,
    /// Whether experts are floats in one tensor for all.
    pub whole_experts: bool,
    /// Whether experts of one block have different schemes, floats among them.
    pub expert_schemes: ExpertSchemes,
    pub other_modalities: bool,
    /// Whether layers of towers for images or sound are quantized.
    pub quantized_towers: bool,
    /// Whether their codes have another name than the weight.
    pub packed_towers: bool,
    /// Whether layers of towers have several schemes, or some of them are floats.
    pub uneven_towers: bool,
    pub bf16: bool,
    /// Whether some floats have 32 bits.
    pub float32: bool,
    /// Whether layers that engines fuse must be listed by name: some are floats, or there are several schemes.
    pub listed_siblings: bool,
    /// Whether some layers have windows of attention and others have not.
    pub mixed_windows: bool,
    /// Whether a tower for pictures is stored without the name of the model inside of it.
    pub bare_towers: bool,
    /// Whether layers stay floats that are quantized by default.
    pub kept_layers: bool,
    /// Whether several query heads share a key/value head.
    pub grouped_heads: bool,
    /// Width of the feed-forward network as a multiple of the hidden size, if it is one in every block.
    pub mlp_ratio: Option<usize>,
    /// Whether quantized layers have several schemes.
    pub several_schemes: bool,
    /// Whether their codes are of several kinds, which compressed-tensors names as formats of their own.
    pub several_kinds: bool,
    /// What config.json states, by key.
    pub stated: BTreeMap<String, Value>,
    pub attention: Attention,
    /// Whether the softmax is quantized.
    pub probabilities: bool,
    pub rotations: RotationFacts,
    /// Of a GGUF file: its architecture, as `general.architecture` names it.
    pub architecture: Option<&'static str>,
    /// Of a GGUF file: rotary embeddings are scaled for long texts.
    pub scaled_rope: bool,
    /// Of a GGUF file: what it states.
    pub file: GgufFacts,
}

/// What loaders must rotate while the model runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RotationFacts {
    /// Whether they are inputs of layers.
    pub inputs: bool,
    /// Whether experts are among these layers.
    pub experts: bool,
    /// Whether some of them have a bias.
    pub biases: bool,
    /// Whether some are rotated by other matrices than Sylvester's.
    pub others: bool,
    /// The most channels that one matrix mixes.
    pub channels: usize,
}

impl RotationFacts {
    /// The same with one more layer, which is an expert or has a bias.
    pub fn with_layer(self, channels: usize, [is_expert, has_bias, is_other]: [bool; 3]) -> RotationFacts {
        RotationFacts {
            inputs: true,
            experts: self.experts || is_expert,
            biases: self.biases || has_bias,
            others: self.others || is_other,
            channels: self.channels.max(channels),
        }
    }
}

/// What a GGUF file states that a loader may leave out.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct GgufFacts {
    /// Whether its name ends in `.gguf`.
    pub is_named: bool,
    /// Whether it is one of several files of a model, by its name.
    pub is_part: bool,
    /// The numbers of its architecture, named without it, and the [derived ones](GgufFacts::DERIVED).
    pub numbers: BTreeMap<String, f64>,
    /// The names of its tensors, without the number of their block.
    pub tensors: BTreeSet<String>,
}

impl GgufFacts {
    /// The elements of a head.
    pub const HEAD_SIZE: &str = "head-size";
    /// The elements of all query heads, by those of the embedding.
    pub const HEAD_PART: &str = "head-part";
    /// The part of each head that turns.
    pub const ROPE_PART: &str = "rope-part";
    /// Numbers that follow from others.
    pub const DERIVED: [&str; 3] = [GgufFacts::HEAD_SIZE, GgufFacts::HEAD_PART, GgufFacts::ROPE_PART];
}

impl From<Timing> for When {
    fn from(timing: Timing) -> When {
        match timing {
            Timing::Static => When::Static,
            Timing::Dynamic => When::Dynamic,
            Timing::Local => When::Local,
        }
    }
}

impl Attention {
    /// The union of these schemes.
    pub fn of(schemes: impl IntoIterator<Item = ActivationScheme>) -> Attention {
        let is_fp8 = |scheme: ActivationScheme| {
            let fp8 = scheme.scheme.format() == DType::MiniFloat(MiniFloat::E4M3);
            fp8 && scheme.timing == Timing::Static && scheme.scheme.granularity() == Some(Granularity::Tensor)
        };
        schemes.into_iter().fold(Attention::None, |so_far, scheme| match so_far {
            Attention::None | Attention::Fp8 if is_fp8(scheme) => Attention::Fp8,
            _ => Attention::Other,
        })
    }
}

impl LayerFacts {
    /// The facts of a scheme to write.
    pub fn of_scheme(scheme: LayerScheme) -> LayerFacts {
        let (sharing, group, block) = sharing_of(scheme.weight.granularity());
        LayerFacts {
            element: scheme.weight.format().to_string(),
            scale: scale(scheme.weight),
            sharing,
            group,
            block,
            zero_points: has_zero_points(scheme.weight),
            input: scheme.input.map(|input| (input.scheme.format().to_string(), input.timing.into())),
            input_group: scheme.input.and_then(group_of),
            output: scheme.output.is_some(),
            act_order: false,
            scale_name: None,
        }
    }

    /// As a format stores them: AWQ and GPTQ hold signed codes with half of the range added, fp8 names scales by what shares them.
    pub fn stored_in(self, format: OutputFormat) -> LayerFacts {
        let in_blocks = self.sharing == Sharing::Block;
        let scale_name = format.checkpoint().and_then(|format| format.scale_name(in_blocks)).map(str::to_owned);
        let is_offset = format.capabilities().offset_codes && self.element.starts_with("int");
        let element = if is_offset { format!("u{}", self.element) } else { self.element };
        LayerFacts { element, scale_name: scale_name.or(self.scale_name), ..self }
    }

    /// As layers of other widths may have it: where only shapes show groups, one that is as wide as its layer looks like a channel.
    pub fn with_channels_as_groups(self) -> LayerFacts {
        match self.sharing {
            Sharing::Channel | Sharing::Group => LayerFacts { sharing: Sharing::Group, group: None, ..self },
            _ => self,
        }
    }

    /// With the activations of a checkpoint.
    pub fn with_activations(self, input: Option<&StoredActivation>, output: Option<&StoredActivation>) -> LayerFacts {
        let input_group = input.and_then(|input| group_of(input.scheme));
        let input = input.map(|input| (input.scheme.scheme.format().to_string(), input.scheme.timing.into()));
        LayerFacts { input, input_group, output: output.is_some(), ..self }
    }
}

impl fmt::Display for LayerFacts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.element)?;
        match (self.sharing, self.group, self.block) {
            (Sharing::Group | Sharing::RowGroup, Some(size), _) => write!(f, " in groups of {size}")?,
            (Sharing::Block, _, Some((rows, columns))) => write!(f, " in blocks of {rows}x{columns}")?,
            (Sharing::Tensor, ..) => f.write_str(" with one scale")?,
            (Sharing::Channel | Sharing::InputChannel, ..) => f.write_str(" with a scale for each channel")?,
            _ => {}
        }
        f.write_str(match self.scale {
            Scale::PowerOfTwo => ", scales powers of two",
            Scale::E4m3WithGlobal => ", e4m3 scales with a global scale",
            Scale::E5m3 => ", e5m3 scales",
            Scale::E5m3WithGlobal => ", e5m3 scales with a global scale",
            Scale::TwoStage => ", in two stages",
            Scale::Plain | Scale::None => "",
        })?;
        f.write_str(if self.zero_points { ", zero points" } else { "" })?;
        match &self.input {
            Some((element, _)) => write!(f, ", {element} inputs"),
            None => Ok(()),
        }
    }
}

/// Returns whether a tower for pictures is stored as transformers 5 saves it, `vision_tower.encoder...`, and not under the published name
/// `vision_tower.vision_model.encoder...`.
pub fn has_bare_towers<'t>(mut tensors: impl Iterator<Item = &'t str>) -> bool {
    let inside = |tensor: &'t str| tensor.split_once("vision_tower.").map(|(_, inside)| inside);
    tensors.any(|tensor| inside(tensor).is_some_and(|inside| !inside.starts_with("vision_model.")))
}

impl ModelFacts {
    /// The facts of a model to write.
    pub fn of_traits(traits: &ModelTraits) -> ModelFacts {
        let attention = traits.attention;
        let key_value = attention.key_value.map(|cache| cache.scheme);
        ModelFacts {
            described: traits.family.is_some(),
            family: traits.family,
            wrapper: traits.wrapper.clone(),
            untied_section: traits.untied_section,
            separate_head: traits.separate_head,
            quantized_head: traits.quantized_head,
            lacks_model_type: traits.lacks_model_type,
            foreign_class: traits.foreign_class,
            foreign_names: traits.foreign_names,
            component: traits.component,
            experts: traits.experts,
            fused_experts: traits.fused_experts,
            quantized_towers: traits.quantized_towers,
            packed_towers: traits.packed_towers,
            uneven_towers: traits.uneven_towers,
            kept_experts: traits.kept_experts,
            kept_shared_experts: traits.kept_shared_experts,
            dense_blocks: traits.dense_blocks,
            quantized_routers: traits.quantized_routers,
            whole_experts: traits.whole_experts,
            expert_schemes: traits.expert_schemes,
            other_modalities: traits.other_modalities,
            bf16: traits.bf16,
            float32: traits.float32,
            listed_siblings: traits.listed_siblings,
            mixed_windows: traits.mixed_windows,
            bare_towers: traits.bare_towers,
            kept_layers: traits.kept_layers,
            grouped_heads: traits.grouped_heads,
            mlp_ratio: traits.mlp_ratio,
            stated: traits.stated.clone(),
            attention: Attention::of([key_value, attention.query, attention.probabilities].into_iter().flatten()),
            probabilities: attention.probabilities.is_some(),
            rotations: traits.rotations,
            ..ModelFacts::default()
        }
    }

    /// With what its quantized layers have in common.
    pub fn with_layers<'l>(self, layers: impl Iterator<Item = &'l LayerFacts> + Clone) -> ModelFacts {
        let is_integer = |layer: &LayerFacts| layer.element.trim_start_matches('u').starts_with("int");
        let kind = |layer: &'l LayerFacts| match is_integer(layer) {
            true => ("integers", layer.input.is_some()),
            false => (layer.element.as_str(), layer.scale == Scale::PowerOfTwo),
        };
        let (several_schemes, several_kinds) = (differ(layers.clone()), differ(layers.map(kind)));
        ModelFacts { several_schemes, several_kinds, ..self }
    }
}

/// Returns whether the values are not all equal.
fn differ<T: PartialEq>(mut values: impl Iterator<Item = T>) -> bool {
    values.next().is_some_and(|first| values.any(|other| other != first))
}

fn scale(scheme: TensorScheme) -> Scale {
    match scheme {
        TensorScheme::Int(_) => Scale::Plain,
        TensorScheme::Float(float) => match float.scale {
            FloatScale::Plain(_) => Scale::Plain,
            FloatScale::E8m0(_) => Scale::PowerOfTwo,
            FloatScale::E5m3 => Scale::E5m3,
            FloatScale::E4m3WithGlobal => Scale::E4m3WithGlobal,
            FloatScale::E5m3WithGlobal => Scale::E5m3WithGlobal,
        },
        TensorScheme::Progressive { .. } => Scale::TwoStage,
        TensorScheme::Gguf(_) | TensorScheme::Block(_) | TensorScheme::Cast(_) => Scale::None,
    }
}

/// Which weights share a scale, the size of a group, and that of a block.
pub(crate) fn sharing_of(granularity: Option<Granularity>) -> (Sharing, Option<usize>, Option<(usize, usize)>) {
    match granularity {
        None => (Sharing::None, None, None),
        Some(Granularity::Tensor) => (Sharing::Tensor, None, None),
        Some(Granularity::Channel(Axis::Rows)) => (Sharing::Channel, None, None),
        Some(Granularity::Channel(Axis::Columns)) => (Sharing::InputChannel, None, None),
        Some(group @ Granularity::Group { axis: Axis::Columns, .. }) => {
            (Sharing::Group, size_of(group.tile(usize::MAX, usize::MAX).1), None)
        }
        Some(group @ Granularity::Group { axis: Axis::Rows, .. }) => {
            (Sharing::RowGroup, size_of(group.tile(usize::MAX, usize::MAX).0), None)
        }
        Some(block @ Granularity::Block { .. }) => (Sharing::Block, None, Some(block.tile(usize::MAX, usize::MAX))),
    }
}

/// The size of groups of inputs.
fn group_of(input: ActivationScheme) -> Option<usize> {
    sharing_of(input.scheme.granularity()).1
}

/// A group of all channels has no explicit size.
fn size_of(group: usize) -> Option<usize> {
    Some(group).filter(|size| *size != usize::MAX)
}

/// Returns whether loaders find the quantized experts of an architecture as one tensor only, and none of them one by one. Its
/// description begins with the layout that they find.
pub fn finds_whole_experts(network: &Network) -> bool {
    let moe = network.family().and_then(|family| family.moe);
    moe.and_then(|moe| moe.experts.first()).is_some_and(|layout| layout.storage != ExpertStorage::Separate)
}

/// How the schemes of experts differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum ExpertSchemes {
    /// All have one scheme, or none is quantized.
    #[default]
    Alike,
    /// All of a block have one scheme, or none is quantized; those of another block differ.
    ByBlock,
    /// Some of a block have one scheme, and others another or none.
    Mixed,
}

impl ExpertSchemes {
    /// How experts differ, each given by its block, and by what it may differ in.
    pub fn of<T: PartialEq>(experts: impl IntoIterator<Item = (Option<usize>, T)>) -> ExpertSchemes {
        let mut first_of_block: BTreeMap<Option<usize>, T> = BTreeMap::new();
        let mixed = experts.into_iter().any(|(block, expert)| match first_of_block.get(&block) {
            Some(first) => *first != expert,
            None => {
                first_of_block.insert(block, expert);
                false
            }
        });
        let mut blocks = first_of_block.values();
        let first = blocks.next();
        match mixed {
            true => ExpertSchemes::Mixed,
            false if blocks.any(|other| Some(other) != first) => ExpertSchemes::ByBlock,
            false => ExpertSchemes::Alike,
        }
    }
}

fn has_zero_points(scheme: TensorScheme) -> bool {
    match scheme {
        TensorScheme::Int(int) | TensorScheme::Progressive { second: int, .. } => int.zero_point != ZeroPoint::Zero,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(text: &str) -> LayerFacts {
        LayerFacts::of_scheme(text.parse().unwrap())
    }

    #[test]
    fn schemes_become_loader_facts() {
        let int4 = facts("uint4:g32:zp");
        assert_eq!((int4.element.as_str(), int4.sharing, int4.group), ("uint4", Sharing::Group, Some(32)));
        assert!(int4.zero_points && int4.input.is_none());
        let fp8 = facts("e4m3:b128x128+e4m3:g128!dynamic");
        assert_eq!((fp8.sharing, fp8.block), (Sharing::Block, Some((128, 128))));
        assert_eq!(fp8.input, Some(("e4m3".to_owned(), When::Dynamic)));
        assert_eq!((fp8.input_group, int4.input_group), (Some(128), None));
        assert_eq!(facts("e2m1:g16:e4m3:f32").scale, Scale::E4m3WithGlobal);
        assert_eq!(facts("int4:channel:f32/e4m3:tensor:f32").scale, Scale::TwoStage);
        assert_eq!(facts("mx9").scale, Scale::None);
    }

    #[test]
    fn experts_are_compared_within_their_block() {
        let two_blocks = [(Some(0), "int4"), (Some(0), "int4"), (Some(1), "int8"), (Some(1), "int8")];
        assert_eq!(ExpertSchemes::of(two_blocks), ExpertSchemes::ByBlock);
        assert_eq!(ExpertSchemes::of(two_blocks.into_iter().take(1)), ExpertSchemes::Alike);
        let mixed = two_blocks.into_iter().chain([(Some(0), "int8")]);
        assert_eq!(ExpertSchemes::of(mixed), ExpertSchemes::Mixed);
    }

    #[test]
    fn formats_decide_stored_codes_and_scale_names() {
        assert_eq!(facts("int4:g32").stored_in(OutputFormat::GPTQ).element, "uint4");
        assert_eq!(facts("int4:g32").stored_in(OutputFormat::QUARK).element, "int4");
        let name = |text: &str| facts(text).stored_in(OutputFormat::FP8).scale_name;
        assert_eq!(name("e4m3:b128x128").as_deref(), Some("weight_scale_inv"));
        assert_eq!(name("e4m3:tensor").as_deref(), Some("weight_scale"));
    }

    #[test]
    fn loader_facts_are_displayed() {
        assert_eq!(facts("uint4:g32:zp").to_string(), "uint4 in groups of 32, zero points");
        assert_eq!(
            facts("int8:channel+int8:tensor!static").to_string(),
            "int8 with a scale for each channel, int8 inputs"
        );
    }
}
