// The operations of a run in time: how long each waited and why, how long it computed, and when no client had asked for
// anything.

import { call, part } from "./api.js";
import { arrange, count, cut, duration, fill, h, paced, s } from "./dom.js";
import { failed } from "./shell.js";

/** @typedef {{number?: number | null, request_id: string, kind: string, seq_id?: number | null, outcome?: string | null, accepted: number, started?: number | null, ended?: number | null, compute_ms?: number | null, waits: {reason: string, ms: number}[]}} Operation */

/** @type {Record<string, string>} */
export const REASONS = {
  run: "computing", store: "its request was written to the disk", compute: "behind its own run's earlier operation", gap: "gap: an earlier seq_id has not come", turn: "another owner's or run's turn",
  memory: "waiting for memory", paused: "paused", none: "no client: it sampled, or did something of its own", other: "in the queue",
};
/** @type {Record<string, number>} */
const COLORS = { forward_backward: 0, optim_step: 2, forward: 5, save_weights: 3, save_weights_for_sampler: 3, load_weights: 1, sample: 4, asample: 4 };
const LANE = 18, LANES = 12, AXIS = 22, ROWS = 200;
/** How often what has not ended is looked at, and the page drawn anew while operations end, in ms. */
const LOOK = 2000, REDRAW = 500;
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
    /** Rows of the table, each with the operation as it is shown. @type {Map<string, {operation: Operation, row: HTMLElement}>} */
    this.rows = new Map();
    /** The part of the page that stays while operations come. @type {{notes: HTMLElement, shares: HTMLElement, holder: HTMLElement, body: HTMLElement, older: HTMLButtonElement, all: HTMLElement} | null} */
    this.frame = null;
    this.isDragging = false;
    this.redraw = paced(() => this.draw(), REDRAW);
    // Nobody tells of what only waits: how long it has, and why.
    setInterval(() => {
      const hasPending = [...this.operations.values()].some(one => !one.ended);
      if (this.loaded && hasPending && !document.hidden && !place.hidden) this.load("");
    }, LOOK);
    window.addEventListener("resize", () => { if (this.frame && !place.hidden) this.redraw(); });
  }

  async open() {
    if (this.loaded) this.draw();
    else await this.reload();
  }

  /** Forgets what it has and reads the newest anew: there may be a hole in between. */
  async reload() {
    this.loaded = false;
    await this.load("");
  }

  /** @param {string} before */
  async load(before) {
    try {
      const search = new URLSearchParams({ limit: String(ROWS) });
      if (before) search.set("before", before);
      const page = await call(`/api/v1/training_runs/${part(this.run)}/operations?${search}`);
      if (!this.loaded) this.operations.clear();
      // What had not ended has by now, or is in the page.
      if (!before) for (const [id, known] of this.operations) if (!known.ended) this.operations.delete(id);
      for (const operation of page.operations) {
        // The page may have been read before an event that came first.
        if (operation.ended || !this.operations.get(operation.request_id)?.ended) this.operations.set(operation.request_id, operation);
      }
      if (before || !this.loaded) this.more = page.more;
      this.loaded = true;
      this.draw();
    } catch (error) {
      if (this.operations.size === 0) failed(this.place, error);
    }
  }

  /** @param {{run: string, operation: Operation}} event @param {boolean} isOpen */
  add(event, isOpen) {
    if (event.run !== this.run || !this.loaded) return;
    this.operations.set(event.operation.request_id, event.operation);
    if (isOpen) this.redraw();
  }

  draw() {
    // What is dragged over stays until the mouse is let go.
    if (this.isDragging) {
      this.redraw();
      return;
    }
    const all = [...this.operations.values()].sort((a, b) => a.accepted - b.accepted);
    if (all.length === 0) {
      this.frame = null;
      fill(this.place, h("div", { class: "panel empty" }, h("h2", {}, "No operations yet"), h("p", {}, "Each request of the client appears here with the time that it waited, the reason, and the time that it computed.")));
      return;
    }
    const end = Math.max(...all.map(one => one.ended ?? Date.now())), start = all[0]?.accepted ?? end;
    // The newest part: as much as can be told apart.
    const range = this.range ?? [all.length > 60 ? all[all.length - 60]?.accepted ?? start : start, end];
    const sums = shares(all), total = Object.values(sums).reduce((sum, ms) => sum + ms, 0) || 1;
    const order = ["run", "store", "gap", "turn", "memory", "paused", "other", "none"].filter(reason => sums[reason]);
    const bar = h("div", { class: "shares", role: "img", "aria-label": order.map(reason => `${reason}: ${Math.round((sums[reason] ?? 0) / total * 100)} percent`).join(", ") });
    for (const reason of order) {
      const piece = h("i", { class: `r-${reason}`, title: REASONS[reason] ?? reason });
      piece.style.width = `${(sums[reason] ?? 0) / total * 100}%`;
      bar.append(piece);
    }
    const legend = h("div", { class: "legend" }, ...order.map(reason => h("span", { class: "small" }, h("span", { class: `swatch r-${reason}` }), `${REASONS[reason] ?? reason} `, h("b", {}, duration(sums[reason] ?? 0)))));
    const failures = all.filter(one => one.outcome === "failed").length;
    const frame = this.frame ??= this.makeFrame();
    fill(frame.notes, failures > 0 && h("div", { class: "note bad" }, failures === 1 ? "One of these operations failed" : `${count(failures)} of these operations failed`, ": the client was told why. A loss that is not a number is one reason; a smaller learning rate avoids it."));
    frame.notes.hidden = failures === 0;
    fill(frame.shares, bar, legend);
    frame.all.hidden = this.range === null;
    this.bars(frame.holder, all, range[0] ?? start, range[1] ?? end);
    frame.older.hidden = !this.more;
    this.fillTable(frame.body, all);
  }

  makeFrame() {
    const notes = h("div", {}), shares = h("div", { class: "stack" }), holder = h("div", { class: "timeline" }), body = h("tbody", {});
    const head = h("tr", {}, h("th", { class: "num" }, "seq_id"), h("th", {}, "Operation"), h("th", { class: "num" }, "Accepted"), h("th", { class: "num" }, "Waited"), h("th", {}, "For"), h("th", { class: "num" }, "Computed"), h("th", {}, "Outcome"));
    const older = h("button", { class: "tiny", onclick: () => this.load(String(Math.min(...[...this.operations.values()].flatMap(one => one.number ?? [])))) }, "Older operations");
    const all = h("button", { class: "tiny", onclick: () => { this.range = null; this.draw(); } }, "Show the newest");
    fill(this.place, h("div", { class: "stack" }, notes,
      h("section", { class: "panel pad stack" }, h("h2", {}, "Where the time went"), shares),
      h("section", { class: "panel pad stack" }, h("div", { class: "panel-head" }, h("h2", {}, "Timeline"), h("span", { class: "soft small" }, "pale: waited, solid: computed; drag to zoom"), all), holder),
      h("section", { class: "panel scroll" }, h("table", { class: "cards" }, h("thead", {}, head), body), h("div", { class: "pad" }, older))));
    return { notes, shares, holder, body, older, all };
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
        s("title", {}, `no client for ${duration(operation.accepted - covered)}: it sampled, or did something of its own`)));
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
    const pixel = (/** @type {PointerEvent} */ event) => event.clientX - svg.getBoundingClientRect().left;
    svg.addEventListener("pointerdown", event => {
      if (event.button !== 0 || event.pointerType === "touch") return;
      from = pixel(event);
      this.isDragging = true;
      svg.setPointerCapture(event.pointerId);
    });
    svg.addEventListener("pointermove", event => {
      if (!this.isDragging) return;
      svg.querySelector(".brush")?.remove();
      svg.append(s("rect", { class: "brush", x: Math.min(from, pixel(event)), width: Math.abs(pixel(event) - from), y: AXIS, height: height - AXIS }));
    });
    svg.addEventListener("lostpointercapture", () => {
      this.isDragging = false;
      svg.querySelector(".brush")?.remove();
    });
    svg.addEventListener("pointerup", event => {
      this.isDragging = false;
      if (Math.abs(pixel(event) - from) > 8) {
        const [a = 0, b = 0] = [from, pixel(event)].sort((one, other) => one - other);
        this.range = [start + a / width * length, start + b / width * length];
        this.draw();
      }
    });
    fill(holder, svg);
  }

  /** Fills the table; rows of what has ended are made once. @param {HTMLElement} body @param {Operation[]} all */
  fillTable(body, all) {
    const newest = [...all].reverse().slice(0, ROWS * 5), before = this.rows;
    this.rows = new Map(newest.map(operation => {
      const known = before.get(operation.request_id);
      return [operation.request_id, known?.operation === operation && operation.ended ? known : { operation, row: this.row(operation) }];
    }));
    arrange(body, [...this.rows.values()].map(({ row }) => row));
  }

  /** @param {Operation} operation */
  row(operation) {
    const waits = known(operation).filter(wait => wait.ms >= 1);
    return h("tr", {}, h("td", { class: "num rest", "data-label": "seq_id" }, operation.seq_id ?? "–"), h("td", { class: "first full" }, h("span", { class: `key k${COLORS[operation.kind] ?? 7}` }, cut(operation.kind, 60))),
      h("td", { class: "num rest", "data-label": "at" }, new Date(operation.accepted).toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit", fractionalSecondDigits: 3 })),
      h("td", { class: "num rest", "data-label": "waited" }, operation.started ? duration(operation.started - operation.accepted) : operation.ended ? "–" : "waits"),
      h("td", { class: "waits" }, ...waits.map(wait => h("span", { class: "small", title: REASONS[wait.reason] ?? wait.reason }, h("span", { class: `swatch r-${wait.reason in REASONS ? wait.reason : "other"}` }), `${wait.reason === "other" ? "queue" : cut(wait.reason, 30)} ${duration(wait.ms)} `))),
      h("td", { class: "num rest", "data-label": "computed" }, operation.started && operation.ended ? duration(compute(operation)) : "–"),
      h("td", { class: `rest ${operation.outcome === "failed" ? "bad" : "soft"}`, "data-label": "", title: operation.outcome === "failed" ? "The client was told why, as the error of this request" : null }, outcome(operation)));
  }
}

/** @param {Operation} operation */
function words(operation) {
  const waits = known(operation).map(wait => `${wait.reason} ${duration(wait.ms)}`).join(", ");
  const computed = operation.started && operation.ended ? duration(compute(operation)) : "not yet";
  return `${operation.kind}${operation.seq_id == null ? "" : ` #${operation.seq_id}`}: waited ${waits || "not at all"}; computed ${computed}; ${outcome(operation)}`;
}
