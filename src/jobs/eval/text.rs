//! An evaluation's report as text, for a terminal.

use crate::engine::spec::Dtype;
use crate::jobs::eval::report::{Measure, Report, TaskReport};
use crate::jobs::program;
use comfy_table::{Table, presets};
use std::fmt;

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let model = self.model.as_ref().map_or_else(|| "the toy engine".to_owned(), |model| model.display().to_string());
        let dtype = match self.generate.dtype {
            Dtype::Fp32 => "fp32",
            Dtype::Bf16 => "bf16",
        };
        writeln!(f, "model     {model}: {}; {} in {dtype}", self.described, self.device)?;
        let (prompts, tasks) = (self.total.prompts, self.tasks.keys().map(String::as_str).collect::<Vec<_>>().join(", "));
        match &self.data {
            Some(file) => writeln!(f, "prompts   {prompts} of {}", file.display())?,
            None => writeln!(f, "prompts   {prompts} held out, generated: {tasks}")?,
        }
        writeln!(f, "answers   {}", how(self))?;
        writeln!(f, "{}", table(self))?;
        if self.total.success.standard_error.is_some() {
            writeln!(f, "          ± is the standard error of the mean over prompts")?;
        }
        if self.total.unscored > 0 {
            let TaskReport { unscored, refused, .. } = self.total;
            writeln!(
                f,
                "unscored  {unscored} answers have no reward and are in no mean; of {refused} the prompt was refused"
            )?;
        }
        let (answers, tokens) = (self.total.rollouts, self.total.tokens);
        write!(
            f,
            "speed     {answers} answers, {tokens} tokens in {:.1} s: {:.0} tokens/s",
            self.seconds, self.tokens_per_s
        )?;
        self.rollouts.as_ref().map_or(Ok(()), |file| {
            let file = file.display();
            write!(f, "\nkept      {file}\nnext      {} analyze {file}", program())
        })
    }
}

/// How answers were chosen.
fn how(report: &Report) -> String {
    let g = &report.generate;
    let limit = format!("at most {} tokens", g.max_tokens);
    if g.temperature == 0.0 {
        return format!("1 a prompt, greedy, {limit}");
    }
    let top_k = if g.top_k > 0 { format!(", top_k {}", g.top_k) } else { String::new() };
    let top_p = if g.top_p < 1.0 { format!(", top_p {}", g.top_p) } else { String::new() };
    format!("{} a prompt, temperature {}{top_k}{top_p}, {limit}, seed {}", report.samples, g.temperature, report.seed)
}

/// A row a task; and one of all, where they are several.
fn table(report: &Report) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_HORIZONTAL_ONLY);
    // pass@1 is the success.
    let ks: Vec<u64> = report.total.pass_at.keys().copied().filter(|k| *k > 1).collect();
    let mut header: Vec<String> = ["task", "prompts", "reward", "success"].map(str::to_owned).into();
    header.extend(ks.iter().map(|k| format!("pass@{k}")));
    header.extend(["tokens", "cut"].map(str::to_owned));
    table.set_header(header);
    let all = (report.tasks.len() != 1).then_some(("all", &report.total));
    for (name, task) in report.tasks.iter().map(|(name, task)| (name.as_str(), task)).chain(all) {
        let mut row = vec![name.to_owned(), task.prompts.to_string(), plain(task.reward), percent(task.success)];
        row.extend(ks.iter().map(|k| percent(task.pass_at.get(k).copied().unwrap_or_default())));
        row.push(task.length.map_or_else(none, |length| format!("{length:.1}")));
        row.push(task.cut.map_or_else(none, |cut| format!("{:.1} %", 100.0 * cut)));
        table.add_row(row);
    }
    table
}

fn none() -> String {
    "-".to_owned()
}

fn plain(measure: Measure) -> String {
    let error = measure.standard_error.map_or_else(String::new, |error| format!(" ± {error:.3}"));
    measure.mean.map_or_else(none, |mean| format!("{mean:.3}{error}"))
}

fn percent(measure: Measure) -> String {
    let error = measure.standard_error.map_or_else(String::new, |error| format!(" ± {:.1}", 100.0 * error));
    measure.mean.map_or_else(none, |mean| format!("{:.1} %{error}", 100.0 * mean))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::spec::Sampling;
    use std::collections::BTreeMap;

    fn report(names: &[&str]) -> Report {
        let measure = |mean, error| Measure { mean, standard_error: error, prompts: 3 };
        let success = measure(Some(0.25), Some(0.0523));
        let task = TaskReport {
            prompts: 3,
            rollouts: 12,
            reward: measure(Some(-0.5), Some(0.1234)),
            success,
            pass_at: BTreeMap::from([(1, success), (4, measure(Some(1.0), None))]),
            tokens: 60,
            length: Some(5.0),
            cut: Some(0.125),
            ..TaskReport::default()
        };
        Report {
            model: Some("m".into()),
            described: "2 layers".to_owned(),
            version: 0,
            model_hash: String::new(),
            data: None,
            samples: 4,
            seed: 7,
            device: "cpu".to_owned(),
            threads: 1,
            generate: Sampling { temperature: 0.5, top_k: 5, top_p: 0.9, ..Sampling::default() },
            seconds: 2.0,
            tokens_per_s: 30.0,
            tasks: names.iter().map(|name| ((*name).to_owned(), task.clone())).collect(),
            total: task,
            rollouts: None,
        }
    }

    /// Catches a share without its error, an error of nothing, pass@1 beside the success that it is, settings that are not told.
    #[test]
    fn a_screen_says_what_was_asked_how_and_what_it_came_to() {
        let said = report(&["addition", "sorting"]).to_string();
        let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        let lines: Vec<String> = said.lines().map(words).filter(|line| line.contains(char::is_alphanumeric)).collect();
        assert_eq!(
            lines,
            [
                "model m: 2 layers; cpu in fp32",
                "prompts 3 held out, generated: addition, sorting",
                "answers 4 a prompt, temperature 0.5, top_k 5, top_p 0.9, at most 256 tokens, seed 7",
                "task prompts reward success pass@4 tokens cut",
                "addition 3 -0.500 ± 0.123 25.0 % ± 5.2 100.0 % 5.0 12.5 %",
                "sorting 3 -0.500 ± 0.123 25.0 % ± 5.2 100.0 % 5.0 12.5 %",
                "all 3 -0.500 ± 0.123 25.0 % ± 5.2 100.0 % 5.0 12.5 %",
                "± is the standard error of the mean over prompts",
                "speed 12 answers, 60 tokens in 2.0 s: 30 tokens/s",
            ]
        );
    }

    #[test]
    fn what_there_is_not_is_left_out() {
        let mut one = report(&["a.jsonl"]);
        one.data = Some("p.jsonl".into());
        one.model = None;
        one.generate.temperature = 0.0;
        one.total = TaskReport { prompts: 3, unscored: 12, refused: 4, ..TaskReport::default() };
        one.rollouts = Some("r.parquet".into());
        let said = one.to_string();
        assert!(said.starts_with("model     the toy engine: 2 layers; cpu in fp32\nprompts   3 of p.jsonl\n"), "{said}");
        assert!(said.contains("\nanswers   1 a prompt, greedy, at most 256 tokens\n") && !said.contains("all"), "{said}");
        assert!(said.contains("\nunscored  12 answers have no reward and are in no mean; of 4 the prompt was refused\n"));
        assert!(!said.contains("standard error"), "{said}");
        let next = format!("\nkept      r.parquet\nnext      {} analyze r.parquet", program());
        assert!(said.ends_with(&next), "{said}");
        assert_eq!((plain(Measure::default()), percent(Measure::default())), ("-".to_owned(), "-".to_owned()));
    }
}
