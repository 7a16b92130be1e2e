//! No reward program outlives this one, however this one ends.
//!
//! A program that reads its standard input sees the end of it and leaves by itself. One that hangs does not, and `kill -9` or
//! an exit in the middle runs no code here that could end it. So a small shell waits at a pipe whose other end closes with this
//! process, and ends the process groups that it was told of and not told to forget.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Mutex, PoisonError};

/// Reads `+ GROUP` and `- GROUP`. At the end of its input, programs have a second to leave by themselves.
const WATCH: &str = r#"
trap '' INT TERM HUP
groups=
while read -r what group; do
  case $what in
    +) groups="$groups $group" ;;
    -) left=; for g in $groups; do [ "$g" = "$group" ] || left="$left $g"; done; groups=$left ;;
  esac
done
[ -z "$groups" ] || sleep 1
for group in $groups; do kill -s KILL -- "-$group" 2>/dev/null; done
"#;

/// Watches over the reward programs of this process. Without a shell on the machine it does nothing.
pub struct Guard {
    child: Option<Child>,
    tell: Mutex<Option<ChildStdin>>,
}

impl Guard {
    pub fn start() -> Guard {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", WATCH]).env_clear().env("PATH", "/usr/local/bin:/usr/bin:/bin");
        // A terminal's Ctrl-C goes to the whole group of the foreground: this is another.
        command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().ok();
        let tell = Mutex::new(child.as_mut().and_then(|child| child.stdin.take()));
        Guard { child, tell }
    }

    /// The process group must end when this process does.
    pub fn add(&self, group: u32) {
        self.say('+', group);
    }

    /// The process group is at its end: its number may soon be another's.
    pub fn remove(&self, group: u32) {
        self.say('-', group);
    }

    fn say(&self, what: char, group: u32) {
        let mut tell = self.tell.lock().unwrap_or_else(PoisonError::into_inner);
        // One who ended the shell did so on purpose; programs that read their input still leave by themselves.
        if tell.as_mut().is_some_and(|pipe| pipe.write_all(format!("{what} {group}\n").as_bytes()).is_err()) {
            *tell = None;
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        *self.tell.get_mut().unwrap_or_else(PoisonError::into_inner) = None;
        if let Some(mut child) = self.child.take() {
            // It ends with its input.
            let _ = child.wait();
        }
    }
}
