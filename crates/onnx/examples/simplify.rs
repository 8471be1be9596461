//! Simplifies an ONNX model: `simplify IN.onnx OUT.onnx [none] [+PASS | -PASS | opset=N]...`. Prints how often each pass
//! rewrote something, as JSON.
#![allow(clippy::print_stdout)]

use std::error::Error;
use std::path::Path;

use kvant_container::onnx::{ExternalData, read, write};
use kvant_onnx::graph::check;
use kvant_onnx::pass::{Context, Selection, simplify, upgrade_opset};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [input, output, changes @ ..] = &arguments[..] else {
        return Err("simplify IN.onnx OUT.onnx [none] [+PASS | -PASS | opset=N]...".into());
    };
    let mut selection = Selection::default();
    let mut opset = None;
    for change in changes {
        match (change.as_str(), change.split_at_checked(1)) {
            ("none", _) => selection = Selection::none(),
            (_, Some(("+", name))) => selection.set(name, true)?,
            (_, Some(("-", name))) => selection.set(name, false)?,
            (change, _) => {
                opset = Some(change.strip_prefix("opset=").ok_or("expected none, +PASS, -PASS or opset=N")?.parse()?)
            }
        }
    }
    let mut model = read(Path::new(input))?;
    check(&model)?;
    if let Some(opset) = opset {
        upgrade_opset(&mut model, opset)?;
    }
    let counts = simplify(&mut model, &selection, &Context::default())?;
    check(&model)?;
    println!("{}", serde_json::to_string(&counts.into_iter().collect::<std::collections::BTreeMap<_, _>>())?);
    Ok(write(model, Path::new(output), ExternalData::Auto)?)
}
