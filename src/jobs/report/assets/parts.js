// Small parts: elements, numbers, colours, figures that draw themselves again. Texts of a run only ever become text nodes.
"use strict";

/** Control characters and those that turn a line around or take no room, but for line ends and tabs. */
const HIDDEN = /(?![\n\t])[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}]/gu;
function sign(c) {
  const code = c.codePointAt(0);
  if (code < 32) return String.fromCodePoint(0x2400 + code);
  return code === 127 ? "␡" : `⟨U+${code.toString(16).toUpperCase().padStart(4, "0")}⟩`;
}
/** What was read, with signs for hidden characters in each of its texts: whatever the page says of a run can be seen. */
function signed(of) {
  if (typeof of === "string") return of.replace(HIDDEN, sign);
  if (Array.isArray(of)) return of.map(signed);
  return of && typeof of === "object" ? Object.fromEntries(Object.entries(of).map(([name, value]) => [name, signed(value)])) : of;
}
/** A text of the run with signs for its line ends and tabs too. */
const visible = (text) => text.replace(HIDDEN, sign).replace(/\n/g, "↵\n").replace(/\t/g, "⇥");
/** The same in one line. */
const oneLine = (text) => visible(text).replace(/\n/g, "");

const data = signed(JSON.parse(document.getElementById("data").textContent));

/** An element with attributes (`on` are listeners, null is left out) and children: nodes, or texts. */
function el(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name === "on") for (const [event, listener] of Object.entries(value)) element.addEventListener(event, listener);
    else if (value === true) element.setAttribute(name, "");
    else if (value != null && value !== false) element.setAttribute(name, value);
  }
  element.append(...children.flat(9).filter((child) => child != null));
  return element;
}

/** A sentence: words, and figures in bold. */
function sentence(parts) {
  return parts.map((part) => (typeof part === "string" ? part : el("b", {}, part.figure)));
}

const count = d3.format(",");
const percent = (x) => (x == null ? "–" : d3.format(x > 0.0005 && x < 0.9995 ? ".1%" : ".0%")(x).replace("%", " %"));
const whole = (x) => `${Math.round(100 * x)} %`;
/** Three significant digits. */
function number(x) {
  if (x == null || !isFinite(x)) return "–";
  if (Number.isInteger(x)) return count(x);
  const size = Math.abs(x);
  if (size < 1e-4) return x.toExponential(1).replace(".0e", "e").replace(/-/g, "−");
  return (size >= 100 ? count(Math.round(x)) : String(Number(x.toPrecision(3)))).replace("-", "−");
}
const seconds = (x) => (x == null ? "–" : x < 1 ? `${number(x * 1000)} ms` : x < 120 ? `${number(x)} s` : `${number(x / 60)} min`);

/** Ticks of an axis that ends at `most`: tiny numbers with one power of ten for all. */
function ticksTo(most) {
  const power = Math.floor(Math.log10(most));
  if (!(most > 0) || power > -4) return number;
  return (x) => (x === 0 ? "0" : `${Number((x / 10 ** power).toPrecision(3))}e${power}`.replace(/-/g, "−"));
}

const ruler = document.createElement("canvas").getContext("2d");
/** Pixels that a text of a picture takes. */
function textWidth(text, weight = 400) {
  ruler.font = `${weight} 12px ${getComputedStyle(document.body).fontFamily}`;
  return ruler.measureText(text).width;
}
/** A text that takes so many pixels at most. */
function fitted(text, room, weight) {
  if (textWidth(text, weight) <= room) return text;
  let n = text.length;
  while (n > 1 && textWidth(`${text.slice(0, n)}…`, weight) > room) n--;
  return `${text.slice(0, n)}…`;
}

const PALETTE = ["one", "two", "three", "four", "five", "six", "eight", "seven"].map((name) => `var(--${name})`);
const dark = () =>
  (document.documentElement.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
/** A single hue from little to much, as the ground is. */
const amount = () =>
  d3.interpolateRgbBasis(
    dark() ? ["#1b2229", "#1f3d57", "#2a6a9b", "#58a9e2", "#c9e8ff"] : ["#f2f5f8", "#cfe2f1", "#86b8dc", "#2f7fbb", "#0b3c66"],
  );
/** For versions: told apart in order, by lightness too. */
const order = () => (dark() ? (t) => d3.interpolateViridis(0.22 + 0.76 * t) : (t) => d3.interpolateViridis(0.05 + 0.83 * t));

/** Colours named, before a picture. */
function keys(...items) {
  const item = ([color, text]) => el("span", {}, el("i", { style: `background:${color}` }), text);
  return el("div", { class: "keys" }, items.map(item));
}

/** A ramp of amounts, with its ends. */
function ramp(interpolate, from, to, text) {
  const stops = d3.range(0, 1.01, 0.1).map((t) => interpolate(t)).join(",");
  return el(
    "div",
    { class: "keys" },
    el("span", {}, `${text}: `, from, el("span", { class: "ramp", style: `background:linear-gradient(90deg,${stops})` }), to),
  );
}

const figures = [];

/**
 * A picture with a title and a line that says what it shows. `draw(width)` gives nodes, and is called again when the width, the colours
 * or the axis change; `table()` gives the numbers: a table of a header and rows, or several, each with a title.
 */
function figure(parent, { title, what, wide }, draw, table) {
  const id = `picture-${figures.length + 1}`;
  const place = el("div", { class: "draw" });
  const head = el("h3", { id }, title);
  const caption = el("figcaption", {}, head, what ? el("p", { class: "what" }, what) : null);
  const box = el("figure", { class: wide ? "wide" : null, "aria-labelledby": id }, caption, place);
  if (table) box.append(numbers(table));
  parent.append(box);
  const redraw = () => {
    const drawn = [draw(place.clientWidth || 560)].flat(2).filter((node) => node != null);
    place.replaceChildren(...drawn);
    for (const svg of place.querySelectorAll("svg")) {
      svg.setAttribute("role", "img");
      svg.setAttribute("aria-label", [title, svg.dataset.of, what].filter(Boolean).join(". "));
    }
  };
  figures.push({ box, place, redraw, drawnAt: 0 });
  return box;
}

/** Rows of a table that are made at once; the others when they are asked for. */
const MOST_ROWS = 400;

/** The numbers of a picture, made when they are asked for. */
function numbers(table) {
  const place = el("div", { tabindex: "0", role: "region", "aria-label": "Numbers of the picture" });
  const figure = (x) => typeof x === "number" || x == null;
  const cell = (x) => (figure(x) ? el("td", { class: "n" }, number(x)) : el("td", {}, x));
  const row = (cells) => el("tr", {}, cells.map(cell));
  const one = ({ title, header, rows }) => {
    const body = el("tbody", {}, rows.slice(0, MOST_ROWS).map(row));
    const more = rows.length > MOST_ROWS
      ? el("button", { type: "button", on: { click: () => { body.append(...rows.slice(MOST_ROWS).map(row)); more.remove(); } } }, `Show all ${count(rows.length)} rows`)
      : null;
    return [el("table", {}, title ? el("caption", {}, title) : null, el("thead", {}, el("tr", {}, header.map((name, i) => el("th", { scope: "col", class: rows.every((cells) => figure(cells[i])) ? "n" : null }, name)))), body), more];
  };
  const open = () => {
    if (!place.firstChild) place.append(...[table()].flat().filter((of) => of.rows.length).flatMap(one).filter((node) => node != null));
  };
  return el("details", { class: "numbers", on: { toggle: open } }, el("summary", {}, "Numbers"), place);
}

/** Parts of a picture side by side, as many as there is room for; `draw(item, width)` gives one. */
function panels(width, items, draw) {
  const most = width > 900 && items.length !== 4 ? 3 : width > 560 ? 2 : 1;
  const columns = Math.max(1, Math.min(items.length, most));
  const each = (width - 28 * (columns - 1)) / columns;
  return el("div", { class: "runs", style: `grid-template-columns:repeat(${columns},minmax(0,1fr))` }, items.map((item) => draw(item, each)));
}

/** A name's colour, before it. */
const dot = (color) => el("span", { class: "dot", style: `background:${color}` });
/** The runs as heads of columns. */
const runHeads = (runs, kind) => runs.map((run, r) => el("th", { scope: "col", class: kind }, dot(PALETTE[r]), run.name));

function redrawAll() {
  for (const of of figures) {
    of.drawnAt = of.place.clientWidth;
    of.redraw();
  }
}

/** A choice of one: a group of radio buttons that looks like a switch. */
function choice(name, legend, options, chosen, change) {
  const option = ([value, text]) =>
    el(
      "label",
      {},
      el("input", { type: "radio", name, value, checked: value === chosen, on: { change: () => change(value) } }),
      text,
    );
  return el(
    "span",
    { role: "radiogroup", "aria-label": legend },
    el("span", { class: "legend" }, legend),
    el("span", { class: "switch" }, options.map(option)),
  );
}

/** Means over a window about each value, nulls left out. */
function smooth(values, width) {
  const reach = Math.floor(width / 2);
  return values.map((value, i) => {
    const part = values.slice(Math.max(0, i - reach), i + reach + 1).filter((x) => x != null);
    return value == null || part.length === 0 ? null : d3.mean(part);
  });
}
