// A plan's layouts and curves, and the KL of a KL experiment.

const WAYS = {
  pipeline: ["pipeline", "var(--one)"],
  conventional: ["conventional, same largest lag", "var(--two)"],
  at_mean: ["conventional, no more mean lag", "var(--three)"],
};

function planStory(of) {
  place.append(el("div", { id: "story", class: "story" }, of.story.map((one) => el("p", {}, sentence(one)))));
}

/** When a pipeline pays: one thing is changed, all else stays. */
function planCurves(parent, of) {
  const points = (name) => of.curves.find((curve) => curve.of === name).points;
  const tokens = `tokens a ${of.unit}`;
  const header = ["accelerators that generate", "slots", "largest lag", "mean lag", ...Object.values(WAYS).map(([told]) => told)];
  const row = (p) => [p.x, p.generators, p.slots, p.max_lag, p.mean_lag, p.pipeline, p.conventional, p.at_mean];
  const line = (all, x, way) => ({ name: way === "pipeline" ? way : "conventional", color: WAYS[way][1], points: all.filter((p) => p[x] != null).map((p) => ({ x: p[x], y: p[way] })) });
  /** Layouts that were played through event by event: those that the picture has a line of. */
  const played = (x, ...ways) => of.simulated.filter((s) => ways.includes(s.name)).map((s) => ({
    x: s[x], y: s.tokens, hollow: true, color: WAYS[s.name][1], text: `${WAYS[s.name][0]}, event by event: ${number(s.tokens)} ${tokens} at a lag of ${number(s.mean_lag)} on average and ${s.max_lag} at most`,
  }));
  const playedTable = { title: "Event by event", header: ["layout", "largest lag", "mean lag", tokens], rows: of.simulated.map((s) => [WAYS[s.name][0], s.max_lag, s.mean_lag, s.tokens]) };
  const saysPlayed = (dots) => (dots.length ? " Circles: event by event." : "");
  const draw = ({ title, what, name, x, series, tables = [], axis = {}, y = { label: tokens, least: 0 }, dots = [], rules = [] }) => {
    if (points(name).length < 2) return;
    figure(
      parent, { title, what }, (width) => curves({ width, x: { label: x, ...axis }, y, series: series(), dots, rules }),
      () => [{ header: [x, ...header], rows: points(name).map(row) }, ...tables],
    );
  };
  const log = { type: "log" };
  const lag = points("lag");
  const byMax = played("max_lag", "pipeline", "conventional");
  draw({
    title: "Throughput by largest lag", name: "lag", x: "largest lag, steps", axis: log, dots: byMax, tables: [playedTable],
    what: `What may be had for a lag of at most so many steps: the upper curve is the front of what is possible.${saysPlayed(byMax)}`,
    series: () => [line(lag, "x", "pipeline"), line(lag, "x", "conventional")],
  });
  const mean = [...lag].sort((a, b) => d3.ascending(a.mean_lag, b.mean_lag));
  const byMean = played("mean_lag", "pipeline", "at_mean");
  draw({
    title: "Throughput by mean lag", name: "lag", x: "mean lag, steps", axis: log, dots: byMean, tables: [playedTable],
    what: `The same by the mean lag of the trained tokens.${saysPlayed(byMean)}`,
    series: () => [line(mean, "mean_lag", "pipeline"), line(mean, "mean_lag", "at_mean")],
  });
  const up = (title, what, name, x, axis) => draw({
    title, what, name, x, axis, y: { label: "times" }, rules: [{ y: 1, text: "no gain" }],
    series: () => [["conventional", "same largest lag"], ["at_mean", "no more mean lag"]].map(([way, told]) => ({
      name: told, color: WAYS[way][1], points: points(name).map((p) => ({ x: p.x, y: p[way] > 0 && p.pipeline != null ? p.pipeline / p[way] : null })),
    })),
  });
  up("Gain by accelerators", `Times the tokens of the conventional schedule, at a lag of at most ${count(of.max_lag)}: more accelerators hold more sequences, which grow older.`, "accelerators", "accelerators", log);
  up("Gain by longest response", "The shape of the lengths being the same.", "longest", "longest, tokens", log);
  up("Gain by spread of lengths", "Lengths evenly from the mean less so many times it to the mean and as much: 0 is all the same, whose gain is the overlap alone.", "spread", "spread", {});
  up("Gain by batch", "Rollouts a step: larger batches take more sequences for the same lag.", "batch", "rollouts a step", log);
  const split = points("split");
  const { planned } = of;
  draw({
    title: "Throughput by split", name: "split", x: "accelerators that train",
    what: `How many of the accelerators train, with the slots of the plan, whatever the lag comes to: too few learners on the left, too few generators on the right.${planned ? " Circle: the plan's." : ""}`,
    series: () => [{ ...line(split, "x", "pipeline"), name: null }],
    dots: planned ? [{ x: planned.x, y: planned.pipeline, color: "var(--bound)", hollow: true, text: `the plan: ${count(planned.x)} train, ${number(planned.pipeline)} ${tokens} at a lag of at most ${count(planned.max_lag)}` }] : [],
    tables: planned ? [{ title: "The plan", header: ["accelerators that train", ...header], rows: [row(planned)] }] : [],
  });
  draw({
    title: "Lag by split", name: "split", x: "accelerators that train", what: "Of the same layouts: sequences in progress are what grows old.", y: { label: "lag, steps", least: 0 },
    series: () => [["largest", "max_lag", "var(--one)"], ["mean", "mean_lag", "var(--two)"]].map(([told, key, color]) => ({ name: told, color, points: split.map((p) => ({ x: p.x, y: p[key] })) })),
    rules: [{ y: of.max_lag, text: "allowed" }],
  });
}

/** As the table names them. */
const BEHAVIORS = { keep: ["in flight, keys kept", "var(--one)"], recompute: ["in flight, keys recomputed", "var(--three)"], conventional: ["conventional", "var(--two)"] };

/** KL by lag and by place: a part for each stage, and for each value of the design's own axes. */
function divergences(parent, points) {
  const stage = (p) => `${p.of ? `${p.of}, ` : ""}after step ${p.after}`;
  const told = (p) => BEHAVIORS[p.behavior][0];
  const color = (p) => BEHAVIORS[p.behavior][1];
  const ways = Object.keys(BEHAVIORS).filter((way) => points.some((p) => p.behavior === way));
  const legend = () => keys(...ways.map((way) => [BEHAVIORS[way][1], BEHAVIORS[way][0]]));
  const stages = (some) => [...new Set(some.map(stage))];
  const side = (width, some, part) => panels(width, stages(some), (of, each) => {
    const drawn = part(some.filter((p) => stage(p) === of), each);
    if (drawn.dataset) drawn.dataset.of = of;
    return el("div", {}, el("h4", {}, of), drawn);
  });
  // A logarithmic axis begins above 0.
  const positive = points.filter((p) => p.kl > 0 && p.lag > 0);
  const [low, high] = [(p) => Math.max(p.kl - (p.spread || 0), p.kl / 10), (p) => p.kl + (p.spread || 0)];
  const domain = [d3.min(positive, low) / 1.15, d3.max(positive, high) * 1.15];
  const lags = d3.extent(positive, (p) => p.lag);
  const across = lags[0] === lags[1] ? [lags[0] / 2, lags[1] * 2] : [lags[0] / 1.1, lags[1] * 1.1];
  const twos = [...new Set(positive.map((p) => p.lag))].sort(d3.ascending);
  const spread = points.some((p) => p.seeds > 1) ? "one sample deviation over seeds" : "standard error over completions";
  const lacking = points.length - positive.length;
  figure(
    parent,
    {
      title: "KL by lag", wide: true,
      what: `KL(behavior ‖ current), nats a token, exact over the vocabulary, by how many steps the current weights are ahead of those of the first token. Bars: ${spread}. Both axes are logarithmic${lacking && positive.length ? `: ${lacking} of ${points.length} points, with a lag or a KL of 0, have no place on them` : ""}.`,
    },
    (width) => [legend(), side(width, points, (all, each) => {
      const own = all.filter((p) => positive.includes(p));
      if (!own.length) return el("p", { class: "none" }, "Nothing to draw: no KL above 0 at a lag above 0.");
      return plot({
        width: each, height: 260, marginLeft: 54,
        x: { type: "log", domain: across, label: "steps ahead", ticks: twos.length * 34 < each ? twos : logTicks(across, each), tickFormat: number },
        y: { type: "log", domain, label: "KL, nats", tickFormat: number, ticks: logTicks(domain, 300) },
        marks: [
          ...ways.map((way) => Plot.lineY(own.filter((p) => p.behavior === way), { x: "lag", y: "kl", stroke: BEHAVIORS[way][1], strokeWidth: 2 })),
          Plot.ruleX(own, { x: "lag", y1: low, y2: high, stroke: color, strokeWidth: 1.5 }),
          Plot.dot(own, { x: "lag", y: "kl", r: 3.5, fill: color }),
          Plot.tip(own, Plot.pointer({ x: "lag", y: "kl", title: (p) => `${told(p)}\n${number(p.lag)} steps ahead, mean lag ${number(p.mean_lag)}\nKL ${number(p.kl)}${p.spread == null ? "" : ` ± ${number(p.spread)}`}`, ...tip })),
        ],
      });
    })],
    () => ({ header: ["of", "steps ahead", "behavior", "mean lag", "KL", "spread", "seeds"], rows: points.map((p) => [stage(p), p.lag, told(p), p.mean_lag, p.kl, p.spread, p.seeds]) }),
  );
  const most = d3.max(points, (p) => p.lag);
  const far = points.filter((p) => p.lag === most && p.by_part.some((kl) => kl != null));
  if (!far.length) return;
  const parts = d3.max(far, (p) => p.by_part.length);
  figure(
    parent,
    { title: "KL by place in the completion", what: `With the current weights ${count(most)} steps ahead: in flight the first tokens are the oldest and the last ones new; otherwise all are as old.`, wide: true },
    (width) => [legend(), side(width, far, (own, each) => curves({
      width: each, label: false, x: { label: "share of the longest completion", domain: [0, 1] }, y: { label: "KL, nats", least: 0 },
      series: own.map((p) => ({ name: told(p), color: color(p), points: p.by_part.map((y, i) => ({ x: (i + 0.5) / parts, y })) })),
    }))],
    () => ({ header: ["of", "behavior", ...d3.range(parts).map((i) => `part ${i + 1}`)], rows: far.map((p) => [stage(p), told(p), ...p.by_part]) }),
  );
}
