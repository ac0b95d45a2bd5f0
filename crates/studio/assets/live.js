// What happens on the server, as it happens. The browser reconnects by itself after a lost connection, but not after an
// answer that is an error (a server that is starting, or behind a proxy): that is done here, with growing pauses.

import { Refused, send } from "./api.js";
import { byId, fill, h } from "./dom.js";

/** @typedef {{metrics?: (data: any) => void, operation?: (data: any) => void, run?: (data: any) => void, again?: () => void}} Handlers */

/** Whether the page may stay connected while it cannot be seen, and for how long in ms. */
const UNSEEN = 15e3;

/**
 * Listens to the events of the caller's runs. `again` is called when a connection was lost and is there again: what happened
 * in between is to be read anew.
 * @param {string | null} run
 * @param {Handlers} handlers
 */
export function listen(run, handlers) {
  const path = run ? `/api/v1/studio/events?run=${encodeURIComponent(run)}` : "/api/v1/studio/events";
  // An event source does not say why it failed. This does, and leads to the login where that has ended.
  const known = run ? `/api/v1/training_runs/${encodeURIComponent(run)}` : "/api/v1/studio/runs?limit=1";
  /** @type {EventSource | null} */
  let source = null;
  // A page that opens unseen listens once it is looked at: a browser has six connections for all pages of a server. What
  // such a page has read is old by then.
  let pause = 500, timer = 0, hiddenTimer = 0, wasOpen = document.hidden;

  const connect = () => {
    clearTimeout(timer);
    source?.close();
    source = new EventSource(path);
    source.addEventListener("open", () => {
      pause = 500;
      show("open", "live");
      if (wasOpen) handlers.again?.();
      wasOpen = true;
    });
    for (const name of /** @type {const} */ (["metrics", "operation", "run"])) {
      source.addEventListener(name, event => handlers[name]?.(JSON.parse(event.data)));
    }
    source.addEventListener("error", () => {
      show("waiting", "reconnecting");
      source?.close();
      timer = setTimeout(async () => {
        try {
          await send(known);
        } catch (error) {
          if (error instanceof Refused && [401, 403].includes(error.status)) {
            show("ended", "login or link has ended");
            return;
          }
        }
        connect();
      }, pause);
      pause = Math.min(pause * 1.7, 10e3);
    });
  };
  document.addEventListener("visibilitychange", () => {
    clearTimeout(hiddenTimer);
    if (!document.hidden) {
      if (!source || source.readyState === EventSource.CLOSED) connect();
      return;
    }
    hiddenTimer = setTimeout(() => {
      clearTimeout(timer);
      source?.close();
    }, UNSEEN);
  });
  if (!document.hidden) connect();
}

/** @param {string} state @param {string} words */
function show(state, words) {
  const place = byId("live");
  place.dataset.state = state;
  place.title = words;
  fill(place, h("span", {}, words));
}
