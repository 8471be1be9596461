//! Runs within a budget of memory: tensors that are known without the engine, and the others in groups.
//!
//! An engine holds all wanted tensors of a run at a time. Where they are more bytes than the budget, the sample is run again
//! for each group of them. Sizes are learned as tensors come by; until then small groups are run.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Arc;

use super::error::RuntimeError;
use super::session::{Session, Visit};
use crate::data::Array;

/// A tensor of unknown size is counted as this part of the budget.
const UNKNOWN: u64 = 64;

/// An engine's session behind a budget.
pub(crate) struct Grouped {
    engine: Box<dyn Session>,
    /// Tensors that never change.
    constants: Arc<HashMap<String, Array<'static>>>,
    /// Bytes of the tensors seen or declared.
    sizes: HashMap<String, u64>,
    budget: u64,
}

impl Grouped {
    pub(crate) fn new(
        engine: Box<dyn Session>,
        constants: impl Into<Arc<HashMap<String, Array<'static>>>>,
        sizes: HashMap<String, u64>,
        budget: u64,
    ) -> Self {
        Self { engine, constants: constants.into(), sizes, budget: budget.max(1) }
    }

    /// The first group of the tensors, and the rest.
    fn split<'w>(&self, wanted: &'w [String]) -> (&'w [String], &'w [String]) {
        let mut sum = 0u64;
        let fits = |name: &String| {
            sum = sum.saturating_add(self.sizes.get(name).copied().unwrap_or((self.budget / UNKNOWN).max(1)));
            sum <= self.budget
        };
        let count = wanted.iter().map(fits).take_while(|&fits| fits).count();
        wanted.split_at(count.clamp(1, wanted.len()))
    }
}

impl Session for Grouped {
    fn name(&self) -> String {
        self.engine.name()
    }

    fn run(
        &mut self,
        inputs: &[(&str, Array<'_>)],
        wanted: &[String],
        visit: &mut Visit<'_>,
    ) -> Result<(), RuntimeError> {
        let mut left = Vec::with_capacity(wanted.len());
        for name in wanted {
            let given = inputs.iter().find(|(input, _)| input == name).map(|(_, array)| array.view());
            let Some(array) = given.or_else(|| self.constants.get(name).map(Array::view)) else {
                left.push(name.clone());
                continue;
            };
            if visit(name, &widened(array)).is_break() {
                return Ok(());
            }
        }
        let mut left = &left[..];
        let mut flow = ControlFlow::Continue(());
        while !left.is_empty() && flow.is_continue() {
            let (group, rest) = self.split(left);
            let sizes = &mut self.sizes;
            self.engine.run(inputs, group, &mut |name, array| {
                let array = widened(array.view());
                sizes.insert(name.to_owned(), bytes(&array));
                flow = visit(name, &array);
                flow
            })?;
            left = rest;
        }
        Ok(())
    }
}

/// Bytes of an array as it is shown.
fn bytes(array: &Array<'_>) -> u64 {
    let bits = kvant_container::onnx::data_type_bits(array.data_type()).unwrap_or(64);
    (array.len() as u64).saturating_mul(bits / 8)
}

/// Floats as single precision.
pub(crate) fn widened(array: Array<'_>) -> Array<'_> {
    use crate::data::Values;
    match array.values() {
        Values::F16(_) | Values::Bf16(_) | Values::F64(_) => {
            let values = Values::F32(array.to_f32s().into_owned().into());
            Array::new(array.shape().to_vec(), values).unwrap_or(array)
        }
        _ => array,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives each tensor 100 bytes, and counts the runs.
    struct Fake(std::rc::Rc<std::cell::RefCell<Vec<usize>>>);

    impl Session for Fake {
        fn name(&self) -> String {
            "fake".to_owned()
        }

        fn run(
            &mut self,
            _: &[(&str, Array<'_>)],
            wanted: &[String],
            visit: &mut Visit<'_>,
        ) -> Result<(), RuntimeError> {
            self.0.borrow_mut().push(wanted.len());
            let array = Array::of(vec![25], vec![0.0f32; 25]).unwrap();
            let _ = wanted.iter().try_for_each(|name| visit(name, &array));
            Ok(())
        }
    }

    #[test]
    fn groups_stay_within_the_budget_once_sizes_are_known() {
        let runs = std::rc::Rc::new(std::cell::RefCell::new(Vec::new()));
        let constants = HashMap::from([("w".to_owned(), Array::of(vec![1], vec![2.0f32]).unwrap())]);
        let mut session = Grouped::new(Box::new(Fake(runs.clone())), constants, HashMap::new(), 320);
        let wanted: Vec<String> =
            ["x", "w"].map(str::to_owned).into_iter().chain((0..7).map(|i| i.to_string())).collect();
        let inputs = [("x", Array::of(vec![1], vec![1.0f32]).unwrap())];
        for _ in 0..2 {
            let mut seen = Vec::new();
            let visited = session.run(&inputs, &wanted, &mut |name, _| {
                seen.push(name.to_owned());
                ControlFlow::Continue(())
            });
            visited.unwrap();
            assert_eq!(seen, wanted);
        }
        assert_eq!(*runs.borrow(), [7, 3, 3, 1]);
    }

    #[test]
    fn break_stops_the_run() {
        let runs = std::rc::Rc::new(std::cell::RefCell::new(Vec::new()));
        let mut session = Grouped::new(Box::new(Fake(runs.clone())), HashMap::new(), HashMap::new(), 1);
        let mut seen = 0;
        let wanted = ["a", "b", "c"].map(str::to_owned);
        session
            .run(&[], &wanted, &mut |_, _| {
                seen += 1;
                if seen == 2 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            })
            .unwrap();
        assert_eq!((seen, runs.borrow().len()), (2, 2));
    }
}
