"""Tests of `gateway.workers.begun`: a coroutine that runs to its first wait at once, and is awaited later."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable

import pytest
import uvloop

from gateway.workers.begun import Begun


@pytest.mark.parametrize("run", [uvloop.run, asyncio.run])
@pytest.mark.parametrize("wait_before", [0, 3])
def test_it_begins_at_once_and_gives_its_result(run: Callable[..., None], wait_before: int) -> None:
    async def main() -> None:
        steps: list[str] = []
        gate = asyncio.get_running_loop().create_future()

        async def work() -> str:
            steps.append("begun")
            steps.append(await gate)
            await asyncio.sleep(0)  # waits more than once, also for nothing in particular
            await asyncio.sleep(0.001)
            return "result"

        begun = Begun(work())
        assert steps == ["begun"]
        asyncio.get_running_loop().call_soon(gate.set_result, "gone on")
        for _ in range(wait_before):
            await asyncio.sleep(0)
        assert gate.done() == bool(wait_before)
        assert await begun == "result"
        assert steps == ["begun", "gone on"]

    run(main())


def test_a_result_or_an_error_without_any_wait_comes_when_it_is_awaited() -> None:
    async def work(fails: bool) -> int:
        if fails:
            raise LookupError("nothing there")
        return 7

    async def main() -> None:
        begun, failing = Begun(work(False)), Begun(work(True))
        assert await begun == 7
        with pytest.raises(LookupError, match=r"^nothing there$"):
            await failing

    asyncio.run(main())


def test_an_error_of_what_it_waits_for_comes_through() -> None:
    async def main() -> None:
        gate = asyncio.get_running_loop().create_future()

        async def work() -> str:
            try:
                await gate
            except LookupError as error:
                return f"caught {error.args[0]}"
            raise AssertionError

        begun = Begun(work())
        gate.set_exception(LookupError("it"))
        assert await begun == "caught it"

    asyncio.run(main())


def test_a_cancelled_task_cancels_what_it_waits_for() -> None:
    async def main() -> None:
        gate = asyncio.get_running_loop().create_future()
        ended: list[str] = []

        async def work() -> None:
            try:
                await gate
            except asyncio.CancelledError:
                ended.append("cancelled")
                raise

        async def wait() -> None:
            await Begun(work())

        task = asyncio.ensure_future(wait())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ended == ["cancelled"]
        assert gate.cancelled()

    asyncio.run(main())


def test_what_is_closed_ends_where_it_stands() -> None:
    async def main() -> None:
        gate = asyncio.get_running_loop().create_future()
        ended: list[str] = []

        async def work() -> None:
            try:
                await gate
            finally:
                ended.append("closed")

        begun = Begun(work())
        begun.close()
        assert ended == ["closed"]
        gate.set_result(None)  # nobody minds
        begun.close()
        assert ended == ["closed"]

    asyncio.run(main())


@pytest.mark.parametrize("fails_before", [False, True])
def test_nobody_is_told_of_an_error_behind_what_was_closed(fails_before: bool) -> None:
    """The soak found it: an answer that was given up, since its publisher was gone, was logged."""
    told: list[dict[str, object]] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: told.append(context))

        async def play() -> None:
            gate = loop.create_future()

            async def work() -> None:
                await gate

            begun = Begun(work())
            if fails_before:
                gate.set_exception(ConnectionResetError("gone"))
            begun.close()
            if not fails_before:
                gate.set_exception(ConnectionResetError("gone"))
            await asyncio.sleep(0)

        await play()
        gc.collect()
        await asyncio.sleep(0)

    asyncio.run(main())
    assert told == []


def test_a_task_may_wait_for_the_rest() -> None:
    async def main() -> None:
        gate = asyncio.get_running_loop().create_future()

        async def work() -> str:
            return str(await gate)

        rest = asyncio.ensure_future(Begun(work()).rest())
        await asyncio.sleep(0)
        assert not rest.done()
        gate.set_result("result")
        assert await rest == "result"

    asyncio.run(main())
