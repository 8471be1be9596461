//! Small models of many families with arbitrary weights, and what of a decoder may be stood in for.

use crate::{common, support};
use kvant_container::{Checkpoint, Dtype};
use kvant_forward::forward::blueprint::{
    AttentionLayer, Block, Blueprint, FeedForward, NormLayer, Projections, QueryLatent, ReadoutLayer, ReadoutLayers,
    ScoreBiases, TokenMixer,
};
use kvant_forward::forward::{Decoder, Projection, Vector, WeightOverrides};
use kvant_numeric::simd::Isa;
use kvant_weights::weight::{Band, WeightMatrix};
use std::sync::Arc;

/// Families that differ in what a block computes.
pub const FAMILIES: [&str; 77] = [
    "afmoe",
    "apertus",
    "axk1",
    "bailing_hybrid",
    "bamba",
    "bert",
    "bitnet",
    "bloom",
    "clip_text",
    "cohere",
    "cohere2_moe",
    "dbrx",
    "deepseek_v2",
    "deepseek_v2_lite",
    "deepseek_v3",
    "deepseek_v32",
    "deepseek_v4",
    "distilbert",
    "electra",
    "ernie4_5_moe",
    "esm",
    "falcon_alibi",
    "falcon_groups",
    "falcon_h1",
    "falcon_mamba",
    "gemma2",
    "gemma3n_text",
    "gemma4_layer_inputs",
    "gemma4_moe",
    "gemma4_text",
    "glm_moe_dsa",
    "gpt2",
    "gpt_bigcode",
    "gpt_bigcode_heads",
    "gpt_neox",
    "gptj",
    "granitemoe",
    "granitemoehybrid",
    "granitemoehybrid_dense",
    "jamba",
    "kimi_linear",
    "kolibri1",
    "laguna",
    "lfm2",
    "lfm2_moe",
    "lfm3",
    "llama4_text",
    "longcat_flash",
    "mamba",
    "mamba2",
    "mimo_v2_flash",
    "minimax",
    "minimax_m3_text",
    "mistral4",
    "mixtral",
    "mllama",
    "modernbert",
    "mpnet",
    "nanochat",
    "nemotron",
    "nemotron_h",
    "olmo2",
    "olmo_hybrid",
    "opt",
    "opt_350m",
    "persimmon",
    "phi",
    "phimoe",
    "qwen2_moe",
    "qwen3_5",
    "qwen3_5_moe",
    "qwen3_next",
    "roberta",
    "siglip_text",
    "stablelm",
    "stablelm_parallel",
    "xglm",
];

/// Tokens of every test: sequences of 8.
pub const TOKENS: [u32; 24] = [1, 7, 19, 4, 99, 21, 3, 5, 150, 2, 2, 68, 31, 77, 8, 12, 120, 9, 33, 1, 58, 40, 16, 11];
/// Tokens of a sequence.
pub const LENGTH: usize = 8;

/// A model of a family in floats of a type; `salt` makes weights differ.
pub fn write(family: &str, dtype: Dtype, salt: &str) -> tempfile::TempDir {
    write_fixture(&support::Checkpoint::read(family), dtype, salt)
}

/// The same of a fixture.
pub fn write_fixture(fixture: &support::Checkpoint, dtype: Dtype, salt: &str) -> tempfile::TempDir {
    let tensors = fixture.tensors.iter().map(|tensor| {
        if tensor.dtype == "I64" {
            // Tables with two of four experts for each token.
            let numbers = (0..tensor.shape.iter().product::<usize>()).map(|at| ((at / 2 + at % 2) % 4) as i64);
            let bytes = numbers.flat_map(i64::to_le_bytes).collect();
            return (tensor.name.clone(), Dtype::I64, tensor.shape.clone(), bytes);
        }
        let (_, dtype, shape, bytes) = common::weight(&format!("{salt}{}", tensor.name), dtype, &tensor.shape);
        (tensor.name.clone(), dtype, shape, bytes)
    });
    let dir = tempfile::tempdir().unwrap();
    common::write(dir.path(), &fixture.config, &tensors.collect::<Vec<common::Tensor>>());
    dir
}

/// Calls `work` with the decoder or encoder of such a model.
pub fn with_decoder<T>(family: &str, dtype: Dtype, salt: &str, work: impl FnOnce(&Checkpoint, &Decoder<'_>) -> T) -> T {
    let dir = write(family, dtype, salt);
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    let decoder = Decoder::open_any(&checkpoint).unwrap_or_else(|error| panic!("{family}: {error}"));
    work(&checkpoint, &decoder)
}

/// All elements of a matrix.
pub fn values(matrix: &WeightMatrix<'_>) -> Vec<f32> {
    let mut values = Vec::new();
    matrix.read(Isa::best(), &Band { rows: 0..matrix.rows, columns: 0..matrix.columns }, &mut values);
    values
}

/// An overlay of all that a decoder reads, as floats in memory.
pub fn overlay_of(decoder: &Decoder<'_>) -> WeightOverrides<'static> {
    let mut overlay = WeightOverrides::default();
    let tensors = decoder.tensors();
    for layer in projections(decoder.blueprint()) {
        let weight = Arc::new(values(&tensors.weight(layer)));
        overlay.set_weight(&layer.module, WeightMatrix::values(weight, layer.rows, layer.columns));
        if let Some(bias) = tensors.bias(layer) {
            overlay.set_bias(&layer.module, bias);
        }
    }
    for vector in vectors(decoder.blueprint()) {
        overlay.set_vector(vector, tensors.values(vector));
    }
    overlay
}

fn projections(blueprint: &Blueprint) -> Vec<&Projection> {
    let positions = blueprint.positions.as_ref().map(|positions| &positions.table);
    let attentions = blueprint.blocks.iter().filter_map(|block| block.mixer.attention());
    let embeddings = attentions.clone().filter_map(|layer| layer.distances.as_ref()).map(|distances| &distances.table);
    let distances = attentions.filter_map(|layer| match &layer.biases {
        Some(ScoreBiases::Distances(distances)) => Some(&distances.table),
        _ => None,
    });
    let encoder = blueprint.encoder.iter();
    let readouts = encoder.clone().flat_map(|encoder| &encoder.readouts).flat_map(ReadoutLayers::layers);
    let around = [&blueprint.embedding, &blueprint.head].into_iter().chain(positions);
    let around = around.chain(&blueprint.project_in).chain(&blueprint.project_out);
    let around = around
        .chain(distances)
        .chain(embeddings)
        .chain(readouts)
        .chain(encoder.flat_map(|encoder| &encoder.token_types));
    let lanes = blueprint.lanes.iter().flat_map(|lanes| lanes.inputs.iter().chain(&lanes.outputs));
    let around =
        around.chain(lanes).chain(blueprint.layer_inputs.iter().flat_map(|inputs| [&inputs.table, &inputs.projection]));
    around.chain(blueprint.blocks.iter().flat_map(Block::layers)).collect()
}

fn vectors(blueprint: &Blueprint) -> Vec<&Vector> {
    let norms =
        blueprint.embedding_norm.iter().chain(&blueprint.final_norm).chain(blueprint.blocks.iter().flat_map(norms));
    let norms = norms.chain(blueprint.layer_inputs.iter().map(|inputs| &inputs.norm));
    let steps = blueprint.encoder.iter().flat_map(|encoder| &encoder.readouts).flat_map(|readout| &readout.steps);
    let norms = norms.chain(steps.filter_map(|step| match step {
        ReadoutLayer::Norm(norm) => Some(norm),
        _ => None,
    }));
    let of_norms = norms.flat_map(|norm| norm.weight.iter().chain(&norm.bias));
    let hyper = blueprint.hyper.iter().flat_map(|streams| streams.last.vectors());
    of_norms.chain(hyper).chain(blueprint.blocks.iter().flat_map(parameters)).collect()
}

fn norms(block: &Block) -> Vec<&NormLayer> {
    let own = [&block.attention_input, &block.attention_output, &block.feed_forward_input, &block.feed_forward_output];
    let hidden = match &block.feed_forward {
        FeedForward::Mixture(_) | FeedForward::Absent => &None,
        FeedForward::Dense(mlp) => &mlp.hidden_norm,
    };
    let routed = block
        .routed
        .iter()
        .flat_map(|routed| [&routed.router_norm, &routed.input, &routed.output, &routed.dense_output]);
    let of_input = block.layer_input.iter().flat_map(|layer| &layer.norm);
    let of_lanes = block.lane_mixer.iter().map(|mixer| &mixer.norm);
    let of_lanes = of_lanes.chain(block.low_rank.iter().map(|layer| &layer.norm));
    let own = own.into_iter().chain([hidden]).flatten().chain(mixer_norms(&block.mixer));
    own.chain(routed).chain(of_input).chain(of_lanes).collect()
}

fn mixer_norms(mixer: &TokenMixer) -> Vec<&NormLayer> {
    match mixer {
        TokenMixer::Attention(layer) => attention_norms(layer),
        TokenMixer::GatedDelta(layer) => vec![&layer.norm],
        TokenMixer::Lightning(layer) => vec![&layer.norm],
        TokenMixer::ShortConvolution(_) | TokenMixer::Absent => Vec::new(),
        TokenMixer::Mamba1(layer) => layer.norms.iter().flatten().collect(),
        TokenMixer::Mamba2(layer) => layer.norm.iter().collect(),
        TokenMixer::Both(both) => attention_norms(&both.attention).into_iter().chain(&both.recurrent.norm).collect(),
    }
}

fn attention_norms(layer: &AttentionLayer) -> Vec<&NormLayer> {
    let mut norms: Vec<&NormLayer> =
        layer.head_norms.iter().flat_map(|norms| std::iter::once(&norms.query).chain(&norms.key)).collect();
    norms.extend(&layer.heads_norm);
    norms.extend(layer.indexer.iter().flat_map(|indexer| std::iter::once(&indexer.norm).chain(&indexer.query_norm)));
    if let Projections::Shared(shared) = &layer.projections {
        norms.extend([&shared.latent_norm, &shared.key_norm]);
        norms.extend(shared.compressor.iter().flat_map(|layer| layer.norms()));
    }
    if let Projections::Latent(latent) = &layer.projections {
        norms.push(&latent.norm);
        norms.extend(if let QueryLatent::Latent(_, norm, _) = &latent.query { Some(norm) } else { None });
    }
    norms
}

fn parameters(block: &Block) -> Vec<&Vector> {
    let correction = block.mixture().and_then(|mixture| mixture.correction.as_ref());
    let learned = match &block.feed_forward {
        FeedForward::Mixture(_) | FeedForward::Absent => None,
        FeedForward::Dense(mlp) => mlp.xielu.as_ref(),
    };
    let learned = learned.into_iter().flat_map(|xielu| [&xielu.alpha_p, &xielu.alpha_n, &xielu.beta, &xielu.eps]);
    let of_mixer = match &block.mixer {
        TokenMixer::Attention(layer) => {
            layer.sinks.iter().chain(layer.compressor().into_iter().flat_map(|layer| layer.vectors())).collect()
        }
        TokenMixer::GatedDelta(layer) => {
            layer.convolution.vectors().chain([&layer.decay_log, &layer.step_bias]).collect()
        }
        TokenMixer::Lightning(layer) => layer.vectors().collect(),
        TokenMixer::ShortConvolution(layer) => layer.convolution.vectors().collect(),
        TokenMixer::Mamba1(layer) => layer.vectors().collect(),
        TokenMixer::Mamba2(layer) => layer.vectors().collect(),
        TokenMixer::Both(both) => both.attention.sinks.iter().chain(both.recurrent.vectors()).collect(),
        TokenMixer::Absent => Vec::new(),
    };
    let scales = block.routed.iter().flat_map(|routed| &routed.mixture.expert_scales);
    let scales = scales.chain(block.lane_mixer.iter().flat_map(|mixer| &mixer.output_scale));
    let hyper = block.hyper.iter().flatten().flat_map(|mixture| mixture.vectors());
    of_mixer.into_iter().chain(hyper).chain(scales).chain(correction).chain(learned).chain(&block.scalar).collect()
}
