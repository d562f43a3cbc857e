"""Every module is in a room, imports lead down, and the picture is current."""

from __future__ import annotations

from tests.rooms import FLOORS, ROOT, arrows, picture
from tests.test_tidy import PACKAGES, expect_none, python_files

HEIGHT = {
    (package, room): (-number, -floor_number)
    for number, (package, floors) in enumerate(FLOORS.items())
    for floor_number, floor in enumerate(floors)
    for room in floor
}


def test_every_folder_is_a_room() -> None:
    paths = python_files(*PACKAGES)
    folders = {tuple(path.split("/")[:2]) for path in paths if path.count("/") > 1}
    assert folders | {(package, "root") for package in FLOORS} == set(HEIGHT) - {("gateway", "api")}


def test_no_arrow_leads_up() -> None:
    """So there is no circle."""
    assert len(arrows()) > 100
    expect_none(
        f"{place}: {'/'.join(here)} imports {'/'.join(there)}, which is not on a floor below it"
        for (here, there), places in arrows().items()
        for place in places
        if HEIGHT[here] <= HEIGHT[there]
    )


def test_tests_are_in_the_rooms_of_what_they_test() -> None:
    """Tests of a whole package are beside its rooms; tests of several packages in tests/interop."""
    expect_none(
        f"{path}:1: {package} has no room {room}"
        for path in python_files("tests")
        if path.split("/")[1] in PACKAGES and path.count("/") > 2
        for package, room in [path.split("/")[1:3]]
        if (package, room) not in HEIGHT
    )


def test_the_picture_is_the_house() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    assert picture() in page, "docs/architecture.md is stale: python -m tests.rooms prints its picture"


def test_every_room_is_on_the_map_of_its_package() -> None:
    expect_none(
        f"{package}/README.md:1: the room {room} is not on it"
        for package, room in HEIGHT
        if room != "root" and f"| `{room}/` |" not in (ROOT / package / "README.md").read_text("utf-8")
    )
