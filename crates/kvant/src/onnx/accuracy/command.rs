//! A command of the user's that measures a graph: it is run with the graph's path, and prints a number on its last line.

use crate::cancel::CancelToken;
use crate::error::{Error, ErrorKind};
use crate::job::Metric;
use crate::text::{printable, shown};
use kvant_container::Remedy;
use std::ffi::OsString;
use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

/// What stands for the path of the graph.
const PLACE: &str = "{}";
/// The time between two looks at a running command.
const LOOK: Duration = Duration::from_millis(20);
/// The time in which output must arrive once the command has ended: processes that it has left behind may keep the pipe open.
const DRAIN: Duration = Duration::from_secs(2);
/// Lines of an unsuccessful command's messages that an error shows.
const LAST_LINES: usize = 5;

/// A command in words.
pub struct MetricCommand {
    words: Vec<String>,
    timeout: Option<Duration>,
}

impl MetricCommand {
    /// Divides a command into words as a shell does, with quotes and backslashes. No shell runs it: pipes and variables have no meaning.
    ///
    /// # Errors
    /// A command without words, or with an open quote.
    pub fn new(metric: &Metric) -> Result<MetricCommand, Error> {
        let words = shlex::split(&metric.command).filter(|words| !words.is_empty()).ok_or_else(|| {
            let message = format!("‹metric› '{}' is not a command", printable(&metric.command));
            let way = "write it as for a shell, with closed quotes, e.g. ‹metric› 'python measure.py'";
            Error::new(ErrorKind::Usage, message).with_remedies(vec![Remedy::setting("metric", way)])
        })?;
        Ok(MetricCommand { words, timeout: metric.timeout.map(Duration::from_secs) })
    }

    /// Runs the command on a graph and reads its number.
    ///
    /// # Errors
    /// A command that cannot be started, fails, runs out of time or prints something else than a number, and a user who asks to stop.
    pub fn measure(&self, graph: &Path, cancel: &CancelToken) -> Result<f64, Error> {
        let words = self.words_for(graph);
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // Ctrl-C is this process's alone, which then ends all that the command has started.
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let mut child = command.spawn().map_err(|cause| {
            let message = format!("‹metric› cannot be started: {}: {cause}", shown(Path::new(&words[0])));
            let way = "name a program on PATH, or `sh -c '...'` for what only a shell runs";
            Error::new(ErrorKind::Invalid, message).with_remedies(vec![Remedy::setting("metric", way)])
        })?;
        let (stdout, stderr) = (read(child.stdout.take()), read(child.stderr.take()));
        let status = self.wait(&mut child, graph, cancel)?;
        let (stdout, stderr) = (received(&stdout), received(&stderr));
        if !status.success() {
            return Err(self.failed(graph, status, &stderr));
        }
        let last = stdout.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default().trim();
        last.parse().ok().filter(|number: &f64| number.is_finite()).ok_or_else(|| self.no_number(graph, last))
    }

    /// The words with the path of a graph, the last one where none of them has a place for it.
    fn words_for(&self, graph: &Path) -> Vec<OsString> {
        let with_path = |word: &String| {
            let mut parts = word.split(PLACE);
            let mut text = OsString::from(parts.next().unwrap_or_default());
            for part in parts {
                text.push(graph);
                text.push(part);
            }
            text
        };
        let has_place = self.words.iter().any(|word| word.contains(PLACE));
        let last = (!has_place).then(|| graph.as_os_str().to_owned());
        self.words.iter().map(with_path).chain(last).collect()
    }

    fn wait(&self, child: &mut Child, graph: &Path, cancel: &CancelToken) -> Result<ExitStatus, Error> {
        let begun = Instant::now();
        loop {
            let failed = |cause| Error::io("cannot wait for ‹metric›", &cause);
            if let Some(status) = child.try_wait().map_err(failed)? {
                return Ok(status);
            }
            if cancel.is_cancelled() {
                end(child);
                return Err(Error::new(ErrorKind::Interrupted, "stopped while ‹metric› ran"));
            }
            if let Some(timeout) = self.timeout.filter(|timeout| begun.elapsed() > *timeout) {
                end(child);
                let message = format!("‹metric› took more than {} s on {}", timeout.as_secs(), shown(graph));
                let way =
                    Remedy::setting("metric-timeout", "allow more time with ‹metric-timeout›, or measure on less");
                return Err(Error::new(ErrorKind::Invalid, message).with_remedies(vec![way]));
            }
            thread::sleep(LOOK);
        }
    }

    fn failed(&self, graph: &Path, status: ExitStatus, stderr: &str) -> Error {
        let lines: Vec<&str> = stderr.lines().collect();
        let last: String = lines[lines.len().saturating_sub(LAST_LINES)..]
            .iter()
            .fold(String::new(), |text, line| text + "\n  " + &printable(line));
        let message = format!("‹metric› failed on {}: {status}{last}", shown(graph));
        Error::new(ErrorKind::Invalid, message).with_remedies(vec![self.by_hand()])
    }

    fn no_number(&self, graph: &Path, last: &str) -> Error {
        let found = if last.is_empty() { "nothing".to_owned() } else { format!("`{}`", printable(last)) };
        let message = format!("the last line that ‹metric› prints on {} is not a number: {found}", shown(graph));
        let way = Remedy::text("let it print the number alone on the last line of stdout");
        Error::new(ErrorKind::Invalid, message).with_remedies(vec![way, self.by_hand()])
    }

    fn by_hand(&self) -> Remedy {
        let words = self.words.iter().map(String::as_str);
        let spelled = shlex::try_join(words).unwrap_or_else(|_| self.words.join(" "));
        Remedy::text(format!("run it by hand on the graph: {spelled}"))
    }
}

/// Ends a command and what it has started.
fn end(child: &mut Child) {
    #[cfg(unix)]
    {
        let group = format!("-{}", child.id());
        _ = Command::new("kill").args(["-KILL", "--", &group]).stderr(Stdio::null()).status();
    }
    // One that has ended already does no harm.
    _ = child.kill();
    _ = child.wait();
}

/// Reads a pipe to its end on another thread, because a command whose pipe is full waits.
fn read(pipe: Option<impl Read + Send + 'static>) -> Receiver<Vec<u8>> {
    let (send, receive) = channel();
    let work = move || {
        let Some(mut pipe) = pipe else { return };
        let mut buffer = [0; 4096];
        while let Ok(count @ 1..) = pipe.read(&mut buffer) {
            if send.send(buffer[..count].to_vec()).is_err() {
                return;
            }
        }
    };
    thread::spawn(work);
    receive
}

/// All that a pipe has brought.
fn received(pipe: &Receiver<Vec<u8>>) -> String {
    let until = Instant::now() + DRAIN;
    let mut bytes = Vec::new();
    while let Ok(part) = pipe.recv_timeout(until.saturating_duration_since(Instant::now())) {
        bytes.extend(part);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(unix)]
#[cfg(test)]
mod tests {
    use super::*;

    fn command(text: &str, timeout: Option<u64>) -> MetricCommand {
        MetricCommand::new(&Metric { command: text.to_owned(), lower_is_better: false, timeout }).unwrap()
    }

    fn measured(text: &str) -> Result<f64, Error> {
        command(text, Some(20)).measure(Path::new("a b.onnx"), &CancelToken::new())
    }

    #[test]
    fn path_is_the_last_word_or_in_the_place_for_it() {
        let words = |text: &str| command(text, None).words_for(Path::new("a b.onnx"));
        assert_eq!(words("python 'my script.py' -q"), ["python", "my script.py", "-q", "a b.onnx"]);
        assert_eq!(words("run --model={} {}"), ["run", "--model=a b.onnx", "a b.onnx"]);
    }

    #[test]
    fn number_on_the_last_line_is_read() {
        assert_eq!(measured("sh -c 'echo loaded; echo; echo \" 0.75 \"; echo'"), Ok(0.75));
        assert_eq!(measured("sh -c 'echo ${#1}' -"), Ok(8.0));
        // More than a pipe holds, on both sides.
        assert_eq!(measured("sh -c 'yes | head -c 300000; yes | head -c 300000 >&2; echo; echo -1e-3'"), Ok(-0.001));
    }

    #[test]
    fn failures_say_what_the_command_said() {
        let message = |text: &str| measured(text).unwrap_err().message;
        let failed = message("sh -c 'echo no data >&2; exit 3'");
        assert!(failed.contains("exit status: 3") && failed.contains("no data") && failed.contains("a b.onnx"));
        for (text, words) in [
            ("sh -c 'echo top-1 0.5'", "is not a number: `top-1 0.5`"),
            ("sh -c 'echo nan'", "is not a number: `nan`"),
            ("true", "is not a number: nothing"),
            ("/no/such/program", "cannot be started"),
        ] {
            assert!(message(text).contains(words), "{text}: {}", message(text));
        }
        for text in ["", "  ", "echo 'open"] {
            let metric = Metric { command: text.to_owned(), lower_is_better: false, timeout: None };
            assert_eq!(MetricCommand::new(&metric).err().unwrap().kind, ErrorKind::Usage, "{text}");
        }
    }

    #[test]
    fn command_that_hangs_is_ended_with_what_it_started() {
        let directory = tempfile::tempdir().unwrap();
        let late = directory.path().join("late");
        let text = format!("sh -c '(sleep 3; touch {}) & wait'", late.display());
        let begun = Instant::now();
        let error = command(&text, Some(1)).measure(Path::new("g.onnx"), &CancelToken::new()).unwrap_err();
        assert!(error.message.contains("more than 1 s") && begun.elapsed() < Duration::from_millis(2500), "{error}");
        let cancelled = CancelToken::new();
        cancelled.cancel();
        // The path is appended, which `sleep` would refuse.
        let error = command("sh -c 'sleep 60'", None).measure(Path::new("g.onnx"), &cancelled).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Interrupted);
        thread::sleep(Duration::from_millis(2500));
        assert!(!late.exists(), "its child was ended too");
    }
}
