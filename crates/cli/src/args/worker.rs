//! Options of work that several machines share.

use clap::{Args, ValueHint};
use kvant_checkpoint::engine::{PartCommand, WorkerId};
use kvant_container::recorded;
use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// One of several workers.
#[derive(Debug, Args)]
#[command(next_help_heading = "Run")]
pub struct WorkerArgs {
    /// Do the share of one of several workers, e.g. 3/16 (counted from 0), or auto for the number that the scheduler gave
    ///
    /// Each worker runs the same command and needs nothing but the source and the place of the output, which must be the same for all. The last one to
    /// finish completes the output, whose bytes are those of a run without workers. A worker that stopped is run again. auto reads
    /// JOB_COMPLETION_INDEX (Kubernetes), SLURM_ARRAY_TASK_ID, SKYPILOT_NODE_RANK or RANK, and the number of workers from
    /// SLURM_ARRAY_TASK_COUNT, SKYPILOT_NUM_NODES, WORLD_SIZE or KVANT_WORKERS; auto/16 gives it.
    #[arg(long, value_name = "K/N")]
    pub worker: Option<WorkerNumber>,
    /// The command that the worker was started with.
    #[arg(skip)]
    pub command: PartCommand,
}

/// The work of several workers, in a plan.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Run")]
pub struct WorkersArgs {
    /// List what each of so many workers would do (see `kvant quantize --worker`)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=MOST as i64))]
    pub workers: Option<u32>,
    /// Write files for schedulers into a directory: a Kubernetes Job, a Slurm array and a SkyPilot task that start the workers
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath, requires = "workers", requires = "output")]
    pub write_jobs: Option<PathBuf>,
    /// The command line.
    #[arg(skip)]
    pub arguments: Vec<OsString>,
}

impl WorkerArgs {
    /// Records the command line of a worker without what makes it one.
    pub(super) fn record(&mut self, arguments: &[OsString]) {
        if self.worker.is_none() {
            return;
        }
        let is_option = |at: usize| arguments[at] == OPTION;
        let is_joined = |at: usize| arguments[at].to_string_lossy().starts_with(&format!("{OPTION}="));
        let kept =
            (0..arguments.len()).filter(|at| !(is_option(*at) || is_joined(*at) || *at > 0 && is_option(at - 1)));
        self.command = PartCommand::here(kept.map(|at| recorded(Path::new(&arguments[at]))).collect());
    }
}

/// The option that makes a run that of a worker.
const OPTION: &str = "--worker";

/// A worker as it is written, or as the environment says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerNumber(pub WorkerId);

/// The most workers of one output.
const MOST: usize = 100_000;

impl FromStr for WorkerNumber {
    type Err = String;

    fn from_str(text: &str) -> Result<WorkerNumber, String> {
        let read = |name: &str| env::var(name).ok();
        worker(text, &read).map(WorkerNumber)
    }
}

/// A scheduler's variables: the number of a worker, the number of workers, and the number of the first worker.
struct Scheduler {
    index: &'static str,
    count: &'static str,
    first: Option<&'static str>,
}

const SCHEDULERS: [Scheduler; 4] = [
    Scheduler { index: "JOB_COMPLETION_INDEX", count: COUNT, first: None },
    Scheduler { index: "SLURM_ARRAY_TASK_ID", count: "SLURM_ARRAY_TASK_COUNT", first: Some("SLURM_ARRAY_TASK_MIN") },
    Scheduler { index: "SKYPILOT_NODE_RANK", count: "SKYPILOT_NUM_NODES", first: None },
    Scheduler { index: "RANK", count: "WORLD_SIZE", first: None },
];

/// The number of workers, where the scheduler does not say it.
const COUNT: &str = "KVANT_WORKERS";

fn worker(text: &str, variable: &dyn Fn(&str) -> Option<String>) -> Result<WorkerId, String> {
    let (index, count) = match text.split_once('/') {
        Some((index, count)) => (index, Some(number(count, "the number of workers")?)),
        None if text == "auto" => (text, None),
        None => return Err("write it as K/N, e.g. 0/4 for the first of four, or auto".to_owned()),
    };
    let worker = match index {
        "auto" => of_environment(count, variable)?,
        index => WorkerId { index: number(index, "the worker")?, count: count.unwrap_or_default() },
    };
    match worker.count {
        0 => Err("there must be at least one worker".to_owned()),
        count if count > MOST => Err(format!("there can be at most {MOST} workers")),
        count if worker.index >= count => {
            Err(format!("workers are counted from 0: the last of {count} is {}/{count}", count - 1))
        }
        _ => Ok(worker),
    }
}

fn of_environment(count: Option<usize>, variable: &dyn Fn(&str) -> Option<String>) -> Result<WorkerId, String> {
    let Some(scheduler) = SCHEDULERS.iter().find(|scheduler| variable(scheduler.index).is_some()) else {
        let names: Vec<&str> = SCHEDULERS.iter().map(|scheduler| scheduler.index).collect();
        return Err(format!("auto needs one of {} in the environment; write K/N instead", names.join(", ")));
    };
    let read = |name: &str| variable(name).map(|value| number(&value, name)).transpose();
    let index = read(scheduler.index)?.unwrap_or_default();
    // Tasks that are run again alone have another first number: it counts only where the number of workers comes from the same run.
    let first = scheduler.first.filter(|_| count.is_none()).map_or(Ok(None), read)?.unwrap_or_default();
    let stated = match count {
        Some(count) => Some(count),
        None => read(scheduler.count)?.map_or_else(|| read(COUNT), |count| Ok(Some(count)))?,
    };
    let Some(count) = stated else {
        return Err(format!(
            "{} does not say how many workers there are; set {COUNT}, or write auto/16",
            scheduler.index
        ));
    };
    let index = index.checked_sub(first).ok_or_else(|| format!("{} is below the first", scheduler.index))?;
    Ok(WorkerId { index, count })
}

fn number(text: &str, what: &str) -> Result<usize, String> {
    text.parse().map_err(|_| format!("{what} is a whole number, not `{text}`"))
}

/// `kvant finish`.
#[derive(Debug, Args)]
#[command(override_usage = "kvant finish <OUTPUT>", after_help = EXAMPLES)]
pub struct FinishPartsArgs {
    /// The output that the workers were started with
    #[arg(value_name = "OUTPUT", value_hint = ValueHint::AnyPath)]
    pub output: PathBuf,
}

const EXAMPLES: &str = "\
Examples:
  kvant finish out
      complete the output after `kvant quantize ... --worker 0/4 -o out` to 3/4

The last worker completes the output by itself. This is for the case that it was stopped then. Refuses if parts of workers are missing, and names them.";

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str, variables: &[(&str, &str)]) -> Result<String, String> {
        let read =
            |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned());
        worker(text, &read).map(|worker| worker.to_string())
    }

    #[test]
    fn workers_are_counted_from_zero() {
        assert_eq!(of("0/1", &[]).unwrap(), "0/1");
        assert_eq!(of("15/16", &[]).unwrap(), "15/16");
        for (text, reason) in [
            ("16/16", "the last of 16 is 15/16"),
            ("1/0", "at least one"),
            ("3", "as K/N"),
            ("-1/4", "not `-1`"),
            ("1/x", "not `x`"),
            ("0/100001", "at most"),
            ("auto", "JOB_COMPLETION_INDEX"),
        ] {
            let refused = of(text, &[]).unwrap_err();
            assert!(refused.contains(reason), "{text}: {refused}");
        }
    }

    #[test]
    fn schedulers_number_workers() {
        let slurm = [("SLURM_ARRAY_TASK_ID", "5"), ("SLURM_ARRAY_TASK_COUNT", "4"), ("SLURM_ARRAY_TASK_MIN", "3")];
        assert_eq!(of("auto", &slurm).unwrap(), "2/4");
        let again = [("SLURM_ARRAY_TASK_ID", "3"), ("SLURM_ARRAY_TASK_COUNT", "1"), ("SLURM_ARRAY_TASK_MIN", "3")];
        assert_eq!(of("auto/4", &again).unwrap(), "3/4");
        let kubernetes = [("JOB_COMPLETION_INDEX", "7"), ("KVANT_WORKERS", "8")];
        assert_eq!(of("auto", &kubernetes).unwrap(), "7/8");
        assert_eq!(of("auto/9", &kubernetes[..1]).unwrap(), "7/9");
        assert!(of("auto", &kubernetes[..1]).unwrap_err().contains("KVANT_WORKERS"));
        assert_eq!(of("auto", &[("RANK", "0"), ("WORLD_SIZE", "2")]).unwrap(), "0/2");
        assert_eq!(of("auto", &[("SKYPILOT_NODE_RANK", "1"), ("SKYPILOT_NUM_NODES", "3")]).unwrap(), "1/3");
        assert!(of("auto", &[("RANK", "2"), ("WORLD_SIZE", "2")]).unwrap_err().contains("counted from 0"));
    }
}
