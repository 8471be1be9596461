//! Writes the values of a GGUF file's tensors, for comparison with other readers.
//!
//! ```text
//! gguf_values MODEL.gguf OUT
//! ```
//!
//! `OUT/model.safetensors` receives every tensor as `f32`, under its name in the file.

use kvant_container::gguf::{GgufFile, GgufTensor};
use kvant_container::{Dtype, Durability, Layout, TensorDeclaration, Writer};
use kvant_gguf::model::values::values;
use kvant_numeric::simd::Isa;
use std::error::Error;
use std::path::Path;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [model, out] = arguments.as_slice() else {
        return Err("usage: gguf_values MODEL.gguf OUT".into());
    };
    let file = GgufFile::open(Path::new(model))?;
    let declared = |tensor: GgufTensor<'_>| TensorDeclaration::new(tensor.name(), Dtype::F32, tensor.shape());
    let layout = Layout::new(file.tensors().map(declared).collect(), u64::MAX, Default::default())?;
    let writer = Writer::create(Path::new(out), layout)?;
    for (index, tensor) in file.tensors().enumerate() {
        let values = values(Isa::best(), tensor).ok_or("a type without a codec")?;
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        writer.write_at(index, 0, &bytes)?;
    }
    writer.finish(Durability::Process)?;
    Ok(())
}
