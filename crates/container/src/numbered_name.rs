//! Names of files that are one of several: `PREFIX-00001-of-00003.EXTENSION`, both numbers of five digits, as tools write them.

/// Such a name, taken apart. The numbers are whatever it says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct NumberedName<'n> {
    pub prefix: &'n str,
    pub count: u64,
    /// Counted from 1.
    pub number: u64,
}

impl<'n> NumberedName<'n> {
    /// That of a file with an extension.
    pub fn of(file: &'n str, extension: &str) -> Option<NumberedName<'n>> {
        let (rest, count) = file.strip_suffix(extension)?.strip_suffix('.')?.rsplit_once("-of-")?;
        let (prefix, number) = rest.rsplit_once('-')?;
        let parse = |text: &str| {
            let is_number = text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit());
            is_number.then(|| text.parse().ok()).flatten()
        };
        Some(NumberedName { prefix, count: parse(count)?, number: parse(number)? })
    }

    /// The name of another one of the same files.
    pub fn with_number(&self, number: u64, extension: &str) -> String {
        format!("{}-{number:05}-of-{:05}.{extension}", self.prefix, self.count)
    }
}
