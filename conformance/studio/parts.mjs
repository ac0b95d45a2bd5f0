// What the checks of the studio are made of: a server, the SDK, a browser.

import { spawn } from "node:child_process";
import { createRequire } from "node:module";
import { createInterface } from "node:readline";

const { chromium } = createRequire(`${process.env.TINKRS_NODE}/`)("playwright-core");

/** Everything that was started, to be ended. */
const started = new Set();

/** Starts a program, and returns it with a way to wait for a line of its stdout. */
function program(command, args, env = {}) {
  const child = spawn(command, args, { env: { ...process.env, ...env }, stdio: ["pipe", "pipe", "pipe"] });
  started.add(child);
  let errors = "";
  child.stderr.on("data", data => { errors = (errors + data).slice(-4000); });
  const lines = [], waiting = [];
  createInterface({ input: child.stdout }).on("line", line => {
    lines.push(line);
    for (const check of [...waiting]) check();
  });
  const ended = new Promise(done => child.on("exit", code => {
    started.delete(child);
    done(code);
    for (const check of [...waiting]) check();
  }));
  const line = (pattern, from = 0) => new Promise((done, fail) => {
    const check = () => {
      const index = lines.findIndex((one, place) => place >= from && pattern.test(one));
      if (index < 0 && child.exitCode === null) return;
      waiting.splice(waiting.indexOf(check), 1);
      if (index < 0) fail(new Error(`${command} ended before it said ${pattern}: ${errors}`));
      else done(pattern.exec(lines[index]));
    };
    waiting.push(check);
    check();
  });
  return { child, lines, line, ended };
}

/** A server on a data folder; `port` 0 picks a free one. */
export async function serve(folder, port = 0) {
  const server = program(process.env.TINKRS_BIN, ["serve", "--addr", `127.0.0.1:${port}`, "--data-dir", folder]);
  const [, url, found] = await server.line(/^listening on (http:\/\/127\.0\.0\.1:(\d+))/);
  const stop = async () => {
    server.child.kill("SIGTERM");
    await server.ended;
  };
  return { url, port: Number(found), stop };
}

/** The SDK's loop, which makes a step when it is told to. */
export async function loop(here, url, key, name) {
  const python = program(process.env.TINKRS_PYTHON, [`${here}/loop.py`, name], { TINKER_BASE_URL: url, TINKER_API_KEY: key, TINKER_TELEMETRY: "0" });
  const [, run] = await python.line(/^ready (\S+)/);
  const say = async (word, pattern) => {
    const from = python.lines.length;
    python.child.stdin.write(`${word}\n`);
    await python.line(pattern, from);
  };
  return { run, step: () => say("step", /^step/), save: () => say("save", /^saved/), end: () => python.child.kill() };
}

/** A browser that tells of everything that went wrong in a page. */
export async function browser() {
  const chrome = await chromium.launch({ executablePath: process.env.TINKRS_CHROMIUM, args: ["--no-sandbox", "--disable-gpu"] });
  const problems = [];
  /** What pages may say: the console tells of answers that the check itself asked for. */
  const allowed = [];
  const visit = async (options = {}) => {
    const context = await chrome.newContext({ viewport: { width: 1280, height: 860 }, ...options });
    const page = await context.newPage();
    page.setDefaultTimeout(20000);
    page.on("dialog", dialog => { problems.push(`a dialog: ${dialog.message()}`); dialog.dismiss(); });
    page.on("pageerror", error => problems.push(`an error: ${error.stack}`));
    page.on("console", message => { if (["error", "warning"].includes(message.type())) problems.push(`the console: ${message.text()} (${message.location().url})`); });
    page.on("request", request => { if (!/^(http:\/\/127\.0\.0\.1:|data:|blob:)/.test(request.url())) problems.push(`a request to ${request.url()}`); });
    return { context, page };
  };
  const left = () => problems.filter(problem => !allowed.some(pattern => pattern.test(problem)));
  return { visit, problems: left, allow: pattern => allowed.push(pattern), close: () => chrome.close() };
}

export function endAll() {
  for (const child of started) child.kill("SIGKILL");
}

/** Fails with a sentence. */
export function check(holds, words) {
  if (!holds) throw new Error(words);
}

/** Waits until something holds. */
export async function until(words, holds, ms = 20000) {
  const end = Date.now() + ms;
  for (;;) {
    const found = await holds();
    if (found) return found;
    if (Date.now() > end) throw new Error(`${words}: not within ${ms / 1000} s`);
    await new Promise(done => setTimeout(done, 60));
  }
}
