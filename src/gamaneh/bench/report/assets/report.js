/** The report: cards of the runs, charts, all figures, what speaks for and against them, and where they come from. */

const LEAST_DRAFTS = 5; // positions that fewer drafts reached are left to the table
const MOST_DIFFERENCES = 50;
const SHORT_HASH = 12;
const SIDES = ["plain", "speculative"];

// --- the runs, each with a name of its own and a colour ---

function entriesOf(runs) {
  const repeated = (name) => runs.filter((run) => run.name === name).length > 1;
  return runs.map((run, number) => {
    const before = runs.slice(0, number + 1).filter((other) => other.name === run.name).length;
    const name = repeated(run.name) ? `${run.name} (${digits(String(before))})` : run.name;
    return { run, label: name, series: series(name, number), alone: runs.length === 1 };
  });
}

/** The first load: the one that groups, latencies and survival are shown of. */
const wholeOf = (entry) => entry.run.points[0].groups[0];
const groupsBy = (entry, kind) => entry.run.points[0].groups.filter((group) => group.kind === kind);
const loadWords = ({ pattern, level }) => say(pattern, { level: significant(level) });

/** The plain and the speculative side, both in the colour of the run. */
function sideSeries({ label: name, series: own, alone }) {
  const plain = { ...own, label: alone ? say("plain") : say("plain_of", { run: name }), tone: `${own.tone} plain` };
  return [plain, { ...own, label: alone ? say("speculative") : name }];
}

// --- cards ---

function card(entry) {
  const { run } = entry;
  const ratio = run.points.length ? wholeOf(entry).speedup : null;
  const who = `${isolated(run.speculative.target)} · ${nameOf(run.speculative.proposer ?? "unknown")}`;
  return make("article", { class: `card run ${entry.series.tone}` },
    make("h3", { dir: "auto" }, entry.label), make("p", { class: "soft" }, who), headline(ratio), troubles(run),
    run.points.length ? SIDES.flatMap((side) => shortcomings(wholeOf(entry)[side], side)) : null,
    make("dl", {}, facts(entry).map(([name, value]) => pair(name, value))));
}

function headline(ratio) {
  if (ratio === null) return make("p", { class: "headline open" }, make("strong", {}, say("not_measured")));
  const verdict = ratio.low > 1 ? "faster" : ratio.high < 1 ? "slower" : "no_difference";
  return make("p", { class: `headline ${verdict.replace("_", "-")}` },
    make("strong", {}, times(ratio.value)), make("span", { class: "badge" }, say(verdict)),
    make("small", {}, say("interval", { low: times(ratio.low), high: times(ratio.high) })));
}

const trouble = (text) => make("p", { class: "trouble" }, text);

/** What is wrong with a run as a whole. */
function troubles({ complete, stopped, failures }) {
  return [
    complete ? null : trouble(say("incomplete")),
    stopped === null ? null : trouble(say("stopped", { reason: isolated(stopped) })),
    failures.length ? trouble(say("failures", { count: count(failures.length) })) : null,
  ];
}

/** What the figures of a side leave out, and whether its outputs are those of the target. */
function shortcomings({ left_out: leftOut, approximate }, side) {
  const parts = Object.entries(leftOut).filter(([, number]) => number).map(([reason, number]) => `${nameOf(reason)} ${count(number)}`);
  return [
    parts.length ? trouble(say("left_out", { side: say(side), parts: listed(parts) })) : null,
    approximate ? trouble(say("approximate_side")) : null,
  ];
}

function facts(entry) {
  const { speculative: setup, points, speculative_memory: memory, equality } = entry.run;
  return [
    [say("k"), setup.k === null ? say("adapts") : count(setup.k)],
    ...(setup.rule ? [[say("rule"), ruleOf(setup)]] : []),
    ...(points.length ? measuredFacts(entry) : []),
    [say("draft_memory"), bytes(sum(Object.values(memory.proposers)) || null)],
    ...(equality === null ? [] : [[say("same_output"), equalityWords(equality)]]),
  ];
}

const sum = (values) => values.reduce((total, value) => total + value, 0);

function ruleOf({ rule, exact }) {
  return exact === null ? nameOf(rule) : `${nameOf(rule)} (${say(exact ? "exact" : "approximate")})`;
}

function measuredFacts(entry) {
  const whole = wholeOf(entry);
  const counted = SIDES.map((side) => whole[side].tokens_from).filter((source) => source !== null);
  const drafts = whole.speculative.speculation;
  const latencies = ["tpot", "ttft"].filter((name) => SIDES.every((side) => whole[side][name] !== null));
  return [
    [say("load"), loadWords(entry.run.points[0].load)],
    [say("prompts"), count(whole.prompts)],
    ...(drafts ? [[say("acceptance"), share(drafts.acceptance_rate)], [say("tokens_per_round"), significant(drafts.tokens_per_round)]] : []),
    ...(counted.length ? [[say("tokens_from"), [...new Set(counted)].map((source) => say(`tokens_${source}`)).join(ARROW)]] : []),
    ...latencies.map((name) => [say(`${name}_p95`), SIDES.map((side) => seconds(whole[side][name].p95)).join(ARROW)]),
  ];
}

function equalityWords({ expected, equal, compared, ties }) {
  if (!expected) return say("same_not_promised");
  const told = say("equal_of", { equal: count(equal), compared: count(compared) });
  return ties ? `${told} (${say("ties_of", { ties: count(ties) })})` : told;
}

// --- speed-up by group ---

const GROUPS = { category: "speed_title", language: "speed_language", length: "speed_length" };

function groupFigures(entries) {
  return Object.entries(GROUPS).flatMap(([kind, key]) => {
    const groups = entries.flatMap((entry) => groupsBy(entry, kind).map((group) => [entry, group]));
    const names = [...new Set(groups.map(([, group]) => group.name))];
    const rows = names.flatMap((name) => forestRowOf(name, groups.filter(([, group]) => group.name === name)));
    if (rows.length < 2) return [];
    const all = forestRowOf("all", entries.map((entry) => [entry, wholeOf(entry)]));
    const loads = [...new Set(entries.map((entry) => loadWords(entry.run.points[0].load)))];
    return [figure({
      title: say(key), text: `${say("speed_text")} (${loads.join(RTL ? "؛ " : "; ")})`,
      chart: forestChart({ title: say(key), rows: [...rows, ...all] }),
      legend: entries.map((entry) => entry.series), table: groupTable(kind, entries),
    })];
  });
}

/** No row where no answer was long enough to time. */
function forestRowOf(name, groups) {
  const marks = groups.filter(([, group]) => group.speedup !== null).map(([entry, group]) => ({ series: entry.series, ratio: group.speedup }));
  return marks.length ? [{ name: nameOf(name), marks }] : [];
}

function groupTable(kind, entries) {
  const heads = [kind, "run", "prompts", "speedup", "e2e_speedup", "acceptance", "tokens_per_round"].map((head) => say(head));
  const rows = entries.flatMap((entry) => [...groupsBy(entry, kind), wholeOf(entry)].map((group) => {
    const drafts = group.speculative.speculation;
    return [nameOf(group.name), entry.label, count(group.prompts), interval(group.speedup), interval(group.e2e_speedup),
      share(drafts?.acceptance_rate), significant(drafts?.tokens_per_round)];
  }));
  return table(heads, rows, 2);
}

// --- load ---

/** Requests at once and requests per second apart, each where more than one level was measured. */
function loadFigures(entries) {
  return [true, false].flatMap((closed) => {
    const family = entries.map((entry) => ({ entry, points: pointsOf(entry, closed) })).filter(({ points }) => points.length);
    const levels = family.flatMap(({ points }) => points.map((point) => point.load.level));
    if (new Set(levels).size < 2) return [];
    const x = () => levelAxis(levels, say(closed ? "closed_axis" : "open_axis"));
    const rated = family.some(({ points }) => points.some((point) => point.groups[0].plain.tokens_per_second));
    return [gainFigure(family, x), ...(rated ? [rateFigure(family, x)] : [])];
  });
}

function pointsOf(entry, closed) {
  const points = entry.run.points.filter(({ load }) => (load.pattern === "closed") === closed);
  return points.sort((one, other) => one.load.level - other.load.level);
}

function gainFigure(family, x) {
  const lines = family.map(({ entry, points }) => ({
    series: entry.series, group: entry.label,
    points: points.filter((point) => point.groups[0].speedup !== null).map((point) => {
      const { value, low, high } = point.groups[0].speedup;
      return { x: point.load.level, y: value, low, high, title: `${loadWords(point.load)}: ${interval(point.groups[0].speedup)}` };
    }),
  }));
  const bounds = lines.flatMap(({ points }) => points.flatMap(({ low, high }) => [low, high]));
  return lineFigure("load", lines, x, (most) => ratioAxis(bounds, say("speedup"), most), loadTable(family), 1);
}

function rateFigure(family, x) {
  const lines = family.flatMap(({ entry, points }) => sideSeries(entry).map((own, side) => ({
    series: own, solid: entry.series, group: entry.label,
    points: points.map((point) => [point, point.groups[0][SIDES[side]].tokens_per_second]).filter(([, rate]) => rate !== null).map(([{ load }, rate]) => (
      { x: load.level, y: rate, title: `${own.label}, ${loadWords(load)}: ${significant(rate)}` })),
  })));
  const rates = lines.flatMap(({ points }) => points.map(({ y }) => y));
  return lineFigure("throughput", lines, x, (most) => amountAxis(rates, significant, say("tokens_per_second"), most), loadTable(family));
}

function lineFigure(name, lines, x, y, figures, reference = null) {
  const title = say(`${name}_title`);
  const chart = lineChart({ title, lines, x, y, reference });
  return figure({ title, text: say(`${name}_text`), chart, legend: lineLegend(lines), table: figures });
}

/** Panels have their names above them; what is left to tell is how both sides are drawn. */
function lineLegend(lines) {
  const drawn = lines.filter((line) => line.points.length);
  if (!inPanels(drawn)) return drawn.map((line) => line.series);
  if (!drawn.some((line) => line.solid)) return [];
  return [["plain", " plain"], ["speculative", ""]].map(([side, kind]) => ({ ...series(say(side), 0), tone: `tone-any${kind}` }));
}

function loadTable(family) {
  const heads = ["load", "run", "speedup", "throughput", "plain_rate", "speculative_rate"].map((head) => say(head));
  const rows = family.flatMap(({ entry, points }) => points.map((point) => [
    loadWords(point.load), entry.label, interval(point.groups[0].speedup), interval(point.throughput),
    ...SIDES.map((side) => significant(point.groups[0][side].tokens_per_second))]));
  return table(heads, rows, 2);
}

// --- latencies ---

const RANKS = [50, 95, 99];
const rank = (number) => say("percentile", { rank: digits(String(number)) });

function latencyFigures(entries) {
  return ["tpot", "ttft", "itl", "e2e"].flatMap((name) => {
    const curves = entries.flatMap((entry) => sideSeries(entry).map((own, side) => ({ entry, own, spread: wholeOf(entry)[SIDES[side]][name] })));
    const measured = curves.filter(({ spread }) => spread !== null);
    return measured.length ? [latencyFigure(name, measured)] : [];
  });
}

function latencyFigure(name, curves) {
  const title = say(name);
  const lines = curves.map(({ entry, own, spread }) => ({ series: own, solid: entry.series, group: entry.label, points: sharesWithin(spread, own) }));
  const [last, kind] = [curves.map(({ spread }) => spread.p99), name === "itl" ? "gap_text" : "latency_text"];
  const heads = [say("run"), say("count"), say("mean"), ...RANKS.map(rank)];
  const rows = curves.map(({ own, spread }) => [own.label, count(spread.count), seconds(spread.mean), ...RANKS.map((number) => seconds(spread[`p${number}`]))]);
  return figure({
    title, text: say(kind), legend: lineLegend(lines), table: table(heads, rows),
    chart: lineChart({
      title, lines, x: (most) => quantityAxis(last, SECONDS, `${name}_axis`, most),
      y: (most) => shareAxis(say(name === "itl" ? "share_of_gaps" : "share_of_requests"), most),
    }),
  });
}

/** Up to the 99th percentile: a single straggler must not squeeze all the others into a corner. */
function sharesWithin({ quantiles, p99 }, own) {
  const steps = quantiles.slice(0, -1).map((value, step) => [Math.round((100 * step) / (quantiles.length - 1)), value]);
  return [...steps, [99, p99]].map(([percent, value]) => (
    { x: value, y: percent / 100, title: RANKS.includes(percent) ? `${own.label}, ${rank(percent)}: ${seconds(value)}` : null }));
}

// --- survival: by run, or by category where there is a single run ---

function survivalFigures(entries) {
  const groups = entries.length === 1 ? byCategory(entries[0]) : entries.map((entry) => [entry.series, wholeOf(entry)]);
  const curves = groups.map(([own, group]) => [own, group.speculative.speculation]).filter(([, drafts]) => drafts !== null);
  const lines = curves.map(([own, drafts]) => ({ series: own, group: own.label, points: survivors(own, drafts) })).filter(({ points }) => points.length);
  if (!lines.length) return [];
  const longest = Math.max(...lines.flatMap(({ points }) => points.map(({ x }) => x)));
  const title = say("survival_title");
  return [figure({
    title, text: say("survival_text"), legend: lineLegend(lines), table: survivalTable(curves), note: say("survival_note"),
    chart: lineChart({
      title, lines, x: (most) => placeAxis(longest, say("position"), most + 4),
      y: (most) => shareAxis(say("share_of_drafts"), most),
    }),
  })];
}

function byCategory(entry) {
  const groups = groupsBy(entry, "category");
  return (groups.length ? groups : [wholeOf(entry)]).map((group, number) => [series(nameOf(group.name), number), group]);
}

function survivors(own, { survival, offered }) {
  const all = survival.map((value, at) => ({ x: at + 1, y: value, drafts: offered[at] }));
  return all.filter(({ drafts }) => drafts >= LEAST_DRAFTS).map((point) => (
    { ...point, title: `${own.label}, ${count(point.x)}: ${say("of_all", { share: share(point.y), count: count(point.drafts) })}` }));
}

function survivalTable(curves) {
  const places = Array.from({ length: Math.max(...curves.map(([, drafts]) => drafts.survival.length)) }, (_, at) => at);
  const rows = curves.map(([own, drafts]) => [own.label, ...places.map((at) => (at < drafts.survival.length ? share(drafts.survival[at]) : ""))]);
  return table([say("run"), ...places.map((at) => count(at + 1))], rows);
}

// --- time and memory ---

const TIMES = ["queue", "prefill", "decode", "draft", "verify", "other"]; // in the order of time

function resourceFigures(entries) {
  const times = entries.flatMap((entry) => sideSeries(entry).map((own, side) => [own.label, wholeOf(entry)[SIDES[side]]]))
    .filter(([, figures]) => figures.requests).map(([name, figures]) => ({ name, parts: timeParts(figures) }));
  const memory = entries.map((entry) => ({ name: entry.label, parts: memoryParts(entry.run.speculative_memory) })).filter(({ parts }) => parts.length);
  return [
    ...(times.length ? [barFigure("split", times, SECONDS, seconds)] : []),
    ...(memory.length ? [barFigure("memory", memory, BYTES, bytes)] : []),
  ];
}

const part = (name) => ({ label: say(name), tone: `part-${name.replace("_", "-")}`, shape: 1, order: TIMES.indexOf(name) });

/** Decoding is one part where its own parts are not known. */
function timeParts({ split, requests }) {
  const known = TIMES.map((name) => [name, name === "decode" && split.verify !== null ? null : split[name]]);
  return known.filter(([, value]) => value).map(([name, value]) => [part(name), value / requests]);
}

function memoryParts({ target, target_kv: kv, proposers }) {
  const sizes = { target_weights: target === null ? 0 : target - (kv ?? 0), target_kv: kv, proposers: sum(Object.values(proposers)) };
  return Object.entries(sizes).filter(([, size]) => size).map(([name, size]) => [part(name), size]);
}

function barFigure(name, bars, kind, show) {
  const parts = bars.flatMap((bar) => bar.parts.map(([one]) => one));
  const all = parts.filter((one, at) => parts.findIndex((other) => other.label === one.label) === at)
    .sort((one, other) => one.order - other.order);
  const amount = (bar, one) => bar.parts.filter(([other]) => other.label === one.label).map(([, value]) => show(value))[0] ?? "";
  const rows = bars.map((bar) => [bar.name, ...all.map((one) => amount(bar, one)), show(sum(bar.parts.map(([, value]) => value)))]);
  return figure({
    title: say(`${name}_title`), text: say(`${name}_text`), legend: all,
    table: table([say("run"), ...all.map((one) => one.label), say("all")], rows),
    chart: barChart({ title: say(`${name}_title`), bars, kind, axisKey: `${name}_axis`, show }),
  });
}

// --- the figures that have no chart ---

const COLUMNS = {
  tokens_per_second: (side) => significant(side.tokens_per_second),
  requests_per_second: (side) => significant(side.requests_per_second),
  decode_tokens_per_second: (side) => significant(side.decode_tokens_per_second),
  output_length: (side) => significant(side.output_length?.mean),
  tokens_per_character: (side) => significant(side.tokens_per_character),
  utilisation: (side) => share(side.utilisation),
  goodput: (side) => share(side.goodput?.share),
  ttft_p95: (side) => seconds(side.ttft?.p95),
  tpot_p95: (side) => seconds(side.tpot?.p95),
  e2e_p95: (side) => seconds(side.e2e?.p95),
  e2e_p99: (side) => seconds(side.e2e?.p99),
};

function allFigures(entries) {
  const heads = ["load", "run", "side", ...Object.keys(COLUMNS)].map((head) => say(head));
  const rows = entries.flatMap((entry) => entry.run.points.flatMap((point) => SIDES.map((side) => [
    loadWords(point.load), entry.label, say(side), ...Object.values(COLUMNS).map((show) => show(point.groups[0][side]))])));
  return make("div", { class: "card" }, folded(say("all_figures"), table(heads, rows, 3), entries.flatMap(costs)));
}

function costs({ run, label: name }) {
  if (run.price === null) return [];
  const { currency, per_hour: perHour, date } = run.price;
  const rows = run.points.map((point) => [loadWords(point.load), name, ...SIDES.map((side) => significant(point.groups[0][side].cost_per_million))]);
  const title = say("cost", { currency, per_hour: significant(perHour), date: digits(date) });
  return [make("h4", { dir: "auto" }, title), table(["load", "run", ...SIDES].map((head) => say(head)), rows, 2)];
}

// --- what speaks for and against the figures ---

function checks(entries) {
  const differ = (field) => new Set(entries.map(({ run }) => run.plain[field])).size > 1;
  return make("div", {},
    differ("hardware") ? trouble(say("machines_differ")) : null, differ("target") ? trouble(say("targets_differ")) : null,
    make("div", { class: "boxes" }, entries.map(({ run, label: name, series: own }) => make("article", { class: `card run ${own.tone}` },
      make("h3", { dir: "auto" }, name), cautions(run), fairness(run), differences(run), failed(run)))));
}

function cautions({ cautions: all }) {
  if (!all.length) return make("p", { class: "fine" }, say("no_cautions"));
  return make("ul", { class: "cautions" }, all.map(({ code, text }) => {
    const told = retold(text, `caution_${code}_text`);
    return make("li", {}, make("b", {}, nameOf(`caution_${code}`)), make("p", {}, told ?? make("bdi", { lang: "en" }, text)));
  }));
}

function fairness({ fairness: all }) {
  if (!all.length) return null;
  const rows = all.map(({ name, plain, speculative, equal }) => [
    nameOf(name), setting(plain), setting(speculative), say(equal === null ? "unknown" : equal ? "same" : "differs")]);
  return folded(say("fairness"), table(["condition", ...SIDES, "same"].map((head) => say(head)), rows, 4));
}

function setting(value) {
  if (value === null) return say("unknown");
  if (typeof value === "boolean") return say(value ? "yes" : "no");
  if (typeof value === "number") return digits(String(value));
  if (typeof value !== "object") return String(value);
  const parts = Object.entries(value).map(([name, one]) => `${nameOf(name)} ${setting(one)}`);
  return parts.length ? listed(parts) : say("none");
}

function differences({ equality }) {
  if (equality === null || !equality.expected) return null;
  if (!equality.differences.length) return make("p", { class: "fine" }, say("differences_none"));
  const heads = ["prompt", ...SIDES, "tie", "character", "token_position", "gap"].map((head) => say(head));
  const rows = equality.differences.slice(0, MOST_DIFFERENCES).map((one) => [
    one.prompt, one.plain, one.speculative, say(one.tie === null ? "unknown" : one.tie ? "yes" : "no"),
    count(one.position), count(one.token_position), significant(one.gap)]);
  return folded(say("differences"), table(heads, rows, 4));
}

function failed({ failures }) {
  if (!failures.length) return null;
  const rows = failures.slice(0, MOST_DIFFERENCES).map(({ side, prompt, reason, error }) => [nameOf(side), prompt, nameOf(reason), error]);
  return folded(say("failures", { count: count(failures.length) }), table(["side", "prompt", "reason", "error"].map((head) => say(head)), rows, 4));
}

// --- where the figures come from ---

function provenance(entries) {
  const formulas = Object.entries(Object.assign({}, ...entries.map(({ run }) => run.formulas)));
  const listing = formulas.map(([name, text]) => {
    const told = retold(text, `formula_${name}`);
    return pair(nameOf(name), told ?? text, told === null);
  });
  return make("div", {},
    make("div", { class: "boxes" }, entries.map(source)),
    formulas.length ? make("div", { class: "card" }, folded(say("formulas"), make("dl", { class: "long" }, listing))) : null);
}

function source({ run, label: name, series: own }) {
  const { date, machine, models, command, commit, versions, prompts, seeds } = run.provenance;
  const spaced = (object) => Object.entries(object).map(([key, value]) => `${key} ${value}`).join(", ");
  const sown = Object.entries(seeds).map(([key, value]) => `${nameOf(key)} ${digits(String(value))}`);
  return make("article", { class: `card run ${own.tone}` }, make("h3", {}, make("bdi", {}, name)), make("dl", { class: "long" },
    pair(say("date"), moment(date)), pair(say("machine"), machineWords(machine)), pair(say("models"), listed(models.map(modelWords))),
    pair(say("command"), command, true), commit ? pair(say("commit"), commit, true) : pair(say("commit"), say("unknown")),
    pair(say("versions"), spaced(versions), true),
    pair(say("prompt_set"), `${prompts.source} (${prompts.count}), ${prompts.sha256.slice(0, SHORT_HASH)}`, true),
    pair(say("seeds"), listed(sown))));
}

/** A machine in one line. */
const machineWords = ({ processor, cores, memory_bytes: memory }) =>
  listed([isolated(processor), say("cores", { count: count(cores) }), bytes(memory)]);

function modelWords({ role, name, sha256, dtype }) {
  const told = [dtype, sha256?.slice(0, SHORT_HASH)].filter(Boolean).join(", ");
  return `${nameOf(role)} ${isolated(told ? `${name} (${told})` : name)}`;
}

// --- the page ---

const CHARTS = [groupFigures, loadFigures, latencyFigures, survivalFigures, resourceFigures];

function showReport() {
  const entries = entriesOf(REPORT.runs);
  const measured = entries.filter(({ run }) => run.points.length);
  const { date, machine } = entries[0].run.provenance;
  const section = (title, content) => make("section", {}, make("h2", {}, title), content);
  document.body.append(
    make("header", {}, make("h1", { dir: "auto" }, REPORT.title), make("p", {}, say("subtitle")),
      make("p", { class: "soft" }, say("made", { date: moment(date), machine: machineWords(machine) }))),
    make("main", {},
      section(say("runs"), make("div", { class: "cards" }, entries.map(card))),
      make("div", { class: "charts" }, measured.length ? CHARTS.flatMap((figures) => figures(measured)) : []),
      measured.length ? allFigures(measured) : null,
      section(say("checks"), checks(entries)),
      section(say("provenance"), provenance(entries))),
    make("footer", {}, make("p", {}, say("footer", { version: digits(REPORT.version) }))));
  drawCharts();
}

showReport();
