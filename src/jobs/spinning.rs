//! How long libtorch's threads wait for each other before they sleep.
//!
//! libgomp's threads spin between two loops, 300,000 rounds unless told otherwise. Where other programs want the processors too, a thread that
//! spins takes its partner's turn, and a small model's work, hundreds of loops a step, takes many times as long. With 3,000 rounds a
//! quiet machine loses about 4 %. libgomp reads the number once, as the program is loaded, so the program begins anew with it.

use std::env;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// The variables by which a person says otherwise.
const SAID: [&str; 2] = ["OMP_WAIT_POLICY", "GOMP_SPINCOUNT"];
const ROUNDS: &str = "3000";

/// Begins this program anew, in the same process, with threads that sleep soon; returns at once where that was said already, or cannot be.
pub fn sleep_soon() {
    if SAID.iter().any(|name| env::var_os(name).is_some()) {
        return;
    }
    let mut arguments = env::args_os();
    let (Ok(program), Some(name)) = (env::current_exe(), arguments.next()) else { return };
    // It returns only where it failed, and then the program goes on as it is.
    let _ = Command::new(program).arg0(name).args(arguments).env(SAID[1], ROUNDS).exec();
}
