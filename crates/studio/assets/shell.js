// What every page has: the theme, keyboard shortcuts and their list, copying, asking before something is lost.

import { byId, fill, h, said } from "./dom.js";

/** @typedef {{key: string, what: string, run: () => void}} Shortcut */

/** @type {Shortcut[]} */
const shortcuts = [
  { key: "g r", what: "Go to the runs", run: () => location.assign("/") },
  { key: "g p", what: "Go to the playground", run: () => location.assign("/playground") },
  { key: "g s", what: "Go to the server", run: () => location.assign("/server") },
  { key: "t", what: "Change the theme", run: () => nextTheme() },
  { key: "?", what: "Show this list", run: () => help() },
];

/** Adds shortcuts of a page; those of the page come first in the list. @param {Shortcut[]} more */
export function onKeys(more) {
  shortcuts.unshift(...more);
}

let pending = "";
document.addEventListener("keydown", event => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
  const at = /** @type {HTMLElement} */ (event.target);
  if (at.closest("input:not([type=checkbox]), textarea, select, dialog")) {
    if (event.key === "Escape") at.blur();
    return;
  }
  const typed = pending ? `${pending} ${event.key}` : event.key;
  pending = "";
  const found = shortcuts.find(shortcut => shortcut.key === typed);
  if (found) {
    event.preventDefault();
    found.run();
  } else if (shortcuts.some(shortcut => shortcut.key.startsWith(`${event.key} `))) {
    pending = event.key;
    setTimeout(() => { pending = ""; }, 1200);
  }
});

function help() {
  const keys = h("div", { class: "keys" });
  for (const shortcut of shortcuts) {
    keys.append(h("span", {}, ...shortcut.key.split(" ").flatMap(key => [h("kbd", {}, key), " "])), h("span", {}, shortcut.what));
  }
  dialog("Keyboard shortcuts", [keys], [{ words: "Close" }]);
}

/**
 * Opens a dialog, and resolves to the place of the button that closed it; -1 for Escape.
 * @param {string} title @param {import("./dom.js").Child[]} content
 * @param {{words: string, kind?: string}[]} actions
 * @returns {Promise<number>}
 */
export function dialog(title, content, actions) {
  return new Promise(done => {
    const box = h("dialog", { "aria-label": title }, h("h2", {}, title), ...content);
    const row = h("div", { class: "actions" });
    actions.forEach((action, index) => row.append(h("button", { class: action.kind ?? "", onclick: () => close(index) }, action.words)));
    box.append(row);
    let answer = -1;
    /** @param {number} index */
    const close = index => { answer = index; box.close(); };
    box.addEventListener("close", () => { box.remove(); done(answer); });
    document.body.append(box);
    box.showModal();
  });
}

/**
 * Asks before something is lost, and says what.
 * @param {string} title @param {import("./dom.js").Child[]} lost @param {string} words
 */
export async function confirmLoss(title, lost, words) {
  return await dialog(title, lost, [{ words: "Keep it" }, { words, kind: "danger main" }]) === 1;
}

/** Says something in passing. @param {string} words */
export function toast(words) {
  document.querySelector(".toast")?.remove();
  const box = h("div", { class: "toast", role: "status" }, words);
  document.body.append(box);
  setTimeout(() => box.remove(), 3500);
}

/** @param {string} text */
export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // Without TLS, only this machine may use the clipboard; the old way works everywhere.
    const area = h("textarea", { class: "visually-hidden" });
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  toast("Copied");
}

/**
 * A command with a button that copies it.
 * @param {string} line @param {string} [what]
 */
export function command(line, what) {
  return h("div", { class: "command" }, what && h("span", { class: "what" }, what), h("code", { class: "bdi" }, line),
    h("button", { class: "tiny plain", "aria-label": `Copy: ${line.slice(0, 80)}`, onclick: () => copy(line) }, "Copy"));
}

/** Shows what went wrong in a place. @param {Element} place @param {unknown} error */
export function failed(place, error) {
  fill(place, h("div", { class: "note bad", role: "alert" }, said(error instanceof Error ? error.message : String(error))));
}

const THEMES = ["auto", "light", "dark"];

function theme() {
  try {
    return localStorage.getItem("theme") ?? "auto";
  } catch {
    return "auto";
  }
}

function nextTheme() {
  const next = THEMES[(THEMES.indexOf(theme()) + 1) % THEMES.length] ?? "auto";
  try {
    localStorage.setItem("theme", next);
  } catch {
    // A browser that keeps nothing shows the theme for as long as the page is open.
  }
  setTheme(next);
  toast(`Theme: ${next === "auto" ? "as the system" : next}`);
}

/** @param {string} wanted */
function setTheme(wanted) {
  if (wanted === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = wanted;
}

// The document is not parsed yet when `theme.js` runs; here the buttons are there.
document.getElementById("theme")?.addEventListener("click", nextTheme);
document.getElementById("help")?.addEventListener("click", help);
document.getElementById("logout")?.addEventListener("click", async () => {
  await fetch("/logout", { method: "POST", headers: { "X-Tinkrs-Studio": "1" } });
  location.assign("/login");
});
for (const place of document.querySelectorAll("[data-copy]")) {
  place.addEventListener("click", () => copy(place.getAttribute("data-copy") ?? ""));
}
for (const time of document.querySelectorAll("time[datetime]")) {
  const date = new Date(time.getAttribute("datetime") ?? "");
  if (!Number.isNaN(date.getTime())) time.textContent = date.toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "short" });
}

/**
 * Tabs of a page, kept in the address.
 * @param {(name: string) => void} opened
 */
export function tabs(opened) {
  const list = byId("tabs");
  const all = [...list.querySelectorAll("button")];
  /** @param {string} name @param {boolean} [focus] */
  const open = (name, focus) => {
    const known = all.some(tab => tab.dataset.tab === name) ? name : all[0]?.dataset.tab ?? "";
    for (const tab of all) {
      const isOpen = tab.dataset.tab === known;
      tab.setAttribute("aria-selected", String(isOpen));
      tab.tabIndex = isOpen ? 0 : -1;
      byId(`tab-${tab.dataset.tab}`).hidden = !isOpen;
      if (isOpen) tab.scrollIntoView({ block: "nearest", inline: "nearest" });
      if (isOpen && focus) tab.focus();
    }
    opened(known);
  };
  for (const [index, tab] of all.entries()) {
    tab.addEventListener("click", () => {
      history.replaceState(null, "", `#${tab.dataset.tab}`);
      open(tab.dataset.tab ?? "");
    });
    tab.addEventListener("keydown", event => {
      const move = event.key === "ArrowRight" ? 1 : event.key === "ArrowLeft" ? -1 : 0;
      const next = all[(index + move + all.length) % all.length];
      if (move && next) {
        history.replaceState(null, "", `#${next.dataset.tab}`);
        open(next.dataset.tab ?? "", true);
      }
    });
  }
  window.addEventListener("hashchange", () => open(location.hash.slice(1)));
  open(location.hash.slice(1));
  return open;
}
