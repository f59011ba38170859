"""Fakes at the lowest seam, for this project's tests and for its users' tests.

A *scripted* target has a table in place of a network; a *tiny* decoder is a real network with
random weights. Both need no download and answer in milliseconds.
"""

from gamaneh.testing.scripted import (
    Script,
    ScriptedProposer,
    ScriptedRunner,
    constant,
    fixed_output,
    hashed,
    next_token_table,
    scripted_engine,
)
from gamaneh.testing.simulated import SimulatedClock, TimedProposer, TimedRunner
from gamaneh.testing.tiny import TINY_CONFIGS, tiny_decoder, tiny_model, tiny_weights
from gamaneh.testing.tiny_heads import tiny_heads
from gamaneh.testing.tokens import BOS_ID, BYTE_VOCAB, EOS_ID, PAD_ID, ByteTokenizer, PieceTokenizer

__all__ = [
    "BOS_ID",
    "BYTE_VOCAB",
    "EOS_ID",
    "PAD_ID",
    "TINY_CONFIGS",
    "ByteTokenizer",
    "PieceTokenizer",
    "Script",
    "ScriptedProposer",
    "ScriptedRunner",
    "SimulatedClock",
    "TimedProposer",
    "TimedRunner",
    "constant",
    "fixed_output",
    "hashed",
    "next_token_table",
    "scripted_engine",
    "tiny_decoder",
    "tiny_heads",
    "tiny_model",
    "tiny_weights",
]
