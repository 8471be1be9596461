//! The layout of AMD Quark: the parts are those of our own export.

use super::Method;
use super::catalog::Module;
use super::error::ImportError;
use super::layout::Layout;
use crate::config_json::quark::{StoredQuark, WeightFormat};
use crate::export::{Export, LayerSpec, quark_code_layout};
use kvant_container::Dtype;
use kvant_numeric::kernel::Source;
use kvant_quant::scheme::{LayerScheme, TensorScheme};
use serde_json::Value;

pub(super) fn reader(config: &Value) -> Result<Box<dyn Method>, ImportError> {
    Ok(Box::new(Quark { config: StoredQuark::read(config)? }))
}

struct Quark {
    config: StoredQuark,
}

impl Method for Quark {
    fn weight(&self, module: &Module<'_, '_>) -> Result<Option<Layout>, ImportError> {
        let (Some(weight), Some(_)) = (module.tensor("weight"), module.tensor("weight_scale")) else {
            return Ok(None);
        };
        // Floats on the grid of their codes, with the scales beside them.
        let is_float = matches!(weight.dtype(), Dtype::F32 | Dtype::F16 | Dtype::BF16);
        if is_float && self.config.weight_format == WeightFormat::Fake {
            return Ok(None);
        }
        match self.config.scheme(module.name).weight {
            Some(scheme) => self.layout(module, scheme).map(Some),
            None => Err(ImportError::invalid(module.name, "is quantized, which config.json does not say")),
        }
    }
}

impl Quark {
    fn layout(&self, module: &Module<'_, '_>, scheme: TensorScheme) -> Result<Layout, ImportError> {
        let refused = |error| ImportError::cannot_hold(module.name, &error);
        let (packing, transposed) = quark_code_layout(scheme, self.config.order).map_err(refused)?;
        let (first, last) = module.matrix_shape("weight")?;
        let (rows, columns) = (first, packing.codes_in(last));
        let (rows, columns) = if transposed { (columns, rows) } else { (rows, columns) };
        if rows == 0 || columns == 0 {
            return Err(ImportError::invalid(module.tensor_name("weight"), "is empty"));
        }
        let layer = LayerSpec {
            name: module.name,
            rows,
            columns,
            scheme: LayerScheme::weight_only(scheme),
            source: Source::F32,
            order: self.config.order,
        };
        let parts = Export::Quark.parts(&layer).map_err(refused)?;
        Layout::of_scheme(scheme, (rows, columns), parts)
            .ok_or_else(|| ImportError::invalid(module.name, format!("`{scheme}` has no codes")))
    }
}
