"""Run the jobs of a member, such as reading the shared log: of each name at most one at a time.

begin("read", job) -> the job runs, unless the last one of this name is still under way
                   -> Unavailable: the shared log does not answer at present; any other failure: the end
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import attrs
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from fyrehose.cluster.shared_log import Unavailable


@attrs.define(eq=False)
class Jobs:
    """The jobs that are under way.  No two of one name run at the same time, and no failure of a job is lost.

    :ivar on_unavailable: called with why the shared log is unavailable, if that has ended a job
    :ivar on_failed: called with any other failure of a job
    """

    on_unavailable: Callable[[str], object]
    on_failed: Callable[[Failure], object]
    _busy: set[str] = attrs.field(factory=set, init=False)
    _waiting: dict[str, list[Deferred[None]]] = attrs.field(factory=dict, init=False)

    def begin(self, name: str, job: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Begin *job*, unless the job with this *name* is under way already."""
        if name in self._busy:
            return
        self._busy.add(name)
        Deferred.fromCoroutine(job()).addBoth(self._ended, name).addErrback(self.on_failed)

    async def over(self, name: str) -> None:
        """Wait until no job with this *name* is under way."""
        if name in self._busy:
            waiting: Deferred[None] = Deferred()
            self._waiting.setdefault(name, []).append(waiting)
            await waiting

    def _ended(self, result: Any, name: str) -> Any:
        self._busy.discard(name)
        for waiting in self._waiting.pop(name, ()):
            waiting.callback(None)
        if isinstance(result, Failure) and result.check(Unavailable):
            self.on_unavailable(str(result.value))
            return None
        return result
