//! The command line: one file a command.

/// Parses the arguments and runs the command they name.
pub fn main() -> std::process::ExitCode {
    std::process::ExitCode::SUCCESS
}
