#!/usr/bin/env bash
# What the tests need of the machine: a browser, Docker's engine and a compiler for the groups that use them. Installs
# them from Debian's packages where that is possible; otherwise says what to do, and those tests say that they were skipped.
set -euo pipefail

missing=()
works() { "$1" --version >/dev/null 2>&1; }

# Ubuntu's package of that name is a stub for a snap, which fails where no snap daemon runs.
works chromium || works google-chrome || works chromium-browser || missing+=(chromium)
command -v dockerd >/dev/null || [ -x /usr/sbin/dockerd ] || missing+=(docker.io)
works gcc || missing+=(gcc libc6-dev)
works shellcheck || missing+=(shellcheck)
command -v ip >/dev/null || [ -x /usr/sbin/ip ] || [ -x /sbin/ip ] || missing+=(iproute2)
works nft || works /usr/sbin/nft || missing+=(nftables)
[ "${#missing[@]}" -gt 0 ] || exit 0

if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  echo "Installing for the tests: ${missing[*]} ..."
  if apt-get update -qq >/dev/null 2>&1 &&
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null 2>&1; then
    exit 0
  fi
  echo "apt-get could not install all of: ${missing[*]}." >&2
fi
echo "Some tests will be skipped; to run them: sudo apt-get install ${missing[*]}" >&2
