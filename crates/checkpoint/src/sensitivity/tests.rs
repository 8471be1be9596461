use super::*;
use kvant_container::Checkpoint;
use kvant_forward::evaluation::ModelStage;
use kvant_forward::forward::Decoder;
use kvant_forward::forward::cpu::Cpu;
use std::ops::ControlFlow;
use std::path::Path;

const TOKENS: u32 = 40;

fn checkpoint() -> Checkpoint {
    Checkpoint::open(Path::new("../../tests/models/nano_llama")).unwrap()
}

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

fn mixture<'a>(
    checkpoint: &'a Checkpoint,
    decoder: &'a Decoder<'a>,
    kind: MixKind,
    all: &[&str],
    keeps_head: bool,
) -> Mixture<'a> {
    let all = options(&names(all), kind, false).unwrap();
    let format = (kind == MixKind::Checkpoint).then_some(kvant_formats::format::OutputFormat::QUARK);
    Mixture::new(checkpoint, decoder, kind, all, MixSettings { format, keeps_head, ..MixSettings::default() }).unwrap()
}

#[test]
fn groups_of_checkpoints_are_what_engines_fuse() {
    let checkpoint = checkpoint();
    let decoder = Decoder::open(&checkpoint).unwrap();
    let all = ["int4:g128", "int8:channel", "float"];
    let mixture = mixture(&checkpoint, &decoder, MixKind::Checkpoint, &all, false);
    let groups = mixture.groups();
    assert_eq!(groups.len(), 4 * 4 + 1);
    assert_eq!(groups[0].modules.len(), 3);
    assert_eq!(groups[16].modules, ["lm_head"]);
    assert_eq!((groups[5].stage, groups[16].stage), (ModelStage::Block(1), ModelStage::Head));
    assert!(groups.iter().all(|group| group.choices.len() == 3));
    assert_eq!(groups[16].choices[2].bytes, groups[16].source_bytes);
}

#[test]
fn bytes_of_groups_are_those_of_plans() {
    let checkpoint = checkpoint();
    let decoder = Decoder::open(&checkpoint).unwrap();
    for (kind, all) in [
        (MixKind::Checkpoint, &["int3:g128", "int4:g128", "int8:channel", "float"][..]),
        (MixKind::Gguf, &["Q4_0", "Q5_1", "Q8_0", "float"]),
    ] {
        let mixture = mixture(&checkpoint, &decoder, kind, all, true);
        let in_turn: Vec<usize> = (0..mixture.groups().len()).map(|group| group % 4).collect();
        let mixes: Vec<Vec<usize>> = (0..3).map(|option| mixture.uniform(option)).chain([in_turn]).collect();
        let others = mixes.iter().map(|mix| mixture.plan(mix).unwrap().bytes() - mixture.bytes(mix));
        let others: Vec<u64> = others.collect();
        // Headers name scales, of which float layers have none.
        assert!(others.iter().all(|bytes| bytes.abs_diff(others[0]) < 8192), "{kind:?} {others:?}");
    }
}

#[test]
fn types_whose_blocks_do_not_fit_are_one_choice() {
    let checkpoint = checkpoint();
    let decoder = Decoder::open(&checkpoint).unwrap();
    // Rows of 128 hold no blocks of 256: Q6_K becomes Q8_0.
    let mixture = mixture(&checkpoint, &decoder, MixKind::Gguf, &["Q4_0", "Q6_K", "Q8_0"], true);
    let group = mixture.groups().iter().find(|group| group.name == "blk.0.attn_q").unwrap();
    assert_eq!(group.choices.len(), 2);
    assert_eq!((group.choices[1].option, &group.choices[1].also[..]), (1, &[2][..]));
    assert_eq!(mixture.uniform(1), mixture.uniform(2));
    assert_eq!(mixture.groups()[0].stage, ModelStage::Embedding);
}

#[test]
fn recipes_name_what_differs_from_most_weights() {
    let checkpoint = checkpoint();
    let decoder = Decoder::open(&checkpoint).unwrap();
    let mixture = mixture(&checkpoint, &decoder, MixKind::Checkpoint, &["int4:g128", "int8:channel", "float"], true);
    let mut mix = mixture.uniform(0);
    (mix[3], mix[4]) = (1, 2);
    let recipe = mixture.recipe(&mix);
    assert_eq!(recipe.scheme.as_deref(), Some("int4:g128"));
    let overrides: Vec<(&str, &str)> =
        recipe.overrides.iter().map(|entry| (entry.layers.as_deref().unwrap(), entry.scheme.as_str())).collect();
    let q = "model.layers.1.self_attn";
    let kept = [format!("{q}.q_proj"), format!("{q}.k_proj"), format!("{q}.v_proj")];
    assert_eq!(overrides[0], ("model.layers.0.mlp.down_proj", "int8:channel"));
    assert_eq!(overrides[1..], kept.each_ref().map(|name| (name.as_str(), "keep")));
    assert!(mixture.plan(&mix).unwrap().loaders().contains(&"amd-quark"));
}

#[test]
fn estimates_rank_options_as_measurements_do() {
    let checkpoint = checkpoint();
    let decoder = Decoder::open(&checkpoint).unwrap();
    let mixture = mixture(&checkpoint, &decoder, MixKind::Checkpoint, &["int4:g128", "int8:channel"], true);
    let pairs: Vec<(usize, usize)> = [1, 3, 9, 14].into_iter().map(|group| (group, 0)).collect();
    let sequences: Vec<Vec<u32>> =
        (0..16).map(|row| (0..TOKENS).map(|i| (i * i * 37 + row * 101 + i * 7) % 2000).collect()).collect();
    let (ops, go_on) = (Cpu::default(), |_, _| ControlFlow::Continue(()));
    let mut measured = vec![0.0; pairs.len()];
    let trials = pairs.iter().map(|(group, choice)| Trial::single(*group, *choice)).collect();
    let mut found = |index: usize, comparison: kvant_forward::evaluation::Comparison| {
        measured[index] = comparison.kl_mean.value;
        Ok(())
    };
    Trials::new(&mixture, trials).measure(&ops, &sequences, u64::MAX, &mut found, go_on).unwrap();
    assert_eq!(Estimates::obstacle(&mixture), None);
    let estimates = Estimates::new(&mixture, &pairs);
    let mut estimated = vec![0.0; pairs.len()];
    let mut found = |group: usize, choice: usize, kl: f64| {
        let at = pairs.iter().position(|pair| *pair == (group, choice)).unwrap();
        estimated[at] = kl;
        Ok(())
    };
    estimates.estimate(&ops, &sequences, u64::MAX, &mut found, go_on).unwrap();
    for (estimated, measured) in estimated.iter().zip(&measured) {
        assert!((0.4..2.5).contains(&(estimated / measured)), "{estimated} {measured}");
    }
}
