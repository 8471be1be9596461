//! Short lists of patterns for long lists of modules, so that config.json stays small for any number of layers and
//! experts. Not the patterns of users: see [`kvant_quant::glob`].

use std::collections::{HashMap, HashSet};
use std::fmt::Write;
use std::hash::Hash;

/// The first of the projections that engines fuse, and what the fused layer is called.
const FUSED: &[(&str, &str)] = &[
    ("q_proj", "qkv_proj"),
    ("gate_proj", "gate_up_proj"),
    ("in_proj_qkv", "in_proj_qkvz"),
    ("in_proj_a", "in_proj_ba"),
];

/// The name of the layer that engines fuse of `name` and its siblings, if `name` is the first of them.
pub(super) fn fused_name(name: &str) -> Option<String> {
    let (parent, leaf) = name.rsplit_once('.')?;
    FUSED.iter().find(|(first, _)| *first == leaf).map(|(_, fused)| format!("{parent}.{fused}"))
}

/// The modules that hold the experts of a block (`….experts` of `….experts.3.up_proj`) where `modules` has layers of them and
/// `others` does not: engines look up one name for all experts of a block. Without repetitions, in the order of `modules`.
pub(super) fn whole_experts<'a>(modules: &[&'a str], others: &[&str]) -> Vec<&'a str> {
    let other: HashSet<&str> = others.iter().filter_map(|name| experts_module(name)).collect();
    let mut seen = HashSet::new();
    let whole = modules.iter().filter_map(|name| experts_module(name)).filter(|experts| !other.contains(experts));
    whole.filter(|experts| seen.insert(*experts)).collect()
}

/// The module that holds the experts, if `name` is that of a layer of a numbered expert.
fn experts_module(name: &str) -> Option<&str> {
    let (head, tail) = name.split_once(".experts.")?;
    let (number, _) = tail.split_once('.')?;
    number.parse::<u32>().ok().map(|_| &name[..head.len() + ".experts".len()])
}

/// A selector of one module, or of all modules with the same last name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Selector {
    /// Every module whose name ends in a dot and this.
    Leaf(String),
    /// This module.
    Name(String),
}

impl Selector {
    /// As a glob.
    pub(super) fn glob(&self) -> String {
        match self {
            Selector::Leaf(leaf) => format!("*.{leaf}"),
            Selector::Name(name) => name.clone(),
        }
    }

    /// As compressed-tensors wants it: a name, or `re:` and a regular expression that is matched from the start.
    pub(super) fn regex(&self) -> String {
        match self {
            Selector::Leaf(leaf) => format!("re:.*\\.{}$", escape(leaf)),
            Selector::Name(name) => name.clone(),
        }
    }
}

/// Escapes what has a meaning in regular expressions.
pub(super) fn escape(text: &str) -> String {
    text.chars().fold(String::new(), |mut escaped, c| {
        let plain = c.is_alphanumeric() || c == '_';
        let _ = if plain { write!(escaped, "{c}") } else { write!(escaped, "\\{c}") };
        escaped
    })
}

/// For each key the selectors of its modules, in the order in which keys appear. A last name stands for its modules where
/// all modules with it, of which there are several, have the same key, and none of `others` has it.
pub(super) fn select<K: Copy + Eq + Hash>(modules: &[(&str, K)], others: &[&str]) -> Vec<(K, Vec<Selector>)> {
    let shared = shared_leaves(modules, others);
    let (mut groups, mut index, mut seen) = (Vec::<(K, Vec<Selector>)>::new(), HashMap::new(), HashSet::new());
    for (name, key) in modules {
        let group = *index.entry(*key).or_insert_with(|| {
            groups.push((*key, vec![]));
            groups.len() - 1
        });
        if !shared.contains(leaf(name)) {
            groups[group].1.push(Selector::Name((*name).to_owned()));
        } else if seen.insert(leaf(name)) {
            groups[group].1.push(Selector::Leaf(leaf(name).to_owned()));
        }
    }
    groups
}

/// The key of the most modules, the first of them if there are several.
pub(super) fn commonest<K: Copy + Eq + Hash>(modules: &[(&str, K)]) -> Option<K> {
    let mut counts: HashMap<K, usize> = HashMap::new();
    for (_, key) in modules {
        *counts.entry(*key).or_default() += 1;
    }
    let most = counts.values().copied().max()?;
    modules.iter().map(|(_, key)| *key).find(|key| counts.get(key) == Some(&most))
}

/// The last names that can stand for their modules.
fn shared_leaves<'a, K: Copy + Eq>(modules: &[(&'a str, K)], others: &[&str]) -> HashSet<&'a str> {
    // The key of all modules with a last name, and their number; no key where they differ.
    let mut leaves: HashMap<&'a str, (Option<K>, usize)> = HashMap::new();
    for (name, key) in modules.iter().filter(|(name, _)| leaf(name) != *name) {
        let (common, count) = leaves.entry(leaf(name)).or_insert((Some(*key), 0));
        *common = common.filter(|common| common == key);
        *count += 1;
    }
    let taken: HashSet<&str> = others.iter().map(|name| leaf(name)).collect();
    let shared = |leaf: &str, (key, count): &(Option<K>, usize)| key.is_some() && *count > 1 && !taken.contains(leaf);
    leaves.iter().filter(|(name, uses)| shared(name, uses)).map(|(name, _)| *name).collect()
}

/// The last part of a dotted name.
fn leaf(name: &str) -> &str {
    name.rsplit('.').next().unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvant_quant::glob::Glob;

    #[test]
    fn common_last_names_become_patterns() {
        let modules = [("m.0.up", 1), ("m.0.down", 2), ("m.1.up", 1), ("m.1.down", 1), ("lm_head", 1), ("m.2.up", 1)];
        let groups = select(&modules, &[]);
        let text = |group: usize| groups[group].1.iter().map(Selector::glob).collect::<Vec<_>>();
        assert_eq!((groups[0].0, text(0)), (1, vec!["*.up".to_owned(), "m.1.down".to_owned(), "lm_head".to_owned()]));
        assert_eq!((groups[1].0, text(1)), (2, vec!["m.0.down".to_owned()]));
    }

    #[test]
    fn name_without_a_dot_becomes_no_pattern() {
        // `*.head` would miss the first.
        let groups = select(&[("head", 1), ("a.head", 1)], &[]);
        let globs: Vec<_> = groups[0].1.iter().map(|s| Glob::new(&s.glob())).collect();
        assert!(["head", "a.head"].iter().all(|name| globs.iter().any(|glob| glob.matches(name))));
    }

    #[test]
    fn experts_of_a_block_have_one_name_unless_they_differ() {
        let kept = ["m.0.experts.0.up", "m.0.experts.1.up", "m.1.experts.0.up", "m.experts.gate", "re:.*experts.2.up"];
        assert_eq!(whole_experts(&kept, &["m.1.experts.1.up", "m.2.experts.0.up"]), ["m.0.experts"]);
    }

    #[test]
    fn regular_expressions_are_escaped() {
        assert_eq!(Selector::Leaf("q_proj".into()).regex(), r"re:.*\.q_proj$");
        assert_eq!(Selector::Leaf("w+1".into()).regex(), r"re:.*\.w\+1$");
        assert_eq!(Selector::Name("a.b".into()).regex(), "a.b");
    }
}
