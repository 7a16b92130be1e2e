//! A plan for a person, and for a program.

use crate::error::{Error, Result};
use crate::jobs::plan::curves::{Curve, Grid, Point};
use crate::jobs::plan::measured::Measured;
use crate::jobs::plan::simulation::{Scene, Simulated, simulate};
use crate::jobs::plan::{Delays, Options};
use crate::kernel::capacity::{Job, Limit, Rate, Speed, Split};
use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;
use std::fmt;
use tidegate_operators::schedule::Schedule;

/// What a plan came to. Rates are completion tokens a unit of time.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    pub accelerators: usize,
    pub batch_size: usize,
    pub lengths: String,
    pub mean_length: f64,
    pub longest: usize,
    /// Seconds where the speed was measured, flashes otherwise.
    pub unit: &'static str,
    pub speed: SpeedReport,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub measured: Option<Measured>,
    pub max_lag: u64,
    /// What was simulated beside what the formulas know.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub simulated: Option<Delays>,
    /// What keeps it from being faster.
    #[serde(skip)]
    pub limit: Option<Limit>,
    /// None where no split keeps the bound.
    pub pipeline: Option<LayoutReport>,
    /// Of the same largest lag.
    pub conventional: LayoutReport,
    /// Of no more mean lag.
    pub conventional_at_mean: Option<LayoutReport>,
    pub curves: Vec<CurveReport>,
}

impl SpeedReport {
    fn is_papers(&self) -> bool {
        let Speed { step, token, least, train, .. } = Speed::PAPER;
        [self.decode_step, self.decode_token, self.decode_least, self.train_token] == [step, token, least, train]
    }
}

#[derive(Clone, Copy, Debug, Serialize)]
pub struct SpeedReport {
    pub decode_step: f64,
    pub decode_token: f64,
    pub decode_least: f64,
    pub train_token: f64,
    pub slots: usize,
}

/// A layout: what the formulas say of it, and the simulation.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct LayoutReport {
    pub generators: usize,
    pub learners: usize,
    pub slots: usize,
    /// Steps of a phase, by turns.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<u64>,
    pub tokens: f64,
    pub max_lag: u64,
    pub mean_lag: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub simulated: Option<SimulatedReport>,
}

#[derive(Clone, Copy, Debug, Serialize)]
pub struct SimulatedReport {
    pub tokens: f64,
    pub max_lag: u64,
    pub mean_lag: f64,
    pub learners_waited: f64,
    pub generators_waited: f64,
    pub slots_used: f64,
}

#[derive(Clone, Debug, Serialize)]
pub struct CurveReport {
    pub curve: Curve,
    pub points: Vec<Point>,
}

/// Steps that are simulated: enough to fill the pipeline several times, and whole phases.
pub(super) fn steps(max_lag: u64, phase: u64) -> u64 {
    (8 * (max_lag + 1)).max(200).div_ceil(phase) * phase
}

impl Report {
    /// # Errors
    /// Groups that a generator of the best pipeline has too few slots for.
    pub(super) fn new(options: &Options, job: &Job, measured: Option<Measured>) -> Result<Report> {
        let delays = options.simulate.unwrap_or_default();
        let scene = |schedule: Schedule, split: Split| Scene {
            schedule,
            generators: split.generators,
            learners: split.learners,
            slots: split.slots,
            group_size: delays.group_size,
            batch_groups: (job.batch_size / delays.group_size) as u64,
            steps: steps(schedule.bound(), schedule.phase().unwrap_or(1)),
            lengths: job.lengths.clone(),
            speed: job.speed,
            transfer: delays.transfer,
            reward: delays.reward,
            checkpoint: delays.checkpoint,
            checkpoint_steps: delays.checkpoint_steps,
            seed: 1,
        };
        let layout = |schedule: Schedule, split: Split, rate: Rate| {
            let simulated = options.simulate.and_then(|_| simulate(&scene(schedule, split)));
            LayoutReport {
                generators: split.generators,
                learners: split.learners,
                slots: split.slots,
                phase: schedule.phase(),
                tokens: rate.tokens,
                max_lag: rate.max_lag,
                mean_lag: rate.mean_lag,
                simulated: simulated.map(SimulatedReport::from),
            }
        };
        let conventional = |rate: Rate| {
            let steps = rate.max_lag + 1;
            let slots = (job.batch_size as u64 * steps).div_ceil(job.accelerators as u64) as usize;
            let split = Split { generators: job.accelerators, learners: job.accelerators, slots };
            layout(Schedule::Conventional { steps }, split, rate)
        };
        let pipeline = job.best_split(options.max_lag);
        if let Some((split, _)) = pipeline.filter(|(split, _)| split.slots < delays.group_size) {
            let why =
                format!("the best pipeline has {} slots a generator, which hold no group: at most as many", split.slots);
            return Err(Error::config("--group-size", delays.group_size, why));
        }
        let best = pipeline.map(|(split, rate)| layout(Schedule::Pipeline { max_lag: options.max_lag }, split, rate));
        // Groups wait for others, too, which the closed form's mean does not know.
        let mean_lag = |best: LayoutReport| best.simulated.map_or(best.mean_lag, |played| played.mean_lag);
        let at_mean = best.map(|best| conventional(job.conventional_at_mean(mean_lag(best))));
        let speed = job.speed;
        let speed = SpeedReport {
            decode_step: speed.step,
            decode_token: speed.token,
            decode_least: speed.least,
            train_token: speed.train,
            slots: speed.slots,
        };
        Ok(Report {
            accelerators: job.accelerators,
            batch_size: job.batch_size,
            lengths: options.lengths.to_string(),
            mean_length: job.lengths.mean(),
            longest: job.lengths.longest(),
            unit: match &measured {
                Some(_) => "s",
                None if speed.is_papers() => "flash",
                None => "unit of time",
            },
            speed,
            measured,
            max_lag: options.max_lag,
            simulated: options.simulate,
            limit: pipeline.map(|(split, _)| job.limit(split)),
            pipeline: best,
            conventional: conventional(job.conventional(options.max_lag + 1)),
            conventional_at_mean: at_mean,
            curves: options
                .curves
                .iter()
                .map(|curve| CurveReport { curve: *curve, points: curve.points(job, options.max_lag, Grid::Told) })
                .collect(),
        })
    }

    /// The table of layouts: its header, and a row each.
    pub(crate) fn layouts(&self) -> (Vec<String>, Vec<Vec<String>>) {
        let (tokens, simulated) =
            (format!("tokens/{}", self.unit.rsplit(' ').next().unwrap_or_default()), "events: tokens".to_owned());
        let mut header = vec!["", "generate", "train", "slots", &tokens, "largest lag", "mean lag"];
        if self.simulated.is_some() {
            header.extend([&simulated, "events: largest", "events: mean", "events: wait"]);
        }
        let row = |(name, layout): (&str, &LayoutReport)| {
            let name = layout.phase.map_or_else(|| name.to_owned(), |phase| format!("{name} (G = {phase})"));
            let mut row = vec![name, layout.generators.to_string(), layout.learners.to_string(), layout.slots.to_string()];
            row.extend([number(layout.tokens), layout.max_lag.to_string(), format!("{:.1}", layout.mean_lag)]);
            if let Some(found) = layout.simulated {
                let waited = format!("{:.1} %", 100.0 * found.learners_waited);
                row.extend([number(found.tokens), found.max_lag.to_string(), format!("{:.1}", found.mean_lag), waited]);
            }
            row
        };
        let rows = [
            ("pipeline", self.pipeline.as_ref()),
            ("conventional, same largest lag", Some(&self.conventional)),
            ("conventional, no more mean lag", self.conventional_at_mean.as_ref()),
        ];
        let rows = rows.into_iter().filter_map(|(name, layout)| Some((name, layout?))).map(row).collect();
        (header.into_iter().map(str::to_owned).collect(), rows)
    }

    /// Whether it pays, in words.
    pub(crate) fn sentence(&self) -> String {
        let Some(pipeline) = &self.pipeline else {
            return match self.max_lag {
                0 => "no pipeline has a lag of 0 by the closed forms: --max-lag 1 is the least".to_owned(),
                lag => format!(
                    "no pipeline keeps a lag of {lag}: one sequence in progress is older. Raise --max-lag or --batch-size"
                ),
            };
        };
        let up = pipeline.tokens / self.conventional.tokens;
        let played = pipeline.simulated.zip(self.conventional.simulated).map(|(of, over)| of.tokens / over.tokens);
        let pays = match played.unwrap_or(up) {
            up if up < 1.0 => "It does not pay here",
            up if up < 1.1 => "It hardly pays here",
            _ => "It pays",
        };
        let times = match played {
            Some(played) => format!("{up:.2} times (event by event {played:.2} times)"),
            None => format!("{up:.2} times"),
        };
        let mut text =
            format!("{pays}: a pipeline trains {times} the tokens of the conventional schedule at the same largest lag");
        if let Some(at_mean) = self.conventional_at_mean {
            let [of, over] = [pipeline, &at_mean].map(|layout| {
                layout.simulated.map_or((layout.tokens, layout.mean_lag), |played| (played.tokens, played.mean_lag))
            });
            let up = of.0 / over.0;
            text += &format!(", {up:.2} times at no more mean lag ({:.1} of {:.1})", over.1, of.1);
        }
        text += match self.limit {
            None => "",
            Some(Limit::Neither) => ". Both sides are about as fast as each other",
            Some(Limit::Slots) => ". What limits it is how many sequences a generator may hold (--slots)",
            Some(Limit::Lag) => {
                ". What limits it is the lag that is allowed: with more sequences in progress learners would wait less"
            }
        };
        text
    }
}

impl From<Simulated> for SimulatedReport {
    fn from(found: Simulated) -> Self {
        SimulatedReport {
            tokens: found.rate.tokens,
            max_lag: found.rate.max_lag,
            mean_lag: found.rate.mean_lag,
            learners_waited: found.learners_waited,
            generators_waited: found.generators_waited,
            slots_used: found.slots_used,
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "job       {} accelerators, {} rollouts a step, a lag of at most {}",
            self.accelerators, self.batch_size, self.max_lag
        )?;
        let (mean, longest) = (self.mean_length, self.longest);
        writeln!(f, "lengths   {}: mean {mean:.1}, longest {longest} tokens", self.lengths)?;
        let s = self.speed;
        let unit = self.unit;
        let from = match &self.measured {
            Some(measured) => format!("measured of {} on {}", measured.model, measured.device),
            None if self.speed.is_papers() => "the paper's case study; --calibrate MODEL measures yours".to_owned(),
            None => "as given".to_owned(),
        };
        let (step, token, train) = (number(s.decode_step), number(s.decode_token), number(s.train_token));
        writeln!(
            f,
            "speed     a decode step of h sequences takes {step} + {token} h, training a token {train} ({unit}; {from})"
        )?;
        if let Some(d) = self.simulated.filter(|delays| *delays != Delays::default()) {
            let mut parts = vec![format!("groups of {}", d.group_size)];
            parts.extend((d.transfer > 0.0).then(|| format!("weights on their way for {}", number(d.transfer))));
            parts.extend((d.reward > 0.0).then(|| format!("rewards after {}", number(d.reward))));
            let pauses = d.checkpoint > 0.0 && d.checkpoint_steps > 0;
            parts.extend(pauses.then(|| format!("a pause of {} every {} steps", number(d.checkpoint), d.checkpoint_steps)));
            writeln!(f, "simulated {} ({unit})", parts.join(", "))?;
        }
        writeln!(f, "{}", layouts(self))?;
        for CurveReport { curve, points } in &self.curves {
            writeln!(f, "{}", table(*curve, points, unit))?;
        }
        write!(f, "{}", self.sentence())
    }
}

/// Four digits.
pub(crate) fn number(x: f64) -> String {
    let digits = if x == 0.0 { 0 } else { (3 - x.abs().log10().floor() as i32).max(0) as usize };
    format!("{x:.digits$}")
}

fn framed(header: Vec<String>, left: usize) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_HORIZONTAL_ONLY);
    table.set_header(header);
    table.column_iter_mut().skip(left).for_each(|column| {
        column.set_cell_alignment(CellAlignment::Right);
    });
    table
}

fn layouts(report: &Report) -> Table {
    let (header, rows) = report.layouts();
    let mut table = framed(header, 1);
    table.add_rows(rows);
    table
}

fn table(curve: Curve, points: &[Point], unit: &str) -> Table {
    let header = [
        curve.heading(),
        "generate",
        "slots",
        &format!("tokens/{unit}"),
        "largest lag",
        "mean lag",
        "speed-up",
        "at no more mean lag",
    ];
    let mut table = framed(header.map(str::to_owned).into(), 0);
    for point in points {
        table.add_row([
            point.at.clone(),
            point.generators.to_string(),
            point.slots.to_string(),
            number(point.tokens),
            point.max_lag.to_string(),
            format!("{:.1}", point.mean_lag),
            format!("{:.2}", point.speed_up()),
            format!("{:.2}", point.tokens / point.conventional_at_mean),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_four_digits() {
        assert_eq!([0.0, 16.98377, 452.0, 0.000_123_46, 12345.6].map(number), ["0", "16.98", "452.0", "0.0001235", "12346"]);
        assert_eq!((steps(7, 1), steps(133, 1), steps(133, 134)), (200, 1072, 1072));
    }
}
