// What each worker did: a few steps moment by moment, and the whole run as shares of time.

/** What the learner's time goes into: columns of steps, what they are called, and their colours. */
const SPENT = [
  ["train", "trains", "var(--one)"],
  ["any", "waits for rollouts", "var(--wait)"],
  ["forced", "waits for rollouts that the bound forces", "var(--bound)"],
  ["log", "waits for the log", "var(--four)"],
  ["elsewhere", "other work on its worker", "var(--seven)"],
];
const GENERATED = [["sample", "decodes", "var(--three)"], ["rest", "between decode steps", "var(--seven)"], ["idle", "has nothing in progress", "var(--wait)"]];

const TOLD = " Each bar is a sequence in its slot of a generator, coloured by the version of the weights that sampled its tokens: where the colour changes, new weights came in flight. Upright lines: a step ended and its version was there. The log keeps when sequences and steps ended, not single tokens nor moments within a step: tokens are spread evenly over their sequence, and a step's waits are drawn before its training.";

const LANES = 8;

function timelines(parent, runs) {
  if (runs.length > 1) parent.append(el("p", { class: "what wide" }, `Pictures of what each worker did: ${TOLD.trim()}`));
  for (const run of runs) {
    // More generators than a screen is high look like those that are shown.
    const line = run.timeline && { ...run.timeline, lanes: run.timeline.lanes.slice(0, LANES) };
    const title = runs.length > 1 ? `What each worker did: ${run.name}` : "What each worker did";
    if (!line || !line.steps.length) {
      parent.append(el("p", { class: "none wide" }, `${title}: the log does not say when its steps ended.`));
      continue;
    }
    const [first, last] = [line.steps[0].step, line.steps.at(-1).step];
    const all = run.timeline.lanes.length;
    const some = all > LANES ? ` The first ${LANES} of ${all} generators are shown.` : "";
    const each = (of) => line.lanes.map((lane) => count(of(lane))).join(", ");
    const drawn = line.lanes.some((lane) => lane.drawn < lane.slots)
      ? `${some} Of ${each((lane) => lane.slots)} slots of worker${line.lanes.length > 1 ? "s" : ""} ${line.lanes.map((lane) => lane.worker).join(", ")} the first ${each((lane) => lane.drawn)} are drawn.`
      : some;
    figure(
      parent,
      {
        title, wide: runs.length === 1,
        what: `Steps ${first} to ${last}, ${seconds(line.seconds)} from the middle of the run.${runs.length > 1 ? "" : TOLD}${drawn}`,
      },
      (width) => timeline(width, line),
      () => [
        { title: "The learner", header: ["step", "ended, s", ...SPENT.map(([, name]) => `${name}, s`)], rows: line.steps.map((step) => [step.step, step.to_s, ...SPENT.map(([key]) => step[key])]) },
        {
          title: "Sequences of the generators", header: ["worker", "slot", "from, s", "to, s", "tokens by version", "trained by step"],
          rows: line.lanes.flatMap((lane) => lane.sequences.map((s) => [lane.worker, s.slot, s.from_s, s.to_s, s.versions.map(([n, version]) => `${count(n)} by ${version}`).join(", "), s.step])),
        },
      ],
    );
  }
}

function timeline(width, line) {
  const versions = [...new Set(line.lanes.flatMap((lane) => lane.sequences.flatMap((s) => s.versions.map(([, v]) => v))))].sort(d3.ascending);
  const [low, high] = [versions[0], versions.at(-1)];
  const hue = order();
  const color = (v) => hue(high > low ? (v - low) / (high - low) : 0.5);
  const slots = d3.sum(line.lanes, (lane) => lane.drawn);
  const row = Math.max(2, Math.min(9, 380 / Math.max(1, slots)));
  const gap = 30;
  let top = 0;
  const bars = [], names = [], parts = [];
  for (const lane of line.lanes) {
    names.push({ y: top - 9, text: `worker ${lane.worker} generates, ${count(lane.slots)} at once` });
    for (const s of lane.sequences) {
      const all = d3.sum(s.versions, ([n]) => n) || 1;
      let done = 0;
      for (const [n, version] of s.versions) {
        const at = (share) => s.from_s + (s.to_s - s.from_s) * share;
        const [x1, x2] = [Math.max(0, at(done / all)), Math.min(line.seconds, at((done + n) / all))];
        if (x2 > x1) bars.push({ x1, x2, y1: top + s.slot * row, y2: top + (s.slot + 1) * row - Math.min(1, row / 4), version, s, all });
        done += n;
      }
    }
    top += lane.drawn * row + gap;
  }
  const ends = line.steps.map((step) => ({ x: step.to_s, text: `version ${step.step}` }));
  names.push({ y: top - 9, text: line.learner == null ? "the learner" : `worker ${line.learner} trains` });
  for (const step of line.steps) {
    let at = step.from_s;
    for (const [key, name, fill] of [...SPENT.slice(1), SPENT[0]]) {
      if (step[key] > 0) parts.push({ x1: at, x2: at + step[key], y1: top, y2: top + 24, fill, told: `step ${step.step} ${name}\n${seconds(step[key])}` });
      at += step[key];
    }
  }
  const bottom = top + 24;
  const apart = ends.filter((end, i) => i === 0 || ((end.x - ends[i - 1].x) / line.seconds) * width > 58);
  const shown = SPENT.filter(([key]) => line.steps.some((step) => step[key] > 0.002 * line.seconds));
  const svg = plot({
    width, height: bottom + 74, marginTop: 40, marginLeft: 8, marginRight: 12,
    x: { label: "seconds", domain: [0, line.seconds] },
    y: { axis: null, grid: false, domain: [0, bottom], reverse: true },
    marks: [
      Plot.rect(bars, { x1: "x1", x2: "x2", y1: "y1", y2: "y2", fill: (d) => color(d.version) }),
      Plot.rect(parts, { x1: "x1", x2: "x2", y1: "y1", y2: "y2", fill: "fill", insetLeft: 0.25, insetRight: 0.25 }),
      Plot.ruleX(ends, { x: "x", stroke: "var(--ink)", strokeWidth: 0.9, strokeOpacity: 0.75, y1: 0, y2: bottom }),
      Plot.text(apart, { x: "x", y: -6, text: "text", textAnchor: "end", dx: -2, dy: -16, fontSize: 11.5, fill: "var(--soft)" }),
      Plot.text(names, { x: 0, y: "y", text: "text", textAnchor: "start", fontSize: 12, fontWeight: 600, fill: "var(--ink)", stroke: "var(--ground)", strokeWidth: 4 }),
      Plot.tip(bars, Plot.pointer({
        x1: "x1", x2: "x2", y1: "y1", y2: "y2", ...tip,
        title: (d) => `version ${d.version}\n${d.all} tokens in ${seconds(d.s.to_s - d.s.from_s)}, ${d.s.versions.length} version${d.s.versions.length > 1 ? "s" : ""}\n${d.s.step ? `trained by step ${d.s.step}` : "not trained"}`,
      })),
      Plot.tip(parts, Plot.pointer({ x1: "x1", x2: "x2", y1: "y1", y2: "y2", title: "told", ...tip })),
    ],
  });
  return [
    keys(...shown.map(([, name, fill]) => [fill, `the learner ${name}`.replace("the learner other", "other")])),
    versions.length > 1 ? ramp((t) => hue(t), String(low), String(high), "version that sampled") : null,
    svg,
  ];
}

/** Time of the learner and of the generators over the whole run, as shares. */
function shares(parent, runs) {
  const [learner, generators] = [
    { title: "The learner's time", what: "Share of the time between steps.", kinds: SPENT, whole: (s, i) => d3.sum(SPENT, ([key]) => s[key][i]), of: (s, key, i) => s[key][i] },
    {
      title: "The generators' time", what: "All together, but for one on the learner's worker where there are others.", kinds: GENERATED,
      whole: (s, i) => s.generators[i], of: (s, key, i) => (key === "rest" ? Math.max(0, s.generators[i] - s.sample[i] - s.idle[i]) : s[key][i]),
    },
  ];
  for (const side of [learner, generators]) {
    figure(
      parent, side,
      (room) => {
        const some = runs.filter((run) => (run.steps.step || []).some((_, i) => side.whole(run.steps, i) > 0));
        if (!some.length) return el("p", { class: "none" }, "The log does not say.");
        // A decode step counts where it ends: one that is longer than a step makes single steps look fuller than they are, not their sum.
        const all = (run, of) => d3.sum(run.steps.step, (_, i) => of(i));
        const sum = (run, key) => (key === "rest" ? Math.max(0, all(run, (i) => side.whole(run.steps, i)) - d3.sum(side.kinds.filter(([other]) => other !== "rest"), ([other]) => sum(run, other))) : all(run, (i) => side.of(run.steps, key, i)));
        const total = (run, key) => sum(run, key) / all(run, (i) => side.whole(run.steps, i));
        const kinds = side.kinds.filter(([key]) => some.some((run) => total(run, key) > 0.002));
        const told = (key, name) => `${name} ${some.map((run) => percent(total(run, key))).join(" | ")}`;
        return [
          keys(...kinds.map(([key, name, color]) => [color, told(key, name)])),
          el("div", { class: "runs" }, some.map((run) => {
            // A few steps each, so that a decode step that is longer than a step fills no single one.
            const n = run.steps.step.length;
            const width = Math.ceil(n / 80);
            const rows = d3.range(0, n, width).flatMap((from) => {
              const part = d3.range(from, Math.min(n, from + width));
              const parts = kinds.map(([key]) => d3.sum(part, (i) => side.of(run.steps, key, i)));
              const whole = Math.max(d3.sum(part, (i) => side.whole(run.steps, i)), d3.sum(parts)) || 1;
              const [first, last] = [from ? run.steps.step[from - 1] : run.steps.first[0] - 1, run.steps.step[part.at(-1)]];
              let below = 0;
              return kinds.map(([, name, color], k) => {
                const y1 = below;
                below += parts[k] / whole;
                return { x1: first, x2: last, y1, y2: below, color, told: `steps ${first + 1} to ${last}\n${name} ${percent(below - y1)}` };
              });
            });
            const drawn = plot({
              width: room, height: runs.length > 1 ? 120 : 190, x: { label: "step" }, y: { label: "share", domain: [0, 1], tickFormat: whole, grid: false, ticks: runs.length > 1 ? [0, 0.5, 1] : 5 },
              marks: [
                Plot.rect(rows, { x1: "x1", x2: "x2", y1: "y1", y2: (d) => Math.min(1, d.y2), fill: "color", fillOpacity: 0.9, shapeRendering: "crispEdges" }),
                Plot.tip(rows, Plot.pointer({ x1: "x1", x2: "x2", y1: "y1", y2: "y2", title: "told", ...tip })),
              ],
            });
            drawn.dataset.of = run.name;
            return el("div", {}, runs.length > 1 ? el("h4", {}, run.name) : null, drawn);
          })),
        ];
      },
      columns(runs, ["train", "any", "forced", "log", "elsewhere", "sample", "idle", "generators"]),
    );
  }
  const busy = runs.filter((run) => run.generators.length > 1);
  for (const run of busy) {
    parent.append(el(
      "div", {},
      el("h3", {}, runs.length > 1 ? `Each generator: ${run.name}` : "Each generator"),
      el("table", {},
        el("thead", {}, el("tr", {}, ["worker", "decodes", "nothing in progress"].map((name) => el("th", { scope: "col" }, name)))),
        el("tbody", {}, run.generators.map((g) => el("tr", {}, el("td", {}, String(g.worker)), el("td", { class: "n" }, percent(g.sampled)), el("td", { class: "n" }, percent(g.idle)))))),
    ));
  }
}
