// The pictures of runs. Each takes all runs of the page: curves share one picture, a colour a run; maps stand side by side.

/** What curves are drawn against. */
let against = "step";
const AGAINST = [["step", "step"], ["seconds", "time"], ["rollouts", "rollouts"]];
/** The unit of a time of so many seconds. */
const clock = (most) => (most > 7200 ? [3600, "h"] : most > 300 ? [60, "min"] : [1, "s"]);
function acrossOf(runs) {
  const [unit, name] = clock(d3.max(runs, (run) => run.seconds) || 0);
  if (against === "seconds") return { of: (run, i) => run.steps.seconds[i] / unit, label: `time, ${name}` };
  if (against === "rollouts") return { of: (run, i) => run.steps.rollouts[i], label: "rollouts trained" };
  return { of: (run, i) => run.steps.step[i], label: "step" };
}

const BASE = { marginTop: 26, marginBottom: 40, marginLeft: 44, marginRight: 12 };
const style = { fontFamily: "inherit", fontSize: "12px", background: "none", color: "var(--soft)", overflow: "visible" };
const tip = { fill: "var(--panel)", stroke: "var(--line)", textPadding: 7, fontSize: 12, lineHeight: 1.35, pointerSize: 8 };

/** Plot, with the house's manners: hairlines, few ticks, no box. */
function plot(options) {
  const { x = {}, y = {}, marks, ...rest } = options;
  const { marginTop, marginBottom } = { ...BASE, ...rest };
  const ticks = y.ticks ?? Math.max(2, Math.min(5, Math.round((rest.height - marginTop - marginBottom) / 30)));
  return Plot.plot({
    ...BASE,
    ...rest,
    style,
    x: { ticks: Math.max(3, Math.round(rest.width / 110)), tickSize: 4, ...x, label: null },
    y: { label: null, ticks, tickSize: 0, labelArrow: "none", ...y },
    marks: [
      y.grid === false ? null : Plot.gridY({ ticks, stroke: "var(--line)", strokeOpacity: 1 }),
      ...marks,
      // Where the axis ends, not where the picture does.
      x.label ? Plot.text([x.label], { frameAnchor: "bottom-right", textAnchor: "end", lineAnchor: "top", dy: 25, fill: "currentColor" }) : null,
    ],
  });
}

/** Where an axis begins and ends: around its values, or where `least` and `most` say. */
function domainOf(values, { domain, least, most } = {}) {
  if (domain) return domain;
  let [low, high] = d3.extent(values);
  low = least ?? low ?? 0;
  high = most ?? high ?? 1;
  if (!(high > low)) [low, high] = low === 0 ? [0, 1] : [low - Math.abs(low) * 0.1, low + Math.abs(low) * 0.1];
  const nice = d3.scaleLinear().domain([low, high]).nice(5).domain();
  return [least ?? nice[0], most != null && most > (least ?? nice[0]) ? most : nice[1]];
}

/** Round numbers of a logarithmic axis, so few that each has room for its label. */
function logTicks([low, high], room) {
  const at = (x) => (room * Math.log(x / low)) / Math.log(high / low);
  const apart = (ticks) => ticks.every((x, i) => i === 0 || at(x) - at(ticks[i - 1]) > 14 + (textWidth(number(x)) + textWidth(number(ticks[i - 1]))) / 2);
  const [from, to] = [low, high].map((x) => Math.floor(Math.log10(x)));
  const of = (steps, every = 1) => d3.range(from, to + 1).filter((power) => power % every === 0)
    .flatMap((power) => steps.map((step) => Number((step * 10 ** power).toPrecision(3)))).filter((x) => x >= low * 0.999 && x <= high * 1.001);
  const all = [...[[1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8], [1, 2, 3, 5], [1, 2, 5], [1, 3], [1]].map((steps) => of(steps)), ...[2, 3, 5].map((every) => of([1], every))];
  return all.find((ticks) => ticks.length > 1 && apart(ticks)) ?? all[1].slice(0, 1);
}

/** Labels at the ends of lines, apart from each other by a line of text. */
function endLabels(ends, domain, height) {
  const room = height - BASE.marginTop - BASE.marginBottom;
  const scale = d3.scaleLinear(domain, [room, 0]);
  const placed = ends.filter((end) => end.y != null).map((end) => ({ ...end, at: scale(end.y) }));
  placed.sort((a, b) => a.at - b.at);
  for (let pass = 0; pass < 60; pass++) {
    let moved = false;
    for (let i = 1; i < placed.length; i++) {
      const gap = placed[i].at - placed[i - 1].at;
      if (gap < 13.5) {
        const push = (13.5 - gap) / 2 + 0.01;
        placed[i - 1].at -= push;
        placed[i].at += push;
        moved = true;
      }
    }
    if (!moved) break;
  }
  // None above the picture or below it, as far as there is room.
  placed.forEach((end, i) => { end.at = Math.max(end.at, 13.5 * i); });
  placed.forEach((end, i) => { end.at = Math.min(end.at, Math.max(room, 13.5 * (placed.length - 1)) - 13.5 * (placed.length - 1 - i)); });
  return placed.map((end) => ({ ...end, y: scale.invert(end.at) }));
}

/**
 * Curves. A series: {name, color, points: [{x, y}], thin: points behind it, dash, width, band: [{x, low, high}], step: true};
 * rules: [{y, text, color}], dots: [{x, y, color, text, hollow}]; y as `domainOf` has it. What a logarithmic axis has no place for is left out.
 */
function curves({ width, height = 230, series, rules = [], dots = [], x, y, format = number, label = true, tick }) {
  const log = x.type === "log";
  const there = (point) => point.y != null && point.x != null && !(log && !(point.x > 0));
  const drawn = series.map((one) => (log ? { ...one, points: one.points.filter(there) } : one)).filter((one) => one.points.some(there));
  dots = dots.filter(there);
  if (!drawn.length) return el("p", { class: "none" }, NOTHING);
  const all = drawn.flatMap((one) => one.points.map((point) => ({ ...point, series: one }))).filter((point) => point.y != null);
  const bands = drawn.flatMap((one) => one.band || []);
  const values = [
    ...all.map((p) => p.y), ...rules.map((rule) => rule.y), ...dots.map((dot) => dot.y), ...bands.flatMap((b) => [b.low, b.high]),
    ...drawn.flatMap((one) => (one.thin || []).map((p) => p.y)).filter((v) => v != null),
  ];
  const domain = domainOf(values, y);
  const within = (v) => Math.min(domain[1], Math.max(domain[0], v));
  if (format === percent && !tick) {
    const digits = d3.precisionFixed(100 * d3.tickStep(...domain, 5));
    tick = (v) => `${(100 * v).toFixed(digits)} %`;
  }
  const last = d3.max(all, (point) => point.x);
  const ends = drawn.map((one) => {
    const some = one.points.filter((p) => p.y != null);
    // A line of one point has its name there.
    return { ...some.at(-1), text: one.name, color: one.color, early: some.length === 1 && some[0].x < last };
  });
  const ruled = rules.map((rule) => ({ x: last, y: rule.y, text: rule.text, color: rule.color || "var(--bound)" }));
  const named = [...ends.filter((end) => end.text), ...ruled].map((end) => ({ ...end, text: fitted(end.text, Math.max(width / 2.6, 80), 600) }));
  const labels = label ? endLabels(named, domain, height) : [];
  const marginRight = label ? 14 + (d3.max(labels, (end) => textWidth(end.text, 600)) || 0) : 12;
  const told = (p) => `${p.series.name ? `${p.series.name}\n` : ""}${x.label} ${number(p.x)}\n${y.name || y.label} ${format(p.y)}`;
  tick ??= format === number ? ticksTo(domain[1]) : format;
  const marginLeft = Math.max(BASE.marginLeft, 12 + d3.max(d3.ticks(...domain, 5), (v) => textWidth(tick(v))));
  const xDomain = x.domain ?? d3.extent([...all, ...dots], (p) => p.x);
  const xTicks = log ? logTicks(xDomain, width - marginLeft - marginRight) : d3.ticks(...xDomain, Math.max(3, Math.round(width / 110)));
  // No half a step.
  const wholes = all.every((p) => Number.isInteger(p.x));
  return plot({
    width, height, marginRight, marginLeft, marginTop: y.label ? BASE.marginTop : 10,
    x: {
      label: x.label, domain: x.domain, ticks: wholes ? xTicks.filter(Number.isInteger) : xTicks, tickFormat: number, ...(log ? { type: "log" } : {}),
    },
    y: { domain, label: y.label, tickFormat: tick, labelAnchor: "top" },
    marks: [
      ...rules.map((rule) => Plot.ruleY([rule.y], { stroke: rule.color || "var(--bound)", strokeDasharray: "5 3", strokeWidth: 1.4 })),
      ...drawn.flatMap((one) => [
        one.band && Plot.areaY(one.band, { x: "x", y1: (b) => within(b.low), y2: (b) => within(b.high), fill: one.color, fillOpacity: 0.16 }),
        one.thin && Plot.lineY(one.thin, { x: "x", y: "y", stroke: one.color, strokeOpacity: 0.3, strokeWidth: 1 }),
        Plot.lineY(one.points, {
          x: "x", y: "y", stroke: one.color, strokeWidth: one.width || 2, strokeOpacity: one.opacity, strokeDasharray: one.dash,
          curve: one.step ? "step-after" : "linear", strokeLinejoin: "round",
        }),
      ]),
      Plot.dot(dots, { x: "x", y: "y", r: 4.5, stroke: (d) => d.color, fill: (d) => (d.hollow ? "var(--ground)" : d.color), strokeWidth: 1.8, title: "text" }),
      ...[false, true].map((early) => Plot.text(labels.filter((end) => Boolean(end.early) === early), {
        x: early ? "x" : () => last, y: "y", text: "text", textAnchor: "start", dx: early ? -4 : 8, dy: early ? -12 : 0, fill: (d) => d.color, fontSize: 12, fontWeight: 600,
        stroke: "var(--ground)", strokeWidth: 4,
      })),
      Plot.ruleX(all, Plot.pointerX({ x: "x", stroke: "var(--soft)", strokeOpacity: 0.5 })),
      Plot.dot(all, Plot.pointer({ x: "x", y: "y", r: 3.5, fill: (p) => p.series.color })),
      Plot.tip(all, Plot.pointer({ x: "x", y: "y", title: told, ...tip })),
    ].filter(Boolean),
  });
}

/** A column of steps as a series a run: smooth, over what it was. */
function series(runs, name, { many, step } = {}) {
  const across = acrossOf(runs);
  // Over as many rollouts in each run: of a short one a twenty-fifth would be a step.
  const trained = (run) => run.steps.rollouts?.at(-1) || 1;
  const most = d3.max(runs, trained);
  return runs.map((run, r) => {
    const values = run.steps[name] || [];
    const width = step ? 1 : Math.max(1, Math.round((most / 25) * (values.length / trained(run))));
    const points = (of) => of.map((y, i) => ({ x: across.of(run, i), y }));
    return {
      name: runs.length > 1 ? run.name : many,
      color: PALETTE[r],
      points: points(smooth(values, width)),
      thin: width > 1 ? points(values) : null,
      step,
    };
  });
}

/** Numbers of columns of all runs, and what is the same at each step of one. */
function columns(runs, names, more = {}) {
  return () => ({
    header: [...(runs.length > 1 ? ["run"] : []), "first step", "last step", "seconds", "rollouts", ...names, ...Object.keys(more)],
    rows: runs.flatMap((run) =>
      (run.steps.step || []).map((step, i) => [
        ...(runs.length > 1 ? [run.name] : []), run.steps.first[i], step, run.steps.seconds[i], run.steps.rollouts[i],
        ...names.map((name) => run.steps[name][i]), ...Object.values(more).map((of) => of(run)),
      ]),
    ),
  });
}

/** The steps of a part of the run. */
const stepsOf = (time) => `${time.first}–${time.last}`;
const NOTHING = "The log has no such numbers.";

const same = (runs, a, b) => runs.every((run) => (run.steps[a] || []).every((x, i) => Math.abs(x - run.steps[b][i]) < 1e-9));

/** 0 to 1 where all values are there. */
const unit = (runs, name) => {
  const values = runs.flatMap((run) => run.steps[name] || []).filter((v) => v != null);
  return values.every((v) => v >= 0 && v <= 1) ? [0, 1] : undefined;
};

/** Held-out success of a run: after a step, or before and after training; of how many prompts; sampled, or greedy. */
function heldOut({ held_out: { before, after, checkpoints } }) {
  const rates = (of, when) => (of ? [[when, of.prompts, of.sampled, of.greedy]] : []);
  return [...rates(before, "before training"), ...checkpoints.map(([step, y]) => [step, null, y, null]), ...rates(after, "after training")];
}

function learning(parent, runs) {
  const alike = same(runs, "reward", "success");
  const held = (run, r) => {
    const steps = run.steps.step || [];
    if (!steps.length) return [];
    const x = acrossOf(runs);
    const at = (step) => x.of(run, Math.max(0, d3.bisectLeft(steps, step, 0, steps.length - 1)));
    const { before, after, checkpoints } = run.held_out;
    const dots = checkpoints.map(([step, y]) => ({ x: at(step), y, hollow: true, text: `held-out success after step ${step}: ${percent(y)}` }));
    const whole = steps.at(-1);
    for (const [rates, where, when] of [[before, 0, "before"], [after, at(whole), "after"]]) {
      if (!rates) continue;
      dots.push({ x: where, y: rates.sampled, hollow: true, text: `held-out success ${when} training, sampled: ${percent(rates.sampled)}` });
      dots.push({ x: where, y: rates.greedy, text: `held-out success ${when} training, greedy: ${percent(rates.greedy)}` });
    }
    return dots.filter((dot) => dot.y != null).map((dot) => ({ ...dot, color: PALETTE[r] }));
  };
  const anyHeld = runs.some((run) => run.held_out.after || run.held_out.before || run.held_out.checkpoints.length);
  const heldTable = () => ({
    title: "Held-out success", header: ["run", "after step", "prompts", "sampled", "greedy"], rows: runs.flatMap((run) => heldOut(run).map((row) => [run.name, ...row])),
  });
  const dotsSay = anyHeld ? " Circles: held-out success, sampled (hollow) and greedy (full), before and after training." : "";
  const draw = (name, label, dots) => (width) =>
    curves({
      width, series: series(runs, name), x: acrossOf(runs), y: { label, domain: unit(runs, name) }, dots,
      format: name === "success" ? percent : number, tick: name === "success" ? whole : undefined,
    });
  figure(
    parent,
    {
      title: alike ? "Reward and success" : "Reward",
      what: `Mean over each step's rollouts${alike ? "; every reward is 0 or 1, so that it is the share that succeeded too" : ""}.${alike ? dotsSay : ""}`,
      wide: alike,
    },
    (width) => draw("reward", "reward", alike ? runs.flatMap(held) : [])(width),
    () => [columns(runs, alike ? ["reward", "success"] : ["reward"])(), ...(alike ? [heldTable()] : [])],
  );
  if (!alike) {
    figure(
      parent, { title: "Success", what: `Share of each step's rollouts with a reward of 1 or more.${dotsSay}` },
      (width) => draw("success", "success", runs.flatMap(held))(width), () => [columns(runs, ["success"])(), heldTable()],
    );
  }
}

function health(parent, runs) {
  const small = (title, name, what, format) =>
    figure(
      parent, { title, what },
      (width) => curves({ width, height: 150, series: series(runs, name), x: acrossOf(runs), y: { label: "", name: title.toLowerCase(), least: 0 }, format, label: false }),
      columns(runs, [name]),
    );
  small("Entropy", "entropy", "Nats a token.");
  small("Norm of the gradient", "grad_norm", "Before clipping.");
  small("Clipped tokens", "clipped", "Share that a bound of the loss changed.", percent);
  small("Learning rate", "lr", "As it was used.");
}

/** One map a run, side by side: cells {x1, x2, y1, y2, value}. */
function maps(width, runs, { cells, domain, y, format, over, height = 230, x = "step", text }) {
  const color = amount();
  const one = (run, each) => {
    const of = cells(run);
    const head = runs.length > 1 ? el("h4", {}, run.name) : null;
    if (!of.length) return el("div", {}, head, el("p", { class: "none" }, NOTHING));
    const drawn = plot({
      width: each, height, marginRight: 14,
      color: { type: "linear", domain, interpolate: color, clamp: true },
      x: { label: x, domain: [d3.min(of, (c) => c.x1), d3.max(of, (c) => c.x2)] },
      y: { grid: false, ...y },
      marks: [
        Plot.rect(of, { x1: "x1", x2: "x2", y1: "y1", y2: "y2", fill: "value", shapeRendering: "crispEdges" }),
        ...(over ? over(run) : []),
        Plot.tip(of, Plot.pointer({ x1: "x1", x2: "x2", y1: "y1", y2: "y2", title: (c) => c.told, ...tip })),
      ],
    });
    drawn.dataset.of = run.name;
    return el("div", {}, head, drawn);
  };
  return [ramp(color, format(domain[0]), format(domain[1]), text), panels(width, runs, one)];
}

/** Where a part of the run begins and ends on the axis of steps. */
const span = (times, i) => [i > 0 ? times[i - 1].last : times[i].first - 1, times[i].last];

/** What is said of tokens that a safeguard left out for their lag, where there are some. */
function leftOut(runs, says) {
  const some = runs.filter((run) => run.left_out > 0);
  const many = some.map((run) => `${count(run.left_out)}${runs.length > 1 ? ` of ${run.name}` : ""}`).join(", ");
  return some.length ? ` Tokens that a safeguard left out for their lag (${many}) ${says}.` : "";
}

function lag(parent, runs) {
  const without = leftOut(runs, "do not count");
  const bounds = (rules) => rules.filter((rule, i) => rule.y != null && rules.findIndex((other) => other.y === rule.y) === i);
  const rules = () => {
    const all = bounds(runs.map((run, r) => ({ y: run.bound, text: `bound ${run.bound}`, color: PALETTE[r] })));
    return all.length > 1 ? all : all.map((rule) => ({ ...rule, color: "var(--bound)" }));
  };
  figure(
    parent,
    { title: "Lag over the run", what: `Of the tokens that each step trained: the mean (line) and the largest (steps), against the bound that the run promised.${leftOut(runs, "count")}` },
    (width) =>
      curves({
        width, rules: rules(), x: acrossOf(runs), y: { label: "lag, steps", name: "lag", domain: [0, Math.max(1, d3.max(runs, (r) => Math.max(r.bound || 0, d3.max(r.steps.lag_max || [0]))) * 1.08)] },
        series: [
          ...series(runs, "lag_max", { many: "max", step: true }).map((s) => ({ ...s, width: 1.1, opacity: 0.6, name: runs.length > 1 ? null : s.name })),
          ...series(runs, "lag_mean", { many: "mean" }),
        ],
      }),
    columns(runs, ["lag_mean", "lag_max"], { bound: (run) => run.bound }),
  );
  figure(
    parent,
    { title: "Lag by position in the response", what: `Later tokens come from newer weights, so that lag falls along a response: mean (line) and largest (steps) over the whole run.${without}` },
    (width) =>
      curves({
        width, rules: rules(), x: { label: "position in the response, %", domain: [0, 100] },
        y: { label: "lag, steps", name: "lag", domain: [0, Math.max(1, d3.max(runs, (r) => Math.max(r.bound || 0, d3.max(r.by_position, (p) => p.max) || 0)) * 1.08)] },
        series: runs.flatMap((run, r) => {
          const of = (key) => run.by_position.map((p) => ({ x: 50 * (p.from + p.to), y: p[key] }));
          return [
            { name: runs.length > 1 ? null : "max", color: PALETTE[r], points: of("max"), width: 1.1, opacity: 0.6, step: true },
            { name: runs.length > 1 ? run.name : "mean", color: PALETTE[r], points: of("mean") },
          ];
        }),
      }),
    () => ({ header: ["run", "from", "to", "mean", "max", "bound"], rows: runs.flatMap((run) => run.by_position.map((p) => [run.name, percent(p.from), percent(p.to), p.mean, p.max, run.bound])) }),
  );
  const cells = (run) =>
    run.times.flatMap((time, i) => {
      const [x1, x2] = span(run.times, i);
      return time.lag.map((value, p) => ({
        x1, x2, y1: (100 * p) / time.lag.length, y2: (100 * (p + 1)) / time.lag.length, value,
        told: `steps ${time.first} to ${time.last}\n${(100 * p) / time.lag.length} to ${(100 * (p + 1)) / time.lag.length} % of the response\nmean lag ${number(value)}`,
      })).filter((cell) => cell.value != null);
    });
  const most = d3.max(runs, (run) => d3.max(run.times, (time) => d3.max(time.lag))) || 1;
  figure(
    parent,
    { title: "Where in a response the lag was, over the run", what: `Mean lag of trained tokens by position in the response (up) and step (right).${without}`, wide: true },
    (width) => maps(width, runs, { cells, domain: [0, most], format: number, text: "mean lag, steps", y: { label: "position, %", domain: [0, 100], labelAnchor: "top" }, height: 210 }),
    () => ({
      header: ["run", "steps", ...runs[0].by_position.map((p) => `${whole(p.from).replace(" %", "")}–${whole(p.to)}`)],
      rows: runs.flatMap((run) => run.times.map((time) => [run.name, stepsOf(time), ...time.lag])),
    }),
  );
}

const lagName = (row) => (row.from === row.to ? `${row.from}` : `${row.from}–${row.to}`);

const ESS_AFTER = "ESS of the loss's weights, after truncation";
const ESS_BEFORE = "ESS of ratios before truncation";

function offPolicy(parent, runs) {
  const without = leftOut(runs, "do not count");
  figure(
    parent,
    {
      title: "ESS of the loss's weights over the run",
      what: "Effective sample size (Σw)² / (n Σw²) of the loss's weights, after truncation: 1 is on policy. What “Numbers” have by lag is of ratios before truncation.",
    },
    (width) => {
      const least = d3.min(runs, (run) => d3.min(run.steps.ess || [])) ?? 0;
      const low = Math.min(0.99, Math.floor(least * 100 - 0.5) / 100);
      return curves({ width, series: series(runs, "ess"), x: acrossOf(runs), y: { label: "ESS, after truncation", name: "ESS", domain: [low, 1] } });
    },
    () => { const { header, rows } = columns(runs, ["ess"])(); return { header: [...header.slice(0, -1), ESS_AFTER], rows }; },
  );
  figure(
    parent,
    { title: "KL by lag", what: `Of the behavior from the current policy, nats a token: two estimates of one number (Schulman 2020). k3 is never below 0 and varies less.${runs.length > 1 ? " Lines: k3; dashed: k1." : ""}${without}` },
    (width) =>
      curves({
        width, x: { label: "lag, steps" }, y: { label: "KL, nats a token", name: "KL" },
        series: runs.flatMap((run, r) => {
          const of = (key) => run.by_lag.map((row) => ({ x: (row.from + row.to) / 2, y: row[key] }));
          return [
            { name: runs.length > 1 ? run.name : "k3", color: PALETTE[r], points: of("k3") },
            { name: runs.length > 1 ? null : "k1", color: runs.length > 1 ? PALETTE[r] : PALETTE[1], points: of("k1"), dash: "4 3", width: 1.6 },
          ];
        }),
        dots: runs.flatMap((run, r) => run.by_lag.map((row) => ({ x: (row.from + row.to) / 2, y: row.k3, color: PALETTE[r], text: `lag ${lagName(row)}: ${number(row.k3)}` })).filter((d) => d.y != null)),
      }),
    byLag(runs),
  );
  figure(
    parent,
    { title: "Importance ratio by lag", what: `Current over behavior probability of trained tokens: median (dot), where 80 % (thick) and 98 % (thin) of them are.${without}` },
    (width) => ratios(width, runs),
    byLag(runs),
  );
  figure(
    parent,
    { title: "How old trained tokens were", what: `Share of all trained tokens by their lag.${without}` },
    (width) => {
      const rows = runs.flatMap((run, r) => run.by_lag.map((row) => ({ ...row, run: run.name, color: PALETTE[r], name: lagName(row) })));
      if (!rows.length) return el("p", { class: "none" }, NOTHING);
      const many = runs.length > 1;
      return [
        many ? keys(...runs.map((run, r) => [PALETTE[r], run.name])) : null,
        plot({
          width, height: 230,
          x: many ? { axis: null, domain: runs.map((run) => run.name), paddingInner: 0.05, paddingOuter: 0.4 } : { label: "lag, steps", type: "band", domain: [...new Set(rows.map((row) => row.name))], padding: 0.25 },
          fx: many ? { label: "lag, steps", domain: [...new Set(rows.map((row) => row.name))], padding: 0, labelArrow: "none", labelAnchor: "right", axis: "bottom", tickSize: 0 } : undefined,
          y: { label: "share of tokens", tickFormat: whole, nice: true },
          marks: [
            Plot.ruleY([0], { stroke: "var(--line)" }),
            Plot.barY(rows, { x: many ? "run" : "name", fx: many ? "name" : undefined, y: "share", fill: (d) => d.color, title: (d) => `${d.run}, lag ${d.name}: ${percent(d.share)} (${count(d.tokens)} tokens)`, tip: { ...tip } }),
          ],
        }),
      ];
    },
    byLag(runs),
  );
}

const byLag = (runs) => () => ({
  header: ["run", "lag", "tokens", "share", ESS_BEFORE, "k1", "k3", "ratio 1 %", "10 %", "median", "90 %", "99 %"],
  rows: runs.flatMap((run) => run.by_lag.map((row) => [run.name, lagName(row), row.tokens, percent(row.share), row.ess, row.k1, row.k3, ...row.ratios])),
});

function ratios(width, runs) {
  const rows = runs.flatMap((run, r) => run.by_lag.filter((row) => row.ratios[0] != null).map((row) => ({ row, run, r, q: row.ratios, name: lagName(row) })));
  if (!rows.length) return el("p", { class: "none" }, NOTHING);
  const far = Math.max(0.01, d3.max(rows, ({ q }) => d3.max(q, (ratio) => Math.abs(Math.log(ratio))))) * 1.1;
  const domain = [Math.exp(-far), Math.exp(far)];
  const wanted = far > 0.7 ? [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100] : d3.ticks(...domain, 6);
  const many = runs.length > 1;
  const names = [...new Set(rows.map((d) => d.name))];
  const at = many ? { fx: "name", x: (d) => d.run.name } : { x: "name" };
  return [
    many ? keys(...runs.map((run, r) => [PALETTE[r], run.name])) : null,
    plot({
      width, height: 230,
      x: many ? { axis: null, type: "point", padding: 1.2, domain: runs.map((run) => run.name) } : { label: "lag, steps", type: "point", domain: names, padding: 0.6 },
      fx: many ? { label: "lag, steps", domain: names, labelArrow: "none", labelAnchor: "right", axis: "bottom", tickSize: 0, padding: 0 } : undefined,
      y: { type: "log", domain, label: "ratio", ticks: wanted.filter((t) => t >= domain[0] && t <= domain[1]), tickFormat: (t) => number(t) },
      marks: [
        Plot.ruleY([1], { stroke: "var(--soft)", strokeDasharray: "2 3" }),
        Plot.ruleX(rows, { ...at, y1: (d) => d.q[0], y2: (d) => d.q[4], stroke: (d) => PALETTE[d.r], strokeWidth: 1.3 }),
        Plot.ruleX(rows, { ...at, y1: (d) => d.q[1], y2: (d) => d.q[3], stroke: (d) => PALETTE[d.r], strokeWidth: 6, strokeOpacity: 0.55, strokeLinecap: "round" }),
        Plot.dot(rows, {
          ...at, y: (d) => d.q[2], r: 3.4, fill: "var(--ground)", stroke: (d) => PALETTE[d.r], strokeWidth: 2,
          title: (d) => `${d.run.name}, lag ${d.name}\n1 %: ${number(d.q[0])}, 10 %: ${number(d.q[1])}\nmedian ${number(d.q[2])}\n90 %: ${number(d.q[3])}, 99 %: ${number(d.q[4])}`,
          tip: { ...tip },
        }),
      ],
    }),
  ];
}

const DASHES = ["5 3", "2 3", "8 3 2 3"];

function lengths(parent, runs) {
  const cells = (run) =>
    run.times.flatMap((time, i) => {
      const [x1, x2] = span(run.times, i);
      const all = d3.sum(time.lengths) || 1;
      return time.lengths.map((n, row) => ({
        x1, x2, y1: row * run.length_width, y2: (row + 1) * run.length_width, value: n / all, n,
        told: `steps ${time.first} to ${time.last}\n${row * run.length_width} to ${(row + 1) * run.length_width - 1} tokens\n${percent(n / all)} of the rollouts`,
      })).filter((cell) => cell.n > 0);
    });
  const shares = runs.flatMap((run) => cells(run).map((cell) => cell.value)).sort(d3.ascending);
  const most = d3.quantile(shares, 0.99) || 1;
  const longest = d3.max(runs, (run) => d3.max(run.times, (time) => time.lengths.length) * run.length_width) || 1;
  const over = (run) => {
    const of = (q) => run.times.map((time, i) => ({ x: d3.mean(span(run.times, i)), y: time.quantiles[q] }));
    const line = (q, width) => [
      Plot.lineY(of(q), { x: "x", y: "y", stroke: "var(--ground)", strokeWidth: width + 2.2, strokeOpacity: 0.8 }),
      Plot.lineY(of(q), { x: "x", y: "y", stroke: "var(--two)", strokeWidth: width, strokeDasharray: q === 1 ? null : "4 3" }),
    ];
    return [line(0, 1.3), line(2, 1.3), line(1, 2)].flat();
  };
  figure(
    parent,
    {
      title: "Lengths over the run", wide: true,
      what: "Trained rollouts by completion length: how many (colour), the median (line), and the lengths that 10 and 90 % stay under (dashed).",
    },
    (width) => maps(width, runs, { cells, domain: [0, most], format: percent, text: "share of the steps' rollouts", y: { label: "tokens", domain: [0, longest], labelAnchor: "top" }, over, height: 260 }),
    // Lengths are counted in ranges that each run has its own of.
    () => runs.map((run) => {
      const rows = d3.max(run.times, (time) => time.lengths.length) || 0;
      const range = (row) => (run.length_width > 1 ? `${row * run.length_width}–${(row + 1) * run.length_width - 1}` : `${row}`);
      return {
        title: `${runs.length > 1 ? `${run.name}: rollouts` : "Rollouts"} by length, tokens`, header: ["steps", "10 %", "median", "90 %", ...d3.range(rows).map(range)],
        rows: run.times.map((time) => [stepsOf(time), ...time.quantiles, ...d3.range(rows).map((row) => time.lengths[row] ?? 0)]),
      };
    }),
  );
  const reasons = [...new Set(runs.flatMap((run) => run.stops))];
  if (reasons.length < 2) {
    parent.append(el("p", { class: "none wide" }, reasons.length ? `Every trained rollout ended for the same reason: ${reasons[0]}.` : ""));
    return;
  }
  figure(
    parent,
    { title: "Why rollouts ended", what: "Share of trained rollouts: end of sequence (eos), a stop string, the limit on length or on time.", wide: true },
    (width) =>
      curves({
        width, height: 180, x: { label: "step" }, y: { label: "share", domain: [0, 1] }, format: percent, tick: whole,
        series: runs.flatMap((run, r) =>
          run.stops.map((stop, s) => ({
            name: runs.length > 1 ? `${run.name}: ${stop}` : stop, color: PALETTE[runs.length > 1 ? r : s],
            dash: runs.length > 1 && s ? DASHES[(s - 1) % DASHES.length] : null,
            points: run.times.map((time, i) => ({ x: d3.mean(span(run.times, i)), y: time.stops[s] })),
          })),
        ),
      }),
    () => ({
      header: ["run", "steps", ...reasons],
      rows: runs.flatMap((run) => run.times.map((time) => [run.name, stepsOf(time), ...reasons.map((reason) => percent(time.stops[run.stops.indexOf(reason)] ?? 0))])),
    }),
  );
}

function prompts(parent, runs) {
  const GROUPS = ["none", "some", "all"];
  const colors = ["var(--two)", "var(--three)", "var(--one)"];
  figure(
    parent,
    {
      title: "Groups over the run, by how many of their rollouts succeeded",
      what: "Only groups with some, not all, tell better from worse without a critic. Discarded groups count.",
    },
    (width) => [
      keys(...GROUPS.map((name, i) => [colors[i], name])),
      el("div", { class: "runs" }, runs.map((run) => {
        const rows = run.times.flatMap((time, i) => {
          const all = d3.sum(time.groups);
          const [x1, x2] = span(run.times, i);
          let below = 0;
          return all ? time.groups.map((n, g) => {
            const y1 = below;
            below += n / all;
            return { x1, x2, y1, y2: below, g, told: `steps ${time.first} to ${time.last}\n${GROUPS[g]}: ${count(n)} of ${count(all)} groups` };
          }) : [];
        });
        const head = runs.length > 1 ? el("h4", {}, run.name) : null;
        if (!rows.length) return el("div", {}, head, el("p", { class: "none" }, "No group has two rollouts with a reward."));
        const drawn = plot({
          width, height: runs.length > 1 ? 130 : 210, x: { label: "step" }, y: { label: "share", domain: [0, 1], tickFormat: whole, grid: false, ticks: runs.length > 1 ? [0, 0.5, 1] : 5 },
          marks: [
            Plot.rect(rows, { x1: "x1", x2: "x2", y1: "y1", y2: "y2", fill: (d) => colors[d.g], fillOpacity: 0.85, shapeRendering: "crispEdges" }),
            Plot.tip(rows, Plot.pointer({ x1: "x1", x2: "x2", y1: "y1", y2: "y2", title: "told", ...tip })),
          ],
        });
        drawn.dataset.of = run.name;
        return el("div", {}, head, drawn);
      })),
    ],
    () => ({ header: ["run", "steps", ...GROUPS], rows: runs.flatMap((run) => run.times.map((time) => [run.name, stepsOf(time), ...time.groups])) }),
  );
  // Fifths: of eight rollouts each has some share, and a tenth may have none.
  const NAMES = ["never", ...d3.range(5).map((i) => `${20 * i}–${20 * i + 20}`), "always"];
  const short = (name) => (name === "0–20" ? ">0" : name.split("–")[0]);
  const fifths = ([never, ...rest]) => [never, ...d3.range(5).map((i) => rest[2 * i] + rest[2 * i + 1]), rest[10]];
  figure(
    parent,
    { title: "Prompts by success", what: `Share of a prompt's rollouts that succeeded, %, over ${runs.map((run) => count(run.prompts.counted)).join(" and ")} prompts.` },
    (width) => {
      const rows = runs.flatMap((run, r) => fifths(run.prompts.by_success).map((n, i) => ({ n, name: NAMES[i], run: run.name, r })));
      const most = d3.max(rows, (d) => d.n);
      if (!most) return el("p", { class: "none" }, "No rollout has a reward.");
      return [
        runs.length > 1 ? keys(...runs.map((run, r) => [PALETTE[r], run.name])) : null,
        plot({
          width, height: 210,
          x: runs.length > 1 ? { axis: null, domain: runs.map((run) => run.name), paddingInner: 0.05, paddingOuter: 0.4 } : { type: "band", domain: NAMES, padding: 0.15, label: "solved at least, %", tickFormat: short },
          fx: runs.length > 1 ? { domain: NAMES, label: "solved at least, %", labelArrow: "none", labelAnchor: "right", axis: "bottom", tickSize: 0, padding: 0, tickFormat: short } : undefined,
          y: { label: "prompts", nice: true },
          marks: [
            Plot.ruleY([0], { stroke: "var(--line)" }),
            Plot.barY(rows, { x: runs.length > 1 ? "run" : "name", fx: runs.length > 1 ? "name" : undefined, y: "n", fill: (d) => PALETTE[d.r], title: (d) => `${d.run}: ${count(d.n)} prompts solved ${d.name}${d.name.includes("–") ? " %" : ""}`, tip: { ...tip } }),
          ],
        }),
      ];
    },
    () => ({ header: ["run", ...NAMES], rows: runs.map((run) => [run.name, ...fifths(run.prompts.by_success)]) }),
  );
  if (runs.some((run) => run.over_steps.some((part) => part.sizes.length))) sizes(parent, runs);
  for (const run of runs) {
    const list = (title, all) =>
      el(
        "div", {},
        el("h3", {}, runs.length > 1 ? `${title}: ${run.name}` : title),
        el("table", {}, el("tbody", {}, all.map((p) => el("tr", {}, el("td", { class: "n" }, `${p.solved} of ${p.rollouts}`), el("td", {}, el("code", {}, visible(p.prompt))))))),
      );
    if (run.prompts.most.length) parent.append(list("Most solved", run.prompts.most), list("Least solved", run.prompts.least));
  }
}

function sizes(parent, runs) {
  figure(
    parent,
    { title: "Success by size of a generated task, over the run", what: "Share of the rollouts that succeeded, discarded and waiting ones too.", wide: true },
    (width) => {
      const tasks = [...new Set(runs.flatMap((run) => run.over_steps.flatMap((part) => part.sizes.map((s) => s.task))))];
      const cellsOf = (run, task) => run.over_steps.flatMap((part) => part.sizes.filter((s) => s.task === task && s.success != null).map((s) => ({
        x1: part.first_step - 1, x2: part.last_step, y1: s.size - 0.5, y2: s.size + 0.5, value: s.success,
        told: `steps ${part.first_step} to ${part.last_step}\n${task}, size ${s.size}\n${percent(s.success)} of ${count(s.groups)} groups' rollouts`,
      })));
      const all = runs.flatMap((run) => tasks.map((task) => ({ run, task, cells: cellsOf(run, task) }))).filter(({ cells }) => cells.length);
      if (!all.length) return el("p", { class: "none" }, "No rollout has a reward.");
      const one = ({ run, task, cells }, each) => {
        const sizes = [...new Set(cells.map((c) => c.y1 + 0.5))].sort(d3.ascending);
        const every = Math.ceil(sizes.length / 10);
        const drawn = plot({
          width: each, height: 190, marginRight: 10, color: { type: "linear", domain: [0, 1], interpolate: amount() },
          x: { label: "step" }, y: { grid: false, label: "size", ticks: sizes.filter((_, i) => i % every === 0), tickFormat: "d" },
          marks: [
            Plot.rect(cells, { x1: "x1", x2: "x2", y1: "y1", y2: "y2", fill: "value", inset: 0.5 }),
            Plot.tip(cells, Plot.pointer({ x1: "x1", x2: "x2", y1: "y1", y2: "y2", title: "told", ...tip })),
          ],
        });
        drawn.dataset.of = `${run.name}: ${task}`;
        return el("div", {}, el("h4", {}, runs.length > 1 ? `${run.name}: ${task}` : task), drawn);
      };
      return [ramp(amount(), "0 %", "100 %", "success"), panels(width, all, one)];
    },
    () => ({ header: ["run", "steps", "task", "size", "groups", "success"], rows: runs.flatMap((run) => run.over_steps.flatMap((part) => part.sizes.map((s) => [run.name, `${part.first_step}–${part.last_step}`, s.task, s.size, s.groups, percent(s.success)]))) }),
  );
}
