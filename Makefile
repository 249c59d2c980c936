# make run    open the studio on the bundled sample
# make test   install everything, check the code, run the tests
# make test-long   the same at length, as once a week: every test, many examples, fuzz and kills
# make docs   build the manual

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DEMO := build/demo
MANUAL := build/docs-source
SAMPLE := resources/samples/rnnlm-2-2048.enplace
PACKAGE_LISTS := packaging/debian-run.txt

export PYTHON
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# What one process has compiled, the hundreds that tests start need not.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: run test check kernels collect test-long docs test-tensorflow test-torch torch-venv gpu-check lint fuzz kills audit wheel folder deb release-notes try-packages
.PHONY: bench bench-quick clean system

# Without a display the same job runs off-screen and leaves its pictures and files in $(DEMO).
run: $(VENV)/.installed-run
	$(compile_kernels)
ifeq ($(DISPLAY)$(WAYLAND_DISPLAY),)
	QT_QPA_PLATFORM=offscreen $(BIN)/python -m enplace_studio --offscreen-demo $(DEMO)
else
	$(BIN)/python -m enplace_studio $(SAMPLE)
endif

# The kernels of the default method, once after installation; later, this takes a few seconds.
define compile_kernels
@echo "Compiling; once after installation, this takes a minute or two"
$(BIN)/enplace compile $(COMPILE_ARGS)
endef

define check_the_code
$(BIN)/ruff check
$(BIN)/ruff format --check
$(BIN)/mypy core app benchmarks
$(BIN)/lint-imports --no-logo
endef

test: PACKAGE_LISTS += packaging/debian-test.txt
test: $(VENV)/.installed-test
	$(compile_kernels)
	$(MAKE) --no-print-directory --jobs=2 check kernels collect COMPILE_ARGS=--all
	QT_QPA_PLATFORM=offscreen $(BIN)/python -m pytest -n 2 --dist worksteal $(PYTEST_ARGS)

# Parts of `make test` that each keep one core busy; the kernels of the default method, which two
# processes compile, come before.
check:
	$(check_the_code)

kernels:
	$(compile_kernels)

# What pytest compiles of the tests' modules, each of its processes would compile again; whether they
# can be collected, the tests say.
collect:
	-QT_QPA_PLATFORM=offscreen $(BIN)/python -m pytest --collect-only --quiet $(PYTEST_ARGS) >/dev/null 2>&1

# What `make test` tests, with ten times as many examples of each property; the tests marked "long",
# which repeat what others test; then broken files and kills by the thousand. Hours; CI runs it weekly.
test-long: override PYTEST_ARGS += --long
test-long: test fuzz kills

# The manual, with the pages that come from the program; a warning or a broken link is an error.
docs: PACKAGE_LISTS += packaging/debian-bench.txt
docs: $(VENV)/.installed-docs
	$(compile_kernels)
	rm -rf $(MANUAL) && mkdir -p build && cp -R docs $(MANUAL)
	QT_QPA_PLATFORM=offscreen $(BIN)/python scripts/make_reference.py $(MANUAL)
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet $(MANUAL) build/docs
	@echo "The manual is in build/docs/index.html"

# TensorFlow's tests with another version of it: make test-tensorflow VERSION=2.18 PYTHON=python3.12
test-tensorflow: | system
	scripts/test-tensorflow.sh $(VERSION) $(PYTEST_ARGS)

# PyTorch's tests, in an environment of their own: make test-torch VERSION=2.13.0+cpu
test-torch: | system
	scripts/test-torch.sh $(or $(VERSION),2.13.0) $(PYTEST_ARGS)

# What that installs, but for Enplace itself: CI has it beside another `pip install -e`.
torch-venv: | system
	scripts/torch-venv.sh $(or $(VERSION),2.13.0)

# Models of PyTorch, and of TensorFlow beside it, on the GPU of this machine: make gpu-check PYTHON=python3
gpu-check:
	scripts/gpu-check.sh build/gpu-check

lint: $(VENV)/.installed-lint
	$(check_the_code)

# Broken input for every reader; FUZZ_ARGS is the number of files.
fuzz: $(VENV)/.installed-lint
	$(BIN)/python -m tests.fuzz $(FUZZ_ARGS)

# The studio, solvers, workers and commands killed at random moments; KILL_ARGS is how often each.
kills: $(VENV)/.installed-lint
	$(BIN)/python -m tests.kills $(KILL_ARGS)

# Known faults of the pinned dependencies; needs the network.
audit: $(BIN)/python
	$(BIN)/python -m pip install --quiet pip-audit
	$(BIN)/pip-audit --requirement constraints.txt --no-deps --disable-pip

# What people install; packaging/README.md says how each was tried. The wheel brings kernels for each
# Python in KERNELS; with others, it compiles at first use.
KERNELS ?= $(BIN)/python
wheel: $(VENV)/.installed-lint
	rm -rf build/lib dist/*.whl dist/enplace-*.tar.gz
	mkdir -p build
	packaging/compile-kernels.sh $(KERNELS)
	$(BIN)/python -m build --sdist --wheel --outdir dist >build/wheel.log

folder: PACKAGE_LISTS += packaging/debian-build.txt
folder: wheel
	PATH="$(CURDIR)/$(BIN):$$PATH" packaging/make-folder.sh dist/*.whl

deb: folder
	packaging/make-deb.sh build/folder/*/

release-notes:
	mkdir -p dist
	awk '/^## / { own = $$2 == version } own' version="$$(sed -n 's/^__version__ = "\(.*\)"/\1/p' core/enplace/__init__.py)" CHANGELOG.md >dist/release-notes.md

# Installs each package in a fresh Debian or virtual environment, and uses it there.
try-packages: KERNELS += python3.12 python3.13 python3.14
try-packages: deb
	packaging/try-wheel.sh dist/*.whl
	packaging/try-debian.sh dist

# docs/benchmarks.md anew, in an hour; BENCH_ARGS names some of the benchmarks.
bench: PACKAGE_LISTS += packaging/debian-bench.txt
bench: $(VENV)/.installed-bench
	$(compile_kernels)
	QT_QPA_PLATFORM=offscreen $(BIN)/python -m benchmarks $(BENCH_ARGS)

# The same in small sizes, in five minutes, to build/benchmarks.md.
bench-quick: BENCH_ARGS += --quick
bench-quick: bench

# Keeps the virtual environment: remove $(VENV) to begin anew.
clean:
	rm -rf build dist *.egg-info .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find core app resources tests -name __pycache__ -prune -exec rm -rf {} +

# What each command installs; TensorFlow is half a gigabyte, so only tests and benchmarks do. Python
# compiles the modules that it imports: of all that is installed, that is a small part.
EXTRAS_run := studio,exact,solvers
EXTRAS_docs := studio,exact,solvers,metis,notebook,docs
EXTRAS_lint := studio,exact,solvers,notebook,dev
EXTRAS_bench := studio,exact,solvers,metis,notebook,dev,tensorflow
EXTRAS_test := studio,exact,solvers,metis,notebook,onnx,docs,dev,tensorflow

$(VENV)/.installed-%: pyproject.toml setup.py constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --no-compile -c constraints.txt -e '.[$(EXTRAS_$*)]'
	touch $@

$(VENV)/.installed-run $(VENV)/.installed-docs $(VENV)/.installed-lint \
  $(VENV)/.installed-bench $(VENV)/.installed-test: | system

$(BIN)/python: | system
	scripts/make-venv.sh $(VENV)

system:
	@scripts/system-packages.sh $(PACKAGE_LISTS)
