//! The operators that ONNX Runtime knows, with their attributes: read from `onnxruntime_operators.txt`. Not which of them have
//! kernels on which devices.

use std::collections::{HashMap, HashSet};
use std::sync::LazyLock;

static TABLE: LazyLock<Table> = LazyLock::new(|| Table::read(include_str!("onnxruntime_operators.txt")));

/// What is known of a standard operator in an opset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Known<'t> {
    /// There is no operator of the name.
    No,
    /// There is one from this opset on.
    Since(i64),
    /// It has these attributes.
    With(&'t [&'static str]),
}

/// The attributes from an opset on.
type Versions = Vec<(i64, Vec<&'static str>)>;

#[derive(Default)]
struct Table {
    /// The standard operators, the oldest version first.
    standard: HashMap<&'static str, Versions>,
    of_microsoft: HashSet<&'static str>,
}

impl Table {
    fn read(text: &'static str) -> Table {
        let mut table = Table::default();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            if let Some(name) = line.strip_prefix("com.microsoft:") {
                table.of_microsoft.insert(name);
                continue;
            }
            let mut words = line.split(' ');
            let (name, opset) = (words.next(), words.next().and_then(|opset| opset.parse().ok()));
            if let Some((name, opset)) = name.zip(opset) {
                table.standard.entry(name).or_default().push((opset, words.collect()));
            }
        }
        table
    }
}

/// The known facts about an operator of the standard domain.
pub(crate) fn standard(operator: &str, opset: i64) -> Known<'static> {
    let Some(versions) = TABLE.standard.get(operator) else { return Known::No };
    match (versions.iter().rfind(|(since, _)| *since <= opset), versions.first()) {
        (Some((_, attributes)), _) => Known::With(attributes),
        (None, Some((first, _))) => Known::Since(*first),
        (None, None) => Known::No,
    }
}

/// Returns whether an operator is among those of com.microsoft.
pub(crate) fn is_of_microsoft(operator: &str) -> bool {
    TABLE.of_microsoft.contains(operator)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_operators_depend_on_the_opset() {
        assert_eq!((standard("Foo", 17), standard("Gelu", 17)), (Known::No, Known::Since(20)));
        assert_eq!(standard("Gelu", 20), Known::With(&["approximate"]));
        assert_eq!(standard("Add", 6), Known::With(&["axis", "broadcast"]));
        assert_eq!((standard("Add", 7), standard("Add", 99)), (Known::With(&[]), Known::With(&[])));
        assert!(is_of_microsoft("MatMulNBits") && !is_of_microsoft("Foo"));
    }

    #[test]
    fn every_operator_row_is_parsed() {
        let rows = include_str!("onnxruntime_operators.txt").lines().filter(|line| !line.starts_with('#')).count();
        let read = TABLE.standard.values().map(Vec::len).sum::<usize>() + TABLE.of_microsoft.len();
        assert_eq!((rows, TABLE.standard.contains_key("Conv")), (read, true));
        for versions in TABLE.standard.values() {
            assert!(versions.windows(2).all(|pair| pair[0].0 < pair[1].0));
        }
    }
}
