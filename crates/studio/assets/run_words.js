// How a run's figures are said, in the list and on its page.

import { number, size } from "./dom.js";

/** What a run is about: its reward if it has one, else its loss. @param {Record<string, number>} last */
export function headline(last) {
  for (const name of ["reward", "env/all/reward/total", "loss", "train_mean_nll"]) {
    const value = last[name];
    if (value !== undefined) return { label: name.includes("reward") ? "reward" : "loss", value };
  }
  return { label: "loss", value: null };
}

/** @param {any} amount */
export function cost(amount) {
  if (amount === null || amount === undefined) return "–";
  if (typeof amount === "number") return amount === 0 ? "–" : `$${number(amount)}`;
  if (typeof amount === "string") return amount;
  if (amount.usd !== undefined) return `$${number(amount.usd)}`;
  return amount.bytes !== undefined ? size(amount.bytes) : "–";
}
