// What a person would see of the studio, checked in a browser: see README.md here.

import { mkdirSync, readFileSync } from "node:fs";
import { dirname } from "node:path";
import { fileURLToPath } from "node:url";
import { browser, check, endAll, loop, serve, until } from "./parts.mjs";
import { pictures } from "./pictures.mjs";

const here = dirname(fileURLToPath(import.meta.url));
const folder = `${process.env.TINKRS_SCRATCH}/data`, shots = process.env.TINKRS_SHOTS;
mkdirSync(shots, { recursive: true });
const HOSTILE = "<img src=x onerror=alert(1)><script>alert(2)</script>\u202e\u2066";
const start = Date.now();
const step = words => console.log(`${((Date.now() - start) / 1000).toFixed(1).padStart(6)} s  ${words}`);

/** @param {import("playwright-core").Page} page */
async function logIn(page, url, key) {
  await page.goto(`${url}/`);
  await page.waitForURL(/\/login/);
  await page.fill("input[name=key]", key);
  await page.click("button[type=submit]");
  await page.waitForURL(`${url}/`);
}

/** The points of the chart of a metric. */
const points = (page, metric) => page.evaluate(name => {
  const card = [...document.querySelectorAll("[data-metric]")].find(one => one.getAttribute("data-metric") === name);
  return Number(card?.querySelector("polyline")?.getAttribute("data-points") ?? 0);
}, metric);

async function main() {
  let server = await serve(folder);
  const { url, port } = server;
  const chrome = await browser();

  step("a visitor logs in; a wrong key is refused in words");
  const visitor = await chrome.visit();
  chrome.allow(/status of 401/);
  await visitor.page.goto(`${url}/`);
  await visitor.page.waitForURL(/\/login/);
  await visitor.page.fill("input[name=key]", "nonsense");
  await visitor.page.click("button[type=submit]");
  check(/key/i.test(await visitor.page.textContent("[role=alert]")), "the refusal says nothing of the key");
  await logIn(visitor.page, url, "tml-local");
  const cookie = (await visitor.context.cookies()).find(one => one.name === "tinkrs_studio");
  check(cookie?.httpOnly && cookie.sameSite === "Strict" && !cookie.value.includes("tml-local"), `the cookie: ${JSON.stringify(cookie)}`);

  step("a first visit offers the demo; it starts with one button, once");
  await visitor.page.click("#demo");
  await visitor.page.waitForSelector("tr[data-run]", { timeout: 60000 });
  const again = await visitor.page.evaluate(async () => (await fetch("/api/v1/studio/demo", { method: "POST", headers: { "X-Tinkrs-Studio": "1", "Content-Type": "application/json" }, body: "{}" })).status);
  chrome.allow(/studio\/demo/);
  check(again === 409 || again === 400, `a second demo: ${again}`);

  step("the SDK trains, and its run appears and its curve grows without a reload");
  const ada = await chrome.visit();
  await logIn(ada.page, url, "tml-ada");
  const training = await loop(here, url, "tml-ada", "curve");
  await training.step();
  await ada.page.waitForSelector("tr[data-run] a.name");
  check((await ada.page.textContent("tr[data-run] a.name")) === "curve", "the run has its name");
  await ada.page.click("tr[data-run] a.name");
  await ada.page.waitForSelector("[data-metric=loss]");
  const seen = [await points(ada.page, "loss")];
  for (let index = 0; index < 5; index += 1) {
    await training.step();
    const last = seen[seen.length - 1];
    await until("the curve grows", async () => (await points(ada.page, "loss")) > last);
    seen.push(await points(ada.page, "loss"));
  }
  check(seen[seen.length - 1] === 6, `points of the curve: ${seen}`);
  const metrics = await ada.page.$$eval("[data-metric]", all => all.map(one => one.getAttribute("data-metric")));
  for (const name of ["loss", "loss_per_datum", "grad_norm", "learning_rate", "tokens_per_second", "forward_backward_ms", "queue_ms"]) check(metrics.includes(name), `no chart of ${name} among ${metrics}`);

  const rates = await ada.page.$$eval("[data-metric=learning_rate] .tick.end", all => all.map(one => one.textContent));
  check(rates.some(one => one.startsWith("0.00")) && !rates.some(one => one.startsWith("−")), `the axis of a constant rate of 0.004: ${rates}`);

  step("what a client reports grows as it comes, also of a step that was told of before");
  const report = (at, metrics) => ada.page.evaluate(async ([run, step, metrics]) => (await fetch(`/api/v1/training_runs/${encodeURIComponent(run)}/metrics`, { method: "POST", headers: { "X-Tinkrs-Studio": "1", "Content-Type": "application/json" }, body: JSON.stringify({ step, metrics }) })).status, [training.run, at, metrics]);
  for (const [count, at] of [[1, 6], [2, 5], [3, 100000]]) {
    check((await report(at, { reward: count })) === 200, "a reward is taken");
    await until(`${count} rewards`, async () => (await points(ada.page, "reward")) === count);
  }
  check(/client/.test(await ada.page.textContent("[data-metric=reward] .chip")), "the reward is the client's");
  check((await ada.page.textContent("#figures")).includes("step6"), "steps are those of the optimizer");

  step("charts zoom, smooth, have logarithmic axes, and can be taken away");
  await ada.page.click("#logY");
  await ada.page.fill("#smooth", "60");
  await until("a smoothed curve", () => ada.page.$("[data-metric=loss] polyline.raw"));
  const box = await (await ada.page.$("[data-metric=loss] .plot")).boundingBox();
  await ada.page.mouse.move(box.x + 90, box.y + 60);
  await ada.page.mouse.down();
  await ada.page.mouse.move(box.x + 240, box.y + 60, { steps: 4 });
  await ada.page.mouse.up();
  await until("the zoom", async () => (await points(ada.page, "loss")) < 6);
  await ada.page.click("#unzoom");
  await until("all steps again", async () => (await points(ada.page, "loss")) === 6);
  await ada.page.hover("[data-metric=loss]");
  const [csv] = await Promise.all([ada.page.waitForEvent("download"), ada.page.click("[data-metric=loss] button:text('CSV')")]);
  const table = readFileSync(await csv.path(), "utf8");
  check(table.startsWith("run,metric,step,value,min,max,time\ncurve,loss,1,") && table.trim().split("\n").length === 7, `the CSV: ${table}`);
  const [png] = await Promise.all([ada.page.waitForEvent("download"), ada.page.click("[data-metric=loss] button:text('PNG')")]);
  check(readFileSync(await png.path()).subarray(1, 4).toString() === "PNG", "the image is a PNG");

  step("the loss mask of a known datum has its colours");
  await ada.page.click("[data-tab=data]");
  await ada.page.waitForSelector("[data-datum] .t");
  const tokens = await ada.page.$$eval("[data-datum='0'] .t", all => all.map(one => ({ id: /id (\d+)/.exec(one.title)?.[1], classes: [...one.classList] })));
  check(tokens.map(token => token.id).join() === "71,72,80,81,82", `the tokens: ${JSON.stringify(tokens)}`);
  const shades = tokens.map(token => token.classes.find(name => /^(off|h\d)$/.test(name)));
  check(shades.join() === "off,off,h5,h5,h3", `the shades of weights 0 0 1 1 0.5: ${shades}`);
  await ada.page.selectOption("#measure", "logprob");
  await until("log-probabilities have colours", () => ada.page.$("[data-datum='0'] .t:nth-child(3)[title*='trainer']"));

  step("answers that were as good as their group are answers, in one group");
  const group = await ada.page.evaluate(async () => {
    const ask = async (path, body) => (await fetch(`/api/v1/${path}`, { method: "POST", headers: { "X-Tinkrs-Studio": "1", "Content-Type": "application/json" }, body: JSON.stringify(body) })).json();
    const { session_id } = await ask("create_session", { tags: [], sdk_version: "0.36.0" });
    const run = `${session_id}:train:0`;
    await ask("create_model", { session_id, model_seq_id: 0, base_model: "tinkrs/nano", lora_config: { rank: 4 } });
    const floats = data => ({ data, dtype: "float32" });
    const answer = last => ({ model_input: { chunks: [{ tokens: [71, 72, 80] }] },
      loss_fn_inputs: { target_tokens: { data: [72, 80, last], dtype: "int64" }, logprobs: floats([0, -1, -2]), advantages: floats([0, 0, 0]) } });
    await ask("forward_backward", { model_id: run, seq_id: 1, forward_backward_input: { loss_fn: "importance_sampling", data: [answer(81), answer(82)] } });
    const { request_id } = await ask("optim_step", { model_id: run, seq_id: 2, adam_params: { learning_rate: 0.001 } });
    while ((await ask("retrieve_future", { request_id })).type === "try_again");
    return run;
  });
  await ada.page.goto(`${url}/runs/${encodeURIComponent(group)}#data`);
  await ada.page.waitForSelector("[data-datum='1'] .t");
  check((await ada.page.textContent("#datums h2")) === "2 answers", "both have the same prompt");
  const drawn = await ada.page.$$eval("[data-datum]", all => all.map(one => [...one.querySelectorAll(".t")].map(token => /id (\d+)/.exec(token.title)?.[1]).join()));
  check(drawn.join(" ") === "80,81 80,82", `the answers: ${drawn}`);
  await ada.page.goto(`${url}/runs/curve`);
  await ada.page.waitForSelector("[data-metric=loss] polyline");

  step("operations have their waits");
  await ada.page.click("[data-tab=operations]");
  await ada.page.waitForSelector(".timeline rect.compute");
  const rows = await ada.page.$$eval("#tab-operations tbody tr", all => all.length);
  check(rows >= 12, `operations: ${rows}`);
  await training.step();
  await until("a new operation appears", async () => (await ada.page.$$eval("#tab-operations tbody tr", all => all.length)) > rows);

  step("what is dragged over, has the focus or is compared stays so while runs train");
  const strip = await (await ada.page.$(".timeline svg")).boundingBox();
  await ada.page.mouse.move(strip.x + 60, strip.y + 40);
  await ada.page.mouse.down();
  await ada.page.mouse.move(strip.x + 160, strip.y + 40);
  await training.step();
  await ada.page.mouse.move(strip.x + 400, strip.y + 40);
  await ada.page.mouse.up();
  await ada.page.waitForSelector("button:text('Show the newest'):visible");
  const second = await loop(here, url, "tml-ada", "second");
  await second.step();
  await ada.page.goto(`${url}/`);
  const stepsOf = async run => Number(await ada.page.textContent(`tr[data-run="${run}"] [data-label=step]`));
  await ada.page.waitForSelector(`tr[data-run="${training.run}"]`);
  await ada.page.waitForSelector(`tr[data-run="${second.run}"]`);
  await ada.page.focus(`tr[data-run="${training.run}"] a.name`);
  const shown = await stepsOf(training.run);
  await training.step();
  await until("the list has the step", async () => (await stepsOf(training.run)) > shown);
  check(await ada.page.evaluate(() => document.activeElement?.closest("tr")?.dataset.run) === training.run, "the focus is lost when a run goes on");
  await ada.page.check(`tr[data-run="${training.run}"] input`);
  await ada.page.check(`tr[data-run="${second.run}"] input`);
  await ada.page.click("#compare");
  const curvesOfLoss = () => ada.page.$$eval("[data-metric=loss] polyline", all => all.map(one => Number(one.dataset.points)));
  const compared = await until("two curves", async () => { const found = await curvesOfLoss(); return found.length === 2 && found; });
  await second.step();
  await until("the curve of the other run grows", async () => (await curvesOfLoss())[1] === compared[1] + 1);
  await ada.page.fill("#add-run", "no-such-run");
  await ada.page.press("#add-run", "Enter");
  await ada.page.waitForSelector(".toast:text('no-such-run')");
  chrome.allow(/no-such-run/);
  await ada.page.click("#legend button");
  await until("one curve", async () => (await curvesOfLoss()).length === 1);
  second.end();

  step("a tab that is opened by its address knows the run");
  await ada.page.goto("about:blank");
  await ada.page.goto(`${url}/runs/curve#settings`);
  await ada.page.waitForSelector("#tab-settings a[href^='/sessions/']");
  await ada.page.goto("about:blank");
  await ada.page.goto(`${url}/runs/curve`);
  await ada.page.waitForSelector("[data-metric=loss] polyline");

  step("hostile names, labels, metrics and prompts are text and nothing else");
  const logged = await ada.page.evaluate(async ([run, name]) => (await fetch(`/api/v1/training_runs/${encodeURIComponent(run)}/metrics`, { method: "POST", headers: { "X-Tinkrs-Studio": "1", "Content-Type": "application/json" }, body: JSON.stringify({ step: 1, metrics: { [name]: 1.5, "=1+1": 2 } }) })).status, [training.run, HOSTILE]);
  check(logged === 200, `a metric with a hostile name: ${logged}`);
  await ada.page.click("[data-tab=curves]");
  await ada.page.fill("#metric-search", "img");
  await until("the chart of the hostile metric", async () => (await points(ada.page, HOSTILE)) > 0);
  await ada.page.click("[data-tab=settings]");
  await ada.page.waitForSelector("#tab-settings td bdi");
  check((await ada.page.textContent("#tab-settings")).includes("<img src=x"), "labels are shown as they are");
  await ada.page.goto(`${url}/runs/${encodeURIComponent("<img src=x onerror=alert(3)>")}`);
  chrome.allow(/status of 404/);
  check((await ada.page.textContent("main")).includes("<img src=x"), "what is not there is named");
  check((await ada.page.$$("img, iframe, object")).length === 0, "nothing of it became an element");

  step("megabytes of it neither hang a page nor get into one");
  const megabytes = HOSTILE.repeat(40000);
  chrome.allow(/status of 4(00|13|22)/);
  const answers = await ada.page.evaluate(async ([run, text]) => {
    const post = async (path, body) => {
      const answer = await fetch(path, { method: "POST", headers: { "X-Tinkrs-Studio": "1", "Content-Type": "application/json" }, body: JSON.stringify(body) });
      return { status: answer.status, length: (await answer.text()).length };
    };
    return {
      metric: await post(`/api/v1/training_runs/${encodeURIComponent(run)}/metrics`, { step: 1, metrics: { [text]: 1 } }),
      name: await post("/api/v1/create_model", { session_id: run.split(":")[0], model_seq_id: 77, base_model: "tinkrs/nano", lora_config: { rank: 4 }, user_metadata: { name: text } }),
      query: await post("/v1/chat/completions", { model: text, messages: [{ role: "user", content: "hi" }] }),
    };
  }, [training.run, megabytes]);
  for (const [what, { status, length }] of Object.entries(answers)) check(status >= 400 && status < 500 && length < 2000, `${what} of megabytes: ${status}, ${length} characters`);
  await ada.page.goto(`${url}/playground`);
  await ada.page.waitForSelector(".column");
  await ada.page.evaluate(text => { document.querySelector("#prompt").value = text; }, megabytes);
  await ada.page.focus("#prompt");
  await ada.page.keyboard.press("Enter");
  await ada.page.waitForSelector(".turn.assistant [role=alert]", { timeout: 90000 });
  const began = Date.now();
  await ada.page.click("#theme");
  check(Date.now() - began < 3000, `the page took ${Date.now() - began} ms to react`);
  check((await ada.page.$$("img, iframe, object")).length === 0, "nothing of it became an element");

  step("the playground streams, side by side; tokens and their alternatives; it goes on from one");
  await training.save();
  await ada.page.goto(`${url}/playground`);
  await ada.page.waitForSelector(".column");
  await ada.page.click("#add-column");
  await ada.page.fill("#max_tokens", "24");
  await ada.page.fill("#prompt", `Who are you? ${HOSTILE}`);
  // Seen in the page: an answer may be there before the next look from outside.
  await ada.page.evaluate(() => {
    window.lengths = [];
    const note = () => document.querySelectorAll(".turn.assistant .said").forEach(one => window.lengths.push(one.textContent.length));
    new MutationObserver(note).observe(document.body, { subtree: true, childList: true, characterData: true });
  });
  await ada.page.keyboard.press("Enter");
  await until("two answers", async () => {
    const done = await ada.page.$$eval(".turn.assistant", all => all.map(one => one.getAttribute("data-finish")));
    return done.length === 2 && done.every(Boolean);
  }, 60000);
  const lengths = await ada.page.evaluate(() => window.lengths);
  check(new Set(lengths).size >= 3, `the answers came at once: ${lengths}`);
  await ada.page.selectOption("#show", "tokens");
  await ada.page.click(".turn.assistant .t:nth-child(2)");
  await ada.page.waitForSelector(".alts meter");
  const before = await ada.page.textContent(".turn.assistant .tokens");
  await ada.page.click(".alts button:last-child");
  await until("it goes on", async () => (await ada.page.$(".turn.assistant[data-finish]")) && !(await ada.page.$(".typing")));
  check((await ada.page.textContent(".turn.assistant .tokens")).slice(0, 1) === before.slice(0, 1), "what was kept is still there");
  const [saved] = await Promise.all([ada.page.waitForEvent("download"), ada.page.click("#save")]);
  const lines = readFileSync(await saved.path(), "utf8").trim().split("\n").map(line => JSON.parse(line));
  check(lines.length === 2 && lines[0].messages[0].content.includes("<script>") && lines[0].messages[1].role === "assistant", `saved: ${JSON.stringify(lines)}`);

  step("another owner's run is not there");
  const eve = await chrome.visit();
  await logIn(eve.page, url, "tml-eve");
  await eve.page.waitForSelector("#empty:not([hidden])");
  const page = await eve.page.goto(`${url}/runs/${encodeURIComponent(training.run)}`);
  check(page.status() === 404, `the page of another's run: ${page.status()}`);
  for (const path of ["metrics", "operations", "steps/1", "checkpoints"]) {
    const status = await eve.page.evaluate(async path => (await fetch(path)).status, `/api/v1/training_runs/${encodeURIComponent(training.run)}/${path}`);
    // A list of checkpoints of a run that is not there is empty, as on the hosted service.
    check(status === 404 || path === "checkpoints", `another's ${path}: ${status}`);
  }

  step("a link shows one run to somebody without a key, and nothing else");
  await ada.page.goto(`${url}/runs/curve`);
  await ada.page.click("#share");
  await ada.page.click("dialog button.main");
  const link = await ada.page.textContent("dialog .command code");
  await ada.page.keyboard.press("Escape");
  const guest = await chrome.visit();
  await guest.page.goto(link);
  await guest.page.waitForSelector("[data-metric=loss] polyline");
  check(await guest.page.$("text=read-only link"), "the page says that it is read-only");
  chrome.allow(/status of 403/);
  const refused = await guest.page.evaluate(async () => (await fetch("/api/v1/studio/runs")).status);
  check(refused === 403 || refused === 401, `the list with a link to a run: ${refused}`);
  await guest.page.goto(`${url}/`);
  await guest.page.waitForURL(/\/login/);
  await guest.page.goto(link);
  await guest.page.waitForSelector("[data-metric=loss] polyline");

  step("what was saved for sampling is talked to from its row");
  await ada.page.goto(`${url}/runs/curve#checkpoints`);
  await ada.page.click("#tab-checkpoints a[href^='/playground?model=tinker']");
  await ada.page.waitForSelector(".column");
  check((await ada.page.inputValue(".column select")).endsWith("/sampler_weights/kept"), "the checkpoint is the model");
  await ada.page.goto(`${url}/playground?model=no-such-run`);
  await ada.page.waitForSelector("#note .warn");
  check((await ada.page.textContent("#note")).includes("no-such-run"), "what cannot be talked to is named");

  step("deleting a checkpoint asks, and names what is lost");
  await ada.page.goto(`${url}/runs/curve#checkpoints`);
  await ada.page.waitForSelector("#tab-checkpoints button.danger");
  const all = (await ada.page.$$("#tab-checkpoints tbody tr")).length;
  await ada.page.click("#tab-checkpoints button.danger");
  check((await ada.page.textContent("dialog")).includes("tinker://"), "the question names the checkpoint");
  await ada.page.click("dialog button:text('Keep it')");
  check((await ada.page.$$("#tab-checkpoints tbody tr")).length === all, "it is kept");
  await ada.page.click("#tab-checkpoints button.danger");
  await ada.page.click("dialog button.danger");
  await until("it is gone", async () => (await ada.page.$$("#tab-checkpoints tbody tr")).length === all - 1);

  step("the page survives a restart of the server, and goes on");
  await ada.page.goto(`${url}/runs/curve`);
  await until("the curve", async () => (await points(ada.page, "loss")) >= 7);
  chrome.allow(/ERR_CONNECTION_REFUSED|ERR_INCOMPLETE_CHUNKED|ERR_EMPTY_RESPONSE|ERR_CONNECTION_RESET|status of 503|Failed to load resource/);
  await server.stop();
  await ada.page.waitForSelector("#live[data-state=waiting]");
  server = await serve(folder, port);
  await ada.page.waitForSelector("#live[data-state=open]");
  const kept = await points(ada.page, "loss");
  await training.step();
  await until("the curve goes on", async () => (await points(ada.page, "loss")) > kept, 60000);

  step("keys: the list of shortcuts; logging out");
  await ada.page.keyboard.press("?");
  await ada.page.waitForSelector("dialog kbd");
  await ada.page.keyboard.press("Escape");
  await ada.page.evaluate(() => fetch("/logout?everywhere=true", { method: "POST", headers: { "X-Tinkrs-Studio": "1" } }));
  await guest.page.click("[data-tab=operations]");
  await guest.page.waitForSelector("#tab-operations [role=alert]");
  check(guest.page.url().includes("/runs/"), `whoever had a link is sent to ${guest.page.url()}`);
  await guest.context.close();
  await ada.page.click("#logout");
  await ada.page.waitForURL(/\/login/);
  check((await ada.context.cookies()).every(one => one.name !== "tinkrs_studio" || !one.value), "the cookie is gone");
  await ada.page.goto(`${url}/runs/curve`);
  await ada.page.waitForURL(/\/login/);

  step("pictures of every page at two widths, in both themes");
  await pictures(chrome, visitor.context, url, shots, "tml-ada", logIn);

  check(chrome.problems().length === 0, `pages had problems:\n${chrome.problems().join("\n")}`);
  training.end();
  await chrome.close();
  await server.stop();
  step("all of it holds");
}

main().then(() => process.exit(0), error => {
  console.error(error);
  endAll();
  process.exit(1);
});
