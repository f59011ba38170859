/** Words, figures and elements in the language of the page. */

const REPORT = JSON.parse(document.getElementById("report").textContent);
const WORDS = new Map(Object.entries(REPORT.words));
const RTL = document.documentElement.dir === "rtl";
const PERSIAN_DIGITS = Object.fromEntries([..."0123456789.%"].map((sign, at) => [sign, "۰۱۲۳۴۵۶۷۸۹٫٪"[at]]));
const MISSING = "–";
const ARROW = RTL ? " ← " : " → ";

// --- words ---

const fill = (text, values) => text.replace(/\{(\w+)\}/g, (_, name) => values[name]);

/** The words for a key. */
const say = (key, values = {}) => fill(WORDS.get(key), values);

/** The words for a name out of a run, such as a category; the name itself if it is not known. */
const nameOf = (name) => WORDS.get(name) ?? name;

const listed = (parts) => parts.join(RTL ? "، " : ", ");

/** A text that runs from left to right, whatever stands beside it. */
const isolated = (text) => (RTL ? `\u2066${text}\u2069` : text);

/** A figure in the digits of the language. */
const digits = (text) => (RTL ? isolated(text.replace(/[0-9.%]/g, (sign) => PERSIAN_DIGITS[sign])) : text);

/** A date; with its time to the minute where `text` is a moment of UTC as ISO 8601 writes it. */
function moment(text) {
  const found = /^(\d{4}-\d\d-\d\d)T(\d\d:\d\d)\S*(?:\+00:00|Z)$/.exec(text);
  return found ? say("moment", { date: digits(found[1]), time: digits(`${found[2]} UTC`) }) : digits(text);
}

/** An English text of the run in the words of the page; null in English, or where it does not read as expected. */
function retold(text, key) {
  const [source, wanted] = [REPORT.recorded[key], WORDS.get(key)];
  if (source === undefined) return null;
  const names = [...source.matchAll(/\{(\w+)\}/g)].map(([, name]) => name);
  const pattern = source.split(/\{\w+\}/).map((part) => part.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")).join("(.+?)");
  const found = new RegExp(`^${pattern}$`).exec(text);
  return found && fill(wanted, Object.fromEntries(names.map((name, at) => [name, retoldParts(found[at + 1])])));
}

const retoldParts = (text) => listed(text.split(", ").map((part) => retold(part, "failed_times") ?? retoldPart(part)));

const retoldPart = (part) => (/^[\d.%]+$/.test(part) ? digits(part) : WORDS.get(part) ?? isolated(part));

// --- figures; null is what was not measured ---

/** With so many decimal places, halves to even. */
function fixed(value, places) {
  const text = value.toFixed(places);
  const isHalf = Number.isInteger(value * 2 ** (places + 1)) && (Math.abs(value) * 10 ** places) % 1 === 0.5;
  return isHalf && Number(text.at(-1)) % 2 ? (Math.trunc(value * 10 ** places) / 10 ** places).toFixed(places) : text;
}

/** The power of ten of the first figure. */
const magnitude = (value) => Number(Math.abs(value).toExponential(6).split("e")[1]);

function shortened(value, figures = 3) {
  const text = fixed(value, value === 0 ? 0 : Math.max(figures - 1 - magnitude(value), 0));
  return text.includes(".") ? text.replace(/\.?0+$/, "") : text;
}

const known = (show) => (value) => (value === null || value === undefined ? MISSING : show(value));

/** A whole number, its thousands apart. */
const count = known((value) => digits(fixed(value, 0).replace(/\B(?=(\d{3})+$)/g, "\u202f")));

/** Three figures, and no zeros behind them. */
const significant = known((value) => digits(shortened(value)));

const times = known((value) => digits(`${fixed(value, 2)}×`));

const tickTimes = (value) => digits(`${shortened(value)}×`);

/** A ratio and how sure it is. */
const interval = known(({ value, low, high }) => digits(`${fixed(value, 2)}× (${fixed(low, 2)} – ${fixed(high, 2)})`));

const share = known((value) => digits(`${fixed(value * 100, 0)}%`));

const SECONDS = { size: (value) => (value >= 1 ? [1, "unit_s"] : [1e-3, "unit_ms"]) };
const BYTES = {
  size: (value) => {
    const at = Math.min(Math.floor(magnitude(Math.max(value, 1)) / 3), 4);
    return [1000 ** at, ["unit_B", "unit_kB", "unit_MB", "unit_GB", "unit_TB"][at]];
  },
};

/** A value in the unit that suits. */
function quantity(value, { size }) {
  const [unit, key] = size(value);
  return `${digits(shortened(value / unit))} ${say(key)}`;
}

const seconds = known((value) => (value === 0 ? digits("0") : quantity(value, SECONDS)));
const bytes = known((value) => (value < 1 ? digits("0") : quantity(value, BYTES)));

// --- elements ---

/** An element with children; null children and attributes are left out. */
function make(name, attributes = {}, ...children) {
  return finish(document.createElement(name), attributes, children);
}

/** An element of a drawing. */
function draw(name, attributes = {}, ...children) {
  return finish(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);
}

function finish(element, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) if (value !== null) element.setAttribute(key, value);
  element.append(...children.flat().filter((child) => child !== null));
  return element;
}

/** Content that is shown when one asks for it. */
const folded = (title, ...content) => make("details", {}, make("summary", {}, title), ...content);

/** Rows of text in a box that scrolls sideways; the first `words` columns hold words and the others figures. */
function table(heads, rows, words = 1) {
  const kind = (at) => (at < words ? { dir: "auto" } : { class: "figure" });
  const cells = (name, row) => make("tr", {}, row.map((text, at) => make(name, kind(at), text)));
  const body = make("tbody", {}, rows.map((row) => cells("td", row)));
  return make("div", { class: "scroll", tabindex: 0 }, make("table", {}, make("thead", {}, cells("th", heads)), body));
}

/** A name and what is known of it; foreign values may run the other way than the page. */
const pair = (name, value, foreign = false) =>
  make("div", {}, make("dt", {}, name), make("dd", {}, foreign ? make("bdi", {}, value) : value));
