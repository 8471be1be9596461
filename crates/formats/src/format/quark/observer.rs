//! Quark's observer classes and the statistics of ours that they compute. Not the computation: see
//! [`kvant_quant::observer`].

use kvant_quant::observer::ObserverRef;
use kvant_quant::scheme::Granularity;

/// The class for a granularity. Where Quark has no class of the kind (percentile and MSE are per tensor only, moving averages,
/// entropy and others there are none), it is the min-max class: readers of stored codes and scales need no observer.
pub(super) fn class(granularity: Granularity, observer: ObserverRef, power_of_two: bool) -> &'static str {
    match (granularity, power_of_two, observer.name()) {
        (Granularity::Tensor, true, "mse") => "PerTensorPowOf2MinMSEObserver",
        (Granularity::Tensor, true, _) => "PerTensorPowOf2MinMaxObserver",
        (Granularity::Tensor, false, "mse") => "PerTensorMSEObserver",
        (Granularity::Tensor, false, "percentile") => "PerTensorPercentileObserver",
        (Granularity::Tensor, false, _) => "PerTensorMinMaxObserver",
        (Granularity::Channel(_), true, "mse") => "PerChannelPowOf2MinMSEObserver",
        (Granularity::Channel(_), true, _) => "PerChannelPowOf2MinMaxObserver",
        (Granularity::Channel(_), false, _) => "PerChannelMinMaxObserver",
        (Granularity::Group { .. }, ..) => "PerGroupMinMaxObserver",
        (Granularity::Block { .. }, ..) => "PerBlock2DMinMaxObserver",
    }
}

/// The spelling of the statistic that a class computes (empty for min-max), and whether its scales are powers of two.
/// `None` for classes without a counterpart.
pub(super) fn spelling(class: &str) -> Option<(&'static str, bool)> {
    match class {
        "PerTensorMinMaxObserver"
        | "PerChannelMinMaxObserver"
        | "PerGroupMinMaxObserver"
        | "PerBlock2DMinMaxObserver"
        | "PerBlockMXObserver"
        | "PerBlockMXBufferReuseObserver"
        | "PlaceholderObserver" => Some(("", false)),
        "PerTensorPercentileObserver" => Some(("percentile99.99999999", false)),
        "PerTensorMSEObserver" => Some(("mse", false)),
        "PerTensorPowOf2MinMaxObserver" | "PerChannelPowOf2MinMaxObserver" => Some(("", true)),
        "PerTensorPowOf2MinMSEObserver" | "PerChannelPowOf2MinMSEObserver" => Some(("mse", true)),
        _ => None,
    }
}
