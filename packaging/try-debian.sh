#!/usr/bin/env bash
# Installs the Debian package in a bare Debian, uses it as a new user, removes it, and uses the
# folder there, in one place and then in another. Needs root, debootstrap and a package mirror.
# Usage: packaging/try-debian.sh DIST
set -euo pipefail

# What is mounted here is gone with this process.
[[ ${MOUNTS_ARE_OWN-} ]] || MOUNTS_ARE_OWN=1 exec unshare --mount "$0" "$@"
dist=$1
root=$(mktemp -d --tmpdir enplace-root.XXXXXX)
chmod 755 "$root"
trap 'umount -q "$root/proc" "$root/dev/shm"; rm -rf --one-file-system "$root"' EXIT
mirror=$(apt-get indextargets --format '$(SITE) $(RELEASE) $(COMPONENT)' | awk '$2 == "bookworm" && $3 == "main" { print $1; exit }')
debootstrap --variant=minbase bookworm "$root" "$mirror" >"$root.log" || { cat "$root.log"; exit 1; }
rm "$root.log"
cp /etc/resolv.conf "$root/etc/"
cp -r /etc/apt/apt.conf.d/. "$root/etc/apt/apt.conf.d/"
mount -t proc proc "$root/proc"
mkdir -p "$root/dev/shm"
mount -t tmpfs tmpfs "$root/dev/shm"

in_root() { chroot "$root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 "$@"; }
as_user() { in_root runuser -u tester -- "$@"; }
cp "$dist"/*.deb "$dist"/*-linux-*.tar.xz packaging/check-installed.sh resources/samples/vgg-19.enplace "$root/tmp/"
chmod 644 "$root"/tmp/*.{deb,xz,enplace}
in_root useradd --create-home tester
in_root apt-get update -qq
in_root sh -c 'DEBIAN_FRONTEND=noninteractive apt-get install -qq --no-install-recommends /tmp/*.deb libglib2.0-bin shared-mime-info desktop-file-utils xz-utils'

as_user bash /tmp/check-installed.sh /usr/bin /tmp/vgg-19.enplace
as_user gio info --attributes standard::content-type /tmp/vgg-19.enplace | grep application/x-enplace
as_user gio mime application/x-enplace | grep enplace.desktop
in_root desktop-file-validate /usr/share/applications/enplace.desktop
in_root apt-get remove -qq enplace
in_root test ! -e /opt/enplace -a ! -e /usr/bin/enplace
echo "The Debian package works"

as_user sh -c 'cd && mkdir "one place" && tar xf /tmp/*.tar.xz -C "one place" --strip-components=1'
as_user bash /tmp/check-installed.sh "/home/tester/one place/bin" /tmp/vgg-19.enplace
as_user sh -c 'cd && mv "one place" another && HOME=/home/tester another/integrate.sh'
as_user bash /tmp/check-installed.sh /home/tester/.local/bin /tmp/vgg-19.enplace
echo "The folder works, and can be moved"
