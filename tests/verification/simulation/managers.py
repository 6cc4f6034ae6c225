"""A simulated operator who creates, rewinds and deletes a shared subscription and publishes its dead letters again."""

from __future__ import annotations

import json
from typing import Any

from book import NAME
from webclient import Client


class Manager(Client):
    """An operator who sends one change after another over HTTP, and repeats each one until it is answered."""

    def __init__(self, side: Any, name: str) -> None:
        super().__init__(side, name)
        self._create()

    def _create(self) -> None:
        """Create the subscription unless another change is under way."""
        if self.request is not None:
            self.later(0.5, self._create)
        else:
            body = json.dumps(self.side.creation()).encode()
            self.ask("PUT", f"/subscriptions/{NAME}", body, self._changed)

    def act(self) -> None:
        """Begin the next change, unless the last one has no answer yet."""
        if self.request is not None:
            return
        dice = self.world.random
        what = dice.choice(("rewind", "delete", "redrive", "redrive", "redrive"))
        if what == "rewind":
            body = json.dumps(self._rewind()).encode()
            self.ask("POST", f"/subscriptions/{NAME}/rewind", body, self._changed)
        elif what == "delete":
            self.ask("DELETE", f"/subscriptions/{NAME}", b"", self._deleted)
        else:
            self.ask("POST", f"/subscriptions/{NAME}/redrive", b"{}", self._changed)

    def _rewind(self) -> dict[str, Any]:
        """Return the target of a rewind: a number, the begin, the end, or a number for some of the streams."""
        dice, side = self.world.random, self.side
        ends = {stream: len(side.history.truth.get(stream, ())) for stream in side.streams}
        if side.pattern and dice.random() < 0.4:
            some = dice.sample(sorted(ends), dice.randint(1, len(ends)))
            return {"positions": {stream: dice.randint(0, ends[stream]) for stream in some}}
        return {"seq": dice.choice(("start", "latest", dice.randint(0, min(ends.values()))))}

    def _deleted(self, status: int, answer: Any) -> None:
        """Create the deleted subscription again later; workers over HTTP create it, too."""
        self._changed(status, answer)
        self.later(3 * self.world.random.random(), self._create)

    def _changed(self, status: int, answer: Any) -> None:
        """Accept a refusal: the subscription or a stream may not exist yet, or another change may be under way."""
        self.world.note(f"{self.name} is answered with {status}")
        if status not in (200, 204, 404, 409, 410) and "a position in stream" not in str(answer):
            self.side.history.wrong(f"{self.name}: a change is answered with {status}: {answer}")
