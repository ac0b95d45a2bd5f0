// The server: what is in memory and in the queues, how fast it is, what is wrong. Read anew every two seconds while the page
// can be seen.

import { call } from "./api.js";
import { byId, count, cut, duration, fill, h, number, size, theirs } from "./dom.js";
import { listen } from "./live.js";
import { failed } from "./shell.js";

const EVERY = 2000;
const place = byId("server");

/** @param {string} name */
const title = name => {
  const words = name.replace(/_(ms|bytes|seconds)$/, "").replaceAll("_", " ");
  return words.charAt(0).toUpperCase() + words.slice(1);
};

/** A value in words that fit its name. @param {string} name @param {unknown} value @returns {import("./dom.js").Child} */
function value(name, value) {
  if (value === null || value === undefined || value === "") return "–";
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (typeof value === "number") {
    if (/bytes|size|limit_b/.test(name)) return size(value);
    if (/_ms$/.test(name)) return duration(value);
    if (/seconds$|uptime/.test(name)) return duration(value * 1000);
    return Number.isInteger(value) ? count(value) : number(value);
  }
  if (typeof value === "string") return theirs(value, 500);
  if (Array.isArray(value)) return value.length ? h("span", {}, ...value.flatMap((one, index) => [index ? ", " : "", theirs(typeof one === "object" ? JSON.stringify(one) : one, 120)])) : "none";
  return theirs(JSON.stringify(value), 500);
}

/** @param {string} name @param {any[]} rows */
function table(name, rows) {
  if (rows.length === 0) return h("p", { class: "soft pad" }, "None.");
  if (typeof rows[0] !== "object") return h("ul", { class: "pad" }, ...rows.map(row => h("li", {}, value(name, row))));
  const columns = [...new Set(rows.flatMap(row => Object.keys(row)))];
  const isNumber = (/** @type {string} */ column) => rows.some(row => typeof row[column] === "number");
  return h("div", { class: "scroll" }, h("table", {}, h("thead", {}, h("tr", {}, ...columns.map(column => h("th", { class: isNumber(column) ? "num" : "" }, title(column))))),
    h("tbody", {}, ...rows.slice(0, 200).map(row => h("tr", {}, ...columns.map(column => h("td", { class: isNumber(column) ? "num" : "" }, value(column, row[column]))))))));
}

/** @param {string} name @param {Record<string, unknown>} object @returns {HTMLElement} */
function facts(name, object) {
  const plain = Object.entries(object).filter(([, one]) => one === null || typeof one !== "object" || (Array.isArray(one) && typeof one[0] !== "object"));
  const nested = Object.entries(object).filter(([, one]) => one !== null && typeof one === "object" && !(Array.isArray(one) && typeof one[0] !== "object"));
  return h("div", {}, gauge(name, object), h("table", { class: "facts" }, h("tbody", {}, ...plain.map(([key, one]) => h("tr", {}, h("th", { scope: "row" }, title(key)), h("td", {}, value(key, one)))))),
    ...nested.map(([key, one]) => h("div", {}, h("div", { class: "panel-head" }, h("h3", {}, title(key))), Array.isArray(one) ? table(key, one) : facts(key, /** @type {Record<string, unknown>} */ (one)))));
}

/** Parts of a whole, where an object has `limit` and parts in bytes. @param {string} name @param {Record<string, any>} object */
function gauge(name, object) {
  const limit = object.limit_bytes ?? object.limit;
  if (name !== "memory" || typeof limit !== "number" || limit <= 0) return null;
  /** @type {[string, number][]} */
  const parts = Array.isArray(object.uses) ? object.uses.map(use => [use.name ?? use.use, use.bytes])
    : Object.entries(object).filter(([key, one]) => /_bytes$/.test(key) && !/limit|used|total|free/.test(key) && typeof one === "number").map(([key, one]) => [title(key), one]);
  const bar = h("div", { class: "gauge", role: "img", "aria-label": parts.map(([words, bytes]) => `${words}: ${size(bytes)}`).join(", ") });
  parts.forEach(([words, bytes], index) => {
    const piece = h("i", { class: `k${index % 8}`, title: `${words}: ${size(bytes)}` });
    piece.style.width = `${Math.min(bytes / limit * 100, 100)}%`;
    bar.append(piece);
  });
  return h("div", { class: "pad-in" }, bar, h("div", { class: "legend" }, ...parts.map(([words, bytes], index) => h("span", { class: `key k${index % 8}` }, `${cut(words, 40)} ${size(bytes)}`))));
}

/** @param {any} finding */
function finding(finding) {
  if (typeof finding === "string") return h("div", { class: "note warn" }, theirs(finding, 1000));
  const kind = /bad|error|fail/.test(String(finding.level ?? finding.severity ?? "")) ? "bad" : /ok|good|info/.test(String(finding.level ?? finding.severity ?? "")) ? "" : "warn";
  return h("div", { class: `note ${kind}` }, h("b", {}, theirs(finding.title ?? finding.name ?? finding.what ?? "", 200)), " ", theirs(finding.text ?? finding.message ?? finding.detail ?? "", 1000), finding.hint ? h("div", { class: "small" }, theirs(finding.hint, 500)) : null);
}

async function load() {
  try {
    const server = await call("/api/v1/studio/server");
    fill(byId("note"));
    const versions = server.versions ?? {};
    byId("versions").textContent = Object.entries(versions).map(([name, version]) => `${name} ${typeof version === "object" ? JSON.stringify(version) : version}`).join(" · ").slice(0, 200);
    const parts = Object.entries(server).filter(([name]) => name !== "findings" && name !== "versions");
    const single = parts.filter(([, one]) => one === null || typeof one !== "object");
    const small = parts.filter(([, one]) => one && typeof one === "object" && !Array.isArray(one));
    const lists = parts.filter(([, one]) => Array.isArray(one));
    const findings = Array.isArray(server.findings) ? server.findings : [];
    fill(place,
      h("section", { class: "panel" }, h("h2", {}, "Findings"), h("div", { class: "pad-in stack" }, ...(findings.length ? findings.map(finding) : [h("p", { class: "good" }, "Nothing is wrong.")]))),
      single.length > 0 && h("section", { class: "panel pad" }, h("dl", { class: "figures" }, ...single.map(([name, one]) => h("div", { class: "figure" }, h("dt", {}, title(name)), h("dd", {}, value(name, one)))))),
      h("div", { class: "grid2" }, ...small.map(([name, one]) => h("section", { class: "panel" }, h("h2", {}, title(name)), facts(name, one)))),
      ...lists.map(([name, one]) => h("section", { class: "panel" }, h("h2", {}, title(name)), table(name, one))));
  } catch (error) {
    if (place.childElementCount === 0) failed(byId("note"), error);
  }
}

setInterval(() => { if (!document.hidden) load(); }, EVERY);
listen(null, { again: load });
load();
