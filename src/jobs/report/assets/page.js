// The page itself: its head, its sections in order, and what makes pictures draw themselves again.

const place = document.getElementById("page");
const sections = [];

function section(id, title, lead, fill, grid) {
  const inside = el("div", { class: grid ?? null });
  place.append(el("section", { id, "aria-labelledby": `${id}-title` }, el("h2", { id: `${id}-title` }, title), lead ? el("p", {}, lead) : null, inside));
  sections.push([id, title]);
  fill(inside);
}

function themeButton() {
  const told = () => (dark() ? "Light" : "Dark");
  const button = el("button", { type: "button", id: "theme", "aria-label": "Switch between light and dark" }, told());
  const theme = document.documentElement.dataset;
  /** What has colours of its own is drawn again. */
  const recolour = () => {
    button.textContent = told();
    for (const open of document.querySelectorAll(".rollout")) open.colour();
    redrawAll();
  };
  const set = (chosen) => {
    if (chosen) theme.theme = chosen;
    else delete theme.theme;
    recolour();
  };
  button.addEventListener("click", () => set(dark() ? "light" : "dark"));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { if (!theme.theme) recolour(); });
  // On paper the ground is white.
  let before;
  addEventListener("beforeprint", () => { before = theme.theme; set("light"); });
  addEventListener("afterprint", () => set(before));
  return button;
}

function head() {
  const { runs } = data;
  const names = runs.map((run, r) => [r ? el("span", { class: "and" }, r === runs.length - 1 ? " and " : ", ") : null, runs.length > 1 ? el("span", { style: `color:${PALETTE[r]}` }, run.name) : run.name]);
  const when = (run) => (run.began_ns ? new Date(run.began_ns / 1e6).toISOString().slice(0, 16).replace("T", " ") + " UTC" : null);
  const sub = runs.map((run) => el("p", { class: "sub" }, [runs.length > 1 ? `${run.name}: ` : null, [run.path, when(run) && `began ${when(run)}`, `${count(run.rollouts.of)} rollouts in its log`].filter(Boolean).join(" · ")]));
  place.append(el("header", {}, el("h1", {}, data.experiment ? `Experiment ${data.title}` : data.plan ? data.title : names), data.experiment || data.plan ? null : sub));
}

function navigation() {
  const bar = el("nav", { "aria-label": "Sections" });
  place.append(bar);
  return () => {
    bar.append(...sections.map(([id, title]) => el("a", { href: `#${id}` }, title)), el("span", { class: "gap" }));
    if (data.runs.length) bar.append(choice("against", "curves against", AGAINST, against, (value) => { against = value; redrawAll(); }));
    bar.append(themeButton());
  };
}

function notes(all) {
  return all.length ? el("ul", { class: "notes" }, all.map((note) => el("li", {}, visible(note)))) : null;
}

function runsPage() {
  const { runs, differences } = data;
  const several = runs.length > 1;
  if (several) section("differences", "Differences", null, (to) => compare(to, data));
  place.append(el("div", { id: "story", class: several ? "story several" : "story" }, runs.map((run, r) => el("div", {},
    several ? el("h3", { style: `margin:22px 0 4px;color:${PALETTE[r]}` }, run.name) : null,
    run.story.map((one) => el("p", {}, sentence(one))), notes(run.notes),
  ))));
  if (runs.every((run) => run.first_step == null)) {
    section("rollouts", "Rollouts", null, (to) => rollouts(to, runs));
    return;
  }
  // Random tokens have rewards and ratios, and these mean nothing.
  const learns = runs.some((run) => !run.emulated);
  if (learns) section("learning", "Learning", null, (to) => {
    const first = el("div", { class: "grid" });
    const second = el("div", { class: "grid four", style: "margin-top:30px" });
    to.append(first, second);
    learning(first, runs);
    health(second, runs);
  });
  section("lag", "Lag", "Of a token that step k trains: k − 1 less the version of the weights that sampled it.", (to) => lag(to, runs), "grid");
  if (learns) section("off-policy", "Off policy", "How far the weights that are trained are from those that sampled, and whether lag is why.", (to) => offPolicy(to, runs), "grid");
  section("lengths", "Lengths", null, (to) => lengths(to, runs), "grid");
  section("time", "Time", "Who generated, waited and trained, and when new weights were there.", (to) => { timelines(to, runs); shares(to, runs); }, "grid");
  if (learns) section("prompts", "Prompts", "What was solved, and how often: a success is a reward of 1 or more.", (to) => prompts(to, runs), "grid");
  const shown = runs.map((run) => `${count(run.rollouts.shown.length)} of ${count(run.rollouts.of)}${several ? ` of ${run.name}` : ""}`).join(", ");
  section("rollouts", "Rollouts", `${shown} are in this page: some drawn evenly over the run, the first, last, best, worst, longest and most surprising, and those with the most lag. Open one to see its tokens.`, (to) => rollouts(to, runs));
  section("settings", "Settings", null, (to) => {
    for (const run of runs) to.append(el("details", {}, el("summary", {}, several ? `spec.toml of ${run.name}` : "spec.toml"), el("pre", { tabindex: "0" }, run.spec)));
  });
}

function experimentPage() {
  const of = data.experiment;
  place.append(el("div", { id: "story", class: "story" }, of.about ? el("p", {}, of.about) : null, el("p", {},
    el("b", {}, count(of.settings.length)), " settings, ", el("b", {}, count(of.seeds)), of.seeds === 1 ? " seed each" : " seeds each", of.seconds ? [", ", el("b", {}, seconds(of.seconds)), " of runs"] : null,
    of.machines.length ? ` on ${of.machines.join("; ")}` : null, "."), notes(of.notes)));
  if (of.kl.length) section("kl", "KL", "How far the weights that sampled are from the current ones.", (to) => divergences(to, of.kl), "grid");
  else if (of.emulated.length) section("curves", "Measured and planned", "Tokens are random on emulated accelerators, and nothing is learned: what counts is how fast they come, and how old.", (to) => emulated(to, of), "grid");
  else section("curves", "Curves", null, (to) => experiment(to, of), "grid");
  if (of.speed_up) section("speed-up", "Speed-up", of.speed_up.what, (to) => speedUp(to, of.speed_up), "grid");
  section("results", "Results", of.kl.length ? "Thousandths of a nat a token ± standard error over completions or, of several seeds, their sample deviation." : "Means ± sample deviations over the seeds whose run ended well.", (to) => experimentTable(to, of));
}

function planPage() {
  planStory(data.plan);
  section("plan", "Layouts", null, (to) => plainTable(to, "layouts", data.plan.layouts));
  section("curves", "When it pays", "One thing is changed, all else stays; by the closed forms.", (to) => planCurves(to, data.plan), "grid");
}

head();
const fillNavigation = navigation();
if (data.experiment) experimentPage();
else if (data.plan) planPage();
else runsPage();
fillNavigation();
place.append(el("footer", {}, `Made by ${data.made_by}${data.runs.length ? " from the log alone" : ""}. Drawn with Observable Plot and D3 (ISC). Nothing is fetched.`));
redrawAll();
new ResizeObserver(() => {
  for (const of of figures) {
    const width = of.place.clientWidth;
    if (width && Math.abs(width - of.drawnAt) > 3) { of.drawnAt = width; of.redraw(); }
  }
}).observe(place);
document.documentElement.dataset.drawn = String(figures.length);
