//! The passes that run.

use super::{ALL, Pass, PassError};

/// The passes that run: those that run by default, with changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Selection {
    enabled: Vec<bool>,
}

impl Default for Selection {
    fn default() -> Self {
        Self { enabled: ALL.iter().map(|pass| pass.default).collect() }
    }
}

impl Selection {
    /// No pass at all.
    pub fn none() -> Self {
        Self { enabled: vec![false; ALL.len()] }
    }

    /// Switches a pass on or off. Errors: a name that no pass has.
    pub fn set(&mut self, name: &str, enabled: bool) -> Result<(), PassError> {
        let pass = Pass::named(name)?;
        let flags = ALL.iter().zip(&mut self.enabled).filter(|(other, _)| other.name == pass.name);
        flags.for_each(|(_, flag)| *flag = enabled);
        Ok(())
    }

    /// Switches passes on and off. Errors: a name that no pass has.
    pub fn change(&mut self, enabled: &[String], disabled: &[String]) -> Result<(), PassError> {
        enabled.iter().try_for_each(|name| self.set(name, true))?;
        disabled.iter().try_for_each(|name| self.set(name, false))
    }

    /// The same with a pass switched on.
    pub fn with(mut self, name: &str) -> Result<Self, PassError> {
        self.set(name, true)?;
        Ok(self)
    }

    /// The same with a pass switched off.
    pub fn without(mut self, name: &str) -> Result<Self, PassError> {
        self.set(name, false)?;
        Ok(self)
    }

    /// The passes that run, in order.
    pub fn passes(&self) -> impl Iterator<Item = &'static Pass> {
        ALL.iter().zip(&self.enabled).filter(|(_, enabled)| **enabled).map(|(pass, _)| pass)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passes_are_enabled_by_name() {
        let selection = Selection::none().with("dead-nodes").unwrap().with("identity").unwrap();
        assert_eq!(selection.passes().map(|p| p.name).collect::<Vec<_>>(), ["identity", "dead-nodes"]);
        assert_eq!(selection.without("identity").unwrap(), Selection::none().with("dead-nodes").unwrap());
    }

    #[test]
    fn unknown_pass_name_gets_a_suggestion() {
        let error = Selection::none().with("constant-fold").unwrap_err();
        assert_eq!(error.to_string(), "there is no pass `constant-fold`; did you mean `constant-folding`?");
        assert_eq!(Selection::none().with("xyz").unwrap_err().to_string(), "there is no pass `xyz`");
    }
}
