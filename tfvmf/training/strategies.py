"""TensorFlow's distribution strategies by name, and what the workers of a run agree on."""

import contextlib
import functools
import json
import os
import pathlib
import re
import sys
import zlib
from collections.abc import Callable, Iterator

import ml_collections
import tensorflow as tf

from tfvmf import cores, distribute
from tfvmf.config import STRATEGIES, flatten
from tfvmf.errors import UserError
from tfvmf.methods import METHODS
from tfvmf.training.run_directory import MAY_DIFFER

# What collective operations raise when a worker is gone, depending on where they were.
_LOST = (
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
    tf.errors.FailedPreconditionError,
    tf.errors.InternalError,
    tf.errors.UnavailableError,
)


def share_cores(config: ml_collections.ConfigDict) -> None:
    """Gives every view's pass its part of the cores; to be called before TensorFlow's first use.

    Two passes side by side, each on one core, train 1.2 times as fast (ResNet-18 and 50 of width
    16, batch 128 and 256, on 2 cores) as one pass of both views on two: no operation waits for its
    slower half, and half of the maps stay in the cache. Wide networks gain nothing.
    TF_NUM_INTRAOP_THREADS, where it is set, says how many cores there are.

    A pass that runs alone keeps them all: with `one_pass` or a single view it is the only one, and
    several workers take one after the other, since they exchange statistics in a fixed order.
    """
    alone = config.model.one_pass or METHODS[config.method].num_views == 1
    if alone or config.strategy == "multi_worker" or tf.config.list_physical_devices("GPU"):
        return
    granted = os.environ.get("TF_NUM_INTRAOP_THREADS", "")
    count = int(granted) if granted.isdecimal() else 0
    count = count or cores.available()
    tf.config.threading.set_intra_op_parallelism_threads(max(1, count // 2))


@functools.cache
def make_strategy(name: str, *, logical_devices: int = 0) -> tf.distribute.Strategy:
    """Creates the strategy that spreads a batch over devices or machines, once a process.

    Once, because TensorFlow numbers the collective operations of every strategy from the same
    start: those of a second one would be taken for those of the first.

    Args:
        name: `default` (one device), `mirrored` (all devices of this machine) or `multi_worker`
            (all machines that the environment variable TF_CONFIG names).
        logical_devices: With `mirrored`, splits the CPU into so many devices, to try on one
            machine what several would compute; 0 takes the devices as they are.
    """
    if name not in STRATEGIES:
        raise UserError(f"--strategy={name} is unknown: use one of {', '.join(STRATEGIES)}")
    if logical_devices and name != "mirrored":
        raise UserError("--logical_devices goes with --strategy=mirrored")
    if name == "default":
        return tf.distribute.get_strategy()
    if name == "multi_worker":
        cluster, kind, index = _cluster()
        count = sum(len(addresses) for addresses in cluster.values())
        print(f"{kind} {index}: waiting for all {count} workers", file=sys.stderr, flush=True)
        return tf.distribute.MultiWorkerMirroredStrategy()
    if not logical_devices:
        return tf.distribute.MirroredStrategy()
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(
        cpu, [tf.config.LogicalDeviceConfiguration()] * logical_devices
    )
    return tf.distribute.MirroredStrategy([f"/cpu:{i}" for i in range(logical_devices)])


def is_chief(name: str) -> bool:
    """Whether this process writes the run directory under a strategy: one of all workers does."""
    if name != "multi_worker":
        return True
    cluster, kind, index = _cluster()
    return kind == "chief" or ("chief" not in cluster and kind == "worker" and index == 0)


def check_same(
    strategy: tf.distribute.Strategy,
    config: ml_collections.ConfigDict,
    workdir: pathlib.Path,
    start: int,
) -> None:
    """Refuses workers that would train different things: they would wait for each other forever."""
    settings = {key: value for key, value in flatten(config).items() if key not in MAY_DIFFER}
    checksum = zlib.crc32(json.dumps(settings, sort_keys=True).encode())
    starts, checksums = zip(*_of_all_workers(strategy, start, checksum), strict=True)
    if len(set(checksums)) > 1:
        raise UserError("the workers have different settings: start all with the same command")
    if len(set(starts)) > 1:
        raise UserError(
            f"--workdir={workdir}: the workers would go on from different steps, {starts}: it must "
            "be a directory that all of them share"
        )


def agree_to_stop(strategy: tf.distribute.Strategy, signum: int, step: int, *, every: int) -> int:
    """The signal that all workers obey after this step, 0 for none.

    Whatever signal a process got, it may not stop alone: the others would wait for it. Several
    workers ask each other every so many steps only, since the answer has to be waited for.
    """
    if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return signum
    return 0 if step % every else max(_of_all_workers(strategy, signum))[0]


@contextlib.contextmanager
def as_user_errors(strategy: tf.distribute.Strategy) -> Iterator[None]:
    """Turns what the user can fix into a UserError; the rest stays as it is."""
    try:
        yield
    except tf.errors.OpError as error:
        # A broken image of a streamed source: its error has crossed TensorFlow's input pipeline.
        told = re.search(r"UserError: ([^\n]+)", str(error))
        if told:
            raise UserError(told.group(1)) from error
        workers = isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)
        if workers and isinstance(error, _LOST):
            reason = re.search(r"aborted by: ([^.\n]+)", str(error.message))
            raise UserError(
                f"a worker is gone ({reason.group(1) if reason else type(error).__name__}): start "
                "all workers again, they continue from the last checkpoint"
            ) from error
        raise


def _of_all_workers(strategy: tf.distribute.Strategy, *values: int) -> list[tuple[int, ...]]:
    """The values that each replica calls this with; those of this process unless there are more."""
    if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return [values]
    stacked = _stacking(strategy)(tf.constant(values, tf.int64))
    rows = strategy.experimental_local_results(stacked)[0]
    return [tuple(row) for row in rows.numpy().tolist()]


@functools.cache
def _stacking(strategy: tf.distribute.Strategy) -> Callable[[tf.Tensor], tf.Tensor]:
    """A function, traced once, that puts the tensors of all replicas beside each other."""
    return tf.function(lambda values: strategy.run(distribute.stack, args=(values,)))


def _cluster() -> tuple[dict[str, list[str]], str, int]:
    """All addresses of TF_CONFIG by their kind, and which of them this process is."""
    try:
        content = json.loads(os.environ["TF_CONFIG"])
        cluster, kind = content["cluster"], content["task"]["type"]
        index = int(content["task"]["index"])
        if not 0 <= index < len(cluster[kind]):
            raise IndexError(index)
    except (KeyError, IndexError, TypeError, ValueError) as error:
        # TensorFlow itself would train alone without a word, or fail with a traceback.
        raise UserError(
            "--strategy=multi_worker needs the environment variable TF_CONFIG as in "
            """{"cluster": {"worker": ["host:port", "host:port"]}, """
            """"task": {"type": "worker", "index": 0}}: see docs/scaling.md"""
        ) from error
    return cluster, kind, index
