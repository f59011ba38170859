import pytest

from gamaneh.cli.option_groups import ModelChoice, ProposerChoice, SamplingChoice
from gamaneh.options import EngineOptions, SamplingParams, SpeculationOptions


def test_options_that_are_not_given_keep_their_one_default() -> None:
    assert SamplingChoice().params() == SamplingParams()


def test_every_sampling_option_reaches_the_parameters() -> None:
    choice = SamplingChoice(
        max_tokens=7,
        min_tokens=2,
        temperature=0.5,
        top_k=5,
        top_p=0.9,
        min_p=0.1,
        repetition_penalty=1.1,
        presence_penalty=0.2,
        frequency_penalty=0.3,
        seed=4,
        stop=["end"],
        stop_token_id=[9],
        logit_bias=["3=-1.5", "4=2"],
        bad_word=["no"],
        ignore_eos=True,
    )

    assert choice.params(lambda text: [len(text)], logprobs=2) == SamplingParams(
        max_tokens=7,
        min_tokens=2,
        temperature=0.5,
        top_k=5,
        top_p=0.9,
        min_p=0.1,
        repetition_penalty=1.1,
        presence_penalty=0.2,
        frequency_penalty=0.3,
        seed=4,
        stop=("end",),
        stop_token_ids=(9,),
        logit_bias={3: -1.5, 4: 2.0},
        bad_words=((2,), (3,)),
        ignore_eos=True,
        logprobs=2,
    )


@pytest.mark.parametrize(
    ("choice", "proposer"),
    [
        (ProposerChoice(), "lookup"),
        (ProposerChoice(lookup=True), "lookup"),
        (ProposerChoice(plain=True), "none"),
        (ProposerChoice(draft_model="small"), "draft_model"),
        (ProposerChoice(heads=["some/eagle"]), "auto"),
        (ProposerChoice(draft_model="small", lookup=True), "auto"),
        (ProposerChoice(proposer="suffix"), "suffix"),
        (ProposerChoice(proposer="auto", draft_model="small"), "auto"),
        (ProposerChoice(proposer="offered-by-a-plug-in", draft_model="small"), "offered-by-a-plug-in"),
    ],
)
def test_one_option_chooses_the_proposer(choice: ProposerChoice, proposer: str) -> None:
    assert choice.speculation() == SpeculationOptions(proposer=proposer)


def test_every_proposer_option_reaches_the_speculation() -> None:
    choice = ProposerChoice(
        draft_model="small",
        draft_length=4,
        max_draft_length=6,
        rule="typical",
        draft_sampling="greedy",
        epsilon=0.1,
        delta=0.2,
        proposer_options={"min_confidence": 0.5, "draft_branching": 2, "bridge": "vocabulary"},
    )

    assert choice.speculation() == SpeculationOptions(
        proposer="draft_model",
        draft_length=4,
        max_draft_length=6,
        rule="typical",
        draft_sampling="greedy",
        epsilon=0.1,
        delta=0.2,
        proposer_options={"min_confidence": 0.5, "draft_branching": 2, "bridge": "vocabulary"},
    )


def test_lookup_options_reach_the_speculation() -> None:
    assert ProposerChoice(proposer_options={"max_ngram": 5, "min_ngram": 3}).speculation() == SpeculationOptions(
        proposer="lookup", proposer_options={"max_ngram": 5, "min_ngram": 3}
    )


def test_suffix_options_reach_the_speculation() -> None:
    choice = ProposerChoice(
        proposer="suffix",
        proposer_options={"suffix_depth": 9, "suffix_share": 0.5, "suffix_tokens": 800, "suffix_store": "answers"},
    )

    assert choice.speculation() == SpeculationOptions(
        proposer="suffix",
        proposer_options={"suffix_depth": 9, "suffix_share": 0.5, "suffix_tokens": 800, "suffix_store": "answers"},
    )


def test_options_of_every_proposer_go_with_auto() -> None:
    choice = ProposerChoice(
        proposer="auto", draft_model="small", proposer_options={"merge": True, "min_confidence": 0.5, "max_ngram": 5}
    )

    assert choice.speculation() == SpeculationOptions(
        proposer="auto", proposer_options={"merge": True, "min_confidence": 0.5, "max_ngram": 5}
    )


def test_model_options_reach_the_engine() -> None:
    assert ModelChoice(model="m", invariant=False, max_context=64).engine(max_batch=2) == EngineOptions(
        invariant=False, max_context=64, max_batch=2
    )
