// A run: what it is, and its tabs.

import { call, part } from "./api.js";
import { checkpoints } from "./checkpoints.js";
import { Curves } from "./curves.js";
import { Data } from "./data.js";
import { ago, button, byId, clock, count, fill, h, input, number, theirs } from "./dom.js";
import { listen } from "./live.js";
import { cost, headline } from "./run_words.js";
import { command, copy, dialog, failed, onKeys, tabs, toast } from "./shell.js";
import { Timeline } from "./timeline.js";

const page = byId("run");
const id = page.dataset.run ?? "";
const isShared = document.body.dataset.shared !== undefined;
// Whoever has a link to this run sees no others.
const others = isShared ? [] : (new URLSearchParams(location.search).get("with") ?? "").split(",").filter(Boolean);

const curves = new Curves(byId("tab-curves"), id, others);
const timeline = new Timeline(byId("tab-operations"), id);
const data = new Data(byId("tab-data"), id);
/** @type {any} */
let run = null;
let openTab = "curves";

async function describe() {
  try {
    if (isShared) {
      const [about, { series }] = await Promise.all([call(`/api/v1/training_runs/${part(id)}`), call(`/api/v1/training_runs/${part(id)}/metrics?points=2`)]);
      const last = Object.fromEntries(series.map((/** @type {any} */ one) => [one.name, one.points[one.points.length - 1]?.[1]]));
      const steps = series.filter((/** @type {any} */ one) => one.source === "server").map((/** @type {any} */ one) => one.points[one.points.length - 1]?.[0] ?? 0);
      run = { id, name: about.name, base_model: about.base_model, rank: about.lora_rank, step: Math.max(0, ...steps), last, tokens_per_second: last.tokens_per_second, last_request_at: about.last_request_time, state: run?.state ?? "", ...run };
      show();
      return;
    }
    const page = await call(`/api/v1/studio/runs?${new URLSearchParams({ query: id, limit: "1" })}`);
    run = page.runs.find((/** @type {any} */ other) => other.id === id) ?? run;
    if (run) show();
  } catch (error) {
    if (!run && !isShared) failed(byId("note"), error);
  }
}

function show() {
  const name = run.name || run.id;
  fill(byId("name"), theirs(name, 160));
  document.title = `${name.slice(0, 60)} · Tinkrs`;
  const state = byId("state");
  state.dataset.state = run.state;
  state.textContent = run.state;
  const { label, value } = headline(run.last ?? {});
  const figures = [["step", count(run.step)], [label, number(value)], ["tokens / s", run.tokens_per_second ? count(run.tokens_per_second) : "–"],
    ["base model", run.base_model], ["rank", run.rank ? String(run.rank) : "–"], ["computed", cost(run.cost)], ["tokens", count(run.cost?.tokens)], ["last request", ago(run.last_request_at)]];
  fill(byId("figures"), ...figures.map(([term = "", words = ""]) => h("div", { class: "figure" }, h("dt", {}, term), h("dd", {}, theirs(words, 80)))));
  // What was saved for sampling, or else the run as it was saved last, is in the playground by the name of the run.
  const chat = document.getElementById("chat");
  if (chat instanceof HTMLAnchorElement) {
    chat.href = `/playground?model=${encodeURIComponent(name)}`;
    chat.hidden = false;
  }
  curves.rename(id, name);
  data.lastStep(run.step);
}

/** @param {string} name */
async function opened(name) {
  openTab = name;
  if (name === "operations") await timeline.open();
  if (name === "data") await data.open();
  if (name === "checkpoints") await described.then(() => checkpoints(byId("tab-checkpoints"), id, run?.name ?? null, isShared));
  if (name === "settings") await settings();
  if (name === "curves") curves.open();
}

/** What the addresses of a run's checkpoints begin with. @param {string} run */
const checkpointsOf = run => `tinker://${run}/`;

async function settings() {
  const place = byId("tab-settings");
  try {
    await described;
    const [about, page] = await Promise.all([call(`/api/v1/training_runs/${part(id)}`), isShared ? { runs: [] } : call(`/api/v1/studio/runs?${new URLSearchParams({ query: checkpointsOf(id).slice(0, 256), limit: "50" })}`)]);
    /** @type {[string, import("./dom.js").Child][]} */
    const facts = [["Run", theirs(id)], ["Name", about.name ? theirs(about.name) : "none"], ["Base model", theirs(about.base_model)], ["Adapter rank", about.lora_rank ?? "–"],
      ["Numerics", about.numerics ? theirs(about.numerics) : "–"], ["Client", theirs(run?.client ?? "–")],
      ["Session", run?.session_id ? h("a", { href: `/sessions/${part(run.session_id)}` }, theirs(run.session_id)) : "–"],
      ["Created", clock(run?.created_at)], ["Last request", clock(about.last_request_time)]];
    for (const [key, value] of Object.entries(about.user_metadata ?? {})) facts.push([key, theirs(value, 2000)]);
    if (run?.tags?.length) facts.push(["Tags", theirs(run.tags.join(", "), 500)]);
    if (run?.detail) facts.push(["Ended", theirs(run.detail, 500)]);
    const forked = page.runs.filter((/** @type {any} */ other) => typeof other.started_from === "string" && other.started_from.startsWith(checkpointsOf(id)) && other.id !== id);
    const from = run?.started_from;
    const fromRun = typeof from === "string" ? /^tinker:\/\/([^/]+)\//.exec(from)?.[1] ?? null : null;
    fill(place, h("div", { class: "stack" },
      h("section", { class: "panel" }, h("h2", {}, "Settings"), h("table", { class: "facts" }, h("tbody", {}, ...facts.map(([name, value]) => h("tr", {}, h("th", { scope: "row" }, theirs(name, 80)), h("td", {}, value)))))),
      h("section", { class: "panel" }, h("h2", {}, "Lineage"), h("table", { class: "facts" }, h("tbody", {},
        h("tr", {}, h("th", { scope: "row" }, "Started from"), h("td", {}, from ? fromRun ? h("a", { href: `/runs/${part(fromRun)}` }, theirs(from)) : theirs(from) : h("span", {}, "the base model"))),
        h("tr", {}, h("th", { scope: "row" }, "Forked to"), h("td", {}, forked.length === 0 ? "no other run" : h("div", { class: "lineage" },
          ...forked.slice(0, 50).map((/** @type {any} */ other) => h("a", { href: `/runs/${part(other.id)}` }, theirs(other.name || other.id, 80)))))))))));
  } catch (error) {
    failed(place, error);
  }
}

/** What the run is, as far as it is known when a tab opens. */
const described = describe();
const openNow = tabs(name => { opened(name).catch(error => failed(byId("note"), error)); });
const keys = ["curves", "operations", "data", "checkpoints", "settings"];
onKeys(keys.map((name, index) => ({ key: String(index + 1), what: `Open ${name}`, run: () => openNow(name, true) })));
onKeys([{ key: "/", what: "Find a metric", run: () => input("metric-search").focus() }]);

if (!isShared) {
  button("share").addEventListener("click", async () => {
    const hours = h("select", {}, h("option", { value: "1" }, "1 hour"), h("option", { value: "24", selected: true }, "1 day"), h("option", { value: "168" }, "7 days"), h("option", { value: "720" }, "30 days"));
    const made = await dialog("Share this run", [h("p", { class: "soft" }, "Whoever has the link can read this run and nothing else: no other run, no writes. It ends by itself."),
      h("label", { class: "field" }, h("span", {}, "For"), hours)], [{ words: "Cancel" }, { words: "Make a link", kind: "main" }]);
    if (made !== 1) return;
    try {
      const { url } = await call(`/api/v1/training_runs/${part(id)}/share`, { body: { hours: Number(hours.value) } });
      await dialog("A link to this run", [command(url)], [{ words: "Close" }]);
    } catch (error) {
      toast(error instanceof Error ? error.message : String(error));
    }
  });
}
// How long ago the last request was.
setInterval(() => { if (run && !document.hidden) show(); }, 15e3);
button("copy-id").addEventListener("click", () => copy(id));

listen(id, {
  again: () => {
    describe();
    curves.reload();
    timeline.loaded = false;
    if (openTab === "operations") timeline.open();
  },
  run: changed => {
    if (changed.id !== id) return;
    run = { ...run, ...changed };
    curves.complete(changed.last ?? {});
    show();
  },
  metrics: event => {
    curves.grow(event);
    if (event.run !== id || !run) return;
    // A client may count its steps otherwise.
    if (event.source !== "client") run.step = Math.max(run.step, event.step);
    run.last = { ...run.last, ...event.metrics };
    if (event.metrics.tokens_per_second !== undefined) run.tokens_per_second = event.metrics.tokens_per_second;
    run.last_request_at = Date.now();
    show();
  },
  operation: event => timeline.add(event, openTab === "operations"),
});
