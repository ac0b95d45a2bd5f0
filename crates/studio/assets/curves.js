// The curves of a run and of those that it is compared with. Zoom is shared by all charts, and is read anew from the server
// at the finer scale.

import { Refused, call, part } from "./api.js";
import { Chart } from "./chart.js";
import { byId, cut, fill, h, input, number, paced, settled, theirs } from "./dom.js";
import { listen } from "./live.js";
import { failed, toast } from "./shell.js";

/** @typedef {{name: string, source: string, count: number, points: number[][]}} Series */

/** Points of a curve: as many as a chart has room for. Zooming reads finer ones. */
const POINTS = 300;
/** Metrics in the order in which people look for them; the others follow by name. */
const FIRST = ["loss", "reward", "loss_per_datum", "entropy_estimate", "kl_sampler_trainer", "grad_norm", "learning_rate", "tokens_per_second"];
/** More charts than anyone looks at make a page slow. */
const MOST_CHARTS = 200;
/** Runs in one chart: as many as there are colours. */
const MOST_RUNS = 8;
/** Shown after everything else. */
const LAST = ["queue_ms", "forward_backward_ms", "optim_step_ms", "tokens", "datums", "loss_sum"];

export class Curves {
  /** @param {HTMLElement} place @param {string} id @param {string[]} others */
  constructor(place, id, others) {
    this.place = place;
    this.id = id;
    this.ids = [id];
    /** @type {Map<string, string>} */
    this.names = new Map();
    /** @type {Map<string, Map<string, Series>>} */
    this.runs = new Map();
    /** @type {Map<string, {card: HTMLElement, chart: Chart, value: HTMLElement}>} */
    this.cards = new Map();
    /** @type {[number, number] | null} */
    this.zoom = null;
    /** @type {import("./chart.js").View} */
    this.view = { smooth: 0, logX: false, logY: false, axis: "step" };
    this.redraw = settled(() => this.draw(), 60);
    this.zoomed = settled(() => this.reload(), 250);
    this.refresh = paced(() => this.reload(), 1000);
    /** How many times curves were asked for: an answer that another one has overtaken is not shown. */
    this.asked = 0;
    /** The legend as it is shown. */
    this.listed = "";
    this.isWatching = false;
    this.more = h("p", { class: "soft", role: "status" });
    byId("charts").after(this.more);
    this.controls();
    this.reload();
    this.compare(others);
  }

  /** Puts other runs beside this one. @param {string[]} texts their ids or names */
  async compare(texts) {
    if (texts.length === 0) return;
    // A link may have any number of them.
    for (const text of texts.slice(0, MOST_RUNS)) {
      if (this.ids.length >= MOST_RUNS) {
        toast(`At most ${MOST_RUNS} runs are compared at once`);
        break;
      }
      try {
        const run = await call(`/api/v1/training_runs/${part(text)}`), id = run.training_run_id ?? text;
        if (this.ids.includes(id)) continue;
        this.ids.push(id);
        this.rename(id, run.name || run.user_metadata?.name || id);
      } catch (error) {
        toast(error instanceof Refused && error.status === 404 ? `There is no run ${cut(text, 60)} of yours` : error instanceof Error ? error.message : String(error));
      }
    }
    this.compared();
    if (this.ids.length > 1) this.watch();
  }

  /** Takes a run out of the comparison. @param {string} id */
  drop(id) {
    this.ids = this.ids.filter(other => other !== id);
    this.runs.delete(id);
    this.compared();
  }

  /** Shows which runs are compared, and keeps them in the address. */
  compared() {
    const others = this.ids.slice(1).map(part).join(",");
    history.replaceState(null, "", `${location.pathname}${others && `?with=${others}`}${location.hash}`);
    this.reload();
  }

  /** Hears of the other runs, whose curves grow as well. */
  watch() {
    if (this.isWatching) return;
    this.isWatching = true;
    listen(null, { run: changed => { if (changed.id !== this.id && this.ids.includes(changed.id)) this.refresh(); } });
  }

  controls() {
    const smooth = input("smooth");
    smooth.addEventListener("input", () => {
      this.view = { ...this.view, smooth: Number(smooth.value) / 100 };
      byId("smooth-value").textContent = smooth.value === "0" ? "off" : (Number(smooth.value) / 100).toFixed(2);
      this.redraw();
    });
    for (const name of /** @type {const} */ (["logX", "logY"])) {
      const toggle = byId(name);
      toggle.addEventListener("click", () => {
        this.view = { ...this.view, [name]: !this.view[name] };
        toggle.setAttribute("aria-pressed", String(this.view[name]));
        this.redraw();
      });
    }
    byId("axis").addEventListener("change", event => {
      this.view = { ...this.view, axis: /** @type {HTMLSelectElement} */ (event.target).value === "time" ? "time" : "step" };
      this.setZoom(null);
      this.redraw();
    });
    byId("unzoom").addEventListener("click", () => this.setZoom(null));
    input("metric-search").addEventListener("input", this.redraw);
    byId("add-run").addEventListener("change", event => {
      const field = /** @type {HTMLInputElement} */ (event.target);
      const id = field.value.trim();
      field.value = "";
      if (id) this.compare([id]);
    });
    input("add-run").addEventListener("focus", async () => {
      const page = await call("/api/v1/studio/runs?limit=200");
      fill(byId("known-runs"), ...page.runs.map((/** @type {any} */ run) => h("option", { value: run.id, label: cut(run.name || run.base_model, 60) })));
    }, { once: true });
  }

  open() {
    this.redraw();
  }

  /** @param {string} id @param {string} name */
  rename(id, name) {
    if (this.names.get(id) === name) return;
    this.names.set(id, name);
    this.redraw();
  }

  /** @param {[number, number] | null} range */
  setZoom(range) {
    this.zoom = range;
    byId("unzoom").hidden = range === null;
    for (const { chart } of this.cards.values()) chart.zoomTo(range);
    if (this.view.axis === "step") this.zoomed();
  }

  async reload() {
    const range = this.view.axis === "step" && this.zoom;
    const search = new URLSearchParams({ points: String(POINTS) });
    if (range) {
      search.set("from", String(Math.max(0, Math.floor(range[0]))));
      search.set("to", String(Math.max(0, Math.ceil(range[1]))));
    }
    const turn = this.asked += 1;
    await Promise.all(this.ids.map(async id => {
      try {
        const { series } = await call(`/api/v1/training_runs/${part(id)}/metrics?${search}`);
        if (turn === this.asked && this.ids.includes(id)) this.runs.set(id, byName(series));
        if (id === this.id) fill(byId("note"));
      } catch (error) {
        if (id === this.id && !this.runs.size) failed(byId("note"), error);
      }
    }));
    this.draw();
  }

  /** Adds what was just computed. @param {{run: string, step: number, metrics: Record<string, number>, source?: string}} event */
  grow({ run, step, metrics, source = "server" }) {
    const known = this.runs.get(run);
    if (!known || (this.zoom && this.view.axis === "step")) return;
    for (const [name, value] of Object.entries(metrics)) {
      const title = source === "client" && known.get(name)?.source === "server" ? ofClient(name) : name;
      let series = known.get(title);
      if (series && series.source !== source) {
        // A client's curve had the name first.
        this.refresh();
        continue;
      }
      if (!series) known.set(title, series = { name, source, count: 0, points: [] });
      // A client may report of any step, the server's come in order.
      const place = series.points.findLastIndex(point => (point[0] ?? 0) <= step), there = series.points[place];
      if (there && there[0] === step) there.splice(1, 4, value, value, value, Date.now());
      else {
        series.points.splice(place + 1, 0, [step, value, value, value, Date.now()]);
        series.count += 1;
      }
      // More points than the server would send: have it make fewer.
      if (series.points.length > 2 * POINTS) this.zoomed();
    }
    this.redraw();
  }

  /** Reads anew if there is a metric that no chart has: one that a client reported of an earlier step. @param {Record<string, number>} last */
  complete(last) {
    const known = this.runs.get(this.id);
    if (known && Object.keys(last).some(name => !known.has(name))) this.refresh();
  }

  draw() {
    const all = new Set([...this.runs.values()].flatMap(run => [...run.keys()]));
    const wanted = input("metric-search").value.trim().toLowerCase();
    const names = [...all].filter(name => !wanted || name.toLowerCase().includes(wanted)).sort((a, b) => rank(a) - rank(b) || (a < b ? -1 : 1));
    byId("no-curves").hidden = all.size > 0;
    byId("curve-tools").hidden = all.size === 0;
    const grid = byId("charts");
    for (const [name, { card }] of this.cards) {
      if (!names.includes(name)) {
        card.remove();
        this.cards.delete(name);
      }
    }
    names.slice(0, MOST_CHARTS).forEach((name, index) => {
      let entry = this.cards.get(name);
      if (!entry) {
        entry = this.card(name);
        this.cards.set(name, entry);
      }
      if (grid.children[index] !== entry.card) grid.insertBefore(entry.card, grid.children[index] ?? null);
      const lines = this.ids.flatMap((id, color) => {
        const series = this.runs.get(id)?.get(name);
        return series ? [{ label: this.names.get(id) ?? id, color, points: series.points }] : [];
      });
      entry.chart.set(lines, this.view);
      const own = this.runs.get(this.id)?.get(name)?.points ?? [];
      entry.value.textContent = own.length ? number(own[own.length - 1]?.[1]) : "";
    });
    const more = names.length > MOST_CHARTS ? `${MOST_CHARTS} of ${names.length} metrics are shown: find others by their name.` : all.size && !names.length ? "No metric has this in its name." : "";
    if (this.more.textContent !== more) this.more.textContent = more;
    const listed = JSON.stringify(this.ids.map(id => [id, this.names.get(id)]));
    if (listed === this.listed) return;
    this.listed = listed;
    byId("legend").hidden = this.ids.length < 2;
    fill(byId("legend"), ...this.ids.map((id, color) => {
      const name = this.names.get(id) ?? id;
      return h("span", { class: `key k${color % MOST_RUNS}` }, h("a", { href: `/runs/${part(id)}` }, theirs(name, 80)),
        id !== this.id && h("button", { class: "plain tiny", "aria-label": `Take ${cut(name, 60)} out of the comparison`, title: "Take it out of the comparison", onclick: () => this.drop(id) }, "✕"));
    }));
  }

  /** @param {string} name */
  card(name) {
    const chart = new Chart(name, { onzoom: range => this.setZoom(range) });
    const value = h("span", { class: "value" });
    const isClient = [...this.runs.values()].some(run => run.get(name)?.source === "client");
    const wide = h("button", { class: "plain tiny", title: "Wider", "aria-label": `Make the chart of ${cut(name, 60)} wider`, onclick: () => {
      chart.height = card.classList.toggle("wide") ? 380 : 190;
      chart.redraw();
    } }, "⤢");
    const card = h("section", { class: "panel chart", "data-metric": name },
      h("div", { class: "chart-head" }, h("h3", { title: cut(name, 200) }, theirs(words(name), 80)), value, isClient && h("span", { class: "chip" }, "client"),
        h("div", { class: "menu" }, wide,
          h("button", { class: "plain tiny", "aria-label": `Save ${cut(name, 60)} as CSV`, onclick: () => chart.saveCsv() }, "CSV"),
          h("button", { class: "plain tiny", "aria-label": `Save ${cut(name, 60)} as an image`, onclick: () => chart.savePng() }, "PNG"))),
      chart.element);
    if (this.zoom) chart.zoomTo(this.zoom);
    return { card, chart, value };
  }
}

/** A metric of a client that has the name of one of the server's. @param {string} name */
const ofClient = name => `${name} (client)`;

/** Series by the names of their charts. @param {Series[]} series @returns {Map<string, Series>} */
function byName(series) {
  const own = new Set(series.filter(one => one.source === "server").map(one => one.name));
  return new Map(series.map(one => [one.source === "client" && own.has(one.name) ? ofClient(one.name) : one.name, one]));
}

/** @param {string} name */
function rank(name) {
  const first = FIRST.indexOf(name), last = LAST.indexOf(name);
  return first >= 0 ? first : last >= 0 ? 1000 + last : 100;
}

/** @type {Record<string, string>} */
const WORDS = {
  loss: "Loss per token", loss_per_datum: "Loss per datum", loss_sum: "Loss, sum", grad_norm: "Gradient norm", learning_rate: "Learning rate",
  tokens_per_second: "Tokens per second", kl_sampler_trainer: "KL, sampler to trainer", entropy_estimate: "Entropy (estimate)", advantage_mean: "Advantage, mean",
  forward_backward_ms: "forward_backward, ms", optim_step_ms: "optim_step, ms", queue_ms: "Queue time, ms", tokens: "Tokens", datums: "Datums", reward: "Reward",
};

/** @param {string} name */
const words = name => WORDS[name] ?? name;
