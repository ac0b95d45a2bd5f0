// Tokens as text, coloured by a number that each has.

import { count, fill, h, number } from "./dom.js";

/** @typedef {{id: number | null, text: string}} Token */
/** @typedef {"weight" | "logprob" | "advantage" | "difference"} Measure */

/** More than this at once make a page slow. */
const MOST = 3000;

/**
 * The class of a token by its number: five steps of strength.
 * @param {Measure} measure @param {number | null | undefined} value @param {number} most the largest size of a number among the tokens
 */
export function shade(measure, value, most) {
  if (value === null || value === undefined || Number.isNaN(value)) return "off";
  if (measure === "weight") return value === 0 ? "off" : `h${level(Math.abs(value) / (most || 1))}`;
  // A probability of 1 is nothing to look at; of 1/1000 or less, everything.
  if (measure === "logprob") return value > -0.02 ? "" : `m${level(Math.min(-value / 7, 1))}`;
  if (value === 0) return "";
  return `${value > 0 ? "p" : "m"}${level(Math.abs(value) / (most || 1))}`;
}

/** @param {number} share 0 to 1 */
function level(share) {
  return Math.min(Math.max(Math.ceil(share * 5), 1), 5);
}

/** Shows line breaks and what cannot be seen. @param {string} text */
export function visible(text) {
  return text.replace(/\n/g, "⏎\n").replace(/\t/g, "⇥\t").replace(/[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u202a-\u202e\u2066-\u2069]/g, "\ufffd");
}

/** Whether a token is one of the chat format. @param {string} text */
export const isSpecial = text => /^<[|｜]?[^<>\s]{1,40}[|｜]?>$/.test(text);

/**
 * A text of tokens.
 * @param {Token[]} tokens @param {(number | null | undefined)[] | null | undefined} values @param {Measure} measure
 * @param {(index: number) => string} say what a token's title says
 * @param {number} [most] the size that has the full colour; by default the largest
 */
export function tokenText(tokens, values, measure, say, most) {
  const largest = most ?? Math.max(...(values ?? []).slice(0, 100000).map(value => Math.abs(value ?? 0)), 0);
  const box = h("div", { class: "tokens", dir: "auto" });
  const add = (/** @type {number} */ from, /** @type {number} */ to) => {
    tokens.slice(from, to).forEach((token, offset) => {
      const index = from + offset;
      const special = isSpecial(token.text) ? " special" : "";
      box.append(h("span", { class: `t ${values ? shade(measure, values[index], largest) : ""}${special}`, title: say(index) }, visible(token.text)));
    });
  };
  add(0, MOST);
  if (tokens.length > MOST) {
    const rest = h("button", { class: "tiny", onclick: () => { rest.remove(); add(MOST, tokens.length); } }, `Show ${count(tokens.length - MOST)} more tokens`);
    box.append(rest);
  }
  return box;
}

/**
 * What the colours mean.
 * @param {HTMLElement} place @param {Measure} measure
 */
export function scale(place, measure) {
  const steps = [1, 2, 3, 4, 5];
  /** @type {Record<Measure, [string, string, string]>} */
  const words = { weight: ["h", "no loss", "full weight"], logprob: ["m", "sure", "surprised"], advantage: ["p", "0", "good"], difference: ["p", "same", "trainer is surer"] };
  const [kind, low, high] = words[measure];
  const isSigned = measure === "advantage" || measure === "difference";
  fill(place, isSigned && h("span", {}, measure === "advantage" ? "bad" : "sampler is surer"), isSigned && h("span", {}, ...[...steps].reverse().map(step => h("i", { class: `m${step}` }))),
    h("span", {}, low), h("span", {}, ...steps.map(step => h("i", { class: `${kind}${step}` }))), h("span", {}, high));
}

/**
 * The differences of two lists, by their longest common part. Lists that are too long for it are only compared at their ends.
 * @template T
 * @param {T[]} one @param {T[]} other @param {(a: T, b: T) => boolean} same
 * @returns {{kind: "same" | "removed" | "added", item: T}[]}
 */
export function difference(one, other, same) {
  let start = 0;
  while (start < one.length && start < other.length && same(/** @type {T} */ (one[start]), /** @type {T} */ (other[start]))) start += 1;
  let end = 0;
  while (end < one.length - start && end < other.length - start && same(/** @type {T} */ (one[one.length - 1 - end]), /** @type {T} */ (other[other.length - 1 - end]))) end += 1;
  const a = one.slice(start, one.length - end), b = other.slice(start, other.length - end);
  /** @type {{kind: "same" | "removed" | "added", item: T}[]} */
  const found = one.slice(0, start).map(item => ({ kind: "same", item }));
  if (a.length * b.length > 4e6) {
    found.push(...a.map(item => ({ kind: /** @type {const} */ ("removed"), item })), ...b.map(item => ({ kind: /** @type {const} */ ("added"), item })));
  } else {
    const width = b.length + 1;
    const length = new Uint16Array((a.length + 1) * width);
    for (let i = a.length - 1; i >= 0; i -= 1) {
      for (let j = b.length - 1; j >= 0; j -= 1) {
        length[i * width + j] = same(/** @type {T} */ (a[i]), /** @type {T} */ (b[j])) ? (length[(i + 1) * width + j + 1] ?? 0) + 1
          : Math.max(length[(i + 1) * width + j] ?? 0, length[i * width + j + 1] ?? 0);
      }
    }
    let i = 0, j = 0;
    while (i < a.length || j < b.length) {
      if (i < a.length && j < b.length && same(/** @type {T} */ (a[i]), /** @type {T} */ (b[j]))) {
        found.push({ kind: "same", item: /** @type {T} */ (a[i]) });
        i += 1;
        j += 1;
      } else if (j >= b.length || (i < a.length && (length[(i + 1) * width + j] ?? 0) >= (length[i * width + j + 1] ?? 0))) {
        found.push({ kind: "removed", item: /** @type {T} */ (a[i]) });
        i += 1;
      } else {
        found.push({ kind: "added", item: /** @type {T} */ (b[j]) });
        j += 1;
      }
    }
  }
  return [...found, ...one.slice(one.length - end).map(item => ({ kind: /** @type {const} */ ("same"), item }))];
}

/** @param {number | null | undefined} logprob */
export const probability = logprob => logprob === null || logprob === undefined ? "–" : logprob < Math.log(1e-4) ? "< 0.01 %" : `${number(Math.exp(logprob) * 100)} %`;
