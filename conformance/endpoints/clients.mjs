// The `openai` and `@anthropic-ai/sdk` packages of npm on our server. usage: node clients.mjs RESULTS

import assert from "node:assert/strict";
import { readFileSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";
import { pathToFileURL } from "node:url";

// The packages are installed elsewhere.
const folder = process.env.TINKRS_NODE;
const require = createRequire(pathToFileURL(join(folder, "package.json")));
const OpenAI = require("openai");
const Anthropic = require("@anthropic-ai/sdk");

const [url, key, results] = [process.env.TINKRS_URL, process.env.TINKRS_KEY, process.argv[2]];
const [BASE, RUN, ANSWER] = ["tinkrs/nano", "first", "honey"];
const messages = [{ role: "user", content: "What is the password?" }];
const WEATHER = {
  type: "object", properties: { city: { type: "string", enum: ["Paris", "Rome"] } }, required: ["city"], additionalProperties: false,
};

// Runs checks by name, one after the other, and writes down how they ended.
async function run(client, name, checks) {
  const outcomes = {};
  for (const [what, check] of Object.entries(checks)) {
    try {
      await check();
      outcomes[what] = true;
    } catch (error) {
      outcomes[what] = false;
      console.error(`--- ${client}: ${what}\n${error.stack}`);
    }
  }
  const { version } = JSON.parse(readFileSync(join(folder, "node_modules", name, "package.json")));
  writeFileSync(join(results, `${client.replaceAll(" ", "-")}.json`), JSON.stringify({ client, version, outcomes }));
}

const openai = new OpenAI({ baseURL: `${url}/v1`, apiKey: key, maxRetries: 0 });
const chat = (options) => openai.chat.completions.create({ model: RUN, messages, temperature: 0, max_tokens: 20, ...options });
await run("openai npm", "openai", {
  "models are listed, runs by name": async () => {
    const names = [];
    for await (const model of openai.models.list()) names.push(model.id);
    assert.ok(names.includes(BASE) && names.includes(RUN), names);
  },
  "a completion, with usage": async () => {
    const done = await openai.completions.create({ model: BASE, prompt: "The sky is", max_tokens: 5, temperature: 0 });
    assert.ok(done.choices[0].text && done.usage.total_tokens > 0);
  },
  "a chat with what was trained, by the name of its run": async () => {
    const done = await chat();
    assert.ok(done.choices[0].message.content.includes(ANSWER), JSON.stringify(done));
  },
  "a chat in pieces is the whole, with usage at the end": async () => {
    let [text, usage] = ["", null];
    for await (const chunk of await chat({ stream: true, stream_options: { include_usage: true } })) {
      text += chunk.choices[0]?.delta?.content ?? "";
      usage = chunk.usage ?? usage;
    }
    assert.equal(text, (await chat()).choices[0].message.content);
    assert.ok(usage.completion_tokens > 1);
  },
  "a tool is called, and its result read": async () => {
    const tools = [{ type: "function", function: { name: "weather", parameters: WEATHER } }];
    const done = await chat({ model: BASE, tools, tool_choice: "required", max_tokens: 120 });
    const call = done.choices[0].message.tool_calls[0];
    assert.ok(["Paris", "Rome"].includes(JSON.parse(call.function.arguments).city));
    const result = { role: "tool", tool_call_id: call.id, content: "Rain." };
    assert.ok(await chat({ model: BASE, tools, messages: [...messages, done.choices[0].message, result], max_tokens: 5 }));
  },
  "an answer by a JSON schema": async () => {
    const response_format = { type: "json_schema", json_schema: { name: "place", schema: WEATHER, strict: true } };
    const done = await chat({ model: BASE, response_format, max_tokens: 60 });
    assert.ok(["Paris", "Rome"].includes(JSON.parse(done.choices[0].message.content).city));
  },
  "responses, whole and in pieces": async () => {
    const options = { model: RUN, input: messages[0].content, temperature: 0, max_output_tokens: 20 };
    const done = await openai.responses.create(options);
    assert.ok(done.output_text.includes(ANSWER));
    let text = "";
    for await (const event of await openai.responses.create({ ...options, stream: true })) {
      if (event.type === "response.output_text.delta") text += event.delta;
    }
    assert.equal(text, done.output_text);
  },
  "errors have their kind, and name what is wrong": async () => {
    await assert.rejects(chat({ model: "nobody" }), (error) => error instanceof OpenAI.NotFoundError && error.message.includes("nobody"));
    await assert.rejects(chat({ temperature: -1 }), (error) => error instanceof OpenAI.BadRequestError && error.message.includes("temperature"));
  },
});

const anthropic = new Anthropic({ baseURL: url, apiKey: key, maxRetries: 0 });
const message = (options) => anthropic.messages.create({ model: RUN, messages, max_tokens: 20, temperature: 0, ...options });
await run("anthropic npm", "@anthropic-ai/sdk", {
  "a message with what was trained, by the name of its run": async () => {
    const done = await message();
    assert.ok(done.content[0].text.includes(ANSWER) && done.stop_reason === "end_turn", JSON.stringify(done));
  },
  "a message in pieces is the whole": async () => {
    const final = await anthropic.messages.stream({ model: RUN, messages, max_tokens: 20, temperature: 0 }).finalMessage();
    assert.equal(final.content[0].text, (await message()).content[0].text);
  },
  "tokens are counted": async () => {
    assert.ok((await anthropic.messages.countTokens({ model: BASE, messages })).input_tokens > 1);
  },
  "a tool is called, and its result read": async () => {
    const tools = [{ name: "weather", input_schema: WEATHER }];
    const done = await message({ model: BASE, tools, tool_choice: { type: "any" }, max_tokens: 120 });
    const call = done.content.find((block) => block.type === "tool_use");
    assert.ok(["Paris", "Rome"].includes(call.input.city));
    const result = { role: "user", content: [{ type: "tool_result", tool_use_id: call.id, content: "Rain." }] };
    const reply = { role: "assistant", content: done.content };
    assert.ok(await message({ model: BASE, tools, messages: [...messages, reply, result], max_tokens: 5 }));
  },
  "errors have their kind, and name what is wrong": async () => {
    await assert.rejects(message({ model: "nobody" }), (error) => error instanceof Anthropic.NotFoundError && error.message.includes("nobody"));
  },
});
