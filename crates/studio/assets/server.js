// The server: what is in memory and in the queues, how fast it is, what is wrong. Read anew every two seconds while the page
// can be seen.

import { call, send } from "./api.js";
import { button, byId, count, cut, duration, fill, h, morph, number, said, size, theirs } from "./dom.js";
import { listen } from "./live.js";
import { confirmLoss, failed } from "./shell.js";

/**
 * @typedef {{version: string, uptime_seconds: number, memory: {limit: number, uses: Record<string, number>}, queues: Record<string, number>,
 *   throughput: {tokens: Record<string, number>}, disk: {checkpoints: number, checkpoint_count: number, database: number, free?: number}, faults: number, restricted: boolean,
 *   models: {name: string, context: number, vocabulary: number, numerics: string, weights_bytes: number, chat: boolean}[],
 *   findings: {level: string, text: string, hint?: string | null}[]}} View
 */

const EVERY = 2000;
const place = byId("server");
/** The totals of the last look, to tell how fast they grow. */
/** @type {{time: number, tokens: Record<string, number>} | null} */
let before = null;

/** @type {Record<string, string>} */
const WORDS = {
  training: "training operations not done", training_begun: "of them begun", pending: "requests without a result", sessions: "open sessions", owners: "owners of these", runs: "open runs",
  watchers: "pages that listen", prefilled: "read in prompts", cached: "found in the prefix cache",
};

/** @param {string} words */
const capital = words => words.charAt(0).toUpperCase() + words.slice(1).replaceAll("_", " ");
/** @param {string} name */
const title = name => capital(WORDS[name] ?? name);

/** @param {string} heading @param {[string, import("./dom.js").Child][]} rows @param {import("./dom.js").Child} [above] @param {string} [words] */
function panel(heading, rows, above, words) {
  return h("section", { class: "panel" }, h("h2", {}, heading), above, words && h("p", { class: "soft small pad-in" }, words), h("table", { class: "facts" }, h("tbody", {},
    ...rows.map(([name, value]) => h("tr", {}, h("th", { scope: "row" }, theirs(name, 80)), h("td", { class: "num" }, value))))));
}

/** @param {View["memory"]} memory */
function gauge({ limit, uses }) {
  const parts = Object.entries(uses).filter(([, bytes]) => bytes > 0);
  const bar = h("div", { class: "gauge", role: "img", "aria-label": parts.map(([name, bytes]) => `${name}: ${size(bytes)}`).join(", ") || "nothing is used" });
  parts.forEach(([name, bytes], index) => {
    const piece = h("i", { class: `k${index % 8}`, title: `${name}: ${size(bytes)}` });
    piece.style.width = `${Math.min(bytes / Math.max(limit, 1) * 100, 100)}%`;
    bar.append(piece);
  });
  return h("div", { class: "pad-in stack" }, bar, h("div", { class: "legend" }, ...parts.map(([name], index) => h("span", { class: `key k${index % 8}` }, capital(cut(name, 40))))));
}

/** @param {View["findings"][number]} finding */
function note(finding) {
  const kind = finding.level === "warning" ? "warn" : finding.level === "error" ? "bad" : "";
  return h("div", { class: `note ${kind}` }, said(finding.text), finding.hint ? h("div", { class: "small" }, said(finding.hint, 500)) : null);
}

/** How fast totals grow, by name. @param {Record<string, number>} tokens */
function rates(tokens) {
  const now = performance.now();
  const since = before ? (now - before.time) / 1000 : 0;
  const found = Object.fromEntries(Object.entries(tokens).map(([name, total]) => [name, since > 0 ? Math.max(0, (total - (before?.tokens[name] ?? total)) / since) : 0]));
  before = { time: now, tokens };
  return found;
}

/** @param {View} view */
function show(view) {
  byId("versions").textContent = `tinkrs ${view.version}, up for ${duration(view.uptime_seconds * 1000)}`;
  const speed = rates(view.throughput.tokens);
  const used = Object.values(view.memory.uses).reduce((sum, bytes) => sum + bytes, 0);
  const problems = view.findings.filter(finding => finding.level !== "ok");
  /** @type {[string, string][]} */
  const figures = [["tokens / s now", number(Math.round(Object.values(speed).reduce((sum, one) => sum + one, 0)))], ["training queue", count(view.queues.training)], ["waiting for a result", count(view.queues.pending)],
    ["memory set aside", `${size(used)} of ${size(view.memory.limit)}`], ["faults switched on", count(view.faults)], ["keys", view.restricted ? "those of a file" : "any"]];
  morph(place, h("div", { class: "stack", id: "server" },
    h("section", { class: "panel pad" }, h("dl", { class: "figures" }, ...figures.map(([name, value]) => h("div", { class: "figure" }, h("dt", {}, name), h("dd", {}, value))))),
    h("section", { class: "panel" }, h("h2", {}, "Findings"), h("div", { class: "pad-in stack" }, ...(problems.length ? problems.map(note) : [h("p", { class: "good" }, "Nothing is wrong.")]))),
    h("div", { class: "grid2" },
      panel("Memory", [...Object.entries(view.memory.uses).sort(([, a], [, b]) => b - a).map(([name, bytes]) => /** @type {[string, string]} */ ([capital(name), size(bytes)])), ["Limit", size(view.memory.limit)]], gauge(view.memory), "What is set aside by use. Room for adapters, sampling and results is taken from the start; runs and passes take theirs as they come."),
      panel("Queues", Object.entries(view.queues).map(([name, value]) => [title(name), count(value)])),
      panel("Tokens since the start", Object.entries(view.throughput.tokens).map(([name, value]) => [title(name), h("span", {}, count(value), h("span", { class: "faint" }, `  ${number(Math.round(speed[name] ?? 0))}/s`))])),
      panel("Disk", [["Your checkpoints", `${count(view.disk.checkpoint_count)}, ${size(view.disk.checkpoints)}`], ["Database, of all owners", size(view.disk.database)], ...(view.disk.free === undefined ? [] : [/** @type {[string, string]} */ (["Free", size(view.disk.free)])])])),
    h("section", { class: "panel scroll" }, h("h2", {}, "Models"), h("table", {}, h("thead", {}, h("tr", {}, h("th", {}, "Name"), h("th", { class: "num" }, "Context"), h("th", { class: "num" }, "Vocabulary"), h("th", { class: "num" }, "Weights"), h("th", {}, "Numerics"), h("th", {}, "Chat"))),
      h("tbody", {}, ...view.models.map(model => h("tr", {}, h("td", { class: "name" }, theirs(model.name, 120)), h("td", { class: "num" }, count(model.context)), h("td", { class: "num" }, count(model.vocabulary)), h("td", { class: "num" }, size(model.weights_bytes)),
        h("td", { class: "mono" }, theirs(model.numerics, 120)), h("td", {}, model.chat ? h("a", { href: `/playground?model=${encodeURIComponent(model.name)}` }, "Talk to it") : "no"))))))));
}

async function load() {
  try {
    show(await call("/api/v1/studio/server"));
    fill(byId("note"));
  } catch (error) {
    if (place.childElementCount === 0) failed(byId("note"), error);
  }
}

setInterval(() => { if (!document.hidden) load(); }, EVERY);
listen(null, { again: load });
load();

button("logout-everywhere").addEventListener("click", async () => {
  const lost = [h("p", { class: "soft" }, "Every browser that is logged in with your key has to log in again, and every link to one of your runs ends.")];
  if (!await confirmLoss("Log out everywhere?", lost, "Log out everywhere")) return;
  try {
    await send("/logout?everywhere=true", { method: "POST" });
    location.assign("/login");
  } catch (error) {
    failed(byId("note"), error);
  }
});
