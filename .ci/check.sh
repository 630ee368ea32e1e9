#!/usr/bin/env bash
# Everything that can be said about the code without running it. Goes on after a failure, so one run shows them all.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
PATH="$PWD/.venv/bin:$PATH"
# The settings need addresses and keys to load; a cluster of its own has them.
embedded() { python -m gpunex.embedded.cluster check "$@"; }
# On a fresh database, as in production: this also shows that the migrations run.
on_a_database() { embedded --fresh sh -c "python manage.py migrate --verbosity 0 && $1"; }

failed=()
check() {
  local name="$1"
  shift
  printf '== %s\n' "$name"
  "$@" || failed+=("$name")
}

check "ruff" ruff check .
check "format" ruff format --check .
check "types" embedded mypy
check "imports" lint-imports
check "templates" djlint --lint --quiet templates
check "django and migrations" on_a_database "python manage.py check --fail-level WARNING && python manage.py makemigrations --check --dry-run"
check "translations" python -m gpunex.kit.translations check
check "shell" sh -c 'command -v shellcheck >/dev/null || { echo "shellcheck is not installed: skipped"; exit 0; }; shellcheck .ci/*.sh .ci/run'

if [ "${#failed[@]}" -gt 0 ]; then
  printf 'Failed: %s\n' "${failed[*]}" >&2
  exit 1
fi
echo "All checks passed."
