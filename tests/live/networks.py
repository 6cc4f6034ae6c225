"""Networks of a test: namespaces of the kernel, which end with the test."""

from __future__ import annotations

import os
import subprocess

import attrs


@attrs.define(eq=False)
class Network:
    """A network namespace; it lasts as long as its process.

    :ivar process: a process inside, which does nothing
    """

    process: subprocess.Popen[bytes]

    @classmethod
    def make(cls, first: Network | None = None) -> Network:
        """Make a network.

        :param first: the first network of the test: without root's rights, all others belong to the user namespace of
            that one
        """
        alone = ("unshare", "-n") if first is not None or os.geteuid() == 0 else ("unshare", "-rn")
        command = [*(() if first is None else first.inside), *alone, "sh", "-c", "echo; exec sleep 10000"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert process.stdout is not None
        assert process.stdout.readline() == b"\n", "the system permits no network namespaces"
        network = cls(process)
        network.run("ip", "link", "set", "lo", "up")
        return network

    @property
    def inside(self) -> tuple[str, ...]:
        """Return the command that runs another command in this network."""
        user = () if os.geteuid() == 0 else ("-U", "--preserve-credentials")
        return ("nsenter", *user, "-n", "-t", str(self.process.pid))

    def run(self, *command: str) -> str:
        return subprocess.run([*self.inside, *command], check=True, capture_output=True, text=True).stdout

    def link(self, own: str, other: Network, there: str, *, mtu: int = 1_500) -> None:
        """Connect this network to another one; the interfaces are called by the address of the other end."""
        near, far = f"to-{there}", f"to-{own}"
        pid = str(other.process.pid)
        self.run("ip", "link", "add", near, "mtu", str(mtu), "type", "veth", "peer", "name", far, "netns", pid)
        other.run("ip", "link", "set", far, "mtu", str(mtu))
        for network, address, name in ((self, own, near), (other, there, far)):
            network.run("ip", "address", "add", f"{address}/24", "dev", name)
            network.run("ip", "link", "set", name, "up")

    def route(self, gateway: str) -> None:
        self.run("ip", "route", "add", "default", "via", gateway)

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()
