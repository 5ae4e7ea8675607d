# Two commands do everything on a fresh machine: `make run` and `make test`.
PYTHON ?= python3
VENV   ?= .venv
BIN     = $(VENV)/bin
PYTHONS ?= 3.10 3.11 3.12 3.13

.PHONY: run install test check e2e bench soak mutate peers fuzz pythons demo dashboards format clean

run: install                ## the screen; the demo where there is neither a GPU nor an engine
	@$(BIN)/gpuwatch doctor --quiet && exec $(BIN)/gpuwatch tui || exec $(BIN)/gpuwatch tui --demo

install: $(BIN)/gpuwatch

$(BIN)/gpuwatch: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q --disable-pip-version-check -e .
	@touch $@

$(BIN)/pytest: $(BIN)/gpuwatch
	$(BIN)/pip install -q --disable-pip-version-check -e '.[dev]'
	@touch $@

test: $(BIN)/pytest         ## unit tests: no network, no GPU, no engine
	bash tests/tools/pytest_twice.sh $(BIN)/python .pytest_cache tests/unit -n 4 --dist worksteal

check: $(BIN)/pytest        ## lint, types, layout
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest -q tests/unit/test_layout.py

e2e: $(BIN)/pytest          ## real Prometheus, real promtool, real vLLM; fetched into .cache/
	bash tests/e2e/fetch.sh prometheus victoria vllm sglang grafana lint chromium tmux
	bash tests/tools/pytest_twice.sh $(BIN)/python .pytest_cache tests/e2e

pythons:                    ## the unit tests on every CPython of the list that this machine has
	bash tests/tools/pythons.sh $(PYTHONS)

bench: $(BIN)/pytest        ## speed and memory as ratios measured in this run
	bash tests/e2e/fetch.sh prometheus peers vllm
	$(BIN)/python tests/bench/run.py

soak: $(BIN)/pytest         ## ten healthy minutes: real vLLM, eight fake GPUs, no finding above info
	bash tests/e2e/fetch.sh vllm
	$(BIN)/python tests/tools/soak.py

mutate: $(BIN)/pytest       ## change each threshold and `for` of the rules: do their tests notice?
	$(BIN)/python tests/tools/mutate.py

peers: $(BIN)/pytest        ## vllm-doctor and vllmstat beside gpuwatch on the same server, healthy and in a storm
	bash tests/e2e/fetch.sh peers vllm
	$(BIN)/python tests/tools/peers.py

fuzz: $(BIN)/pytest         ## the property tests with new examples, again and again
	for round in $$(seq 20); do GPUWATCH_EXAMPLES=new $(BIN)/pytest -q -m hypothesis || exit 1; done

demo: $(BIN)/gpuwatch       ## the recorded run
	$(BIN)/gpuwatch tui --demo

dashboards: $(BIN)/gpuwatch ## dashboards/*.json from gpuwatch/dashboards and the rules
	$(BIN)/python tests/tools/make_dashboards.py

format: $(BIN)/pytest
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) build dist .mypy_cache .pytest_cache .ruff_cache
