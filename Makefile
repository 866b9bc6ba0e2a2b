# `make run` shows the tool at work, `make test` proves it; both set up .venv when it is missing or out of date.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed

.PHONY: run test check format docs pictures wheel clean

run: $(STAMP)
	$(BIN)/python examples/demonstration.py

test: check
	$(BIN)/pytest -n 3 --dist loadfile --no-loadscope-reorder  # three on two cores: many tests wait for processes that they started

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(STAMP)
	NO_MKDOCS_2_WARNING=1 PYTHONWARNINGS=ignore::DeprecationWarning $(BIN)/mkdocs build  # --quiet would not be strict: it counts what it prints
	@echo "The manual: site/index.html"

pictures: $(STAMP)
	$(BIN)/python docs/making/pictures.py

wheel:
	PYTHON=$(PYTHON) .ci/wheel

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

clean:
	rm -rf .venv build dist site .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
