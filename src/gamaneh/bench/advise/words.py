"""What the advisor says, in English and Persian."""

from __future__ import annotations

from collections.abc import Mapping

from gamaneh.bench.advise.checklist import Phrase
from gamaneh.bench.advise.language import Language

STATUS: Mapping[Language, Mapping[str, str]] = {
    "en": {"pass": "pass", "fail": "FAIL", "not_measured": "not measured"},
    "fa": {"pass": "قبول", "fail": "رد", "not_measured": "سنجیده نشد"},
}

TITLES: Mapping[Language, Mapping[str, str]] = {
    "en": {
        "decode_share": "Decoding's share of latency",
        "answer_length": "Length of answers",
        "draft_faster": "Draft faster than the target",
        "acceptance": "Acceptance on real data",
        "persian": "Persian in the benchmark",
        "memory": "Memory of the draft counted",
        "batch": "Real batch size tested",
        "sampling": "Equal sampling parameters",
        "lossless": "Lossless output checked",
        "tails": "P95 and P99 measured",
        "cache": "KV cache managed",
        "fallback": "Fallback path works",
        "confirmed": "Speed-up confirmed on this hardware",
    },
    "fa": {
        "decode_share": "سهمِ رمزگشایی از زمانِ پاسخ",
        "answer_length": "طولِ پاسخ‌ها",
        "draft_faster": "پیش‌نویس تندتر از مدلِ هدف",
        "acceptance": "پذیرش روی داده‌ی واقعی",
        "persian": "فارسی در سنجش",
        "memory": "حافظه‌ی پیش‌نویس به حساب آمده",
        "batch": "اندازه‌ی واقعیِ دسته آزموده شده",
        "sampling": "پارامترهای نمونه‌گیریِ یکسان",
        "lossless": "یکسانیِ خروجی بررسی شده",
        "tails": "P95 و P99 سنجیده شده",
        "cache": "حافظه‌ی KV مدیریت شده",
        "fallback": "راهِ بازگشت کار می‌کند",
        "confirmed": "افزایشِ سرعت روی همین سخت‌افزار تأیید شده",
    },
}

SENTENCES: Mapping[Language, Mapping[str, str]] = {
    "en": {
        "decode_share": "{share:.0%} of the seconds of a plain answer come after its first token",
        "answer_length": "median {median:g} tokens, longest {longest}, of {requests} answers",
        "draft_faster": "one more candidate costs {ratio:.2f} of a plain round; the first is accepted in {first:.0%}",
        "acceptance": "{rate:.0%} of candidates at k = {k}: {tokens:.2f} tokens per round, break-even {break_even:.2f}",
        "acceptance_elsewhere": "only on the prompts that come along: {rate:.0%} of candidates at k = {k}, "
        "{tokens:.2f} tokens per round, break-even {break_even:.2f}; give --prompts or --traffic",
        "persian": "{count} prompts, predicted speed-up {speedup:.2f}",
        "persian_missing": "no Persian prompt among them",
        "memory": "{draft:.0f} MB for the draft; {needed:.0f} MB of {limit:.0f} MB with {batch} at once; "
        "largest batch {largest} instead of {largest_plain}",
        "batch": "{batch} at once",
        "batch_assumed": "{batch} at once was tested; --concurrency says how many there are",
        "sampling": "temperature {temperature:g}, top-p {top_p:g}, top-k {top_k}, seed {seed}: the same in all runs",
        "lossless": "{differing} of {answers} answers differ from plain decoding",
        "lossless_rounding": "{differing} of {answers} answers differ from plain decoding; without --invariant "
        "rounding alone can do that",
        "tails": "gaps P95/P99 {plain_p95:.0f}/{plain_p99:.0f} ms plain, {p95:.0f}/{p99:.0f} ms speculative, "
        "of {gaps} gaps; whole answers P95 {plain_e2e:.2f} s plain, {e2e:.2f} s speculative",
        "cache": "{leaked} of {blocks} blocks left behind",
        "fallback": "{failures} failures of a broken proposer met, and the answer was the plain one",
        "fallback_broken": "{failures} failures of a broken proposer met, and the answer was not the plain one",
        "confirmed": "measured {value:.2f} [{low:.2f}, {high:.2f}], predicted {predicted:.2f}; as served {served:.2f}",
        "use": "Use it: {title}.",
        "do_not": "Do not use it; the best candidate was {title}.",
        "no_verdict": "No verdict.",
        "gains": "Measured gain with {batch} at once: {value:.2f} times [{low:.2f}, {high:.2f}]; best fixed draft "
        "length {k}: {fixed:.2f} measured, {predicted:.2f} predicted.",
        "pays_from": "A round emits {tokens:.2f} tokens and pays from {break_even:.2f} on.",
        "adapts": "The draft length adapts and withdraws by itself.",
        "fixed": "The draft length is fixed at {k}: that was clearly faster here than letting it adapt.",
        "up_to": "A gain is predicted for up to {largest} at once, among those asked about.",
        "disagreement": "Predicted {predicted:.2f}, measured {measured:.2f}: they are {deviation:.0%} apart, more than "
        "{most:.0%}. The machine may be busy with something else; try again, or with more prompts.",
        "differs": "{differing} answers are not those of plain decoding. Please report that as a fault.",
        "no_memory": "The memory holds {largest} requests at once with the draft, and there are {batch}.",
        "no_gain": "The measured gain is {value:.2f} times [{low:.2f}, {high:.2f}], less than {least:.2f}.",
        "others": "At its best draft length it was measured at {value:.2f} times [{low:.2f}, {high:.2f}]. The gain in "
        "service, {served:.2f} times, came from proposers that need no model of their own and are there without it.",
        "uncertain": "The measured gain, {value:.2f} times [{low:.2f}, {high:.2f}], cannot be told from none with "
        "{requests} requests. Take more of them: --limit.",
        "short": "Decoding is only {share:.0%} of the latency: drafts that cost nothing and are always right could "
        "not gain more than {most:.2f} times.",
        "too_few": "A round emits {tokens:.2f} tokens, and it takes {break_even:.2f} for drafts to pay.",
        "load": "With {batch} at once {speedup:.2f} times is predicted, but the question was about {now}.",
        "unusable": "{title} could not be measured: {reason}",
        "interrupted": "Interrupted before the real run: the predictions are not confirmed.",
        "rests_on": "The figures rest on {requests} requests, {rounds} rounds of {title} and {units} alternated runs.",
        "rests_on_prediction": "The predictions rest on {requests} requests and {rounds} rounds of {title}.",
        "stopped": "partial: stopped early ({reason}).",
        "nothing": "There is no proposer to measure.",
        "command": "Serve it so:",
    },
    "fa": {
        "decode_share": "{share:.0%} از ثانیه‌های یک پاسخِ ساده پس از نخستین توکن می‌گذرد",
        "answer_length": "میانه {median:g} توکن، بلندترین {longest}، از {requests} پاسخ",
        "draft_faster": "هر نامزدِ دیگر {ratio:.2f} یک دورِ ساده هزینه دارد؛ نخستین نامزد در {first:.0%} پذیرفته می‌شود",
        "acceptance": "{rate:.0%} نامزدها با k = {k}: هر دور {tokens:.2f} توکن، نقطه‌ی سربه‌سر {break_even:.2f}",
        "acceptance_elsewhere": "فقط روی پرسش‌های همراهِ برنامه: {rate:.0%} نامزدها با k = {k}، هر دور "
        "{tokens:.2f} توکن، نقطه‌ی سربه‌سر {break_even:.2f}؛ با ‎--prompts‎ یا ‎--traffic‎ داده‌ی خودتان را بدهید",
        "persian": "{count} پرسش، افزایشِ سرعتِ پیش‌بینی‌شده {speedup:.2f}",
        "persian_missing": "هیچ پرسشِ فارسی در میان نیست",
        "memory": "{draft:.0f} مگابایت برای پیش‌نویس؛ با {batch} درخواستِ هم‌زمان {needed:.0f} از {limit:.0f} مگابایت؛ "
        "بزرگ‌ترین دسته {largest} به جای {largest_plain}",
        "batch": "{batch} درخواستِ هم‌زمان",
        "batch_assumed": "{batch} درخواستِ هم‌زمان آزموده شد؛ ‎--concurrency‎ می‌گوید چند تا هست",
        "sampling": "دما {temperature:g}، top-p {top_p:g}، top-k {top_k}، بذر {seed}: در همه‌ی اجراها یکسان",
        "lossless": "{differing} از {answers} پاسخ با رمزگشاییِ ساده فرق دارد",
        "lossless_rounding": "{differing} از {answers} پاسخ با رمزگشاییِ ساده فرق دارد؛ بدونِ "
        "‎--invariant‎ گرد کردنِ عددها هم می‌تواند چنین کند",
        "tails": "فاصله‌ها P95/P99: ساده {plain_p95:.0f}/{plain_p99:.0f} و با حدس {p95:.0f}/{p99:.0f} میلی‌ثانیه، "
        "از {gaps} فاصله؛ P95 کلِ پاسخ: ساده {plain_e2e:.2f} و با حدس {e2e:.2f} ثانیه",
        "cache": "{leaked} از {blocks} بلوک برنگشته است",
        "fallback": "پیشنهاددهنده‌ی خراب {failures} بار شکست خورد و پاسخ همان پاسخِ ساده بود",
        "fallback_broken": "پیشنهاددهنده‌ی خراب {failures} بار شکست خورد و پاسخ همان پاسخِ ساده نبود",
        "confirmed": "سنجیده {value:.2f} [{low:.2f}, {high:.2f}]، پیش‌بینی {predicted:.2f}؛ به شکلِ سرویس {served:.2f}",
        "use": "به کار ببرید: {title}.",
        "do_not": "به کار نبرید؛ بهترین نامزد {title} بود.",
        "no_verdict": "حکمی داده نمی‌شود.",
        "gains": "سودِ سنجیده با {batch} درخواستِ هم‌زمان: {value:.2f} برابر [{low:.2f}, {high:.2f}]؛ بهترین طولِ ثابتِ "
        "پیش‌نویس {k}: سنجیده {fixed:.2f}، پیش‌بینی {predicted:.2f}.",
        "pays_from": "هر دور {tokens:.2f} توکن می‌دهد و از {break_even:.2f} به بالا سود دارد.",
        "adapts": "طولِ پیش‌نویس سازگار می‌شود و اگر سودی نباشد خودش کنار می‌رود.",
        "fixed": "طولِ پیش‌نویس {k} ثابت است: این‌جا آشکارا تندتر از طولِ سازگارشونده بود.",
        "up_to": "از میانِ اندازه‌های پرسیده‌شده، تا {largest} درخواستِ هم‌زمان سود پیش‌بینی می‌شود.",
        "disagreement": "پیش‌بینی {predicted:.2f} و سنجش {measured:.2f} به اندازه‌ی {deviation:.0%} فرق دارند، "
        "بیش از {most:.0%}. شاید دستگاه سرگرمِ کارِ دیگری است؛ دوباره یا با پرسش‌های بیشتر بسنجید.",
        "differs": "{differing} پاسخ همان پاسخِ رمزگشاییِ ساده نیست. لطفاً این را به عنوانِ خطا گزارش کنید.",
        "no_memory": "حافظه با پیش‌نویس برای {largest} درخواستِ هم‌زمان جا دارد، و درخواست‌ها {batch} تا هستند.",
        "no_gain": "سودِ سنجیده {value:.2f} برابر [{low:.2f}, {high:.2f}] است، کمتر از {least:.2f}.",
        "others": "با بهترین طولِ پیش‌نویس {value:.2f} برابر [{low:.2f}, {high:.2f}] سنجیده شد. سودِ سرویس، "
        "{served:.2f} برابر، از پیشنهاددهنده‌هایی آمد که مدلی از خود نمی‌خواهند و بی آن هم هستند.",
        "uncertain": "سودِ سنجیده، {value:.2f} برابر [{low:.2f}, {high:.2f}]، با {requests} درخواست از هیچ بازشناختنی "
        "نیست. درخواست‌های بیشتری بدهید: ‎--limit‎.",
        "short": "رمزگشایی فقط {share:.0%} زمانِ پاسخ است: پیش‌نویسِ بی‌هزینه و همیشه‌درست هم بیش از {most:.2f} برابر "
        "تندتر نمی‌کرد.",
        "too_few": "هر دور {tokens:.2f} توکن می‌دهد، و برای سود {break_even:.2f} توکن لازم است.",
        "load": "با {batch} درخواستِ هم‌زمان {speedup:.2f} برابر پیش‌بینی می‌شود، ولی پرسش درباره‌ی {now} درخواست بود.",
        "unusable": "{title} سنجیدنی نبود: {reason}",
        "interrupted": "پیش از اجرای واقعی متوقف شد: پیش‌بینی‌ها تأیید نشده‌اند.",
        "rests_on": "عددها بر {requests} درخواست، {rounds} دورِ {title} و {units} اجرای متناوب استوارند.",
        "rests_on_prediction": "پیش‌بینی‌ها بر {requests} درخواست و {rounds} دورِ {title} استوارند.",
        "stopped": "ناتمام: زودتر متوقف شد ({reason}).",
        "nothing": "هیچ پیشنهاددهنده‌ای برای سنجیدن نیست.",
        "command": "این‌گونه سرویس دهید:",
    },
}


def say(phrase: Phrase, language: Language) -> str:
    """A phrase as a sentence of this language."""
    return SENTENCES[language][phrase.key].format(**phrase.values)
