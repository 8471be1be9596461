//! `kvant list`: what can be typed behind it.

use clap::{Args, ValueEnum};

/// `kvant list`.
#[derive(Debug, Args)]
pub struct ListArgs {
    /// Which table
    pub topic: Topic,
}

/// A table that can be listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Topic {
    /// Schemes with names, for --scheme and --override
    Schemes,
    /// Number formats, the first part of a scheme's spelling
    Formats,
    /// Layouts of the output, for --format
    Exports,
    /// Range statistics, a part of a scheme's spelling
    Observers,
    /// Algorithms that make quantized weights better, for --algorithm
    Algorithms,
    /// What can be set of algorithms, with the usual values
    AlgorithmOptions,
    /// Model architectures with a description
    Families,
    /// Recipes for ONNX graphs, for --preset
    Presets,
    /// Rewrites of ONNX graphs, for --enable-pass and --disable-pass
    Passes,
    /// Element types of ONNX graphs, for --activation and --weight
    Elements,
    /// Ways to ranges of ONNX activations, for --calibration-method
    CalibrationMethods,
    /// What `kvant verify` looks at
    Checks,
    /// Loaders that `kvant verify` knows, and the versions that its rules were read from
    Loaders,
}
