// Elements from data. Text only ever becomes text: nothing here parses markup.

/** @typedef {Node | string | number | null | undefined | false} Child */
/** @typedef {Record<string, string | number | boolean | null | undefined | ((event: any) => void)>} Props */

/**
 * Makes an element. `on…` properties are listeners, `true` is an empty attribute, `null` and `false` are left out.
 * @template {keyof HTMLElementTagNameMap} K
 * @param {K} tag
 * @param {Props} [props]
 * @param {...Child} children
 * @returns {HTMLElementTagNameMap[K]}
 */
export function h(tag, props, ...children) {
  const element = document.createElement(tag);
  assign(element, props);
  append(element, children);
  return element;
}

/**
 * Makes an element of SVG.
 * @template {keyof SVGElementTagNameMap} K
 * @param {K} tag
 * @param {Props} [props]
 * @param {...Child} children
 * @returns {SVGElementTagNameMap[K]}
 */
export function s(tag, props, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  assign(element, props);
  append(element, children);
  return element;
}

/** @param {Element} element @param {Props} [props] */
function assign(element, props) {
  for (const [name, value] of Object.entries(props ?? {})) {
    if (typeof value === "function") element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) {
      element.setAttribute(name, value === true ? "" : String(value));
    }
  }
}

/** @param {Element} element @param {Child[]} children */
function append(element, children) {
  for (const child of children) {
    if (child === null || child === undefined || child === false) continue;
    element.append(typeof child === "number" ? String(child) : child);
  }
}

/**
 * Replaces what is in an element.
 * @template {Element} E
 * @param {E} element @param {...Child} children
 */
export function fill(element, ...children) {
  element.replaceChildren();
  append(element, children);
  return element;
}

/**
 * Makes a node like a fresh one, and returns the one that is in the page now. What is the same stays: what has the focus, is
 * pressed or selected. Listeners are not compared, so those of a node must hold for every fresh one that takes its place;
 * controls that differ are replaced.
 * @template {ChildNode} N
 * @param {N} old @param {N} fresh
 * @returns {N}
 */
export function morph(old, fresh) {
  if (old.isEqualNode(fresh)) return old;
  if (!(old instanceof Element && fresh instanceof Element) || old.nodeName !== fresh.nodeName || old.matches("a, button, input, select, textarea")) {
    old.replaceWith(fresh);
    return fresh;
  }
  for (const name of old.getAttributeNames()) if (!fresh.hasAttribute(name)) old.removeAttribute(name);
  for (const name of fresh.getAttributeNames()) {
    const value = fresh.getAttribute(name) ?? "";
    if (old.getAttribute(name) === value) continue;
    // The policy of the pages forbids styles that come as text of an attribute.
    if (name === "style" && old instanceof HTMLElement) old.style.cssText = value;
    else old.setAttribute(name, value);
  }
  const [before, after] = [[...old.childNodes], [...fresh.childNodes]];
  after.forEach((child, index) => {
    const known = before[index];
    if (known) morph(known, child);
    else old.append(child);
  });
  for (const child of before.slice(after.length)) child.remove();
  return old;
}

/**
 * Puts nodes into an element in this order, and moves as few as it can: one that is moved loses the focus.
 * @param {Element} place @param {Node[]} nodes
 */
export function arrange(place, nodes) {
  const wanted = new Set(nodes);
  for (const child of [...place.childNodes]) if (!wanted.has(child)) child.remove();
  /** @type {Node | null} */
  let at = place.firstChild;
  for (const node of nodes) {
    if (node === at) at = at.nextSibling;
    else place.insertBefore(node, at);
  }
}

/**
 * Finds an element that the page has.
 * @param {string} id
 * @returns {HTMLElement}
 */
export function byId(id) {
  const found = document.getElementById(id);
  if (!found) throw new Error(`the page has no #${id}`);
  return found;
}

/** @param {string} id @returns {HTMLInputElement} */
export const input = id => /** @type {HTMLInputElement} */ (byId(id));
/** @param {string} id @returns {HTMLSelectElement} */
export const select = id => /** @type {HTMLSelectElement} */ (byId(id));
/** @param {string} id @returns {HTMLButtonElement} */
export const button = id => /** @type {HTMLButtonElement} */ (byId(id));

/**
 * Text of others: isolated, so that its direction changes nothing around it, and cut to a bearable length.
 * @param {unknown} text @param {number} [most]
 */
export function theirs(text, most = 200) {
  return h("bdi", {}, cut(text, most));
}

/**
 * What the server says, with names between backquotes as code.
 * @param {unknown} text @param {number} [most]
 */
export function said(text, most = 1000) {
  const parts = cut(text, most).split("`");
  if (parts.length % 2 === 0) return theirs(text, most);
  return h("bdi", {}, ...parts.map((part, index) => index % 2 ? h("code", {}, part) : part));
}

/** @param {unknown} text @param {number} [most] */
export function cut(text, most = 200) {
  const whole = String(text ?? "");
  if (whole.length <= most) return printable(whole);
  // Not within a pair of code units.
  return printable(Array.from(whole.slice(0, most)).join("")) + "…";
}

/** Shows control characters as what they are, rather than as nothing. @param {string} text */
export function printable(text) {
  return text.replace(/[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u202a-\u202e\u2066-\u2069]/g, "\ufffd");
}

/**
 * Four significant digits.
 * @param {number | null | undefined} value
 */
export function number(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  if (value === 0) return "0";
  const digits = Math.floor(Math.log10(Math.abs(value)));
  if (digits < -4 || digits >= 7) return minus(value.toExponential(2).replace(/\.?0*e\+?/, "e"));
  const text = value.toFixed(Math.max(3 - digits, 0));
  return minus(text.includes(".") ? text.replace(/\.?0+$/, "") : text);
}

/** @param {string} text */
const minus = text => text.replace("-", "−");

/** Whole numbers with thousands apart. @param {number | null | undefined} value */
export function count(value) {
  if (value === null || value === undefined) return "–";
  return Math.round(value).toLocaleString("en").replace(/,/g, "\u202f");
}

/** @param {number | null | undefined} bytes */
export function size(bytes) {
  if (bytes === null || bytes === undefined) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (bytes >= 1024 && unit < units.length - 1) {
    bytes /= 1024;
    unit += 1;
  }
  return `${unit ? number(Number(bytes.toPrecision(3))) : bytes} ${units[unit]}`;
}

/** A length of time. @param {number | null | undefined} ms */
export function duration(ms) {
  if (ms === null || ms === undefined || Number.isNaN(ms)) return "–";
  if (ms < 1) return "0 ms";
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 60e3) return `${(ms / 1000).toFixed(ms < 10e3 ? 2 : 1)} s`;
  if (ms < 3600e3) return `${Math.floor(ms / 60e3)} min ${Math.round((ms % 60e3) / 1000)} s`;
  if (ms < 48 * 3600e3) return `${Math.floor(ms / 3600e3)} h ${Math.round((ms % 3600e3) / 60e3)} min`;
  return `${Math.round(ms / 86400e3)} days`;
}

/** How long ago it was. @param {number | string | null | undefined} time */
export function ago(time) {
  if (time === null || time === undefined) return "–";
  const ms = Date.now() - moment(time);
  if (ms < 5e3) return "now";
  if (ms < 60e3) return `${Math.round(ms / 1000)} s`;
  if (ms < 3600e3) return `${Math.round(ms / 60e3)} min`;
  if (ms < 48 * 3600e3) return `${Math.round(ms / 3600e3)} h`;
  return `${Math.round(ms / 86400e3)} d`;
}

/** Milliseconds since 1970, of what the API has for a time. @param {number | string} time */
export function moment(time) {
  return typeof time === "number" ? time : Date.parse(time);
}

/** @param {number | string | null | undefined} time */
export function clock(time) {
  if (time === null || time === undefined) return "–";
  const date = new Date(moment(time));
  return Number.isNaN(date.getTime()) ? "–" : date.toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "medium" });
}

/**
 * Gives a file to the browser to save.
 * @param {string} name @param {Blob} content
 */
export function download(name, content) {
  const link = h("a", { href: URL.createObjectURL(content), download: name.replace(/[^\w.-]+/g, "_").slice(0, 100) });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 10e3);
}

/**
 * Runs something once when calls stop for a moment.
 * @param {() => void} work @param {number} ms
 */
export function settled(work, ms) {
  let timer = 0;
  return () => {
    clearTimeout(timer);
    timer = setTimeout(work, ms);
  };
}

/**
 * Runs something at most once in a while, and once after the last call.
 * @param {() => void} work @param {number} ms
 */
export function paced(work, ms) {
  let timer = 0;
  return () => {
    timer ||= setTimeout(() => {
      timer = 0;
      work();
    }, ms);
  };
}

/** At most once in a frame. @param {() => void} work */
export function eachFrame(work) {
  let asked = false;
  return () => {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => {
      asked = false;
      work();
    });
  };
}
