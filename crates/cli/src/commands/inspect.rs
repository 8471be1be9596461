//! `kvant inspect`: what a checkpoint holds.

use crate::args::InspectArgs;
use crate::escape::printable;
use crate::failure::{Failure, Kind};
use crate::pattern;
use crate::printer::Printer;
use crate::quantization::{self, Quantization};
use crate::table::{Align, Table};
use crate::{gguf, json_lines, model, onnx, size};
use kvant_container::gguf::means_gguf;
use kvant_container::{Checkpoint, TensorView};
use kvant_llm::model_config::ModelConfig;
use kvant_llm::network::{Network, Notice, TensorMeta};
use kvant_quant::counts::number;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Looks at a checkpoint; reads headers and config.json only.
///
/// # Errors
/// Whatever is wrong with the files.
pub fn run(args: &InspectArgs, printer: &Printer) -> Result<(), Failure> {
    if onnx::is_graph(&args.model) {
        return onnx::inspect::run(&args.model, args.all, printer);
    }
    if means_gguf(&args.model) {
        return gguf::inspect::run(&args.model, args.all, printer);
    }
    let checkpoint = model::open(&args.model)?;
    let found = Found::read(&checkpoint)?;
    if printer.is_json() {
        return printer.data(&found.json_text());
    }
    let tensors = if args.all { found.table_of_all() } else { found.table_of_groups() };
    let (width, types) = (printer.width(), found.table_of_types());
    printer.data(&format!("{}\n\n{}\n\n{}", found.head(), types.render(width), tensors.render(width)))?;
    found.notices().iter().for_each(|notice| printer.note(notice));
    Ok(())
}

/// What is known of a checkpoint.
struct Found<'a> {
    checkpoint: &'a Checkpoint,
    /// `None` without a config.json.
    config: Option<ModelConfig>,
    network: Network,
    quantization: Option<Quantization>,
}

/// Tensors of one type.
#[derive(Default)]
struct Share {
    tensors: usize,
    elements: u64,
    bytes: u64,
}

impl<'a> Found<'a> {
    fn read(checkpoint: &'a Checkpoint) -> Result<Found<'a>, Failure> {
        let json = checkpoint.config()?;
        let config = json.as_ref().map(ModelConfig::from_json).transpose();
        let config = config.map_err(|error| Failure::new(Kind::Invalid, error.to_string()))?;
        let meta = |tensor: TensorView<'_>| TensorMeta::new(tensor.name(), tensor.shape(), tensor.dtype().to_string());
        let metas: Vec<TensorMeta> = checkpoint.tensors().map(meta).collect();
        let network = Network::recognise(config.as_ref().unwrap_or(&ModelConfig::default()), &metas);
        Ok(Found { checkpoint, config, network, quantization: quantization::find(checkpoint, json.as_ref()) })
    }

    fn architecture(&self) -> Option<&str> {
        let config = self.config.as_ref()?;
        config.architectures.first().or(config.model_types.first()).map(String::as_str)
    }

    fn family(&self) -> Option<&'static str> {
        self.network.family().map(|family| family.name)
    }

    /// Whether head and embedding share a weight; not known without a configuration.
    fn tied(&self) -> Option<bool> {
        self.config.as_ref().map(|_| self.network.is_tied())
    }

    /// Without a config.json there is nothing to compare names with; quantization has its own place.
    fn notices(&self) -> Vec<String> {
        let tells = |notice: &&Notice| self.config.is_some() && !matches!(notice, Notice::AlreadyQuantized { .. });
        self.network.notices().iter().filter(tells).map(ToString::to_string).collect()
    }

    fn bytes(&self) -> u64 {
        self.checkpoint.tensors().map(|tensor| tensor.byte_len()).sum()
    }

    fn shares(&self) -> BTreeMap<String, Share> {
        let mut shares: BTreeMap<String, Share> = BTreeMap::new();
        for tensor in self.checkpoint.tensors() {
            let share = shares.entry(tensor.dtype().to_string()).or_default();
            share.tensors += 1;
            share.elements += elements(&tensor);
            share.bytes += tensor.byte_len();
        }
        shares
    }

    fn head(&self) -> String {
        let files = self.checkpoint.shards().len();
        let tied = self.tied().map(|tied| if tied { "yes" } else { "no" });
        let size = format!("{} in {}", size::bytes(self.bytes()), number(files, "file"));
        let lines = [
            ("architecture", self.architecture().unwrap_or("unknown").to_owned()),
            ("family", self.family().unwrap_or("unknown").to_owned()),
            ("tied head", tied.unwrap_or("unknown").to_owned()),
            ("linear layers", self.linears_text()),
            ("size", size),
            ("quantization", self.quantization_text()),
        ];
        printable(&lines.map(|(name, value)| format!("{name:<13}  {value}")).join("\n"))
    }

    fn linears_text(&self) -> String {
        let linears = self.network.linears().len();
        match (self.network.experts().len(), &self.quantization) {
            (0, None) => linears.to_string(),
            (0, Some(_)) => format!("{linears} with weights in floats"),
            (experts, _) => format!("{linears}, and {experts} tensors of experts"),
        }
    }

    fn quantization_text(&self) -> String {
        let Some(found) = &self.quantization else {
            return "none".to_owned();
        };
        let evidence =
            found.evidence.iter().map(|(sign, count)| format!("{count} {sign}")).collect::<Vec<_>>().join(", ");
        let lines = found.details.iter().cloned().chain((!evidence.is_empty()).then_some(evidence));
        lines.fold(found.method.clone(), |text, line| format!("{text}\n{:<13}    {line}", ""))
    }

    fn table_of_types(&self) -> Table {
        use Align::{Left, Right};
        let mut table = Table::new(&[("type", Left), ("tensors", Right), ("elements", Right), ("bytes", Right)]);
        for (dtype, share) in self.shares() {
            table.push([dtype, share.tensors.to_string(), share.elements.to_string(), size::bytes(share.bytes)]);
        }
        table
    }

    fn table_of_all(&self) -> Table {
        use Align::{Left, Right};
        let mut table = Table::new(&[("tensor", Left), ("type", Left), ("shape", Left), ("bytes", Right)]);
        for tensor in self.checkpoint.tensors() {
            let (dtype, shape) = (tensor.dtype().to_string(), size::shape(tensor.shape()));
            table.push([tensor.name().to_owned(), dtype, shape, size::bytes(tensor.byte_len())]);
        }
        table
    }

    fn table_of_groups(&self) -> Table {
        use Align::{Left, Right};
        let titles = [("tensors", Left), ("n", Right), ("type", Left), ("shape", Left), ("bytes", Right)];
        let mut table = Table::new(&titles);
        let key = |tensor: &TensorView<'_>| (tensor.dtype().to_string(), size::shape(tensor.shape()));
        let item = |tensor: TensorView<'_>| (tensor.name().to_owned(), key(&tensor), tensor.byte_len());
        for group in pattern::group(self.checkpoint.tensors().map(item)) {
            let (dtype, shape) = &group.key;
            table.push([&group.to_string(), &group.count.to_string(), dtype, shape, &size::bytes(group.bytes)]);
        }
        table
    }

    /// One object, with a line for every tensor.
    fn json_text(&self) -> String {
        let share = |share: &Share| json!({"tensors": share.tensors, "elements": share.elements, "bytes": share.bytes});
        let types: BTreeMap<String, Value> = self.shares().iter().map(|(dtype, s)| (dtype.clone(), share(s))).collect();
        let files: Vec<_> = self.checkpoint.shards().iter().map(|shard| shard.path().display().to_string()).collect();
        let head = json!({
            "model": self.checkpoint.path().display().to_string(),
            "architecture": self.architecture(),
            "family": self.family(),
            "tied": self.tied(),
            "bytes": self.bytes(),
            "files": files,
            "metadata": self.checkpoint.metadata(),
            "quantization": self.quantization,
            "types": types,
            "notices": self.notices(),
        });
        let tensors = self.checkpoint.tensors().map(|tensor| {
            json!({
                "name": tensor.name(), "dtype": tensor.dtype().to_string(), "shape": tensor.shape(),
                "bytes": tensor.byte_len(), "file": tensor.file().display().to_string(),
            })
        });
        json_lines::object("inspect", &head, "tensors", tensors)
    }
}

fn elements(tensor: &TensorView<'_>) -> u64 {
    // The header's check bounds the product by the file's length.
    tensor.byte_len().saturating_mul(8) / tensor.dtype().bitsize() as u64
}
