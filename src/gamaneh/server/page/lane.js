/** One answer on the page: its tokens and its figures, live. */

import { complete } from "./api.js";
import { Answer } from "./answer.js";
import { account, raw } from "./summary.js";
import { number, percent, say } from "./text.js";
import { TokenView, make } from "./tokens.js";

const FIGURES = {
  figureTokens: (answer) => number(answer.tokens.length),
  figureSpeed: (answer) => number(answer.rate, 1),
  figureFirst: (answer) => say("seconds", { value: number(answer.secondsToFirst, 2) }),
  figureAcceptance: (answer) => percent(answer.acceptance),
  figurePerRound: (answer) => number(answer.perRound, 2),
};

const STATES = {
  answering: "stateAnswering",
  finished: "stateFinished",
  stopped: "stateStopped",
  cut: "stateCut",
  failed: "stateFailed",
};

export class Lane {
  /** `title` names a text. `onChange` is called whenever the answer has grown. */
  constructor(title, popover, onChange) {
    this.answer = new Answer();
    this.onChange = onChange;
    this.values = {};
    this.output = make("div", { className: "answer", tabIndex: -1 });
    Object.assign(this.output.dataset, { emptyText: "answerEmpty", label: "answerTokens" });
    this.output.setAttribute("role", "group");
    this.view = new TokenView(this.output, popover);
    this.why = make("details", { hidden: true });
    this.approximate = make("p", { className: "approximate", hidden: true });
    this.badge = make("span", { className: "badge" });
    this.clock = make("span", { className: "clock" });
    const head = make("div", { className: "lane-head" }, heading(title), this.badge, this.clock);
    const parts = [head, this.output, this.approximate, this.#figures(), this.why];
    this.element = make("div", { className: "lane" }, ...parts);
    this.show();
  }

  #figures() {
    const list = make("dl", { className: "figures" });
    for (const name of Object.keys(FIGURES)) {
      this.values[name] = make("dd");
      list.append(make("div", {}, heading(name, "dt"), this.values[name]));
    }
    return list;
  }

  /** Ask, and show what comes until it has ended. */
  async run(request, signal) {
    this.answer = new Answer();
    this.answer.state = "answering";
    this.output.setAttribute("aria-busy", "true");
    try {
      for await (const part of complete(request, signal)) {
        this.answer.add(part);
        this.view.add(part.tokens);
        this.show();
        this.onChange();
      }
      this.answer.end(this.answer.finish === "length" ? "cut" : "finished");
    } catch (error) {
      this.answer.end(signal.aborted ? "stopped" : "failed");
      throw error;
    } finally {
      this.output.removeAttribute("aria-busy");
      this.show();
    }
  }

  /** How it stands with the answer, and for how long it has been made. */
  showState() {
    const { state, seconds } = this.answer;
    this.badge.textContent = state === "waiting" ? "" : say(STATES[state]);
    this.badge.dataset.state = state;
    this.clock.textContent = seconds === null ? "" : say("seconds", { value: number(seconds, 1) });
  }

  show() {
    this.showState();
    for (const [name, figure] of Object.entries(FIGURES)) this.values[name].textContent = figure(this.answer);
    const told = this.answer.told;
    this.approximate.hidden = told?.exact !== false;
    if (!told) return;
    this.approximate.textContent = say("approximate", { rules: told.rules.join(", ") });
    this.#explain(told);
  }

  #explain(speculation) {
    this.why.replaceChildren(heading("why", "summary"), ...account(speculation), raw(speculation));
    this.why.hidden = false;
  }
}

function heading(name, element = "h3") {
  const result = make(element, { textContent: say(name) });
  result.dataset.text = name;
  return result;
}
