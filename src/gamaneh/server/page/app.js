/** The page: reads the form, runs one answer or a race of two, and shows what the server is doing. */

import { Problem, hasKey, read, useKey } from "./api.js";
import { parting } from "./answer.js";
import { Chart } from "./charts.js";
import { Lane } from "./lane.js";
import { explain } from "./state.js";
import { EXAMPLES, language, number, percent, say, switchLanguage, translate } from "./text.js";
import { Popover, make } from "./tokens.js";

const LAWFUL = ["rejection", "block"]; // exact rules under which the tokens depend on the draft

const $ = (id) => document.getElementById(id);

const popover = new Popover($("popover"));
const charts = {
  acceptances: new Chart($("charts"), { title: "chartAcceptance", format: (value) => percent(value), top: 1 }),
  draftLengths: new Chart($("charts"), { title: "chartDraft", format: (value) => number(value), top: 4 }),
  rates: new Chart($("charts"), { title: "chartSpeed", format: (value) => number(value, value > 0 && value < 10 ? 1 : 0), top: 1 }),
};

const page = { model: null, state: null, stop: null, frame: 0, lanes: [], plain: null, races: 0 };

// --- what is asked ---

/** The number in a field; null where there is none. */
const numberIn = (id) => ($(id).value === "" ? null : $(id).valueAsNumber);

/** Leave out what was not said, so that the server's own settings hold. */
const said = (object) => Object.fromEntries(Object.entries(object).filter(([, value]) => value !== null && value !== ""));

function draftLength() {
  const choice = $("form").elements.draft.value;
  return choice === "fixed" ? numberIn("draft-length") : choice;
}

function request(speculation, more = {}) {
  return said({
    model: page.model,
    messages: [{ role: "user", content: $("prompt").value }],
    stream: true,
    max_tokens: numberIn("max-tokens"),
    temperature: numberIn("temperature"),
    seed: numberIn("seed"),
    speculation: said({ rule: $("rule").value, metrics: true, tokens: true, ...speculation }),
    ...more,
  });
}

// --- running ---

async function answerOnce() {
  const [lane] = layOut(["answer"]);
  await lane.run(request({ proposer: $("proposer").value, draft_length: draftLength() }), page.stop.signal);
  finish(lane);
}

/** Both get the same seed, and neither finds the other's prompt in the cache. */
async function raceTwo() {
  if (numberIn("temperature") > 0 && numberIn("seed") === null) $("seed").value = Math.floor(Math.random() * 2 ** 31);
  const [plain, speculative] = layOut(["lanePlain", "laneSpeculative"]);
  page.plain = plain;
  const proposer = $("proposer").value === "none" ? "" : $("proposer").value;
  const wants = { enabled: true, proposer, draft_length: draftLength() };
  await start([
    () => plain.run(request({ enabled: false }, { cache_salt: salt() }), page.stop.signal),
    () => speculative.run(request(wants, { cache_salt: salt() }), page.stop.signal),
  ]);
  showVerdict(plain.answer, speculative.answer);
  finish(speculative);
}

const salt = () => crypto.getRandomValues(new Uint32Array(4)).join("-");

/** In turns, the first one changes from race to race: whoever is second may find the machine warmer. */
async function start(runs) {
  if ($("order").value === "together") {
    await Promise.all(runs.map((run) => run()));
    return;
  }
  if (page.races++ % 2) runs.reverse();
  for (const run of runs) await run();
}

function showVerdict(plain, speculative) {
  const at = parting(plain.text, speculative.text);
  const ratio = speculative.rate / plain.rate;
  const speed = ratio ? say("faster", { ratio: number(ratio, 2) }) : "";
  const why = say(reasonToDiffer(), { rule: $("rule").value });
  const text = at < 0 ? say("same", { speed }) : say("differs", { at: number(at + 1), why, speed });
  Object.assign($("verdict"), { hidden: false, textContent: text, className: `verdict ${at < 0 ? "same" : "differs"}` });
  $("verdict").dataset.same = at < 0;
}

function reasonToDiffer() {
  const rule = $("rule").value;
  if (rule === "typical") return "whyTypical";
  if (LAWFUL.includes(rule) && numberIn("temperature") > 0) return "whyLaw";
  return rule === "" && numberIn("temperature") > 0 ? "whyServer" : "whyBug";
}

function layOut(titles) {
  page.plain = null;
  page.lanes = titles.map((title) => new Lane(title, popover, redrawSoon));
  $("lanes").replaceChildren(...page.lanes.map((lane) => lane.element));
  $("lanes").classList.toggle("two", titles.length > 1);
  translate();
  redraw();
  return page.lanes;
}

/** One run at a time: the buttons change, problems are shown in words, the server's state is read again. */
async function run(work) {
  if (page.stop || !$("form").reportValidity()) return;
  if ($("key").value) useKey($("key").value);
  page.stop = new AbortController();
  setRunning(true);
  try {
    await work();
  } catch (error) {
    fail(error);
  }
  page.stop.abort(); // the other lane of a race whose one lane failed
  page.stop = null;
  setRunning(false);
  await readServer();
}

function setRunning(running) {
  $("run").disabled = $("race").disabled = running;
  $("stop").hidden = !running;
  if (!running) return;
  $("problem").hidden = $("verdict").hidden = true;
  announce("started");
}

function finish({ answer }) {
  const { tokens, accepted, drafted, rate } = answer;
  announce("finished", { tokens: number(tokens.length), accepted: number(accepted), drafted: number(drafted), rate: number(rate, 1) });
  if (answer.finish === "length") $("status").append(" ", say("cut"));
}

function fail(error) {
  if (page.stop?.signal.aborted) return announce("stopped");
  if (!(error instanceof Problem)) throw error;
  if (error.kind.startsWith("errorKey")) $("key-row").hidden = false;
  $("problem").textContent = say(error.kind, error.values);
  $("problem").hidden = false;
  if (error.kind.startsWith("errorKey")) $("key").focus();
}

function announce(name, values) {
  $("status").textContent = say(name, values);
}

// --- showing ---

function redrawSoon() {
  page.frame ||= requestAnimationFrame(redraw);
}

function redraw() {
  page.frame = 0;
  const answer = page.lanes.at(-1)?.answer;
  charts.acceptances.show(answer?.acceptances ?? []);
  charts.draftLengths.show(answer?.draftLengths ?? []);
  charts.rates.show(answer?.rates ?? [], page.plain?.answer.rates ?? []);
}

function showState() {
  $("model").textContent = page.model ?? "…";
  const words = make("p", { className: "help", textContent: say("stateEmpty") });
  $("state").replaceChildren(page.state ? explain(page.state) : words);
}

/** Which model there is, and what the server says about its speculation. */
async function readServer() {
  try {
    const [model] = (await read("v1/models")).data;
    page.model = model.id;
    offerProposers(model.proposers);
    page.state = await read("v1/speculation");
  } catch (error) {
    if (!$("problem").hidden) return;
    fail(error);
  }
  showState();
}

function offerProposers(names) {
  const known = new Set([...$("proposer").options].map((option) => option.value));
  const fresh = names.filter((name) => !known.has(name));
  $("proposer").append(...fresh.map((name) => make("option", { value: name, textContent: name })));
}

function showAll() {
  translate();
  $("language").textContent = language === "fa" ? "English" : "فارسی";
  $("language").lang = language === "fa" ? "en" : "fa";
  popover.hide();
  for (const lane of page.lanes) lane.show();
  redraw();
  showState();
}

// --- the page comes to life ---

$("form").addEventListener("submit", (event) => {
  event.preventDefault();
  run(answerOnce);
});
$("race").addEventListener("click", () => run(raceTwo));
$("stop").addEventListener("click", () => page.stop?.abort());
$("refresh").addEventListener("click", readServer);
$("language").addEventListener("click", () => {
  switchLanguage();
  showAll();
});
$("key").addEventListener("change", () => {
  useKey($("key").value);
  $("problem").hidden = true;
  readServer();
});
$("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) run(answerOnce);
});
for (const choice of $("form").elements.draft)
  choice.addEventListener("change", () => ($("draft-length").disabled = $("form").elements.draft.value !== "fixed"));
for (const chip of document.querySelectorAll("[data-example]"))
  chip.addEventListener("click", () => {
    $("prompt").value = EXAMPLES[language][chip.dataset.example];
    $("prompt").focus();
  });

$("key-row").hidden = !hasKey();
if (matchMedia("(max-width: 36rem)").matches) $("settings").open = false;
layOut(["answer"]);
showAll();
readServer();
