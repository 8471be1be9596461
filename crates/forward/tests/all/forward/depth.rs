//! Runs of a block that end before it does, and branches run alone.

use super::models::{FAMILIES, LENGTH, TOKENS, with_decoder};
use crate::support;
use kvant_container::{Checkpoint, Dtype};
use kvant_forward::forward::cpu::Cpu;
use kvant_forward::forward::{
    ActivationHook, ActivationPoint, Decoder, ForwardOptions, Rows, Runner, StartFrom, StopAt,
};
use kvant_model::network::{Input, Network};
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Mutex;

const DEPTHS: [StopAt; 13] = [
    StopAt::AttentionInput,
    StopAt::QueryLatent,
    StopAt::KeyValueLatent,
    StopAt::Convolved,
    StopAt::StepLatent,
    StopAt::DecayLatent,
    StopAt::GateLatent,
    StopAt::LowRankLatent,
    StopAt::Heads,
    StopAt::FeedForward,
    StopAt::Hidden,
    StopAt::LayerInput,
    StopAt::LayerInputHidden,
];

/// The inputs of every layer: rows and their spans.
type Seen = BTreeMap<String, (Vec<f32>, Vec<usize>)>;

#[derive(Default)]
struct Inputs(Mutex<Seen>);

impl ActivationHook for Inputs {
    fn wants(&self, site: ActivationPoint<'_>) -> bool {
        matches!(site, ActivationPoint::Input(_))
    }

    fn see(&self, site: ActivationPoint<'_>, rows: Rows<'_>) {
        let ActivationPoint::Input(module) = site else { panic!("{site:?}") };
        // What mixes several streams reads them before and behind the branches, wherever a run ends. Outputs in groups of heads read
        // each group by itself, and what compresses or weighs keys reads inputs behind the latent of queries.
        if module.contains(".altup.")
            || module.ends_with(".wo_a")
            || module.contains(".compressor.")
            || module.ends_with("indexer.weights_proj")
        {
            return;
        }
        let spans = rows.spans.of(rows.data.len() / rows.columns).collect();
        let before = self.0.lock().unwrap().insert(module.to_owned(), (rows.data.to_vec(), spans));
        assert!(before.is_none(), "{module} was seen twice");
    }
}

fn seen(runner: &Runner<'_, '_>, block: usize, until: Option<StopAt>, x: &[f32]) -> (Seen, ControlFlow<()>) {
    let tap = Inputs::default();
    let v = ForwardOptions { tap: Some(&tap), until, ..ForwardOptions::default() };
    let flow = runner.block(v, block, LENGTH, &mut x.to_vec());
    (tap.0.into_inner().unwrap(), flow)
}

fn depth_of(input: Input) -> StopAt {
    match input {
        Input::Attention | Input::Recurrent | Input::EncoderStates => StopAt::AttentionInput,
        Input::QueryLatent => StopAt::QueryLatent,
        Input::KeyValueLatent => StopAt::KeyValueLatent,
        Input::Convolved => StopAt::Convolved,
        Input::StepLatent => StopAt::StepLatent,
        Input::DecayLatent => StopAt::DecayLatent,
        Input::GateLatent => StopAt::GateLatent,
        Input::LowRankLatent => StopAt::LowRankLatent,
        Input::Heads | Input::RecurrentHeads => StopAt::Heads,
        Input::FeedForward | Input::Router | Input::Routed(_) => StopAt::FeedForward,
        Input::Hidden | Input::SharedHidden | Input::RoutedHidden(_) => StopAt::Hidden,
        Input::LayerInput => StopAt::LayerInput,
        Input::LayerInputHidden => StopAt::LayerInputHidden,
    }
}

/// The name of one expert of a fused tensor.
fn expert_module(module: &str, expert: usize) -> String {
    let (parent, leaf) = module.rsplit_once('.').unwrap();
    format!("{parent}.{expert}.{leaf}")
}

/// The depth of every module of a block, those of fused experts one by one.
fn depths(network: &Network, block: usize) -> BTreeMap<String, StopAt> {
    let mut depths = BTreeMap::new();
    for stage in network.stages(block) {
        let depth = depth_of(stage.input);
        depths.extend(stage.linears.iter().map(|id| (network.linear(*id).module.clone(), depth)));
        for all in stage.experts.iter().map(|id| &network.experts()[id.index()]) {
            depths.extend((0..all.experts).map(|expert| (expert_module(&all.module, expert), depth)));
        }
    }
    depths
}

/// Whether a layer's input is seen in a run that ends at `until`. Where branches share a norm, the feed-forward network
/// is run last nevertheless.
fn is_before(module: &str, depth: StopAt, until: StopAt) -> bool {
    let early = depth == StopAt::AttentionInput && (module.contains("mlp") || module.contains("fc"));
    depth <= until && !(early && (StopAt::QueryLatent..=StopAt::Heads).contains(&until))
}

fn check(family: &str, decoder: &Decoder<'_>, network: &Network) {
    let ops = Cpu::default();
    let runner = Runner::new(decoder, &ops);
    let mut x = runner.embed(ForwardOptions::default(), &TOKENS, LENGTH).unwrap();
    for block in 0..decoder.blueprint().blocks.len() {
        let (all, flow) = seen(&runner, block, None, &x);
        assert_eq!(flow, ControlFlow::Continue(()));
        let depths = depths(network, block);
        assert!(all.keys().all(|module| depths.contains_key(module)), "{family}: {:?} {depths:?}", all.keys());
        let reads_own = decoder.blueprint().blocks[block].layer_input.is_some();
        for until in DEPTHS.into_iter().filter(|until| reads_own || *until < StopAt::LayerInput) {
            let (seen, flow) = seen(&runner, block, Some(until), &x);
            assert_eq!(flow, ControlFlow::Break(()), "{family} {until:?}");
            let expected: Seen = all.clone().into_iter().filter(|(m, _)| is_before(m, depths[m], until)).collect();
            assert!(seen.keys().eq(expected.keys()), "{family} {until:?}: {:?} {:?}", seen.keys(), expected.keys());
            assert!(seen == expected, "{family} {until:?}");
        }
        let _ = runner.block(ForwardOptions::default(), block, LENGTH, &mut x);
    }
}

/// A run that goes on from one that ended at `until`, with what that one left.
fn resumed(runner: &Runner<'_, '_>, block: usize, until: StopAt, x: &[f32]) -> (Seen, Vec<f32>) {
    let (tap, mut x) = (Inputs::default(), x.to_vec());
    let before = ForwardOptions { tap: Some(&tap), until: Some(until), ..ForwardOptions::default() };
    assert_eq!(runner.block(before, block, LENGTH, &mut x), ControlFlow::Break(()));
    let inputs = runner.decoder().blueprint().blocks[block].resumed_layer(until).map(|layer| layer.module.clone());
    let rows = inputs.map(|module| tap.0.into_inner().unwrap()[&module].0.clone()).unwrap_or_default();
    let from = match until {
        StopAt::Heads => StartFrom::Heads(&rows),
        StopAt::FeedForward => StartFrom::FeedForward,
        _ => StartFrom::Hidden(&rows),
    };
    assert_eq!(from.depth(), until);
    let tap = Inputs::default();
    let v = ForwardOptions { tap: Some(&tap), from: Some(from), ..ForwardOptions::default() };
    assert_eq!(runner.block(v, block, LENGTH, &mut x), ControlFlow::Continue(()));
    (tap.0.into_inner().unwrap(), x)
}

#[test]
fn partial_forward_resumes_where_another_stopped() {
    let mut resumable = 0;
    for family in FAMILIES {
        with_decoder(family, Dtype::BF16, "", |_, decoder| {
            let (ops, depths) = (Cpu::default(), depths(&support::Checkpoint::read(family).network(), 0));
            let runner = Runner::new(decoder, &ops);
            let x = runner.embed(ForwardOptions::default(), &TOKENS, LENGTH).unwrap();
            let mut expected = x.clone();
            let _ = runner.block(ForwardOptions::default(), 0, LENGTH, &mut expected);
            for until in DEPTHS.into_iter().filter(|depth| decoder.blueprint().blocks[0].resumes_at(*depth)) {
                let (seen, out) = resumed(&runner, 0, until, &x);
                assert_eq!(out, expected, "{family} {until:?}");
                assert!(seen.keys().all(|module| depths[module] >= until), "{family} {until:?}: {:?}", seen.keys());
                resumable += 1;
            }
        });
    }
    assert!(resumable > FAMILIES.len());
}

#[test]
fn partial_forward_stops_after_the_requested_inputs() {
    for family in FAMILIES {
        with_decoder(family, Dtype::BF16, "", |_, decoder| {
            check(family, decoder, &support::Checkpoint::read(family).network())
        });
    }
}

#[test]
fn nano_llama_partial_forward_stops_after_the_requested_inputs() {
    let checkpoint = Checkpoint::open(&super::model()).unwrap();
    let decoder = Decoder::open(&checkpoint).unwrap();
    let config = kvant_model::model_config::ModelConfig::from_json(&checkpoint.config().unwrap().unwrap()).unwrap();
    check("nano_llama", &decoder, &Network::recognise(&config, decoder.tensors().meta()));
}

#[test]
fn branches_alone_match_the_block() {
    for family in ["qwen2_moe", "deepseek_v2", "mixtral"] {
        with_decoder(family, Dtype::F32, "", |_, decoder| {
            let ops = Cpu::default();
            let (runner, v) = (Runner::new(decoder, &ops), ForwardOptions::default());
            let mut x = runner.embed(v, &TOKENS, LENGTH).unwrap();
            let (all, _) = seen(&runner, 1, None, &x);
            let blueprint = &decoder.blueprint().blocks[1];
            let read = |module: &str| &all[module].0;
            let attention = runner.mix(v, 1, LENGTH, read(&blueprint.mixer.layers()[0].module));
            let feed_forward = runner.feed_forward(v, 1, LENGTH, read(&blueprint.feed_forward.layers()[0].module));
            let expected: Vec<f32> = x.iter().zip(attention).map(|(x, a)| x + a).collect();
            let expected: Vec<f32> = expected.iter().zip(feed_forward).map(|(x, f)| x + f).collect();
            assert_eq!(runner.block(v, 1, LENGTH, &mut x), ControlFlow::Continue(()));
            assert_eq!(x, expected, "{family}");
        });
    }
}
