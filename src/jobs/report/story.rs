//! A run in a few sentences with figures: what a reader would say of it after an hour with its pictures.

use crate::jobs::analyze::RunReport;
use crate::jobs::eval::Evaluation;
use crate::jobs::outcome::Told;
use crate::jobs::report::series::{Columns, End, Series};
use crate::spec::{EngineKind, ScheduleKind, Spec};
use indicatif::HumanCount;
use serde::Serialize;

/// A part of a sentence: words, or a figure that stands out.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Words {
    Plain(String),
    Figure { figure: String },
}

/// What is said of a run, a sentence each.
pub type Sentence = Vec<Words>;

/// A sentence whose `{}` are the figures, in order.
pub fn sentence(text: &str, figures: &[String]) -> Sentence {
    let mut figures = figures.iter();
    let mut words = Vec::new();
    for (i, part) in text.split("{}").enumerate() {
        if i > 0 {
            words.extend(figures.next().map(|figure| Words::Figure { figure: figure.clone() }));
        }
        if !part.is_empty() {
            words.push(Words::Plain(part.to_owned()));
        }
    }
    words
}

/// A text of the run as a part of a sentence's text: it stands for no figure.
pub(super) fn plain(text: &str) -> String {
    text.replace("{}", "{ }")
}

/// What there is to tell it from.
pub(super) struct Known<'a> {
    pub(super) report: &'a RunReport,
    pub(super) columns: &'a Columns,
    pub(super) spec: Option<&'a Spec>,
    pub(super) told: Option<&'a Told>,
    /// From the first admission to the end of the last step.
    pub(super) seconds: Option<f64>,
}

/// The run's story.
pub(super) fn story(known: &Known<'_>) -> Vec<Sentence> {
    let mut all = vec![what(known)];
    let emulated = known.spec.is_some_and(|spec| spec.model.engine == EngineKind::Emulation);
    if emulated {
        all.extend(kept_up(known));
    } else {
        all.extend(learned(known));
        all.push(held_out(known));
    }
    all.extend(lag(known));
    all.extend(off_policy(known).filter(|_| !emulated));
    all.extend(waited(known));
    all.extend(left(known));
    all
}

fn what(known: &Known<'_>) -> Sentence {
    let r = known.report;
    let trained = r.statuses.get("trained").copied().unwrap_or(0);
    let (Some(first), Some(last)) = (r.first_step, r.last_step) else {
        return sentence(
            "No step of this run is in its log: {} rollouts were sampled.",
            &[count(r.statuses.values().sum())],
        );
    };
    let mut text = "{}".to_owned();
    let mut figures = vec![known.spec.map_or_else(|| "A model".to_owned(), model)];
    if let Some(told) = known.told.filter(|told| !told.model.is_empty()) {
        text += &format!(" ({})", plain(&told.model));
    }
    text += " trained ";
    let tasks: Vec<&str> = r.versions.tasks.iter().map(|task| task.task.as_str()).filter(|task| !task.is_empty()).collect();
    if !tasks.is_empty() && tasks.len() <= 5 {
        text += &format!("on {} ", plain(&list(&tasks)));
    }
    let steps = last - first + 1;
    text += if steps == 1 { "for {} step" } else { "for {} steps" };
    figures.push(count(steps));
    if let Some(seconds) = known.seconds {
        text += " in {}";
        figures.push(duration(seconds));
    }
    if let Some(spec) = known.spec {
        text += match spec.schedule.kind {
            ScheduleKind::Pipeline => ", sampling while it trained (pipeline)",
            ScheduleKind::Conventional => ", sampling and training by turns (conventional)",
            ScheduleKind::OneStepOff => ", sampling for the next phase while it trained one (one step off)",
        };
    }
    text += ": {} rollouts";
    figures.push(count(trained));
    if let Some(length) = mean_length(known.report) {
        text += &format!(" of {} tokens on average", number(length));
    }
    text.push('.');
    sentence(&text, &figures)
}

fn model(spec: &Spec) -> String {
    let name = spec.model.path.file_name().map(|name| name.to_string_lossy().into_owned());
    match spec.model.engine {
        EngineKind::Toy => "The toy engine".to_owned(),
        EngineKind::Emulation => "A model on emulated accelerators".to_owned(),
        EngineKind::Torch => name.unwrap_or_else(|| "A model".to_owned()),
    }
}

/// Over trained rollouts.
fn mean_length(r: &RunReport) -> Option<f64> {
    let rollouts: u64 = r.over_steps.iter().map(|part| part.rollouts).sum();
    let tokens: f64 = r.over_steps.iter().filter_map(|part| Some(part.length? * part.rollouts as f64)).sum();
    (rollouts > 0).then(|| tokens / rollouts as f64)
}

fn learned(known: &Known<'_>) -> Option<Sentence> {
    let ends = |name| {
        let of = |end| Series::tenth(known.columns, name, end).map(|(mean, _)| mean);
        of(End::First).zip(of(End::Last))
    };
    let (from, to) = ends("reward")?;
    let went = match to - from {
        d if d.abs() < 0.005 => "stayed at",
        d if d > 0.0 => "rose to",
        _ => "fell to",
    };
    let mut text = format!("Mean reward {went} {{}} from {{}} (means of the last and the first tenth of the steps)");
    let mut figures = vec![number(to), number(from)];
    if let Some((from, to)) = ends("success").filter(|success| (success.0 - from).abs() + (success.1 - to).abs() > 1e-6) {
        text += ", success to {} from {}";
        figures.extend([percent(to), percent(from)]);
    }
    text.push('.');
    Some(sentence(&text, &figures))
}

fn held_out(known: &Known<'_>) -> Sentence {
    let rate = |e: &Evaluation| e.total().rate().map_or_else(|| "-".to_owned(), percent);
    let Some(after) = known.told.and_then(|told| told.after.as_ref()) else {
        return sentence("Its folder says nothing of held-out prompts.", &[]);
    };
    let n = count(after.sampled.total().prompts);
    match known.told.and_then(|told| told.before.as_ref()) {
        Some(before) => sentence(
            &format!(
                "Of {n} held-out prompts it solved {{}} by sampling where it had solved {{}} before, and {{}} greedily where it had \
                 solved {{}}."
            ),
            &[rate(&after.sampled), rate(&before.sampled), rate(&after.greedy), rate(&before.greedy)],
        ),
        None => sentence(
            &format!("Of {n} held-out prompts it solved {{}} by sampling and {{}} greedily in the end."),
            &[rate(&after.sampled), rate(&after.greedy)],
        ),
    }
}

/// What accelerators that are emulated came to: nothing is learned there.
fn kept_up(known: &Known<'_>) -> Option<Sentence> {
    let of = known.told?.emulation.as_ref()?;
    let mut text = "In its steady state it trained {} tokens a flash".to_owned();
    let mut figures = vec![number(of.measured.tokens)];
    for (said, who) in [(of.formula, "the formulas'"), (of.simulated, "the simulation's")] {
        if let Some(said) = said {
            text += &format!(", {{}} of {who}");
            figures.push(percent(of.measured.tokens / said.tokens));
        }
    }
    text += "; coordination added {} ms to a decode step of {} ms. Tokens are random, and nothing is learned.";
    figures.extend([number(1e3 * of.decode_step.added_s), number(1e3 * of.decode_step.planned_s)]);
    Some(sentence(&text, &figures))
}

fn lag(known: &Known<'_>) -> Option<Sentence> {
    let lag = &known.report.lag;
    let (mean, max) = (lag.mean?, lag.max?);
    let steps = |n: i64| if n == 1 { "1 step".to_owned() } else { format!("{n} steps") };
    let mut text = "Trained tokens had a lag of {} steps on average and {} at most".to_owned();
    let mut figures = vec![number(mean), max.to_string()];
    match lag.bound {
        Some(bound) if lag.broken == 0 => {
            text += ", under a bound of {}";
            figures.push(steps(bound as i64));
        }
        Some(bound) => {
            text += ", where the bound is {}: {} tokens broke it";
            figures.extend([steps(bound as i64), count(lag.broken)]);
        }
        None => text += "; the log does not say what the bound was",
    }
    if let Some(mixed) = known.report.versions.mixed {
        text += "; {} of the rollouts hold tokens of two or more versions of the weights";
        figures.push(percent(mixed));
    }
    text.push('.');
    Some(sentence(&text, &figures))
}

fn off_policy(known: &Known<'_>) -> Option<Sentence> {
    let o = &known.report.off_policy;
    let (ess, k3) = (o.ess?, o.k3?);
    Some(sentence(
        "Against the weights that trained them they had an effective sample size of {} (of ratios before truncation) and a KL of {} nats a token.",
        &[percent(ess), number(k3)],
    ))
}

fn waited(known: &Known<'_>) -> Option<Sentence> {
    let shares = known.report.time.balance?;
    let mut text = "The learner trained {} of its time".to_owned();
    let mut figures = vec![percent(shares.trained)];
    let waits = [
        (shares.waited_any, "waited {} for rollouts"),
        (shares.waited_forced, "waited {} for rollouts that the bound on lag forced"),
        (shares.waited_log, "waited {} for the log"),
        (shares.elsewhere, "gave {} to other work on its worker"),
    ];
    for (share, told) in waits.into_iter().filter(|(share, _)| *share >= 0.005) {
        text += &format!(", {told}");
        figures.push(percent(share));
    }
    if let (Some(sampled), Some(idle)) = (shares.sampled, shares.idle) {
        text += "; generators decoded {} of theirs and had nothing in progress for {}";
        figures.extend([percent(sampled), percent(idle)]);
    }
    text.push('.');
    if let Some(advice) = &known.report.time.advice {
        text += &format!(" Advice: {}.", plain(advice));
    }
    Some(sentence(&text, &figures))
}

/// What was sampled and not trained, and steps that taught nothing.
fn left(known: &Known<'_>) -> Option<Sentence> {
    let (mut parts, mut figures) = (Vec::new(), Vec::new());
    for (status, n) in known.report.statuses.iter().filter(|(status, _)| *status != "trained") {
        parts.push(format!("{{}} {} {}", if *n == 1 { "rollout" } else { "rollouts" }, plain(status)));
        figures.push(count(*n));
    }
    let (left_out, time) = (known.report.lag.left_out, &known.report.time);
    if left_out > 0 {
        let chosen = left_out + known.report.lag.by_lag.iter().map(|row| row.tokens).sum::<u64>();
        parts.push("{} tokens ({}) that were too old and left out (lag by step counts them)".to_owned());
        figures.extend([count(left_out), percent(left_out as f64 / chosen as f64)]);
    }
    for (n, why) in [
        (time.held_steps, "held their gradient for a later one"),
        (time.paused_steps, "paused for a low ESS"),
        (time.skipped_steps, "left the weights as they were"),
    ] {
        if n > 0 {
            parts.push(format!("{{}} {} that {why}", if n == 1 { "step" } else { "steps" }));
            figures.push(count(n));
        }
    }
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    (!parts.is_empty()).then(|| sentence(&format!("Beside what was trained: {}.", list(&parts)), &figures))
}

/// `a, b and c`.
pub(super) fn list(parts: &[&str]) -> String {
    match parts {
        [] => String::new(),
        [one] => (*one).to_owned(),
        [most @ .., last] => format!("{} and {last}", most.join(", ")),
    }
}

/// `26,856`.
pub fn count(n: u64) -> String {
    HumanCount(n).to_string()
}

/// Three significant digits.
pub fn number(x: f64) -> String {
    let size = x.abs();
    match size {
        _ if !size.is_finite() => x.to_string(),
        0.0 => "0".to_owned(),
        s if s < 1e-3 => format!("{x:.1e}"),
        s if s < 1.0 => format!("{x:.3}"),
        s if s < 10.0 => format!("{x:.2}"),
        s if s < 100.0 => format!("{x:.1}"),
        s if s < 1e15 => format!("{}{}", if x < 0.0 { "-" } else { "" }, count(s.round() as u64)),
        _ => format!("{x:.2e}"),
    }
}

/// `81.2 %`; near an end as many digits as tell it from there.
pub(super) fn percent(share: f64) -> String {
    let percent = 100.0 * share;
    let end = percent.min(100.0 - percent);
    match end {
        e if e.abs() < 5e-4 => format!("{percent:.0} %"),
        e if e > 0.0 && e < 0.05 => format!("{percent:.3} %"),
        _ => format!("{percent:.1} %"),
    }
}

/// `1 h 4 min`, `1 min 5 s`, `26.1 s`.
pub(super) fn duration(seconds: f64) -> String {
    let whole = seconds.round() as u64;
    match whole {
        0..60 => format!("{} s", number(seconds)),
        60..3600 => format!("{} min {} s", whole / 60, whole % 60),
        _ => format!("{} h {} min", whole / 3600, whole % 3600 / 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_stand_where_they_belong() {
        let plain = |text: &str| Words::Plain(text.to_owned());
        let figure = |text: &str| Words::Figure { figure: text.to_owned() };
        let made = sentence("{} of {} and more", &["3".to_owned(), "4".to_owned()]);
        assert_eq!(made, [figure("3"), plain(" of "), figure("4"), plain(" and more")]);
        assert_eq!(serde_json::to_string(&made).unwrap(), r#"[{"figure":"3"}," of ",{"figure":"4"}," and more"]"#);
    }

    #[test]
    fn numbers_read_well() {
        assert_eq!([0, 999, 1000, 26_856, 1_000_000].map(count), ["0", "999", "1,000", "26,856", "1,000,000"]);
        assert_eq!(
            [0.0, 0.5, -1.234, 26.06, 1234.5, 0.000_12].map(number),
            ["0", "0.500", "-1.23", "26.1", "1,235", "1.2e-4"]
        );
        assert_eq!(
            [0.0, 0.5, 0.9996, 0.999_99, 1.0 - 1e-9].map(percent),
            ["0 %", "50.0 %", "99.960 %", "99.999 %", "100 %"]
        );
        assert_eq!([26.06, 59.6, 65.0, 3840.0].map(duration), ["26.1 s", "1 min 0 s", "1 min 5 s", "1 h 4 min"]);
        assert_eq!([list(&[]), list(&["a"]), list(&["a", "b", "c"])], ["", "a", "a, b and c"]);
    }
}
