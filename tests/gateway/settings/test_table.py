"""Tests of `gateway.settings.table` against its own rules."""

from __future__ import annotations

import dataclasses
import re
import tomllib
import typing
from pathlib import Path

import pytest

from sluice.gateway.addresses import Address
from sluice.gateway.settings.kinds import GIB, MIB, Seconds, Size, WholeNumber
from sluice.gateway.settings.table import NODE_SECTION, SETTINGS, Derived, Setting, Settings, markdown, row

PAGE = Path(__file__).resolve().parents[3] / "docs" / "settings.md"


def made(name: str, default: object = 5, flag: str = "", former_name: str | None = None) -> Setting:
    one = row(name, WholeNumber(0, 9), default, "Help.", unit="blocks", flag=flag, former_name=former_name)
    setting = one.metadata["setting"]
    assert isinstance(setting, Setting)
    return setting


def test_each_row_is_the_field_of_its_name() -> None:
    assert [setting.attribute for setting in SETTINGS] == [
        field.name for field in dataclasses.fields(Settings)
    ]


@pytest.mark.parametrize("part", ["names", "flags", "former_flags", "environments"])
def test_no_two_rows_share_a_name(part: str) -> None:
    names = [name for setting in SETTINGS for name in getattr(setting, part)]
    assert len(set(names)) == len(names)


def test_no_setting_has_the_name_of_a_section() -> None:
    # A TOML key cannot be both a value and a table: hence `grpc.address`, not `grpc`.
    assert not {setting.name for setting in SETTINGS} & {setting.section for setting in SETTINGS}


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_a_default_is_a_value_of_its_kind_and_of_the_annotated_type(setting: Setting) -> None:
    value = getattr(Settings(), setting.attribute)
    annotation = typing.get_type_hints(Settings)[setting.attribute]
    if typing.get_origin(annotation) is typing.Literal:
        assert setting.kind.metavar == "|".join(str(word) for word in typing.get_args(annotation))
        assert value in typing.get_args(annotation)
    elif typing.get_origin(annotation) is tuple:
        assert value == ()
    elif isinstance(annotation, type):
        assert isinstance(value, annotation)
    if value is not None:
        assert setting.kind.read(tomllib.loads(f"x = {setting.kind.to_toml(value)}")["x"]) == value


def test_units_end_the_names() -> None:
    for setting in SETTINGS:
        if isinstance(setting.kind, Seconds):
            assert setting.name.endswith("_seconds")
            assert setting.unit == "seconds"
        if isinstance(setting.kind, Size):
            assert setting.name.endswith(("_bytes", "bytes_per_second"))
            assert setting.unit == "bytes"


def test_every_name_follows_from_the_dotted_name() -> None:
    by_name = {setting.name: setting for setting in SETTINGS}
    size = by_name["publish.max_block_bytes"]
    assert size.attribute == "publish_max_block_bytes"
    assert size.flag == "--publish-max-block-bytes"
    assert size.environment == "SLUICE_PUBLISH_MAX_BLOCK_BYTES"
    assert size.section == "publish"
    assert size.default_text == "256MiB"
    assert by_name["data_dir"].section == NODE_SECTION
    assert by_name["peers"].is_list
    assert by_name["first_block"].default_text == "unset"
    assert by_name["publish.block_timeout_seconds"].default_text == "3 x block_time_seconds"


def test_a_name_without_its_unit() -> None:
    setting = made("a.b_seconds")
    assert setting.names == ("a.b_seconds", "a.b")
    assert setting.environments == ("SLUICE_A_B_SECONDS", "SLUICE_A_B")
    assert setting.flags == ("--a-b-seconds", "--a-b")
    assert made("b_seconds", flag="--b").flags == ("--b",)
    plain = made("a.b_bytes")
    assert (plain.names, plain.flags) == (("a.b_bytes",), ("--a-b-bytes",))
    assert (plain.former_flags, plain.is_former("a.b_bytes")) == ((), False)


def test_a_former_name_has_all_forms_as_well() -> None:
    setting = made("a.new_seconds", former_name="a.old_seconds")
    assert setting.names == ("a.new_seconds", "a.new", "a.old_seconds", "a.old")
    assert setting.former_flags == ("--a-old-seconds", "--a-old")
    spellings = (*setting.names, *setting.environments)
    assert [name for name in spellings if setting.is_former(name)] == [
        *("a.old_seconds", "a.old"),
        *("SLUICE_A_OLD_SECONDS", "SLUICE_A_OLD"),
    ]


@pytest.mark.parametrize(
    ("default", "text"),
    [(5, "5"), (None, "unset"), ((), "unset"), (Derived("twice x", lambda _: 1), "twice x")],
)
def test_a_default_for_people(default: object, text: str) -> None:
    assert made("a.b", default).default_text == text


def test_the_flags_that_the_design_names() -> None:
    flags = {setting.flag for setting in SETTINGS}
    assert flags >= {
        "--data-dir",
        "--grpc",
        "--tcp",
        "--http",
        "--role",
        "--peer",
        "--ledger-key",
        "--verify",
    }
    assert flags >= {"--block-time", "--first-block"}


def test_the_defaults_of_the_design() -> None:
    settings = Settings()
    assert str(settings.grpc_address) == "127.0.0.1:40840"
    assert str(settings.tcp_address) == "127.0.0.1:6900"
    assert str(settings.http_address) == "127.0.0.1:16007"
    assert (settings.stream_type, settings.stream_system_id, settings.stream_version) == (1, 137, 1)
    assert (settings.publish_max_block_bytes, settings.publish_max_inflight_bytes) == (256 * MIB, GIB)
    assert (settings.publish_proof_idle_ms, settings.grpc_max_message_bytes) == (2000, 131_072_000)


def test_a_default_that_follows_from_another_setting_is_computed() -> None:
    assert Settings().publish_block_timeout_seconds == 6
    assert Settings(block_time_seconds=0.5).publish_block_timeout_seconds == 1.5
    assert (
        Settings(block_time_seconds=0.5, publish_block_timeout_seconds=9).publish_block_timeout_seconds == 9
    )
    assert Settings().grpc_reflection is True
    assert Settings(grpc_address=Address("0.0.0.0", 1)).grpc_reflection is False
    assert Settings(grpc_address=Address("0.0.0.0", 1), grpc_reflection=True).grpc_reflection is True


def test_every_row_is_explained() -> None:
    for setting in SETTINGS:
        assert setting.help.endswith("."), setting.name
        assert setting.default_text, setting.name


def test_settings_do_not_change() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Settings().role = "standby"  # type: ignore[misc]


def test_the_page_is_what_the_table_makes() -> None:
    expected = "run: python -m sluice.gateway.settings.table > docs/settings.md"
    assert PAGE.read_text(encoding="utf-8") == markdown(), expected


def test_each_setting_has_a_row_of_six_cells_in_its_section() -> None:
    """A bar in a cell, as in `full|hash`, must not begin another cell."""
    section, rows = "", []
    for line in markdown().splitlines():
        if line.startswith("## "):
            section = line.removeprefix("## ")
        elif line.startswith("| `"):
            cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
            assert len(cells) == 6, line
            rows.append((section, cells[0].strip("`"), cells[2].strip("`")))
    expected = [(setting.section, setting.name, setting.environment) for setting in SETTINGS]
    assert sorted(rows) == sorted(expected)
