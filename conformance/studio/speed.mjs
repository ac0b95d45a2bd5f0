// How long pages of a server take to show what they are opened for: usage: speed.mjs URL KEY RUN
//
// Writes a line of JSON for each round. Time runs from the navigation to the moment in which the rows or curves are there.

import { createRequire } from "node:module";

const { chromium } = createRequire(`${process.env.TINKRS_NODE}/`)("playwright-core");
const [url, key, run] = process.argv.slice(2);
const ROUNDS = 5;

/** Opens a page and returns the milliseconds until a condition in it is true. */
async function open(page, path, condition) {
  const start = performance.now();
  await page.goto(`${url}${path}`, { waitUntil: "commit" });
  await page.waitForFunction(condition, undefined, { polling: "raf" });
  return performance.now() - start;
}

const chrome = await chromium.launch({ executablePath: process.env.TINKRS_CHROMIUM, args: ["--no-sandbox", "--disable-gpu"] });
try {
  const page = await chrome.newPage({ viewport: { width: 1280, height: 860 } });
  page.setDefaultTimeout(60000);
  await page.goto(`${url}/login`);
  await page.fill("input[name=key]", key);
  await page.click("button[type=submit]");
  await page.waitForURL(`${url}/`);
  for (let round = 0; round < ROUNDS; round += 1) {
    const list_ms = await open(page, "/", () => document.querySelectorAll("tr[data-run]").length > 1);
    const chart_ms = await open(page, `/runs/${run}`, () => {
      const card = document.querySelector("[data-metric=loss]");
      return Number(card?.querySelector("polyline")?.getAttribute("data-points") ?? 0) > 1;
    });
    console.log(JSON.stringify({ list_ms, chart_ms }));
  }
} finally {
  await chrome.close();
}
