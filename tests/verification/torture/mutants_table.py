"""Bugs that a programmer might make, and that generated.py does not make by itself: it plants these beside its own."""

from __future__ import annotations

#: Bugs by file: the name of each, a text that occurs once in the file, and the text that replaces it.
PLANTED: dict[str, tuple[tuple[str, str, str], ...]] = {
    "fyrehose/journal/writer.py": (
        (
            "a failed sync is tried again",
            "            raise self._failure\n\n    def close(",
            "            self._failure = None\n\n    def close(",
        ),
        (
            "a commit follows a failed sync",
            "            raise self._failure\n        self.time, self._clock",
            "            self._failure = None\n        self.time, self._clock",
        ),
        (
            "the time goes back",
            "self.time, self._clock = max(self.time, time), clock",
            "self.time, self._clock = time, clock",
        ),
        (
            "the chain is not carried on",
            "position, checksum = header.end, header.checksum\n",
            "position = header.end\n",
        ),
        (
            "the mark is ahead",
            "scan.pack_mark(self.marked, self._begin",
            "scan.pack_mark(self.marked + 64, self._begin",
        ),
    ),
    "fyrehose/kernels/pure/commit.py": (
        (
            "every 1,000th sync is skipped",
            "        calls.sync(segment)\n",
            "        if checksum % 1000:\n            calls.sync(segment)\n",
        ),
        ("a commit writes into a deleted segment", "        if calls.is_linked(segment):\n", "        if True:\n"),
        ("the mark of a commit is ahead", "_mark(position + len(head)", "_mark(position + 64 + len(head)"),
    ),
    "fyrehose/journal/journal.py": (
        (
            "the publisher hears before the readers",
            "            self._observer.durable(ends)\n        settle(commit.items)\n",
            "            settle(commit.items)\n            self._observer.durable(ends)\n",
        ),
        (
            "closing waits for room for ever",
            "            if self._idle is not None:  # It cannot wait for room while it is being closed.\n",
            "            if False:\n",
        ),
        (
            "a full disk is a failed one",
            "        if failure.check(NoRoom):\n            self._room",
            "        if False:\n            self._room",
        ),
        (
            "retirements are accepted when read-only",
            "            return fail(refusal)\n        done",
            "            pass\n        done",
        ),
    ),
    "fyrehose/journal/commit.py": (
        (
            "what has no room comes behind what came later",
            "            self.waiting.put_back(items)\n            items, size = [], 0\n",
            "            [self.waiting.arrived.append(item) for item in items]\n            items, size = [], 0\n",
        ),
        (
            "a commit is passed on although the journal ends",
            "            if not self.stopped:\n                self.synced(commit)\n",
            "            self.synced(commit)\n",
        ),
        ("the journal's time goes back", "        accepted = max(writer.time, clock)\n", "        accepted = clock\n"),
    ),
    "fyrehose/journal/waiting.py": (
        (
            "publishes overtake a retirement",
            "        while arrived and not arrived[0].retires:\n",
            "        while arrived and (not items or not arrived[0].retires):\n",
        ),
        (
            "a commit is first come, first served",
            "        if not self.left and (size <= most or len(items) == 1):\n",
            "        if items:\n",
        ),
    ),
    "fyrehose/journal/format.py": (
        (
            "the checksum of a large body is not looked at",
            "if crc32c(body, self.chain) != self.checksum:",
            "if len(body) <= 65536 and crc32c(body, self.chain) != self.checksum:",
        ),
        ("an entry is not padded", "name + PADDING[-len(name) % 8]", "name + bytes(8 - len(name) % 8)"),
    ),
    "fyrehose/journal/packing.py": (
        ("checksums are not chained", "    length, checksum = 0, chain\n", "    length, checksum = 0, 0\n"),
    ),
    "fyrehose/journal/recovery.py": (
        ("a missing segment is not noticed", "    if segment.end < next_base:\n", "    if False:\n"),
    ),
    "fyrehose/broker/sequencer.py": (
        (
            "numbers begin at 0",
            "run.first_seq, run.last_seq = end + 1, end + count",
            "run.first_seq, run.last_seq = end, end + count - 1",
        ),
        ("numbers wrap", "if end + count > LAST_SEQ:", "if end > LAST_SEQ:"),
    ),
    "fyrehose/broker/publisher.py": (
        (
            "a publish is told at once",
            "        broker.journal.submit(publish)\n",
            "        self.settle((publish,))\n        broker.journal.submit(publish)\n",
        ),
    ),
    "fyrehose/broker/broker.py": (
        (
            "a refused publish leaves its streams",
            'that is refused."""\n        for stream in streams:\n',
            'that is refused."""\n        for stream in ():\n',
        ),
    ),
    "fyrehose/protocols/figg/session.py": (
        ("figg: a frame one byte too large is taken", "if data > self.max_payload:", "if data > self.max_payload + 1:"),
    ),
    "fyrehose/kernels/pure/figg.py": (
        (
            "figg: the twin reads one byte too few",
            "yield stop, bytes(buffer[start",
            "yield stop - 1, bytes(buffer[start",
        ),
    ),
    "fyrehose/protocols/lumberjack/session.py": (
        (
            "lumberjack: a server that stops reads another window",
            "        if self.ending and self._inflation is None:",
            "        if False:",
        ),
        (
            "lumberjack: a compressed frame may end within a frame",
            '            raise RemoteProtocolError("partial-frame", "a compressed frame ends within a frame")',
            "            self._inflation = None",
        ),
    ),
    "fyrehose/protocols/lumberjack/ledger.py": (
        (
            "lumberjack: a record of another stream counts as the original",
            "blake2b(stream.encode(), key",
            "blake2b(key",
        ),
    ),
    "fyrehose/protocols/lumberjack/windows.py": (
        ("lumberjack: version 1 is told 0", "[(2, 0)] if version == 2 else []", "[(version, 0)]"),
    ),
    "fyrehose/protocols/backbone/subscribers.py": (
        ("backbone: the silent are kept", "if now - client.last <= ALIVE:", "if now - client.last <= ALIVE + 1:"),
        (
            "backbone: journals are no subscribers",
            "return [(at, client) for at, client in clients if not client.flags & _NOSUBSCRIBE]",
            "return [(at, client) for at, client in clients if not client.flags & _NOJOURNAL]",
        ),
        ("backbone: many KEEPALIVEs at once raise the allowance", "if now - self._raised >= INTERVAL:", "if True:"),
    ),
    "fyrehose/protocols/backbone/session.py": (
        ("backbone: nobody is trusted", "trusted = in_networks(source[0], self._settings.trusted)", "trusted = False"),
        (
            "backbone: a REQUEST asks for too much",
            "last = min(frame.last, newest, first + MAX_SEQUENCES - 1)",
            "last = min(frame.last, newest)",
        ),
    ),
    "fyrehose/broker/guard.py": (
        (
            "a reload keeps verdicts on administering",
            "        for verdicts in self.verdicts.values():\n            verdicts.clear()\n",
            (
                "        for action, verdicts in self.verdicts.items():\n"
                "            if action is not Action.ADMINISTER:\n"
                "                verdicts.clear()\n"
            ),
        ),
    ),
    "fyrehose/subscriptions/exclusive.py": (
        (
            "an acknowledgement that waits is answered before it is written",
            "return self.when_durable(self.appended + bool(self._wanted))",
            "return self.when_durable()",
        ),
    ),
    "fyrehose/subscriptions/table.py": (
        (
            "a checkpoint omits subscriptions with a consumer",
            "() if each.gone else progress.pack_whole(",
            "() if each.gone or getattr(each, 'consumer', None) else progress.pack_whole(",
        ),
    ),
    "fyrehose/spark/lake.py": (
        (
            "the lake's progress is compared by its position only",
            "            if self.progress(identity) != before:\n",
            (
                "            present = self.progress(identity)\n"
                "            if (present and present.position) != (before and before.position):\n"
            ),
        ),
    ),
    "fyrehose/cluster/member.py": (
        (
            "a leader is as current as the answer, not the question",
            "self._appends.looked(self.role, asked, extent.last)",
            "self._appends.looked(self.role, self.reactor.seconds(), extent.last)",
        ),
    ),
    "fyrehose/cluster/succession.py": (
        (
            "a server that is behind takes over from a leader that hands over",
            '"" if lag is not None and lag <= BEHIND_S else "it is behind"',
            '""',
        ),
        (
            "a disk that is slow once is slow for good",
            "self._slow_looks + 1 if took >= SLOW_S else 0",
            "self._slow_looks + (took >= SLOW_S)",
        ),
    ),
    "fyrehose/cluster/leader_watch.py": (
        (
            "a leader that was missed once stays gone",
            "self._gone = None if connected else leader",
            "self._gone = self._gone if connected else leader",
        ),
    ),
    "fyrehose/net/tls.py": (
        (
            "applying new certificates reads them again",
            "            self.settings, self.files = settings, files\n",
            "            self.settings, self.files = settings, settings.read(self.protocol)\n",
        ),
    ),
    "fyrehose/server/reloading.py": (
        (
            "a reload without other options reads no certificate",
            "        if changing:\n            prepared",
            "        if changing and now != then:\n            prepared",
        ),
    ),
    "fyrehose/routes.py": (
        ("Lumberjack: a route has two keys at most", 'in field.split("."))', 'in field.split(".", 1))'),
    ),
    "fyrehose/protocols/relink/channels.py": (
        (
            "Relink: numbers of forgotten messages do not wrap",
            "last = self.dec + 1 if number is None else nearest(number, self.dec)\n",
            "last = self.dec + 1 if number is None else number\n",
        ),
    ),
    "fyrehose/identity.py": (("two tokens that are no UTF-8 are one", 'errors="surrogateescape"', 'errors="ignore"'),),
    "fyrehose/jsontext.py": (
        (
            "lone surrogates in JSON of peers are accepted",
            "json.dumps(found, ensure_ascii=False).encode()",
            'json.dumps(found, ensure_ascii=False).encode(errors="ignore")',
        ),
    ),
    "fyrehose/protocols/lumberjack/columns.py": (
        (
            "Lumberjack: lone surrogates in topics vanish",
            "size = len(topic.encode())",
            'size = len((topic := topic.encode(errors="ignore").decode()).encode())',
        ),
    ),
}
