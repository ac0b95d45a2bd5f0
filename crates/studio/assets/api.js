// The server's API, with the cookie of the page.

/** What the server refused, in its own words. */
export class Refused extends Error {
  /** @param {number} status @param {string} message */
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

/**
 * Calls an endpoint and returns its JSON.
 * @param {string} path
 * @param {{method?: string, body?: unknown, signal?: AbortSignal}} [options]
 * @returns {Promise<any>}
 */
export async function call(path, options = {}) {
  const response = await send(path, options);
  return response.status === 204 ? {} : response.json();
}

/**
 * Calls an endpoint and returns its response, once it is known to be a good one.
 * @param {string} path
 * @param {{method?: string, body?: unknown, signal?: AbortSignal}} [options]
 */
export async function send(path, { method, body, signal } = {}) {
  /** @type {Record<string, string>} */
  const headers = { "X-Tinkrs-Studio": "1" };
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let response;
  try {
    response = await fetch(path, {
      method: method ?? (body === undefined ? "GET" : "POST"),
      headers, signal, body: body === undefined ? undefined : JSON.stringify(body),
    });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Refused(0, "the server cannot be reached");
  }
  if (response.ok) return response;
  if (response.status === 401 && document.body.dataset.shared === undefined) {
    location.assign(`/login?next=${encodeURIComponent(location.pathname + location.search)}`);
  }
  throw new Refused(response.status, await reason(response));
}

/** @param {Response} response */
async function reason(response) {
  const text = await response.text();
  try {
    const body = JSON.parse(text);
    const said = body.detail ?? body.error?.message ?? body.message;
    if (typeof said === "string") return said;
  } catch {
    // Not JSON: shown as it is.
  }
  return text.slice(0, 300) || `status ${response.status}`;
}

/**
 * Reads the `data:` lines of a response as they come.
 * @param {Response} response
 * @param {(data: string) => void} each
 */
export async function events(response, each) {
  if (!response.body) return;
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop() ?? "";
    for (const line of lines) if (line.startsWith("data:")) each(line.slice(5).trim());
  }
}

/** A part of a path. @param {string} text */
export const part = text => encodeURIComponent(text);
