"""Rotary tables: equal to those of `transformers`, and a function of the position alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from gamaneh.models.config import RopeSpec
from gamaneh.models.rope import rope_tables

HEAD_DIM = 32
CONTEXT = 512

SCALINGS: dict[str, tuple[RopeSpec, dict[str, Any]]] = {
    "linear": (
        RopeSpec(theta=10000.0, scaling="linear", factor=4.0),
        {"rope_type": "linear", "factor": 4.0},
    ),
    "dynamic": (
        RopeSpec(theta=10000.0, scaling="dynamic", factor=2.0, original_context=CONTEXT),
        {"rope_type": "dynamic", "factor": 2.0},
    ),
    "llama3": (
        RopeSpec(theta=10000.0, scaling="llama3", factor=8.0, original_context=64),
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    ),
    "yarn": (
        RopeSpec(theta=10000.0, scaling="yarn", factor=4.0, original_context=128),
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128},
    ),
    "yarn, untruncated, own betas": (
        RopeSpec(
            theta=10000.0,
            scaling="yarn",
            factor=4.0,
            original_context=128,
            beta_fast=16.0,
            beta_slow=2.0,
            attention_factor=1.25,
            truncate=False,
        ),
        {
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 128,
            "beta_fast": 16.0,
            "beta_slow": 2.0,
            "attention_factor": 1.25,
            "truncate": False,
        },
    ),
    "yarn, mscale": (
        RopeSpec(theta=10000.0, scaling="yarn", factor=4.0, original_context=128, mscale=1.0, mscale_all_dim=0.5),
        {
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 128,
            "mscale": 1.0,
            "mscale_all_dim": 0.5,
        },
    ),
}


def reference_tables(parameters: dict[str, Any], length: int) -> tuple[Tensor, Tensor]:
    config = LlamaConfig(
        hidden_size=2 * HEAD_DIM,
        num_attention_heads=2,
        max_position_embeddings=CONTEXT,
        rope_parameters={"rope_theta": 10000.0, **parameters},
    )
    frequencies, scale = ROPE_INIT_FUNCTIONS[parameters["rope_type"]](config, None, seq_len=length)
    angles = torch.arange(length, dtype=torch.float32)[:, None] * frequencies
    angles = torch.cat([angles, angles], dim=-1)
    return angles.cos() * scale, angles.sin() * scale


@pytest.mark.parametrize("name", SCALINGS)
def test_tables_equal_those_of_transformers(name: str) -> None:
    spec, parameters = SCALINGS[name]
    tables = rope_tables(spec, HEAD_DIM, CONTEXT)
    torch.testing.assert_close(tables, reference_tables(parameters, CONTEXT), atol=2e-5, rtol=0)


def test_unscaled_tables_follow_the_formula() -> None:
    cos, sin = rope_tables(RopeSpec(theta=100.0), 4, 3)
    angles = torch.tensor([[0.0, 0.0], [1.0, 0.1], [2.0, 0.2]])
    torch.testing.assert_close(cos, torch.cat([angles.cos(), angles.cos()], dim=-1))
    torch.testing.assert_close(sin, torch.cat([angles.sin(), angles.sin()], dim=-1))


def test_dynamic_row_equals_the_reference_for_a_sequence_that_ends_there() -> None:
    spec, parameters = SCALINGS["dynamic"]
    cos, sin = rope_tables(spec, HEAD_DIM, 3 * CONTEXT)
    for length in (CONTEXT + 1, 2 * CONTEXT, 3 * CONTEXT):
        reference_cos, reference_sin = reference_tables(parameters, length)
        torch.testing.assert_close(cos[length - 1], reference_cos[-1], atol=2e-4, rtol=0)
        torch.testing.assert_close(sin[length - 1], reference_sin[-1], atol=2e-4, rtol=0)


@pytest.mark.parametrize("name", SCALINGS)
def test_rows_do_not_depend_on_how_many_are_made(name: str) -> None:
    spec, _ = SCALINGS[name]
    short, long = rope_tables(spec, HEAD_DIM, 600), rope_tables(spec, HEAD_DIM, 2000)
    assert torch.equal(short[0], long[0][:600])
    assert torch.equal(short[1], long[1][:600])


def test_tables_are_float32() -> None:
    cos, sin = rope_tables(RopeSpec(), HEAD_DIM, 8)
    assert (cos.dtype, sin.dtype) == (torch.float32, torch.float32)
    assert cos.shape == sin.shape == (8, HEAD_DIM)
