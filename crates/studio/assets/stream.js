// Answers of models as they are drawn, with their tokens.

import { events, send } from "./api.js";

/** A token of an answer, with what else it could have been. */
/** @typedef {{text: string, logprob: number, top: {text: string, logprob: number}[]}} Drawn */
/** @typedef {{id?: string, name: string, arguments: string}} Call */
/**
 * @typedef {{role: "assistant", content: string, thought: string, calls: Call[], tokens: Drawn[], ids: number[], promptIds: number[], finish: string | null,
 *   error: string | null, isStreaming: boolean, ms: number}} Answer
 */
/** @typedef {Record<string, unknown>} Settings */

/** How many alternatives are asked for. */
const TOP = 8;

/** @returns {Answer} */
export function emptyAnswer() {
  return { role: "assistant", content: "", thought: "", calls: [], tokens: [], ids: [], promptIds: [], finish: null, error: null, isStreaming: true, ms: 0 };
}

/**
 * Asks for the next message of a conversation, and fills `answer` as it comes.
 * @param {string} model @param {unknown[]} messages @param {Settings} settings @param {Answer} answer @param {() => void} changed @param {AbortSignal} signal
 */
export async function chat(model, messages, settings, answer, changed, signal) {
  const body = { model, messages, ...settings, stream: true, logprobs: true, top_logprobs: TOP, return_token_ids: true };
  await draw("/v1/chat/completions", body, answer, changed, signal, part => {
    if (part.prompt_token_ids) answer.promptIds = part.prompt_token_ids;
    const choice = part.choices?.[0];
    if (!choice) return;
    const delta = choice.delta ?? {};
    answer.content += delta.content ?? "";
    answer.thought += delta.reasoning_content ?? "";
    for (const call of delta.tool_calls ?? []) {
      const index = call.index ?? answer.calls.length;
      const known = answer.calls[index] ?? { name: "", arguments: "" };
      answer.calls[index] = { id: call.id ?? known.id, name: known.name + (call.function?.name ?? ""), arguments: known.arguments + (call.function?.arguments ?? "") };
    }
    for (const token of choice.logprobs?.content ?? []) {
      answer.tokens.push({ text: token.token, logprob: token.logprob, top: (token.top_logprobs ?? []).map((/** @type {any} */ other) => ({ text: other.token, logprob: other.logprob })) });
    }
    answer.ids.push(...(choice.token_ids ?? []));
    if (choice.finish_reason) answer.finish = choice.finish_reason;
  });
}

/**
 * Goes on from the tokens that an answer has.
 * @param {string} model @param {Settings} settings @param {Answer} answer @param {() => void} changed @param {AbortSignal} signal
 */
export async function goOn(model, settings, answer, changed, signal) {
  const body = { model, prompt: [...answer.promptIds, ...answer.ids], ...settings, stream: true, logprobs: TOP, return_token_ids: true };
  await draw("/v1/completions", body, answer, changed, signal, part => {
    const choice = part.choices?.[0];
    if (!choice) return;
    answer.content += choice.text ?? "";
    const found = choice.logprobs;
    (found?.tokens ?? []).forEach((/** @type {string} */ text, /** @type {number} */ index) => {
      const top = Object.entries(found.top_logprobs?.[index] ?? {}).map(([text, logprob]) => ({ text, logprob: Number(logprob) }));
      answer.tokens.push({ text, logprob: found.token_logprobs?.[index] ?? NaN, top });
    });
    answer.ids.push(...(choice.token_ids ?? []));
    if (choice.finish_reason) answer.finish = choice.finish_reason;
  });
}

/**
 * Finds the id of a token by its text; `null` if the text is not one token by itself.
 * @param {string} model @param {string} text
 * @returns {Promise<number | null>}
 */
export async function tokenId(model, text) {
  const read = async (/** @type {string} */ prompt) => {
    const response = await send("/v1/completions", { body: { model, prompt, max_tokens: 0, echo: true, return_token_ids: true } });
    const body = await response.json();
    return /** @type {number[]} */ (body.choices?.[0]?.prompt_token_ids ?? []);
  };
  // Some models put a token before every text: what a doubled text has in common with it tells.
  const [once, twice] = await Promise.all([read(text), read(text + text)]);
  return twice.length === once.length + 1 || once.length === 1 ? once[once.length - 1] ?? null : null;
}

/**
 * @param {string} path @param {unknown} body @param {Answer} answer @param {() => void} changed @param {AbortSignal} signal @param {(part: any) => void} take
 */
async function draw(path, body, answer, changed, signal, take) {
  const start = performance.now();
  try {
    const response = await send(path, { body, signal });
    await events(response, data => {
      if (data === "[DONE]") return;
      const part = JSON.parse(data);
      if (part.error) answer.error = part.error.message ?? "the server ended the answer";
      else take(part);
      answer.ms = performance.now() - start;
      changed();
    });
  } catch (error) {
    if (!signal.aborted) answer.error = error instanceof Error ? error.message : String(error);
    else answer.finish = "stopped";
  }
  answer.isStreaming = false;
  changed();
}
