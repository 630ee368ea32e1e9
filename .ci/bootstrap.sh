#!/usr/bin/env bash
# Brings uv, a Python of at least 3.12 and the locked packages into .venv. Fast when all is there; says what is missing
# in one line otherwise. Needs: bash and any python3.
set -euo pipefail
cd "$(dirname "$0")/.."

fail() {
  printf '%s\n' "$*" >&2
  exit 1
}

# uv on PATH may be a version manager's shim that fails, so it is tried out and not just looked for.
find_uv() {
  local candidate
  for candidate in uv "$PWD/.gpunex/uv/bin/uv"; do
    if "$candidate" --version >/dev/null 2>&1; then
      UV="$candidate"
      return 0
    fi
  done
  return 1
}

# The same holds for python3. Any version will do to make the environment that holds uv.
find_python3() {
  local candidate
  for candidate in python3 /usr/bin/python3 /usr/local/bin/python3; do
    if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 8))' >/dev/null 2>&1; then
      PYTHON3="$candidate"
      return 0
    fi
  done
  return 1
}

# Debian and Ubuntu ship python3 without ensurepip, in a package of its own.
make_uv() {
  find_python3 || fail "No python3 runs here: install the package python3 and try again."
  if ! "$PYTHON3" -c 'import ensurepip' >/dev/null 2>&1; then
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
      echo "Installing python3-venv ..."
      { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends python3-venv; } \
        >/dev/null 2>&1 || fail "apt-get could not install python3-venv: install that package and try again."
    fi
    "$PYTHON3" -c 'import ensurepip' >/dev/null 2>&1 ||
      fail "Python cannot make virtual environments here: install the package python3-venv (sudo apt-get install python3-venv) and try again."
  fi
  echo "Installing uv into .gpunex/uv ..."
  rm -rf .gpunex/uv
  mkdir -p .gpunex
  "$PYTHON3" -m venv .gpunex/uv || fail "python3 -m venv failed: install the package python3-venv and try again."
  .gpunex/uv/bin/python -m pip install -qq --disable-pip-version-check uv ||
    fail "pip could not install uv: check the network and try again."
}

# The version in .python-version, else any newer one. uv looks along PATH; pyenv keeps its own elsewhere.
find_python312() {
  local request found
  for request in "$(cat .python-version)" '>=3.12'; do
    if found="$("$UV" python find --no-project "$request" 2>/dev/null)" && runs_as_312 "$found"; then
      PYTHON312="$found"
      return 0
    fi
    for found in "${PYENV_ROOT:-${HOME:-/nonexistent}/.pyenv}"/versions/3.*/bin/python3; do
      case "$found" in */versions/"$(cat .python-version)"*) ;; *) [ "$request" = '>=3.12' ] || continue ;; esac
      if runs_as_312 "$found"; then
        PYTHON312="$found"
        return 0
      fi
    done
  done
  return 1
}

runs_as_312() {
  [ -x "$1" ] && "$1" -c 'import sys; sys.exit(sys.version_info < (3, 12))' >/dev/null 2>&1
}

find_uv || make_uv
find_uv || fail "uv was installed into .gpunex/uv and does not run: remove that folder and try again."

if [ ! -x .venv/bin/python ] || ! runs_as_312 .venv/bin/python; then
  if ! find_python312; then
    echo "Fetching Python $(cat .python-version) ..."
    if ! "$UV" python install --quiet "$(cat .python-version)" >/dev/null 2>&1 || ! find_python312; then
      fail "GPUnex needs Python 3.12 or newer, and none is here or can be fetched: install python3.12 and try again."
    fi
  fi
  echo "Installing the packages of uv.lock ..."
  rm -rf .venv
  "$UV" venv --quiet --python "$PYTHON312" .venv
fi
# The environment's own interpreter, so that uv looks for no other one.
UV_PYTHON="$PWD/.venv/bin/python" "$UV" sync --locked --quiet ||
  fail "uv could not install the packages of uv.lock: see above."
