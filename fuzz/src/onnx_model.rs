//! Any bytes as an ONNX model: what parses is checked or refused, what passes the check goes through every pass and through
//! shape inference without a panic, and passes the check again.

use kvant_container::Diagnostic;
use kvant_container::onnx::{Bytes, ModelProto, parse};
use kvant_onnx::graph::check;
use kvant_onnx::pass::{ALL, Context, Selection, simplify, upgrade_opset};
use kvant_onnx::shape::infer;

/// See above.
pub fn run(bytes: &[u8]) {
    let Ok(model) = parse(&Bytes::copy_from_slice(bytes)) else { return };
    let _ = infer(&model);
    match check(&model) {
        Ok(()) => rewrite(model),
        Err(error) => assert!(!error.to_string().contains('\n') && error.hint().is_some_and(|hint| !hint.is_empty())),
    }
}

fn rewrite(model: ModelProto) {
    let mut all = Selection::default();
    for pass in ALL {
        let known = all.set(pass.name, true);
        assert!(known.is_ok());
    }
    let mut newer = model.clone();
    let upgraded = upgrade_opset(&mut newer, 21).is_ok();
    for mut model in std::iter::once(model).chain(upgraded.then_some(newer)) {
        if simplify(&mut model, &all, &Context::default()).is_ok() {
            assert_eq!(check(&model), Ok(()));
        }
    }
}
