"""Options of data sources."""

from __future__ import annotations

from typing import Any

import pytest

from sluice.publishers.errors import OptionError
from sluice.publishers.spark.options import (
    OPTION_MAX,
    block_bounds,
    check_known,
    check_root_layout,
    flag,
    given,
    one_of,
    positive,
    required,
    whole_argument,
    whole_number,
)


def test_required() -> None:
    assert required({"a": " x "}, "a", "a letter") == "x"
    for options in ({}, {"a": "  "}):
        with pytest.raises(OptionError) as caught:
            required(options, "a", "a letter")
        assert str(caught.value) == "option 'a': got nothing, expected a letter"


@pytest.mark.parametrize(("options", "value"), [({}, None), ({"n": "1"}, 1), ({"n": "9"}, 9)])
def test_whole_numbers(options: dict[str, str], value: int | None) -> None:
    assert whole_number(options, "n", 1, 9) == value


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x", "option 'n': got 'x', expected a whole number from 1 to 9"),
        ("1.5", "option 'n': got '1.5', expected a whole number from 1 to 9"),
        ("0", "option 'n': got 0, expected 1 to 9"),
        ("10", "option 'n': got 10, expected 1 to 9"),
    ],
)
def test_other_numbers_are_refused(text: str, message: str) -> None:
    with pytest.raises(OptionError) as caught:
        whole_number({"n": text}, "n", 1, 9)
    assert str(caught.value) == message


def test_numbers_that_are_no_text() -> None:
    assert whole_argument("n", 9, 1, 9) == whole_argument("n", 9, 1) == 9
    for wrong, most, message in (
        ("2", None, "got '2', expected a whole number, at least 1"),
        (1.5, 9, "got 1.5, expected a whole number, 1 to 9"),
        (0, None, "got 0, expected at least 1"),
        (10, 9, "got 10, expected 1 to 9"),
    ):
        given: Any = wrong
        with pytest.raises(OptionError) as caught:
            whole_argument("n", given, 1, most)
        assert str(caught.value) == f"option 'n': {message}"


def test_seconds() -> None:
    assert positive({}, "t", "seconds") is None
    assert positive({"t": "0.5"}, "t", "seconds") == 0.5
    assert positive({"t": "1e9"}, "t", "seconds") == OPTION_MAX
    with pytest.raises(OptionError) as caught:
        positive({"t": "1000000001"}, "t", "seconds")
    assert str(caught.value) == (
        "option 't': got '1000000001', expected seconds above 0, at most 1,000,000,000"
    )


@pytest.mark.parametrize("text", ["0", "-1", "inf", "nan", "soon"])
def test_other_seconds_are_refused(text: str) -> None:
    with pytest.raises(OptionError) as caught:
        positive({"t": text}, "t", "seconds")
    assert str(caught.value) == f"option 't': got '{text}', expected seconds above 0"


def test_unknown_options_are_slips_of_the_hand() -> None:
    check_known({"Gateways": "x"}, frozenset(("gateways", "path")))
    with pytest.raises(OptionError) as caught:
        check_known({"gatways": "x"}, frozenset(("gateways", "path")))
    assert str(caught.value) == "option 'gatways': got an unknown option, expected one of gateways, path"


def test_words_and_flags() -> None:
    assert one_of({"mode": " B "}, "mode", ("a", "b")) == "b"
    assert flag({"x": "TRUE"}, "x") is True
    assert flag({"x": "false"}, "x") is False
    assert given(mode=one_of({}, "mode", ("a", "b")), x=flag({}, "x"), n=0) == {"n": 0}
    with pytest.raises(OptionError) as caught:
        flag({"x": "yes"}, "x")
    assert str(caught.value) == "option 'x': got 'yes', expected one of true, false"


def test_the_bounds_of_blocks() -> None:
    assert block_bounds({}) == (None, None)
    assert block_bounds({"from": "0", "to": "0"}) == (0, 0)
    with pytest.raises(OptionError) as caught:
        block_bounds({"from": "5", "to": "4"})
    assert str(caught.value) == "option 'to': got 4, expected 5 to 9223372036854775806"


def test_several_paths_are_refused() -> None:
    with pytest.raises(OptionError) as caught:
        check_known({"paths": '["a","b"]'}, frozenset(("path",)))
    assert str(caught.value) == (
        'option \'path\': got several: ["a","b"], expected one; join what is read of each by union'
    )


def test_layouts_of_root_hashes() -> None:
    for layout in ("auto", 8, 16):
        check_root_layout(layout)
    for wrong in ("8", 7, None):
        with pytest.raises(OptionError) as caught:
            check_root_layout(wrong)
        assert str(caught.value) == f"option 'root_layout': got {wrong!r}, expected 'auto', 8 or 16"
