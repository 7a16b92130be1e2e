//! The command line: one file a command. A doc comment on a field is its help.

mod analyze;
mod eval;
mod experiment;
mod plan;
mod replay;
mod resume;
mod run;
mod sft;

use crate::jobs::{say, spinning};
use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// Reinforcement learning for language models as one timely dataflow
///
/// Generates and trains at once, hands the newest weights to unfinished sequences, keeps every rollout as Parquet, and never
/// trains a token whose lag is above the bound that the spec sets.
#[derive(Debug, Parser)]
#[command(name = "tidegate", version, propagate_version = true, max_term_width = 100)]
#[command(after_help = "Start here: tidegate run data/demo.toml\nExit codes: 0 done, 1 the run failed, 2 wrong usage or \
                        configuration, 129/130/143 stopped by a signal after a clean shutdown.")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Run(run::Args),
    Resume(resume::Args),
    Replay(replay::Args),
    Analyze(analyze::Args),
    Eval(Box<eval::Args>),
    Experiment(experiment::Args),
    Plan(plan::Args),
    Sft(sft::Args),
}

/// Parses the arguments, runs the command they name and says what went wrong, if anything.
pub fn main() -> ExitCode {
    let command = Cli::parse().command;
    if !matches!(command, Command::Analyze(_)) {
        spinning::sleep_soon();
    }
    let result = match command {
        Command::Run(args) => args.execute(),
        Command::Resume(args) => args.execute(),
        Command::Replay(args) => args.execute(),
        Command::Analyze(args) => args.execute(),
        Command::Eval(args) => args.execute(),
        Command::Experiment(args) => args.execute(),
        Command::Plan(args) => args.execute(),
        Command::Sft(args) => args.execute(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(format_args!("error: {error}"));
            ExitCode::from(error.exit_code())
        }
    }
}
