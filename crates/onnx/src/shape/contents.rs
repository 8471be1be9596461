//! Contents of small integer tensors that carry shapes, as far as they are known: what Shape, Gather, Concat and a little
//! arithmetic make of shapes with symbols in them.

use super::Dim;
use super::node::Known;
use crate::constant::{shape_range, slice_range};
use crate::graph::{int_attribute, ints_attribute};

/// One element of a tensor that carries a shape.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Element {
    /// This number; -1 and 0 mean something to Reshape.
    Number(i64),
    /// The dimension of this name.
    Symbol(String),
    /// Anything.
    Unknown,
}

impl Element {
    /// The element that holds a dimension.
    pub(super) fn of(dim: &Dim) -> Self {
        match dim {
            Dim::Known(n) => i64::try_from(*n).map_or(Self::Unknown, Self::Number),
            Dim::Symbol(name) => Self::Symbol(name.clone()),
            Dim::Unknown => Self::Unknown,
        }
    }

    /// The dimension the element says; `None` for a negative number.
    pub(super) fn dim(&self) -> Option<Dim> {
        Some(match self {
            Self::Number(n) => Dim::Known(usize::try_from(*n).ok()?),
            Self::Symbol(name) => Dim::Symbol(name.clone()),
            Self::Unknown => Dim::Unknown,
        })
    }

    fn times(&self, other: &Self) -> Self {
        match (self, other) {
            (Self::Number(1), element) | (element, Self::Number(1)) => element.clone(),
            _ => self.with(other, i64::checked_mul),
        }
    }

    fn plus(&self, other: &Self) -> Self {
        match (self, other) {
            (Self::Number(0), element) | (element, Self::Number(0)) => element.clone(),
            _ => self.with(other, i64::checked_add),
        }
    }

    fn minus(&self, other: &Self) -> Self {
        self.with(other, i64::checked_sub)
    }

    fn over(&self, other: &Self) -> Self {
        match (self, other) {
            (element, Self::Number(1)) => element.clone(),
            _ => self.with(other, i64::checked_div),
        }
    }

    /// Returns whether both are the same, as a number; a dimension is never negative.
    fn equals(&self, other: &Self) -> Self {
        match (self, other) {
            (Self::Number(a), Self::Number(b)) => Self::Number((a == b).into()),
            (Self::Symbol(_), Self::Number(..0)) | (Self::Number(..0), Self::Symbol(_)) => Self::Number(0),
            (Self::Symbol(a), Self::Symbol(b)) if a == b => Self::Number(1),
            _ => Self::Unknown,
        }
    }

    fn with(&self, other: &Self, operator: fn(i64, i64) -> Option<i64>) -> Self {
        match (self, other) {
            (Self::Number(a), Self::Number(b)) => operator(*a, *b).map_or(Self::Unknown, Self::Number),
            _ => Self::Unknown,
        }
    }
}

/// What a node's first output holds, if it is a vector or a scalar that carries a shape.
pub(super) fn contents(node: &Known<'_>) -> Option<Vec<Element>> {
    match node.node.op_type() {
        "Shape" => {
            let dims = node.shape(0)?;
            let (start, end) = shape_range(node.node, dims.len());
            Some(dims.get(start..end.max(start))?.iter().map(Element::of).collect())
        }
        "Identity" | "Cast" | "Unsqueeze" | "Squeeze" | "Reshape" => node.elements(0),
        "Gather" if int_attribute(node.node, "axis").unwrap_or(0) == 0 => gather(node),
        "Concat" => concat(node),
        "Slice" => slice(node),
        "Mul" => pairwise(node, Element::times),
        "Add" => pairwise(node, Element::plus),
        "Sub" => pairwise(node, Element::minus),
        "Div" => pairwise(node, Element::over),
        "Equal" => pairwise(node, Element::equals),
        "Where" => choose(node),
        _ => None,
    }
}

fn concat(node: &Known<'_>) -> Option<Vec<Element>> {
    (0..node.node.input.len()).try_fold(Vec::new(), |mut all, i| {
        all.extend(node.elements(i)?);
        Some(all)
    })
}

fn gather(node: &Known<'_>) -> Option<Vec<Element>> {
    let data = node.elements(0)?;
    let length = i64::try_from(data.len()).ok()?;
    let at = |i: i64| usize::try_from(if i < 0 { i.checked_add(length)? } else { i }).ok();
    node.integers(1)?.into_iter().map(|i| data.get(at(i)?).cloned()).collect()
}

fn slice(node: &Known<'_>) -> Option<Vec<Element>> {
    let data = node.elements(0)?;
    let part = |name: &str, input: usize| match ints_attribute(node.node, name) {
        Some([one]) => Some(*one),
        Some(_) => None,
        None => match node.integers(input)?[..] {
            [one] => Some(one),
            _ => None,
        },
    };
    let step = if node.has(4) { part("steps", 4)? } else { 1 };
    let (start, count) = slice_range(part("starts", 1)?, part("ends", 2)?, step, data.len())?;
    let at = |i: usize| start as i64 + i as i64 * step;
    (0..count).map(|i| data.get(usize::try_from(at(i)).ok()?).cloned()).collect()
}

fn choose(node: &Known<'_>) -> Option<Vec<Element>> {
    let (condition, a, b) = (node.elements(0)?, node.elements(1)?, node.elements(2)?);
    let count = [condition.len(), a.len(), b.len()].into_iter().max()?;
    let of = |elements: &[Element], i: usize| elements.get(if elements.len() == 1 { 0 } else { i }).cloned();
    let choice = |i: usize| {
        let (a, b) = (of(&a, i)?, of(&b, i)?);
        Some(match of(&condition, i)? {
            Element::Number(0) => b,
            Element::Number(_) => a,
            _ if a == b => a,
            _ => Element::Unknown,
        })
    };
    (0..count).map(choice).collect()
}

fn pairwise(node: &Known<'_>, operator: fn(&Element, &Element) -> Element) -> Option<Vec<Element>> {
    let (a, b) = (node.elements(0)?, node.elements(1)?);
    let count = match (a.len(), b.len()) {
        (n, m) if n == m => n,
        (1, n) | (n, 1) => n,
        _ => return None,
    };
    let at = |v: &[Element], i: usize| v[if v.len() == 1 { 0 } else { i }].clone();
    Some((0..count).map(|i| operator(&at(&a, i), &at(&b, i))).collect())
}
