#!/bin/sh
# Installs kernalyse with its systemd units, and upgrades it when it is run again: install.sh --help
set -eu
umask 022

usage() {
    cat <<'TEXT'
Usage: install.sh [--prefix DIRECTORY] [--services LIST] [--no-start] [PACKAGE]
       install.sh [--prefix DIRECTORY] --uninstall

Installs the services of kernalyse for systemd; run again, it upgrades them. Settings and data stay.

PACKAGE               What pip installs: kernalyse[all] (the default), kernalyse[all]==0.1.0, kernalyse[profiler,opencl],
                      or the path of a wheel, which is installed with [all] unless extras follow it.
--prefix DIRECTORY    Of the Python environment, the same at every run. Default: /opt/kernalyse.
--services LIST       Of profiler,analyzer,ui. Default: those that are installed, or all.
--no-start            Start and enable nothing. Services that run are stopped all the same while they are upgraded.
--uninstall           Stop the services, and remove units and environment. Data, settings and the user stay.

The user kernalyse, its data in /var/lib/kernalyse (0700) and settings in /etc/kernalyse (0750, of root) are made where they
are missing. PYTHON names another interpreter than python3: 3.11 or newer, with venv. pip takes its usual settings.
TEXT
}

fail() {
    echo "install.sh: $*" >&2
    exit 1
}

has_systemd() {
    [ -d /run/systemd/system ]
}

here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
units=/etc/systemd/system
settings=/etc/kernalyse
state=/var/lib/kernalyse
all='kernalyse-profiler kernalyse-analyzer kernalyse-ui'
prefix=/opt/kernalyse
package='kernalyse[all]'
python=${PYTHON:-python3}
services=
starts=yes
action=install

while [ $# -gt 0 ]; do
    case $1 in
        --help | -h) usage && exit 0 ;;
        --prefix | --services) [ $# -gt 1 ] || fail "$1 needs a value; --help says which" ;;
    esac
    case $1 in
        --prefix) prefix=$2 && shift ;;
        --services)
            for name in $(echo "$2" | tr , ' '); do
                case $name in
                    profiler | analyzer | ui) services="$services kernalyse-$name" ;;
                    *) fail "--services $2: expected some of profiler,analyzer,ui" ;;
                esac
            done
            shift
            ;;
        --no-start) starts=no ;;
        --uninstall) action=uninstall ;;
        -*) fail "unknown option $1; --help lists them" ;;
        *) package=$1 ;;
    esac
    shift
done
case $prefix in
    '' | [!/]* | */ | *[!A-Za-z0-9_./-]*) fail "--prefix $prefix: expected an absolute path of letters, digits, _ . and -, without / at its end" ;;
esac
[ "$(id -u)" = 0 ] || fail "only root can install units; run it with sudo"
if [ -e "$prefix" ] && ! [ -f "$prefix/pyvenv.cfg" ] && [ -n "$(ls -A "$prefix")" ]; then
    fail "$prefix is there and no Python environment; name another by --prefix"
fi

if [ $action = uninstall ]; then
    for service in $all; do
        if has_systemd && [ -f "$units/$service.service" ]; then systemctl disable --now "$service"; fi
        rm -f "$units/$service.service"
    done
    if has_systemd; then systemctl daemon-reload; fi
    rm -rf "$prefix"
    echo "Removed: units, $prefix. Kept: data and tokens in $state, settings in $settings, the user kernalyse."
    echo "To delete them too: rm -r $state $settings && userdel kernalyse"
    exit 0
fi

"$python" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' ||
    fail "$python is not Python 3.11 or newer with venv; install it (Debian: python3-venv), or name another by PYTHON"
wheel=
case $package in
    *.whl) wheel=$package && package="${package}[all]" ;;
    *.whl\[*) wheel=${package%%\[*} ;;
esac
for service in $all; do
    if [ -f "$units/$service.service" ]; then installed="${installed:-} $service"; fi
done
services=${services:-${installed:-$all}}

for group in video render; do # the profiler's unit names them, and systemd starts nothing whose group is missing
    getent group $group >/dev/null || groupadd --system $group
done
id kernalyse >/dev/null 2>&1 || useradd --system --user-group --home-dir $state --shell /usr/sbin/nologin kernalyse
install -d -m 0700 -o kernalyse -g kernalyse $state
install -d -m 0750 -o root -g kernalyse $settings
if ! [ -e $settings/kernalyse.toml ]; then
    (umask 027 && echo '# Settings of the services: docs/settings.md' >$settings/kernalyse.toml) # it may get passwords
    chgrp kernalyse $settings/kernalyse.toml
fi

stopped=
if has_systemd; then
    for service in kernalyse-ui kernalyse-profiler kernalyse-analyzer; do
        if systemctl is-active --quiet $service; then systemctl stop $service && stopped="$stopped $service"; fi
    done
fi
install_package() {
    if ! [ -x "$prefix/bin/python" ]; then "$python" -m venv "$prefix" || return; fi
    "$prefix/bin/python" -m pip install --quiet --disable-pip-version-check --upgrade "$package" || return
    # pip leaves a wheel alone whose version is there already, and it may have been built anew.
    [ -z "$wheel" ] || "$prefix/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --force-reinstall "$wheel"
}
if ! install_package; then
    # shellcheck disable=SC2086  # words
    if [ -n "$stopped" ]; then systemctl start $stopped; fi
    fail "pip could not install $package;${stopped:- nothing} was started again"
fi
for service in $services; do
    sed "s|/opt/kernalyse|$prefix|g" "$here/$service.service" >"$units/$service.service.new"
    mv "$units/$service.service.new" "$units/$service.service"
done

"$prefix/bin/kernalyse" --version
if ! has_systemd; then
    echo "systemd does not run here; where it does: systemctl enable --now $services"
elif [ $starts = no ]; then
    systemctl daemon-reload
    echo "Nothing was started; stopped:${stopped:- nothing}."
else
    systemctl daemon-reload
    # shellcheck disable=SC2086  # words
    systemctl enable --now $services
fi
