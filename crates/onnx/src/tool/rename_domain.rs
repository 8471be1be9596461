//! Another name for a domain of operators.

use std::collections::BTreeSet;

use kvant_container::onnx::{FunctionProto, GraphProto, ModelProto, NodeProto, OperatorSetIdProto};

use super::ToolError;
use crate::graph::{STANDARD_DOMAIN, bodies_mut, domain};

/// A domain and its new name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RenamedDomain {
    /// The domain of operators, such as `com.microsoft`.
    pub from: String,
    /// The name it gets.
    pub to: String,
}

impl std::str::FromStr for RenamedDomain {
    type Err = &'static str;

    /// `ai.onnx.contrib=com.example`.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once('=') {
            Some((from, to)) if !from.is_empty() && !to.is_empty() => {
                Ok(Self { from: from.to_owned(), to: to.to_owned() })
            }
            _ => Err("two domains are needed, e.g. ai.onnx.contrib=com.example"),
        }
    }
}

/// Moves the operators of a domain to another one: those of nodes in the graph, in bodies and in functions, and functions of the model's own that
/// are in the domain. Returns how many nodes changed.
///
/// # Errors
/// The standard domain on either side, a new name that is no name, a domain that the model does not use, a new name that the model imports in
/// another version, and functions that would have the same name.
pub fn rename_domain(model: &mut ModelProto, renamed: &RenamedDomain) -> Result<usize, ToolError> {
    refuse(model, renamed)?;
    let RenamedDomain { from, to } = renamed;
    let mut count = 0;
    if let Some(graph) = model.graph.as_mut() {
        count += in_graph(graph, renamed);
    }
    rename_import(&mut model.opset_import, from, to);
    for function in &mut model.functions {
        count += function.node.iter_mut().map(|node| in_node(node, renamed)).sum::<usize>();
        rename_import(&mut function.opset_import, from, to);
        if function.domain() == from {
            function.domain = Some(to.clone());
        }
    }
    Ok(count)
}

fn refuse(model: &ModelProto, renamed: &RenamedDomain) -> Result<(), ToolError> {
    let RenamedDomain { from, to } = renamed;
    let refused = |reason: String| ToolError::Domain { from: from.clone(), to: to.clone(), reason };
    let is_standard = |name: &str| matches!(name, STANDARD_DOMAIN | "ai.onnx");
    if is_standard(from) || is_standard(to) {
        return Err(refused("the operators of ai.onnx are those of ONNX itself".to_owned()));
    }
    if to.chars().any(|c| c.is_whitespace() || c.is_control()) {
        return Err(refused("the new name has spaces or control characters".to_owned()));
    }
    if from == to {
        return Err(refused("it has that name".to_owned()));
    }
    let domains = domains(model);
    if !domains.contains(from) {
        let domains = domains.into_iter().collect();
        return Err(ToolError::NoDomain { name: from.clone(), domains });
    }
    let imports = std::iter::once(&model.opset_import).chain(model.functions.iter().map(|f| &f.opset_import));
    for sets in imports {
        let version = |name: &str| sets.iter().find(|set| set.domain() == name).map(OperatorSetIdProto::version);
        if let (Some(old), Some(new)) = (version(from), version(to))
            && old != new
        {
            return Err(refused(format!("the model uses version {new} of `{to}`, and version {old} of `{from}`")));
        }
    }
    let key = |function: &FunctionProto| (function.name().to_owned(), function.overload().to_owned());
    let of = |domain: &str| model.functions.iter().filter(|f| f.domain() == domain).map(key).collect::<BTreeSet<_>>();
    if let Some((name, _)) = of(from).intersection(&of(to)).next() {
        return Err(refused(format!("both have a function `{}`", name.escape_debug())));
    }
    Ok(())
}

/// The domains that a model imports or has functions in.
fn domains(model: &ModelProto) -> BTreeSet<String> {
    let imports = model.opset_import.iter().chain(model.functions.iter().flat_map(|f| &f.opset_import));
    let imported = imports.map(|set| set.domain().to_owned());
    imported.chain(model.functions.iter().map(|function| function.domain().to_owned())).collect()
}

fn rename_import(imports: &mut Vec<OperatorSetIdProto>, from: &str, to: &str) {
    let has_new = imports.iter().any(|set| set.domain() == to);
    imports.retain(|set| !(has_new && set.domain() == from));
    imports.iter_mut().filter(|set| set.domain() == from).for_each(|set| set.domain = Some(to.to_owned()));
}

fn in_graph(graph: &mut GraphProto, renamed: &RenamedDomain) -> usize {
    graph.node.iter_mut().map(|node| in_node(node, renamed)).sum()
}

fn in_node(node: &mut NodeProto, renamed: &RenamedDomain) -> usize {
    let inside: usize = bodies_mut(node).map(|body| in_graph(body, renamed)).sum();
    let is_renamed = domain(node) == renamed.from;
    if is_renamed {
        node.domain = Some(renamed.to.clone());
    }
    inside + usize::from(is_renamed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{add_opset, check, node, opset};
    use crate::test_models::{branches, model, value};

    fn custom(name: &str, input: &str, output: &str) -> NodeProto {
        let mut made = node("Magic", name, &[input], &[output]);
        made.domain = Some("ai.onnx.contrib".to_owned());
        made
    }

    fn made() -> ModelProto {
        let body = |name: &str| GraphProto {
            node: vec![custom(name, "h", name)],
            output: vec![value(name)],
            ..GraphProto::default()
        };
        let nodes = vec![custom("first", "x", "h"), branches("c", "y", body("t"), body("e"))];
        let mut made = model(17, nodes, vec![], &["x", "c"], &["y"]);
        add_opset(&mut made, "ai.onnx.contrib", 1);
        made
    }

    fn renamed(text: &str) -> RenamedDomain {
        text.parse().unwrap()
    }

    #[test]
    fn nodes_bodies_and_imports_are_renamed() {
        let mut model = made();
        assert_eq!(rename_domain(&mut model, &renamed("ai.onnx.contrib=com.example")).unwrap(), 3);
        assert_eq!(check(&model), Ok(()));
        assert_eq!((opset(&model, "ai.onnx.contrib"), opset(&model, "com.example")), (None, Some(1)));
    }

    #[test]
    fn functions_move_with_their_domain() {
        let mut model = made();
        model.functions.push(FunctionProto {
            name: Some("Magic".to_owned()),
            domain: Some("ai.onnx.contrib".to_owned()),
            input: vec!["a".to_owned()],
            output: vec!["b".to_owned()],
            node: vec![node("Relu", "", &["a"], &["b"])],
            ..FunctionProto::default()
        });
        rename_domain(&mut model, &renamed("ai.onnx.contrib=com.example")).unwrap();
        assert_eq!(model.functions[0].domain(), "com.example");
        assert!(crate::graph::function(&model, &model.graph.node[0]).is_some());
    }

    #[test]
    fn impossible_renames_are_refused() {
        let refused = |change: &dyn Fn(&mut ModelProto), text: &str| {
            let mut model = made();
            change(&mut model);
            let before = model.clone();
            let error = rename_domain(&mut model, &renamed(text)).unwrap_err();
            assert_eq!(model, before);
            error.to_string()
        };
        let nothing = |_: &mut ModelProto| {};
        assert!(refused(&nothing, "ai.onnx=com.example").contains("ONNX itself"));
        assert!(refused(&nothing, "ai.onnx.contrib=ai.onnx").contains("ONNX itself"));
        assert!(refused(&nothing, "other=com.example").contains("`ai.onnx.contrib`"));
        assert!(refused(&nothing, "ai.onnx.contrib=a b").contains("spaces"));
        let newer = |model: &mut ModelProto| add_opset(model, "com.example", 2);
        assert!(refused(&newer, "ai.onnx.contrib=com.example").contains("version 2"));
        for text in ["a", "=b", "a="] {
            assert!(text.parse::<RenamedDomain>().is_err(), "{text}");
        }
    }

    #[test]
    fn domain_that_is_imported_already_is_joined() {
        let mut model = made();
        add_opset(&mut model, "com.example", 1);
        rename_domain(&mut model, &renamed("ai.onnx.contrib=com.example")).unwrap();
        assert_eq!(model.opset_import.iter().filter(|set| set.domain() == "com.example").count(), 1);
        assert_eq!(check(&model), Ok(()));
    }
}
