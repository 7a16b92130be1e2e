// Looks at pages in Chromium without a window: node tests/page.mjs FOLDER. Run by tests/page.rs (make test-page), which wrote the pages
// into the folder and knows what is in them. Ends with 1 and says what was wrong; screenshots go to the folder too.
import { createRequire } from "node:module";
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { pathToFileURL } from "node:url";

const { TIDEGATE_PLAYWRIGHT, TIDEGATE_CHROMIUM } = process.env;
const { chromium } = createRequire(join(TIDEGATE_PLAYWRIGHT, "/"))("playwright-core");
const folder = process.argv[2];
const profile = mkdtempSync(join(tmpdir(), "tidegate-page-"));
const wrong = [];
const right = (what, found) => {
  if (!found) wrong.push(what);
};

const args = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"];
const browser = await chromium.launchPersistentContext(profile, { executablePath: TIDEGATE_CHROMIUM, headless: true, args, viewport: { width: 1400, height: 900 }, colorScheme: "light" });

/** Opens a page, and hears what goes wrong in it. */
async function open(name) {
  const page = await browser.newPage();
  page.on("console", (message) => ["error", "warning"].includes(message.type()) && wrong.push(`${name}: console: ${message.text()}`));
  page.on("pageerror", (error) => wrong.push(`${name}: ${error.stack}`));
  page.on("request", (request) => right(`${name} asks for ${request.url()}`, request.url().startsWith("file:") || request.url().startsWith("data:")));
  page.on("dialog", (dialog) => { wrong.push(`${name}: a text of the run ran as a script`); dialog.dismiss(); });
  await page.goto(pathToFileURL(join(folder, name)).href);
  return page;
}

/** A page of what another one shows, changed. */
function remade(name, as, change) {
  const text = readFileSync(join(folder, name), "utf8");
  const [before, rest] = text.split('<script type="application/json" id="data">');
  const end = rest.indexOf("</script>");
  const data = JSON.parse(rest.slice(0, end));
  change(data);
  writeFileSync(join(folder, as), `${before}<script type="application/json" id="data">${JSON.stringify(data).replaceAll("<", "\\u003c")}${rest.slice(end)}`);
  return as;
}

/** Every figure has a picture with something in it, or says why not; nothing reaches beyond the page. */
async function drawn(page, name, least) {
  const found = await page.$$eval("#page > section figure[aria-labelledby]", (all) => all.map((figure) => ({
    title: figure.querySelector("h3").textContent,
    marks: figure.querySelectorAll("svg path, svg rect, svg line, svg circle").length,
    labelled: [...figure.querySelectorAll("svg[role=img]")].every((svg) => svg.getAttribute("aria-label")),
    says: figure.querySelector(".none")?.textContent,
  })));
  const full = found.filter((figure) => figure.marks > 3);
  right(`${name}: ${full.length} pictures, not ${least} (${JSON.stringify(found.filter((f) => f.marks <= 3))})`, full.length >= least);
  right(`${name}: a picture without a mark and a word`, found.every((figure) => figure.marks > 3 || figure.says));
  right(`${name}: a picture without a label`, found.every((figure) => figure.labelled));
  const text = await page.evaluate(() => document.body.innerText);
  for (const bad of ["NaN", "undefined", "[object", "Infinity"]) right(`${name} says ${bad}: ${text.slice(text.indexOf(bad) - 60, text.indexOf(bad) + 20)}`, !text.includes(bad));
  const hidden = await page.evaluate(() => /(?![\n\t])[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}]/u.exec(document.getElementById("page").textContent)?.[0]);
  right(`${name}: a text has U+${hidden?.codePointAt(0).toString(16)} without a sign`, hidden == null);
  const twice = await page.$$eval("[id]", (all) => all.map((one) => one.id).filter((id, i, ids) => ids.indexOf(id) !== i));
  right(`${name}: the same id twice: ${twice}`, twice.length === 0);
  // What `Numbers` have is made when they are opened.
  const lacking = await page.$$eval("#page figure[aria-labelledby]", (all) => all.filter((figure) => figure.querySelector("svg") && !figure.querySelector("details.numbers")).map((figure) => figure.querySelector("h3").textContent));
  right(`${name}: no numbers of ${lacking}`, lacking.length === 0);
}

/** The numbers of a picture, as text. */
async function numbersOf(page, title) {
  const figure = page.locator("figure[aria-labelledby]", { has: page.getByRole("heading", { name: title, exact: true }) });
  await figure.locator("details.numbers summary").first().click();
  await figure.locator("details.numbers table").first().waitFor();
  return figure.locator("details.numbers > div").first().innerText();
}

const ground = (page) => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
const overflow = (page) => page.evaluate(() => document.documentElement.scrollWidth - innerWidth);

async function one() {
  const page = await open("one.html");
  await drawn(page, "one.html", 14);
  right("the story has no figure", (await page.locator(".story b").count()) > 5);

  // A rollout opens by the keyboard, and each of its tokens is there.
  const shown = await page.textContent("#found");
  const first = page.locator("#list .turn").first();
  await first.focus();
  await page.keyboard.press("Enter");
  right("a rollout does not open", (await page.locator(".rollout .tokens span").count()) > 3);
  right("an open rollout does not say so", (await first.getAttribute("aria-expanded")) === "true");
  const color = () => page.locator(".rollout .tokens span").first().getAttribute("style");
  const byVersion = await color();
  await page.getByText("advantage", { exact: true }).first().click();
  right("the colours of tokens do not change", (await color()) !== byVersion);
  await page.locator(".rollout .tokens span").first().hover();
  right("a token says nothing", (await page.textContent(".rollout .reads")).includes("version"));

  // Its tokens by arrow keys, which the focus reaches once; by a click; and the same one is seen in other colours.
  const reads = () => page.textContent(".rollout .reads");
  await first.focus();
  await page.keyboard.press("Tab");
  while (!(await page.evaluate(() => document.activeElement.matches(".rollout .tokens, #list .turn")))) await page.keyboard.press("Tab");
  right("the focus does not reach the tokens", await page.evaluate(() => document.activeElement.matches(".rollout .tokens")));
  for (const [key, place] of [["Home", 1], ["ArrowRight", 2], ["ArrowRight", 3], ["ArrowLeft", 2], ["ArrowUp", 2], ["ArrowDown", 2]]) {
    await page.keyboard.press(key);
    right(`${key} leads to ${await reads()}`, (await reads()).startsWith(`token ${place} `));
  }
  right("no token is seen", (await page.locator(".rollout .tokens .seen").count()) === 1);
  await page.mouse.move(0, 0);
  await page.locator(".rollout .tokens span").nth(3).dispatchEvent("click");
  right("a click shows no token", (await reads()).startsWith("token 4 "));
  const light = await page.locator(".rollout .tokens span").first().getAttribute("style");
  await page.emulateMedia({ colorScheme: "dark" });
  const recoloured = await page.waitForFunction((before) => document.querySelector(".rollout .tokens span").getAttribute("style") !== before, light, { timeout: 2000 }).catch(() => null);
  right("an open rollout keeps the colours of light", recoloured);
  right("another colour forgets the token", (await page.locator(".rollout .tokens .seen").getAttribute("data-i")) === "3");
  await page.emulateMedia({ colorScheme: "light" });
  await first.click();
  right("a rollout does not close", (await page.locator(".rollout").count()) === 0);

  // What is sought is found: tests/page.rs put it there.
  await page.fill("#search", "needle </script>");
  await page.waitForFunction((before) => document.getElementById("found").textContent !== before, shown);
  right(`found ${await page.textContent("#found")}`, (await page.textContent("#found")).startsWith("1 of "));
  right("what was found is not marked", (await page.locator("#list mark").count()) > 0);
  await page.locator("#list .turn").first().click();
  const text = await page.locator(".rollout .prompt").innerText();
  right(`the hostile text reads ${JSON.stringify(text)}`, text.includes("</script><img src=x onerror=alert(1)>") && text.includes("␀") && text.includes("⟨U+202E⟩"));
  right("a text of the run became an element", (await page.locator(".rollout img, .rollout script, #list img").count()) === 0);
  right("the task is another", (await page.locator("#list tr.one").first().innerText()).includes("<b>"));
  await page.fill("#search", "</script><b>no");
  await page.waitForTimeout(250);
  right("the status is another", (await page.locator("#list tbody").innerText()).includes("</script><b>no"));
  await page.fill("#search", "nothing has this in it");
  await page.waitForFunction(() => document.getElementById("found").textContent.startsWith("0 of "));
  await page.fill("#search", "");
  right("the lengths have no counts", (await numbersOf(page, "Lengths over the run")).includes("Rollouts by length"));
  right("the sequences have no numbers", (await numbersOf(page, "What each worker did")).includes("Sequences of the generators"));

  // Against time, dark, on paper, narrow.
  const path = () => page.locator("#learning svg").first().innerHTML();
  const before = await path();
  await page.getByText("time", { exact: true }).first().click();
  right("curves are the same against time", (await path()) !== before);
  const day = await ground(page);
  await page.screenshot({ path: join(folder, "light.png"), fullPage: true });
  await page.click("#theme");
  right("dark is as light", (await ground(page)) !== day);
  await drawn(page, "one.html, dark", 14);
  await page.screenshot({ path: join(folder, "dark.png"), fullPage: true });
  await page.emulateMedia({ media: "print" });
  right("paper shows what is to be clicked", !(await page.locator("nav").isVisible()));
  await page.emulateMedia({ media: "screen" });
  await page.setViewportSize({ width: 700, height: 900 });
  await page.waitForTimeout(150);
  right(`at 700 pixels ${await overflow(page)} are outside`, (await overflow(page)) <= 0);
  await drawn(page, "one.html, narrow", 14);
  await page.screenshot({ path: join(folder, "narrow.png"), fullPage: true });
  await page.close();
}

async function darkByItself() {
  const page = await browser.newPage();
  await page.emulateMedia({ colorScheme: "dark" });
  await page.goto(pathToFileURL(join(folder, "one.html")).href);
  right("who asked for dark has light", (await ground(page)) === "rgb(18, 21, 24)");
  await page.close();
}

async function several() {
  const page = await open("compare.html");
  await drawn(page, "compare.html", 14);
  right("no difference is told", (await page.locator(".told li").count()) > 0);
  right("a run is missing", (await page.locator("#figures thead th").count()) === 3);
  right("settings have no heads", (await page.locator("#settings-differ thead th[scope=col] .dot").count()) === 2);
  await page.screenshot({ path: join(folder, "compare.png"), fullPage: true });
  await page.setViewportSize({ width: 700, height: 900 });
  await page.waitForTimeout(150);
  right(`compared at 700 pixels ${await overflow(page)} are outside`, (await overflow(page)) <= 0);
  await page.close();
}

/** A full run beside one without a step, and beside one whose steps have no metrics. */
async function mixed() {
  const pages = ["mixed.html", remade("compare.html", "bare.html", ({ runs }) => { runs[1].steps = { steps_a_point: 1 }; runs[1].timeline = null; })];
  for (const name of pages) {
    const page = await open(name);
    await drawn(page, name, 14);
    right(`${name}: settings of a run that has none`, name !== "mixed.html" || (await page.locator("#settings-differ").count()) === 0);
    right(`${name}: one run's story is missing`, (await page.locator("#story h3").count()) === 2);
    await page.close();
  }
}

/** What a safeguard left out is told where it counts and where it does not. */
async function leftOut() {
  const page = await open(remade("one.html", "left-out.html", ({ runs }) => { runs[0].left_out = 1234; }));
  const told = await page.locator(".what", { hasText: "left out for their lag (1,234)" }).allInnerTexts();
  right(`${told.length} pictures tell of tokens that were left out`, told.length === 6 && told.filter((text) => text.includes("do not count")).length === 5);
  await page.close();
}

/** Emulated accelerators of two axes, of which one setting is unlike what is said of it. */
async function emulated() {
  const point = (at, i) => ({ at, measured: { mean: 2 ** i, deviation: i ? 0.1 * i : null }, formulas: i === 3 ? null : 2.1 ** i, simulation: 2.05 ** i, decode_added_ms: 1.2 * i, step_added_ms: 3.4 * i });
  const page = await open(remade("experiment.html", "emulated-axes.html", ({ experiment }) => {
    experiment.axes = ["accelerators", "schedule"];
    const settings = ["16", "64", "256"].flatMap((n) => ["pipeline", "conventional"].map((schedule) => [n, schedule]));
    experiment.settings = settings.map((at) => ({ ...experiment.settings[0], at, failed: [] }));
    experiment.emulated = settings.map(point);
    experiment.speed_up = {
      what: "Tokens a flash of pipeline over those of conventional.",
      table: { header: ["accelerators", "runs", "speed-up"], rows: [["16", "1", "1.50"]], words: 1 },
      points: ["16", "64", "256"].map((at, i) => ({ at: [at], measured: { mean: 1.5 + 0.05 * i, deviation: 0.04 }, formulas: 1.6, simulation: 1.55 })),
    };
  }));
  await drawn(page, "emulated-axes.html", 4);
  const titles = await page.locator("figure h3").allInnerTexts();
  right(`an experiment on emulated accelerators draws ${titles}`, titles.includes("Throughput") && titles.includes("What coordination added") && titles.includes("Speed-up by setting") && !titles.some((title) => /Reward|ESS/.test(title)));
  right("a part is missing", (await page.locator("figure", { hasText: "Throughput" }).first().locator("h4").count()) === 2);
  await page.screenshot({ path: join(folder, "emulated-axes.png"), fullPage: true });
  await page.close();
}

async function experiment() {
  const page = await open("experiment.html");
  await drawn(page, "experiment.html", 5);
  right("the table is missing", (await page.locator("#table tbody tr").count()) === 2);
  await page.screenshot({ path: join(folder, "experiment.png"), fullPage: true });
  await page.close();
}

async function plan() {
  const page = await open("plan.html");
  await drawn(page, "plan.html", 8);
  right("a layout is missing", (await page.locator("#layouts tbody tr").count()) === 3);
  right("the plan tells nothing", (await page.locator("#story b").count()) > 8);
  await page.screenshot({ path: join(folder, "plan.png"), fullPage: true });
  await page.click("#theme");
  await drawn(page, "plan.html, dark", 8);
  await page.screenshot({ path: join(folder, "plan-dark.png"), fullPage: true });
  await page.setViewportSize({ width: 700, height: 900 });
  await page.waitForTimeout(150);
  right(`a plan at 700 pixels: ${await overflow(page)} are outside`, (await overflow(page)) <= 0);
  await page.close();
}

async function divergences() {
  const page = await open("kl.html");
  await drawn(page, "kl.html", 2);
  right("a stage is missing", (await page.locator("#kl h4").count()) === 4);
  right("a lag is missing", (await page.locator("#table tbody tr").count()) === 4);
  await page.screenshot({ path: join(folder, "kl.png"), fullPage: true });
  await page.close();
  const nothing = await open(remade("kl.html", "kl-nothing.html", ({ experiment: { kl } }) => { for (const point of kl) { point.of = "lr 1e-4"; if (point.after === kl[0].after) point.kl = 0; } }));
  await drawn(nothing, "kl-nothing.html", 2);
  right("a logarithmic axis has a place for 0", (await nothing.locator("#kl .none").count()) === 1);
  right("a stage does not say whose it is", (await nothing.locator("#kl h4").first().innerText()) === "lr 1e-4, after step 0");
  await nothing.close();
}

async function empty() {
  const page = await open("empty.html");
  right("a run without steps says nothing", (await page.textContent("#story")).includes("No step"));
  await page.close();
}

mkdirSync(folder, { recursive: true });
try {
  for (const look of [one, darkByItself, several, mixed, leftOut, experiment, emulated, plan, divergences, empty]) await look();
} catch (error) {
  wrong.push(error.stack);
} finally {
  await browser.close();
  rmSync(profile, { recursive: true, force: true });
}
if (wrong.length) {
  console.error(wrong.join("\n"));
  process.exit(1);
}
console.log("pages are as they should be");
