#!/bin/sh
# Provide what LevelDB for Python needs for the interpreter $1: a wheel, or a compiler and headers.
# Where there is no wheel pip builds it, and its errors say little.
set -eu

python=${1:?usage: leveldb.sh PYTHON}

say() { printf '%s\n' "$*" >&2; }

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi
}

can_install() {
    command -v apt-get >/dev/null && { [ "$(id -u)" = 0 ] || sudo -n true 2>/dev/null; }
}

can_build() {
    command -v g++ >/dev/null || return 1
    headers=$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')
    printf '#include <Python.h>\n#include <leveldb/db.h>\n' | g++ -E -x c++ -I "$headers" - >/dev/null 2>&1
}

# As in pyproject.toml.
binding=$("$python" -c 'import sys; print("plyvel" if sys.version_info < (3, 12) else "plyvel-next")')
case $binding in plyvel) bounds='>=1.5.1,<2' ;; *) bounds='>=2.1,<3' ;; esac
"$python" -c "import $(printf %s "$binding" | tr - _)" 2>/dev/null && exit 0
"$python" -m pip install --disable-pip-version-check --quiet --dry-run --no-deps --only-binary :all: \
    "$binding$bounds" >/dev/null 2>&1 && exit 0
can_build && exit 0

packages="g++ python3-dev libleveldb-dev"
say "$binding has no wheel for '$python': it is built, which needs a compiler and the headers of Python and LevelDB."
if can_install; then
    say "Installing $packages."
    # shellcheck disable=SC2086  # three words
    if { as_root apt-get update -qq && as_root env DEBIAN_FRONTEND=noninteractive \
        apt-get install -y -qq --no-install-recommends $packages; } >&2 && can_build; then
        exit 0
    fi
fi
say "Run one of these, then make again:"
say "    sudo apt-get install $packages            (Debian, Ubuntu)"
say "    sudo dnf install gcc-c++ python3-devel leveldb-devel     (Fedora, RHEL)"
say "or take an interpreter for which there is one (3.11 to 3.14): make VENV=.venv PYTHON=python3.13 ..."
exit 1
