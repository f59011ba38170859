/** Tokens on the page: coloured by origin, one tab stop for all of them, details in a popover. */

import { number, percent, say } from "./text.js";

const GAP = 6; // pixels between a token and its details
const MOVES = { Home: -Infinity, End: Infinity, ArrowUp: -10, ArrowDown: 10 };

/** Make an element with children. */
export function make(name, properties = {}, ...children) {
  const element = Object.assign(document.createElement(name), properties);
  element.append(...children);
  return element;
}

export class Popover {
  constructor(element) {
    this.element = element;
    this.owner = null;
    addEventListener("scroll", () => this.place(), { capture: true, passive: true });
    addEventListener("resize", () => this.hide());
    addEventListener("keydown", (event) => this.#escape(event));
    element.addEventListener("pointerleave", () => this.hide());
  }

  /** The first Escape closes the details, and nothing else. */
  #escape(event) {
    if (event.key !== "Escape" || this.element.hidden) return;
    event.preventDefault();
    this.hide();
  }

  show(owner, content) {
    this.hide();
    this.owner = owner;
    this.element.replaceChildren(...content);
    this.element.hidden = false;
    owner.setAttribute("aria-describedby", this.element.id);
    this.place();
  }

  hide() {
    this.owner?.removeAttribute("aria-describedby");
    this.owner = null;
    this.element.hidden = true;
  }

  /** Below its token, above it where there is no room, never outside the window. */
  place() {
    if (!this.owner) return;
    const token = this.owner.getClientRects()[0];
    const { offsetWidth: width, offsetHeight: height } = this.element;
    const below = token.bottom + GAP;
    const top = below + height > innerHeight ? Math.max(GAP, token.top - GAP - height) : below;
    const start = document.documentElement.dir === "rtl" ? token.right - width : token.left;
    const left = Math.min(Math.max(GAP, start), document.documentElement.clientWidth - width - GAP);
    this.element.style.top = `${top}px`;
    this.element.style.left = `${left}px`;
  }
}

export class TokenView {
  constructor(container, popover) {
    this.container = container;
    this.popover = popover;
    this.details = new WeakMap(); // span -> its tokens
    this.waiting = []; // tokens whose character is not complete yet
    this.current = null;
    container.addEventListener("pointerover", (event) => this.#point(event));
    container.addEventListener("pointerout", (event) => this.#leave(event));
    container.addEventListener("click", (event) => this.#click(event));
    container.addEventListener("keydown", (event) => this.#move(event));
    container.addEventListener("focusin", (event) => this.#show(event.target));
    container.addEventListener("focusout", () => this.popover.hide());
  }

  /** Append tokens. Several tokens that make one character share one span, in the colour of the last. */
  add(tokens) {
    const stays = this.#atEnd();
    for (const token of tokens) {
      this.waiting.push(token);
      if (token.text) this.#append(token);
    }
    if (stays) this.container.scrollTop = this.container.scrollHeight;
  }

  #append(token) {
    const span = make("span", { className: `token ${token.origin}`, textContent: token.text });
    span.dataset.origin = token.origin;
    this.details.set(span, this.waiting);
    this.waiting = [];
    this.container.append(span);
    if (!this.current) this.#choose(span);
  }

  #atEnd() {
    const { scrollTop, scrollHeight, clientHeight } = this.container;
    return scrollHeight - scrollTop - clientHeight < 40;
  }

  /** Only the current token can be tabbed to, so that the answer is read as text and passed in one step. */
  #choose(span) {
    this.current?.removeAttribute("tabindex");
    this.current?.removeAttribute("role");
    this.current?.classList.remove("current");
    this.current = span;
    span.tabIndex = 0;
    span.setAttribute("role", "button");
    span.classList.add("current");
  }

  #point({ target }) {
    if (this.details.has(target)) this.#show(target);
  }

  #leave({ relatedTarget }) {
    if (!this.popover.element.contains(relatedTarget)) this.popover.hide();
  }

  #click({ target }) {
    if (!this.details.has(target)) return;
    this.#choose(target);
    target.focus();
    this.#show(target);
  }

  #move(event) {
    if (!this.details.has(event.target)) return;
    if (event.key === "Enter" || event.key === " ") this.#show(event.target);
    const step = this.#step(event.key);
    if (step === 0 && event.key !== " ") return;
    event.preventDefault();
    if (step === 0) return;
    const spans = [...this.container.children];
    const index = spans.indexOf(event.target) + step;
    this.#choose(spans[Math.min(Math.max(index, 0), spans.length - 1)]);
    this.current.focus();
  }

  /** The left arrow goes on in a right-to-left answer, and back in others. */
  #step(key) {
    const onward = isRightToLeft(this.container.textContent) ? "ArrowLeft" : "ArrowRight";
    if (key === "ArrowLeft" || key === "ArrowRight") return key === onward ? 1 : -1;
    return MOVES[key] ?? 0;
  }

  #show(span) {
    const tokens = this.details.get(span);
    if (tokens) this.popover.show(span, tokens.map(describe));
  }
}

/** By the first strong letter, as the browser's `plaintext` does. */
function isRightToLeft(text) {
  const letter = text.match(/\p{L}/u)?.[0] ?? "";
  return /[\u0590-\u08ff\ufb1d-\ufefc]/.test(letter);
}

/** Spaces and line ends, made visible. */
const visible = (text) => text.replaceAll("\n", "↵").replaceAll("\t", "⇥").replaceAll(" ", "␣");

function describe(token) {
  return make("dl", {}, ...row("token", shown(token)), ...row("origin", say(token.origin)), ...probability(token), ...refused(token));
}

const row = (name, ...content) => [make("dt", { textContent: say(name) }), make("dd", {}, ...content)];

const shown = ({ text }) => (text ? make("code", { textContent: visible(text), dir: "auto" }) : say("unfinished"));

function probability({ logprob }) {
  return row("probability", `${percent(Math.exp(logprob), 2)} (log ${number(logprob, 2)})`);
}

function refused({ refused: candidates }) {
  if (!candidates.length) return row("refused", say("refusedNone"));
  const codes = candidates.map((text) => make("code", { className: "refused", textContent: visible(text), dir: "auto" }));
  return row("refused", ...codes.flatMap((code) => [code, " "]));
}
