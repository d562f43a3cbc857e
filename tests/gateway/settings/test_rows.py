"""One row of the table of settings: its name in each form, and its default for people."""

from __future__ import annotations

import pytest

from gateway.settings.kinds import Listed, Size, Text, WholeNumber
from gateway.settings.rows import NODE_SECTION, Derived, Setting, row


def made(name: str, default: object = 5, flag: str = "") -> Setting:
    setting = row(name, WholeNumber(0, 9), default, "Help.", unit="blocks", flag=flag).metadata["setting"]
    assert isinstance(setting, Setting)
    return setting


@pytest.mark.parametrize(
    ("name", "attribute", "flag", "environment", "section"),
    [
        ("a.b_c", "a_b_c", "--a-b-c", "SLUICE_A_B_C", "a"),
        ("role", "role", "--role", "SLUICE_ROLE", NODE_SECTION),
    ],
)
def test_the_forms_of_a_name(name: str, attribute: str, flag: str, environment: str, section: str) -> None:
    setting = made(name)
    assert (setting.attribute, setting.flag, setting.environment, setting.section) == (
        attribute,
        flag,
        environment,
        section,
    )


def test_a_name_without_its_unit() -> None:
    setting = made("a.b_seconds")
    assert (setting.short_name, setting.short_environment) == ("a.b", "SLUICE_A_B")
    assert setting.flags == ("--a-b-seconds", "--a-b")
    assert made("b_seconds", flag="--b").flags == ("--b",)
    plain = made("a.b_bytes")
    assert (plain.short_name, plain.short_environment, plain.flags) == (None, None, ("--a-b-bytes",))


def test_a_flag_of_its_own() -> None:
    assert made("verification.mode", flag="--verify").flag == "--verify"


@pytest.mark.parametrize(
    ("default", "text"),
    [(5, "5"), (None, "unset"), ((), "unset"), (Derived("twice x", lambda _: 1), "twice x")],
)
def test_a_default_for_people(default: object, text: str) -> None:
    assert made("a.b", default).default_text == text


def test_what_may_be_repeated() -> None:
    assert row("a", Listed(Text("X")), (), "Help.").metadata["setting"].is_list
    assert not row("a", Size(1, 2), 1, "Help.").metadata["setting"].is_list
