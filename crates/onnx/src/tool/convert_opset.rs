//! Another version of the standard operators.

use kvant_container::onnx::ModelProto;

use super::{ToolError, inlined};
use crate::graph::check::{LEAST_OPSET, MOST_OPSET};
use crate::graph::{STANDARD_DOMAIN, opset};
use crate::pass::upgrade_opset;

/// Raises the version of the standard operators to `to`; functions of the model's own become their nodes before. Returns the version that the
/// model had. A model that has the version already stays as it is.
///
/// # Errors
/// [`ToolError::LowerOpset`] for an older version, [`ToolError::UnknownOpset`] for one whose changes are not known, and an operator that the
/// newer version cannot express.
pub fn convert_opset(model: &mut ModelProto, to: i64) -> Result<i64, ToolError> {
    let from = opset(model, STANDARD_DOMAIN).unwrap_or(1);
    if !(LEAST_OPSET..=MOST_OPSET).contains(&to) {
        return Err(ToolError::UnknownOpset(to));
    }
    if to < from {
        return Err(ToolError::LowerOpset { from, to });
    }
    if to > from {
        let mut made = inlined(model)?;
        upgrade_opset(&mut made, to)?;
        *model = made;
    }
    Ok(from)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{check, node};
    use crate::test_models::model;

    #[test]
    fn opset_is_raised_and_never_lowered() {
        let made = || model(13, vec![node("ReduceMean", "r", &["x"], &["y"])], vec![], &["x"], &["y"]);
        let mut raised = made();
        assert_eq!(convert_opset(&mut raised, 18).unwrap(), 13);
        assert_eq!((opset(&raised, ""), check(&raised)), (Some(18), Ok(())));
        let mut same = made();
        convert_opset(&mut same, 13).unwrap();
        assert_eq!(same, made());
        assert!(matches!(convert_opset(&mut same, 11), Err(ToolError::LowerOpset { from: 13, to: 11 })));
        assert!(matches!(convert_opset(&mut same, 99), Err(ToolError::UnknownOpset(99))));
        assert_eq!(same, made());
    }
}
