//! Names that differ in their numbers only, gathered under one pattern: `model.layers.{0..31}.mlp.down_proj.weight`. For
//! display; globs that select layers are `kvant_quant::glob`.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::hash::Hash;

/// A name cut at its numbers: the parts between dots that are numbers, and the rest.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Template(Vec<Option<String>>);

/// Names with the same template, and with equal `key`s.
#[derive(Clone, Debug, PartialEq)]
pub struct Group<K> {
    template: Template,
    numbers: Vec<BTreeSet<u64>>,
    /// The shared key of all members.
    pub key: K,
    /// The number of members.
    pub count: usize,
    /// The sum over the members.
    pub bytes: u64,
    /// The positions of the members among the items.
    pub members: Vec<usize>,
}

/// Gathers `(name, key, bytes)`, in the order of first appearance.
pub fn group<K: Clone + Eq + Hash>(items: impl IntoIterator<Item = (String, K, u64)>) -> Vec<Group<K>> {
    let mut groups: Vec<Group<K>> = Vec::new();
    let mut positions: HashMap<(Template, K), usize> = HashMap::new();
    for (item, (name, key, bytes)) in items.into_iter().enumerate() {
        let (template, numbers) = cut(&name);
        let position = *positions.entry((template.clone(), key.clone())).or_insert_with(|| {
            groups.push(Group {
                template,
                numbers: vec![BTreeSet::new(); numbers.len()],
                key,
                count: 0,
                bytes: 0,
                members: Vec::new(),
            });
            groups.len() - 1
        });
        let group = &mut groups[position];
        group.count += 1;
        group.members.push(item);
        group.bytes = group.bytes.saturating_add(bytes);
        for (set, number) in group.numbers.iter_mut().zip(numbers) {
            set.insert(number);
        }
    }
    groups
}

fn cut(name: &str) -> (Template, Vec<u64>) {
    let mut numbers = Vec::new();
    let template = name.split('.').map(|part| match number(part) {
        Some(number) => {
            numbers.push(number);
            None
        }
        None => Some(part.to_owned()),
    });
    (Template(template.collect()), numbers)
}

/// A part that is a number in its usual spelling, so that nothing is lost when it is spelled again.
fn number(part: &str) -> Option<u64> {
    part.parse().ok().filter(|number: &u64| number.to_string() == part)
}

impl<K> fmt::Display for Group<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut numbers = self.numbers.iter();
        for (i, part) in self.template.0.iter().enumerate() {
            f.write_str(if i == 0 { "" } else { "." })?;
            match part {
                Some(text) => f.write_str(text)?,
                None => f.write_str(&numbers.next().map(spell).unwrap_or_default())?,
            }
        }
        Ok(())
    }
}

/// `7`, `{0..31}`, `{0,2..5}`.
fn spell(numbers: &BTreeSet<u64>) -> String {
    let mut runs: Vec<(u64, u64)> = Vec::new();
    for number in numbers {
        match runs.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(*number) => *last = *number,
            _ => runs.push((*number, *number)),
        }
    }
    let spell = |(first, last): &(u64, u64)| match last - first {
        0 => first.to_string(),
        1 => format!("{first},{last}"),
        _ => format!("{first}..{last}"),
    };
    let text = runs.iter().map(spell).collect::<Vec<_>>().join(",");
    if numbers.len() == 1 { text } else { format!("{{{text}}}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn patterns(items: &[(&str, u8)]) -> Vec<(String, usize)> {
        let items = items.iter().map(|(name, key)| ((*name).to_owned(), *key, 1));
        group(items).iter().map(|group| (group.to_string(), group.count)).collect()
    }

    #[test]
    fn indices_are_collected_into_ranges() {
        let names = ["h.0.w", "h.1.w", "h.10.w", "h.2.w", "h.12.w", "h.13.w", "head.w"].map(|name| (name, 0));
        assert_eq!(patterns(&names), [("h.{0..2,10,12,13}.w".to_owned(), 6), ("head.w".to_owned(), 1)]);
    }

    #[test]
    fn different_keys_form_different_groups() {
        let names = [("h.0.w", 1), ("h.1.w", 0), ("h.2.w", 0)];
        assert_eq!(patterns(&names), [("h.0.w".to_owned(), 1), ("h.{1,2}.w".to_owned(), 2)]);
    }

    #[test]
    fn several_indices_in_a_name_are_collected() {
        let names = ["l.0.e.0.w", "l.0.e.1.w", "l.1.e.0.w", "l.1.e.1.w"].map(|name| (name, 0));
        assert_eq!(patterns(&names), [("l.{0,1}.e.{0,1}.w".to_owned(), 4)]);
    }

    #[test]
    fn unusual_names_are_unchanged() {
        for name in ["", ".", "a..b", "007.w", "+1.w", "99999999999999999999.w", "1x.2"] {
            assert_eq!(patterns(&[(name, 0)])[0].0, name);
        }
    }
}
