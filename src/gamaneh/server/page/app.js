/** The page: reads the form, runs one answer or two side by side, and shows what the server is doing. */

import { Problem, hasKey, read, readText, useKey } from "./api.js";
import { parting } from "./answer.js";
import { Chart } from "./charts.js";
import { asCurl, asPython } from "./code.js";
import { Conversation } from "./conversation.js";
import { copy } from "./copying.js";
import { Lane } from "./lane.js";
import { build, drafting, fromFragment, numberIn, said, sampling, toFragment } from "./settings.js";
import { samples, summarise } from "./summary.js";
import { EXAMPLES, language, number, percent, say, switchLanguage, translate } from "./text.js";
import { Popover, make } from "./tokens.js";

const LAWFUL = ["rejection", "block"]; // exact rules under which the tokens depend on the draft
const MARKS = "gamaneh-marks"; // where the chosen marks are kept
const TICK = 100; // milliseconds between two looks at the clocks
const NARROW = matchMedia("(max-width: 60rem)");

const $ = (id) => document.getElementById(id);

const popover = new Popover($("popover"));
const charts = {
  acceptances: new Chart($("charts"), {
    title: "chartAcceptance",
    axis: "axisAcceptance",
    format: (value) => percent(value),
    top: 1,
    bars: true,
  }),
  draftLengths: new Chart($("charts"), {
    title: "chartDraft",
    axis: "axisDraft",
    format: (value) => number(value, Number.isInteger(value) ? 0 : 1),
    top: 4,
    bars: true,
  }),
  rates: new Chart($("charts"), {
    title: "chartSpeed",
    axis: "axisSpeed",
    format: (value) => number(value, value > 0 && value < 10 ? 1 : 0),
    top: 1,
  }),
};

const conversation = new Conversation($("turns"));
const page = { model: null, state: null, stop: null, frame: 0, lanes: [], plain: null, races: 0, asked: "" };

// --- what is asked ---

function request(speculation, more = {}) {
  return said({
    model: page.model,
    messages: conversation.with($("system").value, page.asked),
    stream: true,
    ...sampling(),
    speculation: said({ metrics: true, tokens: true, ...speculation }),
    ...more,
  });
}

/** The request as another program would send it: whole, and without what only this page wants to know. */
function plainRequest() {
  const body = said({
    model: page.model,
    messages: conversation.with($("system").value, $("prompt").value),
    ...sampling(),
  });
  const speculation = drafting($("form"));
  return Object.keys(speculation).length ? { ...body, speculation } : body;
}

// --- running ---

async function answerOnce() {
  const [lane] = layOut(["answer"]);
  await lane.run(request(drafting($("form"))), page.stop.signal);
  finish(lane);
}

/** Both get the same seed, and neither finds the other's prompt in the cache. */
async function raceTwo() {
  if (numberIn("temperature") > 0 && numberIn("seed") === null) $("seed").value = Math.floor(Math.random() * 2 ** 31);
  const [plain, speculative] = layOut(["lanePlain", "laneSpeculative"]);
  page.plain = plain;
  const asked = drafting($("form"));
  if (asked.proposer === "none") delete asked.proposer;
  const { rule } = asked;
  await start([
    () => plain.run(request(said({ enabled: false, rule: rule ?? null }), { cache_salt: salt() }), page.stop.signal),
    () => speculative.run(request({ enabled: true, ...asked }, { cache_salt: salt() }), page.stop.signal),
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
  const clocks = say("clocks", { plain: number(plain.seconds, 1), speculative: number(speculative.seconds, 1) });
  const words = { at: number(at + 1), why, speed, clocks };
  const text = say(at < 0 ? "same" : "differs", words);
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
  page.asked = $("prompt").value;
  setRunning(true);
  const clock = setInterval(() => page.lanes.forEach((lane) => lane.showState()), TICK);
  try {
    conversation.ask(page.asked);
    await work();
  } catch (error) {
    fail(error);
  }
  clearInterval(clock);
  keep(page.lanes.at(-1).answer);
  page.stop.abort(); // the other lane of a race whose one lane failed
  page.stop = null;
  setRunning(false);
  await readServer();
}

/** What was answered belongs to the conversation, also when it was stopped; the field is free for the next message. */
function keep(answer) {
  if (!answer.text && !answer.calls.length) return conversation.show();
  conversation.add(page.asked, answer);
  if ($("prompt").value === page.asked) $("prompt").value = "";
  showLabel();
}

/** Ask the newest question again, as if its answer had not been given. */
function again() {
  if (page.stop || !conversation.messages.length) return;
  $("prompt").value = conversation.takeBack();
  showLabel();
  run(page.lanes.length > 1 ? raceTwo : answerOnce);
}

function startAnew() {
  page.stop?.abort();
  conversation.clear();
  layOut(["answer"]);
  showLabel();
  $("verdict").hidden = $("problem").hidden = true;
  $("prompt").focus();
}

/** After calls of tools, the field takes their result. */
function showLabel() {
  const names = conversation.calls.map((call) => call.function.name).join(say("comma"));
  $("prompt-label").textContent = names ? say("toolResult", { names }) : say("prompt");
}

function setRunning(running) {
  const held = running && document.activeElement?.matches("#run, #race, #again");
  for (const id of ["run", "race", "again"]) $(id).disabled = running;
  if (!running && document.activeElement === $("stop")) $("results").focus();
  $("stop").hidden = !running;
  if (!running) return;
  if (held) $("stop").focus({ preventScroll: true });
  if (NARROW.matches) $("results").scrollIntoView({ block: "start" });
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
  page.stop?.abort();
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
  const lengths = answer?.draftLengths ?? [];
  const mean = lengths.length ? lengths.reduce((sum, length) => sum + length, 0) / lengths.length : null;
  charts.acceptances.show(answer?.acceptances ?? [], answer?.acceptance ?? null);
  charts.draftLengths.show(lengths, mean);
  charts.rates.show(answer?.rates ?? [], answer?.rate ?? null, page.plain?.answer.rates ?? []);
}

function showState() {
  $("model").textContent = page.model ?? "…";
  const words = make("p", { className: "help", textContent: say("stateEmpty") });
  const open = $("state").querySelector("details")?.open ?? false;
  $("state").replaceChildren(...(page.state ? summarise(page.state) : [words]));
  if (open) $("state").querySelector("details").open = true;
}

/** Which model there is, and what the server says about its speculation. */
async function readServer() {
  try {
    const [model] = (await read("v1/models")).data;
    page.model = model.id;
    offerProposers(model.proposers);
    const [speculation, ready, health, text] = await Promise.all([
      read("v1/speculation"),
      read("ready"),
      read("health"),
      readText("metrics"),
    ]);
    page.state = { speculation, ready, health, metrics: samples(text) };
    showCode();
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

/** Only while it is unfolded; what is wrong in the form is told there too. */
function showCode() {
  if (!$("code").open) return;
  let texts;
  try {
    const body = plainRequest();
    texts = [asCurl(body), asPython(body)];
  } catch (error) {
    if (!(error instanceof Problem)) throw error;
    texts = Array(2).fill(say(error.kind, error.values));
  }
  [$("curl").textContent, $("python").textContent] = texts;
}

async function copied(text) {
  await copy(text);
  announce("copied");
}

function showMarks() {
  $("results").dataset.marks = $("marks").value;
}

function showAll() {
  translate();
  $("language").textContent = language === "fa" ? "English" : "فارسی";
  $("language").lang = language === "fa" ? "en" : "fa";
  popover.hide();
  for (const lane of page.lanes) lane.show();
  conversation.show();
  showLabel();
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
$("copy-answer").addEventListener("click", () => copied(page.lanes.at(-1).answer.text));
$("copy-chat").addEventListener("click", () => copied(conversation.toText()));
$("copy-link").addEventListener("click", () => {
  history.replaceState(null, "", toFragment($("form")));
  copied(location.href);
});
for (const button of document.querySelectorAll("[data-copies]"))
  button.addEventListener("click", () => copied($(button.dataset.copies).textContent));
$("again").addEventListener("click", again);
$("new").addEventListener("click", startAnew);
$("code").addEventListener("toggle", showCode);
$("form").addEventListener("input", showCode);
$("marks").addEventListener("change", () => {
  localStorage.setItem(MARKS, $("marks").value);
  showMarks();
});
addEventListener("hashchange", readLink);
addEventListener("keydown", (event) => {
  if (event.key === "Escape" && !event.defaultPrevented) page.stop?.abort();
});
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
for (const choice of $("form").elements.draft) choice.addEventListener("change", showDraft);
for (const chip of document.querySelectorAll("[data-example]"))
  chip.addEventListener("click", () => {
    $("prompt").value = EXAMPLES[language][chip.dataset.example];
    $("prompt").focus();
  });

function showDraft() {
  $("draft-length").disabled = $("form").elements.draft.value !== "fixed";
}

/** Settings that a link brought. */
function readLink() {
  try {
    fromFragment($("form"), location.hash);
  } catch (error) {
    fail(error);
  }
  showDraft();
}

build($("numbers"));
$("key-row").hidden = !hasKey();
$("marks").value = localStorage.getItem(MARKS) ?? "line";
showMarks();
if (NARROW.matches) $("settings").open = false;
layOut(["answer"]);
showAll();
await readServer(); // the proposers that a link may name
readLink();
