// Makes the charts of a report live where scripts run. Without them its pictures stay.

import { PLAIN, Chart } from "./chart.js";
import { h } from "./dom.js";

/** @typedef {{title: string, curves: {name: string, points: [number, number][]}[]}} Drawing */

const data = document.getElementById("report-data");
/** @type {Drawing[]} */
const drawings = JSON.parse(data?.textContent ?? "[]");
let view = { ...PLAIN };
/** @type {(() => void)[]} */
const redraws = [];
document.querySelectorAll("[data-drawing]").forEach(place => {
  const drawing = drawings[Number(place.getAttribute("data-drawing"))];
  if (!drawing) return;
  const chart = new Chart(drawing.title, { height: 230 });
  const redraw = () => chart.set(drawing.curves.map((curve, color) => ({ label: curve.name, color, points: curve.points.map(([step, value]) => [step, value, value, value, 0]) })), view);
  redraws.push(redraw);
  place.querySelector("svg")?.replaceWith(chart.element);
  place.querySelector(".chart-head")?.append(h("div", { class: "menu" },
    h("button", { class: "plain tiny", onclick: () => chart.saveCsv() }, "CSV"), h("button", { class: "plain tiny", onclick: () => chart.savePng() }, "PNG")));
  redraw();
});

const smooth = h("input", { type: "range", min: 0, max: 99, value: 0, oninput: () => { view = { ...view, smooth: Number(smooth.value) / 100 }; redraws.forEach(redraw => redraw()); } });
const log = h("button", { class: "tiny", "aria-pressed": "false", onclick: () => {
  view = { ...view, logY: !view.logY };
  log.setAttribute("aria-pressed", String(view.logY));
  redraws.forEach(redraw => redraw());
} }, "log y");
document.getElementById("report-tools")?.append(h("label", {}, "Smoothing ", smooth), log);
