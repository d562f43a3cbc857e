"""Notes: found at every moment, written once, taken back."""

from __future__ import annotations

from datastream.errors import BookmarksUnavailable
from datastream.file.bookmarks import Notes


class Database:
    """A DB that takes batches, and refuses reads when told to."""

    def __init__(self) -> None:
        self.values: dict[bytes, bytes] = {b"old": b"1"}
        self.refuses = False

    def read(self, key: bytes) -> bytes | None:
        if self.refuses:
            raise BookmarksUnavailable("db", "refused")
        return self.values.get(key)

    def put(self, key: bytes, value: bytes) -> None:
        self.values[key] = value

    def delete(self, key: bytes) -> None:
        self.values.pop(key, None)


def test_a_note_is_found_before_during_and_after_its_batch() -> None:
    database = Database()
    notes, batch = Notes(database.read), Database()
    assert notes.get(b"a") is None
    notes.put(b"a", b"2")
    notes.put(b"old", None)
    assert (notes.get(b"a"), notes.get(b"old"), notes.has_pending) == (b"2", None, True)
    notes.add_to(batch)
    assert (notes.get(b"a"), notes.get(b"old"), notes.has_pending, notes.is_writing) == (
        b"2",
        None,
        False,
        True,
    )
    assert batch.values == {b"a": b"2"}
    notes.written()
    assert (notes.get(b"a"), notes.get(b"old"), notes.is_writing) == (None, b"1", False)  # as the DB has it


def test_a_batch_that_was_refused_waits_again_behind_what_came_since() -> None:
    notes = Notes(Database().read)
    notes.put_all({b"a": b"1", b"b": b"1"})
    notes.add_to(Database())
    notes.put(b"b", b"2")
    notes.take_back()
    batch = Database()
    notes.add_to(batch)
    assert batch.values == {b"old": b"1", b"a": b"1", b"b": b"2"}


def test_dropped_are_those_behind_a_key_wherever_they_are() -> None:
    notes, batch = Notes(Database().read), Database()
    notes.put_all({b"p1": b"1", b"p2": b"1", b"q9": b"1"})
    notes.add_to(Database())
    notes.put(b"p3", b"1")
    notes.drop(b"p", b"p2", [b"p4"])
    notes.written()
    batch.values = {b"p2": b"1", b"p4": b"1"}
    notes.add_to(batch)
    assert batch.values == {}


def test_a_db_that_cannot_be_read_has_no_notes() -> None:
    database = Database()
    database.refuses = True
    assert Notes(database.read).get(b"old") is None
