#!/usr/bin/env bash
# Makes dist/enplace-VERSION-linux-ARCHITECTURE.tar.xz: a folder with Python and all that Enplace
# needs, which runs wherever it is unpacked.
# Usage: packaging/make-folder.sh WHEEL, with the Python to bring along as the first one in PATH.
set -euo pipefail

wheel=${1:?Name the wheel}
version=$(basename "$wheel" | cut -d- -f2)
name=enplace-$version-linux-$(uname -m)
folder=build/folder/$name
rm -rf "$folder"
mkdir -p "$folder/bin" "$folder/share"

python packaging/copy_python.py "$folder/python"
own=$folder/python/bin/python3
site=$("$own" -c 'import site; print(site.getsitepackages()[-1])') # Debian's has another name
python -m pip install --quiet --no-compile --no-warn-script-location -c constraints.txt \
    --target "$site" pip "$wheel[studio,exact,solvers,gpu,metis,onnx]"

# What nobody needs: tests, programs, and those parts of Qt that the studio does not use.
rm -rf "$site/bin"
find "$site" -depth -type d \( -name tests -o -name __pycache__ \) -exec rm -rf {} +
(
    cd "$site/PySide6"
    rm -rf Qt/libexec Qt/metatypes Qt/qml Qt/translations glue include typesystems ./*.pyi \
        assistant balsam* designer linguist lrelease lupdate qml* rcc svgtoqml uic
    for part in Designer Help Qml Quick Test Concurrent Sql UiTools; do
        rm -f "Qt/lib/libQt6$part"* "Qt$part"*.so libpyside6qml*
    done
    rm -rf Qt/plugins/{designer,qmllint,qmltooling,qmlls,sqldrivers}
    # Qt loads these for a window on X11, and many desktops lack them.
    for library in cursor icccm image keysyms render-util util; do
        cp -L "$(ldconfig -p | awk -v name="libxcb-$library.so" 'index($1, name) == 1 { print $NF; exit }')" Qt/lib/
    done
    for library in Qt/lib/libxcb-*; do patchelf --set-rpath '$ORIGIN' "$library"; done
)

for pair in enplace:enplace enplace-studio:enplace_studio; do
    sed "s/MODULE/${pair#*:}/" packaging/launcher.sh >"$folder/bin/${pair%:*}"
    chmod 755 "$folder/bin/${pair%:*}"
done
packaging/make-share.sh "$own" "$folder/share"
cp LICENSE CHANGELOG.md packaging/integrate.sh "$folder/"

"$own" -m compileall -q -j 2 --invalidation-mode unchecked-hash "$folder/python/lib" >/dev/null || true
mkdir -p dist
tar --create --file=- --sort=name --owner=0 --group=0 --numeric-owner --directory=build/folder "$name" |
    xz -T 0 -6 >"dist/$name.tar.xz"
du -h "dist/$name.tar.xz"
