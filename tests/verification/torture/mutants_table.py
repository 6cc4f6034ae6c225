"""Bugs that a programmer might make, and that generated.py does not make, in codecs, journal and broker."""

from __future__ import annotations

import attrs


@attrs.frozen
class Mutant:
    """A bug: ``new`` replaces ``old``, which occurs once in ``file``; one of ``tests`` has to fail."""

    name: str
    file: str
    old: str
    new: str
    tests: str


_WRITER = "fyrehose/journal/writer.py"
_COMMIT = "fyrehose/kernels/pure/commit.py"
_JOURNAL = "fyrehose/journal/journal.py"
_FORMAT = "fyrehose/journal/format.py"
_RECOVERY = "fyrehose/journal/recovery.py"
_BROKER = "fyrehose/broker/broker.py"
_PUBLISHER = "fyrehose/broker/publisher.py"
_EXCLUSIVE = "fyrehose/subscriptions/exclusive.py"
_TESTS_JOURNAL = "tests/journal/test_writer.py tests/journal/test_journal.py tests/conformance/test_journal.py"
_TESTS_FORMAT = "tests/journal/test_format.py tests/journal/test_recovery.py"
_TESTS_RECOVERY = "tests/journal/test_recovery.py tests/journal/test_writer.py"
_TESTS_BROKER = "tests/broker/test_broker.py tests/conformance/test_broker.py"
_SUBSCRIBERS = "fyrehose/protocols/backbone/subscribers.py"
_WINDOWS = "fyrehose/protocols/lumberjack/windows.py"
_RESENT = "fyrehose/protocols/lumberjack/resent.py"
_TESTS_RESENT = "tests/protocols/lumberjack/test_resent.py"

MUTANTS = (
    # The journal: writing.
    Mutant(
        "a failed sync is tried again",
        _WRITER,
        "            raise self._failure\n\n    def close(",
        "            self._failure = None\n\n    def close(",
        _TESTS_JOURNAL,
    ),
    Mutant(
        "a commit follows a failed sync",
        _WRITER,
        "            raise self._failure\n        self.time, self._clock",
        "            self._failure = None\n        self.time, self._clock",
        _TESTS_JOURNAL,
    ),
    Mutant(
        "the time goes back",
        _WRITER,
        "self.time, self._clock = max(self.time, time), clock",
        "self.time, self._clock = time, clock",
        _TESTS_JOURNAL,
    ),
    Mutant(
        "the chain is not carried on",
        _WRITER,
        "position, checksum = header.end, header.checksum\n",
        "position = header.end\n",
        _TESTS_JOURNAL,
    ),
    Mutant(
        "the mark is ahead",
        _WRITER,
        "scan.pack_mark(self.marked, self._begin",
        "scan.pack_mark(self.marked + 64, self._begin",
        _TESTS_JOURNAL,
    ),
    Mutant(
        "every 1,000th sync is skipped",
        _COMMIT,
        "        calls.sync(segment)\n",
        "        if checksum % 1000:\n            calls.sync(segment)\n",
        "tests/journal/test_syncs.py",
    ),
    Mutant(
        "a commit writes into a deleted segment",
        _COMMIT,
        "        if calls.is_linked(segment):\n",
        "        if True:\n",
        _TESTS_JOURNAL + " tests/kernels/test_commit.py",
    ),
    Mutant(
        "the mark of a commit is ahead",
        _COMMIT,
        "_mark(position + len(head)",
        "_mark(position + 64 + len(head)",
        _TESTS_JOURNAL + " tests/kernels/test_commit.py",
    ),
    # The journal: its states.
    Mutant(
        "the publisher hears before the readers",
        _JOURNAL,
        "            self._observer.durable(ends)\n        settle(commit.items)\n",
        "            settle(commit.items)\n            self._observer.durable(ends)\n",
        _TESTS_JOURNAL + " " + _TESTS_BROKER,
    ),
    Mutant(
        "what has no room comes behind what came later",
        "fyrehose/journal/commit.py",
        "            self.waiting.put_back(items)\n            items, size = [], 0\n",
        "            [self.waiting.arrived.append(item) for item in items]\n            items, size = [], 0\n",
        _TESTS_JOURNAL + " tests/journal/test_commit.py",
    ),
    Mutant(
        "publishes overtake a retirement",
        "fyrehose/journal/waiting.py",
        "        while arrived and not arrived[0].retires:\n",
        "        while arrived and (not items or not arrived[0].retires):\n",
        "tests/journal/test_waiting.py tests/journal/test_commit.py",
    ),
    Mutant(
        "a commit is first come, first served",
        "fyrehose/journal/waiting.py",
        "        if not self.left and (size <= most or len(items) == 1):\n",
        "        if items:\n",
        "tests/journal/test_waiting.py",
    ),
    Mutant(
        "a commit is passed on although the journal ends",
        "fyrehose/journal/commit.py",
        "            if not self.stopped:\n                self.synced(commit)\n",
        "            self.synced(commit)\n",
        "tests/journal/test_commit.py",
    ),
    Mutant(
        "closing waits for room for ever",
        _JOURNAL,
        "            if self._idle is not None:  # It cannot wait for room while it is being closed.\n",
        "            if False:\n",
        _TESTS_JOURNAL,
    ),
    Mutant(
        "a full disk is a failed one",
        _JOURNAL,
        "        if failure.check(NoRoom):\n            self._room",
        "        if False:\n            self._room",
        _TESTS_JOURNAL,
    ),
    Mutant(
        "retirements are accepted when read-only",
        _JOURNAL,
        "            return fail(refusal)\n        done",
        "            pass\n        done",
        _TESTS_JOURNAL,
    ),
    Mutant(
        "the journal's time goes back",
        "fyrehose/journal/commit.py",
        "        accepted = max(writer.time, clock)\n",
        "        accepted = clock\n",
        _TESTS_JOURNAL,
    ),
    # The journal: its format.
    Mutant(
        "the checksum of a large body is not looked at",
        _FORMAT,
        "if crc32c(body, self.chain) != self.checksum:",
        "if len(body) <= 65536 and crc32c(body, self.chain) != self.checksum:",
        "tests/journal/test_large_batches.py",
    ),
    Mutant(
        "checksums are not chained",
        "fyrehose/journal/packing.py",
        "    length, checksum = 0, chain\n",
        "    length, checksum = 0, 0\n",
        _TESTS_FORMAT,
    ),
    Mutant(
        "an entry is not padded",
        _FORMAT,
        "name + PADDING[-len(name) % 8]",
        "name + bytes(8 - len(name) % 8)",
        _TESTS_FORMAT,
    ),
    # The journal: recovery.
    Mutant(
        "a missing segment is not noticed",
        _RECOVERY,
        "    if segment.end < next_base:\n",
        "    if False:\n",
        _TESTS_RECOVERY,
    ),
    # The broker.
    Mutant(
        "numbers begin at 0",
        "fyrehose/broker/sequencer.py",
        "run.first_seq, run.last_seq = end + 1, end + count",
        "run.first_seq, run.last_seq = end, end + count - 1",
        "tests/broker/test_sequencer.py",
    ),
    Mutant(
        "numbers wrap",
        "fyrehose/broker/sequencer.py",
        "if end + count > LAST_SEQ:",
        "if end > LAST_SEQ:",
        "tests/broker/test_sequencer.py",
    ),
    Mutant(
        "the floor is forgotten",
        "fyrehose/broker/sequencer.py",
        "self._floor = floor",
        "self._floor = 0",
        "tests/broker/test_sequencer.py",
    ),
    Mutant(
        "a publish is told at once",
        _PUBLISHER,
        "        broker.journal.submit(publish)\n",
        "        self.settle((publish,))\n        broker.journal.submit(publish)\n",
        _TESTS_BROKER,
    ),
    Mutant(
        "a refused publish leaves its streams",
        _BROKER,
        'that is refused."""\n        for stream in streams:\n',
        'that is refused."""\n        for stream in ():\n',
        _TESTS_BROKER,
    ),
    Mutant(
        "a subscription begins one too late",
        _BROKER,
        "last if after is None else max(after, oldest - 1)",
        "last if after is None else max(after, oldest)",
        _TESTS_BROKER,
    ),
    # The codecs.
    Mutant(
        "figg: a frame one byte too large is taken",
        "fyrehose/protocols/figg/session.py",
        "if data > self.max_payload:",
        "if data > self.max_payload + 1:",
        "tests/protocols/figg/test_session.py",
    ),
    Mutant(
        "figg: the twin reads one byte too few",
        "fyrehose/kernels/pure/figg.py",
        "yield stop, bytes(buffer[start",
        "yield stop - 1, bytes(buffer[start",
        "tests/protocols/figg/test_session.py",
    ),
    Mutant(
        "lumberjack: a server that stops reads another window",
        "fyrehose/protocols/lumberjack/session.py",
        "        if self.ending and self._inflation is None:",
        "        if False:",
        "tests/protocols/lumberjack/test_server.py",
    ),
    Mutant(
        "lumberjack: a repetition is acknowledged without its original",
        _RESENT,
        "            if not turn.originals:\n",
        "            if True:\n",
        _TESTS_RESENT,
    ),
    Mutant(
        "lumberjack: a record of another stream counts as the original",
        "fyrehose/protocols/lumberjack/ledger.py",
        "blake2b(stream.encode(), key",
        "blake2b(key",
        _TESTS_RESENT,
    ),
    Mutant(
        "lumberjack: version 1 is told 0",
        _WINDOWS,
        "[(2, 0)] if version == 2 else []",
        "[(version, 0)]",
        "tests/protocols/lumberjack/test_windows.py tests/protocols/lumberjack/test_server.py",
    ),
    Mutant(
        "lumberjack: a compressed frame may end within a frame",
        "fyrehose/protocols/lumberjack/session.py",
        '            raise RemoteProtocolError("partial-frame", "a compressed frame ends within a frame")',
        "            self._inflation = None",
        "tests/protocols/lumberjack/test_session.py",
    ),
    Mutant(
        "backbone: the silent are kept",
        _SUBSCRIBERS,
        "if now - client.last <= ALIVE:",
        "if now - client.last <= ALIVE + 1:",
        "tests/protocols/backbone/test_subscribers.py tests/protocols/backbone/test_session_server.py",
    ),
    Mutant(
        "backbone: journals are no subscribers",
        _SUBSCRIBERS,
        "return [(at, client) for at, client in clients if not client.flags & _NOSUBSCRIBE]",
        "return [(at, client) for at, client in clients if not client.flags & _NOJOURNAL]",
        "tests/protocols/backbone/test_subscribers.py",
    ),
    Mutant(
        "backbone: many KEEPALIVEs at once raise the allowance",
        _SUBSCRIBERS,
        "if now - self._raised >= INTERVAL:",
        "if True:",
        "tests/protocols/backbone/test_session_server.py",
    ),
    Mutant(
        "backbone: nobody is trusted",
        "fyrehose/protocols/backbone/session.py",
        "trusted = in_networks(source[0], self._settings.trusted)",
        "trusted = False",
        "tests/protocols/backbone/test_session_server.py",
    ),
    Mutant(
        "backbone: a REQUEST asks for too much",
        "fyrehose/protocols/backbone/session.py",
        "last = min(frame.last, newest, first + MAX_SEQUENCES - 1)",
        "last = min(frame.last, newest)",
        "tests/protocols/backbone/test_session_server.py",
    ),
    # Bugs that other people tried, and that no test noticed.
    Mutant(
        "a reload keeps verdicts on administering",
        "fyrehose/broker/guard.py",
        "        for verdicts in self.verdicts.values():\n            verdicts.clear()\n",
        "        for action, verdicts in self.verdicts.items():\n"
        "            if action is not Action.ADMINISTER:\n"
        "                verdicts.clear()\n",
        "tests/broker/test_guard.py",
    ),
    Mutant(
        "an acknowledgement that waits is answered before it is written",
        _EXCLUSIVE,
        "return self.when_durable(self.appended + bool(self._wanted))",
        "return self.when_durable()",
        "tests/verification/consumers/test_exclusives.py",
    ),
    Mutant(
        "a checkpoint omits subscriptions with a consumer",
        "fyrehose/subscriptions/table.py",
        "() if each.gone else progress.pack_whole(",
        "() if each.gone or getattr(each, 'consumer', None) else progress.pack_whole(",
        "tests/verification/consumers/test_exclusives.py",
    ),
    Mutant(
        "the lake's progress is compared by its position only",
        "fyrehose/spark/lake.py",
        "            if self.progress(identity) != before:\n",
        "            present = self.progress(identity)\n"
        "            if (present and present.position) != (before and before.position):\n",
        "tests/spark/test_lake.py",
    ),
    # Bugs of values that nobody acted on, of deep inputs, and of calls whose answers take time.
    Mutant(
        "a leader is as current as the answer, not the question",
        "fyrehose/cluster/member.py",
        "self._appends.looked(self.role, asked, extent.last)",
        "self._appends.looked(self.role, self.reactor.seconds(), extent.last)",
        "tests/cluster/test_member.py",
    ),
    Mutant(
        "a server that is behind takes over from a leader that hands over",
        "fyrehose/cluster/succession.py",
        '"" if lag is not None and lag <= BEHIND_S else "it is behind"',
        '""',
        "tests/cluster/test_succession.py",
    ),
    Mutant(
        "a disk that is slow once is slow for good",
        "fyrehose/cluster/succession.py",
        "self._slow_looks + 1 if took >= SLOW_S else 0",
        "self._slow_looks + (took >= SLOW_S)",
        "tests/cluster/test_succession.py",
    ),
    Mutant(
        "a leader that was missed once stays gone",
        "fyrehose/cluster/leader_watch.py",
        "self._gone = None if connected else leader",
        "self._gone = self._gone if connected else leader",
        "tests/cluster/test_leader_watch.py",
    ),
    Mutant(
        "applying new certificates reads them again",
        "fyrehose/net/tls.py",
        "            self.settings, self.files = settings, files\n",
        "            self.settings, self.files = settings, settings.read(self.protocol)\n",
        "tests/net/test_tls.py",
    ),
    Mutant(
        "a reload without other options reads no certificate",
        "fyrehose/server/reloading.py",
        "        if changing:\n            prepared",
        "        if changing and now != then:\n            prepared",
        "tests/server/test_reloading.py",
    ),
    Mutant(
        "Lumberjack: a route has two keys at most",
        "fyrehose/routes.py",
        'in field.split("."))',
        'in field.split(".", 1))',
        "tests/conformance/test_awkward.py",
    ),
    Mutant(
        "Relink: numbers of forgotten messages do not wrap",
        "fyrehose/protocols/relink/channels.py",
        "last = self.dec + 1 if number is None else nearest(number, self.dec)\n",
        "last = self.dec + 1 if number is None else number\n",
        "tests/protocols/relink/test_session.py",
    ),
    Mutant(
        "two tokens that are no UTF-8 are one",
        "fyrehose/identity.py",
        'errors="surrogateescape"',
        'errors="ignore"',
        "tests/conformance/test_awkward.py",
    ),
    Mutant(
        "lone surrogates in JSON of peers are accepted",
        "fyrehose/jsontext.py",
        "json.dumps(found, ensure_ascii=False).encode()",
        'json.dumps(found, ensure_ascii=False).encode(errors="ignore")',
        "tests/conformance/test_awkward.py",
    ),
    Mutant(
        "Lumberjack: lone surrogates in topics vanish",
        "fyrehose/protocols/lumberjack/columns.py",
        "size = len(topic.encode())",
        'size = len((topic := topic.encode(errors="ignore").decode()).encode())',
        "tests/conformance/test_awkward.py",
    ),
)
