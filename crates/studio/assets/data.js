// The datums of a step as text, read from the server's journal on demand: nothing of it is stored for the page.

import { Refused, call, part } from "./api.js";
import { byId, count, cut, fill, h, input, number, said, select, settled } from "./dom.js";
import { dialog } from "./shell.js";
import { difference, probability, scale, tokenText, visible } from "./tokens.js";

/** @typedef {import("./tokens.js").Token} Token */
/**
 * @typedef {{index: number, request_id: string, loss_fn: string, tokens: Token[], weights?: (number | null)[] | null, target_logprobs?: (number | null)[] | null,
 *   sampler_logprobs?: (number | null)[] | null, advantages?: (number | null)[] | null, loss?: number | null}} Datum
 */

/** How many datums are shown at once. */
const PAGE = 24;
/** How many of a step are read. */
const MOST = 1024;

/**
 * Which tokens are trained on: those with a weight, or of a sampled answer. Of an answer as good as the others of its group all
 * advantages are 0, and it is an answer all the same: its tokens were drawn with a probability.
 * @param {Datum} datum @param {number} index
 */
function isTrained(datum, index) {
  if (datum.weights) return (datum.weights[index] ?? 0) !== 0;
  const masks = [datum.advantages, datum.sampler_logprobs].filter(mask => mask);
  return masks.length === 0 || masks.some(mask => (mask?.[index] ?? 0) !== 0);
}

/** Where the answer begins. @param {Datum} datum */
function answerStart(datum) {
  const found = datum.tokens.findIndex((_, index) => isTrained(datum, index));
  return found < 0 ? datum.tokens.length : found;
}

/** The mean advantage of the tokens that have one. @param {Datum} datum */
function advantage(datum) {
  const given = (datum.advantages ?? []).flatMap(value => value ? [value] : []);
  if (!datum.advantages) return null;
  return given.length ? given.reduce((sum, value) => sum + value, 0) / given.length : 0;
}

/** @param {Datum} datum */
const promptOf = datum => datum.tokens.slice(0, answerStart(datum)).map(token => token.text).join("");

/** Whether the answer ended by itself. @param {Datum} datum */
function ended(datum) {
  const last = datum.tokens[datum.tokens.length - 1]?.text ?? "";
  return /^<.*>$/.test(last.trim()) || /\n$/.test(last);
}

/** @param {Datum} datum @param {import("./tokens.js").Measure} measure */
function valuesOf(datum, measure) {
  switch (measure) {
    case "weight": return datum.weights ?? datum.advantages?.map((_, index) => isTrained(datum, index) ? 1 : 0);
    case "logprob": return datum.target_logprobs?.map((value, index) => isTrained(datum, index) ? value : null);
    case "advantage": return datum.advantages;
    case "difference": return datum.target_logprobs?.map((value, index) => {
      const sampled = datum.sampler_logprobs?.[index];
      return value === null || sampled === null || sampled === undefined || !isTrained(datum, index) ? null : value - sampled;
    });
  }
}

export class Data {
  /** @param {HTMLElement} place @param {string} run */
  constructor(place, run) {
    this.place = place;
    this.run = run;
    this.newest = 0;
    /** @type {Datum[]} */
    this.datums = [];
    /** @type {Set<number>} */
    this.picked = new Set();
    this.shown = PAGE;
    this.total = 0;
    /** @type {{from: number, to: number} | undefined} */
    this.kept = undefined;
    this.isOpen = false;
    /** How many times a step was asked for. */
    this.asked = 0;
    /** Whether the reader has said what colours mean; before, advantages are shown where there are any. */
    this.hasChosen = false;
  }

  /** @param {number} step */
  lastStep(step) {
    const isFirst = this.newest === 0 && step > 0;
    this.newest = step;
    const field = document.getElementById("step");
    if (!(field instanceof HTMLInputElement)) return;
    field.max = String(step);
    if (isFirst) {
      field.value = String(step);
      this.load();
    }
  }

  async open() {
    if (this.isOpen) return;
    this.isOpen = true;
    const options = (/** @type {[string, string][]} */ pairs) => pairs.map(([value, words]) => h("option", { value }, words));
    const redraw = settled(() => this.draw(), 80);
    fill(this.place, h("div", { class: "stack" },
      h("div", { class: "tools" },
        h("label", {}, "Step ", h("input", { id: "step", class: "num", type: "number", min: 1, max: this.newest, value: Math.max(this.newest, 1), onchange: () => this.load() })),
        h("div", { class: "switch" }, h("button", { "aria-label": "Previous step", onclick: () => this.move(-1) }, "‹"), h("button", { "aria-label": "Next step", onclick: () => this.move(1) }, "›")),
        h("label", {}, "Colour by ", h("select", { id: "measure", onchange: () => { this.hasChosen = true; redraw(); } }, ...options([["weight", "loss weight"], ["logprob", "log-probability"], ["advantage", "advantage"], ["difference", "trainer − sampler"]]))),
        h("label", {}, "Sort ", h("select", { id: "sort", onchange: redraw }, ...options([["index", "as sent"], ["best", "best first"], ["worst", "worst first"], ["loss", "highest loss"], ["long", "longest"]]))),
        h("label", {}, h("input", { id: "grouped", type: "checkbox", checked: true, onchange: redraw }), "Group by prompt"),
        h("span", { class: "scale", id: "scale" })),
      h("div", { class: "tools" },
        h("input", { id: "contains", type: "search", class: "search", placeholder: "Text contains", "aria-label": "Text contains", oninput: redraw }),
        h("label", {}, "Tokens ", h("input", { id: "shortest", class: "num", type: "number", min: 0, placeholder: "from", "aria-label": "At least so many tokens", oninput: redraw }),
          h("input", { id: "longest", class: "num", type: "number", min: 0, placeholder: "to", "aria-label": "At most so many tokens", oninput: redraw })),
        h("label", {}, "Advantage from ", h("input", { id: "least", class: "num", type: "number", step: "0.1", oninput: redraw })),
        h("label", {}, "Ended ", h("select", { id: "ended", onchange: redraw }, ...options([["", "either way"], ["stop", "by itself"], ["length", "cut off"]]))),
        h("button", { id: "diff", disabled: true, onclick: () => this.diff() }, "Compare two answers")),
      h("p", { id: "datum-count", class: "soft small", role: "status" }), h("div", { id: "datums", class: "stack" })));
    await this.load();
  }

  /** @param {number} by */
  move(by) {
    const field = input("step");
    field.value = String(Math.min(Math.max(Number(field.value) + by, 1), this.newest || 1));
    this.load();
  }

  async load() {
    const place = byId("datums"), step = Math.max(1, Math.round(Number(input("step").value)) || 1);
    if (this.newest === 0) {
      fill(place, h("div", { class: "panel empty" }, h("h2", {}, "No steps yet"), h("p", {}, "The data of a step can be read once its optim_step is done.")));
      return;
    }
    // Whoever goes on to the next step does not wait for this one, and does not see it later.
    const turn = this.asked += 1;
    try {
      const path = `/api/v1/training_runs/${part(this.run)}/steps/${step}`;
      const found = await call(`${path}?limit=256`);
      const all = /** @type {Datum[]} */ (found.datums);
      while (all.length < Math.min(found.total, MOST) && turn === this.asked) {
        const { datums } = await call(`${path}?limit=256&offset=${all.length}`);
        if (datums.length === 0) break;
        all.push(...datums);
      }
      if (turn !== this.asked) return;
      this.datums = all;
      this.total = found.total;
      this.kept = found.kept;
      this.picked.clear();
      this.shown = PAGE;
      const field = select("measure");
      const has = (/** @type {keyof Datum} */ name) => this.datums.some(datum => datum[name]);
      for (const option of field.options) option.disabled = option.value === "advantage" ? !has("advantages") : option.value === "difference" ? !has("sampler_logprobs") : false;
      if (!this.hasChosen) field.value = has("advantages") ? "advantage" : "weight";
      if (field.selectedOptions[0]?.disabled) field.value = "weight";
      this.draw();
    } catch (error) {
      if (turn !== this.asked) return;
      byId("datum-count").textContent = "";
      const isGone = error instanceof Refused && error.status === 404;
      fill(place, h("div", { class: "panel empty", role: "status" }, h("h2", {}, `Step ${step} cannot be shown`), h("p", {}, said(error instanceof Error ? error.message : String(error))),
        isGone && h("p", {}, "Data are read from what the server keeps to recover a run that trains, so look at them while it does. Recipes write samples of each step to the folder of the run; curves and operations stay.")));
    }
  }

  wanted() {
    const text = input("contains").value.toLowerCase(), from = Number(input("shortest").value || 0), to = Number(input("longest").value || Infinity);
    const least = input("least").value === "" ? -Infinity : Number(input("least").value), how = select("ended").value;
    const found = this.datums.filter(datum => datum.tokens.length >= from && datum.tokens.length <= to && (advantage(datum) ?? Infinity) >= least
      && (!how || (how === "stop") === ended(datum)) && (!text || datum.tokens.map(token => token.text).join("").toLowerCase().includes(text)));
    const by = select("sort").value;
    const key = (/** @type {Datum} */ datum) => by === "best" ? -(advantage(datum) ?? -(datum.loss ?? 0)) : by === "worst" ? advantage(datum) ?? -(datum.loss ?? 0)
      : by === "loss" ? -(datum.loss ?? 0) : by === "long" ? -datum.tokens.length : datum.index;
    return found.sort((a, b) => key(a) - key(b));
  }

  draw() {
    const measure = /** @type {import("./tokens.js").Measure} */ (select("measure").value);
    scale(byId("scale"), measure);
    const found = this.wanted();
    const most = measure === "advantage" || measure === "weight" || measure === "difference"
      ? Math.max(...this.datums.map(datum => Math.max(...(valuesOf(datum, measure) ?? []).map(value => Math.abs(value ?? 0)), 0)), 0) : undefined;
    const isGrouped = input("grouped").checked && this.datums.some(datum => datum.advantages);
    /** @type {Map<string, Datum[]>} */
    const groups = new Map();
    for (const datum of found) {
      const key = isGrouped ? promptOf(datum) : "";
      const group = groups.get(key);
      if (group) group.push(datum);
      else groups.set(key, [datum]);
    }
    // Group by group, for as many datums as fit a page.
    let left = this.shown;
    const panels = [...groups].flatMap(([prompt, whole]) => {
      const datums = whole.slice(0, Math.max(left, 0)), all = whole.map(advantage).filter(value => value !== null);
      left -= datums.length;
      if (datums.length === 0) return [];
      return h("section", { class: "panel" },
        isGrouped && h("div", { class: "panel-head" }, h("h2", {}, whole.length === 1 ? "1 answer" : `${count(whole.length)} answers`),
          h("span", { class: "soft" }, all.length ? `advantage ${number(Math.min(...all))} to ${number(Math.max(...all))}` : "no advantages", datums.length < whole.length && `, the first ${count(datums.length)} are shown`)),
        isGrouped && h("div", { class: "datum" }, h("div", { class: "tokens soft" }, visible(prompt.slice(0, 4000)))),
        ...datums.map(datum => this.show(datum, measure, most, isGrouped)));
    });
    const kept = this.kept ? `Kept in the journal: steps ${count(this.kept.from)} to ${count(this.kept.to)}. ` : "";
    byId("datum-count").textContent = `${kept}${count(this.total)} ${this.total === 1 ? "datum" : "datums"} in this step${this.datums.length < this.total ? `, the first ${count(this.datums.length)} are here` : ""}${found.length < this.datums.length ? `, ${count(found.length)} fit` : ""}.`;
    fill(byId("datums"), ...panels, found.length === 0 && this.datums.length > 0 && h("div", { class: "panel empty" }, h("p", {}, "No datum fits these filters.")), found.length > this.shown && h("button", { onclick: () => { this.shown += PAGE; this.draw(); } }, `Show ${Math.min(PAGE, found.length - this.shown)} more`));
    /** @type {HTMLButtonElement} */ (byId("diff")).disabled = this.picked.size !== 2;
  }

  /** @param {Datum} datum @param {import("./tokens.js").Measure} measure @param {number | undefined} most @param {boolean} answerOnly */
  show(datum, measure, most, answerOnly) {
    const start = answerOnly ? answerStart(datum) : 0, values = valuesOf(datum, measure);
    const say = (/** @type {number} */ at) => {
      const index = start + at, token = datum.tokens[index];
      const words = [`${JSON.stringify(token?.text ?? "")} id ${token?.id}`, `weight ${number(datum.weights?.[index] ?? (isTrained(datum, index) ? 1 : 0))}`];
      if (datum.target_logprobs?.[index] != null) words.push(`trainer ${number(datum.target_logprobs[index])} (${probability(datum.target_logprobs[index])})`);
      if (datum.sampler_logprobs?.[index] != null) words.push(`sampler ${number(datum.sampler_logprobs[index])}`);
      if (datum.advantages?.[index] != null) words.push(`advantage ${number(datum.advantages[index])}`);
      return cut(words.join(" · "), 400);
    };
    const mean = advantage(datum);
    const box = h("input", { type: "checkbox", "aria-label": `Compare datum ${datum.index}`, onchange: () => {
      if (box.checked) this.picked.add(datum.index);
      else this.picked.delete(datum.index);
      /** @type {HTMLButtonElement} */ (byId("diff")).disabled = this.picked.size !== 2;
    } });
    box.checked = this.picked.has(datum.index);
    return h("div", { class: "datum", "data-datum": datum.index },
      h("div", { class: "datum-head" }, h("label", {}, box, h("b", {}, ` ${datum.index}`)), h("span", {}, cut(datum.loss_fn, 40)), h("span", {}, `${count(datum.tokens.length)} tokens, ${count(datum.tokens.filter((_, index) => isTrained(datum, index)).length)} trained`),
        datum.loss != null && h("span", {}, "loss ", h("b", {}, number(datum.loss))), mean !== null && h("span", { class: mean > 0 ? "good" : mean < 0 ? "bad" : "" }, "advantage ", h("b", {}, number(mean))),
        h("span", {}, ended(datum) ? "ended by itself" : "cut off")),
      tokenText(datum.tokens.slice(start), values?.slice(start), measure, say, most));
  }

  async diff() {
    const [one, other] = [...this.picked].map(index => this.datums.find(datum => datum.index === index));
    if (!one || !other) return;
    const answer = (/** @type {Datum} */ datum) => datum.tokens.slice(answerStart(datum));
    const parts = difference(answer(one), answer(other), (a, b) => a.id === b.id);
    const text = h("div", { class: "tokens", dir: "auto" }, ...parts.map(({ kind, item }) => h("span", { class: kind === "same" ? "t" : `t ${kind}` }, visible(item.text))));
    await dialog(`Datum ${one.index} and datum ${other.index}`, [h("p", { class: "soft small" }, h("span", { class: "removed" }, `only in ${one.index}`), " ", h("span", { class: "added" }, `only in ${other.index}`)), text], [{ words: "Close" }]);
  }
}
