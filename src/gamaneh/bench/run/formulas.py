"""How every figure is computed, for printing beside it."""

from __future__ import annotations

from collections.abc import Mapping

FORMULAS: Mapping[str, str] = {
    "ttft": "first delivery - request sent (open loads: - request due)",
    "itl": "gap between one delivery of tokens and the next; tokens that come together are one delivery",
    "tpot": "(last delivery - first delivery) / (tokens - 1), of one request",
    "e2e": "last delivery - request sent",
    "speedup": "plain TPOT / speculative TPOT of the same request; geometric mean over rounds, then over prompts, "
    "with a 95 % bootstrap interval over the prompts",
    "e2e_speedup": "the same with E2E: prompt and queue included",
    "throughput": "tokens/s speculative / tokens/s plain of each turn; geometric mean with a 95 % bootstrap interval",
    "tokens_per_second": "output tokens / sum of (last answer ended - first request sent) over the turns",
    "requests_per_second": "answered requests / the same seconds",
    "decode_tokens_per_second": "sum of (tokens - 1) / sum of (E2E - TTFT)",
    "percentiles": "P50, P95, P99 with straight lines between order statistics (Hyndman and Fan 1996, definition 7)",
    "split": "queue = first in the batch - sent; prefill = first token - first in the batch; decode = E2E - TTFT; "
    "draft, verify = whole seconds of the rounds that a request had a part in; other = decode - draft - verify",
    "acceptance_rate": "accepted / drafted; pooled over all requests. It falls as k grows: print k beside it",
    "acceptance_rate_macro": "mean over the requests of accepted / drafted",
    "tokens_per_round": "emitted / rounds, where tokens are emitted up to the end of an output, end tokens included; "
    "1 is plain decoding",
    "tokens_per_round_macro": "mean over the requests of emitted / rounds",
    "accepted_per_draft": "accepted / drafts",
    "survival": "s_i = drafts whose first i candidates were all accepted / drafts with at least i candidates; later "
    "ones count longer drafts only, those that promised more, so that s_i may rise with i",
    "utilisation": "processor seconds / (seconds * cores)",
    "goodput": "requests (tokens) of those that met every objective / seconds; failed requests meet none",
    "cost_per_million": "price per hour / 3600 * 1,000,000 / tokens per second",
    "tokens_per_character": "output tokens / characters of the output",
    "equality": "texts of both sides for the same request; a tie is a difference where the target's two most likely "
    "tokens are as close as rounding of its type",
    "saturation": "more than a tenth of the arriving requests pile up: slope of a straight line through the requests "
    "under way at the later half of the arrivals",
}
