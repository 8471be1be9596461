//! The samples that options name, opened for the inputs of a graph.

use super::one_source;
use crate::args::RecipeArgs;
use crate::failure::{Failure, Kind};
use crate::printer::Printer;
use kvant_container::onnx::GraphProto;
use kvant_onnx::data::{DataOptions, Samples, Source, inputs};

pub(super) use super::runtime as runtime_of;

/// The calibration data, and where they are from.
///
/// # Errors
/// No data, or such as do not fit the graph.
pub fn calibration(args: &RecipeArgs, graph: &GraphProto, printer: &Printer) -> Result<(Samples, Source), Failure> {
    let source = source(args)?.ok_or_else(no_data)?;
    let samples = opened(&source, args, graph, Some(args.calibration.num_samples), None)?;
    if samples.random() {
        printer.note("the calibration data are made up: ranges will not fit real inputs, and accuracy will suffer");
    }
    Ok((samples, source))
}

/// Where the data are; `None` where there are none.
///
/// # Errors
/// Several of them.
pub fn source(args: &RecipeArgs) -> Result<Option<Source>, Failure> {
    let path = one_source(&args.calibration.calib)?;
    Ok(path.map(|path| path.to_string_lossy().parse().unwrap_or(Source::Path(path.to_path_buf()))))
}

/// Opens data for the inputs of a graph; `labels` is the array among them that is for none.
///
/// # Errors
/// Data that do not fit the graph.
pub fn opened(
    source: &Source,
    args: &RecipeArgs,
    graph: &GraphProto,
    num_samples: Option<usize>,
    labels: Option<String>,
) -> Result<Samples, Failure> {
    let preprocessing = args.onnx.preprocess.as_deref().map(str::parse).transpose()?;
    let options = DataOptions { num_samples, preprocessing, seed: args.calibration.seed, labels };
    Ok(source.open(&inputs(graph), &options)?)
}

fn no_data() -> Failure {
    let hint = "give samples with --data: an .npz with one array for each input, a folder of .npy or images; or `--data random`";
    Failure::new(Kind::Usage, "this recipe needs calibration data").with_hint(Some(hint.to_owned()))
}
