#!/usr/bin/env bash
# In a bare Debian from debootstrap, as a new user: uses the folder, in one place and then in
# another; installs the wheel without the studio and finds a first plan, which compiles nothing if
# the wheel has kernels for that Python; then installs the Debian package, uses and removes it.
# What is not in DIST is not tried. Needs root, debootstrap and mirrors of Debian's packages and of
# Python's.
# Usage: packaging/try-debian.sh DIST [RELEASE]...
set -euo pipefail

# What is mounted here is gone with this process.
[[ ${MOUNTS_ARE_OWN-} ]] || MOUNTS_ARE_OWN=1 exec unshare --mount "$0" "$@"
dist=$1
shift
(($#)) || set -- bookworm trixie
pip=(${PYTHON:-.venv/bin/python} -m pip)
mirror=$(apt-get indextargets --format '$(SITE) $(RELEASE) $(COMPONENT)' | awk '$3 == "main" { print $1; exit }')
trap 'umount -q "$root/proc" "$root/dev/shm" 2>/dev/null || true; rm -rf --one-file-system "$root"' EXIT

in_root() { chroot "$root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 "$@"; }
as_user() { in_root runuser -u tester -- "$@"; }
add() { in_root sh -c "DEBIAN_FRONTEND=noninteractive apt-get install -qq --no-install-recommends $*" >/dev/null; }

make_root() {
    root=$(mktemp -d --tmpdir enplace-root.XXXXXX)
    chmod 755 "$root"
    debootstrap --variant=minbase "$1" "$root" "$mirror" >"$root.log" || { cat "$root.log"; exit 1; }
    rm "$root.log"
    cp /etc/resolv.conf "$root/etc/"
    cp -r /etc/apt/apt.conf.d/. "$root/etc/apt/apt.conf.d/"
    mount -t proc proc "$root/proc"
    mkdir -p "$root/dev/shm"
    mount -t tmpfs tmpfs "$root/dev/shm"
    in_root useradd --create-home tester
    in_root apt-get update -qq
    cp packaging/check-installed.sh resources/samples/vgg-19.enplace "$root/tmp/"
    chmod 644 "$root/tmp/vgg-19.enplace"
}

try_wheel() {
    add python3-venv
    local version
    version=$(in_root python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    "${pip[@]}" download --quiet --only-binary :all: -c constraints.txt --dest "$root/tmp/wheels" \
        --python-version "$version" "$1[exact]"
    as_user python3 -m venv /home/tester/venv
    as_user /home/tester/venv/bin/pip install --quiet --no-index --find-links /tmp/wheels 'enplace[exact]'
    in_root du -sm /home/tester/venv
    as_user bash -c 'cd && export HOME=/home/tester NUMBA_CACHE_DIR=/home/tester/compiled
        time venv/bin/enplace place /tmp/vgg-19.enplace --cluster h100-2-nvlink --time-limit 5'
    if ${pip[0]} -m zipfile --list "$1" | grep "compiled/.*\.py${version/./}\." >/dev/null; then
        in_root sh -c '! find /home/tester/compiled -name "*.nbc" 2>/dev/null | grep .'
        echo "The wheel works with Python $version, and compiles nothing"
    else
        echo "The wheel works with Python $version, for which it has no kernels"
    fi
}

try_package() {
    cp "$1" "$root/tmp/"
    chmod 644 "$root"/tmp/*.deb
    add /tmp/*.deb libglib2.0-bin shared-mime-info desktop-file-utils
    as_user bash /tmp/check-installed.sh /usr/bin /tmp/vgg-19.enplace
    as_user gio info --attributes standard::content-type /tmp/vgg-19.enplace | grep application/x-enplace
    as_user gio mime application/x-enplace | grep enplace.desktop
    in_root desktop-file-validate /usr/share/applications/enplace.desktop
    in_root apt-get remove -qq enplace
    in_root test ! -e /opt/enplace -a ! -e /usr/bin/enplace
    echo "The Debian package works"
}

try_folder() {
    # What every desktop has; the folder brings the rest.
    add xz-utils $(grep -v -e '^#' -e '^fonts-' -e '^libxcb-' packaging/debian-run.txt)
    cp "$1" "$root/tmp/folder.tar.xz"
    as_user sh -c 'cd && mkdir "one place" && tar xf /tmp/folder.tar.xz -C "one place" --strip-components=1'
    as_user bash /tmp/check-installed.sh "/home/tester/one place/bin" /tmp/vgg-19.enplace
    as_user sh -c 'cd && mv "one place" another && HOME=/home/tester another/integrate.sh'
    as_user bash /tmp/check-installed.sh /home/tester/.local/bin /tmp/vgg-19.enplace
    # Its menu entry would stand in front of that of the Debian package.
    as_user sh -c 'cd && HOME=/home/tester another/integrate.sh --remove'
    echo "The folder works, and can be moved"
}

for release in "$@"; do
    make_root "$release"
    for file in "$dist"/*; do
        case $file in
        *.whl) try_wheel "$file" ;;
        *.deb) try_package "$file" ;;
        *-linux-*.tar.xz) try_folder "$file" ;;
        esac
    done
    umount "$root/proc" "$root/dev/shm"
    rm -rf --one-file-system "$root"
    echo "Tried on $release"
done
