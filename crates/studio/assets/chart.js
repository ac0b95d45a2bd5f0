// Line charts as SVG: zoom, smoothing, logarithmic axes, several curves, files to take away.
//
// A chart is drawn anew from its data whenever something changes; with at most a few hundred points for each curve that
// takes a millisecond. Colours are classes, so a chart follows the theme by itself.

import { cut, download, duration, eachFrame, fill, h, number, s } from "./dom.js";

/** A curve. Points are [step, mean, min, max, time in ms]. */
/** @typedef {{label: string, color: number, points: number[][]}} Line */
/** @typedef {{smooth: number, logX: boolean, logY: boolean, axis: "step" | "time"}} View */
/** @typedef {[number, number]} Range */

const LEFT = 50, RIGHT = 10, TOP = 8, BOTTOM = 20;

/** @type {View} */
export const PLAIN = { smooth: 0, logX: false, logY: false, axis: "step" };

let charts = 0;

/** A chart in an element. */
export class Chart {
  /**
   * @param {string} title
   * @param {{height?: number, onzoom?: (range: Range | null) => void}} [options]
   */
  constructor(title, { height = 190, onzoom } = {}) {
    this.title = title;
    this.height = height;
    this.onzoom = onzoom;
    /** @type {Line[]} */
    this.lines = [];
    this.view = PLAIN;
    /** @type {Range | null} */
    this.zoom = null;
    this.width = 0;
    charts += 1;
    this.clip = `clip${charts}`;
    /** @type {{curves: ReturnType<Chart["curves"]>, toX: (value: number) => number, xs: Range, width: number} | null} */
    this.place = null;
    /** Where the mouse is, and where it began to drag, in pixels. @type {{at: number | null, from: number | null}} */
    this.mouse = { at: null, from: null };
    this.svg = s("svg", { "aria-hidden": "true", height });
    this.tip = h("div", { class: "tip", hidden: true });
    this.element = h("div", { class: "plot", tabindex: "0", role: "img", "aria-label": cut(title, 80) }, this.svg, this.tip);
    // A page may have hundreds of charts that grow: those that nobody sees are drawn when they are scrolled to.
    let isSeen = false, isStale = false;
    this.redraw = eachFrame(() => {
      isStale = !isSeen;
      if (isSeen) this.draw();
    });
    new IntersectionObserver(entries => {
      isSeen = entries[entries.length - 1]?.isIntersecting ?? false;
      if (isSeen && isStale) this.redraw();
    }, { rootMargin: "600px" }).observe(this.element);
    window.addEventListener("beforeprint", () => { if (this.element.isConnected) this.draw(); });
    new ResizeObserver(() => {
      const width = this.element.clientWidth;
      if (width && width !== this.width) {
        this.width = width;
        // In the next frame: what is drawn now would have to be observed again.
        this.redraw();
      }
    }).observe(this.element);
    this.listen();
  }

  /** @param {Line[]} lines @param {View} view */
  set(lines, view) {
    this.lines = lines;
    this.view = view;
    this.redraw();
  }

  /** @param {Range | null} range */
  zoomTo(range) {
    this.zoom = range;
    this.redraw();
  }

  /** The curves in the units of the axes, smoothed. */
  curves() {
    const start = Math.min(...this.lines.flatMap(line => line.points.length ? [/** @type {number[]} */ (line.points[0])[4] ?? 0] : []));
    return this.lines.map(line => {
      const points = [];
      for (const [step = 0, mean = NaN, low = mean, high = mean, time = 0] of line.points) {
        const x = this.view.axis === "time" ? (time - start) / 1000 : step;
        if (!Number.isFinite(mean) || (this.view.logY && mean <= 0) || (this.view.logX && x <= 0)) continue;
        if (this.zoom && (x < this.zoom[0] || x > this.zoom[1])) continue;
        points.push({ x, y: mean, low, high, step, time });
      }
      return { ...line, points, smooth: smoothed(points.map(point => point.y), this.view.smooth) };
    });
  }

  draw() {
    // Before it has a place in the page there is nothing to draw for; its first size draws it.
    if (!this.width) return;
    const { width, height } = this;
    const curves = this.curves();
    const { logX, logY } = this.view;
    const all = curves.flatMap(curve => curve.points);
    const xs = this.zoom ?? span(all.map(point => point.x), logX);
    // What is smoothed away should not set the scale: rare peaks would flatten the curve.
    const shown = this.view.smooth > 0
      ? curves.flatMap(curve => [...curve.smooth, ...trimmed(curve.points.map(point => point.y))])
      : all.map(point => point.y);
    const ys = padded(span(shown, logY), logY);
    const toX = scale(xs, logX, LEFT, width - RIGHT), toY = scale(ys, logY, height - BOTTOM, TOP);
    this.place = { curves, toX, xs, width };

    /** @type {SVGElement[]} */
    const parts = [];
    for (const tick of ticks(ys, logY, 5)) {
      const y = toY(tick);
      parts.push(s("line", { class: "gridline", x1: LEFT, x2: width - RIGHT, y1: y, y2: y }));
      parts.push(s("text", { class: "tick end", x: LEFT - 6, y: y + 3.5 }, number(tick)));
    }
    for (const tick of ticks(xs, logX, Math.max(2, Math.floor(width / 90)))) {
      if (this.view.axis === "step" && tick !== Math.round(tick)) continue;
      const words = this.view.axis === "time" ? duration(tick * 1000) : number(tick);
      // As far to the right as it fits: 3 pixels are half of a character.
      parts.push(s("text", { class: "tick mid", x: Math.min(toX(tick), width - 3 * words.length - 1), y: height - 5 }, words));
    }
    parts.push(s("text", { class: "tick end", x: LEFT - 14, y: height - 5 }, this.view.axis));
    parts.push(s("clipPath", { id: this.clip }, s("rect", { x: LEFT - 3, y: TOP - 3, width: Math.max(width - LEFT - RIGHT + 7, 1), height: height - TOP - BOTTOM + 6 })));
    const inside = s("g", { "clip-path": `url(#${this.clip})` });
    for (const curve of curves) {
      const color = `k${curve.color % 8}`;
      const at = curve.points;
      if (at.length === 0) continue;
      if (at.some(point => point.high > point.low) && !(logY && at.some(point => point.low <= 0))) {
        const up = at.map(point => `${fix(toX(point.x))},${fix(toY(point.high))}`);
        const down = at.map(point => `${fix(toX(point.x))},${fix(toY(point.low))}`).reverse();
        inside.append(s("polygon", { class: `band ${color}`, points: [...up, ...down].join(" ") }));
      }
      const raw = at.map(point => `${fix(toX(point.x))},${fix(toY(point.y))}`).join(" ");
      inside.append(s("polyline", { class: `curve ${color}${this.view.smooth > 0 ? " raw" : ""}`, points: raw, "data-points": at.length }));
      if (this.view.smooth > 0) {
        const smooth = at.map((point, index) => `${fix(toX(point.x))},${fix(toY(curve.smooth[index] ?? point.y))}`).join(" ");
        inside.append(s("polyline", { class: `curve ${color}`, points: smooth }));
      }
      const last = at[at.length - 1];
      if (last && (at.length < 3 || !this.zoom)) {
        inside.append(s("circle", { class: `dot ${color}`, cx: toX(last.x), cy: toY(this.view.smooth > 0 ? curve.smooth[at.length - 1] ?? last.y : last.y), r: 2.6 }));
      }
    }
    parts.push(inside);
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.svg.setAttribute("height", String(height));
    this.svg.replaceChildren(...parts);
    this.element.setAttribute("aria-label", this.words(curves));
    if (this.mouse.at !== null) this.point(this.mouse.at);
  }

  /** The chart in a sentence, for those who hear it. @param {{label: string, points: {y: number, step: number}[]}[]} curves */
  words(curves) {
    const each = curves.filter(curve => curve.points.length).slice(0, 5).map(curve => {
      const first = curve.points[0], last = curve.points[curve.points.length - 1];
      return `${cut(curve.label, 60)}: from ${number(first?.y)} at step ${first?.step} to ${number(last?.y)} at step ${last?.step}`;
    });
    return `${cut(this.title, 80)}. ${each.join("; ") || "no points yet"}. Drag to zoom; keys: plus, minus, arrows, 0 for all.`;
  }

  listen() {
    const element = this.element, mouse = this.mouse;
    /** @param {PointerEvent} event */
    const at = event => event.clientX - element.getBoundingClientRect().left;
    /** @param {number} pixel */
    const value = pixel => this.place ? invert(this.place.xs, this.view.logX, LEFT, this.place.width - RIGHT, pixel) : 0;
    element.addEventListener("pointerdown", event => {
      if (event.button !== 0 || event.pointerType === "touch") return;
      mouse.from = at(event);
      element.setPointerCapture(event.pointerId);
    });
    element.addEventListener("pointermove", event => {
      mouse.at = at(event);
      this.point(mouse.at);
    });
    element.addEventListener("pointerup", event => {
      const now = at(event), from = mouse.from;
      mouse.from = null;
      this.svg.querySelector(".brush")?.remove();
      if (from !== null && Math.abs(now - from) > 8) this.ask([value(Math.min(from, now)), value(Math.max(from, now))]);
    });
    element.addEventListener("pointercancel", () => { mouse.from = null; });
    element.addEventListener("pointerleave", () => this.unpoint());
    element.addEventListener("dblclick", () => this.ask(null));
    element.addEventListener("keydown", event => {
      const range = this.zoom ?? this.place?.xs;
      if (!range) return;
      const length = range[1] - range[0];
      /** @type {Record<string, Range | null>} */
      const moves = {
        "+": [range[0] + length / 4, range[1] - length / 4], "=": [range[0] + length / 4, range[1] - length / 4],
        "-": [range[0] - length / 2, range[1] + length / 2],
        ArrowLeft: [range[0] - length / 5, range[1] - length / 5], ArrowRight: [range[0] + length / 5, range[1] + length / 5],
        0: null, Escape: null,
      };
      if (event.key in moves) {
        event.preventDefault();
        this.ask(moves[event.key] ?? null);
      }
    });
  }

  /** @param {Range | null} range */
  ask(range) {
    if (range && range[1] - range[0] <= 0) return;
    this.zoomTo(range);
    this.onzoom?.(range);
  }

  /** Shows the values at a place. @param {number} pixel */
  point(pixel) {
    const place = this.place;
    if (!place) return;
    this.svg.querySelectorAll(".cross, .brush").forEach(old => old.remove());
    const { from } = this.mouse;
    if (from !== null && Math.abs(pixel - from) > 4) {
      this.svg.append(s("rect", { class: "brush", x: Math.min(from, pixel), width: Math.abs(pixel - from), y: TOP, height: this.height - TOP - BOTTOM }));
    }
    const x = invert(place.xs, this.view.logX, LEFT, place.width - RIGHT, pixel);
    const rows = [];
    let step = NaN;
    for (const curve of place.curves) {
      const index = nearest(curve.points, x);
      const point = curve.points[index];
      if (!point) continue;
      if (Number.isNaN(step)) {
        step = point.step;
        const line = place.toX(point.x);
        this.svg.append(s("line", { class: "cross", x1: line, x2: line, y1: TOP, y2: this.height - BOTTOM }));
      }
      rows.push({ curve, value: this.view.smooth > 0 ? curve.smooth[index] ?? point.y : point.y });
    }
    this.tip.hidden = rows.length === 0;
    fill(this.tip, h("div", { class: "soft" }, `step ${step}`), ...rows.slice(0, 10).map(({ curve, value }) =>
      h("div", { class: "row" }, h("span", { class: `key cut k${curve.color % 8}` }, h("bdi", { class: "cut" }, cut(curve.label, 40))), h("b", {}, number(value)))));
    const isLeft = pixel > place.width / 2;
    this.tip.style.left = isLeft ? "" : `${pixel + 14}px`;
    this.tip.style.right = isLeft ? `${place.width - pixel + 14}px` : "";
  }

  unpoint() {
    this.mouse.at = null;
    this.tip.hidden = true;
    this.svg.querySelectorAll(".cross").forEach(old => old.remove());
  }

  /** The points as a table. */
  csv() {
    /** @param {unknown} text */
    const cell = text => /^[\w. +-]*$/.test(String(text)) && !/^[=+@-]/.test(String(text)) ? String(text) : `"${String(text).replace(/^(\s*[=+@-])/, "'$1").replace(/"/g, '""')}"`;
    const rows = ["run,metric,step,value,min,max,time"];
    for (const line of this.lines) {
      for (const [step, mean, low, high, time] of line.points) {
        rows.push([cell(line.label), cell(this.title), step, mean, low, high, time ? new Date(time).toISOString() : ""].join(","));
      }
    }
    return rows.join("\n") + "\n";
  }

  saveCsv() {
    download(`${this.title}.csv`, new Blob([this.csv()], { type: "text/csv" }));
  }

  /** Saves the chart as an image, in the colours that it has now. */
  async savePng() {
    const copy = /** @type {SVGSVGElement} */ (this.svg.cloneNode(true));
    const width = this.width || 400, height = this.height + 26, by = 2;
    const from = [this.svg, ...this.svg.querySelectorAll("*")], to = [copy, ...copy.querySelectorAll("*")];
    from.forEach((element, index) => {
      const style = getComputedStyle(element);
      for (const name of ["fill", "stroke", "stroke-width", "stroke-dasharray", "opacity", "font-size", "font-family", "text-anchor"]) {
        /** @type {SVGElement} */ (to[index]).style.setProperty(name, style.getPropertyValue(name));
      }
    });
    copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
    copy.setAttribute("width", String(width * by));
    copy.setAttribute("height", String(this.height * by));
    const image = new Image();
    image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(new XMLSerializer().serializeToString(copy))}`;
    await image.decode();
    const canvas = h("canvas", { width: width * by, height: height * by });
    const pen = canvas.getContext("2d");
    if (!pen) return;
    const page = getComputedStyle(this.element.closest(".panel") ?? document.body);
    pen.fillStyle = page.backgroundColor;
    pen.fillRect(0, 0, canvas.width, canvas.height);
    pen.fillStyle = page.color;
    pen.font = `600 ${13 * by}px sans-serif`;
    pen.fillText(cut(this.title, 80), 8 * by, 18 * by);
    pen.drawImage(image, 0, 26 * by, width * by, this.height * by);
    canvas.toBlob(blob => blob && download(`${this.title}.png`, blob));
  }
}

/**
 * An exponential moving average that is not drawn towards its first value.
 * @param {number[]} values @param {number} weight 0 to 1
 */
export function smoothed(values, weight) {
  if (!(weight > 0)) return values;
  let sum = 0, norm = 0;
  return values.map(value => {
    sum = sum * weight + value * (1 - weight);
    norm = norm * weight + (1 - weight);
    return sum / norm;
  });
}

/** The values without the outermost hundredths. @param {number[]} values */
function trimmed(values) {
  const sorted = [...values].sort((a, b) => a - b);
  const drop = Math.floor(sorted.length / 100);
  return drop ? sorted.slice(drop, -drop) : sorted;
}

/** @param {number[]} values @param {boolean} log @returns {Range} */
function span(values, log) {
  let low = Infinity, high = -Infinity;
  for (const value of values) {
    if (value < low) low = value;
    if (value > high) high = value;
  }
  if (low > high) return log ? [1, 10] : [0, 1];
  if (low === high) return log ? [low / 2, high * 2] : low === 0 ? [0, 1] : [low - Math.abs(low) * .1, high + Math.abs(high) * .1];
  return [low, high];
}

/** @param {Range} range @param {boolean} log @returns {Range} */
function padded([low, high], log) {
  if (log) return [low / 1.1, high * 1.1];
  const margin = Math.min((high - low) * .06, Number.MAX_VALUE / 100);
  // A chart of what is never negative does not show less than nothing.
  return [low >= 0 && low - margin < 0 ? 0 : low - margin, high + margin];
}

/** @param {Range} range @param {boolean} log @param {number} from @param {number} to */
function scale([low, high], log, from, to) {
  const shape = log ? Math.log10 : /** @param {number} value */ value => value;
  // Halves, as the distance of the greatest numbers is no number.
  const start = shape(low) / 2, length = shape(high) / 2 - start || 1;
  return /** @param {number} value */ value => from + (shape(value) / 2 - start) / length * (to - from);
}

/** @param {Range} range @param {boolean} log @param {number} from @param {number} to @param {number} pixel */
function invert([low, high], log, from, to, pixel) {
  const part = Math.min(Math.max((pixel - from) / (to - from), 0), 1);
  return log ? 10 ** (Math.log10(low) + part * (Math.log10(high) - Math.log10(low))) : low + part * (high - low);
}

/**
 * Round numbers in a range.
 * @param {Range} range @param {boolean} log @param {number} wanted
 */
export function ticks([low, high], log, wanted) {
  const found = [];
  if (log && high / low > 20) {
    const every = Math.ceil(Math.log10(high / low) / Math.max(wanted, 1));
    for (let power = Math.ceil(Math.log10(low)); power <= Math.log10(high); power += every) found.push(10 ** power);
    return found;
  }
  const rough = Math.min(high - low, Number.MAX_VALUE) / Math.max(wanted, 1), power = 10 ** Math.floor(Math.log10(rough));
  const step = power * ([1, 2, 5, 10].find(factor => factor * power >= rough) ?? 10);
  for (let index = Math.ceil(low / step); index * step <= high + step * 1e-9 && found.length < 30; index += 1) found.push(Number((index * step).toPrecision(12)));
  return found;
}

/** @param {{x: number}[]} points @param {number} x */
function nearest(points, x) {
  let low = 0, high = points.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if ((points[middle]?.x ?? 0) < x) low = middle + 1;
    else high = middle;
  }
  const before = points[low - 1], at = points[low];
  return before && at && x - before.x < at.x - x ? low - 1 : low;
}

/** @param {number} place */
const fix = place => Number.isFinite(place) ? place.toFixed(1) : "0";

