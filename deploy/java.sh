#!/bin/sh
# Print the home folder of a Java 17 or later, which Spark needs; install one if there is none and that is possible.
# It looks at JAVA_HOME, PATH and the folders in JVM_FOLDER (/usr/lib/jvm), in this order. All other output goes to
# standard error.
set -eu

least=17
jvm_folder=${JVM_FOLDER:-/usr/lib/jvm}

say() { printf '%s\n' "$*" >&2; }

# Succeeds if $1 is a java that starts and is new enough. `java -version` says 'version "17.0.15"' or "1.8.0_402".
is_good() {
    [ -x "$1" ] || return 1
    major=$("$1" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1)
    [ -n "$major" ] && [ "$major" -ge "$least" ]
}

find_java() {
    if [ -n "${JAVA_HOME:-}" ] && is_good "$JAVA_HOME/bin/java"; then
        printf '%s\n' "$JAVA_HOME"
        return 0
    fi
    if on_path=$(command -v java) && is_good "$on_path"; then
        # Java itself knows its home; PATH may have a link or a wrapper.
        "$on_path" -XshowSettings:properties -version 2>&1 | sed -n 's/^ *java\.home = //p'
        return 0
    fi
    for home in "$jvm_folder"/*; do
        if is_good "$home/bin/java"; then
            printf '%s\n' "$home"
            return 0
        fi
    done
    return 1
}

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi
}

install_java() {
    command -v apt-get >/dev/null || return 1
    [ "$(id -u)" = 0 ] || sudo -n true 2>/dev/null || return 1
    say "No Java $least or later was found; installing one, because Spark needs it."
    as_root apt-get update -qq >&2 || say "apt-get update failed; trying with the lists that are there."
    for package in openjdk-17-jre-headless default-jre-headless; do
        if as_root env DEBIAN_FRONTEND=noninteractive \
            apt-get install -y -qq --no-install-recommends "$package" >&2; then
            return 0
        fi
        say "apt-get could not install $package."
    done
    return 1
}

find_java && exit 0
if install_java; then
    find_java && exit 0
fi
say "Spark needs Java $least or later, and none was found in JAVA_HOME, PATH or $jvm_folder. Run one of these:"
say "    sudo apt-get install openjdk-17-jre-headless      (Debian, Ubuntu; default-jre-headless where that is gone)"
say "    sudo dnf install java-17-openjdk-headless         (Fedora, RHEL)"
say "    brew install openjdk@17                           (macOS)"
say "or set JAVA_HOME to the home folder of one."
exit 1
