//! The calling thread's time on the processor (floor 0): what a share of work is measured in on a machine that others use too.

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds that the calling thread has been on the processor.
pub fn thread_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Catches a wall clock in its place: sleeping costs nothing, working does.
    #[test]
    fn counts_work_and_not_sleep() {
        let start = thread_ns();
        std::thread::sleep(std::time::Duration::from_millis(30));
        let slept = thread_ns() - start;
        let mut x = 1u64;
        while thread_ns() - start < slept + 5_000_000 {
            x = std::hint::black_box(x.wrapping_mul(3));
        }
        assert!(slept < 25_000_000, "sleeping for 30 ms cost {slept} ns");
    }
}
