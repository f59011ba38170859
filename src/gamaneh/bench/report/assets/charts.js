/** Charts at the width that there is: axes, lines (many of them in panels), ratios with intervals, stacked bars. */

const FONT = 12;
const LABEL = FONT * 1.25; // height of a line of text
const MARK = 4.5;
const MOST_LINES = 4; // in one frame; more are drawn in a panel for each group
const PANEL = { width: 168, height: 128, gap: 14 };
const FRAME_HEIGHT = 190;
const MOST_TICKS = 6;

const ruler = document.createElement("canvas").getContext("2d");

/** How wide a text is, in pixels. */
function measured(text) {
  ruler.font = `${FONT}px ${getComputedStyle(document.body).fontFamily}`;
  return ruler.measureText(text).width * 1.04; // fonts hint
}

/** As much of a text as there is room for. */
function cut(text, room) {
  if (measured(text) <= room) return text;
  let end = text.length;
  while (end > 1 && measured(`${text.slice(0, end)}…`) > room) end -= 1;
  return `${text.slice(0, end).trimEnd()}…`;
}

/** Text whose `side` (left, middle or right, whatever its direction) stands at x. */
function label(text, x, y, side = "middle", kind = null) {
  const start = RTL ? "right" : "left";
  const anchor = side === "middle" ? "middle" : side === start ? "start" : "end";
  return draw("text", { x: round(x), y: round(y), "text-anchor": anchor, direction: RTL ? "rtl" : null, class: kind }, text);
}

const round = (value) => Math.round(value * 10) / 10;

// --- axes: from values to places ---

/** Values from low to high, by their logarithm if asked for; those outside stand at the end. */
function axis({ low, high, ticks, show, title = "", log = false }) {
  const scale = log ? Math.log : (value) => value;
  const [first, last] = [scale(low), scale(high)];
  const place = (value, start, end) =>
    start + (end - start) * Math.min(Math.max((scale(value) - first) / (last - first), 0), 1);
  return { ticks, show, title, place };
}

/** A round number that `largest` holds at most `most` - 1 times, rounded up. */
function roundStep(largest, most) {
  const rough = largest / (most - 1);
  const unit = 10 ** Math.floor(Math.log10(rough));
  return unit * [1, 2, 2.5, 5, 10].find((step) => step * unit >= rough * (1 - 1e-9));
}

/** From 0 to a round number at or above the largest value. */
function amountAxis(values, show, title = "", most = MOST_TICKS) {
  const largest = Math.max(0, ...values) || 1;
  const step = roundStep(largest, most);
  const steps = Math.max(Math.ceil(largest / step - 1e-9), 1);
  return axis({ low: 0, high: step * steps, ticks: Array.from({ length: steps + 1 }, (_, at) => step * at), show, title });
}

/** The same in the one unit that suits, which stands in the title: `key` names it with a place for the unit. */
function quantityAxis(values, kind, key, most) {
  const [unit, name] = kind.size(Math.max(0, ...values));
  const { ticks, title, place } = amountAxis(values.map((value) => value / unit), null, say(key, { unit: say(name) }), most);
  return {
    ticks: ticks.map((tick) => tick * unit), show: (value) => significant(value / unit), title,
    place: (value, start, end) => place(value / unit, start, end),
  };
}

function shareAxis(title, most = MOST_TICKS) {
  return axis({ low: 0, high: 1, ticks: most < 5 ? [0, 0.5, 1] : [0, 0.25, 0.5, 0.75, 1], show: share, title });
}

/** Positive ratios; 1 is always on the axis and has a tick. */
function ratioAxis(values, title, most = MOST_TICKS) {
  const [low, high] = [Math.min(0.95, ...values) / 1.06, Math.max(1.05, ...values) * 1.06];
  return axis({ low, high, ticks: ratioTicks(low, high, 0.84 / most), show: tickTimes, title, log: true });
}

/** Multiples of a round step, or round numbers, as fine as their labels have room: `gap` is a share of the axis. */
function ratioTicks(low, high, gap) {
  const within = (values) => [...new Set([1, ...values])].filter((value) => value >= low && value <= high).sort((one, other) => one - other);
  const multiples = (step) => Array.from({ length: Math.floor(high / step) }, (_, at) => Number((step * (at + 1)).toPrecision(9)));
  const rounds = (firsts) => [-2, -1, 0, 1, 2, 3].flatMap((power) => firsts.map((first) => Number(`${first}e${power}`)));
  const choices = [...[0.05, 0.1, 0.2, 0.25, 0.5, 1].map(multiples), ...[[1, 2, 3, 5], [1, 2, 5], [1, 5], [1]].map(rounds)];
  const roomy = (ticks) => ticks.every((tick, at) => !at || Math.log(tick / ticks[at - 1]) >= gap * Math.log(high / low));
  return choices.map(within).find(roomy) ?? [1];
}

/** Levels that were measured, each with a tick. */
function levelAxis(levels, title) {
  const ticks = [...new Set(levels)].sort((one, other) => one - other);
  const room = ticks.length === 1 ? 2 : 1.1;
  return axis({ low: ticks[0] / room, high: ticks.at(-1) * room, ticks, show: significant, title, log: true });
}

/** Places 1 to `last`, with room at both ends. */
function placeAxis(last, title, most = 10) {
  const step = Math.ceil(last / most);
  const ticks = Array.from({ length: Math.ceil(last / step) }, (_, at) => 1 + step * at);
  return axis({ low: 0.6, high: last + 0.4, ticks, show: significant, title });
}

/** How many labels of an axis have room side by side. */
const room = (width) => Math.min(Math.max(Math.floor(width / 62), 3), MOST_TICKS);

/** Vertical lines at the ticks, with those of their values that do not touch each other. */
function xAxis({ left, right, top, bottom }, { ticks, show, place }, mirrored = false) {
  const [low, high] = mirrored ? [right, left] : [left, right];
  const ends = [];
  return ticks.map((tick) => {
    const [x, text] = [place(tick, low, high), show(tick)];
    const half = measured(text) / 2;
    const free = ends.every(([from, to]) => x + half + 4 < from || x - half - 4 > to);
    if (free) ends.push([x - half, x + half]);
    const line = draw("line", { x1: round(x), x2: round(x), y1: top, y2: bottom, class: "grid" });
    return free ? [line, label(text, x, bottom + LABEL)] : [line];
  });
}

function yAxis({ left, right, top, bottom }, { ticks, show, place }, labelled = true) {
  return ticks.map((tick) => {
    const y = place(tick, bottom, top);
    const line = draw("line", { x1: left, x2: right, y1: round(y), y2: round(y), class: "grid" });
    return labelled ? [line, label(show(tick), left - 6, y + 4, "right")] : [line];
  });
}

const widest = ({ ticks, show }) => Math.max(...ticks.map((tick) => measured(show(tick))));

/** A chart as one image with a name. */
function drawing(width, height, title, ...parts) {
  const view = `0 0 ${round(width)} ${round(height)}`;
  return draw("svg", { class: "chart", role: "img", "aria-label": title, viewBox: view }, ...parts.flat(Infinity));
}

// --- series: a label, the colour of a tone, the shape of a mark, so that colours are not needed to tell them apart ---

const series = (text, number) => ({ label: text, tone: `tone-${number % 8}`, shape: number });

/** A mark that shows `title` when one points at it. */
function mark(one, x, y, title, size = MARK) {
  return draw("g", { class: `mark ${one.tone}` }, draw("title", {}, title), SHAPES[one.shape % SHAPES.length](x, y, size));
}

const path = (d) => draw("path", { d });
const SHAPES = [
  (x, y, size) => draw("circle", { cx: round(x), cy: round(y), r: size }),
  (x, y, size) => path(`M${round(x - size + 0.5)} ${round(y - size + 0.5)}h${2 * size - 1}v${2 * size - 1}h${1 - 2 * size}z`),
  (x, y, size) => path(`M${round(x)} ${round(y - size - 1)}l${size + 1} ${size + 1}l${-size - 1} ${size + 1}l${-size - 1} ${-size - 1}z`),
  (x, y, size) => path(`M${round(x)} ${round(y - size - 0.5)}l${size + 0.5} ${2 * size + 1}h${-2 * size - 1}z`),
];

/** The series by their marks; nothing where there is only one. */
function legend(all) {
  if (all.length < 2) return null;
  const swatch = (one) =>
    draw("svg", { viewBox: "0 0 22 14", "aria-hidden": "true" }, draw("line", { x1: 0, x2: 22, y1: 7, y2: 7, class: `line ${one.tone}` }), mark(one, 11, 7, one.label));
  return make("ul", { class: "legend" }, all.map((one) => make("li", {}, swatch(one), make("span", { dir: "auto" }, one.label))));
}

// --- lines ---

/**
 * Lines, each `{series, group, points: [{x, y, title, low, high}]}`. A point has a mark if it has a title. Up to
 * MOST_LINES share a frame; more get a panel for each group, with the lines of the others behind it.
 * `x` and `y` make an axis for the number of labels that have room; `reference` is a value of y to compare with.
 */
function lineChart({ title, lines, x, y, reference = null }) {
  const shared = !inPanels(lines);
  return (width) => (shared ? sharedFrame : panels)({ title, lines, x, y, reference, width });
}

const groupsOf = (lines) => [...new Set(lines.map((line) => line.group))];
const inPanels = (lines) => lines.length > MOST_LINES && groupsOf(lines).length > 1;

function sharedFrame({ title, lines, x, y, reference, width }) {
  const up = y(MOST_TICKS);
  const left = Math.ceil(widest(up)) + 8;
  const across = x(room(width - left));
  const frame = { left, right: width - lastHalf(across), top: LABEL + 12, bottom: LABEL + 12 + FRAME_HEIGHT };
  return drawing(width, frame.bottom + 2 * LABEL + 12, title, [
    label(cut(up.title, width), 0, FONT, "left", "axis-title"),
    xAxis(frame, across), yAxis(frame, up), referenceLine(frame, up, reference),
    lines.map((line) => band(line, frame, across, up)), lines.map((line) => curve(line, frame, across, up)),
    label(cut(across.title, width), (frame.left + frame.right) / 2, frame.bottom + 2 * LABEL + 4, "middle", "axis-title"),
  ]);
}

const lastHalf = ({ ticks, show }) => Math.ceil(measured(show(ticks.at(-1))) / 2) + 6;

function panels({ title, lines, x, y, reference, width }) {
  const groups = groupsOf(lines);
  const columns = Math.min(groups.length, Math.max(Math.floor((width + PANEL.gap) / (PANEL.width + PANEL.gap)), 2));
  const up = y(3);
  const left = Math.ceil(widest(up)) + 8;
  const edge = lastHalf(x(3));
  const gap = Math.max(PANEL.gap, 2 * edge - 4);
  const step = (width - edge - left + gap) / columns;
  const across = x(room(step - gap));
  const row = PANEL.height + 3 * LABEL;
  const rows = Math.ceil(groups.length / columns);
  const height = LABEL + 8 + rows * row + LABEL + 8;
  const drawn = groups.map((group, at) => {
    const column = RTL ? columns - 1 - (at % columns) : at % columns;
    const top = LABEL + 8 + Math.floor(at / columns) * row + LABEL + 4;
    const start = left + column * step;
    const frame = { left: start, right: start + step - gap, top, bottom: top + PANEL.height };
    return panel({ group, lines, frame, across, up, reference, labelled: column === 0 || (RTL && at === groups.length - 1) });
  });
  return drawing(width, height, title, [
    label(cut(up.title, width), 0, FONT, "left", "axis-title"), drawn,
    label(cut(across.title, width), (left + width) / 2, height - 6, "middle", "axis-title"),
  ]);
}

function panel({ group, lines, frame, across, up, reference, labelled }) {
  const own = lines.filter((line) => line.group === group);
  const behind = lines.filter((line) => line.group !== group).map((line) => faint(line, frame, across, up));
  const [name, width] = [cut(group, frame.right - frame.left - 16), frame.right - frame.left];
  const side = RTL ? "right" : "left";
  const [dot, from] = RTL ? [frame.right - 5, frame.right - 15] : [frame.left + 5, frame.left + 15];
  return draw("g", { class: "panel", "data-lines": own.length }, [
    mark(own[0].solid ?? own[0].series, dot, frame.top - 9, group, 4), label(cut(name, width - 16), from, frame.top - 5, side, "name"),
    xAxis(frame, across), yAxis(frame, up, labelled), referenceLine(frame, up, reference), behind,
    own.map((line) => band(line, frame, across, up)), own.map((line) => curve(line, frame, across, up, 2.6)),
  ].flat(Infinity).filter((part) => part !== null));
}

function referenceLine({ left, right, top, bottom }, up, value) {
  if (value === null) return [];
  const y = round(up.place(value, bottom, top));
  return [draw("line", { x1: left, x2: right, y1: y, y2: y, class: "reference" })];
}

const at = ({ x, y }, { left, right, top, bottom }, across, up) => [across.place(x, left, right), up.place(y, bottom, top)];
const trace = (places) => `M${places.map(([x, y]) => `${round(x)} ${round(y)}`).join("L")}`;

function curve(line, frame, across, up, size = MARK) {
  const places = line.points.map((point) => at(point, frame, across, up));
  const marks = line.points.map((point, number) => (point.title ? mark(line.series, ...places[number], point.title, size) : null));
  const shape = places.length ? draw("path", { d: trace(places), class: `line ${line.series.tone}` }) : null;
  return draw("g", { class: "series" }, shape, ...marks.filter((one) => one !== null));
}

function faint(line, frame, across, up) {
  return line.points.length ? draw("path", { d: trace(line.points.map((point) => at(point, frame, across, up))), class: "line behind" }) : null;
}

/** Where the values are not sure; a single point gets a line. */
function band(line, frame, across, up) {
  const sure = line.points.filter((point) => point.low !== undefined);
  if (!sure.length) return [];
  const [low, high] = ["low", "high"].map((end) => sure.map((point) => at({ x: point.x, y: point[end] }, frame, across, up)));
  if (sure.length === 1) return [draw("path", { d: trace([low[0], high[0]]), class: `interval ${line.series.tone}` })];
  return [draw("path", { d: `${trace([...high, ...low.reverse()])}Z`, class: `band ${line.series.tone}` })];
}

// --- ratios with intervals: which are surely above 1? ---

/** Rows `{name, marks: [{series, ratio}]}`: names where lines begin, values at the other side; on phones above. */
function forestChart({ title, rows }) {
  return (width) => {
    const narrow = width < 400;
    const values = Math.ceil(Math.max(...rows.flatMap(({ marks }) => marks.map(({ ratio }) => measured(times(ratio.value)))))) + 12;
    const names = narrow ? 14 : Math.min(Math.ceil(Math.max(...rows.map(({ name }) => measured(name)))) + 16, 0.3 * width);
    const [left, right] = RTL ? [values, width - names] : [names, width - values];
    const [step, above] = [17, narrow ? LABEL + 2 : 0];
    const heights = rows.map(({ marks }) => marks.length * step + 11 + above);
    const bottom = 8 + heights.reduce((sum, height) => sum + height, 0);
    const bounds = rows.flatMap(({ marks }) => marks.flatMap(({ ratio }) => [ratio.low, ratio.high]));
    const across = ratioAxis(bounds, say("ratio_axis"), room(right - left));
    const frame = { left, right, top: 8, bottom };
    const one = round(across.place(1, left, right));
    let top = 8;
    const drawn = rows.map((row, number) => {
      const parts = forestRow(row, { top, step, above, names: narrow ? width : names - 8, width, frame, across });
      top += heights[number];
      return parts;
    });
    return drawing(width, bottom + 2 * LABEL + 12, title, [
      xAxis(frame, across), draw("line", { x1: one, x2: one, y1: 8, y2: bottom, class: "reference" }), drawn,
      label(cut(across.title, width), width / 2, bottom + 2 * LABEL + 4, "middle", "axis-title"),
    ]);
  };
}

function forestRow({ name, marks }, { top, step, above, names, width, frame, across }) {
  const [outside, side] = RTL ? [width - 2, "right"] : [2, "left"];
  const [far, farSide] = RTL ? [2, "left"] : [width - 2, "right"];
  const middle = above ? top + FONT + 1 : top + (marks.length * step) / 2 + 5;
  const title = draw("g", {}, draw("title", {}, name), label(cut(name, names), outside, middle, side, "name"));
  return [title, marks.map(({ series: own, ratio }, number) => {
    const y = top + above + (number + 0.5) * step + 1;
    const [value, low, high] = [ratio.value, ratio.low, ratio.high].map((part) => across.place(part, frame.left, frame.right));
    return [
      draw("line", { x1: round(low), x2: round(high), y1: y, y2: y, class: `interval ${own.tone}` }),
      mark(own, value, y, `${own.label} · ${name}: ${interval(ratio)}`),
      label(times(ratio.value), far, y + 4, farSide, "value"),
    ];
  })];
}

// --- stacked bars: what a whole is made of ---

/** Bars `{name, parts: [[series, value]]}` begin where lines of text begin; each has its name and its whole above it. */
function barChart({ title, bars, kind, axisKey, show }) {
  return (width) => {
    const wholes = bars.map(({ parts }) => parts.reduce((sum, [, value]) => sum + value, 0));
    const across = quantityAxis(wholes, kind, axisKey, room(width));
    const [near, far] = [10, lastHalf(across)];
    const [left, right] = RTL ? [far, width - near] : [near, width - far];
    const [start, end] = RTL ? [right, left] : [left, right];
    const [bar, row] = [16, 16 + LABEL + 12];
    const frame = { left, right, top: 4, bottom: 4 + row * bars.length };
    const drawn = bars.map(({ name, parts }, number) => {
      const [top, whole] = [4 + row * number, show(wholes[number])];
      const words = `${cut(name, width - measured(` · ${whole}`) - 20)} · ${whole}`;
      let from = 0;
      const pieces = parts.map(([one, value]) => {
        const ends = [across.place(from, start, end), across.place(from + value, start, end)];
        from += value;
        const shape = draw("rect", { x: round(Math.min(...ends)), width: round(Math.abs(ends[1] - ends[0])), y: round(top + LABEL + 2), height: bar });
        return draw("g", { class: `part ${one.tone}` }, draw("title", {}, `${one.label}: ${show(value)}`), shape);
      });
      return [draw("g", {}, draw("title", {}, name), label(words, start, top + FONT, RTL ? "right" : "left", "name")), pieces];
    });
    return drawing(width, frame.bottom + 2 * LABEL + 12, title, [
      xAxis(frame, across, RTL), drawn,
      label(cut(across.title, width), (left + right) / 2, frame.bottom + 2 * LABEL + 4, "middle", "axis-title"),
    ]);
  };
}

// --- figures: a chart with its words, its legend and its table ---

const shown = new Map(); // place of a chart -> what draws it

/** A chart with its title, how to read it, its series, its figures as a table, and what must be known beside it. */
function figure({ title, text, chart, legend: all, table: figures, note = null }) {
  const place = make("div", { class: "drawing" });
  shown.set(place, chart);
  return make("figure", { class: "card" },
    make("figcaption", {}, make("h3", {}, title), make("p", {}, text)),
    legend(all), place, note && make("p", { class: "soft" }, note), folded(say("table"), figures));
}

const PRINTED = 640; // pixels

/** Draw all charts at the width of their places, now and whenever that changes. */
function drawCharts() {
  const fit = (place, width) => {
    if (width < 1 || place.dataset.width === String(width)) return;
    place.dataset.width = width;
    place.replaceChildren(shown.get(place)(width));
  };
  const now = () => shown.forEach((_, place) => fit(place, Math.floor(place.clientWidth)));
  now();
  document.fonts.ready.then(() => shown.forEach((_, place) => delete place.dataset.width)).then(now);
  new ResizeObserver(now).observe(document.body);
  addEventListener("beforeprint", () => shown.forEach((_, place) => fit(place, PRINTED)));
  addEventListener("afterprint", now);
}
