/** A request as code that a person can run elsewhere. */

import { hasKey } from "./api.js";

const OPENAI = new Set(
  "model messages max_tokens temperature seed top_p presence_penalty frequency_penalty stop tools response_format".split(" "),
);

const address = (path) => new URL(path, document.baseURI).href.split("#")[0];

/** A command for a POSIX shell. */
export function asCurl(body) {
  const key = hasKey() ? ` \\\n  -H "Authorization: Bearer $GAMANEH_API_KEY"` : "";
  const data = JSON.stringify(body, null, 2).replaceAll("'", `'\\''`);
  return `curl ${address("v1/chat/completions")} \\\n  -H 'Content-Type: application/json'${key} \\\n  -d '${data}'`;
}

/** A program for the `openai` library. Fields that are not OpenAI's go into `extra_body`. */
export function asPython(body) {
  const [own, extra] = [{}, {}];
  for (const [name, value] of Object.entries(body)) (OPENAI.has(name) ? own : extra)[name] = value;
  const more = Object.keys(extra).length ? { ...own, extra_body: extra } : own;
  const lines = Object.entries(more).map(([name, value]) => `    ${name}=${literal(value, 1)},\n`);
  return [
    "import os\n\nfrom openai import OpenAI\n",
    `client = OpenAI(base_url=${JSON.stringify(address("v1"))}, api_key=${hasKey() ? 'os.environ["GAMANEH_API_KEY"]' : '"none"'})`,
    `reply = client.chat.completions.create(\n${lines.join("")})`,
    "print(reply.choices[0].message.content)",
  ].join("\n");
}

const NAMES = new Map([[true, "True"], [false, "False"], [null, "None"]]);

/** A JSON value as Python writes it. */
function literal(value, depth) {
  if (NAMES.has(value)) return NAMES.get(value);
  if (typeof value !== "object") return JSON.stringify(value);
  const [open, close] = Array.isArray(value) ? "[]" : "{}";
  const items = Object.entries(value).map(([name, each]) => {
    const text = literal(each, depth + 1);
    return Array.isArray(value) ? text : `${JSON.stringify(name)}: ${text}`;
  });
  const inner = items.join(", ");
  if (inner.length < 60 && !inner.includes("\n")) return open + inner + close;
  const pad = "    ".repeat(depth);
  return `${open}\n${items.map((item) => `${pad}    ${item},\n`).join("")}${pad}${close}`;
}
