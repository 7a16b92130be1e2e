// Looks at pages in Chromium without a window: node tests/page.mjs FOLDER. Run by tests/page.rs (make test-page), which wrote the pages
// into the folder and knows what is in them. Ends with 1 and says what was wrong; screenshots go to the folder too.
import { createRequire } from "node:module";
import { mkdirSync, mkdtempSync, rmSync } from "node:fs";
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
  await page.keyboard.press("Escape");
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
  await page.fill("#search", "nothing has this in it");
  await page.waitForFunction(() => document.getElementById("found").textContent.startsWith("0 of "));
  await page.fill("#search", "");

  // Against time, dark, on paper, narrow.
  const path = () => page.locator("#learning svg").first().innerHTML();
  const before = await path();
  await page.getByText("time", { exact: true }).first().click();
  right("curves are the same against time", (await path()) !== before);
  const light = await ground(page);
  await page.screenshot({ path: join(folder, "light.png"), fullPage: true });
  await page.click("#theme");
  right("dark is as light", (await ground(page)) !== light);
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
  right("a run is missing", (await page.locator("#differences thead th").count()) === 3);
  await page.screenshot({ path: join(folder, "compare.png"), fullPage: true });
  await page.setViewportSize({ width: 700, height: 900 });
  await page.waitForTimeout(150);
  right(`compared at 700 pixels ${await overflow(page)} are outside`, (await overflow(page)) <= 0);
  await page.close();
}

async function experiment() {
  const page = await open("experiment.html");
  await drawn(page, "experiment.html", 5);
  right("the table is missing", (await page.locator("#table tbody tr").count()) === 2);
  await page.screenshot({ path: join(folder, "experiment.png"), fullPage: true });
  await page.close();
}

async function empty() {
  const page = await open("empty.html");
  right("a run without steps says nothing", (await page.textContent("#story")).includes("No step"));
  await page.close();
}

mkdirSync(folder, { recursive: true });
try {
  for (const look of [one, darkByItself, several, experiment, empty]) await look();
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
