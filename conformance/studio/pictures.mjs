// Pictures of every page, at two widths and in both themes. No page may be wider than its window, every text can be read, and
// the keyboard reaches everything.

import { check, until } from "./parts.mjs";
import { pale, unreachable } from "./reading.mjs";

/** What is pictured: a name, a path, and what to wait for or do. */
function pages(run) {
  return [
    ["runs", "/", page => page.waitForSelector("tr[data-run]")],
    ["run", `/runs/${run}`, page => page.waitForSelector("[data-metric=loss] polyline")],
    ["operations", `/runs/${run}#operations`, page => page.waitForSelector(".timeline rect")],
    ["data", `/runs/${run}#data`, page => page.waitForSelector("[data-datum] .t, #datums .empty")],
    ["checkpoints", `/runs/${run}#checkpoints`, page => page.waitForSelector("#tab-checkpoints .panel")],
    ["settings", `/runs/${run}#settings`, page => page.waitForSelector("#tab-settings .panel")],
    ["playground", "/playground", ask],
    ["server", "/server", page => page.waitForSelector("#server .panel")],
    ["sessions", "/sessions", page => page.waitForSelector("main h1")],
  ];
}

async function ask(page) {
  await page.waitForSelector(".column");
  await page.fill("#max_tokens", "20");
  await page.fill("#temperature", "0");
  await page.fill("#prompt", "What color is the sky?");
  await page.keyboard.press("Enter");
  await page.waitForSelector(".turn.assistant[data-finish]");
  await page.selectOption("#show", "tokens");
}

/** Makes the pictures as the visitor whose runs are the demo's. */
export async function pictures(chrome, context, url, folder) {
  const cookies = await context.cookies(), problems = [];
  const note = (where, found) => problems.push(...found.map(what => `${where}: ${what}`));
  for (const [width, height] of [[1280, 860], [360, 740]]) {
    for (const theme of ["light", "dark"]) {
      const { context: fresh, page } = await chrome.visit({ viewport: { width, height }, colorScheme: theme, reducedMotion: "reduce" });
      await page.goto(`${url}/login`);
      await page.screenshot({ path: `${folder}/login-${width}-${theme}.png` });
      note(`too little contrast in login, ${theme}`, await pale(page));
      await fresh.addCookies(cookies);
      await page.goto(`${url}/`);
      await page.waitForSelector("tr[data-run] a.name");
      const run = await page.$eval("tr[data-run]:last-child", row => encodeURIComponent(row.dataset.run));
      for (const [name, path, ready] of pages(run)) {
        await page.goto("about:blank");
        await page.goto(url + path);
        await ready(page);
        await until("the page is still", () => page.evaluate(() => document.fonts.ready.then(() => true)));
        await page.screenshot({ path: `${folder}/${name}-${width}-${theme}.png` });
        const over = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
        check(over <= 0, `${name} is ${over} pixels wider than a window of ${width}`);
        note(`too little contrast in ${name}, ${theme}, ${width} pixels`, await pale(page));
        if (theme === "light") note(`the keyboard in ${name}, ${width} pixels`, (await unreachable(page)).slice(0, 10));
      }
      await fresh.close();
    }
  }
  check(problems.length === 0, `pages cannot be read or reached:\n  ${problems.join("\n  ")}`);
}
