//! Quantized checkpoints of all layouts, made of a model, and their conversion.

use crate::common::{Tensor, quantize, scheme, write};
use kvant_checkpoint::engine::{self, Output, Silent, Start};
use kvant_checkpoint::gguf::run::run;
use kvant_checkpoint::gguf::{Accepted, GgufPlan, GgufRecipe};
use kvant_checkpoint::plan::{CalibratedPlan, Plan, PlanError};
use kvant_checkpoint::recipe::Settings;
use kvant_container::gguf::is_gguf;
use kvant_container::{Checkpoint, Durability};
use kvant_formats::format::OutputFormat;
use kvant_formats::transcode::{Conversion, ConversionTarget, FloatType};
use kvant_gguf::model::{GgufPlanError, restore};
use serde_json::{Value, json};
use std::path::Path;
use std::sync::atomic::AtomicBool;

/// A layout with a scheme in it.
pub struct Source {
    /// Its name in the table.
    pub name: &'static str,
    export: OutputFormat,
    scheme: &'static str,
    /// The tensors of a file that get the scheme.
    tensors: &'static str,
    /// The action on the checkpoint then.
    then: fn(&Path),
}

const fn source(name: &'static str, export: OutputFormat, scheme: &'static str) -> Source {
    Source { name, export, scheme, tensors: "*layers.0.*_proj", then: |_| {} }
}

/// A GGUF file with layers of a type.
const fn gguf(name: &'static str, kind: &'static str) -> Source {
    source(name, OutputFormat::Gguf, kind)
}

/// The same with a type whose blocks are of 256: of the models, Mixtral alone has such rows.
const fn wide(name: &'static str, kind: &'static str) -> Source {
    Source { tensors: "blk.0.ffn_down_exps", ..gguf(name, kind) }
}

/// Every layout that is read, with the schemes that it is used for.
pub const SOURCES: &[Source] = &[
    source("awq, 4 bits", OutputFormat::AWQ, "uint4:g32:zp"),
    source("awq, symmetric", OutputFormat::AWQ, "int4:g32"),
    source("gptq, 4 bits", OutputFormat::GPTQ, "int4:g32"),
    source("gptq_v2, zero points", OutputFormat::GPTQ_V2, "uint4:g32:zp"),
    Source { then: shuffle_groups, ..source("gptq, activation order", OutputFormat::GPTQ, "int4:g32") },
    source("gptq, 8 bits", OutputFormat::GPTQ, "int8:g32"),
    source("gptq_v2, 3 bits", OutputFormat::GPTQ_V2, "int3:g32"),
    source("quark int4, f16 scales", OutputFormat::QUARK, "int4:g32:f16"),
    source("quark int4, bf16 scales", OutputFormat::QUARK, "int4:g32:bf16"),
    source("quark uint4", OutputFormat::QUARK, "uint4:g32:f16:zp"),
    source("compressed-tensors W4A16", OutputFormat::COMPRESSED_TENSORS, "int4:g32:f16"),
    source("compressed-tensors W4A16_ASYM", OutputFormat::COMPRESSED_TENSORS, "int4:g32:f16:zp"),
    source("compressed-tensors W8A8", OutputFormat::COMPRESSED_TENSORS, "W8A8"),
    source("fp8, tensor", OutputFormat::FP8, "e4m3:tensor+e4m3:tensor!dynamic"),
    source("fp8, blocks", OutputFormat::FP8, "FP8_BLOCK"),
    source("quark ptpc_fp8", OutputFormat::QUARK, "ptpc_fp8"),
    source("compressed-tensors FP8_DYNAMIC", OutputFormat::COMPRESSED_TENSORS, "FP8_DYNAMIC"),
    source("compressed-tensors FP8_BLOCK", OutputFormat::COMPRESSED_TENSORS, "e4m3:b128x128:f32+e4m3:g128!dynamic"),
    source("quark mxfp4", OutputFormat::QUARK, "mxfp4"),
    source("compressed-tensors MXFP4A16", OutputFormat::COMPRESSED_TENSORS, "MXFP4A16"),
    source("compressed-tensors MXFP8", OutputFormat::COMPRESSED_TENSORS, "MXFP8"),
    source("quark nvfp4 weights", OutputFormat::QUARK, "e2m1:g16:e4m3:f32"),
    Source { then: as_modelopt, ..source("modelopt NVFP4 weights", OutputFormat::QUARK, "e2m1:g16:e4m3:f32") },
    source("compressed-tensors NVFP4A16", OutputFormat::COMPRESSED_TENSORS, "NVFP4A16"),
    gguf("gguf Q4_0", "Q4_0"),
    gguf("gguf Q4_1", "Q4_1"),
    Source { then: as_rounded_file, ..source("gguf Q4_1 of awq", OutputFormat::AWQ, "uint4:g32:zp") },
    gguf("gguf Q5_0", "Q5_0"),
    gguf("gguf Q8_0", "Q8_0"),
    gguf("gguf MXFP4", "MXFP4"),
    gguf("gguf NVFP4", "NVFP4"),
    Source { then: as_file, ..source("gguf NVFP4 of quark", OutputFormat::QUARK, "e2m1:g16:e4m3:f32") },
    gguf("gguf IQ4_NL", "IQ4_NL"),
    wide("gguf IQ4_XS", "IQ4_XS"),
    wide("gguf Q2_K", "Q2_K"),
    wide("gguf Q4_K", "Q4_K"),
    wide("gguf Q6_K", "Q6_K"),
    wide("gguf TQ2_0", "TQ2_0"),
];

impl Source {
    /// Makes the checkpoint, with the first block quantized: the others would tell nothing more. Whether it can be made.
    pub fn make(&self, model: &Path, out: &Path) -> bool {
        let exclude = vec!["*layers.[1-3].*".to_owned()];
        if self.export == OutputFormat::Gguf {
            return self.make_file(model, out);
        }
        let settings = Settings { format: Some(self.export), exclude, ..scheme(self.scheme) };
        quantize(model, out, &settings, 1).unwrap_or_else(|e| panic!("{}: {e}", self.name));
        (self.then)(out);
        out.exists()
    }

    /// Makes a file, whose columns decide whether it is of the type.
    fn make_file(&self, model: &Path, out: &Path) -> bool {
        let overrides = vec![format!("{}={}", self.tensors, self.scheme).parse().unwrap()];
        let settings = Settings { format: Some(self.export), overrides, ..scheme("F32") };
        let recipe = GgufRecipe::of(&settings, &Settings::default()).unwrap().unwrap();
        let checkpoint = Checkpoint::open(model).unwrap();
        match GgufPlan::new(&checkpoint, recipe, "model.gguf") {
            Ok(plan) if plan.quantized() == 0 => return false,
            Ok(plan) => write_file(&plan, &checkpoint, model, out),
            Err(GgufPlanError::Family { .. } | GgufPlanError::Columns { .. } | GgufPlanError::IdleOverride { .. }) => {
                return false;
            }
            Err(other) => panic!("{}: {other}", self.name),
        }
        true
    }
}

/// Opens a checkpoint, or a GGUF file as one.
pub fn open(path: &Path) -> Checkpoint {
    if is_gguf(path) { restore::open(path).unwrap() } else { Checkpoint::open(path).unwrap() }
}

/// Writes a GGUF file.
pub fn write_file(plan: &GgufPlan, checkpoint: &Checkpoint, source: &Path, out: &Path) {
    let Start::Working(output) = Output::begin(plan, source, out, false).unwrap() else { panic!("finished") };
    run(plan, checkpoint, &output, 2, &AtomicBool::new(false), &Silent).unwrap();
    output.finish(plan, checkpoint, Durability::Process).unwrap();
}

/// A file with the codes of a checkpoint, where there is one of the family that holds them.
fn as_file(dir: &Path) {
    into_file(dir, false);
}

/// The same, with minima rounded.
fn as_rounded_file(dir: &Path) {
    into_file(dir, true);
}

fn into_file(dir: &Path, requantize: bool) {
    let file = dir.with_extension("gguf");
    let checkpoint = Checkpoint::open(dir).unwrap();
    let made = GgufPlan::convert(&checkpoint, Accepted::requantizing(requantize), "model.gguf")
        .map(|plan| write_file(&plan, &checkpoint, dir, &file));
    drop(checkpoint);
    std::fs::remove_dir_all(dir).unwrap();
    match made {
        Ok(()) => std::fs::rename(file, dir).unwrap(),
        Err(GgufPlanError::Family { .. } | GgufPlanError::Conversion { .. }) => {}
        Err(other) => panic!("{other}"),
    }
}

/// Every target.
pub fn targets() -> Vec<ConversionTarget> {
    let codes = ConversionTarget::names().filter_map(|name| match name.parse::<ConversionTarget>().unwrap() {
        ConversionTarget::Float(_) | ConversionTarget::Fake => None,
        target => Some(target),
    });
    codes.chain([ConversionTarget::Float(Some(FloatType::F32))]).collect()
}

/// Converts a checkpoint.
pub fn convert(
    source: &Path,
    out: &Path,
    target: ConversionTarget,
    requantize: bool,
    threads: usize,
) -> Result<CalibratedPlan, PlanError> {
    let checkpoint = open(source);
    let plan = Plan::convert(&checkpoint, &Conversion { target, requantize, max_shard_size: 1 << 30 })?;
    if let Start::Working(output) = Output::begin(&plan, source, out, false).unwrap() {
        engine::run(&plan, &checkpoint, &output, threads, &AtomicBool::new(false), &Silent).unwrap();
        output.finish(&plan, &checkpoint, Durability::Process).unwrap();
    }
    Ok(plan)
}

/// Writes a checkpoint anew with other tensors and another configuration.
pub fn rewrite(dir: &Path, change: impl Fn(Tensor) -> Tensor, describe: impl Fn(&mut Value)) {
    let (mut config, tensors): (Value, Vec<Tensor>) = {
        let checkpoint = Checkpoint::open(dir).unwrap();
        let tensor = |view: kvant_container::TensorView<'_>| {
            (view.name().to_owned(), view.dtype(), view.shape().to_vec(), view.bytes().to_vec())
        };
        (checkpoint.config().unwrap().unwrap(), checkpoint.tensors().map(tensor).map(&change).collect())
    };
    describe(&mut config);
    let tokenizer = std::fs::read(dir.join("tokenizer.json"));
    std::fs::remove_dir_all(dir).unwrap();
    write(dir, &config, &tensors);
    if let Ok(tokenizer) = tokenizer {
        std::fs::write(dir.join("tokenizer.json"), tokenizer).unwrap();
    }
}

/// Groups as activation order leaves them: channels of all groups anywhere.
pub fn shuffle_groups(dir: &Path) {
    let turn = |(name, dtype, shape, bytes): Tensor| match name.ends_with("g_idx") {
        true => {
            let groups: Vec<[u8; 4]> = bytes.as_chunks::<4>().0.to_vec();
            let count = groups.len();
            let turned = (0..count).flat_map(|i| groups[i * 37 % count]).collect();
            (name, dtype, shape, turned)
        }
        false => (name, dtype, shape, bytes),
    };
    rewrite(dir, turn, |config| config["quantization_config"]["desc_act"] = json!(true));
}

fn as_modelopt(dir: &Path) {
    let quantization = json!({"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ["lm_head"]});
    rewrite(dir, |tensor| tensor, |config| config["quantization_config"] = quantization.clone());
}
