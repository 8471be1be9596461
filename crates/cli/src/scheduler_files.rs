//! Files for schedulers that start workers: a Kubernetes Job, a Slurm array, a SkyPilot task.

use kvant::Error;
use kvant::text::{shell_word, shown};
use kvant_container::write_file;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

/// The work that schedulers are asked to start.
pub struct Workers<'a> {
    /// Their number.
    pub count: usize,
    /// The command of each, without the option that makes it a worker.
    pub command: &'a [OsString],
    /// The directory that relative paths in it start from.
    pub directory: &'a Path,
    /// Bytes of memory that each takes.
    pub memory: u64,
    /// Threads of each.
    pub threads: usize,
    /// Source and output, absolute: the files belong in neither.
    pub paths: Vec<PathBuf>,
}

/// A file for a scheduler.
struct SchedulerFile {
    name: &'static str,
    text: String,
}

/// Memory beside what a plan states: what the system counts as a process's own of the files that it reads and writes.
const CACHE: u64 = 512 << 20;

impl Workers<'_> {
    /// Writes the files into a directory, which is made if need be, and returns their paths.
    ///
    /// # Errors
    /// Files that exist already, unless `overwrite`; system errors.
    pub fn write(&self, directory: &Path, overwrite: bool) -> Result<Vec<PathBuf>, Error> {
        let holds_password = |word: &OsString| {
            word.to_str()
                .and_then(|word| word.split_once("://"))
                .is_some_and(|(_, rest)| rest.contains('@') && rest.contains(':'))
        };
        if self.command.iter().any(holds_password) {
            let hint = "leave the password out of the address, and have the scheduler set it in the command";
            return Err(crate::failure::usage("files for schedulers would hold the password of the address", hint));
        }
        let is_taken = |path: &Path| directory.starts_with(path) || path.starts_with(directory);
        if let Some(path) = self.paths.iter().find(|path| is_taken(path)) {
            let message = format!("{} and {} are the same, or one is inside the other", shown(directory), shown(path));
            return Err(crate::failure::usage(&message, "choose another directory with --write-jobs"));
        }
        let failed = |path: &Path, error| Error::system(format!("cannot write {}: {error}", shown(path)));
        fs::create_dir_all(directory).map_err(|error| failed(directory, error))?;
        let files = [self.kubernetes(), self.slurm(), self.skypilot()];
        let paths: Vec<PathBuf> = files.iter().map(|file| directory.join(file.name)).collect();
        if let Some(path) = paths.iter().find(|path| !overwrite && path.symlink_metadata().is_ok()) {
            let hint = "choose another directory, or replace the files with --overwrite";
            return Err(crate::failure::usage(&format!("{} exists already", shown(path)), hint));
        }
        for (path, file) in paths.iter().zip(&files) {
            write_file(path, file.text.as_bytes()).map_err(|error| failed(path, error))?;
        }
        Ok(paths)
    }

    fn line(&self) -> String {
        let words = self.command.iter().map(|word| shell_word(Path::new(word)));
        words.chain([format!("--worker auto/{}", self.count)]).collect::<Vec<_>>().join(" ")
    }

    fn mebibytes(&self) -> u64 {
        self.memory.saturating_add(CACHE).div_ceil(1 << 20)
    }

    /// An indexed Job: Kubernetes runs failed indices again.
    fn kubernetes(&self) -> SchedulerFile {
        let Workers { count, threads, .. } = self;
        let (memory, directory) = (self.mebibytes(), json_text(&self.directory.to_string_lossy()));
        let words = self.command.iter().map(|word| word.to_string_lossy().into_owned());
        let words: Vec<String> =
            words.chain(["--worker".to_owned(), format!("auto/{count}")]).map(|word| json_text(&word)).collect();
        let command = words.join(", ");
        let text = format!(
            r#"# kubectl apply -f kubernetes.yaml
# Set the image and the claim. The claim is mounted where the paths of the command begin.
apiVersion: batch/v1
kind: Job
metadata:
  name: kvant-quantize
spec:
  completions: {count}
  parallelism: {count}
  completionMode: Indexed
  backoffLimitPerIndex: 6
  template:
    spec:
      restartPolicy: Never
      containers:
        - name: kvant
          image: kvant:latest
          command: [{command}]
          workingDir: {directory}
          resources:
            requests:
              cpu: "{threads}"
              memory: {memory}Mi
            limits:
              memory: {memory}Mi
          volumeMounts:
            - name: models
              mountPath: {directory}
      volumes:
        - name: models
          persistentVolumeClaim:
            claimName: models
"#
        );
        SchedulerFile { name: "kubernetes.yaml", text }
    }

    /// An array of jobs.
    fn slurm(&self) -> SchedulerFile {
        let Workers { count, threads, .. } = self;
        let (memory, last, line) = (self.mebibytes(), count - 1, self.line());
        let directory = shell_word(self.directory);
        let text = format!(
            "#!/bin/sh\n# sbatch slurm.sh\n#SBATCH --job-name=kvant-quantize\n#SBATCH --array=0-{last}\n#SBATCH --cpus-per-task={threads}\n\
             #SBATCH --mem={memory}M\n#SBATCH --requeue\nset -e\ncd {directory}\n{line}\n"
        );
        SchedulerFile { name: "slurm.sh", text }
    }

    /// A task on several nodes.
    fn skypilot(&self) -> SchedulerFile {
        let Workers { count, threads, .. } = self;
        let gibibytes = self.mebibytes().div_ceil(1024);
        let directory = shell_word(self.directory);
        let line = self.line();
        let text = format!(
            "# sky launch skypilot.yaml\n# Mount the storage with the model at the directory below (file_mounts), and install kvant in setup.\n\
             name: kvant-quantize\nnum_nodes: {count}\nresources:\n  cpus: {threads}+\n  memory: {gibibytes}+\nrun: |\n  set -e\n  cd {directory}\n  {line}\n"
        );
        SchedulerFile { name: "skypilot.yaml", text }
    }
}

/// A text as JSON writes it, which YAML reads.
fn json_text(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// The command that a plan previews: `plan` becomes `quantize`, and options of plans alone are left out.
pub fn quantize_command(plan: &[OsString]) -> Vec<OsString> {
    const WITH_VALUE: [&str; 2] = ["--workers", "--write-jobs"];
    // Files are replaced by those of the plan, not by workers that run again.
    const ALONE: [&str; 3] = ["--all", "--json", "--overwrite"];
    let mut command = vec![OsString::from("kvant")];
    let (mut is_value, mut is_named) = (false, false);
    for word in plan {
        let text = word.to_string_lossy();
        let is_joined = WITH_VALUE.iter().any(|option| text.starts_with(&format!("{option}=")));
        match () {
            () if is_value => is_value = false,
            () if WITH_VALUE.contains(&&*text) => is_value = true,
            () if is_joined || ALONE.contains(&&*text) => {}
            () if !is_named && text == "plan" => {
                is_named = true;
                command.push("quantize".into());
            }
            () => command.push(word.clone()),
        }
    }
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_of_a_plan_is_that_of_the_quantization() {
        let line = ["plan", "plan", "-s", "int4:g32", "--workers=4", "--write-jobs", "jobs", "--all", "-o", "out"];
        let command = quantize_command(&line.map(OsString::from));
        assert_eq!(command, ["kvant", "quantize", "plan", "-s", "int4:g32", "-o", "out"].map(OsString::from));
    }

    #[test]
    fn words_are_quoted_for_shells_and_yaml() {
        let command = ["kvant", "quantize", "my model", "-o", "it's"].map(OsString::from);
        let workers = Workers {
            count: 3,
            command: &command,
            directory: Path::new("/data/my models"),
            memory: 1 << 30,
            threads: 2,
            paths: Vec::new(),
        };
        assert!(
            workers.slurm().text.contains("cd '/data/my models'\nkvant quantize 'my model' -o "),
            "{}",
            workers.slurm().text
        );
        assert!(workers.slurm().text.contains("--array=0-2") && workers.slurm().text.contains("--mem=1536M"));
        let kubernetes = workers.kubernetes().text;
        assert!(
            kubernetes.contains(r#"command: ["kvant", "quantize", "my model", "-o", "it's", "--worker", "auto/3"]"#)
        );
        assert!(workers.skypilot().text.contains("memory: 2+"));
    }
}
