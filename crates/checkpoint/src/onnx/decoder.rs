//! The decoder as a whole: inputs, embeddings, blocks, logits.

use super::builder::{Builder, ShardShape, Value};
use super::error::OnnxExportError;
use super::mask::Positions;
use super::weights::{MICROSOFT, Weight};
use kvant_container::onnx::{DataType, ModelProto, OperatorSetIdProto, PRODUCER, Spill};
use kvant_forward::forward::blueprint::{
    Block, FeedForward, HeadNorms, NormLayer, PositionTable, Projections, TokenMixer,
};
use kvant_forward::forward::{Decoder, ForwardError};
use kvant_model::family::{QueryKeyNorm, Residual};
use kvant_numeric::simd::Isa;
use kvant_quant::activation::ActivationQuantizer;
use std::collections::HashMap;

/// The first opset with 4-bit integers and blocks in DequantizeLinear, and the version of the format that goes with it.
const OPSET: i64 = 21;
const IR_VERSION: i64 = 10;

/// The results of an export.
#[derive(Debug)]
pub struct Exported {
    /// The graph.
    pub model: ModelProto,
    /// Quantized layers that no operator holds the codes of: their values are stored as floats.
    pub widened: Vec<String>,
    /// Whether the checkpoint quantizes activations, which the graph leaves in float as was asked.
    pub float_activations: bool,
}

/// Cosines and sines of a rotary embedding at the positions of this run, `[batch, sequence, 1, dim / 2]`.
#[derive(Clone, Debug)]
pub(super) struct AnglesOf {
    pub(super) dim: usize,
    pub(super) cos: Value,
    pub(super) sin: Value,
}

/// Writes a decoder, node by node.
pub(super) struct Writer<'w, 'a> {
    pub(super) decoder: &'w Decoder<'a>,
    pub(super) builder: Builder,
    pub(super) isa: Isa,
    pub(super) spill: Option<&'w Spill>,
    /// Whether weights are left out: the graph shows only that all rules have one.
    pub(super) outline: bool,
    pub(super) rotaries: Vec<AnglesOf>,
    /// Weights by module.
    pub(super) weights: HashMap<String, Weight>,
    /// Tables that rows are looked up in, as floats.
    pub(super) tables: HashMap<String, (Value, DataType)>,
    pub(super) widened: Vec<String>,
    /// Whether activations stay in float.
    pub(super) weights_only: bool,
    /// Values that are quantized, and what they become.
    pub(super) quantized: Vec<(Value, ActivationQuantizer, Value)>,
    positions: Positions,
    masks: HashMap<Option<usize>, Value>,
}

/// The graph of a decoder. Large constants go to `spill`, so that one layer at a time is in memory. With `weights_only`, quantized
/// activations are left in float.
///
/// # Errors
///
/// *Unsupported* for rules and for quantized activations that have no graph, *invalid* for weights that are not what they should be.
pub fn export(decoder: &Decoder<'_>, spill: Option<&Spill>, weights_only: bool) -> Result<Exported, OnnxExportError> {
    write(decoder, spill, false, weights_only)
}

/// Returns whether [`export`] has a graph for every rule of a decoder; reads no weight.
///
/// # Errors
///
/// *Unsupported* for rules and for quantized activations that have no graph.
pub fn check(decoder: &Decoder<'_>, weights_only: bool) -> Result<(), OnnxExportError> {
    write(decoder, None, true, weights_only).map(drop)
}

fn write(
    decoder: &Decoder<'_>,
    spill: Option<&Spill>,
    outline: bool,
    weights_only: bool,
) -> Result<Exported, OnnxExportError> {
    if let Some(module) = decoder.rotated_inputs().min() {
        let what = format!("rotated inputs of {module} in an ONNX graph");
        return Err(ForwardError::unsupported(what).into());
    }
    let mut builder = Builder::default();
    builder.enter("inputs");
    let rows = [ShardShape::Named("batch"), ShardShape::Named("sequence")];
    let all = [ShardShape::Named("batch"), ShardShape::Named("total_sequence")];
    let tokens = builder.input("input_ids", DataType::INT64, &rows);
    let attention_mask = builder.input("attention_mask", DataType::INT64, &all);
    let places = builder.input("position_ids", DataType::INT64, &rows);
    let positions = Positions::new(&mut builder, &tokens, &attention_mask);
    let mut writer = Writer {
        decoder,
        builder,
        isa: Isa::best(),
        spill,
        outline,
        rotaries: Vec::new(),
        weights: HashMap::new(),
        tables: HashMap::new(),
        widened: Vec::new(),
        weights_only,
        quantized: Vec::new(),
        positions,
        masks: HashMap::new(),
    };
    writer.check_attention()?;
    writer.builder.quantizes_to_fp8 = writer.quantizes_to_fp8();
    writer.rotaries(&places)?;
    writer.decoder(&tokens, &places)?;
    let Writer { builder, widened, .. } = writer;
    let opset = |domain: &str, version| OperatorSetIdProto {
        domain: Some(domain.to_owned()),
        version: Some(version),
        ..OperatorSetIdProto::default()
    };
    let model = ModelProto {
        ir_version: Some(IR_VERSION),
        producer_name: Some(PRODUCER.to_owned()),
        producer_version: Some(env!("CARGO_PKG_VERSION").to_owned()),
        opset_import: vec![opset("", OPSET), opset(MICROSOFT, 1)],
        graph: Some(builder.finish("decoder")).into(),
        ..ModelProto::default()
    };
    Ok(Exported { model, widened, float_activations: weights_only && decoder.quantizes_activations() })
}

impl Writer<'_, '_> {
    fn rotaries(&mut self, places: &Value) -> Result<(), OnnxExportError> {
        for rotary in &self.decoder.blueprint().rotaries {
            let rule =
                || OnnxExportError::unsupported("rotary embeddings whose angles depend on the length of the text");
            let (frequencies, factor) = rotary.constant_frequencies().ok_or_else(rule)?;
            let builder = &mut self.builder;
            let half = frequencies.len();
            let places = builder.cast(places, DataType::FLOAT);
            let places = builder.unsqueeze(&places, &[2, 3]);
            let frequencies = builder.numbers(&frequencies, &[half]);
            let angles = builder.binary("Mul", &places, &frequencies);
            let [cos, sin] = ["Cos", "Sin"].map(|operator| {
                let value = builder.unary(operator, &angles);
                builder.scaled(&value, factor)
            });
            self.rotaries.push(AnglesOf { dim: 2 * half, cos, sin });
        }
        Ok(())
    }

    /// The mask of scores for a window; made once.
    pub(super) fn mask(&mut self, window: Option<usize>) -> Value {
        if let Some(known) = self.masks.get(&window) {
            return known.clone();
        }
        let mask = self.positions.mask(&mut self.builder, window);
        self.masks.insert(window, mask.clone());
        mask
    }

    fn decoder(&mut self, tokens: &Value, places: &Value) -> Result<(), OnnxExportError> {
        let decoder = self.decoder;
        let blueprint = decoder.blueprint();
        self.builder.enter("embedding");
        let mut x = self.embedded(tokens, places)?;
        for (index, block) in blueprint.blocks.iter().enumerate() {
            self.builder.enter(format!("block_{index}"));
            x = self.block(index, block, &x)?;
        }
        self.builder.enter("head");
        let mut x = self.normed(blueprint.final_norm.as_ref(), &x);
        if let Some(layer) = &blueprint.project_out {
            x = self.linear(layer, &x)?;
        }
        let logits = self.linear(&blueprint.head, &x)?;
        let logits = self.builder.scaled(&logits, blueprint.logit_scale);
        let logits = self.builder.capped(&logits, blueprint.logit_cap);
        let shape =
            [ShardShape::Named("batch"), ShardShape::Named("sequence"), ShardShape::Fixed(decoder.vocabulary())];
        self.builder.output("logits", &logits, DataType::FLOAT, &shape);
        Ok(())
    }

    fn embedded(&mut self, tokens: &Value, places: &Value) -> Result<Value, OnnxExportError> {
        let blueprint = self.decoder.blueprint();
        if blueprint.sinusoids.is_some() {
            return Err(OnnxExportError::unsupported("positions of sines and cosines"));
        }
        let x = self.looked_up(&blueprint.embedding, tokens)?;
        let mut x = self.builder.scaled(&x, blueprint.embedding_scale);
        if let Some(layer) = &blueprint.project_in {
            x = self.linear(layer, &x)?;
        }
        if let Some(PositionTable { table, offset, .. }) = &blueprint.positions {
            let offset = self.builder.integer(*offset as i64);
            let rows = self.builder.binary("Add", places, &offset);
            let found = self.looked_up(table, &rows)?;
            x = self.builder.binary("Add", &x, &found);
        }
        Ok(self.normed(blueprint.embedding_norm.as_ref(), &x))
    }

    fn normed(&mut self, norm: Option<&NormLayer>, x: &Value) -> Value {
        let width = self.decoder.hidden();
        norm.map_or_else(|| x.clone(), |norm| self.norm(norm, x, width, &[width]))
    }

    /// A block on the residual stream `x`.
    fn block(&mut self, index: usize, block: &Block, x: &Value) -> Result<Value, OnnxExportError> {
        if let Some(rule) = rule_without_nodes(block) {
            return Err(OnnxExportError::unsupported(rule));
        }
        match block.residual {
            Residual::Parallel => self.parallel(index, block, x),
            Residual::PostNorm => self.post_norm(index, block, x),
            _ => self.sequential(index, block, x),
        }
    }

    fn sequential(&mut self, index: usize, block: &Block, x: &Value) -> Result<Value, OnnxExportError> {
        let normed = self.normed(block.attention_input.as_ref(), x);
        let branch = self.mixed(index, &block.mixer, &normed)?;
        let x = self.joined(block, x, &branch, block.attention_output.as_ref());
        let normed = self.normed(block.feed_forward_input.as_ref(), &x);
        let branch = self.feed_forward(&block.feed_forward, &normed)?;
        Ok(self.joined(block, &x, &branch, block.feed_forward_output.as_ref()))
    }

    fn parallel(&mut self, index: usize, block: &Block, x: &Value) -> Result<Value, OnnxExportError> {
        let normed = self.normed(block.attention_input.as_ref(), x);
        let second = match &block.feed_forward_input {
            Some(norm) => self.normed(Some(norm), x),
            None => normed.clone(),
        };
        let attention = self.mixed(index, &block.mixer, &normed)?;
        let feed_forward = self.feed_forward(&block.feed_forward, &second)?;
        let x = self.joined(block, x, &attention, block.attention_output.as_ref());
        Ok(self.joined(block, &x, &feed_forward, block.feed_forward_output.as_ref()))
    }

    fn post_norm(&mut self, index: usize, block: &Block, x: &Value) -> Result<Value, OnnxExportError> {
        let branch = self.mixed(index, &block.mixer, x)?;
        let x = self.joined(block, x, &branch, None);
        let x = self.normed(block.attention_input.as_ref(), &x);
        let branch = self.feed_forward(&block.feed_forward, &x)?;
        let x = self.joined(block, &x, &branch, None);
        Ok(self.normed(block.feed_forward_input.as_ref(), &x))
    }

    /// The token mixer on normed rows `x`.
    fn mixed(&mut self, index: usize, mixer: &TokenMixer, x: &Value) -> Result<Value, OnnxExportError> {
        match mixer {
            TokenMixer::Attention(layer) => self.attention(index, layer, x),
            recurrent => Err(OnnxExportError::unsupported(recurrent_rule(recurrent))),
        }
    }

    /// `x + scale * norm(branch)`.
    fn joined(&mut self, block: &Block, x: &Value, branch: &Value, norm: Option<&NormLayer>) -> Value {
        let branch = self.normed(norm, branch);
        let branch = self.builder.scaled(&branch, block.branch_scale);
        self.builder.binary("Add", x, &branch)
    }
}

/// The name of a recurrent mixer, for which no nodes are made.
fn recurrent_rule(mixer: &TokenMixer) -> &'static str {
    match mixer {
        TokenMixer::Attention(_) => "attention",
        TokenMixer::Lightning(_) => "linear attention (lightning attention)",
        TokenMixer::GatedDelta(_) => "linear attention (gated delta nets)",
        TokenMixer::ShortConvolution(_) => "short convolutions",
        TokenMixer::Mamba1(_) => "selective state-space layers (Mamba)",
        TokenMixer::Mamba2(_) | TokenMixer::Both(_) => "state-space layers (Mamba 2)",
        TokenMixer::Absent => "blocks without a token mixer",
    }
}

/// What a block computes and no nodes are made for.
fn rule_without_nodes(block: &Block) -> Option<&'static str> {
    let of_block = [
        (block.residual == Residual::OfNorm, "residuals of norms"),
        (block.scalar.is_some(), "scaled blocks"),
        (block.lane_mixer.is_some() || block.hyper.is_some(), "several residual streams"),
        (block.low_rank.is_some(), "narrow layers beside attention"),
        (block.layer_input.is_some(), "inputs of single layers"),
        (block.routed.is_some(), "experts beside a dense network"),
        (block.shortcut.is_some() || block.joins_shortcut, "experts that join the stream behind a later block"),
    ];
    let mut rules =
        rules_of_mixer(&block.mixer).into_iter().chain(of_block).chain(rules_of_network(&block.feed_forward));
    rules.find(|(has, _)| *has).map(|(_, rule)| rule)
}

fn rules_of_mixer(mixer: &TokenMixer) -> Vec<(bool, &'static str)> {
    let attention = match mixer {
        TokenMixer::Attention(attention) => attention,
        recurrent => return vec![(true, recurrent_rule(recurrent))],
    };
    let plain = |norms: &HeadNorms| norms.rule == QueryKeyNorm::PlainAfterRotary;
    vec![
        (matches!(attention.projections, Projections::Queries { .. }), "keys and values that blocks share"),
        (matches!(attention.projections, Projections::Shared(_)), "keys that are values, beside entries of tokens"),
        (attention.indexer.is_some(), "attention to keys that an indexer chooses"),
        (attention.biases.is_some(), "linear biases on the scores of attention"),
        (attention.chunk.is_some(), "attention in chunks"),
        (attention.clip.is_some(), "clipped queries, keys and values"),
        (attention.value_scale != 1.0, "scaled values"),
        (attention.key_scale != 1.0, "scaled keys"),
        (attention.value_norm.is_some(), "norms of values"),
        (attention.growth.is_some(), "queries that grow with their position"),
        (attention.gates.is_some(), "gates on the outputs of heads"),
        (attention.heads_norm.is_some(), "norms before the output projection"),
        (attention.head_norms.as_ref().is_some_and(plain), "norms of queries and keys without weights"),
        (
            matches!(attention.projections, Projections::Fused { grouped: true, .. }),
            "queries grouped with their keys in one matrix",
        ),
    ]
}

fn rules_of_network(network: &FeedForward) -> Vec<(bool, &'static str)> {
    match network {
        FeedForward::Absent => vec![(true, "blocks without a feed-forward network")],
        FeedForward::Dense(mlp) => vec![
            (mlp.xielu.is_some(), "activation functions with learned parameters"),
            (mlp.cutoff.is_some(), "sparse activations"),
            (mlp.factors != [1.0; 2], "scaled feed-forward networks"),
            (mlp.hidden_norm.is_some(), "norms before the down projection"),
        ],
        FeedForward::Mixture(mixture) => vec![
            (mixture.weighs_inputs, "experts whose inputs are weighed"),
            (mixture.sum_scale != 1.0, "averages of routed and shared experts"),
        ],
    }
}
