# Everything runs in the project's own .venv, whatever else is active in the shell.

set shell := ["bash", "-euo", "pipefail", "-c"]
set positional-arguments

export VIRTUAL_ENV := justfile_directory() / ".venv"
export UV_PYTHON_DOWNLOADS := "never"

# Where a shell forbids it, every process would compile all its modules anew: a second a start.
export PYTHONDONTWRITEBYTECODE := ""

python := ".venv/bin/python"
compile := "uv pip compile --quiet --universal --fork-strategy fewest --python-version 3.11 --generate-hashes --no-emit-index-url --annotation-style line --custom-compile-command 'just lock'"

[private]
@default:
    {{ just_executable() }} --list --unsorted

# Serve a session from sessiond.sqlite3 here, unless ARGS or the environment name another database
[no-exit-message]
@run *ARGS: _setup
    SESSIOND_SERVE_SESSION_DB="${SESSIOND_SERVE_SESSION_DB-sessiond.sqlite3}" exec .venv/bin/sessiond serve "$@"

# Show a turn with tools, a `kill -9` in its middle, and the restart
[no-exit-message]
@demo: _setup
    exec {{ python }} docs/demo/demo.py

# Run the tests on all cores (ARGS go to pytest; `-n0` runs them in one process)
@test *ARGS: _setup
    {{ python }} -m pytest -n auto --dist loadfile --no-loadscope-reorder "$@"

# Run the heavy tests that `test` leaves out
@stress *ARGS: _setup
    {{ python }} -m pytest -m stress "$@"

# Lint, format, types, schemas: what must hold before a commit, beside the tests
check: _setup && schemas
    .venv/bin/ruff check .
    .venv/bin/ruff format --check .
    .venv/bin/pyright

# Hold schemas/ to its rules, its samples to two validators, and the OpenAPI document to its own
schemas: _setup
    {{ python }} -m pytest -q -p no:randomly tests/test_schemas.py tests/test_samples.py tests/test_openapi.py tests/test_validation.py

# Apply the formatter and the safe fixes
fix: _setup
    .venv/bin/ruff check --fix .
    .venv/bin/ruff format .

# Measure beside plain SQLite, as a table and as JSON (`--quick`, `--only NAME`, `--help`)
@bench *ARGS: _setup
    {{ python }} -m benchmarks.run "$@"

# Renew the locks after a change of pyproject.toml (`--upgrade` takes the newest releases)
lock *ARGS:
    {{ compile }} "$@" pyproject.toml --output-file requirements.lock
    {{ compile }} "$@" pyproject.toml --group dev --constraint requirements.lock --output-file requirements-dev.lock

# Bring .venv to what the lock says; next to nothing when it is already there
_setup:
    #!/usr/bin/env bash
    set -euo pipefail
    stamp="$PWD $(cat requirements-dev.lock pyproject.toml | cksum)"
    installed="$(cat .venv/installed 2>/dev/null || true)"
    if [[ "$installed" == "$stamp" ]] && {{ python }} -c ''; then
        exit 0
    fi
    # A venv holds absolute paths: made elsewhere, or for an interpreter that is gone, it is made anew.
    if [[ "${installed% * *}" != "$PWD" ]] || ! {{ python }} -c ''; then
        uv venv --quiet --clear .venv
    fi
    rm -f .venv/installed
    # Named outright: UV_PYTHON, where somebody set it, would send both into that interpreter.
    uv pip sync --quiet --python {{ python }} --require-hashes requirements-dev.lock
    uv pip install --quiet --python {{ python }} --no-deps --no-build-isolation --editable .
    printf '%s\n' "$stamp" >.venv/installed
