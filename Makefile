# One command for each thing a person does with a checkout. `make` alone lists them.
# Nothing but git, python3 and make has to be installed: .ci/bootstrap.sh brings uv and everything in uv.lock.

PYTHON := .venv/bin/python
ARGS ?=
RESET ?=
ONLY ?=

.DEFAULT_GOAL := help
.PHONY: help bootstrap demo test soak check bench translations

help: ## Show this list
	@sed -nE 's/^([a-z]+):.*## (.*)/make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 20

bootstrap: ## Install uv and the locked packages into .venv
	@bash .ci/bootstrap.sh

demo: bootstrap ## Start the whole product with a seeded market (RESET=1 starts over)
	@exec $(PYTHON) manage.py demo $(if $(filter-out 0,$(RESET)),--reset) $(ARGS)

test: bootstrap ## Run the tests on real services (ARGS= goes to pytest)
	@bash .ci/tools.sh
	@$(PYTHON) -m pytest $(ARGS)

soak: bootstrap ## Run the tests at their large sizes (ARGS= goes to pytest)
	@bash .ci/tools.sh
	@GPUNEX_SOAK=1 $(PYTHON) -m pytest -m soak $(ARGS)

check: bootstrap ## Lint, types, import rules, templates, migrations
	@bash .ci/check.sh

bench: ## Measure what must stay fast, a JSON object a line (ONLY= a group, ARGS= sizes as meters=1000)
	@bash .ci/bootstrap.sh >&2
	@$(PYTHON) -m tests.bench $(ONLY) $(ARGS)

translations: bootstrap ## Extract messages into the catalogues and say what is untranslated
	@$(PYTHON) -m gpunex.kit.translations extract
