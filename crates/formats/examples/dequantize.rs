//! Writes the values of a quantized checkpoint, for comparison with other loaders.
//!
//! ```text
//! dequantize MODEL OUT
//! ```
//!
//! `OUT/model.safetensors` receives the weights as `f32`, fused experts as `[experts, out, in]`; `OUT/activations.json` what
//! the checkpoint says of activations.

use kvant_container::{Checkpoint, Dtype, Durability, Layout, TensorDeclaration, Writer};
use kvant_formats::import::{self, Import, StoredActivation};
use kvant_numeric::simd::Isa;
use kvant_weights::weight::{Band, WeightMatrix};
use kvant_weights::weight::{ImportedTensor, Stored};
use serde_json::{Map, Value, json};
use std::error::Error;
use std::path::Path;
use std::sync::Arc;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [model, out] = arguments.as_slice() else {
        return Err("usage: dequantize MODEL OUT".into());
    };
    let checkpoint = Checkpoint::open(Path::new(model))?;
    let import = import::open(&checkpoint)?;
    let packed: Vec<(&ImportedTensor<'_>, Vec<WeightMatrix<'_>>)> =
        import.tensors().iter().filter_map(|tensor| Some((tensor, matrices(tensor)?))).collect();
    let declarations = packed.iter().map(|(tensor, matrices)| {
        let (count, rows, columns) = (matrices.len(), matrices[0].rows, matrices[0].columns);
        let shape = if count == 1 { vec![rows, columns] } else { vec![count, rows, columns] };
        TensorDeclaration::new(tensor.meta.name.clone(), Dtype::F32, shape)
    });
    let writer = Writer::create(Path::new(out), Layout::new(declarations.collect(), u64::MAX, Default::default())?)?;
    for (index, (_, matrices)) in packed.iter().enumerate() {
        let mut values = Vec::new();
        matrices.iter().for_each(|matrix| {
            matrix.read(Isa::best(), &Band { rows: 0..matrix.rows, columns: 0..matrix.columns }, &mut values);
        });
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        writer.write_at(index, 0, &bytes)?;
    }
    writer.finish(Durability::Process)?;
    std::fs::write(Path::new(out).join("activations.json"), activations(&import).to_string())?;
    Ok(())
}

/// The matrices of a packed tensor.
fn matrices<'a>(tensor: &ImportedTensor<'a>) -> Option<Vec<WeightMatrix<'a>>> {
    match &tensor.stored {
        Stored::Plain(_) => None,
        Stored::Packed(matrices) => Some(matrices.iter().map(|m| WeightMatrix::packed(Arc::clone(m))).collect()),
    }
}

/// Everything that is said, by module and by block.
fn activations(import: &Import<'_>) -> Value {
    let mut all = Map::new();
    for tensor in import.tensors() {
        let name = tensor.meta.name.as_str();
        let module = name.strip_suffix(".weight").unwrap_or(name);
        if let Some(found) = import.activations(module) {
            all.insert(module.to_owned(), json!({"input": said(&found.input), "output": said(&found.output)}));
        }
    }
    for (block, found) in (0..1000).filter_map(|block| Some((block, import.attention(block)?))) {
        let said = json!({
            "query": said(&found.query), "key": said(&found.key), "value": said(&found.value),
            "probabilities": said(&found.probabilities),
        });
        all.insert(block.to_string(), said);
    }
    Value::Object(all)
}

fn said(found: &Option<StoredActivation>) -> Value {
    let Some(found) = found else { return Value::Null };
    json!({"scheme": found.scheme.to_string(), "parameters": found.parameters})
}
