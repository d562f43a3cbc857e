#!/bin/sh
# Make a virtual environment with pip in the folder $1, from $PYTHON (python3), which must be 3.11 or later.
# Debian and Ubuntu ship Python without ensurepip; then virtualenv is used where there is one, or apt-get.
set -eu

venv=${1:?usage: venv.sh FOLDER}
python=${PYTHON:-python3}

say() { printf '%s\n' "$*" >&2; }

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi
}

can_install() {
    command -v apt-get >/dev/null && { [ "$(id -u)" = 0 ] || sudo -n true 2>/dev/null; }
}

if ! command -v "$python" >/dev/null; then
    say "Sluice needs Python 3.11 or later, and there is no '$python'."
    say "Debian 12 or Ubuntu 24.04: apt-get install python3 python3-venv. Elsewhere: https://www.python.org/downloads/"
    say "If it has another name: make PYTHON=python3.12 ..."
    exit 1
fi
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    say "Sluice needs Python 3.11 or later; '$python' is $("$python" -c 'import platform; print(platform.python_version())')."
    say "Get one from your distribution (python3.12) or https://www.python.org/downloads/, then: make PYTHON=python3.12 ..."
    exit 1
fi

# Keep an environment that works: pip installs only what is missing.
if [ -x "$venv/bin/python" ] && "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
    exit 0
fi
if [ -e "$venv" ] && [ ! -e "$venv/pyvenv.cfg" ]; then
    say "'$venv' is there and is no virtual environment; it is left as it is. Name another: make VENV=FOLDER ..."
    exit 1
fi
rm -rf "$venv"

if "$python" -c 'import ensurepip, venv' 2>/dev/null && "$python" -m venv "$venv" >/dev/null; then
    exit 0
fi
rm -rf "$venv"
if "$python" -m virtualenv --version >/dev/null 2>&1; then
    exec "$python" -m virtualenv --quiet "$venv"
fi

# The package has the interpreter's version in its name, and is for the distribution's interpreter only.
package="python$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')-venv"
if can_install; then
    say "Installing $package, because '$python' cannot make virtual environments with pip."
    if { as_root apt-get update -qq && as_root env DEBIAN_FRONTEND=noninteractive \
        apt-get install -y -qq --no-install-recommends "$package"; } >&2 && "$python" -m venv "$venv"; then
        exit 0
    fi
    rm -rf "$venv"
fi
if "$python" -m pip --version >/dev/null 2>&1; then
    # A folder beside the environment leaves the system's Python unchanged.
    tools=$(mktemp -d)
    trap 'rm -rf "$tools"' EXIT
    if "$python" -m pip install --quiet --disable-pip-version-check --target "$tools" virtualenv >&2 &&
        PYTHONPATH=$tools "$python" -m virtualenv --quiet "$venv"; then
        exit 0
    fi
    rm -rf "$venv"
fi
say "'$python' cannot make virtual environments. Run this, then make again:"
say "    sudo apt-get install $package        (or, where there is pip: $python -m pip install --user virtualenv)"
exit 1
