//! `tidegate experiment`.

use crate::error::Result;
use crate::jobs::experiment::job::{Options, Work, experiment};
use crate::jobs::lines::Form;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  tidegate experiment losses                      # data/experiments/losses.toml: what has no result yet
  tidegate experiment losses --table --markdown   # no run: the table of the results that are there
  tidegate experiment losses --only loss=ppo --only max_lag=8 --seeds 4,5
  tidegate experiment sensitivity --only setting=demo --set learn.lr=5e-5 --set learn.lr=2e-4
  tidegate experiment losses --table --html losses.html   # the same with curves, to be opened in a browser
  tidegate experiment mine.toml --again";

/// Run the same specification under several settings and seeds, and compare what it comes to
///
/// An experiment's file names a specification, axes of settings and seeds; a cell is one value of each axis and a seed, and runs as a
/// process of its own. What a cell came to is kept as a line of JSON beside the file, so that an experiment that is interrupted goes on
/// where it stopped; a line counts only for the settings that it was made with. Prints a row for each setting: means and sample
/// deviations over its seeds. The runs stay in runs/experiments/NAME, to be analyzed or replayed.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// An experiment's file, or the name of one in data/experiments/
    experiment: PathBuf,
    /// Seeds in place of the experiment's
    #[arg(long, value_name = "N,..", value_delimiter = ',')]
    seeds: Vec<u64>,
    /// Only cells with this value; of one axis several may be named
    #[arg(long, value_name = "AXIS=VALUE")]
    only: Vec<String>,
    /// Lay an assignment over every cell, as with run; several of one key are compared. It is one more axis, with its results beside the others
    #[arg(long = "set", value_name = "KEY=VALUE")]
    sets: Vec<String>,
    /// Where the runs go [default: runs/experiments/NAME]
    #[arg(long, value_name = "FOLDER")]
    output: Option<PathBuf>,
    /// Where results are kept [default: beside the experiment's file, .jsonl]
    #[arg(long, value_name = "FILE")]
    results: Option<PathBuf>,
    /// Run cells that have a result, too
    #[arg(long)]
    again: bool,
    /// Run nothing; print the results that are there
    #[arg(long, conflicts_with = "again")]
    table: bool,
    /// Print the table as Markdown
    #[arg(long)]
    markdown: bool,
    /// Also write a page with the table and curves: reward against time and rollouts, lag and ESS over steps, with bands over seeds
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

impl Args {
    pub fn execute(self) -> Result<()> {
        experiment(&Options {
            experiment: self.experiment,
            seeds: self.seeds,
            only: self.only,
            sets: self.sets,
            output: self.output,
            results: self.results,
            work: match (self.again, self.table) {
                (_, true) => Work::Nothing,
                (true, false) => Work::Again,
                (false, false) => Work::Missing,
            },
            html: self.html,
            form: if self.markdown { Form::Markdown } else { Form::Terminal },
        })
    }
}
