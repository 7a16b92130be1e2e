// Rollouts to search and open, each token coloured by what one asks for.

/** [[n, x], ..] as one x a token. */
const spread = (runs) => runs.flatMap(([n, x]) => Array(n).fill(x));

const COLOURED = [["version", "version"], ["advantage", "advantage"], ["ratio", "ratio"], ["surprise", "surprise"], ["none", "nothing"]];
let coloured = "version";

function rollouts(parent, runs) {
  const all = runs.flatMap((run, r) => run.rollouts.shown.map((of) => ({
    of, run, r, text: `${of.prompt}\n${of.completion}\n${of.answer}\n${of.task}\n${of.status}\n${of.reward_error || ""}\ngroup ${of.group} step ${of.step}`.toLowerCase(),
  })));
  const state = { words: "", why: "", run: "", by: null, down: true, most: 60 };
  const kinds = [...new Set(all.flatMap((one) => one.of.why))];
  const told = el("span", { role: "status", id: "found" });
  const place = el("div", { id: "list", class: "scroll" });
  const set = (change) => { Object.assign(state, change); list(); };
  const select = (name, label, options, change) =>
    el("label", {}, `${label} `, el("select", { name, on: { change: (event) => change(event.target.value) } }, options.map(([value, text]) => el("option", { value }, text))));
  let waiting = 0;
  const search = el("input", {
    type: "search", id: "search", placeholder: "Search prompts, completions, status", "aria-label": "Search rollouts",
    on: { input: () => { clearTimeout(waiting); waiting = setTimeout(() => set({ words: search.value.trim().toLowerCase(), most: 60 }), 80); } },
  });
  parent.append(
    el(
      "div", { class: "tools" }, search,
      select("why", "shown as", [["", "anything"], ...kinds.map((kind) => [kind, kind])], (why) => set({ why, most: 60 })),
      runs.length > 1 ? select("run", "run", [["", "all"], ...runs.map((run, r) => [String(r), run.name])], (run) => set({ run, most: 60 })) : null,
      choice("coloured", "tokens coloured by", COLOURED, coloured, (value) => { coloured = value; for (const open of place.querySelectorAll(".rollout")) open.colour(); }),
      told,
    ),
    place,
  );
  const COLUMNS = [
    ...(runs.length > 1 ? [["run", (d) => d.run.name]] : []),
    ["step", (d) => d.of.step, "n"], ["group", (d) => d.of.group, "n"], ["task", (d) => d.of.task], ["reward", (d) => d.of.reward, "n"],
    ["tokens", (d) => d.of.tokens, "n"], ["lag", (d) => d.of.lag_mean, "n"], ["versions", (d) => new Set(spread(d.of.versions)).size, "n spare"],
    ["status", (d) => (d.of.status === "trained" ? d.of.stop : d.of.status)], ["shown as", (d) => d.of.why.join(", "), "spare"], ["completion", (d) => d.of.completion, "text"],
  ];
  function list() {
    const words = state.words.split(/\s+/).filter(Boolean);
    let found = all.filter((d) => words.every((word) => d.text.includes(word)) && (!state.why || d.of.why.includes(state.why)) && (!state.run || d.r === Number(state.run)));
    if (state.by != null) {
      const of = COLUMNS[state.by][1];
      found = d3.sort(found, (a, b) => (state.down ? d3.descending : d3.ascending)(of(a) ?? -Infinity, of(b) ?? -Infinity));
    }
    told.textContent = `${count(found.length)} of ${count(all.length)} rollouts`;
    const head = COLUMNS.map(([name, , kind], i) =>
      el("th", { scope: "col", class: kind, "aria-sort": state.by === i ? (state.down ? "descending" : "ascending") : null },
        el("button", { type: "button", on: { click: () => set({ by: i, down: state.by === i ? !state.down : true }) } }, name, state.by === i ? (state.down ? " ↓" : " ↑") : "")));
    const body = el("tbody", {}, found.slice(0, state.most).map((d) => line(d, words)));
    place.replaceChildren(el("table", {}, el("thead", {}, el("tr", {}, el("th", {}, el("span", { class: "skip" }, "open")), head)), body));
    if (found.length > state.most) place.append(el("p", {}, el("button", { type: "button", on: { click: () => set({ most: state.most + 200 }) } }, `Show more of ${count(found.length)}`)));
  }
  function line(d, words) {
    const turn = el("button", { type: "button", class: "turn", "aria-expanded": "false", "aria-label": `Open the rollout of group ${d.of.group}, sample ${d.of.sample}` }, "▸");
    const row = el("tr", { class: "one" }, el("td", {}, turn), COLUMNS.map(([name, of, kind]) => {
      const x = of(d);
      if (name === "completion") return el("td", { class: "text" }, marked(start(oneLine(x), words), words));
      if (name === "group") return el("td", { class: "n" }, `${d.of.group}.${d.of.sample}`);
      if (name === "run") return el("td", {}, dot(PALETTE[d.r]), x);
      return el("td", { class: kind }, typeof x === "number" || x == null ? number(x) : x);
    }));
    let open = null;
    const toggle = () => {
      if (open) {
        open.remove();
        open = null;
      } else {
        open = el("tr", { class: "detail" }, el("td", { colspan: COLUMNS.length + 1, class: "wide" }, rollout(d)));
        row.after(open);
      }
      row.classList.toggle("open", open != null);
      turn.textContent = open ? "▾" : "▸";
      turn.setAttribute("aria-expanded", String(open != null));
    };
    row.addEventListener("click", (event) => { if (!getSelection().toString() || event.target === turn) toggle(); });
    return row;
  }
  list();
}

/** What there is room for of a text, about the first of the words. */
function start(text, words) {
  const at = words.length ? text.toLowerCase().indexOf(words[0]) : 0;
  const from = at > 60 ? at - 30 : 0;
  return (from ? "…" : "") + text.slice(from, from + 150) + (text.length > from + 150 ? "…" : "");
}

/** A text with the words marked in it. */
function marked(text, words) {
  if (!words.length) return text;
  const parts = [];
  const low = text.toLowerCase();
  let at = 0;
  while (at < text.length) {
    const hits = words.map((word) => [low.indexOf(word, at), word.length]).filter(([i]) => i >= 0);
    if (!hits.length || low.length !== text.length) break;
    const [i, n] = d3.least(hits, ([i]) => i);
    parts.push(text.slice(at, i), el("mark", {}, text.slice(i, i + n)));
    at = i + n;
  }
  return [...parts, text.slice(at)];
}

/** An open rollout. */
function rollout({ of, run }) {
  const fact = (name, text) => (text == null || text === "" ? null : el("div", {}, el("dt", {}, name), el("dd", {}, text)));
  const facts = el(
    "dl", {},
    fact("group", `${of.group}, sample ${of.sample}`), fact("prompt", String(of.prompt_id)), fact("step", of.status === "trained" ? String(of.step) : null),
    fact("status", of.status), fact("ended by", of.stop),
    fact("reward", of.reward == null ? null : number(of.reward) + (of.reward_parts.length ? ` (${of.reward_parts.map(([name, x]) => `${visible(name)} ${number(x)}`).join(", ")})` : "")),
    fact("no reward", of.reward_error && visible(of.reward_error)),
    fact("lag", of.lag_mean == null ? null : `${number(of.lag_mean)} on average, ${of.lag_max} at most`),
    fact("waited for a slot", of.queued_s == null ? null : seconds(of.queued_s)),
    fact("generated in", of.generating_s == null ? null : `${seconds(of.generating_s)} on worker ${of.worker}`),
    fact("waited for its step", of.ready_s == null ? null : seconds(of.ready_s)),
    fact("answer", of.answer && visible(of.answer)),
  );
  const tokens = tokensOf(of);
  const place = el("div", { class: "tokens", tabindex: "0", role: "group", "aria-label": "Tokens of the completion: arrow keys go from one to the next" });
  const reads = el("div", { class: "reads", "aria-live": "polite" });
  const legend = el("div", {});
  const lacking = run.rollouts.without_text;
  const box = el(
    "div", { class: "rollout" }, facts, el("div", { class: "label" }, "Prompt"), el("div", { class: "prompt" }, visible(of.prompt)),
    el("div", { class: "label" }, `Completion, ${count(of.tokens)} tokens`), legend, place, reads,
    lacking ? [el("div", { class: "label" }, `Tokens are shown as ids: ${lacking}. As text:`), el("div", { class: "prompt" }, visible(of.completion))] : null,
  );
  let spans = [];
  let seen = null;
  const show = (i) => {
    spans[seen]?.classList.remove("seen");
    spans[i].classList.add("seen");
    seen = i;
    const t = tokens[i];
    reads.textContent = [
      `token ${t.place + 1}`, t.text == null ? null : JSON.stringify(t.text), `id ${t.id}`, t.version == null ? null : `version ${t.version}${t.lag == null ? "" : `, lag ${t.lag}`}`,
      t.behavior == null ? null : `logp ${number(t.behavior)}${t.current == null ? "" : ` → ${number(t.current)}, ratio ${number(t.ratio)}`}`,
      t.advantage == null ? null : `advantage ${number(t.advantage)}`, { masked: "not trained", too_old: "left out for its lag" }[t.use],
    ].filter(Boolean).join(" · ");
  };
  const point = (event) => { const i = event.target.dataset?.i; if (i != null) show(Number(i)); };
  place.addEventListener("pointerover", point);
  place.addEventListener("click", point);
  place.addEventListener("focus", () => { if (seen == null && spans.length && place.matches(":focus-visible")) show(0); });
  place.addEventListener("keydown", (event) => {
    const to = event.ctrlKey || event.metaKey || event.altKey || !spans.length ? null : next(spans, seen, event.key);
    if (to == null) return;
    event.preventDefault();
    show(to);
    spans[to].scrollIntoView({ block: "nearest" });
  });
  box.colour = () => {
    const { color, told } = colouring(tokens);
    legend.replaceChildren(told || "");
    spans = tokens.map((t, i) => {
      const text = t.text == null ? String(t.id) : visible(t.text);
      return el("span", { "data-i": i, class: [t.text == null ? "id" : null, t.use === "chosen" ? null : "off"].filter(Boolean).join(" ") || null, style: color(t) }, text);
    });
    place.replaceChildren(...spans);
    if (of.left_out) place.insertBefore(el("span", { class: "cut" }, ` [${count(of.left_out)} tokens left out] `), spans[of.left_out_behind] ?? null);
    spans[seen]?.classList.add("seen");
  };
  box.colour();
  return box;
}

/** The token that a key leads to from the one that is seen: to the side, to a line above or below, to an end. */
function next(spans, seen, key) {
  const last = spans.length - 1;
  if (key === "Home") return 0;
  if (key === "End") return last;
  if (seen == null) return key.startsWith("Arrow") ? 0 : null;
  if (key === "ArrowLeft") return Math.max(0, seen - 1);
  if (key === "ArrowRight") return Math.min(last, seen + 1);
  const by = { ArrowUp: -1, ArrowDown: 1 }[key];
  if (!by) return null;
  const place = (i) => spans[i].getClientRects()[0] ?? spans[i].getBoundingClientRect();
  const from = place(seen);
  let best = seen;
  let line = null;
  for (let i = seen + by; i >= 0 && i <= last; i += by) {
    const at = place(i);
    if (Math.abs(at.top - from.top) < 4) continue;
    line ??= at.top;
    if (Math.abs(at.top - line) >= 4) break;
    if (best === seen || Math.abs(at.left - from.left) < Math.abs(place(best).left - from.left)) best = i;
  }
  return best;
}

function tokensOf(of) {
  const [version, advantage, use] = [of.versions, of.advantages, of.uses].map(spread);
  return of.ids.map((id, i) => {
    const [behavior, current] = [of.logp_behavior[i], of.logp_current[i]];
    return {
      id, place: i < of.left_out_behind ? i : i + of.left_out, text: of.pieces.length ? of.pieces[i] : null, version: version[i], use: use[i] ?? "chosen",
      lag: of.status === "trained" && version[i] != null ? of.step - 1 - version[i] : null, advantage: advantage[i], behavior, current,
      ratio: behavior == null || current == null ? null : Math.exp(current - behavior),
    };
  });
}

/** The colour of a token, and what colours mean. */
function colouring(tokens) {
  const night = dark();
  const ink = (fill) => `background:${fill};color:${d3.lab(fill).l > 58 ? "#111" : "#fff"}`;
  const about = (middle, far) => {
    const scale = d3.scaleDiverging([-far, 0, far], (t) => (night ? d3.interpolateRgbBasis(["#f2935a", "#7d4a2c", "#23282e", "#2a5a80", "#7cc0f5"]) : d3.interpolateRgbBasis(["#e07b39", "#f7d2b3", "#f4f5f6", "#b9d8ef", "#4292c6"]))(t)).clamp(true);
    return { scale, far, middle };
  };
  const ends = (scale, from, to, text) => ramp((t) => scale(from + (to - from) * t), number(from), number(to), text);
  if (coloured === "version") {
    const versions = [...new Set(tokens.map((t) => t.version).filter((v) => v != null))].sort(d3.ascending);
    if (!versions.length) return { color: () => null, told: null };
    const light = (t) => (night ? d3.interpolateRgbBasis(["#26465f", "#2f6f73", "#4c8a4a", "#a38b25"]) : d3.interpolateRgbBasis(["#cfe3f5", "#cdeee0", "#f6efb4", "#fbd2a6"]))(t);
    const of = (v) => light(versions.length > 1 ? versions.indexOf(v) / (versions.length - 1) : 0);
    return { color: (t) => (t.version == null ? null : ink(of(t.version))), told: keys(...versions.map((v) => [of(v), `version ${v}`])) };
  }
  if (coloured === "advantage") {
    const { scale, far } = about(0, d3.max(tokens, (t) => Math.abs(t.advantage ?? 0)) || 1);
    return { color: (t) => (t.advantage == null ? null : ink(d3.color(scale(t.advantage)).formatHex())), told: ends(scale, -far, far, "advantage") };
  }
  if (coloured === "ratio") {
    const { scale, far } = about(0, Math.max(0.05, d3.max(tokens, (t) => Math.abs(Math.log(t.ratio ?? 1)))));
    return {
      color: (t) => (t.ratio == null ? null : ink(d3.color(scale(Math.log(t.ratio))).formatHex())),
      told: ramp((u) => scale(far * (2 * u - 1)), number(Math.exp(-far)), number(Math.exp(far)), "importance ratio"),
    };
  }
  if (coloured === "surprise") {
    const far = Math.max(0.1, d3.max(tokens, (t) => -(t.behavior ?? 0)));
    const fill = night ? d3.interpolateRgb("#23282e", "#a3476a") : d3.interpolateRgb("#f4f5f6", "#e58aa6");
    return { color: (t) => (t.behavior == null ? null : ink(d3.color(fill(-t.behavior / far)).formatHex())), told: ramp(fill, "0", number(far), "−logp_behavior, nats") };
  }
  return { color: () => null, told: null };
}
