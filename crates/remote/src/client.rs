//! Requests for whole files and parts of them, repeated where that may help. Redirects are followed here, so that credentials go to the
//! server that they are for alone, and so that every answer is checked to be of the same version of a file.

use crate::address::{Address, Credentials};
use crate::error::RemoteError;
use std::io::{self, Read};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use ureq::http::{HeaderMap, StatusCode};
use ureq::{Agent, Body};

/// Attempts without a single new byte before a request is given up.
const ATTEMPTS: u32 = 6;
/// The wait before the second attempt; it doubles with each.
const FIRST_WAIT: Duration = Duration::from_millis(250);
/// The longest wait that a server may ask for.
const LONGEST_WAIT: Duration = Duration::from_secs(120);
/// How long a server may take to connect, and send nothing.
const PATIENCE: Duration = Duration::from_secs(30);
/// Redirects of one request.
const REDIRECTS: usize = 5;
/// Bytes that are read from a connection at a time.
const BUFFER: usize = 256 << 10;

/// A file elsewhere.
#[derive(Clone, Debug)]
pub struct Object {
    address: Address,
}

impl Object {
    pub fn new(address: Address) -> Object {
        Object { address }
    }

    /// Its address for messages.
    pub fn name(&self) -> String {
        self.address.to_string()
    }
}

/// Which version of a file a server has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    /// Its bytes.
    pub len: u64,
    /// Its ETag, or else the time of its last change; `None` where the server says neither.
    pub tag: Option<String>,
    /// The commit of the model that it belongs to, where the server is the Hugging Face Hub.
    pub commit: Option<String>,
}

impl Version {
    /// How another version of the same file differs; `None` if nothing shows that it does.
    fn difference(&self, other: &Version) -> Option<String> {
        if self.len != other.len {
            return Some(format!("it had {} bytes, and has {}", self.len, other.len));
        }
        let differ = |one: &Option<String>, other: &Option<String>| one.is_some() && other.is_some() && one != other;
        if differ(&self.commit, &other.commit) {
            return Some("it is of another commit".to_owned());
        }
        differ(&self.tag, &other.tag).then(|| "its ETag is another".to_owned())
    }
}

/// Sends requests. Connections are kept for later ones.
#[derive(Debug)]
pub struct Client {
    agent: Agent,
    credentials: Option<Credentials>,
    cancelled: Arc<AtomicBool>,
}

/// An answer after all redirects.
struct Answer {
    status: StatusCode,
    headers: HeaderMap,
    body: Body,
    /// Headers of the first server that redirected, which knows the file behind.
    tag: Option<String>,
    commit: Option<String>,
}

/// Why an attempt failed.
enum Trouble {
    /// Another may succeed.
    Passing { why: String, wait: Option<Duration> },
    /// None would.
    Lasting(RemoteError),
}

impl From<RemoteError> for Trouble {
    fn from(error: RemoteError) -> Trouble {
        Trouble::Lasting(error)
    }
}

/// What became of the repetitions of a request.
struct Attempts<'a> {
    object: &'a Object,
    failed: u32,
}

impl Client {
    pub fn new(credentials: Option<Credentials>, cancelled: Arc<AtomicBool>) -> Client {
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .timeout_connect(Some(PATIENCE))
            .timeout_resolve(Some(PATIENCE))
            .timeout_recv_response(Some(PATIENCE))
            .timeout_per_read(Some(PATIENCE))
            .timeout_per_write(Some(PATIENCE))
            .user_agent(concat!("kvant/", env!("CARGO_PKG_VERSION")))
            .accept_encoding("identity");
        Client { agent: config.build().new_agent(), credentials, cancelled }
    }

    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Relaxed)
    }

    /// A whole file of at most `limit` bytes; `None` if there is none.
    ///
    /// # Errors
    /// See [`RemoteError`].
    pub fn whole(&self, object: &Object, limit: u64) -> Result<Option<Vec<u8>>, RemoteError> {
        let mut attempts = Attempts { object, failed: 0 };
        loop {
            match self.try_whole(object, limit) {
                Ok(bytes) => return Ok(bytes),
                Err(trouble) => self.pause(&mut attempts, trouble, None)?,
            }
        }
    }

    fn try_whole(&self, object: &Object, limit: u64) -> Result<Option<Vec<u8>>, Trouble> {
        let mut answer = self.send(object, None)?;
        if matches!(answer.status, StatusCode::NOT_FOUND | StatusCode::GONE) {
            return Ok(None);
        }
        refuse_status(object, &answer)?;
        let stated = length(&answer.headers);
        let too_long = || RemoteError::Invalid {
            object: object.name(),
            problem: format!("the file is longer than {limit} bytes, more than any of its kind"),
        };
        if stated.is_some_and(|len| len > limit) {
            return Err(too_long().into());
        }
        let mut bytes = Vec::new();
        answer.body.as_reader().take(limit + 1).read_to_end(&mut bytes).map_err(|error| passing(&error))?;
        if bytes.len() as u64 > limit {
            return Err(too_long().into());
        }
        match stated {
            Some(len) if len != bytes.len() as u64 => Err(Trouble::Passing { why: cut_short(), wait: None }),
            _ => Ok(Some(bytes)),
        }
    }

    /// The first bytes of a file, at most so many, and its version.
    ///
    /// # Errors
    /// See [`RemoteError`]; [`RemoteError::Missing`] without such a file.
    pub fn beginning(&self, object: &Object, most: u64) -> Result<(Version, Vec<u8>), RemoteError> {
        let mut attempts = Attempts { object, failed: 0 };
        loop {
            match self.try_beginning(object, most) {
                Ok(found) => return Ok(found),
                Err(trouble) => self.pause(&mut attempts, trouble, Some(&(0..most)))?,
            }
        }
    }

    fn try_beginning(&self, object: &Object, most: u64) -> Result<(Version, Vec<u8>), Trouble> {
        let mut answer = self.send(object, Some(&(0..most)))?;
        if answer.status == StatusCode::RANGE_NOT_SATISFIABLE {
            return Err(RemoteError::Invalid { object: object.name(), problem: "the file is empty".to_owned() }.into());
        }
        let version = part_of(object, &answer, 0)?;
        let mut bytes = Vec::new();
        let end = most.min(version.len);
        answer.body.as_reader().take(end).read_to_end(&mut bytes).map_err(|error| passing(&error))?;
        match bytes.len() as u64 == end {
            true => Ok((version, bytes)),
            false => Err(Trouble::Passing { why: cut_short(), wait: None }),
        }
    }

    /// Hands on the bytes of a range of a known version of a file, in order, each with its place in the file.
    ///
    /// # Errors
    /// See [`RemoteError`]; that of the receiver as [`RemoteError::Disk`].
    pub fn part(
        &self,
        object: &Object,
        version: &Version,
        range: Range<u64>,
        receive: &mut dyn FnMut(u64, &[u8]) -> io::Result<()>,
    ) -> Result<(), RemoteError> {
        let mut attempts = Attempts { object, failed: 0 };
        let mut left = range.clone();
        while !left.is_empty() {
            let before = left.start;
            let tried = self.try_part(object, version, &mut left, receive);
            if left.start > before {
                // What is there is not asked for again: a slow connection is no failure.
                attempts.failed = 0;
            }
            if let Err(trouble) = tried {
                self.pause(&mut attempts, trouble, Some(&range))?;
            }
        }
        Ok(())
    }

    fn try_part(
        &self,
        object: &Object,
        version: &Version,
        left: &mut Range<u64>,
        receive: &mut dyn FnMut(u64, &[u8]) -> io::Result<()>,
    ) -> Result<(), Trouble> {
        let mut answer = self.send(object, Some(left))?;
        let changed =
            |difference| RemoteError::Changed { object: object.name(), range: Some(left.clone()), difference };
        if answer.status == StatusCode::RANGE_NOT_SATISFIABLE {
            return Err(changed("it is shorter".to_owned()).into());
        }
        let found = part_of(object, &answer, left.start)?;
        if let Some(difference) = version.difference(&found) {
            return Err(changed(difference).into());
        }
        let mut body = answer.body.as_reader();
        let mut buffer = vec![0; BUFFER];
        while !left.is_empty() {
            if self.is_cancelled() {
                return Err(RemoteError::Cancelled.into());
            }
            let most = (BUFFER as u64).min(left.end - left.start) as usize;
            let read = body.read(&mut buffer[..most]).map_err(|error| passing(&error))?;
            if read == 0 {
                return Err(Trouble::Passing { why: cut_short(), wait: None });
            }
            let disk = |cause| RemoteError::Disk { action: "write", object: object.name(), cause };
            receive(left.start, &buffer[..read]).map_err(disk)?;
            left.start += read as u64;
        }
        Ok(())
    }

    /// Sends a request, and follows where it is redirected.
    fn send(&self, object: &Object, range: Option<&Range<u64>>) -> Result<Answer, Trouble> {
        let mut address = object.address.clone();
        let (mut tag, mut commit) = (None, None);
        for _ in 0..=REDIRECTS {
            if self.is_cancelled() {
                return Err(RemoteError::Cancelled.into());
            }
            let mut request = self.agent.get(address.url());
            if let Some(range) = range {
                request = request.header("Range", format!("bytes={}-{}", range.start, range.end.saturating_sub(1)));
            }
            if let Some(credentials) = self.credentials.as_ref().filter(|found| found.are_for(&address)) {
                request = request.header("Authorization", &credentials.header);
            }
            let (parts, body) = request.call().map_err(|error| of_transport(object, &error))?.into_parts();
            let (status, headers) = (parts.status, parts.headers);
            tag = tag.or_else(|| text(&headers, "x-linked-etag"));
            commit = commit.or_else(|| text(&headers, "x-repo-commit"));
            if !status.is_redirection() {
                return Ok(Answer { status, headers, body, tag, commit });
            }
            let location = text(&headers, "location").and_then(|location| address.redirected(&location));
            address = location.ok_or_else(|| RemoteError::Failed {
                object: object.name(),
                range: range.cloned(),
                why: "the server redirects to no address, or from an encrypted connection to one that is not"
                    .to_owned(),
            })?;
        }
        let why = format!("the server redirects more than {REDIRECTS} times");
        Err(RemoteError::Failed { object: object.name(), range: range.cloned(), why }.into())
    }

    /// Waits before another attempt, or gives up.
    fn pause(
        &self,
        attempts: &mut Attempts<'_>,
        trouble: Trouble,
        range: Option<&Range<u64>>,
    ) -> Result<(), RemoteError> {
        let (why, wait) = match trouble {
            Trouble::Lasting(error) => return Err(error),
            Trouble::Passing { why, wait } => (why, wait),
        };
        attempts.failed += 1;
        if attempts.failed == ATTEMPTS {
            let why = format!("{why} ({ATTEMPTS} attempts)");
            return Err(RemoteError::Failed { object: attempts.object.name(), range: range.cloned(), why });
        }
        let wait = wait.unwrap_or(FIRST_WAIT * 2u32.pow(attempts.failed - 1)).min(LONGEST_WAIT);
        let until = Instant::now() + wait;
        while Instant::now() < until {
            if self.is_cancelled() {
                return Err(RemoteError::Cancelled);
            }
            std::thread::sleep(Duration::from_millis(20).min(wait));
        }
        Ok(())
    }
}

/// The version of a file of which a part was sent that begins at a byte.
fn part_of(object: &Object, answer: &Answer, start: u64) -> Result<Version, Trouble> {
    refuse_status(object, answer)?;
    if answer.status != StatusCode::PARTIAL_CONTENT {
        return Err(RemoteError::NoRanges { object: object.name() }.into());
    }
    let stated = text(&answer.headers, "content-range").and_then(|stated| {
        let (sent, len) = stated.strip_prefix("bytes ")?.split_once('/')?;
        Some((sent.split_once('-')?.0.parse::<u64>().ok()?, len.parse::<u64>().ok()?))
    });
    let Some((_, len)) = stated.filter(|(first, _)| *first == start) else {
        return Err(RemoteError::NoRanges { object: object.name() }.into());
    };
    let tag = answer.tag.clone().or_else(|| text(&answer.headers, "etag"));
    let tag = tag.or_else(|| text(&answer.headers, "last-modified"));
    Ok(Version { len, tag, commit: answer.commit.clone() })
}

fn refuse_status(object: &Object, answer: &Answer) -> Result<(), Trouble> {
    let (status, object) = (answer.status, object.name());
    let encoding = text(&answer.headers, "content-encoding").filter(|encoding| encoding != "identity");
    if let (true, Some(encoding)) = (status.is_success(), encoding) {
        let why = format!("the server compresses it ({encoding}) although that was not asked for");
        return Err(RemoteError::Failed { object, range: None, why }.into());
    }
    match status.as_u16() {
        200..300 => Ok(()),
        401 | 403 => Err(RemoteError::Denied { object, status: status.as_u16() }.into()),
        404 | 410 => Err(RemoteError::Missing { object, kind: "file", status: status.as_u16() }.into()),
        408 | 425 | 429 | 500..600 => {
            let seconds = text(&answer.headers, "retry-after").and_then(|text| text.parse().ok());
            Err(Trouble::Passing { why: format!("status {status}"), wait: seconds.map(Duration::from_secs) })
        }
        _ => Err(RemoteError::Failed { object, range: None, why: format!("status {status}") }.into()),
    }
}

fn text(headers: &HeaderMap, name: &str) -> Option<String> {
    headers.get(name)?.to_str().ok().map(|text| text.trim().to_owned())
}

fn length(headers: &HeaderMap) -> Option<u64> {
    text(headers, "content-length")?.parse().ok()
}

fn cut_short() -> String {
    "the connection ended before the last byte".to_owned()
}

/// A failure of reading an answer.
fn passing(error: &io::Error) -> Trouble {
    let why = match error.kind() {
        io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => "no byte came in time".to_owned(),
        io::ErrorKind::UnexpectedEof => cut_short(),
        _ => error
            .get_ref()
            .and_then(|inner| inner.downcast_ref::<ureq::Error>())
            .map_or_else(|| of_system(error), reason),
    };
    Trouble::Passing { why, wait: None }
}

/// A failure of sending a request: nothing but addresses and what the client cannot do is the same at every attempt.
fn of_transport(object: &Object, error: &ureq::Error) -> Trouble {
    let why = reason(error);
    match error {
        ureq::Error::BadUri(_)
        | ureq::Error::InvalidProxyUrl
        | ureq::Error::Tls(_)
        | ureq::Error::TlsRequired
        | ureq::Error::Http(_) => RemoteError::Failed { object: object.name(), range: None, why }.into(),
        ureq::Error::Rustls(_) => RemoteError::Failed { object: object.name(), range: None, why }.into(),
        _ => Trouble::Passing { why, wait: None },
    }
}

/// The system's answer, whose kind says nothing of names that cannot be looked up.
fn of_system(error: &io::Error) -> String {
    let kind = error.kind().to_string();
    if kind == "uncategorized error" { error.to_string() } else { kind }
}

/// What went wrong in words, without addresses: those of redirects are signed.
fn reason(error: &ureq::Error) -> String {
    match error {
        ureq::Error::Timeout(_) => "the server does not answer in time".to_owned(),
        ureq::Error::HostNotFound => "the host is not known".to_owned(),
        ureq::Error::ConnectionFailed => "the server cannot be reached".to_owned(),
        ureq::Error::Io(cause) => of_system(cause),
        ureq::Error::Rustls(cause) => format!("no encrypted connection: {cause}"),
        ureq::Error::Tls(cause) => format!("no encrypted connection: {cause}"),
        ureq::Error::BadUri(_) | ureq::Error::Http(_) => "the address is not valid".to_owned(),
        ureq::Error::InvalidProxyUrl => "the address of the proxy is not valid".to_owned(),
        ureq::Error::ConnectProxyFailed(_) => "the proxy refuses the connection".to_owned(),
        _ => "the answer is not valid HTTP".to_owned(),
    }
}
