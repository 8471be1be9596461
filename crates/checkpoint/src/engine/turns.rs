//! Jobs shared among threads, in order. Not what a job is.

use super::EngineError;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Every thread takes the next job until none is left, so that the source is read in order; inside a job its parts may be
/// shared among idle threads. The first error stops all.
///
/// # Errors
/// The first that a job meets; [`EngineError::Threads`] where there are no threads.
pub(crate) fn take_turns(
    threads: usize,
    jobs: &[usize],
    work: impl Fn(usize) -> Result<(), EngineError> + Sync,
) -> Result<(), EngineError> {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
    let pool = pool.map_err(|_| EngineError::Threads(threads))?;
    let (next, failed) = (AtomicUsize::new(0), AtomicBool::new(false));
    let error = Mutex::new(None);
    let take_jobs = || {
        while let (false, Some(job)) = (failed.load(Ordering::Relaxed), jobs.get(next.fetch_add(1, Ordering::Relaxed)))
        {
            if let Err(problem) = work(*job) {
                failed.store(true, Ordering::Relaxed);
                error.lock().map(|mut first| first.get_or_insert(problem).to_string()).ok();
            }
        }
    };
    pool.install(|| {
        rayon::scope(|scope| (0..rayon::current_num_threads()).for_each(|_| scope.spawn(|_| take_jobs())));
    });
    error.into_inner().ok().flatten().map_or(Ok(()), Err)
}
