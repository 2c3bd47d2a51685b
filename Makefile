# Everything a person types. Each target works alone.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= $(shell tests/find-python)
VENV := .venv
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)
export ANSIBLE_CONFIG := $(CURDIR)/ansible.cfg
export ANSIBLE_COLLECTIONS_PATH := $(CURDIR)/collections
PIP := pip install --quiet --disable-pip-version-check

.PHONY: help
help: ## Show the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

$(VENV)/.controller: requirements.txt
	@echo "Making the Python environment in $(VENV)"
	$(PYTHON) -m venv $(VENV)
	$(PIP) -r requirements.txt
	touch $@

$(VENV)/.rig: $(VENV)/.controller tests/rig/requirements.txt
	$(PIP) -r tests/rig/requirements.txt
	touch $@

$(VENV)/.tests: $(VENV)/.controller tests/requirements.txt
	$(PIP) -r tests/requirements.txt
	touch $@

.PHONY: rig
rig: $(VENV)/.rig ## Make the two local machines, the registry and the hub
	ansible-playbook -i localhost, tests/rig/create.yml

.PHONY: demo
demo: rig ## Serve a small chat model over two local machines, and ask it
	ansible-playbook site.yml -i inventories/local_pair

.PHONY: clean-demo
clean-demo: $(VENV)/.rig ## Remove all that the demo made, but its downloads
	ansible-playbook -i localhost, tests/rig/destroy.yml

.PHONY: test
test: ## All tests that CI runs
	$(MAKE) --jobs=2 --output-sync=target lint sanity unit oldest overlay
	$(MAKE) e2e overlay-engine

.PHONY: lint
lint: $(VENV)/.tests ## Style and types
	ruff check
	ruff format --check
	MYPYPATH=collections mypy -p ansible_collections.tandem.serving.plugins
	mypy --strict roles/rank/files
	yamllint --strict .
	ansible-lint --offline
	antsibull-changelog lint

.PHONY: unit
unit: $(VENV)/.tests ## Unit tests
	pytest -n auto

.PHONY: overlay
overlay: ## Tests of the overlay without vLLM
	tests/overlay/run

.PHONY: overlay-engine
overlay-engine: $(VENV)/.tests rig ## The overlay's image in real engines on the demo's machines
	pytest -n0 -v tests/overlay

.PHONY: oldest
oldest: ## Unit tests on the oldest ansible-core, where its Python exists
	tests/oldest/run

.PHONY: sanity
sanity: $(VENV)/.tests ## ansible-test sanity on the built collection
	tests/sanity/run

.PHONY: molecule
molecule: $(VENV)/.tests rig ## Each role on the two local machines
	molecule test --all

.PHONY: e2e
e2e: $(VENV)/.tests rig ## The whole job and its faults
	pytest -n0 -v tests/e2e

.PHONY: playbooks
playbooks: $(VENV)/.tests rig ## The playbooks for every day on the two local machines
	pytest -n0 -v tests/playbooks

.PHONY: standin
standin: $(VENV)/.tests rig ## The systems that need hardware, against engines that only look like them
	pytest -n0 -v tests/standin

.PHONY: drill
drill: $(VENV)/.tests rig ## Break the pair in every way for half an hour, and see it serve again
	python tests/drill/drill.py --minutes 30

.PHONY: engine
engine: $(VENV)/.tests rig ## The recipes' arguments by vLLM's own parser
	pytest -n0 tests/engine

.PHONY: rdma-lab
rdma-lab: $(VENV)/.tests ## The fabric role on virtual machines with software RDMA
	tests/rdma_lab/build
	pytest -n2 --dist loadfile tests/rdma_lab/test_{pair,triangle,ring}.py

.PHONY: nfs-lab
nfs-lab: $(VENV)/.tests ## Weights over NFS on the same machines
	tests/rdma_lab/build
	pytest -n0 tests/rdma_lab/test_nfs.py

.PHONY: bench-sync
bench-sync: $(VENV)/.tests rig ## The copy of weights against one rsync over SSH
	ansible-playbook -i inventories/local_pair tests/bench/sync.yml

.PHONY: bench-image
bench-image: $(VENV)/.tests rig ## Shipping an image against save and load over SSH
	ansible-playbook -i inventories/local_pair tests/bench/image.yml

.PHONY: bench-logs
bench-logs: $(VENV)/.tests ## Speed of log reading
	PYTHONPATH=collections python tests/bench/bench_logs.py 1024

.PHONY: docs
docs: $(VENV)/.tests ## Make the generated pages anew
	PYTHONPATH=collections python docs/checks.py
	PYTHONPATH=collections python docs/guards.py
