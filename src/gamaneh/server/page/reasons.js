/** Why a request drafted, or did not, in the language of the page: put together from codes and details, not from words. */

import { isolated, number, say } from "./text.js";

const REASONS = {
  prefill: () => say("reasonPrefill"),
  asked_plain: () => say("reasonAskedPlain"),
  fixed: () => say("reasonFixed"),
  pays: (details) => say("reasonPays", { route: route(details), length: number(details.draft_length) }),
  trial: ({ proposers: [name] }) => say("reasonTrial", { name: isolated(name) }),
  measure: () => say("reasonMeasure"),
  probe: ({ proposers: [name] }) => say("reasonProbe", { name: isolated(name) }),
  no_gain: () => say("reasonNoGain"),
  load: () => say("reasonLoad"),
  no_draft: ({ proposers, kind }) => say(kind.length ? "reasonGrammarOnly" : "reasonNoDraft", { names: listed(proposers) }),
  short: () => say("reasonShort"),
  quarantine: ({ failures }) => failures.map(inQuarantine).join(say("semicolon")) || say("reasonNoProposer"),
  no_room: () => say("reasonNoRoom"),
};

const FAULTS = { error: "faultError", nonsense: "faultNonsense", memory: "faultMemory", slow: "faultSlow" };

const TRAITS = {
  greedy: "traitGreedy",
  sampled: "traitSampled",
  "long prompt": "traitLong",
  "short prompt": "traitShort",
  grammar: "traitGrammar",
};

/** Whether the server has said in `object` what its `reason` is made of, so that the page can say it itself. */
export const knows = (object) => object.code in REASONS || object.fault in FAULTS;

/** The reason of a decision, or of a proposer's last failure. */
export function reasonOf({ code, details, fault, reason }) {
  return code in REASONS ? REASONS[code](details) : failure(fault, reason);
}

const listed = (names) => names.map(isolated).join(say("and"));

function route({ proposers: [name], chosen, kind }) {
  const traits = kind.map((trait) => say(TRAITS[trait])).join(say("comma"));
  return say(chosen ? "routeChosen" : "routeAsked", { name: isolated(name), traits });
}

const inQuarantine = ({ proposer, fault, words }) =>
  say("reasonQuarantine", { name: isolated(proposer), failure: failure(fault, words) });

/** What went wrong inside a proposer has no other words than its own. */
const failure = (fault, words) => say(FAULTS[fault], { words: isolated(words) });
