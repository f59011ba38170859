/** Small line charts in SVG, with their figures in words for those who do not see them. */

import { say } from "./text.js";
import { make } from "./tokens.js";

const WIDTH = 320;
const HEIGHT = 120;
const LEFT = 34;
const BOTTOM = 16;
const TOP = 10;
const MOST = 240; // rounds that are shown

const SVG = "http://www.w3.org/2000/svg";

function draw(name, attributes, text = "") {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.textContent = text;
  return element;
}

/** One chart: `format` shows a value, `top` is the least height of the scale. */
export class Chart {
  constructor(parent, { title, format, top }) {
    Object.assign(this, { title, format, top });
    this.svg = draw("svg", { class: "chart", role: "img", viewBox: `0 0 ${WIDTH} ${HEIGHT}` });
    this.name = make("span");
    this.value = make("b");
    parent.append(make("figure", {}, make("figcaption", {}, this.name, this.value), this.svg));
    this.show([]);
  }

  /** Show one value per round, and those of plain decoding to compare with. Nulls are left out. */
  show(values, against = []) {
    const [shown, other] = [values.slice(-MOST), against.slice(-MOST)];
    const known = [...shown, ...other].filter((value) => value !== null);
    const scale = { top: Math.max(this.top, ...known), count: Math.max(shown.length, other.length, 2) };
    this.svg.replaceChildren(...this.#axes(scale), ...line(other, scale, "against"), ...line(shown, scale, ""));
    this.#caption(values, known, other.length > 0);
  }

  #axes({ top, count }) {
    const base = HEIGHT - BOTTOM;
    return [
      draw("path", { class: "axis", d: `M${LEFT} ${TOP}H${WIDTH}M${LEFT} ${base}H${WIDTH}M${LEFT} ${(TOP + base) / 2}H${WIDTH}` }),
      draw("text", { x: LEFT - 4, y: TOP + 4, "text-anchor": "end" }, this.format(top)),
      draw("text", { x: LEFT - 4, y: base + 3, "text-anchor": "end" }, this.format(0)),
      draw("text", { x: WIDTH, y: HEIGHT - 3, "text-anchor": "end" }, count > 2 ? this.rounds(count) : ""),
    ];
  }

  rounds(count) {
    return count.toLocaleString(document.documentElement.lang);
  }

  #caption(values, known, compared) {
    const title = say(this.title);
    const last = values.findLast((value) => value !== null);
    this.name.textContent = compared ? `${title} · ${say("chartPlain")}` : title;
    this.value.textContent = last === undefined ? "" : this.format(last);
    const [low, high] = [this.format(Math.min(...known)), this.format(Math.max(...known))];
    const words = { title, count: this.rounds(values.length), last: this.value.textContent, low, high };
    this.svg.setAttribute("aria-label", say(last === undefined ? "chartEmpty" : "chartLabel", words));
  }
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
  return [draw("path", { class: `line ${kind}`, d: path || "M0 0" }), ...dots];
}
