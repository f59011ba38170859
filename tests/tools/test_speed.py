"""The speed benchmark on tiny models. What it measures is checked, never how much."""

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from gguf import GGUFWriter
from transformers import PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

from gamaneh.bench.engines import describe_setup
from gamaneh.bench.prompt_set import Prompt
from gamaneh.engine.llm import LLM, Generation
from gamaneh.errors import InvalidRequest
from gamaneh.models.canonical import canonical_weights
from gamaneh.models.decoder import Decoder
from gamaneh.models.families import decoder_config
from gamaneh.models.loading import LoadedModel
from gamaneh.models.weights import SafetensorsWeights, read_json
from gamaneh.options import EngineOptions, SamplingParams, SpeculationOptions
from gamaneh.testing import BYTE_VOCAB, ByteTokenizer, ScriptedRunner, next_token_table, scripted_engine
from tools.cases import Case
from tools.speed import overhead
from tools.speed.__main__ import main, make_configurations
from tools.speed.configuration import Effort, fixed_length
from tools.speed.figures import Aim, Figures
from tools.speed.measure import SpeedBench
from tools.speed.peer import Peer, load_peer
from tools.speed.race import Race, Runner, race
from tools.speed.report import describe
from tools.speed.verify import POSITIONS, verify_times

EFFORT = Effort(tokens=6, repeats=2, prompts=1, context=20)
PROMPTS = [
    Prompt("code-1", "code", "en", "def add(a, b):"),
    Prompt("edit-1", "editing", "en", "Copy this: tick tock tick tock tick"),
    Prompt("chat-1", "chat", "en", "Hello"),
]


class PlainBytes(ByteTokenizer):
    """A byte tokenizer that has no chat template."""

    backend = SimpleNamespace(chat_template=None)


def hf_model(layers: int) -> PreTrainedModel:
    torch.manual_seed(layers)
    config = Qwen2Config(
        vocab_size=BYTE_VOCAB,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        initializer_range=0.3,
        tie_word_embeddings=True,
    )
    return Qwen2ForCausalLM(config).eval()


def ours(folder: Path) -> LoadedModel:
    config = decoder_config(read_json(folder / "config.json"))
    decoder = Decoder(config, canonical_weights(config, SafetensorsWeights(folder)))
    return LoadedModel(
        name=folder.name,
        path=folder,
        config=config,
        decoder=decoder,
        tokenizer=PlainBytes(),  # type: ignore[arg-type]
        dtype=torch.float32,
        device=torch.device("cpu"),
        weight_bytes=decoder.nbytes(),
    )


@pytest.fixture(scope="module")
def target_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "target"
    hf_model(layers=2).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def draft_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "draft"
    hf_model(layers=1).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def llm(target_folder: Path) -> LLM:
    return LLM(ours(target_folder), options=EngineOptions(max_batch=1))


@pytest.fixture(scope="module")
def pair(target_folder: Path, draft_folder: Path) -> LLM:
    return LLM(ours(target_folder), draft_model=ours(draft_folder), options=EngineOptions(max_batch=1))


@pytest.fixture(scope="module")
def peer(target_folder: Path) -> PreTrainedModel:
    return load_peer(target_folder, torch.float32)


@pytest.fixture(scope="module")
def said() -> list[str]:
    return []


@pytest.fixture(scope="module")
def figures(llm: LLM, peer: PreTrainedModel, said: list[str]) -> Figures:
    return SpeedBench(llm, PROMPTS, EFFORT, lambda: peer).run("tiny, float32", said.append)


@pytest.fixture(scope="module")
def pair_figures(pair: LLM, peer: PreTrainedModel) -> Figures:
    return SpeedBench(pair, PROMPTS, EFFORT, lambda: peer).run("tiny pair, float32", lambda what: None)


def test_both_plain_decoders_emit_the_same_tokens(figures: Figures) -> None:
    assert (figures.peer.first, figures.peer.second, figures.peer.differences) == ("gamaneh", "transformers", ())


def test_verify_is_timed_in_both_executions_for_all_numbers_of_positions(figures: Figures) -> None:
    measured = {(row.invariant, row.positions) for row in figures.verify}

    assert measured == {(invariant, positions) for invariant in (True, False) for positions in POSITIONS}


def test_invariant_execution_is_held_against_free_shapes(figures: Figures) -> None:
    assert (figures.invariance.first, figures.invariance.second) == ("free", "invariant")


def test_overhead_is_measured_plain_with_fixed_and_with_adaptive_drafts(figures: Figures) -> None:
    assert [(row.proposer, row.draft_length) for row in figures.overhead] == [
        ("none", None),
        ("lookup", 4),
        ("lookup", None),
    ]


def test_a_pair_measures_the_overhead_of_its_draft_model(pair_figures: Figures) -> None:
    fixed = pair_figures.overhead[1]

    assert (fixed.proposer, fixed.draft_seconds > 0, fixed.drafted > 0) == ("draft_model", True, True)


def test_without_a_draft_model_only_lookup_speculates(figures: Figures) -> None:
    assert [(row.outcome.setup.proposer, row.category) for row in figures.speculation] == [("lookup", "editing")]


def test_a_pair_speculates_with_lookup_on_editing_and_with_the_draft_model_on_code(pair_figures: Figures) -> None:
    assert [(row.outcome.setup.proposer, row.category) for row in pair_figures.speculation] == [
        ("lookup", "editing"),
        ("draft_model", "code"),
    ]


def test_memory_of_target_and_draft_is_told_apart(pair: LLM, pair_figures: Figures) -> None:
    memory, draft = pair_figures.memory, pair.draft
    assert draft is not None

    assert (memory.target_weights, memory.draft_weights) == (pair.loaded.weight_bytes, draft.weight_bytes)
    # Two layers against one, in caches of the same number of blocks.
    assert (memory.target_kv, memory.target_kv_per_token) == (2 * memory.draft_kv, 2 * 2 * 2 * 8 * 4)


def test_progress_is_told_before_each_measurement(figures: Figures, said: list[str]) -> None:
    assert said == [
        "memory",
        "time of one verify",
        "cost of shape-invariant execution",
        "overhead of a round",
        "speculation against plain",
        "plain against transformers",
    ]


def test_the_text_shows_every_aim_of_the_configuration(pair_figures: Figures) -> None:
    text = describe(pair_figures)

    assert all(f"{aim.figure} {aim.value:.3g}, aim at least {aim.bound:g}" in text for aim in pair_figures.aims())


def test_only_a_large_target_is_held_against_the_aim_of_the_overhead(figures: Figures) -> None:
    assert [aim.figure for aim in figures.aims()] == ["plain against transformers", "lookup on editing"]


@pytest.mark.parametrize(
    ("value", "at_least", "met"), [(1.2, True, True), (1.1, True, False), (1.2, False, True), (1.3, False, False)]
)
def test_an_aim_is_met_on_its_side_of_the_bound(value: float, at_least: bool, met: bool) -> None:
    assert Aim("speed", value, 1.2, at_least).met is met


class Steady:
    """Answers with the same tokens at a fixed number of seconds per token; the first answer is slow."""

    def __init__(self, seconds_per_token: float, tokens: Sequence[int] = (1, 2, 3, 4, 5, 6), error: str | None = None):
        self.seconds_per_token, self.tokens, self.error = seconds_per_token, list(tokens), error
        self.answered = 0

    def generate(
        self, prompts: Sequence[Any], params: SamplingParams, *, references: Any = None, salt: str = ""
    ) -> list[Generation]:
        self.answered += 1
        pace = self.seconds_per_token * (100 if self.answered == 1 else 1)
        decode = pace * (len(self.tokens) - 1)
        return [
            Generation("", [], self.tokens, seconds=7 + decode, first_token_seconds=7, error=self.error)
            for _ in prompts
        ]


def steady_race(llm: LLM, first: Steady, second: Steady) -> Race:
    cases = [Case("a", "code", [1]), Case("b", "code", [2])]
    return race(Runner("first", first), Runner("second", second), cases, EFFORT, describe_setup(llm, SamplingParams()))


def test_a_race_compares_speeds_without_prompt_time_and_warm_up(llm: LLM) -> None:
    outcome = steady_race(llm, Steady(0.5), Steady(1.0))

    assert (outcome.first_tokens_per_second, outcome.second_tokens_per_second) == (2.0, 1.0)
    assert outcome.ratio.value == pytest.approx(2.0)


def test_a_race_reports_where_outputs_part_and_goes_on(llm: LLM) -> None:
    outcome = steady_race(llm, Steady(0.5), Steady(0.5, tokens=(1, 2, 9, 9, 9, 9)))

    assert sorted((part.prompt, part.token_position) for part in outcome.differences) == [("a", 2), ("b", 2)]


def test_a_race_refuses_a_prompt_that_cannot_be_answered(llm: LLM) -> None:
    broken = Steady(0.5)
    cases = [Case("a", "code", [1]), Case("b", "code", [2] * 300)]

    with pytest.raises(InvalidRequest, match="prompt b must be one the model can answer"):
        race(Runner("ours", llm), Runner("other", broken), cases, EFFORT, describe_setup(llm, SamplingParams()))


def test_the_peer_refuses_what_it_would_have_to_ignore(peer: PreTrainedModel) -> None:
    with pytest.raises(InvalidRequest, match="params must be greedy and of fixed length"):
        Peer(peer).generate([[1, 2]], SamplingParams(max_tokens=4, ignore_eos=True, temperature=0.5))


def test_the_peer_emits_as_many_tokens_as_asked_whatever_its_end_token(target_folder: Path) -> None:
    model = load_peer(target_folder, torch.float32)
    usual = Peer(model).generate([[1, 2, 3]], fixed_length(8))[0].tokens
    model.generation_config.eos_token_id = usual[2]

    assert Peer(model).generate([[1, 2, 3]], fixed_length(8))[0].tokens == usual


def test_the_peer_of_a_gguf_file_has_the_weights_of_the_file(tmp_path: Path) -> None:
    original = hf_model(layers=1)
    path = write_gguf(original, tmp_path / "tiny.gguf")

    loaded = load_peer(path, torch.float32)

    ids = torch.tensor([[1, 2, 3, 4]])
    with torch.inference_mode():
        torch.testing.assert_close(loaded(ids).logits, original(ids).logits)


def write_gguf(model: PreTrainedModel, path: Path) -> Path:
    config = model.config
    writer = GGUFWriter(path, "qwen2")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(config.vocab_size)
    for name, parameter in model.named_parameters():
        writer.add_tensor(gguf_name(name), parameter.detach().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


GGUF_PARTS = {
    "model.embed_tokens": "token_embd",
    "model.layers.": "blk.",
    "model.norm": "output_norm",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.o_proj": "attn_output",
    "self_attn.": "attn_",
    "mlp.": "ffn_",
    "_proj": "",
}


def gguf_name(name: str) -> str:
    for part, short in GGUF_PARTS.items():
        name = name.replace(part, short)
    return name


def test_timing_verifies_keeps_the_books_of_the_cache(llm: LLM) -> None:
    engine = llm.with_speculation(SpeculationOptions()).engine

    verify_times({False: engine}, list(range(20)), repeats=2)

    engine.backend.kv.check_integrity()
    assert engine.backend.kv.length("warm") == 20


def test_a_verify_of_one_position_is_its_own_measure(figures: Figures) -> None:
    assert [row.ratio.value for row in figures.verify if row.positions == 1] == [1.0, 1.0]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Time that passes only when a test says so."""
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(overhead, "time", SimpleNamespace(perf_counter=lambda: clock.now))
    return clock


def test_overhead_is_the_time_of_a_step_outside_of_forwards(clock: SimpleNamespace) -> None:
    class SlowRunner(ScriptedRunner):
        def forward(self, placed: Any, *, taps: Any = (), num_layers: int | None = None) -> Any:
            clock.now += 10.0
            return super().forward(placed, taps=taps)

    def wait(report: object) -> None:
        clock.now += 2.0

    engine = scripted_engine(SlowRunner(next_token_table({}, BYTE_VOCAB), BYTE_VOCAB), ByteTokenizer())
    engine.observers.append(wait)
    llm: Any = SimpleNamespace(with_speculation=lambda speculation: SimpleNamespace(engine=engine))

    row = overhead.measure_overhead(llm, SpeculationOptions(), [Case("a", "code", [1, 2, 3])], fixed_length(5))

    assert (row.rounds, row.target_seconds, row.overhead_seconds, row.share) == (4, 10.0, 2.0, 0.2)


def fake_measure(figures: Figures) -> Any:
    return lambda configuration, effort: figures


@pytest.fixture
def model_path(tmp_path: Path) -> str:
    path = tmp_path / "model.gguf"
    path.touch()
    return str(path)


def test_the_command_ends_with_one_line_of_json(
    figures: Figures, model_path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(["--models", model_path, "--quick"], measure_one=fake_measure(figures))

    document = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert code == 0
    assert set(document) == {"configurations", "effort", "machine", "versions", "date"}
    assert len(document["configurations"]) == 2  # bfloat16 and float32
    assert {"setup", "peer", "verify", "invariance", "overhead", "speculation", "memory", "aims"} <= set(
        document["configurations"][0]
    )


def test_a_model_that_was_not_pulled_is_named_with_the_command_that_pulls_it(
    figures: Figures, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GAMANEH_CACHE", str(tmp_path))

    code = main([], measure_one=fake_measure(figures))

    assert code == 2
    assert "gamaneh pull smollm2-135m-instruct" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--tokens", "1"], "--tokens must be at least 2: the first one is not timed, got 1"),
        (["--repeats", "0"], "--repeats must be at least 1, got 0"),
        (["--models", "a,b,c"], "--models must be TARGET or TARGET,DRAFT, got 'a,b,c'"),
    ],
)
def test_wrong_options_are_named(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert message in capsys.readouterr().err


def test_pairs_are_measured_in_bfloat16_and_single_models_in_float32_too() -> None:
    chosen = make_configurations(["one", "big,small"], None)

    assert [(entry.model, entry.draft_model, entry.dtype) for entry in chosen] == [
        ("one", None, "bfloat16"),
        ("one", None, "float32"),
        ("big", "small", "bfloat16"),
    ]


def test_asked_types_hold_for_all_models() -> None:
    chosen = make_configurations(["one", "big,small"], ["float32"])

    assert [entry.dtype for entry in chosen] == ["float32", "float32"]
