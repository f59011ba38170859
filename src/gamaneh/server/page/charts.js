/** Small charts in SVG, bars or a line, with their figures in words for those who do not see them. */

import { number, say } from "./text.js";
import { make } from "./tokens.js";

const WIDTH = 320;
const HEIGHT = 130;
const LEFT = 34;
const BOTTOM = 16;
const TOP = 20;
const MOST = 240; // rounds that are shown

const SVG = "http://www.w3.org/2000/svg";

function draw(name, attributes, text = "") {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.textContent = text;
  return element;
}

/** One chart: `format` shows a value, `top` is the least height of the scale, `axis` names it; bars or a line. */
export class Chart {
  constructor(parent, { title, axis, format, top, bars = false }) {
    Object.assign(this, { title, axis, format, top, bars });
    this.svg = draw("svg", { class: "chart", role: "img", viewBox: `0 0 ${WIDTH} ${HEIGHT}` });
    this.name = make("span");
    this.value = make("b");
    this.mean = make("small");
    parent.append(make("figure", {}, make("figcaption", {}, this.name, make("span", {}, this.value, " ", this.mean)), this.svg));
    this.show([], null);
  }

  /** Show one value per round beside those of plain decoding, and the mean. Nulls are left out. */
  show(values, mean, against = []) {
    const [shown, other] = [values.slice(-MOST), against.slice(-MOST)];
    const known = [...shown, ...other].filter((value) => value !== null);
    const scale = { top: Math.max(this.top, ...known), count: Math.max(shown.length, other.length, 2) };
    const marks = this.bars ? bars(shown, scale) : line(shown, scale, "");
    this.svg.replaceChildren(...this.#axes(scale), ...line(other, scale, "against"), ...marks);
    this.#caption(values, known, mean, other.length > 0);
  }

  #axes({ top, count }) {
    const base = HEIGHT - BOTTOM;
    const rounds = count > 2 ? `${say("chartRound")} ${number(1)}–${number(count)}` : say("chartRound");
    return [
      draw("path", { class: "axis", d: `M${LEFT} ${TOP}H${WIDTH}M${LEFT} ${base}H${WIDTH}M${LEFT} ${(TOP + base) / 2}H${WIDTH}` }),
      draw("text", { x: LEFT - 4, y: TOP + 4, "text-anchor": "end" }, this.format(top)),
      draw("text", { x: LEFT - 4, y: base + 3, "text-anchor": "end" }, this.format(0)),
      draw("text", { x: LEFT, y: TOP - 5 }, say(this.axis)),
      draw("text", { x: WIDTH, y: HEIGHT - 3, "text-anchor": "end" }, rounds),
    ];
  }

  #caption(values, known, mean, compared) {
    const title = say(this.title);
    const empty = known.length === 0;
    this.name.textContent = compared ? `${title} · ${say("chartPlain")}` : title;
    this.value.textContent = empty || mean === null ? "" : this.format(mean);
    this.mean.textContent = this.value.textContent && say("chartMean");
    const [low, high] = [this.format(Math.min(...known)), this.format(Math.max(...known))];
    const words = { title, count: number(values.length), mean: this.value.textContent, low, high };
    this.svg.setAttribute("aria-label", say(empty ? "chartEmpty" : "chartLabel", words));
  }
}

/** One bar for each value; a value of 0 is a thin one, a null is a gap. */
function bars(values, { top, count }) {
  const [base, slot] = [HEIGHT - BOTTOM, (WIDTH - LEFT) / count];
  return values.flatMap((value, index) => {
    if (value === null) return [];
    const height = Math.max(1, (value / top) * (base - TOP));
    const [x, width] = [LEFT + index * slot, Math.max(0.8, Math.min(slot * 0.8, 14))];
    return [draw("rect", { class: "bar", x: x.toFixed(1), y: (base - height).toFixed(1), width: width.toFixed(1), height: height.toFixed(1) })];
  });
}

/** A line with a gap wherever a value is missing, and a dot at a value without neighbours. */
function line(values, { top, count }, kind) {
  const base = HEIGHT - BOTTOM;
  const at = (value, index) => [LEFT + (index / (count - 1)) * (WIDTH - LEFT), base - (value / top) * (base - TOP)];
  let path = "";
  const dots = [];
  values.forEach((value, index) => {
    if (value === null) return;
    const [x, y] = at(value, index).map((coordinate) => coordinate.toFixed(1));
    const joins = index > 0 && values[index - 1] !== null;
    const goesOn = index + 1 < values.length && values[index + 1] !== null;
    path += `${joins ? "L" : "M"}${x} ${y}`;
    if (!joins && !goesOn) dots.push(draw("circle", { class: `dot ${kind}`, cx: x, cy: y, r: 2 }));
  });
  if (!path) return [];
  return [draw("path", { class: `line ${kind}`, d: path }), ...dots];
}
