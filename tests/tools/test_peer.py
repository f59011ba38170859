"""The peer is built with what the processor has, once, and its failures are told by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from gamaneh.errors import GamanehError, InvalidOption
from tools import peer
from tools.peer import PROGRAMS, build_options, find_peer, main, processor_flags

CPUINFO = "processor\t: 0\nflags\t\t: fpu avx2 fma avx512f avx512_vnni\nbugs\t\t: none\n"


def test_flags_are_those_of_the_first_processor() -> None:
    assert processor_flags(CPUINFO) == {"fpu", "avx2", "fma", "avx512f", "avx512_vnni"}
    assert processor_flags("") == frozenset()


def test_the_build_uses_what_the_processor_has_and_nothing_else() -> None:
    options = build_options(processor_flags(CPUINFO), "x86_64")
    assert {"-DGGML_NATIVE=OFF", "-DGGML_AVX512=ON", "-DGGML_AVX512_VNNI=ON", "-DGGML_AVX512_BF16=OFF"} <= set(options)
    assert {"-DGGML_AVX2=ON", "-DGGML_AVX512=OFF"} <= set(build_options(frozenset({"avx2"}), "x86_64"))


def test_other_machines_are_left_to_the_compiler() -> None:
    options = build_options(frozenset(), "aarch64")
    assert "-DGGML_NATIVE=ON" in options and not [option for option in options if "AVX" in option]


def test_a_peer_that_was_not_built_says_how_to_build_it(tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match=r"must be built first, with `python -m tools\.peer build`"):
        find_peer(tmp_path).program("llama-server")


def test_a_built_peer_is_not_built_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = find_peer(tmp_path).folder
    folder.mkdir(parents=True)
    for name in PROGRAMS:
        (folder / name).touch()
    monkeypatch.setattr(peer.subprocess, "run", lambda *command, **more: pytest.fail("something was run"))
    assert main(["build", "--cache", str(tmp_path)]) == 0
    assert capsys.readouterr().out.strip() == str(folder)


def test_a_step_that_fails_is_told_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer.sys, "executable", "/bin/false")
    with pytest.raises(GamanehError, match="/bin/false must end with exit code 0, got 1"):
        peer.build(tmp_path)
