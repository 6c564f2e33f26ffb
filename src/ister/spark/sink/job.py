"""A batch job as an origin: begun by its driver, committed once, swept if nobody ends it."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from datetime import UTC, datetime

import ister
from ister.client.log import Log
from ister.errors import IsterError, StaleBatch
from ister.spark.options import WriteOptions
from ister.spark.sink.committing import Committer
from ister.spark.sink.failpoints import reach_of_environment
from ister.spark.sink.ledger import Decided
from ister.spark.sink.origin import Origin, make_stage
from ister.spark.sink.staging import Staged
from ister.spark.sink.sweeping import sweep

log = logging.getLogger("ister.spark")


@dataclass(frozen=True)
class Job:
    bootstrap: str
    origin: Origin
    application: str | None
    version: int
    is_done: bool
    """This version of the application was committed before: there is nothing to write."""

    @classmethod
    def begin(cls, options: WriteOptions) -> Job:
        """Make the stage. Only the driver does: a task that outlives its job must not bring it back."""
        return asyncio.run(_begin(options))

    def commit(self, staged: list[Staged]) -> dict[str, int]:
        """Returns how many records each topic got."""
        return asyncio.run(self._commit(staged))

    def abort(self, *, was_committing: bool) -> None:
        """`was_committing`: a commit was tried, and failed. It may have been decided, and then it holds."""
        asyncio.run(self._abort(was_committing))

    async def _abort(self, was_committing: bool) -> None:
        async with ister.connect(self.bootstrap) as found:
            committer = Committer(found, self.origin)
            # An application's ledger stays, and may yet get a manifest that is on its way: so does the stage
            if not was_committing or (self.application is None and await committer.newest() is None):
                await committer.drop()
                return
        log.warning("the commit failed; what of it was decided is finished with the next job that is written")

    async def _commit(self, staged: list[Staged]) -> dict[str, int]:
        reach = reach_of_environment()
        async with ister.connect(self.bootstrap) as found:
            committer = Committer(found, self.origin, reach)
            counts: dict[str, int] = {}
            if self.is_done:
                self._say_skipped()
            else:
                try:
                    done = await committer.commit(self.version, staged, self.application or "")
                    counts = done.counts
                    if done.is_repeated:
                        self._say_skipped()
                        counts = {}
                except StaleBatch:
                    if self.application is None:
                        raise
                    self._say_skipped()
            await reach("committed")
            await _tidy(found, committer)
        return counts

    def _say_skipped(self) -> None:
        log.warning(
            "version %d of %s or a newer one was committed before: nothing was written now",
            self.version,
            self.application,
        )


async def _begin(options: WriteOptions) -> Job:
    application, version = options.application, options.version
    origin = Origin.of_job() if application is None else Origin.of_application(application)
    async with ister.connect(options.bootstrap) as found:
        newest = None if application is None else await Committer(found, origin).newest()
        is_done = _covers(newest, version)
        if not is_done:
            await make_stage(found, origin.stage)
    return Job(options.bootstrap, origin, application, version, is_done)


def _covers(newest: Decided | None, version: int) -> bool:
    if newest is None:
        return False
    batch = newest.manifest.batch
    return batch > version or (batch == version and newest.done is not None)


async def _tidy(found: Log, committer: Committer) -> None:
    """The job is committed: what goes wrong from here on must not make it fail, and be run again."""
    try:
        await committer.drop()
        await sweep(found, datetime.now(UTC))
    except IsterError as error:
        log.warning("the job is committed; tidying up behind it failed: %s", error.message)
