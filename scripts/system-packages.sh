#!/usr/bin/env bash
# Installs the Debian packages named in the given lists, where this user may; otherwise prints the
# one line to run. Never stops the build: what is missing may not be needed here.
# Usage: scripts/system-packages.sh LIST...
set -euo pipefail

if ! command -v apt-get >/dev/null || ! command -v dpkg-query >/dev/null; then
    echo "Not a Debian system: Enplace needs the counterparts of the packages in $*." >&2
    exit 0
fi

# A renamed package (libglib2.0-0t64) provides the old name, so provided names count as installed.
installed=$(dpkg-query -W -f='${db:Status-Abbrev} ${Package} ${Provides}\n' | grep '^.i' | tr -s ' ,' '\n')
wanted=$(grep -hv '^#' "$@")
"${PYTHON:-python3}" -c 'import ensurepip, venv' 2>/dev/null || wanted+=$'\npython3 python3-venv'
missing=()
for package in $wanted; do
    grep -qxF "$package" <<<"$installed" || missing+=("$package")
done
((${#missing[@]})) || exit 0

install=(apt-get install --yes --no-install-recommends "${missing[@]}")
as_root=()
if ((EUID != 0)); then
    as_root=(sudo)
    # Without a terminal nobody can type a password.
    [[ -t 0 ]] || as_root+=(-n)
fi
try() {
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive "$@"
}
if ((EUID == 0)) || command -v sudo >/dev/null; then
    echo "Installing system packages: ${missing[*]}" >&2
    try apt-get update -qq && try "${install[@]}" -qq && exit 0
fi
echo "System packages are missing. Install them with: sudo ${install[*]}" >&2
