//! What goes wrong with a model elsewhere. Messages hold no credentials, and no address that a server redirected to: such are signed.

use kvant_container::supply::Unsupplied;
use kvant_container::{Diagnostic, ErrorKind};
use std::io;
use std::ops::Range;

/// Failures of reading a model elsewhere.
#[derive(Debug, thiserror::Error)]
pub enum RemoteError {
    /// A kind of address or model that is not read (*unsupported*).
    #[error("{what}")]
    Unsupported {
        /// What it is.
        what: String,
        /// The hint.
        way_out: String,
    },
    /// Files that are not what they should be (*invalid*).
    #[error("{object}: {problem}")]
    Invalid {
        /// The address.
        object: String,
        /// The problem.
        problem: String,
    },
    /// There is no such model or file (*invalid*).
    #[error("{object}: there is no such {kind} (status {status})")]
    Missing {
        /// The address.
        object: String,
        /// "file" or "model".
        kind: &'static str,
        /// The server's answer.
        status: u16,
    },
    /// The server does not give a file to this user.
    #[error("{object}: access is denied (status {status})")]
    Denied {
        /// The address.
        object: String,
        /// The server's answer.
        status: u16,
    },
    /// A request failed, and its repetitions too.
    #[error("{object}: {}cannot be downloaded: {why}", of_range(range.as_ref()))]
    Failed {
        /// The address.
        object: String,
        /// The bytes that were asked for.
        range: Option<Range<u64>>,
        /// The last failure.
        why: String,
    },
    /// The file is another one than at the first request.
    #[error("{object}: {}the file has changed since it was opened: {difference}", of_range(range.as_ref()))]
    Changed {
        /// The address.
        object: String,
        /// The bytes that were asked for.
        range: Option<Range<u64>>,
        /// What is different.
        difference: String,
    },
    /// The server sends whole files only (*unsupported*).
    #[error("{object}: the server ignores requests for parts of files (range requests)")]
    NoRanges {
        /// The address.
        object: String,
    },
    /// The model is not in the cache, and the network is not to be used.
    #[error("{model} is not in the cache of the Hugging Face Hub ({cache}), and HF_HUB_OFFLINE is set")]
    Offline {
        /// The model.
        model: String,
        /// The folder of the cache.
        cache: String,
    },
    /// A temporary file.
    #[error("cannot {action} the temporary files for {object}: {cause}")]
    Disk {
        /// What was tried, as a verb.
        action: &'static str,
        /// The address whose bytes they hold.
        object: String,
        /// The system's answer.
        cause: io::Error,
    },
    /// The user asked to stop.
    #[error("Interrupted.")]
    Cancelled,
}

fn of_range(range: Option<&Range<u64>>) -> String {
    range.map_or_else(String::new, |range| format!("bytes {} to {}: ", range.start, range.end.saturating_sub(1)))
}

impl RemoteError {
    /// The same for whoever reads the bytes.
    pub(crate) fn unsupplied(&self) -> Unsupplied {
        match self {
            RemoteError::Cancelled => Unsupplied::Cancelled,
            error => Unsupplied::Failed(error.to_string()),
        }
    }
}

impl Diagnostic for RemoteError {
    fn kind(&self) -> ErrorKind {
        match self {
            RemoteError::Unsupported { .. } | RemoteError::NoRanges { .. } => ErrorKind::Unsupported,
            RemoteError::Invalid { .. } | RemoteError::Missing { .. } => ErrorKind::Invalid,
            RemoteError::Denied { .. }
            | RemoteError::Failed { .. }
            | RemoteError::Changed { .. }
            | RemoteError::Offline { .. }
            | RemoteError::Disk { .. } => ErrorKind::Io,
            RemoteError::Cancelled => ErrorKind::Cancelled,
        }
    }

    fn hint(&self) -> Option<String> {
        let hint = match self {
            RemoteError::Unsupported { way_out, .. } => return Some(way_out.clone()),
            RemoteError::Invalid { .. } | RemoteError::Cancelled => return None,
            RemoteError::Missing { kind: "model", .. } => {
                "check the name; a private model on the Hugging Face Hub needs a token in HF_TOKEN"
            }
            RemoteError::Missing { .. } => {
                "check the address: it is that of the folder with config.json, or of a file with weights"
            }
            RemoteError::Denied { .. } => {
                "give a token in HF_TOKEN for a model on the Hugging Face Hub (a gated one also asks to accept its terms on its page), \
                 or name and password as https://NAME:PASSWORD@HOST/... for another server"
            }
            RemoteError::Failed { .. } => "look at the network, then run the same command again to resume",
            RemoteError::Changed { .. } => {
                "run the same command again with ‹restart›: the model is another one, and work on the earlier one cannot be continued"
            }
            RemoteError::NoRanges { .. } => {
                "download the model first, or serve it with a server that knows range requests, e.g. nginx"
            }
            RemoteError::Offline { .. } => "unset HF_HUB_OFFLINE, or download the model first",
            RemoteError::Disk { cause, .. } => return kvant_container::io_hint(cause).map(str::to_owned),
        };
        Some(hint.to_owned())
    }
}
