# `make quickstart` and `make test` are all a newcomer needs: Python 3.10+ and make, and nothing else.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SETTINGS := pyproject.toml constraints.txt

.PHONY: help quickstart test test-slow test-guides chaos mutants check weigh trace golden format village-model lesson-pictures docs release bench bench-quick bench-tables bench-gpu clean

help:  ## show what can be made
	@grep -E '^[a-z-]+:.*##' Makefile | sed 's/:.*##/  —/'

$(BIN)/python:
	$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }
	# pip 23.0 (Debian 12) 解不开 [test,check] 的依赖，十分钟也算不完
	$(BIN)/python -m pip install --quiet --disable-pip-version-check 'pip>=23.1'

# pip 看到已装好且符合约束的包会跳过；标记文件避免每次都去检查
$(VENV)/.installed: $(BIN)/python $(SETTINGS)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	@touch $@

$(VENV)/.installed-test: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test,check]'
	@touch $@

$(VENV)/.installed-mutants: $(VENV)/.installed-test
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test,mutants]'
	@touch $@

$(VENV)/.installed-bench: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[test,bench]'
	@touch $@

$(VENV)/.installed-docs: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	@touch $@

$(VENV)/.installed-release: $(VENV)/.installed-docs
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[release]'
	@touch $@

# COVERAGE=1 measures which lines of the package the tests run
COVERAGE_OPTIONS := $(if $(COVERAGE),--cov=bertsmith --cov=bertsmith_school --cov-report= --cov-append)
# PART=toolkit and PART=school test one of the two packages
TEST_PATHS := $(if $(filter school,$(PART)),tests/school,$(if $(filter toolkit,$(PART)),--ignore=tests/school))

quickstart: $(VENV)/.installed  ## the main job on the bundled world: about 2 minutes
	$(BIN)/bertsmith quickstart --out runs/quickstart

test: $(VENV)/.installed-test  ## the test suite but for its long runs: about 8 minutes on 2 cores; PART=toolkit or PART=school for one package
	$(BIN)/python -m pytest -n auto --dist loadfile -m 'not slow' $(COVERAGE_OPTIONS) $(TEST_PATHS)

test-slow: $(VENV)/.installed-test  ## the long runs: the bundled world trained, kills, ranks, workers
	$(BIN)/python -m pytest -n auto --dist worksteal -m 'slow and not guides'

test-guides: $(VENV)/.installed-test  ## the blocks of code of README and the site, in their order; SLOW=1 with those of minutes
	BERTSMITH_SLOW_BLOCKS=$(SLOW) $(BIN)/python -m pytest -n auto --dist worksteal -m guides tests/pages

chaos: $(VENV)/.installed-test  ## kill commands at random moments and compare what they end with: MINUTES=10 SEED=0
	$(BIN)/python tests/chaos.py --minutes $(or $(MINUTES),10) --seed $(or $(SEED),0)

# 变异按函数编号：ENDING=3 只试编号以 3 结尾的，约十分之一，每次都是同一批
mutants: $(VENV)/.installed-mutants  ## change one operator or number at a time and see whether a test notices; a tenth with ENDING=3
	OMP_NUM_THREADS=1 $(BIN)/python -m mutmut run --max-children $(or $(CORES),2) $(if $(ENDING),'*__mutmut_*$(ENDING)')
	@$(BIN)/python -m mutmut results --all true | sed -E 's/^ *(.*)\.x[^:]*: (.*)$$/\1 \2/' | sort | uniq -c
	$(BIN)/python -m mutmut results

check: $(VENV)/.installed-test  ## lint, formatting and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

weigh:  ## files and lines of every room: what adds also takes away
	@$(PYTHON) .ci/weigh.py

trace: $(VENV)/.installed-test  ## the files that run from pretrain to its loss, and from a labelled row to its score
	@$(BIN)/python .ci/trace.py

golden: $(VENV)/.installed-test  ## compare the results of the main jobs with those of another commit: BEFORE=v0.2.0; 5 minutes
	rm -rf build/before && git worktree prune && git worktree add --quiet --detach build/before $(BEFORE)
	$(BIN)/python .ci/golden.py --source build/before/src > build/golden-before.txt
	$(BIN)/python .ci/golden.py > build/golden-now.txt
	git worktree remove --force build/before
	diff build/golden-before.txt build/golden-now.txt && echo "$$(wc -l < build/golden-now.txt) results, all equal"

format: $(VENV)/.installed-test  ## put the code in order
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

village-model: $(VENV)/.installed  ## make the trained village models that the package carries: minutes
	$(BIN)/python .ci/village_models.py

lesson-pictures: $(VENV)/.installed  ## draw the pictures of the guides again, from the village model
	for language in en zh; do $(BIN)/bertsmith learn --pictures docs/images/lessons --language $$language; done

docs: $(VENV)/.installed-docs  ## the documentation site, for `bertsmith docs`; warnings are errors (Python 3.11+)
	$(BIN)/python docs/site/build.py

# 站点先建好：它是包的数据，轮子里要有。标签最后打：前面任何一步失败都不留下标签
release: VERSION = $(shell $(BIN)/python -c 'import bertsmith; print(bertsmith.__version__)')
release: $(VENV)/.installed-release docs  ## sdist and wheel in dist/, checked, and the tag of the version; uploads nothing
	@test -z "$$(git status --porcelain)" || { echo "commit first: the release is what the tag names" >&2; exit 2; }
	@grep -qx '## $(VERSION)\( .*\)\?' CHANGELOG.md || { echo "CHANGELOG.md has no heading '## $(VERSION)': say what is released" >&2; exit 2; }
	@grep -qx 'version: $(VERSION)' CITATION.cff || { echo "CITATION.cff names another version than $(VERSION)" >&2; exit 2; }
	rm -rf dist build
	$(BIN)/python -m build --outdir dist
	$(BIN)/python -m twine check --strict dist/*
	git tag -a 'v$(VERSION)' -m 'bertsmith $(VERSION)'

BENCHMARKS := $(filter-out $(addprefix benchmarks/,side_by_side.py measured.py tables.py chinese.py real_data.py trainer_peer.py vector_peers.py learners.py village_reader.py gpu.py),$(wildcard benchmarks/*.py))
BENCH_OPTIONS := $(if $(QUICK),--quick --threads 1)

bench: $(patsubst benchmarks/%.py,bench-%,$(BENCHMARKS))  ## all benchmarks, going on where they stopped; QUICK=1: a little of each, to see that they run and that no figure is missing or impossible

# 不比快慢，只看能不能跑完，数字有没有缺的或不可能的：两个一起跑
bench-quick:  ## the same as make bench QUICK=1, two scripts at a time
	$(MAKE) -j 2 bench QUICK=1

bench-tables: $(VENV)/.installed  ## write the tables and pictures of README and docs from benchmarks/results and docs/studies
	$(BIN)/python benchmarks/tables.py
	$(BIN)/python docs/site/pictures.py

bench-gpu: $(VENV)/.installed  ## correctness and speed on CUDA in ten minutes; without a GPU, what it would measure
	$(BIN)/python benchmarks/gpu.py $(if $(QUICK),--quick)

bench-%: $(VENV)/.installed-bench
	$(BIN)/python benchmarks/$(subst -,_,$*).py $(BENCH_OPTIONS)

# runs 里还有用户自己训练的模型，只删 make 自己做的那一个
clean:  ## remove what make made: the environment, the site, dist, caches, runs/quickstart; other runs stay
	rm -rf $(VENV) runs/quickstart build dist src/bertsmith/site mutants .coverage .pytest_cache .mypy_cache .ruff_cache src/*.egg-info
