#!/usr/bin/env bash
# Writes what a desktop and a shell look for: desktop entry, icons, MIME type, manual, completions.
# Usage: packaging/make-share.sh PYTHON SHARE
set -euo pipefail

python=$1 share=$2
install -Dm 644 packaging/enplace.desktop "$share/applications/enplace.desktop"
install -Dm 644 packaging/enplace-mime.xml "$share/mime/packages/enplace.xml"
install -Dm 644 resources/icons/enplace.svg "$share/icons/hicolor/scalable/apps/enplace.svg"
install -Dm 644 resources/icons/enplace.svg \
    "$share/icons/hicolor/scalable/mimetypes/application-x-enplace.svg"
"$python" packaging/man_page.py "$share/man/man1"
mkdir -p "$share"/{bash-completion/completions,zsh/site-functions,fish/vendor_completions.d}
"$python" -m enplace completion bash >"$share/bash-completion/completions/enplace"
"$python" -m enplace completion zsh >"$share/zsh/site-functions/_enplace"
"$python" -m enplace completion fish >"$share/fish/vendor_completions.d/enplace.fish"
