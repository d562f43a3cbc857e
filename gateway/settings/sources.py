"""The sources of settings, in rising order of precedence: default, TOML file, environment, flag.

    resolve(flags, environ, config) -> Resolved       the settings, and the origin of each
    log_format(flags, environ, config) -> str         of the log, even if another setting is wrong
    to_toml(resolved) -> str                          a file that gives these settings again

Invariants
  - An invalid value is an error, even if a source of higher precedence replaces it. The error names the
    setting, got, expected and the origin.
  - An unknown key in the file is an error. An unknown variable `SLUICE_…` is only reported: Kubernetes puts
    such variables into every container beside a Service named `sluice`.
  - A name may omit its unit: publish.block_timeout. Two names of one setting in one source are an error.
  - A former name counts as the present one, and `Resolved.former_names` lists it for a warning.
"""

from __future__ import annotations

import contextlib
import difflib
import re
import sys
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sluice.gateway.errors import SettingError
from sluice.gateway.settings.kinds import NotThisKind
from sluice.gateway.settings.table import NODE_SECTION, SETTINGS, Derived, Setting, Settings

__all__ = [
    "CONFIG_ENVIRONMENT",
    "CONFIG_FLAG",
    "CONTEXT_ENVIRONMENT",
    "NODES_ENVIRONMENT",
    "RULES",
    "Resolved",
    "Rule",
    "config_bytes",
    "log_format",
    "resolve",
    "to_toml",
]

CONFIG_FILE_BYTES_MAX: Final = 1 << 20
"""Bytes of the TOML file. A file with all settings has a few thousand; a larger one is a wrong path."""

CONFIG_FLAG = "--config"

CONFIG_ENVIRONMENT = "SLUICE_CONFIG"
"""The environment variable that names a TOML file; that of the flag lies over it. The image of deploy/ has
its defaults in such a file, so that a mounted one can change them, too."""

NODES_ENVIRONMENT = "SLUICE_NODES"
CONTEXT_ENVIRONMENT = "SLUICE_CONTEXT"
"""These name the nodes that other commands ask (`gateway.commands.contexts`); a node does not read them."""

_DEFAULT = "default"
_BY_NAME = {setting.name: setting for setting in SETTINGS}
_BY_ANY_NAME = {name: setting for setting in SETTINGS for name in setting.names}
_KUBERNETES = re.compile(r"SLUICE_(.+_)?(SERVICE_(HOST|PORT(_.+)?)|PORT_\d+_(TCP|UDP|SCTP)(_.+)?)")


@dataclass(frozen=True, slots=True)
class Resolved:
    """The effective settings and their origins."""

    settings: Settings
    origins: Mapping[str, str]
    """Dotted name to `default`, `file sluice.toml`, `environment SLUICE_ROLE` or `flag --role`."""
    unknown_environment: tuple[str, ...]
    """Variables that begin with `SLUICE_` and are no setting."""
    former_names: tuple[tuple[str, str], ...] = ()
    """Each former name in use (key, variable or flag), and the present dotted name."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule between settings."""

    name: str
    """The setting that an error names."""
    holds: Callable[[Settings], bool]
    expected: Callable[[Settings], str]


def _pair_rule(section: str) -> Rule:
    def has_pair(settings: Settings) -> bool:
        certificate, key = (getattr(settings, f"{section}_{name}") for name in ("tls_certificate", "tls_key"))
        return (certificate is None) == (key is None)

    return Rule(
        f"{section}.tls_key",
        has_pair,
        lambda _: f"{section}.tls_certificate and {section}.tls_key together, or neither",
    )


def _needs(name: str, other: str, why: str = "") -> Rule:
    def holds(settings: Settings) -> bool:
        value, needed = (getattr(settings, _BY_NAME[each].attribute) for each in (name, other))
        return not value or needed is not None

    return Rule(name, holds, lambda _: f"{other} to be set as well{why}")


def _tls_rules(section: str) -> tuple[Rule, Rule]:
    certificate = f"{section}.tls_certificate"
    return _pair_rule(section), _needs(f"{section}.tls_client_ca", certificate)


def _client_ca_for_nodes(settings: Settings) -> Path | None:
    if settings.subscriber_address is None:
        return settings.grpc_tls_client_ca
    return settings.subscriber_tls_client_ca


RULES: tuple[Rule, ...] = (
    Rule(
        "publish.block_timeout_seconds",
        lambda s: (
            s.publish_block_timeout_seconds == 0
            or s.publish_block_timeout_seconds >= 2 * s.block_time_seconds
        ),
        lambda s: f"0 (no limit) or at least {2 * s.block_time_seconds:g}, which is 2 x block_time_seconds",
    ),
    Rule(
        # The node acknowledges the blocks of a group at once, and further groups while it sends those
        # answers: a smaller queue would close publishers that read everything.
        "publish.send_queue_max",
        lambda s: s.publish_send_queue_max >= 16 * s.commit_max_blocks_per_group,
        lambda s: f"at least {16 * s.commit_max_blocks_per_group}, which is 16 x commit.max_blocks_per_group",
    ),
    *_tls_rules("grpc"),
    *_tls_rules("subscriber"),
    *_tls_rules("control"),
    *_tls_rules("tcp"),
    _needs("subscriber.tls_certificate", "subscriber.address", " (grpc.tls_certificate is for grpc.address)"),
    _pair_rule("catchup"),
    _needs("catchup.tls_certificate", "catchup.tls_ca"),
    _pair_rule("failover"),
    _needs("failover.tls_certificate", "failover.tls_ca"),
    _needs("failover.username", "failover.password_file"),
    _needs("failover.password_file", "failover.username"),
    _needs("publish.allowed_subjects", "grpc.tls_client_ca", ", or clients show no certificate"),
    Rule(
        "peer_subjects",
        lambda s: not s.peer_subjects or _client_ca_for_nodes(s) is not None,
        lambda s: (
            f"{'grpc' if s.subscriber_address is None else 'subscriber'}.tls_client_ca to be set as well, or "
            "nodes show no certificate"
        ),
    ),
    Rule(
        "peer_networks",
        lambda s: not (s.peer_networks and s.peer_subjects),
        lambda _: "none beside peer_subjects: an address proves less than a certificate",
    ),
    _needs("control.allowed_subjects", "control.tls_client_ca", ", or clients show no certificate"),
    Rule(
        "role",
        lambda s: s.role == "active" or s.peers != (),
        lambda _: "at least one --peer for a standby to follow",
    ),
    Rule(
        "catchup.max_backoff_seconds",
        lambda s: s.catchup_max_backoff_seconds >= s.catchup_backoff_seconds,
        lambda s: f"at least {s.catchup_backoff_seconds:g}, which is catchup.backoff_seconds",
    ),
)
"""The rules, in the order of checking, after every single value is valid."""


Note = Callable[[SettingError], None]
Read = Callable[[Path], bytes]


def _raise(error: SettingError) -> None:
    raise error


def config_bytes(path: Path) -> bytes:
    """Read a TOML file, which may be a pipe, as for `<(…)`: such a file has its bytes only once.

    Returns:
        Of a file that is too large, one byte more than it may have.

    Raises:
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        return file.read(CONFIG_FILE_BYTES_MAX + 1)


def resolve(
    flags: Mapping[str, object],
    environ: Mapping[str, str],
    config: Path | None = None,
    note: Note = _raise,
    read: Read = config_bytes,
) -> Resolved:
    """Read all sources, and return the effective settings.

    Args:
        flags: dotted name, present or former, to the flag's value; None or () without the flag.
        config: the TOML file of the flag, if any; it lies over the one that the environment names.
        note: takes each fault; if it raises nothing, the value counts as not given.
        read: reads a file. For a pipe, `log_format` and this function need one that keeps the bytes.

    Raises:
        SettingError: the first invalid value, unknown key, or broken rule, unless `note` takes them.
    """
    values: dict[str, object] = {}
    former_names: list[tuple[str, str]] = []
    origins = {setting.name: _DEFAULT for setting in SETTINGS}

    def take(setting: Setting, written: object, where: str) -> None:
        try:
            values[setting.attribute] = setting.kind.read(written)
        except NotThisKind as error:
            note(SettingError(setting.name, got=_got(written), expected=str(error), where=where))
            return
        origins[setting.name] = where

    for file in _files(environ, config):
        for setting, (name, written) in _file_values(file, note, read).items():
            take(setting, written, f"file {file}")
            if setting.is_former(name):
                former_names.append((name, setting.name))
    for setting in SETTINGS:
        if (variable := _variable_of(setting, environ, note)) is not None:
            take(setting, environ[variable], f"environment {variable}")
            if setting.is_former(variable):
                former_names.append((variable, setting.name))
    for setting in SETTINGS:
        given = [name for name in setting.names if flags.get(name) not in (None, ())]
        if len(given) > 1:
            note(_given_twice(setting, setting.former_flags[0], f"flag {setting.flag}"))
        for name in given:
            is_former = setting.is_former(name)
            flag = setting.former_flags[0] if is_former else setting.flag
            take(setting, flags[name], f"flag {flag}")
            if is_former:
                former_names.append((flag, setting.name))

    typed: dict[str, Any] = values  # each kind reads its field's type; a test checks the table
    settings = Settings(**typed)
    _check_rules(settings, origins, note)
    return Resolved(settings, origins, _unknown_environment(environ), tuple(former_names))


def log_format(
    flags: Mapping[str, object],
    environ: Mapping[str, str],
    config: Path | None = None,
    read: Read = config_bytes,
) -> str:
    """Return log.format as `resolve` would, or its default where that cannot be read."""
    setting = _BY_NAME["log.format"]
    written: list[object] = [setting.default]
    for file in _files(environ, config):
        with contextlib.suppress(SettingError):
            written.append(_written(file, _raise, read).get(setting.name))
    written += [environ.get(setting.environment), flags.get(setting.name)]
    found = setting.default
    for one in written:
        with contextlib.suppress(NotThisKind):
            found = setting.kind.read(one) if one else found
    return str(found)


def to_toml(resolved: Resolved) -> str:
    """Return the settings as a TOML file, each with its origin in a comment."""
    lines = ["# The effective settings. Unset ones are comments; a comment after a value names its origin."]
    for section in dict.fromkeys(setting.section for setting in SETTINGS):
        if section != NODE_SECTION:
            lines += ["", f"[{section}]"]
        for setting in SETTINGS:
            if setting.section == section:
                lines.append(_toml_line(setting, resolved))
    return "\n".join(lines) + "\n"


def _toml_line(setting: Setting, resolved: Resolved) -> str:
    key = setting.name.rpartition(".")[2]
    value = getattr(resolved.settings, setting.attribute)
    origin = resolved.origins[setting.name]
    if value is None:
        return f"# {key} is unset"
    if origin == _DEFAULT and isinstance(setting.default, Derived):
        origin = f"{_DEFAULT}: {setting.default.words}"
    return f"{key} = {setting.kind.to_toml(value)}  # {origin}"


def _files(environ: Mapping[str, str], config: Path | None) -> list[Path]:
    named = environ.get(CONFIG_ENVIRONMENT)
    return [*([Path(named)] if named else []), *([config] if config is not None else [])]


def _checked_bytes(path: Path, read: Read) -> bytes:
    try:
        content = read(path)
    except OSError as error:
        got = f"{str(path)!r} ({error.strerror})"
        raise SettingError(
            CONFIG_FLAG, got=got, expected="a file that can be read", where=f"file {path}"
        ) from error
    if len(content) > CONFIG_FILE_BYTES_MAX:
        raise SettingError(
            CONFIG_FLAG,
            got=f"more than {CONFIG_FILE_BYTES_MAX} bytes",
            expected=f"at most {CONFIG_FILE_BYTES_MAX} bytes",
            where=f"file {path}",
        )
    return content


def _written(path: Path, note: Note, read: Read) -> dict[str, object]:
    """Read the file; return the values in it by their dotted names, whatever these are."""
    where = f"file {path}"
    try:
        tables = tomllib.loads(_checked_bytes(path, read).decode("utf-8"))
    except SettingError as error:
        note(error)
        return {}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        note(SettingError(CONFIG_FLAG, got=str(error), expected="TOML in UTF-8", where=where))
        return {}
    except (ValueError, RecursionError) as error:  # tomllib does not catch these
        note(
            SettingError(
                CONFIG_FLAG, got=_beyond(error), expected="values that a setting can have", where=where
            )
        )
        return {}
    written: dict[str, object] = {}
    for key, value in tables.items():
        if isinstance(value, dict):
            written.update({f"{key}.{inner}": one for inner, one in value.items()})
        else:
            written[key] = value
    return written


def _file_values(path: Path, note: Note, read: Read) -> dict[Setting, tuple[str, object]]:
    """Read the file; return each setting in it, with its name there and its TOML value."""
    where, written = f"file {path}", _written(path, note, read)
    found: dict[Setting, tuple[str, object]] = {}
    for name, value in written.items():
        setting = _BY_ANY_NAME.get(name)
        if setting is None:
            note(SettingError(name, got="no setting of this name", expected=_nearest(name), where=where))
            continue
        if setting in found:
            other = next(one for one in (name, found[setting][0]) if one != setting.name)
            note(_given_twice(setting, other, where))
        found[setting] = name, value
    return found


def _variable_of(setting: Setting, environ: Mapping[str, str], note: Note) -> str | None:
    """Return the variable that sets the setting; an empty one counts as unset."""
    names = [name for name in setting.environments if environ.get(name)]
    if len(names) > 1:
        note(_given_twice(setting, names[1], f"environment {names[0]}"))
    return names[0] if names else None


def _given_twice(setting: Setting, other: str, where: str) -> SettingError:
    return SettingError(setting.name, got=f"{other} as well", expected="one of the two", where=where)


def _nearest(name: str) -> str:
    near = difflib.get_close_matches(name, _BY_NAME, n=1)
    return f"a setting such as {near[0]}" if near else "a setting that `sluice serve --help` lists"


def _got(written: object) -> str:
    """Return a value as written; cut a very long one."""
    try:
        text = repr(written)
    except (ValueError, RecursionError) as error:
        return _beyond(error)
    return text if len(text) <= 100 else f"{text[:97]}..."


def _beyond(error: ValueError | RecursionError) -> str:
    """Return in words why Python cannot read or print a value."""
    if isinstance(error, RecursionError):
        return "lists or tables too deep in each other"
    return f"a number of more than {sys.get_int_max_str_digits()} digits"


def _check_rules(settings: Settings, origins: Mapping[str, str], note: Note) -> None:
    for rule in RULES:
        if not rule.holds(settings):
            setting = _BY_NAME[rule.name]
            value = getattr(settings, setting.attribute)
            got = "nothing" if value is None else setting.kind.to_toml(value)
            note(SettingError(rule.name, got=got, expected=rule.expected(settings), where=origins[rule.name]))


def _unknown_environment(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the variables `SLUICE_…` that are no setting, without those from Kubernetes."""
    known = {name for setting in SETTINGS for name in setting.environments}
    known |= {CONFIG_ENVIRONMENT, NODES_ENVIRONMENT, CONTEXT_ENVIRONMENT}
    ours = (name for name in environ if name.startswith("SLUICE_") and name not in known)
    return tuple(sorted(name for name in ours if not _is_from_kubernetes(name, environ[name])))


def _is_from_kubernetes(name: str, value: str) -> bool:
    """Return whether a Service named `sluice` or `sluice-…` put the variable into this container."""
    return bool(_KUBERNETES.fullmatch(name)) or (name.endswith("_PORT") and "://" in value)
