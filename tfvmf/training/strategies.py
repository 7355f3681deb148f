"""TensorFlow's distribution strategies by name, and what the workers of a run agree on."""

import asyncio
import contextlib
import functools
import json
import math
import os
import pathlib
import re
import signal
import socket
import sys
import zlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import keras
import tensorflow as tf
from ml_collections import ConfigDict

from tfvmf import __version__, cores, distribute
from tfvmf.config import flatten
from tfvmf.errors import UserError
from tfvmf.methods import METHODS
from tfvmf.training.inputs import Inputs
from tfvmf.training.run_directory import MAY_DIFFER

PEER_TIMEOUT = 300.0  # seconds
_LONGEST = 2**20  # maximum bytes of a worker's message
_CONNECT, _PAUSE = 5.0, 0.5  # seconds per connection attempt, and between attempts
_ADDRESS = re.compile(r"(?:\[([^\s\[\]]+)\]|([^\s:/]+)):([0-9]{1,5})")

# Errors that collective operations raise when a worker is gone, depending on their state.
_LOST = (
    *(tf.errors.AbortedError, tf.errors.CancelledError, tf.errors.DeadlineExceededError),
    *(tf.errors.FailedPreconditionError, tf.errors.InternalError, tf.errors.UnavailableError),
)
_MADE: dict[tuple[str, int], tf.distribute.Strategy] = {}


def share_cores(config: ConfigDict) -> None:
    """Gives each view's pass its share of the cores; call it before TensorFlow's first use.

    Two parallel passes with one core each train 1.2 times as fast (ResNet-18 and 50 of width 16 on
    2 cores) as one pass of both views on two cores. A single pass keeps all cores (or
    TF_NUM_INTRAOP_THREADS, if set), as do workers, which exchange statistics in order.
    """
    alone = config.model.one_pass or METHODS[config.method].num_views == 1
    if alone or config.strategy == "multi_worker" or tf.config.list_physical_devices("GPU"):
        return
    granted = os.environ.get("TF_NUM_INTRAOP_THREADS", "")
    count = (int(granted) if granted.isdecimal() else 0) or cores.available()
    tf.config.threading.set_intra_op_parallelism_threads(max(1, count // 2))


def make_strategy(
    name: str,
    *,
    logical_devices: int = 0,
    facts: dict[str, Any] | None = None,
    peer_timeout: float = PEER_TIMEOUT,
) -> tf.distribute.Strategy:
    """Creates the strategy that distributes a batch over devices or machines, once per process.

    Only once, because TensorFlow numbers the collective operations of every strategy from the same
    start, and would confuse those of a second one with the first.

    Args:
        name: `default` (one device), `mirrored` (all devices of this machine) or `multi_worker`
            (all machines in the environment variable TF_CONFIG).
        logical_devices: With `mirrored`, splits the CPU into this many devices; 0: no split.
        facts: With `multi_worker`, values that must be equal on all workers (`run_facts`).
        peer_timeout: With `multi_worker`, seconds to wait for the other workers.
    """
    if logical_devices and name != "mirrored":
        raise UserError("--logical_devices goes with --strategy=mirrored")
    if name == "default":
        return tf.distribute.get_strategy()
    key = name, logical_devices
    if key in _MADE:
        return _MADE[key]
    if name == "mirrored":
        split_processor(logical_devices)
        devices = [f"/cpu:{i}" for i in range(logical_devices)]
        return _MADE.setdefault(key, tf.distribute.MirroredStrategy(devices or None))
    cluster = _cluster()
    told = f"waiting up to {peer_timeout:g} s for all {len(cluster.addresses)} workers"
    print(f"{cluster.me}: {told}", file=sys.stderr, flush=True)
    meet(cluster, facts or {}, timeout=peer_timeout)
    # All workers answered a moment ago. If one has died since, TensorFlow waits for an hour while
    # it holds Python's lock and ignores SIGTERM: only SIGALRM's default action ends this.
    before = signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(math.ceil(peer_timeout))
    try:
        return _MADE.setdefault(key, tf.distribute.MultiWorkerMirroredStrategy())
    except tf.errors.OpError as error:
        raise UserError(f"{cluster.me} cannot join the others: {error.message}") from error
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before or signal.SIG_DFL)


def split_processor(devices: int) -> None:
    """Splits the CPU into logical devices, if any; call it before TensorFlow runs anything."""
    cpu = tf.config.list_physical_devices("CPU")[0]
    if devices and len(tf.config.get_logical_device_configuration(cpu) or ()) != devices:
        tf.config.set_logical_device_configuration(
            cpu, [tf.config.LogicalDeviceConfiguration()] * devices
        )


def num_workers(name: str) -> int:
    """The number of machines that share a batch."""
    return len(_cluster().addresses) if name == "multi_worker" else 1


def is_chief(name: str) -> bool:
    """Whether this process writes the run directory; exactly one of all workers does."""
    return name != "multi_worker" or _cluster().me == next(iter(_cluster().addresses))


# ---- Workers: whether all are present and train the same run.


class Cluster(NamedTuple):
    """The workers of a run: {`worker 1`: (host, port)}, and the name of this process."""

    addresses: dict[str, tuple[str, int]]
    me: str


def parse_cluster(text: str) -> Cluster:
    """Reads TF_CONFIG, with better errors than TensorFlow's tracebacks or silence."""

    def wrong(problem: str) -> UserError:
        return UserError(
            f"TF_CONFIG {problem}: --strategy=multi_worker expects this environment variable as in "
            """{"cluster": {"worker": ["host:port", "host:port"]}, """
            """"task": {"type": "worker", "index": 0}}, see docs/scaling.md"""
        )

    if not text:
        raise wrong("is not set")
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise wrong(f"is not JSON ({error})") from error
    content = content if isinstance(content, dict) else {}
    jobs, task = content.get("cluster"), content.get("task")
    if not isinstance(jobs, dict) or not isinstance(task, dict):
        raise wrong("has no objects 'cluster' and 'task'")
    addresses: dict[str, tuple[str, int]] = {}
    for kind, listed in sorted(jobs.items()):  # the chief first, as in TensorFlow
        if kind not in ("chief", "worker"):
            raise wrong(f"has tasks of the unknown type '{kind}'")
        if not isinstance(listed, list):
            raise wrong(f"has no list of addresses for '{kind}'")
        if kind == "chief" and len(listed) > 1:
            raise wrong(f"has {len(listed)} chiefs")
        for index, address in enumerate(listed):
            found = _ADDRESS.fullmatch(str(address))
            if not found or not 0 < int(found[3]) < 2**16:
                raise wrong(f"has the address {address!r}, which is not host:port")
            place = (found[1] or found[2]).lower(), int(found[3])
            if place in addresses.values():
                raise wrong(f"has the address {address} twice")
            addresses[f"{kind} {index}"] = place
    me = f"{task.get('type')} {task.get('index')}"
    if me not in addresses:
        raise wrong(f"says that this process is '{me}', but has only {', '.join(addresses)}")
    return Cluster(addresses, me)


def _cluster() -> Cluster:
    return parse_cluster(os.environ.get("TF_CONFIG", ""))


def run_facts(config: ConfigDict, inputs: Inputs) -> dict[str, Any]:
    """The facts that must be equal on all workers of a run, for `make_strategy`."""
    settings = {f"--config.{k}": v for k, v in flatten(config).items() if k not in MAY_DIFFER}
    return settings | {
        "training data": f"{inputs.size} examples of {inputs.num_classes} classes with hash "
        f"{inputs.fingerprint()}",
        "tfvmf": __version__,
        "TensorFlow": tf.__version__,
        "Keras": keras.__version__,
        "number of GPUs": len(tf.config.list_physical_devices("GPU")),
    }


def disagreement(facts: dict[str, dict[str, Any]]) -> str:
    """The differences between workers, in words; "" if they agree."""
    told = []
    for what in dict.fromkeys(key for known in facts.values() for key in known):
        holders: dict[str, list[str]] = {}
        for worker, known in facts.items():
            holders.setdefault(json.dumps(known.get(what), sort_keys=True), []).append(worker)
        if len(holders) > 1:
            values = (f"{value[:80]} on {_few(names)}" for value, names in holders.items())
            told.append(f"{what} is {' and '.join(values)}")
    return f"the workers differ: {_few(told, '; ')}" if told else ""


def _few(names: list[str], separator: str = ", ") -> str:
    """The first few of many names."""
    return separator.join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def meet(cluster: Cluster, facts: dict[str, Any], *, timeout: float) -> None:
    """Waits until all workers are there; raises UserError unless all report the same facts.

    This happens before TensorFlow's servers start, on the same ports. A port in use is reported on
    its own host, a missing worker or a firewall on all others. TensorFlow would wait forever.
    """
    port = cluster.addresses[cluster.me][1]
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    try:
        place = socket.create_server(("", port), family=family, dualstack_ipv6=both)
    except OSError as error:
        raise UserError(
            f"{cluster.me} cannot listen on port {port} ({os.strerror(error.errno or 0)}): free "
            "it, or choose another in the TF_CONFIG of all workers"
        ) from error
    facts = {**facts, "the list of workers in TF_CONFIG": [*cluster.addresses]}
    with place:
        heard, trouble = asyncio.run(_exchange(cluster, facts, place, timeout))
    if told := disagreement({name: heard[name] for name in cluster.addresses if name in heard}):
        raise UserError(f"{told}: start all with the same command, data and versions")
    if trouble:
        raise UserError(
            f"after --peer_timeout={timeout:g} seconds {_few(trouble)}: check the output of that "
            "worker, and that TF_CONFIG and firewalls let all workers reach each other"
        )


async def _exchange(
    cluster: Cluster, facts: dict[str, Any], place: socket.socket, timeout: float
) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Sends the facts to all workers and receives theirs: {worker: facts}, and what went wrong.

    Each worker asks every other one and receives two lines: name and facts, then `complete` once
    the other has heard from all. A worker is done when all others have sent and received this.
    """
    heard, complete = {cluster.me: facts}, asyncio.Event()
    peers = [name for name in cluster.addresses if name != cluster.me]
    reasons, ready = dict.fromkeys(peers, "no answer"), set[str]()
    told = {name: asyncio.Event() for name in peers}

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, ValueError), contextlib.closing(writer):
            name = (await reader.readline()).decode().strip()
            if name in peers:
                writer.write(json.dumps([cluster.me, facts]).encode() + b"\n")
                await complete.wait()
                writer.write(b"complete\n")
                await reader.read(1)  # until the other has read it and closes
                told[name].set()

    async def ask(name: str) -> None:
        while True:
            try:
                reader, writer = await asyncio.wait_for(
                    asyncio.open_connection(*cluster.addresses[name], limit=_LONGEST), _CONNECT
                )
                with contextlib.closing(writer):
                    writer.write(f"{cluster.me}\n".encode())
                    answered, its_facts = json.loads(await reader.readline())
                    if answered != name:
                        raise ValueError(answered)
                    heard[name] = dict(its_facts)
                    if len(heard) == len(cluster.addresses):
                        complete.set()
                    if await reader.readline() == b"complete\n":
                        ready.add(name)
                        return
            except OSError as error:
                reasons[name] = str(error.strerror or "no answer")
            except (TypeError, ValueError):
                reasons[name] = "another program answers there"
            await asyncio.sleep(_PAUSE)

    server = await asyncio.start_server(answer, sock=place, limit=_LONGEST)
    with contextlib.closing(server), contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout):
            await asyncio.gather(*map(ask, peers), *(event.wait() for event in told.values()))
    where = {name: "{}:{}".format(*cluster.addresses[name]) for name in peers}
    return heard, (
        [f"{n} at {where[n]} is missing ({reasons[n]})" for n in peers if n not in heard]
        or [f"{n} has not reached all others" for n in peers if n not in ready]
        or [f"{n} does not reach {cluster.me}" for n in peers if not told[n].is_set()]
    )


def check_same(
    strategy: tf.distribute.Strategy,
    facts: dict[str, Any],
    variables: list[keras.Variable],
    workdir: pathlib.Path,
    start: int,
) -> None:
    """Raises UserError if workers would train different runs, and so wait forever."""
    if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return
    weights = b"".join(variable.numpy().tobytes() for variable in variables)
    mine = {
        "the step to continue from": start,
        "the checksum of settings and data": zlib.crc32(json.dumps(facts).encode()),
        "the checksum of the weights": zlib.crc32(weights),
    }
    rows = enumerate(_of_all_workers(strategy, *mine.values()))
    if told := disagreement({f"replica {i}": dict(zip(mine, row, strict=True)) for i, row in rows}):
        raise UserError(f"{told}: --workdir={workdir} must be a directory that all of them share")


def agree_to_stop(strategy: tf.distribute.Strategy, signum: int, step: int, *, every: int) -> int:
    """The signal, or 0, that all workers obey after this step; they agree every `every` steps."""
    if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return signum
    return 0 if step % every else max(_of_all_workers(strategy, signum))[0]


@contextlib.contextmanager
def as_user_errors(strategy: tf.distribute.Strategy) -> Iterator[None]:
    """Turns errors that the user can fix into UserErrors."""
    try:
        yield
    except tf.errors.OpError as error:
        # A broken image of a streamed source: the error passed through TensorFlow's input pipeline.
        if known := re.search(r"UserError: ([^\n]+)", str(error)):
            raise UserError(known[1]) from error
        workers = isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)
        if workers and isinstance(error, _LOST):
            message = str(error.message)
            gone = dict.fromkeys(re.findall(r"/job:(\w+)/replica:\d+/task:(\d+)\n", message))
            reason = re.search(r"aborted by: ([^.\n]+)", message)
            told = ", ".join(map(" ".join, gone)) or (reason[1] if reason else type(error).__name__)
            raise UserError(
                f"a worker is gone ({told}): start all workers again, they continue from the last "
                "checkpoint"
            ) from error
        raise


def _of_all_workers(strategy: tf.distribute.Strategy, *values: int) -> list[tuple[int, ...]]:
    """The arguments of this call on each replica of all workers."""
    stacked = _stacking(strategy)(tf.constant(values, tf.int64))
    return [*map(tuple, strategy.experimental_local_results(stacked)[0].numpy().tolist())]


@functools.cache
def _stacking(strategy: tf.distribute.Strategy) -> Callable[[tf.Tensor], tf.Tensor]:
    """A function, traced once, that stacks the tensors of all replicas."""
    return tf.function(lambda values: strategy.run(distribute.stack, args=(values,)))
