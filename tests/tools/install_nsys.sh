#!/usr/bin/env bash
# Installs a real Nsight Systems command line for the tests, from Debian's non-free packages; as root, on Debian, x86-64.
#
#   install_nsys.sh 2022    nsys 2022.4.2, which exports SQLite
#   install_nsys.sh 2023    nsys 2023.4.4, which exports directories of Parquet files too
#
# Packages are unpacked below /opt/nsys, not installed: nothing else changes but some shared libraries that the importer needs.
# Without a GPU it traces NVTX ranges and calls of the operating system. Prints the path of the program.
set -euo pipefail

release=${1:-2023}
case $release in
    2022) suite=bookworm version='2022.4.2.1~11.8.0-5~deb12u1' ;;
    2023) suite=trixie version='2023.4.4.54~12.4.1-2' ;;
    *) echo "install_nsys.sh: expected 2022 or 2023, found '$release'" >&2; exit 2 ;;
esac
root=/opt/nsys/$release
directory=$root/usr/lib/x86_64-linux-gnu/nsight-systems
program=$directory/target-linux-x64/nsys

unpack() {
    local work mirror options
    work=$(mktemp -d)
    trap 'rm -rf "$work"' RETURN
    mirror=$(apt-get indextargets --format '$(REPO_URI)' | grep --invert-match security | head -1)
    mkdir -p "$work/lists/partial" "$work/sources" "$root"
    printf 'Types: deb\nURIs: %s\nSuites: %s\nComponents: main contrib non-free\nSigned-By: /usr/share/keyrings/debian-archive-keyring.gpg\n' \
        "$mirror" "$suite" >"$work/sources/nonfree.sources"
    options=(-o Dir::Etc::sourcelist=/dev/null -o "Dir::Etc::sourceparts=$work/sources" -o "Dir::State::Lists=$work/lists" --quiet)
    apt-get "${options[@]}" update
    (cd "$work" && apt-get "${options[@]}" download "nsight-systems=$version" "nsight-systems-target=$version")
    for package in "$work"/*.deb; do dpkg --extract "$package" "$root"; done
}

add_libraries() {
    local host=$root/usr/lib/nsight-systems/host-linux-x64
    apt-get update --quiet
    apt-get install --quiet --yes --no-install-recommends libssh-4 libglib2.0-0 libdbus-1-3 libnss3 libxkbcommon0 libegl1 libopengl0
    # The packages have importer and tracer in two directories, and the program looks for the one beside the other.
    ln --symbolic --force --no-dereference ../../nsight-systems/host-linux-x64 "$directory/host-linux-x64"
    [[ -e $host/libssh.so ]] || ln --symbolic --force /usr/lib/x86_64-linux-gnu/libssh.so.4 "$host/libssh.so"
}

if [[ ! -x $program ]]; then
    { unpack && add_libraries; } >&2
fi
"$program" --version >&2
echo "$program"
