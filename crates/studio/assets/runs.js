// The list of runs: searched and paged by the server, kept up to date by its events.

import { Refused, call } from "./api.js";
import { ago, arrange, button, byId, count, fill, h, input, morph, number, settled, theirs } from "./dom.js";
import { listen } from "./live.js";
import { cost, headline } from "./run_words.js";
import { command, failed, onKeys, toast } from "./shell.js";

/**
 * @typedef {{id: string, name?: string | null, base_model: string, client?: string | null, state: string, step: number, last: Record<string, number>,
 *   tokens_per_second?: number | null, created_at: number | string, last_request_at: number | string, rank?: number | null, cost?: {tokens: number, seconds: number},
 *   tags: string[], labels?: Record<string, string>, started_from?: string | null, session_id?: string}} Run
 */

const PAGE = 100, LARGE_PAGE = 500;
/** How many runs are looked through for those of a state. */
const SEARCHED = 5000;
/** @type {Map<string, Run>} */
const runs = new Map();
/** The rows that are in the page, by run. @type {Map<string, HTMLTableRowElement>} */
const rows = new Map();
/** How often it is said anew how long ago something was, in ms. */
const EVERY = 15e3;
/** @type {Set<string>} */
const picked = new Set();
let total = 0, query = "", state = "", loading = 0;

const body = byId("runs"), note = byId("note");

/** @param {boolean} more */
async function load(more) {
  const turn = ++loading;
  const offset = more ? runs.size : 0;
  // As many as were there, so that nobody who has asked for more loses them.
  const limit = state ? LARGE_PAGE : more ? PAGE : Math.min(Math.max(runs.size, PAGE), LARGE_PAGE);
  const search = new URLSearchParams({ query, limit: String(limit), offset: String(offset) });
  try {
    const page = await call(`/api/v1/studio/runs?${search}`);
    if (turn !== loading) return;
    if (!more) runs.clear();
    const before = runs.size;
    for (const run of page.runs) runs.set(run.id, run);
    total = page.total;
    fill(note);
    show();
    // States are not in the database: all runs are looked through for one.
    if (state && runs.size > before && runs.size < total && runs.size < SEARCHED) load(true);
  } catch (error) {
    // The page stays as it is while the server starts again.
    if (!(error instanceof Refused && error.status === 0 && runs.size)) failed(note, error);
  }
}

/**
 * Shows the runs as they are known. While somebody points at one or has the focus in the list, news leave the rows where
 * they are: who presses a button shall meet the one that they aimed at.
 * @param {boolean} [isNews]
 */
function show(isNews) {
  const all = [...runs.values()].filter(run => !state || run.state === state);
  byId("count").textContent = state ? `${count(all.length)} of ${count(total)} runs` : total === 1 ? "1 run" : `${count(total)} runs`;
  byId("empty").hidden = total > 0 || query !== "";
  byId("list").hidden = total === 0 && query === "";
  const isInUse = isNews && (body.matches(":hover") || body.contains(document.activeElement));
  const places = new Map([...body.children].map((child, index) => [child, index]));
  const shown = all.map(run => {
    const known = rows.get(run.id), made = row(run), found = known ? morph(known, made) : made;
    const box = found.querySelector("input");
    if (box) box.checked = picked.has(run.id);
    return /** @type {const} */ ([run.id, found]);
  });
  rows.clear();
  for (const [id, found] of shown) rows.set(id, found);
  const ordered = shown.map(([, found]) => found);
  if (isInUse) ordered.sort((a, b) => (places.get(a) ?? -1) - (places.get(b) ?? -1));
  arrange(body, ordered);
  button("more").hidden = runs.size >= total;
  byId("nothing").hidden = all.length > 0 || (total === 0 && query === "");
  showPicked();
}

/** @param {Run} run */
function row(run) {
  const name = run.name || run.id;
  const box = h("input", { type: "checkbox", "aria-label": `Compare ${name.slice(0, 80)}`, onchange: () => pick(run.id, box.checked) });
  const { label, value } = headline(run.last ?? {});
  return h("tr", { "data-run": run.id, "aria-selected": picked.has(run.id) ? "true" : null },
    h("td", { class: "box" }, box),
    h("td", { class: "full" }, h("a", { class: "name", href: address(run) }, theirs(name, 120)),
      h("div", { class: "below" }, run.labels?.name && run.labels.name !== name ? theirs(run.labels.name, 80) : null, theirs(run.base_model, 80), run.rank ? h("span", {}, `rank ${run.rank}`) : null, ...run.tags.slice(0, 6).map(tag =>
        h("button", { class: "chip", title: "Show runs with this tag", onclick: () => search(tag) }, theirs(tag, 60))))),
    h("td", { class: "full" }, h("span", { class: "state", "data-state": run.state }, run.state)),
    h("td", { class: "num rest", "data-label": "step" }, count(run.step)),
    h("td", { class: "num rest", "data-label": label }, h("span", { title: label }, value === null ? "–" : number(value))),
    h("td", { class: "num rest", "data-label": "tok/s" }, run.tokens_per_second ? count(run.tokens_per_second) : "–"),
    h("td", { class: "rest", "data-label": "client" }, theirs(run.client ? `SDK ${run.client}` : "–", 40)),
    h("td", { class: "num rest", "data-label": "computed" }, h("span", { title: run.cost ? `${count(run.cost.tokens)} tokens` : "" }, cost(run.cost))),
    h("td", { class: "num rest", "data-label": "" }, h("span", { title: new Date(run.last_request_at).toLocaleString("en-GB") }, ago(run.last_request_at))));
}

/** @param {Run} run */
const address = run => `/runs/${encodeURIComponent(run.id)}`;

/** @param {string} id @param {boolean} isPicked */
function pick(id, isPicked) {
  if (isPicked) picked.add(id);
  else picked.delete(id);
  body.querySelectorAll("tr").forEach(row => {
    if (row.dataset.run === id) {
      if (isPicked) row.setAttribute("aria-selected", "true");
      else row.removeAttribute("aria-selected");
    }
  });
  showPicked();
}

function showPicked() {
  byId("picked").hidden = picked.size === 0;
  byId("picked-count").textContent = picked.size === 1 ? "1 run selected" : `${picked.size} runs selected`;
  button("compare").disabled = picked.size < 2;
}

function compare() {
  const [first, ...others] = picked;
  if (first && others.length) location.assign(`/runs/${encodeURIComponent(first)}?with=${others.map(encodeURIComponent).join(",")}`);
}

/** @param {string} text */
function search(text) {
  input("search").value = text;
  query = text;
  load(false);
}

const searched = settled(() => search(input("search").value.trim()), 180);
input("search").addEventListener("input", searched);
button("more").addEventListener("click", () => load(true));
button("compare").addEventListener("click", compare);
button("unpick").addEventListener("click", () => { picked.clear(); show(); });
for (const choice of document.querySelectorAll("#states button")) {
  choice.addEventListener("click", () => {
    state = choice.getAttribute("data-state") ?? "";
    document.querySelectorAll("#states button").forEach(other => other.setAttribute("aria-pressed", String(other === choice)));
    show();
    if (state && runs.size < total) load(true);
  });
}

/** @param {number} by */
function move(by) {
  const links = [...body.querySelectorAll("a.name")];
  const at = links.findIndex(link => link.closest("tr")?.contains(document.activeElement));
  const next = links[Math.min(Math.max(at + by, 0), links.length - 1)];
  if (next instanceof HTMLElement) next.focus();
}
onKeys([
  { key: "/", what: "Search", run: () => input("search").focus() },
  { key: "j", what: "Next run", run: () => move(1) },
  { key: "k", what: "Previous run", run: () => move(-1) },
  { key: "x", what: "Select the run", run: () => {
    const box = document.activeElement?.closest("tr")?.querySelector("input");
    box?.click();
  } },
  { key: "c", what: "Compare the selected runs", run: compare },
]);

// The first visit
const demo = document.getElementById("demo");
demo?.addEventListener("click", async () => {
  demo.setAttribute("disabled", "");
  try {
    await call("/api/v1/studio/demo", { body: {} });
    toast("The demo has started: its runs appear here");
    byId("demo-words").textContent = "Starting. The first run appears here in a moment.";
  } catch (error) {
    demo.removeAttribute("disabled");
    toast(error instanceof Error ? error.message : String(error));
  }
});
const key = byId("start-commands").dataset.key;
fill(byId("start-commands"),
  command(`export TINKER_BASE_URL=${location.origin} TINKER_API_KEY=${key ?? "YOUR_KEY"}`, "Once"),
  command("python train.py", "Python"),
  command("tinkrs train sft --data chats.jsonl --run-dir runs/first --name first", "tinkrs"));

const redrawn = settled(() => show(true), 150);
setInterval(() => { if (!document.hidden) show(true); }, EVERY);
body.addEventListener("pointerleave", redrawn);
body.addEventListener("focusout", redrawn);
listen(null, {
  again: () => load(false),
  run: run => {
    const known = runs.get(run.id);
    if (!known && query !== "") return;
    // Unless all are here it may be an old one that was not.
    if (!known && runs.size >= total) total = runs.size + 1;
    // The newest activity comes first.
    runs.delete(run.id);
    const rest = [...runs];
    runs.clear();
    runs.set(run.id, { ...known, ...run });
    for (const [id, other] of rest) runs.set(id, other);
    redrawn();
  },
  metrics: ({ run, step, metrics }) => {
    // What the run is comes next.
    const known = runs.get(run);
    if (!known) return;
    known.step = Math.max(known.step, step);
    known.last = { ...known.last, ...metrics };
    if (metrics.tokens_per_second !== undefined) known.tokens_per_second = metrics.tokens_per_second;
    known.last_request_at = Date.now();
    if (known.state === "idle") known.state = "training";
    redrawn();
  },
});
load(false);
