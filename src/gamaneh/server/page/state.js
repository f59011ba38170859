/** Anything that the server tells about itself, as nested lists of names and values. */

import { knows, reasonOf } from "./reasons.js";
import { number, say } from "./text.js";
import { make } from "./tokens.js";

const WORDS = new Set(["reason", "reasons", "why"]);
const INGREDIENTS = new Set(["code", "details", "fault"]); // of a reason, which are not shown beside it

/** A JSON value as an element. */
export function explain(value) {
  if (value === null || isEmpty(value)) return make("span", { textContent: "–" });
  if (Array.isArray(value)) return explainList(value);
  if (typeof value === "object") return explainObject(value);
  return make("bdi", { textContent: word(value), lang: typeof value === "string" ? "en" : "" });
}

const isEmpty = (value) => value === "" || (typeof value === "object" && Object.keys(value).length === 0);

function word(value) {
  if (typeof value === "boolean") return say(value ? "yes" : "no");
  if (typeof value !== "number") return value;
  return number(value, Number.isInteger(value) ? 0 : Math.abs(value) < 1 ? 4 : 2);
}

function explainObject(object) {
  const list = make("dl", { className: "state" });
  for (const [key, value] of Object.entries(object)) {
    if (INGREDIENTS.has(key)) continue;
    const name = make("dt", { textContent: key.replaceAll("_", " "), lang: "en", dir: "ltr" });
    const content = key === "reason" && knows(object) ? make("bdi", { textContent: reasonOf(object) }) : explain(value);
    list.append(name, make("dd", { className: WORDS.has(key) ? "reason" : "" }, content));
  }
  return list;
}

/** Lists of numbers and words in one line, lists of objects one below the other. */
function explainList(values) {
  if (values.some((value) => typeof value === "object")) return make("div", {}, ...values.map(explain));
  return make("bdi", { textContent: values.map(word).join(language() === "fa" ? "، " : ", ") });
}

const language = () => document.documentElement.lang;
