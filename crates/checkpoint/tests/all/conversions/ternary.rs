//! Ternary blocks are integers of two bits with plain scales, which other layouts hold.

use super::siblings::file_of_model;
use super::sources::{convert, open};
use crate::common::{llama, weight};
use kvant_checkpoint::conversion::measure;
use kvant_checkpoint::plan::PlanError;
use kvant_container::{Checkpoint, Dtype};
use kvant_formats::format::{FormatHandle, OutputFormat};
use kvant_formats::transcode::ConversionTarget;
use serde_json::json;
use std::path::{Path, PathBuf};

/// A Llama whose rows are two blocks of 256.
fn file_of(dir: &Path, kind: &str) -> PathBuf {
    let wide = |(name, dtype, shape, _): (String, Dtype, Vec<usize>, Vec<u8>)| {
        let shape: Vec<usize> =
            shape.iter().map(|size| if *size == 64 || *size == 128 { 512 } else { *size }).collect();
        weight(&name, dtype, &shape)
    };
    let stated = json!({
        "hidden_size": 512, "intermediate_size": 512, "num_attention_heads": 16, "num_key_value_heads": 1, "head_dim": 32,
    });
    let tensors: Vec<_> = llama(Dtype::F32).into_iter().map(wide).collect();
    file_of_model(dir, stated, &tensors, &[&format!("*_proj={kind}")])
}

#[test]
fn ternary_blocks_convert_exactly_to_two_bits() {
    for kind in ["TQ1_0", "TQ2_0"] {
        let dir = tempfile::tempdir().unwrap();
        let file = file_of(dir.path(), kind);
        for export in [OutputFormat::GPTQ, OutputFormat::GPTQ_V2, OutputFormat::QUARK, OutputFormat::COMPRESSED_TENSORS]
        {
            let out = dir.path().join(export.to_string());
            let plan = convert(&file, &out, ConversionTarget::Codes(export.checkpoint().unwrap()), false, 2).unwrap();
            assert!(plan.layers().iter().all(|layer| layer.scheme.to_string().starts_with("int2:g256")), "{export}");
            let errors = measure(&plan, &open(&file), &Checkpoint::open(&out).unwrap()).unwrap();
            assert!(errors.len() == 7 && errors.iter().all(|error| error.max == 0.0), "{kind} to {export}: {errors:?}");
        }
        match convert(&file, &dir.path().join("awq"), ConversionTarget::Codes(FormatHandle::AWQ), false, 1) {
            Err(PlanError::Conversion { reason, .. }) => assert!(reason.contains("4 bits, not of 2"), "{reason}"),
            other => panic!("{other:?}"),
        }
    }
}
