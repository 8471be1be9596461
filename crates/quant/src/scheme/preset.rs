//! The table of schemes with names that users know from other tools. Adding one is adding a row.

use super::LayerScheme;

/// Whose name it is, which decides the export that is the default.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// AMD Quark's.
    Quark,
    /// llm-compressor's and AutoRound's; found without regard to case where no name matches exactly.
    CompressedTensors,
}

/// A named scheme.
#[derive(Clone, Copy, Debug)]
pub struct Preset {
    /// The name.
    pub name: &'static str,
    /// The spelling of its layer scheme.
    pub spelling: &'static str,
    /// Whose name it is.
    pub dialect: Dialect,
    /// One line for `kvant list schemes`.
    pub about: &'static str,
}

impl Preset {
    /// The preset of that name.
    pub fn find(name: &str) -> Option<&'static Preset> {
        let in_any_case =
            |preset: &&Preset| preset.dialect == Dialect::CompressedTensors && preset.name.eq_ignore_ascii_case(name);
        PRESETS.iter().find(|preset| preset.name == name).or_else(|| PRESETS.iter().find(in_any_case))
    }

    /// Its scheme.
    ///
    /// # Errors
    /// None for the rows of the table, as a test makes sure.
    pub fn scheme(&self) -> Result<LayerScheme, super::SchemeError> {
        self.spelling.parse()
    }
}

const fn quark(name: &'static str, spelling: &'static str, about: &'static str) -> Preset {
    Preset { name, spelling, dialect: Dialect::Quark, about }
}

const fn llmc(name: &'static str, spelling: &'static str, about: &'static str) -> Preset {
    Preset { name, spelling, dialect: Dialect::CompressedTensors, about }
}

/// A name of AutoRound's that llm-compressor does not have. Both name schemes in the same way.
const fn auto_round(name: &'static str, spelling: &'static str, about: &'static str) -> Preset {
    llmc(name, spelling, about)
}

/// Every named scheme. Where Quark and the others use the same word, case distinguishes them: `mxfp4` is Quark's, `MXFP4`
/// llm-compressor's; they differ in the export that is the default.
pub const PRESETS: &[Preset] = &[
    quark("int4_wo_32", "int4:g32", "int4 weights, symmetric, groups of 32"),
    quark("int4_wo_64", "int4:g64", "int4 weights, symmetric, groups of 64"),
    quark("int4_wo_128", "int4:g128", "int4 weights, symmetric, groups of 128"),
    quark("int4_wo_per_channel", "int4:channel", "int4 weights, symmetric, one scale an output channel"),
    quark("int4_wa_64", "int4:g64+int4:g64!dynamic", "int4 weights and activations in groups of 64"),
    quark("uint4_wo_32", "uint4:g32:zp", "uint4 weights with zero points, groups of 32"),
    quark("uint4_wo_64", "uint4:g64:zp", "uint4 weights with zero points, groups of 64"),
    quark("uint4_wo_128", "uint4:g128:zp", "uint4 weights with zero points, groups of 128"),
    quark("uint4_wo_per_channel", "uint4:channel:zp", "uint4 weights with zero points, one scale an output channel"),
    quark("int8", "int8:tensor+int8:tensor!static", "int8 weights and activations per tensor"),
    quark("fp8", "e4m3:tensor+e4m3:tensor!static", "fp8 weights and activations per tensor"),
    quark("ptpc_fp8", "e4m3:channel+e4m3:channel!dynamic", "fp8 weights per channel, activations per token"),
    quark("mxfp4", "e2m1:g32:e8m0+e2m1:g32:e8m0!dynamic", "OCP MXFP4 weights and activations"),
    quark("mxfp4_weight_only", "e2m1:g32:e8m0", "OCP MXFP4 weights"),
    quark("mxfp6_e3m2", "e3m2:g32:e8m0+e3m2:g32:e8m0!dynamic", "OCP MXFP6 e3m2 weights and activations"),
    quark("mxfp6_e2m3", "e2m3:g32:e8m0+e2m3:g32:e8m0!dynamic", "OCP MXFP6 e2m3 weights and activations"),
    quark("mxfp4_mxfp6_e2m3", "e2m1:g32:e8m0+e2m3:g32:e8m0!dynamic", "OCP MXFP4 weights, MXFP6 e2m3 activations"),
    quark("mxfp4_fp8", "e2m1:g32:e8m0+e4m3:tensor!static", "OCP MXFP4 weights, fp8 activations per tensor"),
    quark("amdfp4", "e2m1:g16:e5m3+e2m1:g16:e5m3!dynamic", "fp4 in groups of 16 with e5m3 scales"),
    quark("amdfp4_g32", "e2m1:g32:e5m3+e2m1:g32:e5m3!dynamic", "fp4 in groups of 32 with e5m3 scales"),
    quark("amdfp4_global16", "e2m1:g16:e5m3:f32+e2m1:g16:e5m3:f32!local", "amdfp4 under an f32 scale of the tensor"),
    quark(
        "amdfp4_global32",
        "e2m1:g32:e5m3:f32+e2m1:g32:e5m3:f32!local",
        "amdfp4_g32 under an f32 scale of the tensor",
    ),
    quark("nvfp4", "e2m1:g16:e4m3:f32+e2m1:g16:e4m3:f32!local", "NVFP4 weights and activations"),
    quark("fp4_block16_scale_e4m3", "e2m1:g16:e4m3:f32+e2m1:g16:e4m3:f32!local", "another name of nvfp4"),
    quark("int4_fp8", "int4:channel/e4m3:tensor:f32+e4m3:tensor:f32!dynamic", "int4 of fp8 weights, fp8 activations"),
    quark("mx6", "mx6+mx6!dynamic", "MX6 weights and activations"),
    quark("mx9", "mx9+mx9!dynamic", "MX9 weights and activations"),
    quark("bfp16", "bfp16+bfp16!dynamic", "BFP16 weights and activations"),
    llmc("W2A16", "int2:g128", "int2 weights, groups of 128"),
    llmc("W3A16", "int3:g128", "int3 weights, groups of 128"),
    llmc("W4A16", "int4:g128", "int4 weights, symmetric, groups of 128"),
    llmc("W4A16_ASYM", "int4:g128:zp", "int4 weights with zero points, groups of 128"),
    llmc("W5A16", "int5:g128", "int5 weights, groups of 128"),
    llmc("W6A16", "int6:g128", "int6 weights, groups of 128"),
    llmc("W7A16", "int7:g128", "int7 weights, groups of 128"),
    llmc("W8A16", "int8:g128", "int8 weights, groups of 128"),
    llmc("W8A8", "int8:channel+int8:channel!dynamic", "int8 weights per channel, activations per token"),
    llmc("W4A8", "int4:g128+int8:channel!dynamic", "int4 weights in groups of 128, int8 activations per token"),
    llmc("W4AFP8", "int4:g128+e4m3:channel!dynamic", "int4 weights in groups of 128, fp8 activations per token"),
    llmc("INT8", "int8:channel+int8:channel!dynamic", "another name of W8A8"),
    llmc("FP8", "e4m3:tensor+e4m3:tensor!static", "fp8 weights and activations per tensor"),
    llmc("FP8_DYNAMIC", "e4m3:channel+e4m3:channel!dynamic", "fp8 weights per channel, activations per token"),
    llmc("FP8_BLOCK", "e4m3:b128x128+e4m3:g128!dynamic", "fp8 weights in 128x128 blocks, activations in groups of 128"),
    llmc("NVFP4", "e2m1:g16:e4m3:f32+e2m1:g16:e4m3:f32!local", "NVFP4 weights and activations"),
    llmc("NVFP4A16", "e2m1:g16:e4m3:f32", "NVFP4 weights"),
    llmc("MXFP4", "e2m1:g32:e8m0+e2m1:g32:e8m0!dynamic", "OCP MXFP4 weights and activations"),
    llmc("MXFP4A16", "e2m1:g32:e8m0", "OCP MXFP4 weights"),
    llmc("MXFP6A16", "e2m3:g32:e8m0", "OCP MXFP6 e2m3 weights"),
    llmc("MXFP6A8", "e2m3:g32:e8m0+e4m3:g32:e8m0!dynamic", "OCP MXFP6 e2m3 weights, MXFP8 activations"),
    llmc("MXFP8", "e4m3:g32:e8m0+e4m3:g32:e8m0!dynamic", "OCP MXFP8 weights and activations"),
    llmc("MXFP8A16", "e4m3:g32:e8m0", "OCP MXFP8 weights"),
    auto_round("W2A16G64", "int2:g64", "int2 weights, groups of 64"),
    auto_round("W2A16G32", "int2:g32", "int2 weights, groups of 32"),
    auto_round("W3A16G64", "int3:g64", "int3 weights, groups of 64"),
    auto_round("W3A16G32", "int3:g32", "int3 weights, groups of 32"),
    llmc("W4A16G128", "int4:g128", "another name of W4A16"),
    auto_round("W4A16G64", "int4:g64", "int4 weights, groups of 64"),
    auto_round("W4A16G32", "int4:g32", "int4 weights, groups of 32"),
    auto_round("W5A16G64", "int5:g64", "int5 weights, groups of 64"),
    auto_round("W5A16G32", "int5:g32", "int5 weights, groups of 32"),
    auto_round("W6A16G64", "int6:g64", "int6 weights, groups of 64"),
    auto_round("W6A16G32", "int6:g32", "int6 weights, groups of 32"),
    auto_round("W7A16G64", "int7:g64", "int7 weights, groups of 64"),
    auto_round("W7A16G32", "int7:g32", "int7 weights, groups of 32"),
    auto_round("W8A16G64", "int8:g64", "int8 weights, groups of 64"),
    auto_round("W8A16G32", "int8:g32", "int8 weights, groups of 32"),
    auto_round("FP8_STATIC", "e4m3:channel+e4m3:tensor!static", "fp8 weights per channel, fp8 activations per tensor"),
    auto_round("FPW8A16", "e4m3:tensor", "fp8 weights per tensor"),
    auto_round("INT8_W8A8", "int8:channel+int8:channel!dynamic", "another name of W8A8"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn presets_parse_to_their_own_spelling() {
        for preset in PRESETS {
            let scheme = preset.scheme().unwrap_or_else(|e| panic!("{}: {e}", preset.name));
            assert_eq!(scheme.to_string(), preset.spelling, "{}", preset.name);
        }
    }

    #[test]
    fn preset_names_are_unique_and_include_28_of_quark() {
        let quark = PRESETS.iter().filter(|p| p.dialect == Dialect::Quark).count();
        assert_eq!(quark, 28);
        for (i, preset) in PRESETS.iter().enumerate() {
            assert!(PRESETS[..i].iter().all(|other| other.name != preset.name), "{}", preset.name);
        }
    }

    #[test]
    fn llm_compressor_preset_names_ignore_case() {
        assert_eq!(Preset::find("w4a16").map(|p| p.name), Some("W4A16"));
        assert_eq!(Preset::find("fp8").map(|p| p.dialect), Some(Dialect::Quark));
        assert_eq!(Preset::find("FP8").map(|p| p.dialect), Some(Dialect::CompressedTensors));
        assert!(Preset::find("INT4_WO_128").is_none());
    }
}
