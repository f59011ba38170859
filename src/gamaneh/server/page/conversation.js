/** The turns that came before: what is sent along with the next message, and how they stand on the page. */

import { say } from "./text.js";
import { make } from "./tokens.js";

export class Conversation {
  /** `list` is the element that shows the turns. */
  constructor(list) {
    this.list = list;
    this.messages = [];
    this.shown = 0; // messages that stand above the newest answer, which its lane shows
  }

  /** All messages of a request whose newest one says `text`; after calls of tools it is their result. */
  with(system, text) {
    const first = system.trim() ? [{ role: "system", content: system }] : [];
    return [...first, ...this.messages, ...this.#newest(text)];
  }

  #newest(text) {
    if (!this.calls.length) return [{ role: "user", content: text }];
    return this.calls.map(({ id }) => ({ role: "tool", tool_call_id: id, content: text }));
  }

  /** The calls of tools that wait for a result. */
  get calls() {
    return this.messages.at(-1)?.tool_calls ?? [];
  }

  /** Keep a question and its answer. */
  add(text, answer) {
    this.messages.push(...this.#newest(text), message(answer));
    this.shown = this.messages.length - 1;
    this.show();
  }

  /** Put the newest answer, too, above what comes next, and the question below it. */
  ask(text) {
    this.shown = this.messages.length;
    this.show();
    this.list.append(turn({ role: this.calls.length ? "tool" : "user", content: text }));
  }

  /** Take back the newest question and its answer; returns the question. */
  takeBack() {
    this.messages.pop();
    const last = this.messages.pop();
    while (last?.role === "tool" && this.messages.at(-1)?.role === "tool") this.messages.pop();
    this.shown = this.messages.length;
    this.show();
    return last?.content ?? "";
  }

  clear() {
    this.messages = [];
    this.shown = 0;
    this.show();
  }

  show() {
    this.list.replaceChildren(...this.messages.slice(0, this.shown).map(turn));
    this.list.hidden = false;
  }

  /** The whole conversation as text to copy. */
  toText() {
    return this.messages.map((each) => `${speaker(each)}: ${words(each)}`).join("\n\n");
  }
}

function message({ text, calls }) {
  const content = { role: "assistant", content: text };
  return calls.length ? { ...content, tool_calls: calls } : content;
}

const speaker = ({ role }) => say(role === "assistant" ? "assistant" : role === "tool" ? "toolTurn" : "you");

const words = ({ content, tool_calls: calls = [] }) =>
  [content, ...calls.map((call) => `${call.function.name}(${call.function.arguments})`)].filter(Boolean).join("\n");

function turn(message) {
  const name = make("b", { textContent: speaker(message) });
  const text = make("p", { textContent: words(message), dir: "auto" });
  return make("li", { className: message.role }, name, text);
}
