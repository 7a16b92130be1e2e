//! The report as text, for a terminal.

use crate::jobs::analyze::kept::readable;
use crate::jobs::analyze::report::{
    Interval, Lag, OffPolicy, Report, RunReport, Sample, Size, Solved, Times, Values, Versions,
};
use comfy_table::{CellAlignment, Table, presets};
use std::collections::BTreeMap;
use std::fmt::{Display, Write};

/// Characters of a task's name.
const NAME: usize = 60;
/// Characters of the longest bar.
const BAR: f64 = 10.0;

pub(super) fn render(report: &Report) -> String {
    report.runs.iter().map(run).collect::<Vec<_>>().join("\n\n")
}

/// The text so far. Writing to a `String` cannot fail.
#[derive(Default)]
struct Page(String);

impl Page {
    fn line(&mut self, line: impl Display) {
        self.0.push_str(&format!("{line}\n"));
    }

    fn head(&mut self, title: &str) {
        self.line(format_args!("\n{title}"));
    }

    /// Columns are right-aligned, but for the last of `left` ones.
    fn table<const N: usize>(&mut self, header: [&str; N], rows: impl Iterator<Item = [String; N]>) {
        let mut table = Table::new();
        table.load_style(presets::NOTHING).set_header(header);
        table.add_rows(rows);
        table.column_iter_mut().for_each(|column| column.set_cell_alignment(CellAlignment::Right));
        for line in table.lines() {
            self.line(line.trim_end());
        }
    }
}

fn run(r: &RunReport) -> String {
    let mut page = Page::default();
    let steps = match (r.first_step, r.last_step) {
        (Some(first), Some(last)) => format!("steps {first} to {last}"),
        _ => "no trained step".to_owned(),
    };
    page.line(format_args!("{}: {steps}, {} files read, {} skipped", r.run.display(), r.files.read, r.files.skipped));
    r.files.skipped_names.iter().for_each(|name| page.line(format_args!("  skipped: {name}")));
    r.files.notes.iter().for_each(|note| page.line(format_args!("  note: {note}")));
    let statuses = r.statuses.iter().map(|(status, n)| format!("{n} {status}")).collect::<Vec<_>>();
    page.line(format_args!("rollouts: {}", if statuses.is_empty() { "none".to_owned() } else { statuses.join(", ") }));
    let w = &r.reward;
    page.line(format_args!(
        "reward {} (success {}) of trained rollouts; {} (success {}) of all that were scored",
        number(w.trained),
        percent(w.success),
        number(w.sampled),
        percent(w.success_sampled)
    ));
    over_steps(&mut page, &r.over_steps);
    lag(&mut page, &r.lag, &r.off_policy);
    let a = &r.advantage;
    let range = [a.min, a.max].map(|x| number(x.map(f64::from)));
    page.head("advantages");
    page.line(format_args!(
        "  mean {}, deviation {}, from {} to {}; exactly 0 for {} of {} tokens",
        number(a.mean),
        number(a.deviation),
        range[0],
        range[1],
        percent(a.zero),
        a.tokens
    ));
    r.value.iter().for_each(|v| values(&mut page, v));
    times(&mut page, &r.time);
    versions(&mut page, &r.versions);
    sizes(&mut page, r);
    solved(&mut page, "most solved prompts", &r.prompts.most_solved);
    solved(&mut page, "least solved prompts", &r.prompts.least_solved);
    if r.prompts.rollouts_not_counted > 0 {
        let rest = r.prompts.rollouts_not_counted;
        page.line(format_args!("  of the first {} prompts; {rest} rollouts of others are not counted", r.prompts.counted));
    }
    samples(&mut page, "longest rollouts", &r.longest);
    samples(&mut page, "most surprising rollouts (lowest mean logp_behavior)", &r.most_surprising);
    page.0
}

fn over_steps(page: &mut Page, intervals: &[Interval]) {
    if intervals.is_empty() {
        return;
    }
    page.head("over steps");
    let header = ["steps", "rollouts", "reward", "", "success", "length", "stop", "lag mean", "lag max", "ESS"];
    let rewards = || intervals.iter().filter_map(|i| i.reward).filter(|r| r.is_finite());
    let (low, high) = (rewards().fold(0.0, f64::min), rewards().fold(0.0, f64::max));
    let row = |i: &Interval| {
        [
            format!("{}..{}", i.first_step, i.last_step),
            i.rollouts.to_string(),
            number(i.reward),
            bar(i.reward, low, high),
            percent(i.success),
            number(i.length),
            stops(&i.stops),
            number(i.lag_mean),
            whole(i.lag_max),
            number(i.ess),
        ]
    };
    page.table(header, intervals.iter().map(row));
    if intervals.iter().any(|i| i.reference_k3.is_some()) {
        let kl = intervals.iter().map(|i| number(i.reference_k3)).collect::<Vec<_>>();
        page.line(format_args!("  KL k3 of the behavior policy from its reference, in these parts: {}", kl.join(", ")));
    }
}

fn lag(page: &mut Page, lag: &Lag, off: &OffPolicy) {
    page.head("lag of trained tokens, steps");
    let bound = lag.bound.map_or("unknown (no spec in the files)".to_owned(), |bound| bound.to_string());
    page.line(format_args!("  mean {}, max {}, bound {bound}", number(lag.mean), whole(lag.max)));
    if lag.left_out > 0 {
        let trained: u64 = lag.by_lag.iter().map(|row| row.tokens).sum();
        let share = percent(Some(lag.left_out as f64 / (trained + lag.left_out) as f64));
        page.line(format_args!(
            "  {} tokens ({share}) left out by learn.safeguard.max_lag: in no figure here",
            lag.left_out
        ));
    }
    if lag.broken > 0 {
        page.line(format_args!("  BROKEN: {} tokens have a lag above the bound or below 0", lag.broken));
    }
    page.line(format_args!(
        "  current against behavior policy: ESS {}, KL k1 {}, k3 {} nats a token (of ratios before truncation, over all of them; a step's metric ess is after it)",
        number(off.ess),
        number(off.k1),
        number(off.k3)
    ));
    if off.reference_k1.is_some() {
        page.line(format_args!(
            "  behavior policy against its reference: KL k1 {}, k3 {} nats a token",
            number(off.reference_k1),
            number(off.reference_k3)
        ));
    }
    if lag.by_lag.is_empty() {
        return;
    }
    let most = lag.by_lag.iter().map(|row| row.share).fold(0.0, f64::max);
    let rows = lag.by_lag.iter().map(|row| {
        let name = if row.from == row.to { row.from.to_string() } else { format!("{}..{}", row.from, row.to) };
        let share = percent(Some(row.share));
        let bar = bar(Some(row.share), 0.0, most);
        [name, row.tokens.to_string(), share, bar, number(row.ess), number(row.k1), number(row.k3)]
    });
    page.table(["lag", "tokens", "share", "", "ESS", "k1", "k3"], rows);
    let tenth = |share: f64| format!("{:.0}%", share * 100.0);
    let rows = lag.by_position.iter().map(|row| {
        let place = format!("{}..{}", tenth(row.from), tenth(row.from + 0.1));
        [place, number(row.lag_mean), whole(row.lag_max)]
    });
    page.table(["of the response", "lag mean", "lag max"], rows);
}

fn values(page: &mut Page, v: &Values) {
    page.head("the critic's values against the rewards that came of them");
    page.line(format_args!("  explained variance {} over {} tokens", number(v.explained_variance), v.tokens));
    let rows = v.by_value.iter().map(|row| [row.tokens.to_string(), number(Some(row.value)), number(Some(row.of_reward))]);
    page.table(["tokens", "mean value", "mean reward"], rows);
}

fn times(page: &mut Page, t: &Times) {
    page.head("time");
    page.line(format_args!(
        "  {} s; sampled {} tokens/s and {} rollouts/s, trained {} tokens/s",
        number(t.wall_s),
        number(t.sampled_tokens_per_s),
        number(t.sampled_rollouts_per_s),
        number(t.trained_tokens_per_s)
    ));
    page.line(format_args!(
        "  a rollout waits {} s for a slot, is generated in {} s, waits {} s for its step",
        number(t.queued_s),
        number(t.generating_s),
        number(t.ready_s)
    ));
    page.line(format_args!(
        "  the learner trains {} s, waits {} s for groups that the lag bound forces, {} s for any and {} s for the log",
        number(Some(t.training_s)),
        number(Some(t.waiting_forced_s)),
        number(Some(t.waiting_any_s)),
        number(Some(t.waiting_log_s)),
    ));
    let without = [
        (t.held_steps, "held their gradient for a later one"),
        (t.paused_steps, "paused for a low ESS"),
        (t.skipped_steps, "skipped: an outlier, or nothing to train"),
    ];
    let told: Vec<String> = without.iter().filter(|(n, _)| *n > 0).map(|(n, why)| format!("{n} {why}")).collect();
    if !told.is_empty() {
        page.line(format_args!("  steps that left the weights as they were: {}", told.join("; ")));
    }
    if let Some(idle) = t.balance.and_then(|shares| shares.idle) {
        let shares = t.balance.unwrap_or_default();
        page.line(format_args!(
            "  in steady state the learner waited {} of its time for groups, and generators had nothing to do {} of theirs",
            percent(Some(shares.waited_any + shares.waited_forced)),
            percent(Some(idle))
        ));
    }
    t.advice.iter().for_each(|advice| page.line(format_args!("  advice: {advice}")));
}

fn versions(page: &mut Page, v: &Versions) {
    page.head("rollouts with tokens of two or more versions");
    let longest =
        v.longest_task.as_deref().map_or(String::new(), |task| format!("; the longest task is {}", readable(task, NAME)));
    page.line(format_args!("  {} of all{longest}", percent(v.mixed)));
    if !v.tasks.is_empty() {
        let rows = v.tasks.iter().map(|task| {
            [
                readable(&task.task, NAME),
                task.rollouts.to_string(),
                number(task.length),
                percent(task.success),
                percent(task.mixed),
            ]
        });
        page.table(["task", "rollouts", "length", "success", "mixed"], rows);
    }
}

/// Success by size, over the parts of the run too: a dot where a part had none.
fn sizes(page: &mut Page, r: &RunReport) {
    if r.sizes.is_empty() {
        return;
    }
    page.head("sizes of generated tasks: share of the groups, success, and success in each part of the run");
    let groups = r.sizes.iter().map(|size| size.groups).sum::<u64>() as f64;
    let part = |interval: &Interval, of: &Size| {
        let found = interval.sizes.iter().find(|size| (&size.task, size.size) == (&of.task, of.size));
        found.and_then(|size| size.success).map_or(".".to_owned(), |success| format!("{:.0}", 100.0 * success))
    };
    let row = |size: &Size| {
        let parts: Vec<String> = r.over_steps.iter().map(|interval| format!("{:>3}", part(interval, size))).collect();
        let share = percent(Some(size.groups as f64 / groups));
        [
            readable(&size.task, NAME),
            size.size.to_string(),
            size.groups.to_string(),
            share,
            percent(size.success),
            parts.join(" "),
        ]
    };
    page.table(["task", "size", "groups", "share", "success", "over steps, %"], r.sizes.iter().map(row));
}

fn solved(page: &mut Page, title: &str, prompts: &[Solved]) {
    if !prompts.is_empty() {
        page.head(title);
    }
    for p in prompts {
        page.line(format_args!("  {}/{} prompt {}: {}", p.solved, p.rollouts, p.prompt_id, p.prompt));
    }
}

fn samples(page: &mut Page, title: &str, samples: &[Sample]) {
    if !samples.is_empty() {
        page.head(title);
    }
    for s in samples {
        let mut facts = format!("{} tokens, stop {}, logp {}", s.tokens, s.stop, number(s.logp_mean));
        if let Some(reward) = s.reward {
            // Writing to a `String` cannot fail.
            let _ = write!(facts, ", reward {}", number(Some(reward.into())));
        }
        page.line(format_args!("  group {} sample {} (step {}, {}): {facts}", s.group, s.sample, s.step, s.status));
        page.line(format_args!("    prompt {}: {}", s.prompt_id, s.prompt));
        page.line(format_args!("    completion: {}", s.completion));
    }
}

fn stops(stops: &BTreeMap<&'static str, f64>) -> String {
    let shares = stops.iter().map(|(stop, share)| format!("{stop} {}", percent(Some(*share))));
    shares.collect::<Vec<_>>().join(" ")
}

/// Four significant digits, or a dash.
fn number(x: Option<f64>) -> String {
    let Some(x) = x else { return "-".to_owned() };
    let size = x.abs();
    if size == 0.0 {
        return "0".to_owned();
    }
    if !size.is_finite() {
        return x.to_string();
    }
    match size {
        s if s < 1e-3 => format!("{x:.1e}"),
        s if s < 10.0 => format!("{x:.3}"),
        s if s < 100.0 => format!("{x:.2}"),
        s if s < 1000.0 => format!("{x:.1}"),
        _ => format!("{x:.0}"),
    }
}

fn percent(share: Option<f64>) -> String {
    share.map_or("-".to_owned(), |share| format!("{:.1}%", share * 100.0))
}

fn whole(x: Option<i64>) -> String {
    x.map_or("-".to_owned(), |x| x.to_string())
}

/// A bar between the least and the largest value.
fn bar(x: Option<f64>, low: f64, high: f64) -> String {
    let share = x.map_or(0.0, |x| (x - low) / (high - low));
    // NaN, where all is 0, casts to 0.
    let filled = (share * BAR).round() as usize;
    format!("{:<width$}", "█".repeat(filled.min(BAR as usize)), width = BAR as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        let cases = [
            (0.0, "0"),
            (0.000_012_34, "1.2e-5"),
            (0.123_456, "0.123"),
            (-1.5, "-1.500"),
            (12.345, "12.35"),
            (123.45, "123.5"),
            (1234.5, "1234"),
            (f64::NAN, "NaN"),
            (f64::NEG_INFINITY, "-inf"),
        ];
        for (x, text) in cases {
            assert_eq!(number(Some(x)), text);
        }
        assert_eq!((number(None), percent(None), whole(None)), ("-".to_owned(), "-".to_owned(), "-".to_owned()));
        assert_eq!(percent(Some(0.125)), "12.5%");
    }

    #[test]
    fn bars_are_as_wide_as_their_share() {
        assert_eq!(bar(Some(0.5), 0.0, 1.0), "█████     ");
        assert_eq!(bar(Some(-1.0), -1.0, 1.0), "          ");
        assert_eq!(bar(Some(0.0), 0.0, 0.0), "          ");
        assert_eq!(bar(None, 0.0, 1.0), "          ");
    }
}
