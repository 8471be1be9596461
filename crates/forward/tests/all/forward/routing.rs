//! Choices of experts that are recorded in one run and replayed in another.

use super::models::{LENGTH, TOKENS, with_decoder};
use kvant_container::Dtype;
use kvant_forward::forward::blueprint::{FeedForward, Mixture};
use kvant_forward::forward::cpu::Cpu;
use kvant_forward::forward::{
    ActivationHook, ActivationPoint, Decoder, ForwardOptions, Routing, Rows, Runner, WeightOverrides,
};
use kvant_weights::weight::WeightMatrix;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

const FAMILIES: [&str; 5] = ["mixtral", "qwen2_moe", "deepseek_v3", "granitemoe", "phimoe"];

/// The block with experts in all of these.
const BLOCK: usize = 1;

fn mixture<'d>(decoder: &'d Decoder<'_>) -> &'d Mixture {
    match &decoder.blueprint().blocks[BLOCK].feed_forward {
        FeedForward::Mixture(mixture) => mixture,
        FeedForward::Dense(_) | FeedForward::Absent => panic!("no experts"),
    }
}

#[derive(Default)]
struct Inputs(Mutex<BTreeMap<String, Vec<f32>>>);

impl ActivationHook for Inputs {
    fn wants(&self, site: ActivationPoint<'_>) -> bool {
        matches!(site, ActivationPoint::Input(_))
    }

    fn see(&self, site: ActivationPoint<'_>, rows: Rows<'_>) {
        let ActivationPoint::Input(module) = site else { panic!("{site:?}") };
        self.0.lock().unwrap().insert(module.to_owned(), rows.data.to_vec());
    }
}

/// The tokens that came to each expert.
fn tokens_of_experts(runner: &Runner<'_, '_>, v: ForwardOptions<'_, '_>, x: &[f32]) -> Vec<Vec<usize>> {
    let (tap, mixture) = (Inputs::default(), mixture(runner.decoder()));
    let v = ForwardOptions { tap: Some(&tap), routing: v.routing, ..ForwardOptions::default() };
    runner.feed_forward(v, BLOCK, LENGTH, x);
    let seen = tap.0.into_inner().unwrap();
    let width = mixture.router.columns;
    let all: Vec<&[f32]> = seen[&mixture.router.module].chunks(width).collect();
    let of_expert = |first: &str| {
        let rows = seen.get(first).map(Vec::as_slice).unwrap_or_default().chunks(width);
        rows.map(|row| all.iter().position(|one| *one == row).unwrap()).collect()
    };
    mixture.experts.iter().map(|expert| of_expert(&expert.layers()[0].module)).collect()
}

/// Rows of numbers of both signs.
fn rows(count: usize, seed: u32) -> Vec<f32> {
    (0..count as u32).map(|i| ((i + seed).wrapping_mul(2_654_435_769) >> 8) as f32 / (1 << 23) as f32 - 1.0).collect()
}

#[test]
fn replayed_routing_sends_rows_to_the_same_experts() {
    for family in FAMILIES {
        with_decoder(family, Dtype::F32, "", |_, decoder| {
            let ops = Cpu::default();
            let (runner, v) = (Runner::new(decoder, &ops), ForwardOptions::default());
            let size = TOKENS.len() * decoder.width();
            let (one, other) = (rows(size, 1), rows(size, 7_777));
            let routing = Routing::record();
            let recorded = tokens_of_experts(&runner, ForwardOptions { routing: Some(&routing), ..v }, &one);
            let own = tokens_of_experts(&runner, v, &other);
            assert_ne!(own, recorded, "{family}");
            let routing = routing.replay();
            let replayed = tokens_of_experts(&runner, ForwardOptions { routing: Some(&routing), ..v }, &other);
            assert_eq!(replayed, recorded, "{family}");
        });
    }
}

#[test]
fn replayed_routing_ignores_the_router() {
    for family in FAMILIES {
        with_decoder(family, Dtype::F32, "", |_, decoder| {
            let ops = Cpu::default();
            let runner = Runner::new(decoder, &ops);
            let x = rows(TOKENS.len() * decoder.width(), 1);
            let router = &mixture(decoder).router;
            let zeros = Arc::new(vec![0.0; router.rows * router.columns]);
            let mut overlay = WeightOverrides::default();
            overlay.set_weight(&router.module, WeightMatrix::values(zeros, router.rows, router.columns));
            let run = |overlay, routing: Option<&Routing>| {
                runner.feed_forward(ForwardOptions { overlay, routing, ..ForwardOptions::default() }, BLOCK, LENGTH, &x)
            };
            let routing = Routing::record();
            let out = run(None, Some(&routing));
            assert_eq!(run(None, None), out, "{family}");
            assert_ne!(run(Some(&overlay), None), out, "{family}");
            assert_eq!(run(Some(&overlay), Some(&routing.replay())), out, "{family}");
        });
    }
}
