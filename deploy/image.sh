#!/bin/sh
# What both of the Dockerfile's images do with Python, in two layers: `image.sh packages NAME` installs NAME.lock, which seldom changes,
# `image.sh kernalyse MODULES` the wheels of this checkout, the bill of materials and the user.
set -eu
case $1 in
packages)
    python3 -m venv /opt/kernalyse
    /opt/kernalyse/bin/pip install --no-compile --no-deps --require-hashes -r "/deploy/$2.lock"
    find /opt/kernalyse -type d \( -name tests -o -name test \) -prune -exec rm -r {} +
    ;;
kernalyse)
    /opt/kernalyse/bin/pip install --no-deps /dist/*.whl
    # The root is read-only where it runs. So the bytecode of what services load is made here: without it they start slowly, and that of
    # all packages, with their tests, takes 200 MB more.
    /opt/kernalyse/bin/python -c "import $2"
    python3 -m venv --without-pip /tmp/sbom
    /opt/kernalyse/bin/pip --python /tmp/sbom/bin/python install --no-compile --no-deps --require-hashes -r /deploy/sbom.lock
    /tmp/sbom/bin/cyclonedx-py environment --output-file /opt/kernalyse/sbom.cdx.json /opt/kernalyse
    rm -r /tmp/sbom
    groupadd --gid 10001 kernalyse
    useradd --uid 10001 --gid kernalyse --home-dir /var/lib/kernalyse --create-home kernalyse
    install -d -m 700 -o kernalyse -g kernalyse /run/kernalyse
    ;;
esac
