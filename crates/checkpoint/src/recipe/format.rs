//! The format that is chosen when none is asked for. Not what formats can hold: that is theirs to say.

use super::SchemeChoice;
use kvant_formats::format::OutputFormat;
use kvant_numeric::kernel::FloatDType;
use kvant_numeric::pack::NibbleOrder;
use kvant_quant::scheme::{ActivationScheme, Axis, Dialect, Granularity, LayerScheme};
use kvant_weights::activation_point::ActivationPoint;
use kvant_weights::parts::{ActivationSpec, LayerSpec, Side};

/// The same for tensors that no config.json makes a model of.
pub(super) fn fitting_without_config(choices: impl Iterator<Item = SchemeChoice> + Clone) -> OutputFormat {
    let holds_all =
        |format: &OutputFormat| choices.clone().filter_map(SchemeChoice::scheme).all(|scheme| holds(*format, scheme));
    [OutputFormat::TENSORS, OutputFormat::PlainFloats].into_iter().find(holds_all).unwrap_or(OutputFormat::TENSORS)
}

/// The first format that holds all schemes, beginning with that of the tool by whose name the first was asked for. If none
/// does, that one: the plan will say what it cannot hold.
pub(super) fn fitting(choices: impl Iterator<Item = SchemeChoice> + Clone) -> OutputFormat {
    let first = choices.clone().find_map(|choice| match choice {
        SchemeChoice::Scheme(named) => Some(named),
        SchemeChoice::Keep => None,
    });
    let order = match first.and_then(|named| named.dialect()) {
        Some(Dialect::CompressedTensors) => {
            [OutputFormat::COMPRESSED_TENSORS, OutputFormat::QUARK, OutputFormat::PlainFloats]
        }
        _ => [OutputFormat::QUARK, OutputFormat::COMPRESSED_TENSORS, OutputFormat::PlainFloats],
    };
    let holds_all =
        |format: &OutputFormat| choices.clone().filter_map(SchemeChoice::scheme).all(|scheme| holds(*format, scheme));
    order.into_iter().find(holds_all).unwrap_or(order[0])
}

/// Returns whether the format holds a layer of this scheme, if its shape suits it.
fn holds(format: OutputFormat, scheme: LayerScheme) -> bool {
    let whole_units = 8 * group_size(scheme) as usize;
    let layer = LayerSpec {
        name: "",
        rows: whole_units,
        columns: whole_units,
        scheme,
        source: FloatDType::Bf16,
        order: NibbleOrder::default(),
        fused: None,
        act_order: false,
        input_rotation: None,
    };
    let holds_activations = |side: Side, scheme: ActivationScheme| {
        let site = ActivationPoint::Input(String::new());
        let spec = ActivationSpec { name: "", side, scheme, features: whole_units, source: layer.source, site: &site };
        format.activation_parts(&spec).is_ok()
    };
    format.parts(&layer).is_ok()
        && scheme.input.is_none_or(|input| holds_activations(Side::Input, input))
        && scheme.output.is_none_or(|output| holds_activations(Side::Output, output))
}

fn group_size(scheme: LayerScheme) -> u32 {
    match scheme.weight.granularity() {
        Some(Granularity::Group { axis: Axis::Columns | Axis::Rows, size: Some(size) }) => size.get(),
        _ => 128,
    }
}
