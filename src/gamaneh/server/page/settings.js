/** What is asked for: the fields of the form, as parts of a request, and as the fragment of a link. */

import { Problem } from "./api.js";
import { say } from "./text.js";
import { make } from "./tokens.js";

const NUMBERS = [
  // id, field of the request, name of its text, attributes
  ["top-p", "top_p", "topP", { min: 0, max: 1, step: "any" }],
  ["top-k", "top_k", "topK", { min: 0, step: 1 }],
  ["min-p", "min_p", "minP", { min: 0, max: 1, step: "any" }],
  ["min-tokens", "min_tokens", "minTokens", { min: 0, step: 1 }],
  ["repetition-penalty", "repetition_penalty", "repetitionPenalty", { min: 0, step: "any" }],
  ["presence-penalty", "presence_penalty", "presencePenalty", { min: -2, max: 2, step: "any" }],
  ["frequency-penalty", "frequency_penalty", "frequencyPenalty", { min: -2, max: 2, step: "any" }],
];

const KEPT_OUT = new Set(["key"]); // fields that no link may carry

const $ = (id) => document.getElementById(id);

/** Put the fields of sampling that have nothing special about them onto the page. */
export function build(parent) {
  for (const [id, , name, attributes] of NUMBERS) {
    const label = make("label", { htmlFor: id, textContent: say(name) });
    label.dataset.text = name;
    const input = make("input", { id, type: "number", dir: "ltr", placeholder: "–", ...attributes });
    parent.append(make("div", { className: "field" }, label, input));
  }
}

/** The number in a field; null where there is none. */
export const numberIn = (id) => ($(id).value === "" ? null : $(id).valueAsNumber);

/** Leave out what was not said, so that the server's own settings hold. */
export const said = (object) =>
  Object.fromEntries(Object.entries(object).filter(([, value]) => value !== null && value !== ""));

/** How tokens are chosen and where the answer ends, as fields of a request. */
export function sampling() {
  const stops = $("stop-texts").value.split("\n").filter(Boolean);
  return said({
    max_tokens: numberIn("max-tokens"),
    temperature: numberIn("temperature"),
    seed: numberIn("seed"),
    ...Object.fromEntries(NUMBERS.map(([id, field]) => [field, numberIn(id)])),
    ignore_eos: $("ignore-eos").checked || null,
    stop: stops.length ? stops : null,
    tools: json("tools", "tools"),
    response_format: format(json("schema", "schema")),
  });
}

const format = (schema) =>
  schema === null ? null : { type: "json_schema", json_schema: { name: "answer", schema, strict: false } };

function json(id, name) {
  if (!$(id).value.trim()) return null;
  try {
    return JSON.parse($(id).value);
  } catch (error) {
    throw new Problem("errorJson", { name: say(name), message: error.message });
  }
}

/** How the request drafts; what is asked for beside it goes first. */
export function drafting(form) {
  const length = form.elements.draft.value;
  return said({
    proposer: $("proposer").value,
    draft_length: length === "fixed" ? numberIn("draft-length") : length,
    rule: $("rule").value,
  });
}

const fields = (form) => [...form.elements].filter((each) => /INPUT|SELECT|TEXTAREA/.test(each.tagName));

/** Everything in the form that is not as it was delivered, as a fragment; never the key. */
export function toFragment(form) {
  const values = {};
  for (const each of fields(form)) {
    if (KEPT_OUT.has(each.id)) continue;
    if (each.type === "radio") {
      if (each.checked && !each.defaultChecked) values[each.name] = each.value;
    } else if (each.type === "checkbox") {
      if (each.checked) values[each.id] = true;
    } else if (each.value !== (each.defaultValue ?? "")) values[each.id] = each.value;
  }
  return `#${encodeURIComponent(JSON.stringify(values))}`;
}

/** Fill in the form from a fragment. Throws a `Problem` where it holds no settings. */
export function fromFragment(form, fragment) {
  if (fragment.length < 2) return;
  let values;
  try {
    values = JSON.parse(decodeURIComponent(fragment.slice(1)));
  } catch {
    throw new Problem("errorLink");
  }
  if (values === null || typeof values !== "object") throw new Problem("errorLink");
  for (const each of fields(form)) {
    const value = values[each.type === "radio" ? each.name : each.id];
    if (value === undefined || KEPT_OUT.has(each.id)) continue;
    if (each.type === "radio") each.checked = each.value === value;
    else if (each.type === "checkbox") each.checked = value === true;
    else each.value = String(value);
  }
}
