"""Change the configuration of a running server: make all changes that need no restart, or none if one of them fails.

    the configuration in force, the files now -> differences
    -> read every file, open new listeners (each may fail: then nothing has changed)
    -> apply the rest (cannot fail), close listeners -> a ReloadAnswer

An option that needs a restart keeps its value, and the answer names it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import attrs
from twisted.internet.defer import Deferred
from twisted.logger import Logger

from fyrehose.errors import FyrehoseError
from fyrehose.file_content import FileContent
from fyrehose.interfaces import IReloading
from fyrehose.options import counted, shown_value, typed
from fyrehose.server.config import Config, ListenerConfig
from fyrehose.server.listeners import Open, check_guarded, key_of
from fyrehose.server.reload_answer import ReloadAnswer
from fyrehose.server.stack import Stack

log = Logger()

#: Options that a reload changes, by scope; the others need a restart.
CHANGEABLE: dict[str, tuple[str, ...]] = {
    "journal": ("keep_bytes", "keep_age", "subscription_timeout", "subscription_bytes", "min_free"),
    "server": (
        "max_streams",
        "streams_per_address",
        "subscriptions_per_address",
        "named_subscriptions",
        "keys_kept",
        "retire_idle",
        "drain",
    ),
}
#: Parts of a configuration that need a restart.
FIXED_PARTS = ("data_dir", "log_format", "replication")
#: Files that are read again for each connection to NATS, or to another server's journal.
READ_AGAIN = ("replication.credentials", "replication.password-file", "replication.token-file")


@attrs.define(eq=False)
class _Plan:
    """The steps that one reload will take: what to change, open and close, and the lines to report."""

    changed: list[str] = attrs.field(factory=list)
    restart: list[str] = attrs.field(factory=list)
    #: Functions that each apply a part of the new configuration, and cannot fail.
    apply: list[Callable[[], object]] = attrs.field(factory=list)
    opening: list[tuple[ListenerConfig, Any]] = attrs.field(factory=list)
    closing: list[Open] = attrs.field(factory=list)


@attrs.define(eq=False)
class Reloading:
    """The reloads of the configuration of a server.

    :ivar config: the configuration in force
    :ivar reread: returns the configuration as the files are now; raises ConfigError
    :ivar log_from: called with the new log level
    """

    config: Config
    reread: Callable[[], Config]
    stack: Stack
    log_from: Callable[[str], object] = lambda level: None

    async def reload(self) -> ReloadAnswer:
        """Read the configuration files, apply everything that differs, and return the result."""
        plan = _Plan()
        opened: list[Any] = []
        try:
            config = self.reread()
            self._plan(plan, config)
            for listener, service in plan.opening:
                only_leading = listener.plugin.abilities.only_leading
                await self.stack.fyrehose.open(service, only_leading)
                opened.append(service)
        except FyrehoseError as error:
            for service in opened:
                await self.stack.fyrehose.close(service)
            return ReloadAnswer(error=str(error))
        for apply in plan.apply:
            apply()
        for listener, service in plan.opening:
            self.stack.listeners.show(listener, service)
        for closing in plan.closing:
            service = self.stack.listeners.forget(key_of(closing.config))
            Deferred.fromCoroutine(self.stack.fyrehose.close(service)).addErrback(
                lambda failure: log.failure("a listener did not close in good order", failure)
            )
        return ReloadAnswer(changed=tuple(plan.changed), restart=tuple(plan.restart))

    def _plan(self, plan: _Plan, config: Config) -> None:
        """Add the differences between the present configuration and *config* to *plan*; take the steps that may fail.

        :raises ConfigError: a part of the new configuration cannot be used
        """
        now, contents = self.config, self._contents(plan, config)
        for name in FIXED_PARTS:
            if _values(config)[name] != _values(now)[name]:
                plan.restart.append(f"{typed(name)} needs a restart")
                config = attrs.evolve(config, **{name: _values(now)[name]})
        for scope, changeable in CHANGEABLE.items():
            used, wanted = _values(now)[scope], _values(config)[scope]
            kept = _compare(plan, scope, used, wanted, [name for name in _values(used) if name not in changeable])
            config = attrs.evolve(config, **{scope: attrs.evolve(wanted, **kept)})
        config = attrs.evolve(config, contents=contents)
        if config.log_level != now.log_level:
            plan.changed.append(f"log-level: {now.log_level} -> {config.log_level}")
        if config.policy != now.policy:
            rules = f"{counted(len(config.policy.rules), 'rule')}, changed"
            plan.changed.append(f"policy: {rules if config.policy_file else 'none, only this machine has access'}")
        if config.streams != now.streams:
            plan.changed.append(f"[[stream]]: {counted(len(config.streams.rules), 'table')}, changed")
        plan.apply.append(lambda: self._apply(config))
        self._plan_listeners(plan, config)

    def _contents(self, plan: _Plan, config: Config) -> dict[str, FileContent]:
        """Add the files of *config* that were replaced to *plan*; return the contents that are in use."""
        now, then, used = self.config.contents, config.contents, self.config.files
        again = {name: then[name] for name in READ_AGAIN if name in then and config.files[name] == used.get(name)}
        plan.changed += _replaced(now, again)
        plan.restart += [f"{line}; needs a restart" for line in _replaced({**now, **again}, then)]
        return {name: now.get(name, content) for name, content in then.items()} | again

    def _plan_listeners(self, plan: _Plan, config: Config) -> None:
        wanted = {key_of(each): each for each in config.listeners}
        reduced = {
            key_of(each): each
            for each in self.stack.listeners.within_descriptors(config.listeners, self.stack.descriptors())
        }
        plan.closing = [each for key, each in self.stack.listeners.open.items() if key not in wanted]
        plan.changed += [f"closed {each.config.name}={each.config.endpoint}" for each in plan.closing]
        for key, listener in wanted.items():
            check_guarded(listener, config)
            opened = self.stack.listeners.open.get(key)
            if opened is not None:
                self._plan_change(plan, opened, listener, reduced[key].settings)
            elif config.explicit and (service := self.stack.listeners.make(reduced[key], config)) is not None:
                plan.opening.append((listener, service))
                plan.changed.append(f"opened {listener.name}={listener.endpoint}")

    def _plan_change(self, plan: _Plan, opened: Open, listener: ListenerConfig, reduced: Any) -> None:
        """Prepare the new settings of a listener that stays open; read its files again even if no setting differs.

        :param reduced: the settings of *listener*, with max_connections reduced to the available file descriptors
        """
        now, then, service = opened.config.settings, listener.settings, opened.service
        changing = IReloading.providedBy(service)
        fixed = service.fixed(then) if changing else list(_values(now))
        kept = _compare(plan, listener.name, now, then, fixed)
        if changing:
            prepared = service.prepare(attrs.evolve(reduced, **kept))
            contents = (_named(listener.name, each.contents) for each in (service, prepared))
            plan.changed += _replaced(*contents)
            plan.apply.append(prepared.apply)
            used = attrs.evolve(listener, settings=attrs.evolve(then, **kept))
            plan.apply.append(lambda: self.stack.listeners.show(used, service))

    def _apply(self, config: Config) -> None:
        """Apply *config* to the broker, the journal and the log; listeners are changed separately."""
        broker, server = self.stack.fyrehose.broker, config.server
        if server.retire_idle != self.config.server.retire_idle:
            self.stack.retire_idle(server.retire_idle)
        self.config = config
        self.log_from(config.log_level)
        broker.change_limits(config.streams, server.peer_limits, server.max_streams, server.named_subscriptions)
        broker.once.kept = server.keys_kept
        self.stack.journal.change(config.journal, config.streams.keep_age if config.streams.expire else None)
        broker.guard.change(config.policy).addCallback(_log_ended)


def _log_ended(ended: int) -> None:
    """Log how many subscriptions another policy has ended."""
    if ended:
        log.info("the policy has ended {ended}", ended=counted(ended, "subscription"))


def _values(settings: Any) -> dict[str, Any]:
    """Return the options of *settings*, by name."""
    return attrs.asdict(settings, recurse=False)


def _compare(plan: _Plan, scope: str, now: Any, then: Any, fixed: Collection[str]) -> dict[str, Any]:
    """Add the options of *scope* that differ to *plan*: ``http.max-payload: 16MiB -> 1MiB``.

    :param fixed: the names of the options that need a restart
    :return: the present values of *fixed*
    """
    old, new = _values(now), _values(then)
    for field in attrs.fields(type(then)):
        name, values = f"{scope}.{typed(field.name)}", (old[field.name], new[field.name])
        if values[0] != values[1] and field.name in fixed:
            plan.restart.append(f"{name} needs a restart")
        elif values[0] != values[1]:
            plan.changed.append(f"{name}: {' -> '.join(shown_value(field, value) or 'none' for value in values)}")
    return {name: old[name] for name in fixed}


def _named(scope: str, contents: Mapping[str, FileContent]) -> dict[str, FileContent]:
    """Return *contents* by the options as they are typed: ``figg.tls-certificate``."""
    return {f"{scope}.{typed(name)}": content for name, content in contents.items()}


def _replaced(now: Mapping[str, FileContent], then: Mapping[str, FileContent]) -> list[str]:
    """Return the options whose files have another content: ``figg.tls-certificate: serial 1F, until 2030-01-31``.

    :param now: the contents in use, by option
    """
    changed = [(name, content) for name, content in then.items() if now.get(name, content) != content]
    return [f"{name}: {content.about or 'the file has another content'}" for name, content in changed]
