// The operations of a run in time: how long each waited and why, how long it computed, and when no client had asked for
// anything.

import { call, part } from "./api.js";
import { count, cut, duration, fill, h, s, settled } from "./dom.js";
import { failed } from "./shell.js";

/** @typedef {{number?: number | null, request_id: string, kind: string, seq_id?: number | null, outcome?: string | null, accepted: number, started?: number | null, ended?: number | null, compute_ms?: number | null, waits: {reason: string, ms: number}[]}} Operation */

/** @type {Record<string, string>} */
export const REASONS = {
  run: "computing", compute: "behind its own run's earlier operation", gap: "gap: an earlier seq_id has not come", turn: "another owner's or run's turn",
  memory: "waiting for memory", paused: "paused", none: "no client: nothing was asked for", other: "in the queue",
};
/** @type {Record<string, number>} */
const COLORS = { forward_backward: 0, optim_step: 2, forward: 5, save_weights: 3, save_weights_for_sampler: 3, load_weights: 1, sample: 4, asample: 4 };
const LANE = 18, LANES = 12, AXIS = 22, ROWS = 200;
/** Longer than this without an operation, and the client did something else. */
const SILENCE = 20;

/** Splits what a run's time went to, in ms by reason. @param {Operation[]} operations */
export function shares(operations) {
  /** @type {Record<string, number>} */
  const sums = {};
  const add = (/** @type {string} */ reason, /** @type {number} */ ms) => { if (ms > 0) sums[reason] = (sums[reason] ?? 0) + ms; };
  const sorted = [...operations].sort((a, b) => a.accepted - b.accepted);
  let covered = sorted[0]?.accepted ?? 0;
  for (const operation of sorted) {
    const end = operation.ended ?? Date.now();
    if (operation.accepted - covered > SILENCE) add("none", operation.accepted - covered);
    covered = Math.max(covered, end);
    if (operation.started) {
      const computed = compute(operation);
      add("run", computed);
      // Between its slices it was the turn of others.
      if (operation.ended) add("turn", operation.ended - operation.started - computed);
    }
    for (const wait of known(operation)) if (wait.reason !== "compute") add(wait.reason, wait.ms);
  }
  return sums;
}

/** How long an operation computed, so far. @param {Operation} operation */
function compute(operation) {
  return operation.compute_ms ?? (operation.ended ?? Date.now()) - (operation.started ?? operation.ended ?? Date.now());
}

/** @param {Operation} operation */
const outcome = operation => operation.outcome === "failed" ? "failed" : operation.ended ? "done" : operation.started ? "under way" : "waits";

/** What an operation waited for; what no reason is known of is `other`. @param {Operation} operation */
function known(operation) {
  const queue = (operation.started ?? operation.ended ?? Date.now()) - operation.accepted;
  const waits = (operation.waits ?? []).filter(wait => wait.ms > 0);
  const rest = queue - waits.reduce((sum, wait) => sum + wait.ms, 0);
  return rest > 1 ? [...waits, { reason: "other", ms: rest }] : waits;
}

export class Timeline {
  /** @param {HTMLElement} place @param {string} run */
  constructor(place, run) {
    this.place = place;
    this.run = run;
    /** @type {Map<string, Operation>} */
    this.operations = new Map();
    this.more = false;
    this.loaded = false;
    /** @type {[number, number] | null} */
    this.range = null;
    this.redraw = settled(() => this.draw(), 120);
  }

  async open() {
    if (!this.loaded) await this.reload();
  }

  async reload() {
    await this.load("");
  }

  /** @param {string} before */
  async load(before) {
    try {
      const search = new URLSearchParams({ limit: String(ROWS) });
      if (before) search.set("before", before);
      const page = await call(`/api/v1/training_runs/${part(this.run)}/operations?${search}`);
      for (const operation of page.operations) this.operations.set(operation.request_id, operation);
      this.more = page.more;
      this.loaded = true;
      this.draw();
    } catch (error) {
      if (!this.loaded) failed(this.place, error);
    }
  }

  /** @param {{run: string, operation: Operation}} event @param {boolean} isOpen */
  add(event, isOpen) {
    if (event.run !== this.run || !this.loaded) return;
    this.operations.set(event.operation.request_id, event.operation);
    if (isOpen) this.redraw();
  }

  draw() {
    const all = [...this.operations.values()].sort((a, b) => a.accepted - b.accepted);
    if (all.length === 0) {
      fill(this.place, h("div", { class: "panel empty" }, h("h2", {}, "No operations yet"), h("p", {}, "Each request of the client appears here with the time that it waited, the reason, and the time that it computed.")));
      return;
    }
    const end = Math.max(...all.map(one => one.ended ?? Date.now())), start = all[0]?.accepted ?? end;
    // The newest part: as much as can be told apart.
    const range = this.range ?? [all.length > 60 ? all[all.length - 60]?.accepted ?? start : start, end];
    const sums = shares(all), total = Object.values(sums).reduce((sum, ms) => sum + ms, 0) || 1;
    const order = ["run", "gap", "turn", "memory", "paused", "other", "none"].filter(reason => sums[reason]);
    const bar = h("div", { class: "shares", role: "img", "aria-label": order.map(reason => `${reason}: ${Math.round((sums[reason] ?? 0) / total * 100)} percent`).join(", ") });
    for (const reason of order) {
      const piece = h("i", { class: `r-${reason}`, title: REASONS[reason] ?? reason });
      piece.style.width = `${(sums[reason] ?? 0) / total * 100}%`;
      bar.append(piece);
    }
    const legend = h("div", { class: "legend" }, ...order.map(reason => h("span", { class: "small" }, h("span", { class: `swatch r-${reason}` }), `${REASONS[reason] ?? reason} `, h("b", {}, duration(sums[reason] ?? 0)))));
    const failures = all.filter(one => one.outcome === "failed").length;
    const holder = h("div", { class: "timeline" });
    fill(this.place, h("div", { class: "stack" },
      failures > 0 && h("div", { class: "note bad" }, failures === 1 ? "One of these operations failed" : `${count(failures)} of these operations failed`, ": the client was told why. A loss that is not a number is one reason; a smaller learning rate avoids it."),
      h("section", { class: "panel pad stack" }, h("h2", {}, "Where the time went"), bar, legend),
      h("section", { class: "panel pad stack" }, h("div", { class: "panel-head" }, h("h2", {}, "Timeline"), h("span", { class: "soft small" }, "pale: waited, solid: computed; drag to zoom"),
        this.range && h("button", { class: "tiny", onclick: () => { this.range = null; this.draw(); } }, "Show the newest")), holder),
      this.table(all)));
    this.bars(holder, all, range[0] ?? start, range[1] ?? end);
  }

  /** @param {HTMLElement} holder @param {Operation[]} all @param {number} start @param {number} end */
  bars(holder, all, start, end) {
    const width = Math.max(holder.clientWidth, 300), length = Math.max(end - start, 1);
    const x = (/** @type {number} */ time) => (time - start) / length * width;
    /** @type {number[]} */
    const lanes = [];
    const parts = [];
    let covered = all[0]?.accepted ?? start;
    for (const operation of all) {
      const until = operation.ended ?? Date.now();
      if (operation.accepted - covered > SILENCE) parts.push(s("rect", { class: "r-none", x: x(covered), y: AXIS, width: Math.max(x(operation.accepted) - x(covered), 0), height: LANE * LANES, opacity: .45 },
        s("title", {}, `no client for ${duration(operation.accepted - covered)}`)));
      covered = Math.max(covered, until);
      if (until < start || operation.accepted > end) continue;
      let lane = lanes.findIndex(free => free <= operation.accepted);
      if (lane < 0) lane = lanes.length;
      lanes[lane] = until;
      const y = AXIS + Math.min(lane, LANES - 1) * LANE + 2, height = LANE - 4;
      const group = s("g", {}, s("title", {}, words(operation)));
      let at = operation.accepted;
      for (const wait of known(operation)) {
        group.append(s("rect", { class: `wait r-${wait.reason in REASONS ? wait.reason : "other"}`, x: x(at), y: y + height / 4, width: Math.max(x(at + wait.ms) - x(at), .5), height: height / 2 }));
        at += wait.ms;
      }
      if (operation.started) {
        const failed = operation.outcome === "failed" ? " failed" : "";
        group.append(s("rect", { class: `op compute k${COLORS[operation.kind] ?? 7}${failed}`, x: x(operation.started), y, rx: 2, width: Math.max(x(until) - x(operation.started), 1.2), height }));
      }
      parts.push(group);
    }
    const height = AXIS + Math.min(Math.max(lanes.length, 2), LANES) * LANE + 4;
    const spaces = Math.max(1, Math.min(5, Math.floor(width / 110)));
    for (let index = 0; index <= spaces; index += 1) {
      const time = start + length * index / spaces;
      parts.push(s("line", { class: "gridline", x1: x(time), x2: x(time), y1: AXIS - 4, y2: height }));
      parts.push(s("text", { class: `tick ${index === 0 ? "" : index === spaces ? "end" : "mid"}`, x: x(time), y: 12 }, index === 0 ? new Date(start).toLocaleTimeString("en-GB") : `+${duration(time - start)}`));
    }
    const svg = s("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", "aria-label": `${all.length} operations; the table below has each` }, ...parts);
    let from = NaN;
    svg.addEventListener("pointerdown", event => { from = event.offsetX; });
    svg.addEventListener("pointerup", event => {
      if (Math.abs(event.offsetX - from) > 8) {
        const [a = 0, b = 0] = [from, event.offsetX].sort((one, other) => one - other);
        this.range = [start + a / width * length, start + b / width * length];
        this.draw();
      }
    });
    fill(holder, svg);
  }

  /** @param {Operation[]} all */
  table(all) {
    const rows = [...all].reverse().slice(0, ROWS * 5);
    const older = h("button", { class: "tiny", hidden: !this.more, onclick: () => this.load(String(Math.min(...all.flatMap(one => one.number ?? [])))) }, "Older operations");
    return h("section", { class: "panel scroll" }, h("table", {}, h("thead", {}, h("tr", {}, h("th", { class: "num" }, "seq_id"), h("th", {}, "Operation"), h("th", { class: "num" }, "Accepted"), h("th", { class: "num" }, "Waited"),
      h("th", {}, "For"), h("th", { class: "num" }, "Computed"), h("th", {}, "Outcome"))),
    h("tbody", {}, ...rows.map(operation => {
      const waits = known(operation).filter(wait => wait.ms >= 1);
      return h("tr", {}, h("td", { class: "num" }, operation.seq_id ?? "–"), h("td", {}, h("span", { class: `key k${COLORS[operation.kind] ?? 7}` }, cut(operation.kind, 60))),
        h("td", { class: "num" }, new Date(operation.accepted).toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit", fractionalSecondDigits: 3 })),
        h("td", { class: "num" }, operation.started ? duration(operation.started - operation.accepted) : operation.ended ? "–" : "waits"),
        h("td", {}, ...waits.map(wait => h("span", { class: "small", title: REASONS[wait.reason] ?? wait.reason }, h("span", { class: `swatch r-${wait.reason in REASONS ? wait.reason : "other"}` }), `${wait.reason === "other" ? "queue" : cut(wait.reason, 30)} ${duration(wait.ms)} `))),
        h("td", { class: "num" }, operation.started && operation.ended ? duration(compute(operation)) : "–"),
        h("td", { class: operation.outcome === "failed" ? "bad" : "soft", title: operation.outcome === "failed" ? "The client was told why, as the error of this request" : null }, outcome(operation)));
    }))), h("div", { class: "pad" }, older));
  }
}

/** @param {Operation} operation */
function words(operation) {
  const waits = known(operation).map(wait => `${wait.reason} ${duration(wait.ms)}`).join(", ");
  const computed = operation.started && operation.ended ? duration(compute(operation)) : "not yet";
  return `${operation.kind}${operation.seq_id == null ? "" : ` #${operation.seq_id}`}: waited ${waits || "not at all"}; computed ${computed}; ${outcome(operation)}`;
}
