/** One answer as it grows: its tokens, its rounds, and the figures that follow from them. */

const WINDOW = 8; // rounds over which the speed of one round is smoothed

/** Sum of a list. */
const sum = (values) => values.reduce((total, value) => total + value, 0);

export class Answer {
  constructor() {
    this.text = "";
    this.content = ""; // the text without the thinking
    this.calls = []; // of tools, as far as they have come
    this.tokens = [];
    this.rounds = [];
    this.finish = null;
    this.state = "waiting"; // answering, finished, stopped, cut, failed
    this.started = performance.now();
    this.ended = null;
    this.first = this.last = null; // times of the first and last delivery
    this.inFirst = 0; // tokens in the first delivery
    this.open = []; // tokens of the round that has not ended yet
    this.told = null; // the server's own counts, which come at the end
  }

  /** Take in one event of the stream. Text and its tokens need not come in the same one. */
  add({ text, content = text, calls = [], tokens, speculation, finish }, now = performance.now()) {
    this.text += text;
    this.content += content;
    for (const call of calls) this.#call(call);
    this.told = speculation ?? this.told;
    this.finish = finish ?? this.finish;
    if (tokens.length) this.#time(tokens.length, now);
    for (const token of tokens) this.#take(token, now);
  }

  #call({ index, id, function: { name, arguments: words = "" } }) {
    const call = (this.calls[index] ??= { id, type: "function", function: { name, arguments: "" } });
    call.function.arguments += words;
  }

  /** The answer has ended, one way or another. */
  end(state, now = performance.now()) {
    this.state = state;
    this.ended = now;
  }

  #time(count, now) {
    if (this.first === null) {
      this.first = now;
      this.inFirst = count;
    }
    this.last = now;
  }

  /** Accepted tokens are followed by one token that is not, which ends the round. */
  #take(token, now) {
    this.tokens.push(token);
    this.open.push(token);
    if (token.origin !== "accepted") this.#endRound(now);
  }

  #endRound(now) {
    const accepted = this.open.length - 1;
    const drafted = accepted + sum(this.open.map((token) => token.refused.length));
    this.rounds.push({ accepted, drafted, emitted: this.open.length, at: now });
    this.open = [];
  }

  get accepted() {
    return this.told?.accepted ?? this.tokens.filter((token) => token.origin === "accepted").length;
  }

  /** Until the server has counted, without the candidates of a last round that the end of the answer cut off. */
  get drafted() {
    return this.told?.drafted ?? this.accepted + sum(this.tokens.map((token) => token.refused.length));
  }

  /** accepted / drafted; null without drafts. */
  get acceptance() {
    return this.drafted ? this.accepted / this.drafted : null;
  }

  get perRound() {
    const rounds = this.told?.rounds ?? this.rounds.length;
    return rounds ? this.tokens.length / rounds : null;
  }

  /** Seconds from the request to the end, or to now while the answer comes. */
  get seconds() {
    if (this.state === "waiting") return null;
    return ((this.ended ?? performance.now()) - this.started) / 1000;
  }

  get secondsToFirst() {
    return this.first === null ? null : (this.first - this.started) / 1000;
  }

  /** Tokens after the first delivery, divided by the seconds since it. */
  get rate() {
    const seconds = (this.last - this.first) / 1000;
    return seconds > 0 ? (this.tokens.length - this.inFirst) / seconds : null;
  }

  /** Acceptance of each round; null where nothing was drafted. */
  get acceptances() {
    return this.rounds.map(({ accepted, drafted }) => (drafted ? accepted / drafted : null));
  }

  get draftLengths() {
    return this.rounds.map(({ drafted }) => drafted);
  }

  /** Tokens per second up to each round, over the rounds shortly before it. */
  get rates() {
    return this.rounds.map(({ at }, index) => {
      const from = Math.max(0, index - WINDOW);
      const seconds = (at - this.rounds[from].at) / 1000;
      const tokens = sum(this.rounds.slice(from + 1, index + 1).map(({ emitted }) => emitted));
      return seconds > 0 ? tokens / seconds : null;
    });
  }
}

/** Index of the first character in which two texts differ; -1 when they are the same. */
export function parting(one, other) {
  const [left, right] = [[...one], [...other]];
  const longest = Math.max(left.length, right.length);
  for (let index = 0; index < longest; index++) if (left[index] !== right[index]) return index;
  return -1;
}
