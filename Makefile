# Two doors: `make` sets up and rebuilds everything, `make test` sets up and tests.
# Any target may come first, and may be repeated. `make help` lists them.

PYTHON ?= python3
VENV ?= .venv
CORES ?= all
PRESET ?=
ARGS ?=
TORCH_INDEX ?=
KERNELS ?= default

# Unit tests whose numbers move first when another processor rounds otherwise.
NUMERIC = block instruments_propagation jacobian probe seq2seq theory_noci2022 \
	theory_noci2022_gradients trained

# The environment's commands first on PATH, and nobody else's packages.
ACTIVATE = PATH="$$(cd '$(VENV)/bin' && pwd):$$PATH"; PYTHONPATH=; PYTHONHOME=; \
	export PATH PYTHONPATH PYTHONHOME;

.PHONY: all quick test test-kernels check env lock clean help

all: env ## rebuild every figure, table, notebook, claim and page
	@$(ACTIVATE) preset='$(PRESET)'; \
	snakemake $(ARGS) --cores $(CORES) $${preset:+--config preset="$$preset"}

quick: env ## the same in minutes: the smallest sizes, for a first look
	@$(ACTIVATE) snakemake $(ARGS) --cores $(CORES) --config preset=smoke

test: check ## all checks, then all tests
	@$(ACTIVATE) OMP_NUM_THREADS=1 pytest -n 2

test-kernels: env ## numerical unit tests with the kernels of another processor (KERNELS)
	@case '$(KERNELS)' in default) core=Prescott ;; avx2) core=Haswell ;; \
		avx512) core=SkylakeX ;; \
		*) echo "KERNELS: '$(KERNELS)' is unknown; use default, avx2 or avx512" >&2; exit 1 ;; \
	esac; \
	case '$(KERNELS)' in avx*) grep -qs '$(KERNELS)' /proc/cpuinfo || { \
		echo "KERNELS: this processor does not name $(KERNELS) in /proc/cpuinfo;" \
			"use KERNELS=default" >&2; exit 1; } ;; esac; \
	$(ACTIVATE) OMP_NUM_THREADS=1 ATEN_CPU_CAPABILITY='$(KERNELS)' OPENBLAS_CORETYPE=$${OPENBLAS_CORETYPE:-$$core} \
		pytest -n 2 -m 'not slow' $(NUMERIC:%=tests/unit/test_%.py)

check: env ## the checks alone: style, types, imports, workflow and notebook hygiene
	@$(ACTIVATE) \
	step() { \
		said=$$("$$@" 2>&1) && echo "ok      $$*" && return; \
		printf '%s\n' "$$said"; echo "failed  $$*"; exit 1; \
	}; \
	notebooks() { \
		find notebooks -name '*.ipynb' ! -path '*/.ipynb_checkpoints/*' -exec "$$@" {} +; \
	}; \
	step ruff check; \
	step ruff format --check; \
	step mypy; \
	step lint-imports; \
	step snakefmt --check Snakefile workflow/rules; \
	step notebooks nbstripout --keep-id --verify; \
	step snakemake --lint

env: ## set up .venv from the lock (done by the others when needed)
	@command -v '$(PYTHON)' >/dev/null || { \
		echo "sigprop needs Python >= 3.11; $(PYTHON) is not there." \
			"Install it, or run make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@case '$(PYTHON)' in python3) same= ;; *) same=--same-python ;; esac; \
	'$(PYTHON)' envs/bootstrap.py --venv '$(VENV)' --torch-index '$(TORCH_INDEX)' $$same

lock: ## renew envs/requirements.txt from requirements.in (needs uv; ARGS=--upgrade for newer)
	@command -v uv >/dev/null || { \
		echo "make lock needs uv (python3 -m pip install uv); nothing was changed" >&2; exit 1; }
	@uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
		--no-emit-index-url --no-header $(ARGS) envs/requirements.in -o envs/requirements.txt

clean: ## remove .venv and the tools' caches; results/ and .snakemake/ stay
	@rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache \
		.grimp_cache .benchmarks workflow/sigprop.egg-info
	@find workflow tests envs benchmarks notebooks -name __pycache__ -type d -prune \
		-exec rm -rf {} +

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s  %s\n", $$1, $$2}' Makefile
	@echo "Variables: CORES=4  PRESET=paper  PYTHON=/path/to/python3.11  VENV=DIR" \
		"TORCH_INDEX=URL  KERNELS=avx2  ARGS='fig03 -n' (for snakemake)"
