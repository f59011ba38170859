/** Texts, numbers and directions in the language of the page. */

import { ENGLISH } from "./english.js";
import { PERSIAN } from "./persian.js";

export const TEXTS = { en: ENGLISH, fa: PERSIAN };

export const EXAMPLES = {
  en: {
    copy: "Repeat this text and correct its spelling:\n\nThe libary opens at nine in the morning. Visitors leave their bags at the desk. The libary closes at six in the evening. Visitors collect their bags at the desk.",
    code: "Write a Python class Stack with push, pop, peek and is_empty, and a short test for each method.",
    chat: "Explain in three sentences why the sky is blue.",
  },
  fa: {
    copy: "این متن را دوباره بنویس و غلط‌های آن را درست کن:\n\nکتابخانه ساعت نه صبح باز میشود. مراجعان کیف خود را به میز میسپارند. کتابخانه ساعت شش عصر بسته میشود. مراجعان کیف خود را از میز میگیرند.",
    code: "یک کلاس پایتون به نام Stack با push و pop و peek بنویس و برای هر کدام یک آزمون کوتاه بیاور.",
    chat: "در سه جمله توضیح بده چرا آسمان آبی است.",
  },
};

const STORE = "gamaneh-language";

const initial = () => {
  const stored = localStorage.getItem(STORE);
  if (stored in TEXTS) return stored;
  return navigator.language.startsWith("fa") ? "fa" : "en";
};

export let language = initial();

/** The text of this name in the language of the page. */
export function say(name, values = {}) {
  return TEXTS[language][name].replace(/\{(\w+)\}/g, (_, key) => values[key]);
}

/** A name that may be of another script than the text around it; there its direction is its own. */
export const isolated = (name) => (language === "fa" ? `\u2068${name}\u2069` : name);

/** A number with the digits of the language of the page. */
export function number(value, digits = 0) {
  if (value === null || !Number.isFinite(value)) return "–";
  const options = { maximumFractionDigits: digits, minimumFractionDigits: digits };
  return value.toLocaleString(language === "fa" ? "fa-IR" : "en-US", options);
}

/** A share from 0 to 1, in per cent. */
export function percent(value, digits = 0) {
  if (value === null || !Number.isFinite(value)) return "–";
  const options = { style: "percent", maximumFractionDigits: digits };
  return value.toLocaleString(language === "fa" ? "fa-IR" : "en-US", options);
}

/** Fill in all texts that the page was delivered with, and turn it to the right direction. */
export function translate() {
  const root = document.documentElement;
  root.lang = language;
  root.dir = language === "fa" ? "rtl" : "ltr";
  document.title = say("title");
  for (const element of document.querySelectorAll("[data-text]")) element.textContent = say(element.dataset.text);
  for (const element of document.querySelectorAll("[data-label]")) element.ariaLabel = say(element.dataset.label);
  for (const element of document.querySelectorAll("[data-empty-text]"))
    element.dataset.empty = say(element.dataset.emptyText);
  for (const element of document.querySelectorAll("[data-placeholder]"))
    element.placeholder = say(element.dataset.placeholder);
}

/** Turn to the other language, and remember it. */
export function switchLanguage() {
  language = language === "fa" ? "en" : "fa";
  localStorage.setItem(STORE, language);
  translate();
}
