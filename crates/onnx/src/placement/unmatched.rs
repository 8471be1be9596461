//! Words of a recipe that name nothing of a graph: a misspelt pattern would be without effect, and without a word.

use std::collections::BTreeSet;

use kvant_container::onnx::GraphProto;
use kvant_quant::glob::{Glob, nearest_names};

use crate::error::QuantizeError;
use crate::graph::called;
use crate::recipe::{Override, Recipe};

/// Names in a graph and the graphs inside it.
#[derive(Debug, Clone, Default)]
pub struct Named {
    nodes: BTreeSet<String>,
    operators: BTreeSet<String>,
    tensors: BTreeSet<String>,
}

impl Named {
    /// All names of a graph.
    pub fn of(graph: &GraphProto) -> Self {
        let mut named = Self::default();
        named.add(graph);
        named
    }

    /// Returns whether a tensor has this name.
    pub(super) fn has_tensor(&self, name: &str) -> bool {
        self.tensors.contains(name)
    }

    /// The names of tensors.
    pub(super) fn tensors(&self) -> impl Iterator<Item = &str> {
        self.tensors.iter().map(String::as_str).filter(|name| !name.is_empty())
    }

    fn add(&mut self, graph: &GraphProto) {
        let ends = graph.input.iter().chain(&graph.output).map(|value| value.name());
        let constants = graph.initializer.iter().map(|tensor| tensor.name());
        self.tensors.extend(ends.chain(constants).map(str::to_owned));
        for node in &graph.node {
            self.nodes.insert(called(node).to_owned());
            self.operators.insert(node.op_type().to_owned());
            self.tensors.extend(node.output.iter().cloned());
            node.attribute.iter().flat_map(|a| a.g.iter().chain(&a.graphs)).for_each(|inner| self.add(inner));
        }
    }
}

/// Something of a recipe that should name something of a graph.
enum Word<'r> {
    Node(&'r str, &'r Glob),
    ExactNode(&'r str),
    Operator(&'r str, &'r str),
    Tensor(&'r Override),
}

impl Word<'_> {
    fn names_any_of(&self, named: &Named) -> bool {
        match self {
            Self::Node(_, glob) => named.nodes.iter().any(|name| glob.matches(name)),
            Self::ExactNode(name) => named.nodes.contains(*name),
            Self::Operator(_, op_type) => named.operators.contains(*op_type),
            Self::Tensor(said) => named.tensors.iter().any(|name| said.tensors.matches(name)),
        }
    }
}

impl Word<'_> {
    /// The refusal of a word that names nothing.
    fn refused(&self, named: &Named) -> QuantizeError {
        let (pattern, names, command) = match self {
            Self::Node(_, glob) => ((*glob).clone(), &named.nodes, "inspect ‹all›"),
            Self::ExactNode(name) => (Glob::literal(name), &named.nodes, "inspect ‹all›"),
            Self::Tensor(said) => (said.tensors.clone(), &named.tensors, "inspect ‹all›"),
            Self::Operator(_, op_type) => (Glob::literal(op_type), &named.operators, "inspect"),
        };
        let names = || names.iter().map(String::as_str).filter(|name| !name.is_empty());
        let shown = |names: &[String]| names.iter().map(|name| name.escape_debug().to_string()).collect();
        let mut some: Vec<String> = shown(&names().take(SHOWN).map(str::to_owned).collect::<Vec<_>>());
        if let more @ 1.. = names().count().saturating_sub(SHOWN) {
            some.push(format!("{more} more"));
        }
        let cased = names().find(|name| name.eq_ignore_ascii_case(pattern.pattern())).map(|name| vec![name.to_owned()]);
        let nearest = shown(&cased.unwrap_or_else(|| nearest_names(&pattern, names())));
        let problem = pattern.problem().map(|problem| format!(": {}", problem.escape_debug())).unwrap_or_default();
        QuantizeError::IdleOverride { word: format!("{self}{problem}"), nearest, some, command }
    }
}

impl std::fmt::Display for Word<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Node(option, glob) => write!(f, "{option} {} matches no node", glob.pattern().escape_debug()),
            Self::ExactNode(name) => write!(f, "‹exclude-subgraph›: there is no node {}", name.escape_debug()),
            Self::Operator(option, op_type) => {
                write!(f, "{option} {} names no operator of the model", op_type.escape_debug())
            }
            Self::Tensor(said) => {
                write!(f, "‹override› {} matches no tensor", said.tensors.pattern().escape_debug())
            }
        }
    }
}

/// A sentence for each word of a recipe that names nothing of the simplified graph, and whether it did in the source.
///
/// # Errors
/// [`QuantizeError::IdleOverride`] for operators, names and patterns of nodes and tensors which neither has.
pub fn unmatched(recipe: &Recipe, source: &Named, simplified: &Named) -> Result<Vec<String>, QuantizeError> {
    let idle = words(recipe).into_iter().filter(|word| !word.names_any_of(simplified));
    let sentence = |word: Word<'_>| match word.names_any_of(source) {
        true => Ok(format!("{word}: passes have merged or removed it (‹disable-pass› keeps it)")),
        false => Err(word.refused(simplified)),
    };
    idle.map(sentence).collect()
}

/// How many names a message has room for.
const SHOWN: usize = 6;

fn words(recipe: &Recipe) -> Vec<Word<'_>> {
    let selection = &recipe.selection;
    let nodes = selection.nodes.iter().map(|glob| Word::Node("‹nodes›", glob));
    let excluded = selection.node_rules.iter().map(|rule| {
        let setting = if rule.excluded { "‹exclude›" } else { "‹override›" };
        Word::Node(setting, &rule.nodes)
    });
    let ends = selection.excluded_subgraphs.iter().flat_map(|s| s.from.iter().chain(&s.to));
    let ends = ends.map(|name| Word::ExactNode(name));
    let lists = [
        ("‹op-types›", &selection.op_types),
        ("‹more-op-types›", &selection.more_op_types),
        ("‹exclude-op-types›", &selection.excluded_op_types),
    ];
    let operators =
        lists.into_iter().flat_map(|(option, list)| list.iter().map(move |op_type| Word::Operator(option, op_type)));
    // Overrides of layers are among the rules of nodes.
    let tensors = recipe.overrides.iter().filter(|said| !said.of_layers).map(Word::Tensor);
    nodes.chain(excluded).chain(ends).chain(operators).chain(tensors).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::node;
    use crate::preset::Preset;
    use crate::recipe::{NodeRule, Subgraph};
    use kvant_container::Diagnostic;

    #[test]
    fn nodes_without_names_are_named_by_their_first_output() {
        let unnamed = |op: &str, input: &str, output: &str| node(op, "", &[input], &[output]);
        let nodes = vec![unnamed("Relu", "x", "first"), unnamed("Sin", "first", "last")];
        let graph = Named::of(&GraphProto { node: nodes, ..GraphProto::default() });
        let mut recipe = Preset::find("A8W8").unwrap().recipe();
        let rule = |nodes: &str| NodeRule { nodes: Glob::new(nodes), excluded: true };
        recipe.selection.node_rules = vec![rule("f*")];
        recipe.selection.excluded_subgraphs = vec![Subgraph { from: vec!["first".into()], to: vec!["last".into()] }];
        assert!(unmatched(&recipe, &graph, &graph).unwrap().is_empty());
        recipe.selection.node_rules = vec![rule("other")];
        let refused = unmatched(&recipe, &graph, &graph).unwrap_err();
        assert_eq!(refused.hint().unwrap(), "there are first, last; `kvant inspect ‹all› MODEL` shows all");
    }

    #[test]
    fn rules_without_effect_are_reported() {
        let graph = |nodes| GraphProto { node: nodes, ..GraphProto::default() };
        let conv = node("Conv", "conv1", &["x", "w"], &["c"]);
        let source = Named::of(&graph(vec![conv.clone(), node("BatchNormalization", "norm1", &["c"], &["y"])]));
        let simplified = Named::of(&graph(vec![conv]));
        let mut recipe = Preset::find("A8W8").unwrap().recipe();
        let tensors = |glob| Override { float: true, ..Override::of(Glob::new(glob)) };
        recipe.overrides = vec![tensors("c")];
        let rule = |nodes: &str, excluded| NodeRule { nodes: Glob::new(nodes), excluded };
        recipe.selection.node_rules = vec![rule("conv*", true), rule("norm1", true)];
        recipe.selection.excluded_op_types = vec!["Conv".to_owned(), "BatchNormalization".to_owned()];
        let told = unmatched(&recipe, &source, &simplified).unwrap();
        let starts = [
            "‹exclude› norm1 matches no node: passes have merged",
            "‹exclude-op-types› BatchNormalization names no operator of the model: passes have merged",
        ];
        assert_eq!(told.len(), starts.len(), "{told:?}");
        assert!(told.iter().zip(starts).all(|(told, start)| told.starts_with(start)), "{told:?}");
        let refused = |recipe: &Recipe| {
            let refused = unmatched(recipe, &source, &simplified).unwrap_err();
            format!("{refused}; {}", refused.hint().unwrap())
        };
        let plain = Preset::find("A8W8").unwrap().recipe();
        for overridden in [tensors("d*"), Override::of(Glob::new("d*"))] {
            let said = refused(&Recipe { overrides: vec![overridden], ..plain.clone() });
            assert!(said.starts_with("‹override› d* matches no tensor; there are c;"), "{said}");
        }
        for (pattern, start) in [
            ("cnov1", "‹exclude› cnov1 matches no node; did you mean conv1?"),
            ("re:cnov.*", "‹exclude› re:cnov.* matches no node; did you mean conv1?"),
            ("re:(", "‹exclude› re:( matches no node: "),
        ] {
            let mut recipe = plain.clone();
            recipe.selection.node_rules = vec![rule(pattern, true)];
            assert!(refused(&recipe).starts_with(start), "{}", refused(&recipe));
        }
        for (operator, hint) in
            [("Cnov", "did you mean Conv?"), ("CONV", "did you mean Conv?"), ("Gru", "there are Conv;")]
        {
            let mut recipe = plain.clone();
            recipe.selection.op_types = vec!["Conv".to_owned(), operator.to_owned()];
            let said = refused(&recipe);
            assert!(
                said.starts_with(&format!("‹op-types› {operator} names no operator of the model; {hint}")),
                "{said}"
            );
            assert!(said.contains("`kvant inspect MODEL`"), "{said}");
        }
        let mut recipe = plain.clone();
        recipe.selection.excluded_subgraphs = vec![Subgraph { from: vec!["conv1".into()], to: vec!["end".into()] }];
        assert!(refused(&recipe).starts_with("‹exclude-subgraph›: there is no node end"));
    }
}
