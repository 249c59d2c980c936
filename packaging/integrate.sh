#!/bin/sh
# Adds Enplace to your desktop and your shell: a double click on a .enplace file opens the studio,
# and ~/.local/bin has both commands. Usage: ./integrate.sh, or ./integrate.sh --remove
set -eu
folder=$(dirname "$(readlink -f "$0")")
bin=$HOME/.local/bin share=${XDG_DATA_HOME:-$HOME/.local/share}

(cd "$folder/share" && find . -type f) | while read -r file; do
    rm -f "$share/$file"
    [ "${1-}" = --remove ] && continue
    mkdir -p "$(dirname "$share/$file")"
    ln -s "$folder/share/$file" "$share/$file"
done
rm -f "$bin/enplace" "$bin/enplace-studio"
if [ "${1-}" != --remove ]; then
    mkdir -p "$bin"
    ln -s "$folder/bin/enplace" "$folder/bin/enplace-studio" "$bin/"
    # The menu may not look for commands in ~/.local/bin.
    rm "$share/applications/enplace.desktop"
    sed "s|^Exec=.*|Exec=\"$folder/bin/enplace-studio\" %f|" \
        "$folder/share/applications/enplace.desktop" >"$share/applications/enplace.desktop"
fi
for update in "update-desktop-database $share/applications" "update-mime-database $share/mime"; do
    command -v "${update%% *}" >/dev/null && $update >/dev/null 2>&1 || true
done
