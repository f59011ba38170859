/** What the server is doing, in sentences and one table; the raw values are folded away below them. */

import { knows, reasonOf } from "./reasons.js";
import { explain } from "./state.js";
import { isolated, number, percent, say } from "./text.js";
import { make } from "./tokens.js";

/** `{speculation, ready, health, metrics}` of the server -> elements. */
export function summarise({ speculation, ready, health, metrics }) {
  const facts = make("dl", { className: "facts" });
  const add = (name, ...texts) =>
    facts.append(make("dt", { textContent: say(name) }), make("dd", {}, ...texts.map((text) => make("p", { textContent: text }))));
  add("who", who(speculation));
  add("howLong", howLong(speculation.default));
  add("saves", ...saves(speculation, metrics));
  add("now", ...now(speculation.requests));
  add("queue", say("queueText", { running: number(ready.running), waiting: number(ready.waiting) }));
  add("memory", memory(speculation.proposers, metrics));
  add("errors", ...errors(speculation.proposers, health, metrics));
  return [facts, table(speculation.proposers), raw(speculation)];
}

/** What the server counted of one answer, in sentences. */
export function account(told) {
  const counts = { accepted: number(told.accepted), drafted: number(told.drafted), rounds: number(told.rounds) };
  const seconds = Object.entries(told.seconds ?? {}).map(([name, value]) => [name, number(value, 2)]);
  const texts = [say("statsText", { ...counts, perRound: number(told.tokens_per_round, 2) })];
  if (seconds.length) texts.push(say("timesText", Object.fromEntries(seconds)));
  if (told.estimated_speedup) texts.push(say("speedupText", { ratio: number(told.estimated_speedup, 2) }));
  const reasons = (told.reasons ?? []).map((each) => say("reasonRounds", { rounds: number(each.rounds), reason: words(each) }));
  const list = make("ul", { className: "reasons" }, ...reasons.map((text) => make("li", { textContent: text })));
  return [...texts.map((text) => make("p", { textContent: text })), list];
}

const words = (each) => (knows(each) ? reasonOf(each) : (each.reason ?? ""));

/** Samples of the text that Prometheus reads, as a map of `name{labels}` to numbers. */
export function samples(text) {
  const lines = text.split("\n").filter((line) => line && !line.startsWith("#"));
  return new Map(lines.map((line) => [line.slice(0, line.lastIndexOf(" ")), Number(line.slice(line.lastIndexOf(" ") + 1))]));
}

const listed = (names) => names.map(isolated).join(say("comma"));

function who({ default: { proposer }, proposers }) {
  const names = Object.keys(proposers);
  if (proposer === "none" || !names.length) return say("whoNone");
  return proposer === "auto" ? say("whoAuto", { names: listed(names) }) : say("whoOne", { name: isolated(proposer) });
}

function howLong({ draft_length: length, max_draft_length: most }) {
  return length === null ? say("lengthAdaptive", { most: number(most) }) : say("lengthFixed", { length: number(length) });
}

const total = (proposers, name) => Object.values(proposers).reduce((sum, { totals }) => sum + totals[name], 0);

function saves({ proposers, verify_seconds: verify }, metrics) {
  const [drafted, accepted] = [total(proposers, "drafted"), total(proposers, "accepted")];
  if (!drafted) return [say("savesNone")];
  const step = verify["1"] === undefined ? "–" : number(verify["1"] * 1000, 1);
  const counts = { accepted: number(accepted), drafted: number(drafted), share: percent(accepted / drafted) };
  const text = say("savesText", { ...counts, step, seconds: number(total(proposers, "seconds"), 2) });
  return [text, ...speed(metrics)];
}

function speed(metrics) {
  const spent = metrics.get("gamaneh_decode_step_seconds_total");
  const plain = metrics.get("gamaneh_plain_equivalent_seconds_total");
  if (!spent || !plain) return [];
  return [say("savesSpeed", { spent: number(spent, 1), plain: number(plain, 1), ratio: number(plain / spent, 2) })];
}

function now(requests) {
  const doing = Object.values(requests);
  if (!doing.length) return [say("nowIdle")];
  return doing.map(words);
}

function memory(proposers, metrics) {
  const [used, all] = [metrics.get("gamaneh_kv_used_blocks"), metrics.get("gamaneh_kv_total_blocks")];
  const bytes = Object.values(proposers).reduce((sum, each) => sum + each.memory_bytes, 0);
  const share = all ? percent(used / all) : "–";
  return say("memoryText", { share, used: number(used), total: number(all), bytes: number(bytes / 1e6, 1) });
}

function errors(proposers, { failure }, metrics) {
  const failed = Object.entries(proposers).filter(([, { reason }]) => reason);
  const told = failed.map(([name, each]) => `${isolated(name)}: ${words(each)}`);
  if (failure) told.unshift(failure);
  const count = [...metrics].filter(([name]) => /^gamaneh_http_responses_total.*status="5/.test(name)).reduce((sum, [, value]) => sum + value, 0);
  if (count) told.push(say("errorsServer", { count: number(count) }));
  return told.length ? told : [say("errorsNone")];
}

function table(proposers) {
  const heads = ["proposer", "tableState", "tableDrafted", "tableAccepted", "tableSeconds"];
  const head = make("tr", {}, ...heads.map((name) => make("th", { scope: "col", textContent: say(name) })));
  const rows = Object.entries(proposers).map(([name, { state, totals }]) => {
    const share = totals.drafted ? percent(totals.accepted / totals.drafted) : "–";
    const cells = [say(state), number(totals.drafted), share, number(totals.seconds, 2)];
    return make("tr", {}, make("th", { scope: "row" }, make("bdi", { textContent: name })), ...cells.map((text) => make("td", { textContent: text })));
  });
  return make("table", {}, make("thead", {}, head), make("tbody", {}, ...rows));
}

/** Names of raw values are those of the API, whatever the language of the page. */
export function raw(speculation) {
  return make("details", { className: "raw" }, make("summary", { textContent: say("raw") }), explain(speculation));
}
