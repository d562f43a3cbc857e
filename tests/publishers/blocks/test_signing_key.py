"""Where the key is, and that nothing repeats it."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from sluice.gateway.errors import KeyFileError
from sluice.gateway.key_files import create_private_key
from sluice.publishers.blocks.signing_key import KEY_PATH_CHARACTERS_MAX, KeyPlace
from sluice.publishers.errors import OptionError


def test_a_key_is_read_from_a_file_or_a_variable_when_it_is_used(tmp_path: Path) -> None:
    place = KeyPlace.parse(tmp_path / "key.pem", None)
    key = create_private_key(tmp_path / "key.pem")
    assert place.load().private_bytes_raw() == key.private_bytes_raw()
    pem = (tmp_path / "key.pem").read_text()
    variable = KeyPlace.parse(None, "SIGNING_KEY")
    assert variable.load({"SIGNING_KEY": pem}).private_bytes_raw() == key.private_bytes_raw()
    for carried in (place, variable):
        assert pem.splitlines()[1].encode() not in pickle.dumps(carried)


@pytest.mark.parametrize(
    ("key_file", "key_env", "message"),
    [
        (None, None, "option 'key_file, key_env': got neither, expected one of them"),
        ("a", "B", "option 'key_file, key_env': got both, expected one of them"),
        (
            "",
            None,
            (
                "option 'key_file': got something that is no path, "
                "expected the path of a key file on the workers"
            ),
        ),
    ],
)
def test_one_place_is_needed(key_file: str | None, key_env: str | None, message: str) -> None:
    with pytest.raises(OptionError) as caught:
        KeyPlace.parse(key_file, key_env)
    assert str(caught.value) == message


def test_a_key_in_place_of_its_place_is_refused_and_not_repeated(tmp_path: Path) -> None:
    key = create_private_key(tmp_path / "key.pem")
    pem, raw = (tmp_path / "key.pem").read_text(), key.private_bytes_raw().hex()
    for text in (pem, pem.replace("\n", " "), raw, "0x" + raw):
        with pytest.raises(OptionError) as caught:
            KeyPlace.parse(text, None)
        assert caught.value.got == "something that is no path"
        with pytest.raises(OptionError) as caught:
            KeyPlace.parse(None, text)
        assert caught.value.got == "something that is no name"


def test_the_longest_path_is_taken_and_a_longer_one_may_be_a_key() -> None:
    path = "k" * KEY_PATH_CHARACTERS_MAX
    assert KeyPlace.parse(path, None) == KeyPlace(path, None)
    with pytest.raises(OptionError) as caught:
        KeyPlace.parse(path + "k", None)
    assert caught.value.got == "something that is no path"


def test_what_a_variable_has_instead_is_not_repeated() -> None:
    place = KeyPlace.parse(None, "SIGNING_KEY")
    with pytest.raises(KeyFileError) as caught:
        place.load({"OTHER": "x"})
    assert str(caught.value) == (
        "environment variable SIGNING_KEY: got nothing, expected a private key in PEM, set on every worker"
    )
    with pytest.raises(KeyFileError) as caught:
        place.load({"SIGNING_KEY": "-----BEGIN PRIVATE KEY-----\nsecret"})
    assert str(caught.value) == (
        "environment variable SIGNING_KEY: got something else, expected an unencrypted Ed25519 private key "
        "in PEM (`sluice keygen` writes one)"
    )
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__
