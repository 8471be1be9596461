//! Words of a recipe that name nothing of a graph: a misspelt pattern would be without effect, and without a word.

use std::collections::BTreeSet;

use kvant_container::onnx::GraphProto;
use kvant_quant::glob::{Glob, nearest_names};

use crate::error::QuantizeError;
use crate::recipe::{Override, Recipe};

/// What can be named in a graph and the graphs inside it.
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

    /// The names of nodes, or of tensors.
    fn names(&self, of_nodes: bool) -> impl Iterator<Item = &str> {
        let names = if of_nodes { &self.nodes } else { &self.tensors };
        names.iter().map(String::as_str).filter(|name| !name.is_empty())
    }

    fn add(&mut self, graph: &GraphProto) {
        let ends = graph.input.iter().chain(&graph.output).map(|value| value.name());
        let constants = graph.initializer.iter().map(|tensor| tensor.name());
        self.tensors.extend(ends.chain(constants).map(str::to_owned));
        for node in &graph.node {
            self.nodes.insert(node.name().to_owned());
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
    /// The refusal of a word that names nothing, unless it is one of a list of operators, which may be that of many graphs.
    fn refused(&self, named: &Named) -> Option<QuantizeError> {
        let (pattern, of_nodes) = match self {
            Self::Node(_, glob) => ((*glob).clone(), true),
            Self::ExactNode(name) => (Glob::literal(name), true),
            Self::Tensor(said) => (said.tensors.clone(), false),
            Self::Operator(..) => return None,
        };
        let shown = |names: Vec<String>| names.iter().map(|name| name.escape_debug().to_string()).collect();
        let some = named.names(of_nodes).take(SHOWN).map(str::to_owned).collect();
        let nearest = shown(nearest_names(&pattern, named.names(of_nodes)));
        let problem = pattern.problem().map(|problem| format!(": {}", problem.escape_debug())).unwrap_or_default();
        Some(QuantizeError::IdleOverride { word: format!("{self}{problem}"), nearest, some: shown(some) })
    }
}

impl std::fmt::Display for Word<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Node(option, glob) => write!(f, "{option} {} matches no node", glob.pattern().escape_debug()),
            Self::ExactNode(name) => write!(f, "--exclude-subgraph: there is no node {}", name.escape_debug()),
            Self::Operator(option, op_type) => write!(f, "{option} {}: there is no such node", op_type.escape_debug()),
            Self::Tensor(said) => {
                write!(f, "--override {} matches no tensor", said.tensors.pattern().escape_debug())
            }
        }
    }
}

/// A sentence for each word of a recipe that names nothing of the simplified graph, and whether it did in the source.
///
/// # Errors
/// [`QuantizeError::IdleOverride`] for names and patterns of nodes and tensors which neither has.
pub fn unmatched(recipe: &Recipe, source: &Named, simplified: &Named) -> Result<Vec<String>, QuantizeError> {
    let idle = words(recipe).into_iter().filter(|word| !word.names_any_of(simplified));
    let sentence = |word: Word<'_>| match word.names_any_of(source) {
        true => Ok(format!("{word}: passes have merged or removed what it names (--disable-pass keeps it)")),
        false => word.refused(simplified).map_or_else(|| Ok(word.to_string()), Err),
    };
    idle.map(sentence).collect()
}

/// How many names a message has room for.
const SHOWN: usize = 6;

fn words(recipe: &Recipe) -> Vec<Word<'_>> {
    let selection = &recipe.selection;
    let nodes = selection.nodes.iter().map(|glob| Word::Node("--nodes", glob));
    let excluded = selection.excluded_nodes.iter().map(|glob| Word::Node("--exclude", glob));
    let ends = selection.excluded_subgraphs.iter().flat_map(|s| s.from.iter().chain(&s.to));
    let ends = ends.map(|name| Word::ExactNode(name));
    let lists = [
        ("--op-types", &selection.op_types),
        ("--more-op-types", &selection.more_op_types),
        ("--exclude-op-types", &selection.excluded_op_types),
    ];
    let operators =
        lists.into_iter().flat_map(|(option, list)| list.iter().map(move |op_type| Word::Operator(option, op_type)));
    let tensors = recipe.overrides.iter().map(Word::Tensor);
    nodes.chain(excluded).chain(ends).chain(operators).chain(tensors).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::node;
    use crate::preset::Preset;
    use crate::recipe::Subgraph;

    #[test]
    fn words_without_effect_are_told() {
        let graph = |nodes| GraphProto { node: nodes, ..GraphProto::default() };
        let conv = node("Conv", "conv1", &["x", "w"], &["c"]);
        let source = Named::of(&graph(vec![conv.clone(), node("BatchNormalization", "norm1", &["c"], &["y"])]));
        let simplified = Named::of(&graph(vec![conv]));
        let mut recipe = Preset::find("A8W8").unwrap().recipe();
        let tensors = |glob| Override { float: true, ..Override::of(Glob::new(glob)) };
        recipe.overrides = vec![tensors("c")];
        recipe.selection.excluded_nodes = vec![Glob::new("conv*"), Glob::new("norm1")];
        recipe.selection.excluded_op_types = vec!["Conv".to_owned(), "Gem".to_owned()];
        let told = unmatched(&recipe, &source, &simplified).unwrap();
        let starts =
            ["--exclude norm1 matches no node: passes have merged", "--exclude-op-types Gem: there is no such node"];
        assert_eq!(told.len(), starts.len(), "{told:?}");
        assert!(told.iter().zip(starts).all(|(told, start)| told.starts_with(start)), "{told:?}");
        let refused = |recipe: &Recipe| {
            let refused = unmatched(recipe, &source, &simplified).unwrap_err();
            format!("{refused}; {}", refused.hint().unwrap())
        };
        let plain = Preset::find("A8W8").unwrap().recipe();
        for overridden in [tensors("d*"), Override::of(Glob::new("d*"))] {
            let said = refused(&Recipe { overrides: vec![overridden], ..plain.clone() });
            assert!(said.starts_with("--override d* matches no tensor; there are c;"), "{said}");
        }
        for (pattern, start) in [
            ("cnov1", "--exclude cnov1 matches no node; did you mean conv1?"),
            ("re:cnov.*", "--exclude re:cnov.* matches no node; did you mean conv1?"),
            ("re:(", "--exclude re:( matches no node: "),
        ] {
            let mut recipe = plain.clone();
            recipe.selection.excluded_nodes = vec![Glob::new(pattern)];
            assert!(refused(&recipe).starts_with(start), "{}", refused(&recipe));
        }
        let mut recipe = plain.clone();
        recipe.selection.excluded_subgraphs = vec![Subgraph { from: vec!["conv1".into()], to: vec!["end".into()] }];
        assert!(refused(&recipe).starts_with("--exclude-subgraph: there is no node end"));
    }
}
