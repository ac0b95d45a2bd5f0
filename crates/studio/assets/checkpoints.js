// The checkpoints of a run: commands for them, and what can be done with them.

import { call, part } from "./api.js";
import { ago, clock, fill, h, size, theirs } from "./dom.js";
import { command, confirmLoss, dialog, failed, toast } from "./shell.js";

/** @typedef {{checkpoint_id: string, checkpoint_type: string, time: string, tinker_path: string, size_bytes?: number, public?: boolean, expires_at?: string | null}} Checkpoint */

/** @param {HTMLElement} place @param {string} run @param {string | null} name @param {boolean} isShared */
export async function checkpoints(place, run, name, isShared) {
  try {
    const { checkpoints: all } = /** @type {{checkpoints: Checkpoint[]}} */ (await call(`/api/v1/training_runs/${part(run)}/checkpoints`));
    all.sort((a, b) => Date.parse(b.time) - Date.parse(a.time));
    if (all.length === 0) {
      fill(place, h("div", { class: "panel empty" }, h("h2", {}, "No checkpoints"), h("p", {}, "A client saves one with save_state (to go on training) or save_weights_for_sampler (to sample). What is not saved is kept only for as long as the run can be continued.")));
      return;
    }
    const again = () => checkpoints(place, run, name, isShared);
    fill(place, h("div", { class: "panel scroll" }, h("table", { class: "cards" }, h("thead", {}, h("tr", {}, h("th", {}, "Checkpoint"), h("th", {}, "For"), h("th", { class: "num" }, "Size"), h("th", { class: "num" }, "Saved"), h("th", {}, "Kept"), h("th", {}, "Read by"), h("th", {}))),
      h("tbody", {}, ...all.map(one => h("tr", {}, h("td", { class: "full" }, h("a", { class: "name", href: `/checkpoints/${part(run)}/${part(one.checkpoint_id)}` }, theirs(one.checkpoint_id, 80)), h("div", { class: "below mono" }, theirs(one.tinker_path, 120))),
        h("td", { class: "rest", "data-label": "for" }, one.checkpoint_type === "sampler" ? "sampling" : "training"), h("td", { class: "num rest", "data-label": "" }, size(one.size_bytes)), h("td", { class: "num rest", "data-label": "saved", title: clock(one.time) }, ago(one.time)),
        h("td", { class: "soft rest", "data-label": "kept" }, one.expires_at ? `until ${clock(one.expires_at)}` : "for ever"), h("td", { class: "soft rest", "data-label": "read by" }, one.public ? "everyone" : "you"),
        h("td", { class: "num full" }, !isShared && one.checkpoint_type === "sampler" && h("a", { class: "button tiny", href: `/playground?model=${encodeURIComponent(one.tinker_path)}` }, "Chat"), " ", h("button", { class: "tiny", onclick: () => commands(one) }, "Commands"), " ", !isShared && h("button", { class: "tiny", onclick: () => keep(one, again) }, "Keep…"), " ",
          !isShared && h("button", { class: "tiny", onclick: () => publish(one, again) }, one.public ? "Unpublish" : "Publish"), " ", !isShared && h("button", { class: "tiny danger", onclick: () => remove(one, again) }, "Delete"))))))));
  } catch (error) {
    failed(place, error);
  }
}

/** @param {Checkpoint} one */
const path = one => {
  const [, run = "", kind = "", ...rest] = /^tinker:\/\/([^/]+)\/([^/]+)\/(.+)$/.exec(one.tinker_path) ?? [];
  return `/api/v1/training_runs/${part(run)}/checkpoints/${part(kind)}/${part(rest.join("/"))}`;
};

/** For a shell. @param {string} text */
const quoted = text => /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replace(/'/g, "'\\''")}'`;

/** @param {Checkpoint} one */
async function commands(one) {
  const at = quoted(one.tinker_path), isSampler = one.checkpoint_type === "sampler";
  await dialog("Commands", [h("div", { class: "commands" },
    isSampler && command(`tinkrs chat --checkpoint ${at}`, "Chat"),
    !isSampler && command(`tinkrs train sft --from ${at} --data chats.jsonl`, "Continue"),
    command(`tinkrs export ${at} --format merged --to merged`, "Export"),
    command(`tinkrs checkpoint info ${at}`, "Describe"),
    command(`service_client.create_${isSampler ? "sampling_client(model_path=" : "training_client_from_state("}"${one.tinker_path}")`, "Python"))], [{ words: "Close" }]);
}

/** @param {Checkpoint} one @param {() => void} again */
async function keep(one, again) {
  const field = h("select", {}, ...[["", "for ever"], ["3600", "1 hour"], ["86400", "1 day"], ["604800", "7 days"], ["2592000", "30 days"]].map(([value = "", words = ""]) => h("option", { value }, words)));
  const answer = await dialog("How long to keep it", [h("p", { class: "soft" }, "After that the server deletes it by itself: ", theirs(one.tinker_path)), h("label", { class: "field" }, h("span", {}, "From now"), field)], [{ words: "Cancel" }, { words: "Set", kind: "main" }]);
  if (answer === 1) await change(() => call(`${path(one)}/ttl`, { method: "PUT", body: { ttl_seconds: field.value ? Number(field.value) : null } }), again, "Set");
}

/** @param {Checkpoint} one @param {() => void} again */
async function publish(one, again) {
  if (!one.public && await dialog("Publish this checkpoint?", [h("p", {}, "Everyone with a key of this server can then read and download ", theirs(one.tinker_path), ".")], [{ words: "Cancel" }, { words: "Publish", kind: "main" }]) !== 1) return;
  await change(() => call(`${path(one)}/publish`, { method: one.public ? "DELETE" : "POST" }), again, one.public ? "It is yours alone again" : "Published");
}

/** @param {Checkpoint} one @param {() => void} again */
async function remove(one, again) {
  const lost = h("p", {}, "This deletes ", theirs(one.tinker_path), ` (${size(one.size_bytes)}, saved ${clock(one.time)}). It cannot be undone: samplers that use it end, and no run can start from it.`);
  if (await confirmLoss("Delete this checkpoint?", [lost], "Delete it")) await change(() => call(path(one), { method: "DELETE" }), again, "Deleted");
}

/** @param {() => Promise<any>} work @param {() => void} again @param {string} words */
async function change(work, again, words) {
  try {
    await work();
    toast(words);
  } catch (error) {
    toast(error instanceof Error ? error.message : String(error));
  }
  again();
}
