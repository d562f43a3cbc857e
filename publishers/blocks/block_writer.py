"""A writer of blocks into a folder, in one of the layouts of the field.

A file gets its name when it is whole and flushed, so a killed writer continues when it is started again.

Source: docs/subscribing.md, "From the command line".
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from sluice.gateway.blocks.block import Block
from sluice.publishers.blocks.block_archives import write_zip
from sluice.publishers.blocks.block_files import sync_folder, write_block_file, write_whole
from sluice.publishers.blocks.block_layouts import (
    STAGING,
    ZIP_DIGITS,
    BlockFormat,
    BlockLayout,
    check_format,
    default_format,
    marker_name,
    member_name,
    number_of_parts,
    path_in,
    zip_of,
)
from sluice.publishers.blocks.block_places import BlockFileReader, BlockPlace, LocalStore, blocks_in
from sluice.publishers.errors import BlockFileError

__all__ = ["BlockWriter"]


class BlockWriter:
    """A writer of blocks in any order. Use with `with`, or close it.

    Args:
        block_format: compression; by default that of the layout's own software.
        is_flushed: a block is on disk before its file has its name, and all names are after `close`.

    Raises:
        BlockFileError: the folder cannot be made or read, or a due zip cannot be written.
    """

    def __init__(
        self,
        folder: Path,
        layout: BlockLayout = "plain",
        block_format: BlockFormat | None = None,
        *,
        is_flushed: bool = True,
        zip_digits: int = ZIP_DIGITS,
    ) -> None:
        self._format = default_format(layout) if block_format is None else block_format
        check_format(layout, self._format)
        self._folder = folder
        self._layout = layout
        self._is_flushed = is_flushed
        self._zip_digits = zip_digits
        self._made = {folder}
        self._unflushed: Path | None = None
        self._staged: dict[str, dict[int, Path]] = {}
        self._zip: tuple[str, dict[int, BlockPlace]] | None = None
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if layout == "historic":
                self._find_staged()
        except OSError as error:
            raise BlockFileError(str(folder), error.strerror or str(error)) from error

    def __enter__(self) -> BlockWriter:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Flush the names of the last files. Raises BlockFileError if the system refuses."""
        if self._unflushed is not None and self._is_flushed:
            try:
                sync_folder(self._unflushed)
            except OSError as error:
                raise BlockFileError(str(self._unflushed), error.strerror or str(error)) from error
        self._unflushed = None

    @property
    def staged_text(self) -> str | None:
        """The blocks that wait for the rest of their zip, in words."""
        count = sum(map(len, self._staged.values()))
        if not count:
            return None
        blocks = "1 block is" if count == 1 else f"{count:,} blocks are"
        _, numbers = zip_of(0, self._zip_digits)
        return f"{blocks} in {self._folder / STAGING}: a zip is written when its {len(numbers):,} are there"

    def write(self, block: Block) -> None:
        """Write one block.

        Raises:
            BlockFileError: it cannot be written, or an existing zip has another block of this number.
            OptionError: the layout has no name for so large a number.
        """
        if self._layout == "historic" and self._is_zipped(block):
            return
        path = self._folder / path_in(self._layout, block.number, self._format)
        self._make(path.parent)
        if self._unflushed != path.parent:  # flush each folder once, not for each block
            self.close()
            self._unflushed = path.parent
        write_block_file(path, block, is_flushed=self._is_flushed)
        if self._layout == "consensus":
            write_whole(path.with_name(marker_name(path.name)), b"", is_flushed=False)
        if self._layout == "historic":
            name, _ = zip_of(block.number, self._zip_digits)
            self._staged.setdefault(name, {})[block.number] = path
            self._zip_if_complete(name, block.number)

    def _make(self, folder: Path) -> None:
        """Make a folder, and flush the names of new ones."""
        if folder in self._made:
            return
        self._make(folder.parent)
        try:
            folder.mkdir(exist_ok=True)
            if self._is_flushed:
                sync_folder(folder.parent)
        except OSError as error:
            raise BlockFileError(str(folder), error.strerror or str(error)) from error
        self._made.add(folder)

    # --- historic -------------------------------------------------------------------------------------------

    def _find_staged(self) -> None:
        staging = self._folder / STAGING
        if not staging.is_dir():
            return
        for folder, names in LocalStore().walk(str(staging)):
            for file_name in names:
                path = Path(folder, file_name)
                number = number_of_parts(path.parts)
                if number is not None:
                    self._staged.setdefault(zip_of(number, self._zip_digits)[0], {})[number] = path
        for name in list(self._staged):
            self._zip_if_complete(name, next(iter(self._staged[name])))

    def _is_zipped(self, block: Block) -> bool:
        name, _ = zip_of(block.number, self._zip_digits)
        path = self._folder / name
        if self._zip is None or self._zip[0] != name:
            if not path.exists():
                return False
            self._zip = name, {place.number: place for place in blocks_in(path)}
        place = self._zip[1].get(block.number)
        if place is None:
            raise BlockFileError(
                str(path), f"has no block {block.number}, and a zip that is there is not changed"
            )
        with BlockFileReader(LocalStore()) as reader:
            if reader.read(place) != block:
                reason = f"another block {block.number} than the one that is to be written"
                raise BlockFileError(str(place), reason)
        return True

    def _zip_if_complete(self, name: str, number: int) -> None:
        """Make a zip of staged blocks when all are there, and remove them."""
        _, numbers = zip_of(number, self._zip_digits)
        staged = self._staged[name]
        if len(staged) < len(numbers):
            return
        path = self._folder / name
        temporary = path.with_name(f".{path.name}.part")
        self._make(path.parent)
        try:
            if not path.exists():
                with temporary.open("wb") as file:
                    write_zip(file, map(_member, sorted(staged.items())))
                    file.flush()
                    os.fsync(file.fileno())
                temporary.replace(path)
                sync_folder(path.parent)
            for block_path in staged.values():
                block_path.unlink(missing_ok=True)
                self._remove_empty(block_path.parent)
        except OSError as error:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise BlockFileError(str(path), error.strerror or str(error)) from error
        del self._staged[name]

    def _remove_empty(self, folder: Path) -> None:
        while folder != self._folder:
            try:
                folder.rmdir()
            except OSError:  # the next block is in it
                return
            self._made.discard(folder)
            self._unflushed = None if self._unflushed == folder else self._unflushed
            folder = folder.parent


def _member(staged: tuple[int, Path]) -> tuple[str, bytes]:
    number, path = staged
    _, blk, ending = path.name.partition(".blk")
    return member_name(number, blk + ending), path.read_bytes()
