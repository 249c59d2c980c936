#!/usr/bin/env bash
# Makes dist/enplace_VERSION_ARCHITECTURE.deb of the folder that make-folder.sh has left.
# Usage: packaging/make-deb.sh FOLDER
# Its maintainer is who makes it, as for Debian's own tools: DEBFULLNAME and DEBEMAIL, or else git's user.
set -euo pipefail

folder=${1%/}
version=$("$folder/bin/enplace" --version | awk '{ print $NF }')
architecture=$(dpkg --print-architecture)
root=build/deb
share=$root/usr/share
rm -rf "$root"
mkdir -p "$root"/{DEBIAN,opt,usr/bin} "$share/doc/enplace"

cp -a "$folder" "$root/opt/enplace"
mv "$root/opt/enplace/share"/* "$share/"
rm -r "$root/opt/enplace"/{share,integrate.sh,CHANGELOG.md,LICENSE}
ln -s /opt/enplace/bin/enplace /opt/enplace/bin/enplace-studio "$root/usr/bin/"
mkdir "$share/zsh/vendor-completions"
mv "$share/zsh/site-functions/_enplace" "$share/zsh/vendor-completions/"
rmdir "$share/zsh/site-functions"
gzip --best --no-name "$share/man/man1"/*.1
gzip --best --no-name --stdout CHANGELOG.md >"$share/doc/enplace/changelog.gz"
cp packaging/copyright "$share/doc/enplace/copyright"

name=${DEBFULLNAME:-$(git config user.name || id -un)}
mail=${DEBEMAIL:-$(git config user.email || echo "$(id -un)@$(hostname -f)")}
needed=$(grep -v -e '^#' -e '^fonts-' packaging/debian-run.txt | paste -sd, | sed 's/,/, /g')
glibc=$(ldd --version | awk 'NR == 1 { print $NF }')
cat >"$root/DEBIAN/control" <<EOF
Package: enplace
Version: $version
Architecture: $architecture
Maintainer: $name <$mail>
Section: science
Priority: optional
Installed-Size: $(du -sk --exclude=DEBIAN "$root" | cut -f1)
Depends: libc6 (>= $glibc), $needed
Recommends: $(grep '^fonts-' packaging/debian-run.txt)
Description: device placement studio and library for PyTorch and TensorFlow
 Enplace decides where every op of a model runs, and in what order, on several
 GPUs. It has a command, enplace, and a window, the studio.
 .
 The package brings its own Python with all libraries, in /opt/enplace.
EOF
cat >"$root/DEBIAN/postrm" <<'EOF'
#!/bin/sh
# Removes what was added later, such as TensorFlow.
set -e
case $1 in
remove | purge) rm -rf /opt/enplace ;;
esac
EOF
chmod 755 "$root/DEBIAN/postrm"
chmod -R u+rwX,go+rX,go-w "$root"
dpkg-deb --root-owner-group -Zzstd --build "$root" "dist/enplace_${version}_$architecture.deb"
