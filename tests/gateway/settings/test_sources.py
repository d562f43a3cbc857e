"""Tests of `gateway.settings.sources`: precedence, and the exact words of every refusal."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

import pytest

from sluice.gateway.errors import SettingError
from sluice.gateway.settings.kinds import (
    Choice,
    Endpoint,
    File,
    FirstBlock,
    Folder,
    HostPort,
    Listed,
    Seconds,
    SettingKind,
    Share,
    Size,
    Switch,
    Text,
    WholeNumber,
    size_text,
)
from sluice.gateway.settings.sources import CONFIG_FILE_BYTES_MAX, RULES, log_format, resolve, to_toml
from sluice.gateway.settings.table import SETTINGS, Setting, Settings


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return tmp_path / "sluice.toml"


def refusal(flags: dict[str, object], environ: dict[str, str], config: Path | None = None) -> str:
    with pytest.raises(SettingError) as caught:
        resolve(flags, environ, config)
    assert caught.value.exit_status == 2
    return str(caught.value)


def test_nothing_written_gives_the_defaults() -> None:
    resolved = resolve({}, {})
    assert resolved.settings == Settings()
    assert set(resolved.origins.values()) == {"default"}
    assert resolved.unknown_environment == ()


def test_each_source_goes_before_the_one_below_it(config: Path) -> None:
    config.write_text('first_block = 1\ndata_dir = "f"\nblock_time_seconds = 3\n[log]\nlevel = "debug"\n')
    environ = {"SLUICE_FIRST_BLOCK": "2", "SLUICE_DATA_DIR": "e"}
    resolved = resolve({"first_block": "any", "data_dir": None, "peers": ()}, environ, config)
    assert resolved.settings == Settings(
        first_block="any", data_dir=Path("e"), block_time_seconds=3, log_level="debug"
    )
    assert resolved.settings.publish_block_timeout_seconds == 9
    written = {name: origin for name, origin in resolved.origins.items() if origin != "default"}
    assert written == {
        "first_block": "flag --first-block",
        "data_dir": "environment SLUICE_DATA_DIR",
        "block_time_seconds": f"file {config}",
        "log.level": f"file {config}",
    }


def test_a_list_replaces_the_list_below_it(config: Path) -> None:
    config.write_text('ledger_keys = ["ed25519:aa", "ed25519:bb"]\n')
    assert resolve({}, {}, config).settings.ledger_keys == ("ed25519:aa", "ed25519:bb")
    environ = {"SLUICE_LEDGER_KEYS": "ed25519:cc,ed25519:dd"}
    assert resolve({}, environ, config).settings.ledger_keys == ("ed25519:cc", "ed25519:dd")
    flags = {"ledger_keys": ("ed25519:ee",)}
    assert resolve(flags, environ, config).settings.ledger_keys == ("ed25519:ee",)


def test_the_file_of_the_flag_lies_over_the_one_of_the_environment(config: Path, tmp_path: Path) -> None:
    config.write_text('first_block = 1\ndata_dir = "image"\nlog.level = "debug"\n')
    other = tmp_path / "other.toml"
    other.write_text('first_block = 2\n[log]\nformat = "json"\n')
    environ = {"SLUICE_CONFIG": str(config)}
    assert resolve({}, environ).settings.first_block == 1
    both = resolve({}, environ, other)
    assert both.settings == Settings(
        first_block=2, data_dir=Path("image"), log_level="debug", log_format="json"
    )
    assert (both.origins["first_block"], both.origins["data_dir"]) == (f"file {other}", f"file {config}")
    assert resolve({}, environ | {"SLUICE_FIRST_BLOCK": "3"}, other).settings.first_block == 3


@pytest.mark.parametrize(
    ("flag", "variable", "text", "expected"),
    [
        (None, None, "", "text"),
        (None, None, 'nonsense = 1\nlog.format = "json"\n', "json"),
        (None, "json", '[log]\nformat = "text"\n', "json"),
        ("text", "json", "", "text"),
        ("yaml", "json", "", "json"),
        (None, None, "this is no TOML", "text"),
    ],
)
def test_the_form_of_the_log_is_known_though_all_else_is_wrong(
    flag: str | None, variable: str | None, text: str, expected: str, config: Path
) -> None:
    config.write_text(text)
    environ = {"SLUICE_ROLE": "king"} | ({"SLUICE_LOG_FORMAT": variable} if variable else {})
    assert log_format({"log.format": flag}, environ, config) == expected


def test_an_empty_variable_is_an_unset_one() -> None:
    assert resolve({}, {"SLUICE_FIRST_BLOCK": "", "SLUICE_CONFIG": ""}).settings == Settings()


WRONG_VALUES = [
    ("tcp.max_connections", "0", "'0', expected a whole number from 1 to 1000000"),
    ("publish.max_block_bytes", "8MB", "'8MB', expected bytes (such as 8MiB) from 1B to 512MiB"),
    ("verification.mode", "none", "'none', expected one of full, hash"),
    ("grpc.reflection", "maybe", "'maybe', expected on or off (true or false in the file)"),
    ("block_time_seconds", "0", "'0', expected seconds above 0, at most 3600"),
]


@pytest.mark.parametrize(("name", "written", "words"), WRONG_VALUES)
def test_a_wrong_value_says_setting_got_expected_and_where(
    name: str, written: str, words: str, config: Path
) -> None:
    setting = next(setting for setting in SETTINGS if setting.name == name)
    section, _, key = name.rpartition(".")
    config.write_text((f"[{section}]\n" if section else "") + f'{key} = "{written}"\n')
    assert refusal({name: written}, {}) == f"{name}: got {words} (flag {setting.flag})"
    variable = setting.environment
    assert refusal({}, {variable: written}) == f"{name}: got {words} (environment {variable})"
    assert refusal({}, {}, config) == f"{name}: got {words} (file {config})"


def test_a_wrong_value_below_a_right_one_is_refused_too() -> None:
    assert "environment SLUICE_STREAM_TYPE" in refusal({"stream.type": "1"}, {"SLUICE_STREAM_TYPE": "x"})


def test_a_long_wrong_value_is_cut() -> None:
    assert refusal({"role": "x" * 5000}, {}) == (
        f"role: got '{'x' * 96}..., expected one of active, standby (flag --role)"
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "[publish]\nmax_block_byte = 1\n",
            (
                "publish.max_block_byte: got no setting of this name, expected a setting such as "
                "publish.max_block_bytes"
            ),
        ),
        (
            "qqq = 1\n",
            "qqq: got no setting of this name, expected a setting that `sluice serve --help` lists",
        ),
        ("[role]\nx = 1\n", "role.x: got no setting of this name, expected a setting such as role"),
        (
            "[tcp]\nmax_connections = true\n",
            "tcp.max_connections: got True, expected a whole number from 1 to 1000000",
        ),
        ("peers = 3\n", "peers: got 3, expected a list"),
    ],
)
def test_a_wrong_key_or_type_in_the_file(text: str, words: str, config: Path) -> None:
    config.write_text(text)
    assert refusal({}, {}, config) == f"{words} (file {config})"


def test_a_section_that_is_a_value_is_refused(config: Path) -> None:
    config.write_text("publish = 3\n")
    assert refusal({}, {}, config).startswith("publish: got no setting of this name, expected a setting ")


def test_a_file_that_is_not_toml(config: Path) -> None:
    config.write_text("role = \n")
    assert refusal({}, {}, config) == (
        f"--config: got Invalid value (at line 1, column 8), expected TOML in UTF-8 (file {config})"
    )
    config.write_bytes(b'role = "\xff"\n')
    assert "expected TOML in UTF-8" in refusal({}, {}, config)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            f"block_time_seconds = {'1' * 400}\n",
            f"block_time_seconds: got {'1' * 97}..., expected seconds above 0, at most 3600",
        ),
        (
            f"[stream]\ntype = 0x{'f' * 5000}\n",
            (
                "stream.type: got a number of more than 4300 digits, expected a whole number from 0 to "
                "18446744073709551615"
            ),
        ),
        (
            f"[verification]\nroot_layout = 0x{'f' * 5000}\n",
            "verification.root_layout: got a number of more than 4300 digits, expected one of auto, 8, 16",
        ),
        (
            f"[stream]\ntype = {'9' * 5000}\n",
            "--config: got a number of more than 4300 digits, expected values that a setting can have",
        ),
        (
            f"peers = {'[' * 5000}{']' * 5000}\n",
            "--config: got lists or tables too deep in each other, expected values that a setting can have",
        ),
        (
            f"[tcp]\nmax_connections{'.x' * 5000} = 1\n",
            (
                "tcp.max_connections: got lists or tables too deep in each other, expected a whole number "
                "from 1 to 1000000"
            ),
        ),
    ],
    ids=["seconds", "hexadecimal", "choice", "decimal", "lists", "tables"],
)
def test_values_without_measure_are_refused_as_others_are(text: str, words: str, config: Path) -> None:
    config.write_text(text)
    assert refusal({}, {}, config) == f"{words} (file {config})"


def test_a_file_that_is_not_there(config: Path) -> None:
    assert refusal({}, {}, config) == (
        f"--config: got '{config}' (No such file or directory), "
        f"expected a file that can be read (file {config})"
    )
    assert "(Is a directory)" in refusal({}, {"SLUICE_CONFIG": str(config.parent)})


def test_a_file_of_so_many_bytes_is_taken_and_one_without_an_end_is_not(config: Path) -> None:
    text = b"first_block = 5\n"
    config.write_bytes(text + b"#" * (CONFIG_FILE_BYTES_MAX - len(text)))
    assert resolve({}, {}, config).settings.first_block == 5
    with config.open("ab") as file:
        file.write(b"#")
    for path in (config, Path("/dev/zero")):
        assert refusal({}, {}, path) == (
            f"--config: got more than 1048576 bytes, expected at most 1048576 bytes (file {path})"
        )


def test_a_pipe_is_read_to_its_end() -> None:
    reading, writing = os.pipe()
    os.write(writing, b"first_block = 5\n")
    os.close(writing)
    assert resolve({}, {}, Path(f"/dev/fd/{reading}")).settings.first_block == 5
    os.close(reading)


BROKEN_RULES: list[tuple[str, dict[str, object], str]] = [
    (
        "publish.block_timeout_seconds",
        {"block_time_seconds": "2", "publish.block_timeout_seconds": "3.9"},
        (
            "publish.block_timeout_seconds: got 3.9, expected 0 (no limit) or at least 4, which is "
            "2 x block_time_seconds (flag --publish-block-timeout-seconds)"
        ),
    ),
    (
        "publish.send_queue_max",
        {"publish.send_queue_max": "1039", "commit.max_blocks_per_group": "65"},
        (
            "publish.send_queue_max: got 1039, expected at least 1040, which is "
            "16 x commit.max_blocks_per_group (flag --publish-send-queue-max)"
        ),
    ),
    (
        "grpc.tls_key",
        {"grpc.tls_certificate": "a.crt"},
        (
            "grpc.tls_key: got nothing, expected grpc.tls_certificate and grpc.tls_key together, or neither "
            "(default)"
        ),
    ),
    (
        "grpc.tls_client_ca",
        {"grpc.tls_client_ca": "ca.crt"},
        (
            'grpc.tls_client_ca: got "ca.crt", expected grpc.tls_certificate to be set as well '
            "(flag --grpc-tls-client-ca)"
        ),
    ),
    (
        "subscriber.tls_key",
        {"subscriber.tls_key": "a.key", "subscriber.address": "a:1"},
        (
            'subscriber.tls_key: got "a.key", expected subscriber.tls_certificate and subscriber.tls_key '
            "together, or neither (flag --subscriber-tls-key)"
        ),
    ),
    (
        "subscriber.tls_client_ca",
        {"subscriber.tls_client_ca": "ca.crt", "subscriber.address": "a:1"},
        (
            'subscriber.tls_client_ca: got "ca.crt", expected subscriber.tls_certificate to be set as well '
            "(flag --subscriber-tls-client-ca)"
        ),
    ),
    (
        "control.tls_key",
        {"control.tls_certificate": "a.crt"},
        (
            "control.tls_key: got nothing, expected control.tls_certificate and control.tls_key together, or "
            "neither (default)"
        ),
    ),
    (
        "control.tls_client_ca",
        {"control.tls_client_ca": "ca.crt"},
        (
            'control.tls_client_ca: got "ca.crt", expected control.tls_certificate to be set as well '
            "(flag --control-tls-client-ca)"
        ),
    ),
    (
        "tcp.tls_key",
        {"tcp.tls_key": "a.key"},
        (
            'tcp.tls_key: got "a.key", expected tcp.tls_certificate and tcp.tls_key together, or neither '
            "(flag --tcp-tls-key)"
        ),
    ),
    (
        "tcp.tls_client_ca",
        {"tcp.tls_client_ca": "ca.crt"},
        (
            'tcp.tls_client_ca: got "ca.crt", expected tcp.tls_certificate to be set as well '
            "(flag --tcp-tls-client-ca)"
        ),
    ),
    (
        "subscriber.tls_certificate",
        {"subscriber.tls_certificate": "a.crt", "subscriber.tls_key": "a.key"},
        (
            'subscriber.tls_certificate: got "a.crt", expected subscriber.address to be set as well '
            "(grpc.tls_certificate is for grpc.address) (flag --subscriber-tls-certificate)"
        ),
    ),
    (
        "catchup.tls_key",
        {"catchup.tls_key": "a.key", "catchup.tls_ca": "ca.crt"},
        (
            'catchup.tls_key: got "a.key", expected catchup.tls_certificate and catchup.tls_key together, or '
            "neither (flag --catchup-tls-key)"
        ),
    ),
    (
        "catchup.tls_certificate",
        {"catchup.tls_certificate": "a.crt", "catchup.tls_key": "a.key"},
        (
            'catchup.tls_certificate: got "a.crt", expected catchup.tls_ca to be set as well '
            "(flag --catchup-tls-certificate)"
        ),
    ),
    (
        "failover.tls_key",
        {"failover.tls_key": "a.key", "failover.tls_ca": "ca.crt"},
        (
            'failover.tls_key: got "a.key", expected failover.tls_certificate and failover.tls_key together, '
            "or neither (flag --failover-tls-key)"
        ),
    ),
    (
        "failover.tls_certificate",
        {"failover.tls_certificate": "a.crt", "failover.tls_key": "a.key"},
        (
            'failover.tls_certificate: got "a.crt", expected failover.tls_ca to be set as well '
            "(flag --failover-tls-certificate)"
        ),
    ),
    (
        "failover.username",
        {"failover.username": "sluice"},
        (
            'failover.username: got "sluice", expected failover.password_file to be set as well '
            "(flag --failover-username)"
        ),
    ),
    (
        "failover.password_file",
        {"failover.password_file": "pw"},
        (
            'failover.password_file: got "pw", expected failover.username to be set as well '
            "(flag --failover-password-file)"
        ),
    ),
    (
        "publish.allowed_subjects",
        {"publish.allowed_subjects": ("CN=alice",)},
        (
            'publish.allowed_subjects: got ["CN=alice"], expected grpc.tls_client_ca to be set as well, or '
            "clients show no certificate (flag --publish-allowed-subjects)"
        ),
    ),
    (
        "peer_subjects",
        {"peer_subjects": "CN=node-b"},
        (
            'peer_subjects: got ["CN=node-b"], expected grpc.tls_client_ca to be set as well, or nodes show '
            "no certificate (flag --peer-subject)"
        ),
    ),
    (
        "peer_networks",
        {
            "peer_networks": "10.1.0.0/16",
            "peer_subjects": "CN=node-b",
            "grpc.tls_certificate": "a",
            "grpc.tls_key": "b",
            "grpc.tls_client_ca": "c",
        },
        (
            'peer_networks: got ["10.1.0.0/16"], expected none beside peer_subjects: an address proves less '
            "than a certificate (flag --peer-network)"
        ),
    ),
    (
        "control.allowed_subjects",
        {"control.allowed_subjects": "CN=operator"},
        (
            'control.allowed_subjects: got ["CN=operator"], expected control.tls_client_ca to be set as '
            "well, or clients show no certificate (flag --control-allowed-subjects)"
        ),
    ),
    (
        "role",
        {"role": "standby"},
        'role: got "standby", expected at least one --peer for a standby to follow (flag --role)',
    ),
    (
        "catchup.max_backoff_seconds",
        {"catchup.backoff_seconds": "5", "catchup.max_backoff_seconds": "4"},
        (
            "catchup.max_backoff_seconds: got 4, expected at least 5, which is catchup.backoff_seconds "
            "(flag --catchup-max-backoff-seconds)"
        ),
    ),
]


@pytest.mark.parametrize(("name", "flags", "words"), BROKEN_RULES)
def test_a_broken_rule_is_refused(name: str, flags: dict[str, object], words: str) -> None:
    assert refusal(flags, {}) == words


def test_every_rule_has_a_case() -> None:
    assert [rule.name for rule in RULES] == [name for name, _, _ in BROKEN_RULES]


def test_nodes_show_certificates_where_readers_connect() -> None:
    tls = {"grpc.tls_certificate": "a", "grpc.tls_key": "b", "grpc.tls_client_ca": "c"}
    flags = {"peer_subjects": "CN=node-b", **tls}
    assert resolve(flags, {}).settings.peer_subjects == ("CN=node-b",)
    assert "expected subscriber.tls_client_ca to be set" in refusal(
        {**flags, "subscriber.address": "a:1"}, {}
    )


def test_rules_allow_what_is_just_right() -> None:
    for text in ("0", "4"):
        settings = resolve({"publish.block_timeout_seconds": text}, {}).settings
        assert settings.publish_block_timeout_seconds == float(text)
    settings = resolve({"publish.max_inflight_bytes": "1MiB"}, {}).settings
    assert settings.publish_max_inflight_bytes < settings.publish_max_block_bytes
    settings = resolve({"publish.send_queue_max": "1024"}, {}).settings
    assert settings.commit_max_blocks_per_group == 64


OLD, NEW = "catchup.rest_seconds", "catchup.backoff_seconds"


@pytest.mark.parametrize("unit", ["_seconds", ""])
def test_a_former_name_is_read_and_named(config: Path, unit: str) -> None:
    config.write_text(f"[catchup]\nrest{unit} = 2\n")
    variable = f"SLUICE_CATCHUP_REST{unit.upper()}"
    for resolved, former in (
        (resolve({}, {}, config), f"catchup.rest{unit}"),
        (resolve({}, {variable: "2"}), variable),
        (resolve({OLD: "2", NEW: None}, {}), "--catchup-rest-seconds"),
    ):
        assert resolved.settings == Settings(catchup_backoff_seconds=2)
        assert resolved.former_names == ((former, NEW),)
        assert resolved.unknown_environment == ()
        assert "\nbackoff_seconds = 2" in to_toml(resolved)
    assert resolve({NEW: "2"}, {}).former_names == ()


def test_a_setting_under_both_names_is_refused(config: Path) -> None:
    config.write_text("[catchup]\nrest_seconds = 2\nbackoff_seconds = 2\n")
    both = {"SLUICE_CATCHUP_REST": "1", "SLUICE_CATCHUP_BACKOFF": "1"}
    start, end = f"{NEW}: got", "as well, expected one of the two"
    assert refusal({}, {}, config) == f"{start} {OLD} {end} (file {config})"
    assert refusal({}, both) == f"{start} SLUICE_CATCHUP_REST {end} (environment SLUICE_CATCHUP_BACKOFF)"
    assert (
        refusal({OLD: "1", NEW: "1"}, {})
        == f"{start} --catchup-rest-seconds {end} (flag --catchup-backoff-seconds)"
    )


def test_a_name_may_be_written_without_its_unit(config: Path) -> None:
    config.write_text("block_time = 3\n[publish]\nblock_timeout = 7\nidle_timeout = 8\n")
    resolved = resolve({}, {"SLUICE_PUBLISH_IDLE_TIMEOUT": "9"}, config)
    settings = resolved.settings
    assert (settings.block_time_seconds, settings.publish_block_timeout_seconds) == (3, 7)
    assert settings.publish_idle_timeout_seconds == 9
    assert resolved.unknown_environment == ()
    assert resolved.origins["publish.block_timeout_seconds"] == f"file {config}"
    assert resolved.origins["publish.idle_timeout_seconds"] == "environment SLUICE_PUBLISH_IDLE_TIMEOUT"


def test_both_names_of_one_setting_are_refused(config: Path) -> None:
    config.write_text("[publish]\nblock_timeout = 7\nblock_timeout_seconds = 7\n")
    assert refusal({}, {}, config) == (
        "publish.block_timeout_seconds: got publish.block_timeout as well, expected one of the two "
        f"(file {config})"
    )
    environ = {"SLUICE_BLOCK_TIME": "1", "SLUICE_BLOCK_TIME_SECONDS": "1"}
    assert refusal({}, environ) == (
        "block_time_seconds: got SLUICE_BLOCK_TIME as well, expected one of the two "
        "(environment SLUICE_BLOCK_TIME_SECONDS)"
    )


def test_unknown_variables_are_reported_but_not_those_of_kubernetes() -> None:
    environ = {
        "SLUICE_TCP_PORT": "6900",  # a natural mistake
        "SLUICE_LOG_LEVLE": "debug",
        "SLUICE_PORT": "tcp://10.0.0.1:6900",
        "SLUICE_TCP_PORT_6900_TCP_ADDR": "10.0.0.1",
        "SLUICE_PORT_6900_TCP": "tcp://10.0.0.1:6900",
        "SLUICE_SERVICE_HOST": "10.0.0.1",
        "SLUICE_GRPC_SERVICE_PORT_GRPC": "40840",
        "OTHER": "1",
    }
    assert resolve({}, environ).unknown_environment == ("SLUICE_LOG_LEVLE", "SLUICE_TCP_PORT")


def test_what_is_printed_gives_the_same_settings_again(config: Path, tmp_path: Path) -> None:
    flags: dict[str, object] = {
        "first_block": "7",
        "ledger_keys": ("ed25519:aa",),
        "tcp.address": "[::1]:0",
        "data_dir": str(tmp_path / 'a "b" \\c'),
        "grpc.reflection": False,
    }
    for written in ({}, flags):
        resolved = resolve(written, {})
        config.write_text(to_toml(resolved))
        assert resolve({}, {}, config).settings == resolved.settings


def test_what_is_printed_tells_the_origins() -> None:
    text = to_toml(resolve({"tcp.address": "[::1]:0"}, {"SLUICE_ROLE": "active"}))
    lines = text.splitlines()
    assert 'role = "active"  # environment SLUICE_ROLE' in lines
    assert 'address = "[::1]:0"  # flag --tcp' in lines
    assert "# first_block is unset" in lines
    assert "block_timeout_seconds = 6  # default: 3 x block_time_seconds" in lines
    assert 'max_block_bytes = "256MiB"  # default' in lines
    assert set(tomllib.loads(text)) > {"publish", "tcp", "role"}


def one_past(kind: SettingKind) -> list[tuple[object, str]]:
    """Return the values just outside a kind's range, in TOML, with the expected words."""
    if isinstance(kind, WholeNumber):
        words = f"a whole number from {kind.least} to {kind.most}"
        return [(kind.least - 1, words), (kind.most + 1, words)]
    if isinstance(kind, Size):
        words = f"bytes (such as 8MiB) from {size_text(kind.least)} to {size_text(kind.most)}"
        return [(kind.least - 1, words), (kind.most + 1, words)]
    if isinstance(kind, Seconds):
        words = f"{'0 (no limit) or ' * kind.none_allowed}seconds above 0, at most {kind.most:g}"
        return [(-0.001 if kind.none_allowed else 0, words), (kind.most + 0.001, words)]
    if isinstance(kind, FirstBlock):
        words = f"any, or a whole number from 0 to {kind.most}"
        return [(-1, words), (kind.most + 1, words)]
    return []


NUMBERS = [setting for setting in SETTINGS if one_past(setting.kind)]


def test_all_settings_that_are_numbers_are_known_as_such() -> None:
    others = {Choice, Endpoint, File, Folder, HostPort, Listed, Share, Switch, Text}
    assert {type(setting.kind) for setting in SETTINGS if setting not in NUMBERS} == others


@pytest.mark.parametrize("setting", NUMBERS, ids=lambda setting: setting.name)
def test_each_number_refuses_one_past_its_bounds_wherever_it_is_written(
    setting: Setting, config: Path
) -> None:
    section, _, key = setting.name.rpartition(".")
    for value, words in one_past(setting.kind):
        text = f"got '{value}', expected {words}"
        assert refusal({setting.name: str(value)}, {}) == f"{setting.name}: {text} (flag {setting.flag})"
        environment = {setting.environment: str(value)}
        assert refusal({}, environment) == f"{setting.name}: {text} (environment {setting.environment})"
        config.write_text((f"[{section}]\n" if section else "") + f"{key} = {value}\n")
        assert refusal({}, {}, config) == (f"{setting.name}: got {value}, expected {words} (file {config})")


@pytest.mark.parametrize("setting", NUMBERS, ids=lambda setting: setting.name)
def test_each_number_takes_its_bounds(setting: Setting) -> None:
    kind = setting.kind
    assert isinstance(kind, WholeNumber | Size | Seconds | FirstBlock)
    least = 0 if isinstance(kind, FirstBlock | Seconds) else kind.least
    if least or not isinstance(kind, Seconds) or kind.none_allowed:
        assert kind.read(str(least)) == least
    assert kind.read(f"{kind.most:.0f}" if isinstance(kind, Seconds) else str(kind.most)) == kind.most


def test_variables_of_other_commands_are_no_mistake() -> None:
    assert resolve({}, {"SLUICE_NODES": "a", "SLUICE_CONTEXT": "b"}).unknown_environment == ()
