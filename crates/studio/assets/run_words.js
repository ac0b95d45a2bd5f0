// How a run's figures are said, in the list and on its page.

import { duration } from "./dom.js";

/** What a run is about: its reward if it has one, else its loss. @param {Record<string, number>} last */
export function headline(last) {
  for (const name of ["reward", "env/all/reward/total", "loss", "train_mean_nll"]) {
    const value = last[name];
    if (value !== undefined) return { label: name.includes("reward") ? "reward" : "loss", value };
  }
  return { label: "loss", value: null };
}

/** What a run has used: seconds of computing. @param {{tokens: number, seconds: number} | null | undefined} used */
export function cost(used) {
  return used && used.seconds > 0 ? duration(used.seconds * 1000) : "–";
}
