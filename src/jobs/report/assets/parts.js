// Small parts: elements, numbers, colours, figures that draw themselves again. Texts of a run only ever become text nodes.
"use strict";
const data = JSON.parse(document.getElementById("data").textContent);

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
 * or the axis change; `table()` gives the numbers: a header and rows.
 */
function figure(parent, { title, what, wide, width }, draw, table) {
  const id = `picture-${figures.length + 1}`;
  const place = el("div", { class: "draw" });
  const head = el("h3", { id }, title);
  const caption = el("figcaption", {}, head, what ? el("p", { class: "what" }, what) : null);
  const box = el("figure", { class: wide ? "wide" : null, "aria-labelledby": id }, caption, place);
  if (table) box.append(numbers(table));
  parent.append(box);
  const redraw = () => {
    const room = width || place.clientWidth || 560;
    const drawn = [draw(room)].flat(2).filter((node) => node != null);
    place.replaceChildren(...drawn);
    for (const svg of place.querySelectorAll("svg")) {
      svg.setAttribute("role", "img");
      svg.setAttribute("aria-label", [title, svg.dataset.of, what].filter(Boolean).join(". "));
    }
  };
  figures.push({ box, place, redraw, drawnAt: 0 });
  return box;
}

/** The numbers of a picture, made when they are asked for. */
function numbers(table) {
  const place = el("div", { tabindex: "0", role: "region", "aria-label": "Numbers of the picture" });
  const open = () => {
    if (place.firstChild) return;
    const { header, rows } = table();
    const most = 400;
    const cell = (x) => (typeof x === "number" || x == null ? el("td", { class: "n" }, number(x)) : el("td", {}, x));
    place.append(
      el(
        "table",
        {},
        el("thead", {}, el("tr", {}, header.map((name) => el("th", { scope: "col" }, name)))),
        el("tbody", {}, rows.slice(0, most).map((row) => el("tr", {}, row.map(cell)))),
      ),
    );
    if (rows.length > most) place.append(`The first ${most} of ${count(rows.length)} rows.`);
  };
  return el("details", { class: "numbers", on: { toggle: open } }, el("summary", {}, "Numbers"), place);
}

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
