/** What the page says, in English and Persian. `{name}` in a text is filled in by `say`. */

const ENGLISH = {
  title: "Gamaneh playground",
  tagline: "Guesses put to the test: the same answer, sooner.",
  skip: "Skip to the answer",
  model: "Model",
  key: "API key",
  keyHelp: "This server asks for a key. It is kept until the tab is closed.",
  prompt: "Prompt",
  examples: "Examples",
  exampleCopy: "Correct a text",
  exampleCode: "Code",
  exampleChat: "Explain",
  run: "Answer",
  race: "Race against plain",
  stop: "Stop",
  settings: "Settings",
  temperature: "Temperature",
  seed: "Seed",
  seedNone: "any",
  maxTokens: "Most tokens",
  proposer: "Proposer",
  plainNone: "none (plain)",
  rule: "Rule",
  ruleTypical: "typical (approximate)",
  asServer: "server default",
  order: "Race",
  orderTurns: "one by one",
  orderTogether: "together",
  draftLength: "Draft length",
  draftTokens: "Tokens in a draft",
  adaptive: "adaptive",
  fixed: "fixed",
  answer: "Answer",
  answerEmpty: "The answer appears here.",
  answerTokens: "Answer, token by token",
  legend: "Colours",
  accepted: "accepted",
  acceptedHelp: "a guess that was kept",
  correction: "correction",
  correctionHelp: "in place of a refused guess",
  bonus: "bonus",
  bonusHelp: "after a draft that was kept whole",
  plain: "plain",
  plainHelp: "nothing was guessed",
  hint: "Point at a token, or move through the answer with the arrow keys, to see its probability and what was refused there.",
  charts: "Round by round",
  chartAcceptance: "Acceptance",
  chartDraft: "Draft length",
  chartSpeed: "Tokens/s",
  chartEmpty: "{title}: nothing yet",
  chartLabel: "{title} over {count} rounds: last {last}, lowest {low}, highest {high}",
  chartPlain: "dashed: plain",
  state: "What the server is doing, and why",
  stateEmpty: "The server says nothing about its speculation.",
  refresh: "Refresh",
  formula: "Tokens/s: tokens after the first delivery, divided by the time since it. Acceptance: accepted / drafted. One run is an impression; measure with the bench.",
  lanePlain: "Plain",
  laneSpeculative: "Speculative",
  figureTokens: "Tokens",
  figureSpeed: "Tokens/s",
  figureFirst: "First token",
  figureAcceptance: "Acceptance",
  figurePerRound: "Tokens per round",
  seconds: "{value} s",
  why: "Where its time went, and why",
  token: "Token",
  origin: "Origin",
  probability: "Probability",
  refused: "Refused here",
  refusedNone: "nothing",
  unfinished: "part of a character",
  yes: "yes",
  no: "no",
  and: " and ",
  comma: ", ",
  semicolon: "; ",
  reasonPrefill: "the prompt is still being read",
  reasonAskedPlain: "plain decoding was asked for",
  reasonFixed: "draft length fixed by option",
  reasonPays: "{route}; best measured rate at {length}",
  reasonTrial: "{name} may pay and is not known well yet: tried within the budget",
  reasonMeasure: "a plain step is timed, to compare drafts with",
  reasonProbe: "{name} is probed",
  reasonNoGain: "plain decoding is faster by measurement",
  reasonLoad: "drafting would pay for this request alone, but not in this batch",
  reasonNoDraft: "{names}: nothing to offer, or not promising",
  reasonGrammarOnly: "{names} drafts for requests with a grammar only",
  reasonShort: "the next token is the last",
  reasonQuarantine: "{name} is in quarantine: {failure}",
  reasonNoProposer: "there is no proposer",
  reasonNoRoom: "no room in the KV cache or the step for a draft",
  routeChosen: "{name} chosen for a request ({traits})",
  routeAsked: "{name} asked for by a request ({traits})",
  traitGreedy: "greedy",
  traitSampled: "sampled",
  traitLong: "long prompt",
  traitShort: "short prompt",
  traitGrammar: "grammar",
  faultError: "{words}",
  faultNonsense: "{words}",
  faultMemory: "{words}",
  faultSlow: "it takes more time than it saves",
  same: "Same text: yes. {speed}",
  differs: "Same text: no. They part at character {at}. {why} {speed}",
  faster: "Speculative made {ratio} times the tokens per second of plain.",
  whyLaw: "The rule {rule} keeps the distribution, not each token, when the temperature is above 0.",
  whyTypical: "The rule typical is approximate.",
  approximate: "Approximate: the rule {rules} may let through another text than the model's own.",
  whyBug: "With this rule the texts should be equal: please report it with the prompt and the seed.",
  whyServer: "If the server's rule is rejection or block, only the distribution is the same; typical is approximate.",
  started: "Answering…",
  finished: "Finished: {tokens} tokens, {accepted} of {drafted} guesses accepted, {rate} tokens per second.",
  stopped: "Stopped.",
  cut: "The answer was cut off at the most tokens that were asked for.",
  errorNetwork: "The server cannot be reached. Does it still run?",
  errorKey: "The server wants an API key. Enter one above and try again.",
  errorKeyWrong: "The server does not know this API key.",
  errorBusy: "The server is busy. Try again in {seconds} seconds.",
  errorRefused: "The server refused the request: {message}",
  errorFault: "The server failed: {message}",
  errorBroken: "The answer broke off before its end.",
};

const PERSIAN = {
  title: "میدان آزمایش گمانه",
  tagline: "حدس‌هایی که آزموده می‌شوند: همان پاسخ، زودتر.",
  skip: "رفتن به پاسخ",
  model: "مدل",
  key: "کلید API",
  keyHelp: "این سرور کلید می‌خواهد. کلید تا بسته شدن زبانه نگه داشته می‌شود.",
  prompt: "درخواست",
  examples: "نمونه‌ها",
  exampleCopy: "ویرایش متن",
  exampleCode: "کد",
  exampleChat: "توضیح",
  run: "پاسخ بده",
  race: "مسابقه با حالت ساده",
  stop: "توقف",
  settings: "تنظیمات",
  temperature: "دما",
  seed: "بذر",
  seedNone: "دلخواه",
  maxTokens: "بیشینه‌ی توکن",
  proposer: "پیشنهاددهنده",
  plainNone: "هیچ‌کدام (ساده)",
  rule: "قاعده",
  ruleTypical: "typical (تقریبی)",
  asServer: "تنظیم سرور",
  order: "مسابقه",
  orderTurns: "یکی‌یکی",
  orderTogether: "هم‌زمان",
  draftLength: "طول پیش‌نویس",
  draftTokens: "شمار توکن‌های پیش‌نویس",
  adaptive: "خودتنظیم",
  fixed: "ثابت",
  answer: "پاسخ",
  answerEmpty: "پاسخ اینجا می‌آید.",
  answerTokens: "پاسخ، توکن به توکن",
  legend: "رنگ‌ها",
  accepted: "پذیرفته",
  acceptedHelp: "حدسی که ماند",
  correction: "اصلاح",
  correctionHelp: "به جای حدسی که رد شد",
  bonus: "پاداش",
  bonusHelp: "پس از پیش‌نویسی که کامل پذیرفته شد",
  plain: "ساده",
  plainHelp: "حدسی در کار نبود",
  hint: "برای دیدن احتمال هر توکن و حدس‌های ردشده، روی آن بروید یا با کلیدهای جهت‌نما در پاسخ حرکت کنید.",
  charts: "دور به دور",
  chartAcceptance: "پذیرش",
  chartDraft: "طول پیش‌نویس",
  chartSpeed: "توکن در ثانیه",
  chartEmpty: "{title}: هنوز چیزی نیست",
  chartLabel: "{title} در {count} دور: آخرین {last}، کمترین {low}، بیشترین {high}",
  chartPlain: "خط‌چین: ساده",
  state: "سرور چه می‌کند و چرا",
  stateEmpty: "سرور درباره‌ی حدس زدن خود چیزی نمی‌گوید.",
  refresh: "تازه‌سازی",
  formula: "توکن در ثانیه: توکن‌های پس از نخستین تحویل، بخش بر زمان گذشته از آن. پذیرش: پذیرفته / پیشنهادشده. یک اجرا تنها برداشتی است؛ با سنجه اندازه بگیرید.",
  lanePlain: "ساده",
  laneSpeculative: "با حدس",
  figureTokens: "توکن",
  figureSpeed: "توکن در ثانیه",
  figureFirst: "نخستین توکن",
  figureAcceptance: "پذیرش",
  figurePerRound: "توکن در هر دور",
  seconds: "{value} ثانیه",
  why: "زمانش کجا رفت و چرا",
  token: "توکن",
  origin: "خاستگاه",
  probability: "احتمال",
  refused: "اینجا رد شد",
  refusedNone: "هیچ",
  unfinished: "بخشی از یک نویسه",
  yes: "بله",
  no: "نه",
  and: " و ",
  comma: "، ",
  semicolon: "؛ ",
  reasonPrefill: "درخواست هنوز خوانده می‌شود",
  reasonAskedPlain: "حالت ساده خواسته شده بود",
  reasonFixed: "طول پیش‌نویس را یک گزینه ثابت کرده است",
  reasonPays: "{route}؛ در سنجش‌ها طول {length} از همه تندتر است",
  reasonTrial: "شاید {name} سودمند باشد و هنوز خوب شناخته نیست: در حدِ بودجه آزموده می‌شود",
  reasonMeasure: "یک گامِ ساده زمان‌سنجی می‌شود تا پیش‌نویس‌ها با آن سنجیده شوند",
  reasonProbe: "{name} آزمایشی به کار می‌رود",
  reasonNoGain: "در سنجش‌ها حالت ساده تندتر است",
  reasonLoad: "حدس زدن برای این درخواست به‌تنهایی سود داشت، ولی در این دسته ندارد",
  reasonNoDraft: "{names}: چیزی برای پیشنهاد نیست، یا امیدی به آن نیست",
  reasonGrammarOnly: "{names} تنها برای درخواست‌هایی با دستور زبان پیش‌نویس می‌سازد",
  reasonShort: "توکن بعدی آخرین توکن است",
  reasonQuarantine: "{name} در قرنطینه است: {failure}",
  reasonNoProposer: "پیشنهاددهنده‌ای در کار نیست",
  reasonNoRoom: "در حافظه‌ی KV یا در این گام برای پیش‌نویس جا نیست",
  routeChosen: "{name} برای این درخواست برگزیده شد ({traits})",
  routeAsked: "{name} را خود درخواست خواسته است ({traits})",
  traitGreedy: "حریصانه",
  traitSampled: "با نمونه‌گیری",
  traitLong: "متن ورودی بلند",
  traitShort: "متن ورودی کوتاه",
  traitGrammar: "با دستور زبان",
  faultError: "خطا داد ({words})",
  faultNonsense: "پیش‌نویس نادرست ساخت ({words})",
  faultMemory: "حافظه کم آورد ({words})",
  faultSlow: "بیش از زمانی که صرفه‌جویی می‌کند زمان می‌برد",
  same: "متن یکسان: بله. {speed}",
  differs: "متن یکسان: نه. از نویسه‌ی {at} از هم جدا می‌شوند. {why} {speed}",
  faster: "سرعت حالت با حدس {ratio} برابر حالت ساده بود (توکن در ثانیه).",
  whyLaw: "قاعده‌ی {rule} در دمای بالاتر از صفر توزیع را نگه می‌دارد، نه تک‌تک توکن‌ها را.",
  whyTypical: "قاعده‌ی typical تقریبی است.",
  approximate: "تقریبی: با قاعده‌ی {rules} متن می‌تواند با متن خود مدل فرق کند.",
  whyBug: "با این قاعده متن‌ها باید یکسان باشند: لطفاً همراه با درخواست و بذر گزارش کنید.",
  whyServer: "اگر قاعده‌ی سرور rejection یا block باشد تنها توزیع یکسان است؛ typical تقریبی است.",
  started: "در حال پاسخ…",
  finished: "پایان: {tokens} توکن، {accepted} حدس از {drafted} پذیرفته شد، {rate} توکن در ثانیه.",
  stopped: "متوقف شد.",
  cut: "پاسخ به بیشینه‌ی توکن خواسته‌شده رسید و بریده شد.",
  errorNetwork: "سرور در دسترس نیست. آیا هنوز کار می‌کند؟",
  errorKey: "سرور کلید API می‌خواهد. آن را در بالا بنویسید و دوباره بیازمایید.",
  errorKeyWrong: "سرور این کلید API را نمی‌شناسد.",
  errorBusy: "سرور سرش شلوغ است. {seconds} ثانیه‌ی دیگر دوباره بیازمایید.",
  errorRefused: "سرور درخواست را نپذیرفت: {message}",
  errorFault: "سرور دچار خطا شد: {message}",
  errorBroken: "پاسخ پیش از پایان قطع شد.",
};

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
