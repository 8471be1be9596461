//! Taps that gather what roundings need of the inputs of layers: Hessians, and rows to pair with those of another run; what the
//! correction of biases needs, their means; and what reports show, their distributions.

use kvant_forward::forward::{ActivationHook, ActivationPoint, Rows};
use kvant_numeric::linalg::Precision;
use kvant_numeric::simd::Isa;
use kvant_quant::bias_correction::MeanInput;
use kvant_quant::distribution::Distribution;
use kvant_quant::hessian::Hessian;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

/// Adds what passes to Hessians, by the module that reads it.
#[derive(Debug, Default)]
pub struct HessianTap {
    sums: HashMap<String, Mutex<Hessian>>,
}

impl HessianTap {
    /// Hessians of the inputs of modules, each with its features.
    pub fn new<'m>(modules: impl Iterator<Item = (&'m str, usize)>, precision: Precision) -> HessianTap {
        let empty = |features| Mutex::new(Hessian::with_precision(features, precision));
        HessianTap { sums: modules.map(|(module, features)| (module.to_owned(), empty(features))).collect() }
    }

    /// The gathered inputs.
    pub fn into_hessians(self) -> HashMap<String, Hessian> {
        self.sums.into_iter().map(|(module, sum)| (module, into_inner(sum))).collect()
    }
}

impl ActivationHook for HessianTap {
    fn wants(&self, site: ActivationPoint<'_>) -> bool {
        matches!(site, ActivationPoint::Input(module) if self.sums.contains_key(module))
    }

    fn see(&self, site: ActivationPoint<'_>, rows: Rows<'_>) {
        let ActivationPoint::Input(module) = site else { return };
        let Some(sum) = self.sums.get(module) else { return };
        sum.lock().unwrap_or_else(PoisonError::into_inner).add(rows.data);
    }
}

/// Keeps the rows that pass, by the module that reads them.
#[derive(Debug, Default)]
pub struct RowsTap {
    rows: HashMap<String, Mutex<Vec<f32>>>,
}

impl RowsTap {
    /// Nothing of the inputs of modules.
    pub fn new<'m>(modules: impl Iterator<Item = &'m str>) -> RowsTap {
        RowsTap { rows: modules.map(|module| (module.to_owned(), Mutex::default())).collect() }
    }

    /// The inputs of a module since the last call.
    pub fn take(&self, module: &str) -> Vec<f32> {
        let rows = self.rows.get(module).map(|rows| rows.lock().unwrap_or_else(PoisonError::into_inner));
        rows.map(|mut rows| std::mem::take(&mut *rows)).unwrap_or_default()
    }
}

impl ActivationHook for RowsTap {
    fn wants(&self, site: ActivationPoint<'_>) -> bool {
        matches!(site, ActivationPoint::Input(module) if self.rows.contains_key(module))
    }

    fn see(&self, site: ActivationPoint<'_>, rows: Rows<'_>) {
        let ActivationPoint::Input(module) = site else { return };
        let Some(kept) = self.rows.get(module) else { return };
        kept.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(rows.data);
    }
}

/// Finds the mean of what passes, by the module that reads it, and lets another tap see it too.
pub struct MeansTap<'t> {
    means: HashMap<String, Mutex<MeanInput>>,
    beside: &'t dyn ActivationHook,
}

impl<'t> MeansTap<'t> {
    /// Means of the inputs of modules, each with its features.
    pub fn new<'m>(modules: impl Iterator<Item = (&'m str, usize)>, beside: &'t dyn ActivationHook) -> MeansTap<'t> {
        let empty = |features| Mutex::new(MeanInput::new(features));
        MeansTap { means: modules.map(|(module, features)| (module.to_owned(), empty(features))).collect(), beside }
    }

    /// The results.
    pub fn into_means(self) -> impl Iterator<Item = (String, MeanInput)> {
        self.means.into_iter().map(|(module, mean)| (module, into_inner(mean)))
    }
}

impl ActivationHook for MeansTap<'_> {
    fn wants(&self, site: ActivationPoint<'_>) -> bool {
        self.beside.wants(site) || matches!(site, ActivationPoint::Input(module) if self.means.contains_key(module))
    }

    fn see(&self, site: ActivationPoint<'_>, rows: Rows<'_>) {
        if let ActivationPoint::Input(module) = site
            && let Some(mean) = self.means.get(module)
        {
            mean.lock().unwrap_or_else(PoisonError::into_inner).add(rows.data);
        }
        if self.beside.wants(site) {
            self.beside.see(site, rows);
        }
    }
}

/// Gathers the distribution of what passes, by the module that reads it, and lets another tap see it too.
pub struct DistributionsTap<'t> {
    distributions: HashMap<String, Mutex<Distribution>>,
    beside: &'t dyn ActivationHook,
}

impl<'t> DistributionsTap<'t> {
    /// Distributions of the inputs of modules.
    pub fn new(modules: impl Iterator<Item = String>, beside: &'t dyn ActivationHook) -> DistributionsTap<'t> {
        DistributionsTap { distributions: modules.map(|module| (module, Mutex::default())).collect(), beside }
    }

    /// The results.
    pub fn into_distributions(self) -> impl Iterator<Item = (String, Distribution)> {
        self.distributions.into_iter().map(|(module, distribution)| (module, into_inner(distribution)))
    }
}

impl ActivationHook for DistributionsTap<'_> {
    fn wants(&self, site: ActivationPoint<'_>) -> bool {
        self.beside.wants(site)
            || matches!(site, ActivationPoint::Input(module) if self.distributions.contains_key(module))
    }

    fn see(&self, site: ActivationPoint<'_>, rows: Rows<'_>) {
        if let ActivationPoint::Input(module) = site
            && let Some(distribution) = self.distributions.get(module)
        {
            distribution.lock().unwrap_or_else(PoisonError::into_inner).update(Isa::best(), rows.data);
        }
        if self.beside.wants(site) {
            self.beside.see(site, rows);
        }
    }
}

fn into_inner<T>(mutex: Mutex<T>) -> T {
    mutex.into_inner().unwrap_or_else(PoisonError::into_inner)
}
