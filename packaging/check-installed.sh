#!/usr/bin/env bash
# Uses an installed Enplace as a new user would, in an empty home.
# Usage: packaging/check-installed.sh BIN SAMPLE, the folder of its commands and a .enplace file.
set -euo pipefail

bin=$1 sample=$(readlink -f "$2")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
mkdir home
use() {
    env -i HOME="$work/home" PATH=/usr/bin:/bin LANG=C.UTF-8 QT_QPA_PLATFORM=offscreen "$@"
}
use "$bin/enplace" --version
use "$bin/enplace" compile
use "$bin/enplace" clusters | head -3
use "$bin/enplace" place "$sample" --cluster h100-2-nvlink --time-limit 5 -o plan.json
use "$bin/enplace" export "$sample" plan.json --cluster h100-2-nvlink --format html -o plan.html
use "$bin/enplace-studio" --offscreen-demo demo
test -s plan.json -a -s plan.html
ls demo
