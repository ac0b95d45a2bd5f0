// Talking to models, one to three at once on the same prompts.

import { call } from "./api.js";
import { button, byId, cut, download, duration, eachFrame, fill, h, input, number, printable, select, theirs } from "./dom.js";
import { dialog, failed, onKeys, toast } from "./shell.js";
import { chat, emptyAnswer, goOn, tokenId } from "./stream.js";
import { isSpecial, probability, shade, visible } from "./tokens.js";

/** @typedef {{role: "user", content: string}} Question */
/** @typedef {Question | import("./stream.js").Answer} Turn */
/** @typedef {{model: string, turns: Turn[], stop: AbortController | null, panel: HTMLElement, list: HTMLElement, redraw: () => void}} Column */

const MOST_COLUMNS = 3;
/** Characters of a question that are shown: laying out megabytes takes a browser many seconds. All of it is sent. */
const SHOWN = 20000;
/** @type {{id: string, root: string, created: number}[]} */
let models = [];
/** @type {Column[]} */
const columns = [];

/** What the settings say, as members of a request. */
function settings() {
  /** @type {Record<string, unknown>} */
  const found = {};
  for (const name of ["temperature", "top_p", "max_tokens", "seed", "top_k"]) {
    const value = input(name).value.trim();
    if (value !== "") found[name] = Number(value);
  }
  return found;
}

/** @returns {unknown[] | null} */
function tools() {
  const text = input("tools").value.trim();
  if (!text) return null;
  const found = JSON.parse(text);
  if (!Array.isArray(found)) throw new Error("tools: not a list of function definitions");
  return found;
}

/** @param {Column} column */
function messages(column) {
  const system = input("system").value.trim();
  const turns = column.turns.map(turn => {
    if (turn.role === "user") return { role: "user", content: turn.content };
    const calls = turn.calls.map((call, index) => ({ id: call.id ?? `call_${index}`, type: "function", function: { name: call.name, arguments: call.arguments } }));
    return calls.length ? { role: "assistant", content: turn.content, tool_calls: calls } : { role: "assistant", content: turn.content };
  });
  return system ? [{ role: "system", content: system }, ...turns] : turns;
}

/** @param {string} model */
function addColumn(model) {
  const list = h("div", { class: "turns", "aria-live": "polite" });
  const choice = h("select", { "aria-label": "Model", onchange: () => { column.model = choice.value; remember(); } }, ...models.map(one => h("option", { value: one.id, selected: one.id === model }, cut(one.id, 90))));
  const close = h("button", { class: "plain tiny close", "aria-label": "Remove this model", onclick: () => {
    if (columns.length === 1) return;
    column.stop?.abort();
    columns.splice(columns.indexOf(column), 1);
    column.panel.remove();
    remember();
    showColumns();
  } }, "✕");
  const panel = h("section", { class: "panel column", "aria-label": "Conversation" }, h("div", { class: "panel-head" }, choice, close), list);
  /** @type {Column} */
  const column = { model: choice.value || model, turns: [], stop: null, panel, list, redraw: () => {} };
  column.redraw = eachFrame(() => show(column));
  // A new model hears what the first was told.
  const first = columns[0];
  if (first) column.turns = first.turns.slice(0, first.turns.findIndex(turn => turn.role === "assistant") < 0 ? undefined : 0);
  columns.push(column);
  byId("columns").append(panel);
  showColumns();
  show(column);
}

function showColumns() {
  button("add-column").disabled = columns.length >= MOST_COLUMNS || models.length === 0;
  document.querySelectorAll(".column .close").forEach(close => { /** @type {HTMLElement} */ (close).hidden = columns.length === 1; });
}

function remember() {
  history.replaceState(null, "", `?${new URLSearchParams(columns.map(column => ["model", column.model]))}`);
}

/** @param {Column} column */
function show(column) {
  const asTokens = select("show").value === "tokens";
  // An answer is read out when it is there, not with each of its tokens.
  column.list.setAttribute("aria-busy", String(column.turns.some(turn => turn.role === "assistant" && turn.isStreaming)));
  if (column.turns.length === 0) {
    fill(column.list, h("div", { class: "empty" }, h("p", {}, "Ask something below. Every model here gets the same prompt.")));
    return;
  }
  fill(column.list, ...column.turns.map((turn, index) => turn.role === "user" ? question(column, turn, index) : answer(column, turn, index, asTokens)));
}

/** @param {Column} column @param {Question} turn @param {number} index */
function question(column, turn, index) {
  const edit = h("button", { class: "plain tiny", onclick: () => {
    const field = h("textarea", { rows: 3, "aria-label": "Edit the message" });
    field.value = turn.content;
    dialog("Edit the message", [h("p", { class: "soft small" }, "What comes after it is drawn anew."), field], [{ words: "Cancel" }, { words: "Ask again", kind: "main" }]).then(chosen => {
      if (chosen !== 1) return;
      column.stop?.abort();
      column.turns = [...column.turns.slice(0, index), { role: "user", content: field.value }];
      ask(column);
    });
    field.focus();
  } }, "Edit");
  return h("div", { class: "turn user" }, h("div", { class: "who" }, "you", h("div", { class: "menu" }, edit)), h("div", { class: "said", dir: "auto" }, cut(turn.content, SHOWN)));
}

/** @param {Column} column @param {import("./stream.js").Answer} turn @param {number} index @param {boolean} asTokens */
function answer(column, turn, index, asTokens) {
  const speed = turn.ids.length && turn.ms > 0 ? `${turn.ids.length} tokens, ${duration(turn.ms)}, ${number(Math.round(turn.ids.length / turn.ms * 1000))}/s` : "";
  const again = h("button", { class: "plain tiny", disabled: turn.isStreaming, onclick: () => {
    column.turns = column.turns.slice(0, index);
    ask(column);
  } }, "Regenerate");
  const said = asTokens && turn.tokens.length ? tokens(column, turn, index)
    : h("div", { class: `said${turn.isStreaming ? " typing" : ""}`, dir: "auto" }, printable(turn.content));
  return h("div", { class: "turn assistant", "data-finish": turn.finish },
    h("div", { class: "who" }, h("span", {}, "model"), h("span", { class: "faint num" }, speed), turn.finish && turn.finish !== "stop" && h("span", { class: "chip" }, turn.finish), h("div", { class: "menu" }, again)),
    turn.thought && !asTokens && h("details", { class: "thought" }, h("summary", {}, "Thoughts"), h("div", { class: "said" }, printable(turn.thought))),
    said,
    ...turn.calls.map(call => h("div", { class: "call" }, h("b", {}, cut(call.name, 80)), h("pre", {}, cut(pretty(call.arguments), 5000)))),
    turn.error && h("div", { class: "note bad", role: "alert" }, turn.error));
}

/** @param {string} text */
function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

/** @param {Column} column @param {import("./stream.js").Answer} turn @param {number} index */
function tokens(column, turn, index) {
  return h("div", { class: `tokens${turn.isStreaming ? " typing" : ""}`, dir: "auto" }, ...turn.tokens.slice(0, 4000).map((token, at) =>
    h("span", { class: `t ${shade("logprob", token.logprob, 0)}${isSpecial(token.text) ? " special" : ""}`, role: "button", tabindex: 0, title: probability(token.logprob), onclick: (/** @type {Event} */ event) => alternatives(event, column, turn, index, at),
      onkeydown: (/** @type {KeyboardEvent} */ event) => { if (event.key === "Enter" || event.key === " ") alternatives(event, column, turn, index, at); } }, visible(token.text))));
}

/**
 * Shows what else a token could have been.
 * @param {Event} event @param {Column} column @param {import("./stream.js").Answer} turn @param {number} index @param {number} at
 */
function alternatives(event, column, turn, index, at) {
  event.preventDefault();
  closeAlternatives();
  const token = turn.tokens[at];
  const target = /** @type {HTMLElement} */ (event.currentTarget);
  if (!token) return;
  const rest = token.top.some(other => other.text === token.text) ? token.top : [{ text: token.text, logprob: token.logprob }, ...token.top];
  const box = h("div", { class: "alts", role: "dialog", "aria-label": "What else it could have been" },
    ...rest.map(other => h("button", { onclick: () => branch(column, turn, index, at, other.text === token.text ? null : other.text) },
      h("span", { class: "text" }, visible(other.text) || "∅"), h("meter", { min: 0, max: 1, value: Math.exp(other.logprob) }), h("span", { class: "p" }, probability(other.logprob)))),
    h("button", { onclick: () => branch(column, turn, index, at, undefined) }, "Sample again from here"));
  document.body.append(box);
  const place = target.getBoundingClientRect();
  box.style.left = `${Math.max(8, Math.min(place.left + scrollX, innerWidth - box.offsetWidth - 12))}px`;
  box.style.top = `${place.bottom + scrollY + 4}px`;
  box.querySelector("button")?.focus();
  box.addEventListener("keydown", key => { if (key.key === "Escape") { closeAlternatives(); target.focus(); } });
  setTimeout(() => document.addEventListener("click", closeAlternatives, { once: true }));
}

function closeAlternatives() {
  document.querySelector(".alts")?.remove();
}

/**
 * Goes on from a token: with another one in its place, with the same (`null`), or without (`undefined`).
 * @param {Column} column @param {import("./stream.js").Answer} turn @param {number} index @param {number} at @param {string | null | undefined} text
 */
async function branch(column, turn, index, at, text) {
  closeAlternatives();
  try {
    let id = text === null ? turn.ids[at] : undefined;
    if (typeof text === "string") {
      const found = await tokenId(column.model, text);
      if (found === null) throw new Error(`${JSON.stringify(text)} is no token by itself: the model's tokenizer writes it otherwise`);
      id = found;
    }
    column.stop?.abort();
    const next = emptyAnswer();
    next.promptIds = turn.promptIds;
    next.ids = turn.ids.slice(0, at);
    next.tokens = turn.tokens.slice(0, at);
    if (id !== undefined) {
      next.ids.push(id);
      const old = turn.tokens[at];
      if (old) next.tokens.push({ ...old, text: text ?? old.text, logprob: text ? old.top.find(other => other.text === text)?.logprob ?? NaN : old.logprob });
    }
    next.content = next.tokens.map(token => token.text).join("");
    column.turns = [...column.turns.slice(0, index), next];
    await run(column, next, (signal, changed) => goOn(column.model, settings(), next, changed, signal));
  } catch (error) {
    toast(error instanceof Error ? error.message : String(error));
  }
}

/** @param {Column} column */
async function ask(column) {
  let given;
  try {
    given = tools();
  } catch (error) {
    toast(error instanceof Error ? error.message : String(error));
    return;
  }
  const sent = messages(column), next = emptyAnswer();
  column.turns.push(next);
  await run(column, next, (signal, changed) => chat(column.model, sent, given ? { ...settings(), tools: given } : settings(), next, changed, signal));
}

/** @param {Column} column @param {import("./stream.js").Answer} next @param {(signal: AbortSignal, changed: () => void) => Promise<void>} work */
async function run(column, next, work) {
  const stop = new AbortController();
  column.stop = stop;
  running();
  column.redraw();
  await work(stop.signal, column.redraw);
  next.isStreaming = false;
  if (column.stop === stop) column.stop = null;
  running();
  column.redraw();
}

function running() {
  const isRunning = columns.some(column => column.stop);
  button("stop").hidden = !isRunning;
  button("send").hidden = isRunning;
}

const prompt = /** @type {HTMLTextAreaElement} */ (byId("prompt"));
prompt.addEventListener("input", () => {
  prompt.style.height = "auto";
  prompt.style.height = `${prompt.scrollHeight}px`;
});
prompt.addEventListener("keydown", event => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    byId("composer").dispatchEvent(new Event("submit", { cancelable: true }));
  }
});
byId("composer").addEventListener("submit", event => {
  event.preventDefault();
  const text = prompt.value;
  if (!text.trim() || columns.some(column => column.stop) || models.length === 0) return;
  prompt.value = "";
  prompt.style.height = "auto";
  for (const column of columns) {
    column.turns.push({ role: "user", content: text });
    ask(column);
  }
});
button("stop").addEventListener("click", () => columns.forEach(column => column.stop?.abort()));
button("add-column").addEventListener("click", () => {
  const other = models.find(model => !columns.some(column => column.model === model.id)) ?? models[0];
  if (other) addColumn(other.id);
  remember();
});
button("clear").addEventListener("click", () => {
  for (const column of columns) {
    column.stop?.abort();
    column.turns = [];
    show(column);
  }
});
button("save").addEventListener("click", () => {
  const lines = columns.filter(column => column.turns.some(turn => turn.role === "assistant")).map(column => JSON.stringify({ messages: messages(column) }));
  if (lines.length === 0) toast("There is no answer to save yet");
  else download("conversation.jsonl", new Blob([lines.join("\n") + "\n"], { type: "application/jsonl" }));
});
select("show").addEventListener("change", () => columns.forEach(show));
onKeys([
  { key: "/", what: "Write a message", run: () => prompt.focus() },
  { key: "v", what: "Text or tokens", run: () => {
    const field = select("show");
    field.value = field.value === "text" ? "tokens" : "text";
    columns.forEach(show);
  } },
]);

try {
  const found = await call("/v1/models");
  models = found.data;
  const asked = new URLSearchParams(location.search).getAll("model"), isHere = (/** @type {string} */ model) => models.some(one => one.id === model);
  const wanted = asked.filter(isHere).slice(0, MOST_COLUMNS), missing = asked.find(model => !isHere(model));
  if (missing !== undefined) fill(byId("note"), h("div", { class: "note warn" }, theirs(missing, 120), " cannot be talked to. A run can once its client has called save_weights_for_sampler, for as long as that checkpoint is there."));
  if (models.length === 0) fill(byId("note"), h("div", { class: "note" }, "This server has no model to talk to."));
  for (const model of wanted.length ? wanted : [models[0]?.id ?? ""]) if (model) addColumn(model);
} catch (error) {
  failed(byId("note"), error);
}
showColumns();
