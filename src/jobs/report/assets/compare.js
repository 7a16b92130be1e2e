// What sets runs apart, and an experiment's table and curves.

function compare(parent, { runs, differences }) {
  const matter = differences.figures.filter((d) => d.size >= 1);
  parent.append(el(
    "p", {},
    matter.length
      ? "Sorted: what was learned, then how fast, then what may be why; the largest difference first. What is smaller than noise or a tenth stands below, in grey."
      : "No figure differs by more than noise or a tenth.",
  ));
  if (matter.length) parent.append(el("ul", { class: "told" }, matter.slice(0, 7).map((d) => el("li", {}, sentence(d.told)))));
  /** In bold where it matters. */
  const value = (d, i) => (d.size >= 1 ? el("b", {}, d.values[i] ?? "–") : d.values[i] ?? "–");
  parent.append(
    el("h3", { style: "margin-top:22px" }, "Figures"),
    el("div", { class: "scroll" }, el(
      "table", { id: "figures" },
      el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "figure"), runHeads(runs, "n"))),
      el("tbody", {}, differences.figures.map((d) => el("tr", { class: d.size >= 1 ? null : "quiet" }, el("td", {}, d.what), runs.map((_, i) => el("td", { class: "n" }, value(d, i)))))),
    )),
    el("h3", { style: "margin-top:22px" }, "Settings that differ"),
    ...settingsThatDiffer(runs, differences.settings),
  );
}

/** Of the runs whose settings are known: a run without any differs from the others in all of them. */
function settingsThatDiffer(runs, settings) {
  const known = runs.map((run) => run.spec.trim() !== "");
  const differ = settings.filter((s) => new Set(s.values.filter((_, i) => known[i]).map((value) => value ?? "–")).size > 1);
  const unknown = runs.filter((_, i) => !known[i]).map((run) => run.name).join(", ");
  return [
    differ.length
      ? el("div", { class: "scroll" }, el(
          "table", { id: "settings-differ" },
          el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "setting"), runHeads(runs))),
          el("tbody", {}, differ.map((s) => el("tr", {}, el("td", {}, el("code", {}, s.key)), s.values.map((v) => el("td", {}, el("code", {}, v ?? "–")))))),
        ))
      : unknown ? null : el("p", { class: "none" }, "None: what differs came of timing, or of the program and the machine."),
    unknown ? el("p", { class: "none" }, `Nothing is known of the settings of ${unknown}.`) : null,
  ].filter(Boolean);
}

/** An experiment's axes: the one with the most values, the values of the others in parts of the pictures, and the place of a setting in both. */
function layoutOf({ axes, settings }) {
  const names = axes.map((_, a) => [...new Set(settings.map((s) => s.at[a]))]);
  const main = d3.greatestIndex(names, (values) => values.length) ?? 0;
  const rest = ({ at }) => at.filter((_, a) => a !== main).join(" · ");
  const own = ({ at }) => at[main] ?? "all";
  const others = axes.filter((_, a) => a !== main).join(" · ");
  return { axis: axes[main] ?? "", values: names[main] ?? [], own, rest, parts: [...new Set(settings.map(rest))], head: (part) => (part ? el("h4", {}, `${others}: ${part}`) : null) };
}

/** An experiment: the axis with the most values is colour, the others are columns. */
function experiment(parent, of) {
  const { values: colors, own, rest, parts, head } = layoutOf(of);
  const color = (s) => PALETTE[Math.max(0, colors.indexOf(own(s))) % PALETTE.length];
  const dash = (s) => (colors.indexOf(own(s)) >= PALETTE.length ? "5 3" : null);
  const [unit, clockName] = clock(d3.max(of.settings, (s) => d3.max(s.curves, (c) => (c.name.endsWith("seconds") ? c.x.at(-1) : 0))) || 0);
  const bandSays = of.settings.some((s) => s.curves.some((c) => c.deviation.length)) ? " Line: mean over seeds; band: one sample deviation." : "";
  const one = (title, what, name, x, y, wide) => {
    const ratio = name.endsWith("seconds") ? unit : 1;
    const curve = (s) => s.curves.find((c) => c.name === name);
    const settings = of.settings.filter(curve);
    const points = (s) => { const c = curve(s); return c.x.map((at, i) => ({ x: at / ratio, y: c.mean[i], low: c.mean[i] - (c.deviation[i] || 0), high: c.mean[i] + (c.deviation[i] || 0) })); };
    if (!settings.length) return;
    // Of all parts, so that they can be compared.
    const domain = domainOf(settings.flatMap((s) => points(s).flatMap((p) => [p.low, p.high])), y);
    const across = [0, d3.max(settings, (s) => curve(s).x.at(-1)) / ratio];
    figure(
      parent, { title, what: what + bandSays, wide: parts.length > 1 || wide },
      (width) => panels(width, parts, (part, each) => {
        const drawn = curves({
          width: each, height: 250, x: { label: x === "time" ? `time, ${clockName}` : x, domain: across }, y: { label: y.label, domain, name: y.label },
          series: settings.filter((s) => rest(s) === part).map((s) => ({ name: dash(s) ? `┄ ${own(s)}` : own(s), color: color(s), dash: dash(s), points: points(s), band: curve(s).deviation.length ? points(s) : null })),
        });
        if (drawn.dataset) drawn.dataset.of = part;
        return el("div", {}, head(part), drawn);
      }),
      () => ({
        header: [...of.axes, x === "time" ? `time, ${clockName}` : x, "mean", "deviation", "seeds"],
        rows: settings.flatMap((s) => { const c = curve(s); return c.x.map((at, i) => [...s.at, at / ratio, c.mean[i], c.deviation[i] ?? null, c.seeds]); }),
      }),
    );
  };
  const unitInterval = (name) => (of.settings.every((s) => s.curves.filter((c) => c.name === name).every((c) => c.mean.every((m) => m >= 0 && m <= 1))) ? [0, 1] : undefined);
  const lags = () => one("Largest lag over steps", "Of trained tokens, steps.", "lag_max by step", "step", { label: "lag, steps", least: 0 });
  if (of.emulated.length) {
    lags();
    return;
  }
  one("Reward against time", "Mean reward of the rollouts that were trained, by the time since the first was admitted.", "reward by seconds", "time", { label: "reward", domain: unitInterval("reward by seconds") });
  one("Reward against rollouts", "The same by how many rollouts were trained: what a sample teaches, whatever its time.", "reward by rollouts", "rollouts trained", { label: "reward", domain: unitInterval("reward by rollouts") });
  one("Rollouts against time", "How fast samples are trained, from the first admission on.", "rollouts by seconds", "time", { label: "rollouts", least: 0 });
  lags();
  one("ESS of the loss's weights over steps", "Effective sample size (Σw)² / (n Σw²) of the loss's weights, after truncation: 1 is on policy.", "ess by step", "step", { label: "ESS, after truncation", most: 1 });
  if (!parent.firstChild) parent.append(el("p", { class: "none wide" }, "No run has a curve yet."));
}

/** Pixels of a row. */
const ROW = 26;
/** Who says a number: its colour. */
const SAYS = [["measured", "var(--one)"], ["formulas", "var(--two)"], ["simulation", "var(--three)"]];

/**
 * Numbers of settings, a row each: dots with a bar of one sample deviation, and ticks, which share the row from top to bottom.
 * Rows: {name, dots: [{x, spread, color, what}], ticks: the same}.
 */
function rowsPicture({ width, rows, domain, label, rule }) {
  const names = rows.map((row) => row.name);
  const short = (text) => fitted(text, width / 2.8);
  const marginLeft = 12 + d3.max(names, (name) => textWidth(short(name)));
  const of = (kind) => rows.flatMap((row) => (row[kind] || []).map((one, i, { length }) => ({ ...one, name: row.name, i, of: length })).filter((one) => one.x != null));
  const nth = (all) => [...d3.group(all, (one) => one.i)];
  const band = 0.8 * ROW;
  const [dots, ticks] = [of("dots"), of("ticks")];
  const told = (d) => `${d.name}\n${d.what} ${number(d.x)}${d.spread == null ? "" : ` ± ${number(d.spread)}`}`;
  const color = (d) => d.color;
  const within = (x) => Math.min(domain[1], Math.max(domain[0], x));
  return plot({
    width, height: ROW * names.length + 52, marginTop: 10, marginLeft, marginRight: 16,
    x: { domain, label, ticks: Math.max(2, Math.round((width - marginLeft) / 90)), tickFormat: number },
    y: { type: "band", domain: names, grid: false, tickFormat: short, padding: 0.2, ticks: names },
    marks: [
      Plot.gridX({ ticks: Math.max(2, Math.round((width - marginLeft) / 90)), stroke: "var(--line)", strokeOpacity: 1 }),
      rule == null ? null : Plot.ruleX([rule], { stroke: "var(--bound)", strokeDasharray: "5 3", strokeWidth: 1.4 }),
      ...nth(ticks).map(([i, some]) => Plot.tickX(some, { x: "x", y: "name", stroke: color, strokeWidth: 2.6, insetTop: (band * i) / some[0].of, insetBottom: (band * (some[0].of - 1 - i)) / some[0].of })),
      Plot.ruleY(dots.filter((d) => d.spread != null), { x1: (d) => within(d.x - d.spread), x2: (d) => within(d.x + d.spread), y: "name", stroke: color, strokeWidth: 1.6 }),
      ...nth(dots).map(([i, some]) => Plot.dot(some, { x: "x", y: "name", dy: 7 * (i - (some[0].of - 1) / 2), r: 4.2, fill: color, stroke: "var(--ground)", strokeWidth: 1 })),
      Plot.tip([...dots, ...ticks], Plot.pointer({ x: "x", y: "name", title: told, ...tip })),
    ],
  });
}

const saidBy = (point) => ({
  dots: [{ x: point.measured.mean, spread: point.measured.deviation, what: SAYS[0][0], color: SAYS[0][1] }],
  ticks: [{ x: point.formulas, what: SAYS[1][0], color: SAYS[1][1] }, { x: point.simulation, what: SAYS[2][0], color: SAYS[2][1] }],
});
const saidTable = (axes, points, at) => () => ({
  header: [...axes, "measured", "deviation", "formulas", "simulation"], rows: points.map((p) => [...at(p), p.measured.mean, p.measured.deviation, p.formulas, p.simulation]),
});
/** Only who says something has a colour to be told. */
const saidKeys = (points) => {
  const some = [true, points.some((p) => p.formulas != null), points.some((p) => p.simulation != null)];
  return keys(...SAYS.filter((_, i) => some[i]).map(([name, color]) => [color, name]));
};
const spreadSays = (points) => (points.some((p) => p.measured.deviation != null) ? " Bars: one sample deviation over seeds." : "");

/** Emulated accelerators: what they came to beside what a plan says of the same layout, and what coordination cost. */
function emulated(parent, of) {
  const points = of.emulated;
  const { own, rest, parts, head } = layoutOf(of);
  const rows = (part, row) => points.filter((p) => rest(p) === part).map((p) => ({ name: own(p), ...row(p) }));
  const picture = ({ title, what, legend, label, row, values, table }) => figure(
    parent, { title, what, wide: true },
    (width) => [legend(), panels(width, parts.filter((part) => points.some((p) => rest(p) === part)), (part, each) => {
      const drawn = rowsPicture({ width: each, rows: rows(part, row), domain: domainOf(points.flatMap(values), { least: 0 }), label });
      drawn.dataset.of = part;
      return el("div", {}, head(part), drawn);
    })],
    table,
  );
  picture({
    title: "Throughput", label: "tokens a flash", row: saidBy, legend: () => saidKeys(points),
    what: `Measured in the steady state (dots), beside what closed forms and a simulation event by event say of the same layout (ticks).${spreadSays(points)}`,
    values: (p) => [p.measured.mean + (p.measured.deviation || 0), p.formulas, p.simulation], table: saidTable(of.axes, points, (p) => p.at),
  });
  const ADDED = [{ key: "decode_added_ms", name: "to a decode step", color: "var(--four)" }, { key: "step_added_ms", name: "to the training of a step", color: "var(--five)" }];
  picture({
    title: "What coordination added", label: "added, ms", what: "Mean time that no accelerator was meant to take: what its worker did besides, and sleep that ended late.",
    legend: () => keys(...ADDED.map(({ name, color }) => [color, name])),
    row: (p) => ({ dots: ADDED.map(({ key, name, color }) => ({ x: p[key], what: `${name}, ms:`, color })) }),
    values: (p) => ADDED.map(({ key }) => p[key]),
    table: () => ({ header: [...of.axes, ...ADDED.map(({ name }) => `${name}, ms`)], rows: points.map((p) => [...p.at, ...ADDED.map(({ key }) => p[key])]) }),
  });
  experiment(parent, of);
}

/** How much faster one value of an axis is than another, by what else differs. */
function speedUp(parent, { table, points: all }) {
  const points = all.filter((p) => p.measured);
  const name = (p) => p.at.join(" · ") || "all";
  if (points.length) {
    figure(
      parent, { title: "Speed-up by setting", what: `Times the tokens; the dashed line is no gain.${spreadSays(points)}` },
      (width) => [
        saidKeys(points),
        rowsPicture({
          width, rows: points.map((p) => ({ name: name(p), ...saidBy(p) })), label: "times", rule: 1,
          domain: domainOf(points.flatMap((p) => [1, p.measured.mean - (p.measured.deviation || 0), p.measured.mean + (p.measured.deviation || 0), p.formulas, p.simulation])),
        }),
      ],
      saidTable(["setting"], points, (p) => [name(p)]),
    );
  }
  plainTable(parent, "speed-ups", table);
}

/** A table whose first columns are words, and the others numbers. */
function plainTable(parent, id, { header, rows, words }) {
  const cell = (tag, attributes) => (text, i) => el(tag, { ...attributes, class: i < words ? null : "n" }, text);
  parent.append(el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Table" }, el(
    "table", { id }, el("thead", {}, el("tr", {}, header.map(cell("th", { scope: "col" })))), el("tbody", {}, rows.map((row) => el("tr", {}, row.map(cell("td", {}))))),
  )));
}

function experimentTable(parent, of) {
  plainTable(parent, "table", of.table);
  const failed = of.settings.flatMap((s) => s.failed.map((why) => el("li", {}, `${s.at.join(" · ")}: ${visible(why)}`)));
  if (failed.length) parent.append(el("h3", { style: "margin-top:18px" }, "What failed runs said"), el("ul", { class: "notes" }, failed));
}
