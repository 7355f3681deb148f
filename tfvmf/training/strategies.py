"""TensorFlow's distribution strategies by name."""

import functools

import tensorflow as tf

from tfvmf.config import STRATEGIES
from tfvmf.errors import UserError


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
        return tf.distribute.MultiWorkerMirroredStrategy()
    if not logical_devices:
        return tf.distribute.MirroredStrategy()
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(
        cpu, [tf.config.LogicalDeviceConfiguration()] * logical_devices
    )
    return tf.distribute.MirroredStrategy([f"/cpu:{i}" for i in range(logical_devices)])


def is_chief(strategy: tf.distribute.Strategy) -> bool:
    """Whether this process writes the run directory (one of all workers does)."""
    resolver = strategy.cluster_resolver
    if resolver is None or not resolver.task_type:
        return True
    has_chief = "chief" in resolver.cluster_spec().jobs
    return resolver.task_type == "chief" or (not has_chief and resolver.task_id == 0)
