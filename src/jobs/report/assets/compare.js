// What sets runs apart, and an experiment's table and curves.

function compare(parent, { runs, differences }) {
  const matter = differences.figures.filter((d) => d.size >= 1);
  parent.append(el(
    "p", {},
    matter.length
      ? "Sorted: what was learned, then how fast, then what may be why; the largest difference first. What is smaller than noise or a tenth stands below, in grey."
      : "No figure differs by more than noise or a tenth.",
  ));
  const named = (text) => sentence(text);
  if (matter.length) parent.append(el("ul", { class: "told" }, matter.slice(0, 7).map((d) => el("li", {}, named(d.told)))));
  const best = (d, i) => (d.size >= 1 ? el("b", {}, d.values[i] ?? "–") : d.values[i] ?? "–");
  parent.append(
    el("h3", { style: "margin-top:22px" }, "Figures"),
    el("div", { class: "scroll" }, el(
      "table", { id: "differences" },
      el("thead", {}, el("tr", {}, el("th", { scope: "col" }, ""), runs.map((run, r) => el("th", { scope: "col", class: "n" }, el("span", { class: "dot", style: `background:${PALETTE[r]}` }), run.name)))),
      el("tbody", {}, differences.figures.map((d) => el("tr", { class: d.size >= 1 ? null : "quiet" }, el("td", {}, d.what), runs.map((_, i) => el("td", { class: "n" }, best(d, i)))))),
    )),
    el("h3", { style: "margin-top:22px" }, "Settings that differ"),
    differences.settings.length
      ? el("div", { class: "scroll" }, el(
          "table", {},
          el("tbody", {}, differences.settings.map((s) => el("tr", {}, el("td", {}, el("code", {}, s.key)), s.values.map((v) => el("td", {}, el("code", {}, v ?? "–")))))),
        ))
      : el("p", { class: "none" }, "None: what differs came of timing, or of the program and the machine."),
  );
}

/** An experiment: the axis with the most values is colour, the others are columns. */
function experiment(parent, of) {
  const names = of.axes.map((_, a) => [...new Set(of.settings.map((s) => s.at[a]))]);
  const hue = d3.greatestIndex(names, (values) => values.length) ?? 0;
  const colors = names[hue] || [];
  const facets = [...new Set(of.settings.map((s) => s.at.filter((_, a) => a !== hue).join(" · ")))];
  const others = of.axes.filter((_, a) => a !== hue).join(" · ");
  const color = (s) => PALETTE[Math.max(0, colors.indexOf(s.at[hue])) % PALETTE.length];
  const dash = (s) => (colors.indexOf(s.at[hue]) >= PALETTE.length ? "5 3" : null);
  const most = d3.max(of.settings, (s) => d3.max(s.curves, (c) => (c.name.endsWith("seconds") ? c.x.at(-1) : 0))) || 0;
  const [unit, clockName] = most > 7200 ? [3600, "h"] : most > 300 ? [60, "min"] : [1, "s"];
  const bandSays = of.seeds > 1 ? " Line: mean over seeds; band: one sample deviation." : "";
  const one = (title, what, name, x, y, wide) => {
    const ratio = name.endsWith("seconds") ? unit : 1;
    const curve = (s) => s.curves.find((c) => c.name === name);
    const settings = of.settings.filter(curve);
    const values = settings.flatMap((s) => { const c = curve(s); return c.mean.flatMap((m, i) => [m - (c.deviation[i] || 0), m + (c.deviation[i] || 0)]); });
    if (!values.length) return;
    const [low, high] = d3.extent(values);
    const domain = y.domain || d3.scaleLinear().domain([Math.max(y.least ?? -Infinity, low), Math.min(y.most ?? Infinity, high)]).nice(5).domain();
    figure(
      parent, { title, what: what + bandSays, wide: facets.length > 1 || wide },
      (width) => {
        const columns = Math.min(facets.length, width > 900 ? 3 : width > 560 ? 2 : 1);
        const each = (width - 28 * (columns - 1)) / columns;
        const part = (facet) => {
          const drawn = curves({
            width: each, height: 250, x: { label: x === "time" ? `time, ${clockName}` : x }, y: { ...y, domain, name: y.label },
            series: settings.filter((s) => s.at.filter((_, a) => a !== hue).join(" · ") === facet).map((s) => {
              const c = curve(s);
              return {
                name: s.at[hue] ?? "all", color: color(s), dash: dash(s), points: c.x.map((at, i) => ({ x: at / ratio, y: c.mean[i] })),
                band: c.deviation.length ? c.x.map((at, i) => ({ x: at / ratio, low: c.mean[i] - c.deviation[i], high: c.mean[i] + c.deviation[i] })) : null,
              };
            }),
          });
          if (drawn.dataset) drawn.dataset.of = facet;
          return el("div", {}, facet ? el("h4", {}, `${others}: ${facet}`) : null, drawn);
        };
        return el("div", { class: "runs", style: `grid-template-columns:repeat(${columns},minmax(0,1fr))` }, facets.map(part));
      },
      () => ({
        header: [...of.axes, x, "mean", "deviation", "seeds"],
        rows: settings.flatMap((s) => { const c = curve(s); return c.x.map((at, i) => [...s.at, at / ratio, c.mean[i], c.deviation[i] ?? null, c.seeds]); }),
      }),
    );
  };
  const grid = parent;
  void grid;
  const unitInterval = (name) => (of.settings.every((s) => s.curves.filter((c) => c.name === name).every((c) => c.mean.every((m) => m >= 0 && m <= 1))) ? [0, 1] : undefined);
  one("Reward against time", "Mean reward of the rollouts that were trained.", "reward by seconds", "time", { label: "reward", domain: unitInterval("reward by seconds") });
  one("Reward against rollouts", "The same by how many rollouts were trained: what a sample teaches, whatever its time.", "reward by rollouts", "rollouts trained", { label: "reward", domain: unitInterval("reward by rollouts") });
  one("Rollouts against time", "How fast samples are trained.", "rollouts by seconds", "time", { label: "rollouts", least: 0 });
  one("Largest lag over steps", "Of trained tokens, steps.", "lag_max by step", "step", { label: "lag, steps", least: 0 });
  one("Effective sample size over steps", "(Σw)² / (n Σw²) of the importance weights after the loss's truncation: 1 is on policy.", "ess by step", "step", { label: "ESS", least: 0, most: 1 });
}

function experimentTable(parent, of) {
  const axes = of.axes.length;
  parent.append(el("div", { class: "scroll" }, el(
    "table", { id: "table" },
    el("thead", {}, el("tr", {}, of.header.map((name, i) => el("th", { scope: "col", class: i < axes ? null : "n" }, name)))),
    el("tbody", {}, of.settings.map((s) => el("tr", {}, s.at.map((v) => el("td", {}, v)), s.row.map((v) => el("td", { class: "n" }, v))))),
  )));
  const failed = of.settings.flatMap((s) => s.failed.map((why) => el("li", {}, `${s.at.join(" · ")}: ${visible(why)}`)));
  if (failed.length) parent.append(el("h3", { style: "margin-top:18px" }, "What failed runs said"), el("ul", { class: "notes" }, failed));
}
