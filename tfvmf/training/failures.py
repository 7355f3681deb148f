"""What TensorFlow raises in the middle of a run, as a line that says what to do."""

import contextlib
import re
from collections.abc import Iterator

import tensorflow as tf

from tfvmf.errors import UserError

# What collective operations raise when a worker is gone, depending on where they were.
_LOST = (
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
    tf.errors.FailedPreconditionError,
    tf.errors.InternalError,
    tf.errors.UnavailableError,
)


@contextlib.contextmanager
def explained(strategy: tf.distribute.Strategy) -> Iterator[None]:
    """Turns what the user can mend into a UserError; the rest stays as it is."""
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
                "all workers again, they go on from the last checkpoint"
            ) from error
        raise
