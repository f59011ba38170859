/** The server's public HTTP API, as far as the page uses it. */

/** Anything that went wrong between page and server. `kind` names a text; `values` fill it in. */
export class Problem extends Error {
  constructor(kind, values = {}) {
    super(kind);
    this.kind = kind;
    this.values = values;
  }
}

let apiKey = sessionStorage.getItem("gamaneh-key") ?? "";

/** Use this key from now on; it is forgotten when the tab is closed. */
export function useKey(key) {
  apiKey = key;
  sessionStorage.setItem("gamaneh-key", key);
}

export const hasKey = () => apiKey !== "";

/** The JSON object at a path. */
export async function read(path) {
  return (await send(path, {})).json();
}

/** The text at a path. */
export async function readText(path) {
  return (await send(path, {})).text();
}

/**
 * One answer of the model, streamed. Yields `{text, content, calls, tokens, speculation, finish}` for each event.
 * Throws a `Problem`, or an `AbortError` when the signal said so.
 */
export async function* complete(body, signal) {
  const response = await send("v1/chat/completions", { method: "POST", body: JSON.stringify(body), signal });
  for await (const data of events(response.body, signal)) {
    if (data === "[DONE]") return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new Problem("errorFault", { message: chunk.error.message });
    yield part(chunk);
  }
  throw new Problem("errorBroken");
}

function part(chunk) {
  const choice = chunk.choices[0] ?? {};
  const delta = choice.delta ?? {};
  const content = delta.content ?? "";
  const text = (delta.reasoning_content ?? "") + content;
  const { tokens = [], speculation = null } = chunk.gamaneh ?? {};
  return { text, content, calls: delta.tool_calls ?? [], tokens, speculation, finish: choice.finish_reason ?? null };
}

async function send(path, options) {
  const headers = { "Content-Type": "application/json" };
  if (apiKey) headers.Authorization = `Bearer ${apiKey}`;
  const response = await reach(fetch(path, { ...options, headers, cache: "no-store" }), options.signal);
  if (!response.ok) throw await refusal(response);
  return response;
}

/** A network that fails is a problem of its own; being told to stop is none. */
async function reach(promise, signal) {
  try {
    return await promise;
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Problem("errorNetwork");
  }
}

async function refusal(response) {
  const body = await response.json().catch(() => ({}));
  const message = body.error?.message ?? `${response.status} ${response.statusText}`;
  if (response.status === 401) return new Problem(hasKey() ? "errorKeyWrong" : "errorKey");
  if (response.status === 429) return new Problem("errorBusy", { seconds: response.headers.get("Retry-After") ?? "1" });
  return new Problem(response.status < 500 ? "errorRefused" : "errorFault", { message });
}

/** The data of each server-sent event. */
async function* events(stream, signal) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reach(reader.read(), signal);
    if (done) return;
    const blocks = (rest + value).split(/\r?\n\r?\n/);
    rest = blocks.pop();
    yield* blocks.map(dataOf).filter((data) => data !== "");
  }
}

/** Comments and other fields of an event carry no data. */
function dataOf(block) {
  const lines = block.split(/\r?\n/).filter((line) => line.startsWith("data:"));
  return lines.map((line) => line.slice(5).trimStart()).join("\n");
}
