"""Runs of two ranks: one or the launcher is killed or paused, the network is cut.

`torchrun` starts a run again after it lost a rank; the run must then go on from its newest whole
save and end as one that was left alone, in every bit. The network is cut for real, between two
network namespaces.
"""

import ctypes
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from pitstop.train.state.checkpoint import find_newest_whole
from tests.drill.lives import LIMIT_S, POLL_S, Life, begin_program
from tests.drill.results import Tally
from tests.drill.states import of_checkpoint
from tests.drill.workload import CONFIG, PACED

STEPS = 120
START_TIMES = 4
"""Times that a start may take until the answer to a fault is called a hang."""

_NEW_NETWORK = 0x40000000
_PORT = 29400

Found = tuple[str, list[str], str]


class Pair:
    """A run of two ranks and what it comes to where nothing happens."""

    def __init__(self, folder: Path, dice: random.Random) -> None:
        self._folder = folder
        self.dice = dice
        self._sessions: set[int] = set()
        self.config = folder / "pair.yaml"
        self.config.write_text(CONFIG % {"steps": STEPS} + "optimizer: {lr: 0.01}\n")
        begun_s = time.monotonic()
        alone = self.launch("alone")
        assert alone.wait(600), "two ranks took ten minutes"
        assert alone.code == 0, alone.text
        self.start_s = time.monotonic() - begun_s
        """What a whole run takes, most of which is its start."""
        self.limit_s = max(LIMIT_S, START_TIMES * self.start_s)
        self.sums = self._sums("alone")

    def arguments(self, name: str) -> list[str]:
        """Give the arguments of Python that train one rank."""
        return [
            *("-m", "pitstop", "train", str(self.config), "--work-dir", str(self._folder / name)),
            # At the pace of a disk: a step of two ranks is short, and a run must last until it is
            # broken.
            *("--resume", "auto", f"model.kind={PACED}"),
        ]

    def launch(self, name: str, *, restarts: int = 0) -> Life:
        """Start both ranks by `torchrun`."""
        launcher = ["-m", "torch.distributed.run", "--nproc-per-node=2", "--monitor-interval=0.1"]
        launcher += ["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"]
        launcher += [f"--max-restarts={restarts}"]
        return begin_program([*launcher, *self.arguments(name)], self._folder / f"{name}.log")

    def log(self, name: str) -> Path:
        """Give where the output of a rank goes."""
        return self._folder / f"{name}.log"

    def ranks_of(self, life: Life) -> list[int]:
        """Give the ranks of a launcher: each is the first of a session of its own."""
        path = Path("/proc", str(life.pid), "task", str(life.pid), "children")
        children = [int(pid) for pid in path.read_text().split()] if path.exists() else []
        ranks = [pid for pid in children if _trains(pid)]
        self._sessions.update(ranks)
        return ranks

    def orphans(self, life: Life) -> int:
        """Count what a run left behind, in its own session or one of a rank."""
        sessions = [life, *(Life(pid=pid, log=life.log, begun_s=0.0) for pid in self._sessions)]
        self._sessions.clear()
        return sum(session.orphans(self.limit_s) for session in sessions)

    def left_behind(self, ranks: list[int]) -> int:
        """Count the ranks and their workers that outlive a launcher; they are killed."""
        sessions = [Life(pid=pid, log=self.log("none"), begun_s=0.0) for pid in ranks]
        until_s = time.monotonic() + self.limit_s
        while left := sum(len(session.members()) for session in sessions):
            if time.monotonic() > until_s:
                break
            time.sleep(POLL_S)
        for session in sessions:
            session.kill_group()
        return left

    def await_step(self, name: str, least: int, life: Life) -> None:
        """Wait until a run has saved a step at least as late."""
        until_s = time.monotonic() + self.limit_s
        while self.saved(name) < least and not life.poll() and time.monotonic() < until_s:
            time.sleep(POLL_S)

    def saved(self, name: str) -> int:
        """Give the step of the newest save that has its name."""
        names = (self._folder / name / "run" / "checkpoints").glob("save-*")
        return max((int(path.name.rpartition("-")[2]) for path in names), default=0)

    def troubles_of(self, name: str, life: Life, *, in_time: bool, codes: set[int]) -> list[str]:
        """Name what is wrong with an end that must be that of a run left alone."""
        troubles = {
            "hang": not in_time,
            "code": life.code not in codes,
            "orphan": self.orphans(life) > 0,
            "wrong": life.code == 0 and self._sums(name) != self.sums,
        }
        return [trouble for trouble, is_so in troubles.items() if is_so]

    def _sums(self, name: str) -> list[str]:
        checkpoint, _ = find_newest_whole(self._folder / name / "run" / "checkpoints")
        if checkpoint is None or checkpoint.manifest.step != STEPS:
            return []
        return [of_checkpoint(checkpoint, rank) for rank in range(2)]

    def forget(self, name: str) -> None:
        """Remove a run."""
        shutil.rmtree(self._folder / name, ignore_errors=True)


def killed_rank(pair: Pair) -> Iterator[Found]:
    """A rank dies; the launcher starts both again, and nothing shows it in the end."""
    life = pair.launch("killed", restarts=3)
    pair.await_step("killed", pair.dice.randint(3, STEPS // 2), life)
    had = pair.saved("killed")
    ranks = pair.ranks_of(life)
    if ranks:
        _send(pair.dice.choice(ranks), signal.SIGKILL)
    in_time = life.wait(pair.limit_s)
    troubles = pair.troubles_of("killed", life, in_time=in_time, codes={0})
    troubles += [] if ranks and _went_on_from(life.text) >= had else ["did not go on"]
    yield "elastic restart, killed rank", troubles, life.text
    pair.forget("killed")


def killed_launcher(pair: Pair) -> Iterator[Found]:
    """The launcher dies, while its ranks start or later; nobody else would end them."""
    for when, least in (("in the start", 0), ("in training", 3)):
        life = pair.launch("launched")
        until_s = time.monotonic() + pair.limit_s
        while len(ranks := pair.ranks_of(life)) < 2 and time.monotonic() < until_s:
            time.sleep(POLL_S)
        if least:
            pair.await_step("launched", least, life)
        else:
            time.sleep(pair.dice.uniform(0, 1.0) * pair.start_s)
        _send(life.pid, signal.SIGKILL)
        life.wait(pair.limit_s)
        troubles = ["orphan"] if pair.left_behind(ranks) else []
        troubles += [] if len(ranks) == 2 else ["no ranks"]
        yield f"SIGKILL, launcher {when}", troubles, life.text
        pair.forget("launched")


def paused(pair: Pair) -> Iterator[Found]:
    """A rank or the launcher stands still for a moment."""
    for who in ("rank", "launcher"):
        life = pair.launch("paused")
        pair.await_step("paused", pair.dice.randint(3, STEPS // 2), life)
        ranks = pair.ranks_of(life)
        victim = pair.dice.choice(ranks) if ranks and who == "rank" else life.pid
        _send(victim, signal.SIGSTOP)
        time.sleep(pair.dice.uniform(0.3, 1.0))
        _send(victim, signal.SIGCONT)
        in_time = life.wait(pair.limit_s)
        troubles = pair.troubles_of("paused", life, in_time=in_time, codes={0})
        yield f"pause, {who}", troubles, life.text
        pair.forget("paused")


def cut_network(pair: Pair) -> Iterator[Found]:
    """The network between two ranks is cut, and comes back for the next start."""
    with Network() as network:
        lives = _start_apart(pair, network, "cut")
        pair.await_step("cut", 30, lives[0])
        network.cut()
        until_s = time.monotonic() + pair.limit_s
        while not any(life.poll() for life in lives) and time.monotonic() < until_s:
            time.sleep(POLL_S)
        # Who had sent something learns that it never came; who waits for the other does not.
        for life in sorted(lives, key=lambda life: life.code is None):
            has_noticed = life.wait(LIMIT_S)
            who = "had sent" if has_noticed else "waits"
            yield (
                f"cut network, rank that {who}",
                _troubles_of_cut(life, pair.limit_s, has_noticed=has_noticed),
                life.text,
            )
        network.mend()
        lives = _start_apart(pair, network, "cut")
        in_time = [life.wait(pair.limit_s) for life in lives]
        troubles = pair.troubles_of("cut", lives[0], in_time=all(in_time), codes={0})
        yield "cut network, next start", troubles, lives[0].text
    pair.forget("cut")


def _troubles_of_cut(life: Life, limit_s: float, *, has_noticed: bool) -> list[str]:
    if not has_noticed:
        return ["until torch's limit"]
    troubles = {
        "code": life.code != 2,
        "traceback": "Traceback (most recent" in life.text,
        "no sentence": "cannot go on without the others" not in life.text,
        "orphan": life.orphans(limit_s) > 0,
    }
    return [name for name, is_so in troubles.items() if is_so]


def _start_apart(pair: Pair, network: "Network", name: str) -> list[Life]:
    def before(rank: int) -> Callable[[], None]:
        def enter() -> None:
            network.enter(rank)
            own = {"RANK": str(rank), "LOCAL_RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1"}
            own |= {"MASTER_ADDR": network.addresses[0], "MASTER_PORT": str(_PORT)}
            os.environ.update(own, GLOO_SOCKET_IFNAME=f"drill{rank}")  # noqa: TID251

        return enter

    return [
        begin_program(pair.arguments(name), pair.log(f"{name}-{rank}"), before=before(rank))
        for rank in range(2)
    ]


class Network:
    """Two network namespaces with a cable between them; gone at the end."""

    addresses = ("10.213.7.1", "10.213.7.2")

    def __init__(self) -> None:
        self.names = [f"drill-{os.getpid()}-{rank}" for rank in range(2)]

    def __enter__(self) -> "Network":
        """Lay the cable."""
        for name in self.names:
            run_ip("netns", "add", name)
        first, second = self.names
        run_ip(
            "link",
            "add",
            "drill0",
            "netns",
            first,
            "type",
            "veth",
            "peer",
            "drill1",
            "netns",
            second,
        )
        for rank, name in enumerate(self.names):
            run_ip(
                "-n", name, "address", "add", f"{self.addresses[rank]}/24", "dev", f"drill{rank}"
            )
            run_ip("-n", name, "link", "set", "lo", "up")
            run_ip("-n", name, "link", "set", f"drill{rank}", "up")
        return self

    def __exit__(self, *_: object) -> None:
        """Take everything away."""
        for name in self.names:
            run_ip("netns", "delete", name)

    def enter(self, rank: int) -> None:
        """Have this process see the network of a rank alone.

        A peer that does not answer is given up after seconds; as the system comes it takes a
        quarter of an hour, and torch's own limit is half an hour.
        """
        with Path("/run/netns", self.names[rank]).open("rb") as file:
            if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), _NEW_NETWORK):
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        Path("/proc/sys/net/ipv4/tcp_retries2").write_text("3")

    def cut(self) -> None:
        """Let nothing through, without a word to either side: all goes to a card nobody has."""
        self._neighbour("replace", "lladdr", "02:00:00:00:00:01", "nud", "permanent")

    def mend(self) -> None:
        """Let everything through again."""
        self._neighbour("delete")

    def _neighbour(self, what: str, *more: str) -> None:
        for rank, name in enumerate(self.names):
            other = self.addresses[1 - rank]
            run_ip("-n", name, "neighbour", what, other, "dev", f"drill{rank}", *more)


def can_cut() -> bool:
    """Tell whether this process may make networks of its own."""
    try:
        with Network() as network:
            network.cut()
            network.mend()
    except (OSError, subprocess.CalledProcessError):
        return False
    return True


CASES: tuple[Callable[[Pair], Iterator[Found]], ...] = (killed_rank, killed_launcher, paused)


def break_ranks(
    folder: Path, dice: random.Random, until_s: float, *, is_short: bool = False
) -> Tally:
    """Meet every fault once, and again while there is time; in short, the first alone."""
    tally = Tally()
    pair = Pair(folder, dice)
    cases = CASES[:1] if is_short else (*CASES, *((cut_network,) if can_cut() else ()))
    while True:
        for case in cases:
            for name, troubles, text in case(pair):
                tally.count(name, troubles, text)
        if time.monotonic() > until_s:
            return tally


def run_ip(*arguments: str) -> None:
    """Run the command that makes networks."""
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


def _send(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def _trains(pid: int) -> bool:
    try:
        return b"pitstop" in Path("/proc", str(pid), "cmdline").read_bytes().split(b"\0")
    except OSError:
        return False


def _went_on_from(text: str) -> int:
    """Give the step that a run said it began at, the last time it began."""
    begun = [line.split()[2] for line in text.splitlines() if line.startswith("run: steps ")]
    return int(begun[-1]) if len(begun) > 1 else -1
