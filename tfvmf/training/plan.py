"""How long a run is, and how often it saves, measures and logs."""

import dataclasses

import ml_collections


@dataclasses.dataclass(frozen=True)
class Plan:
    """How long a run is, in steps."""

    steps_per_epoch: int
    total_steps: int
    cycles: int  # of the learning rate, each of the same length
    monitor_every: int
    save_every: int
    log_every: int

    @classmethod
    def of(cls, config: ml_collections.ConfigDict, steps_per_epoch: int) -> "Plan":
        """The plan that a run's configuration describes."""
        return cls(
            steps_per_epoch=steps_per_epoch,
            total_steps=config.epochs * steps_per_epoch,
            cycles=config.ensemble.num_members if config.ensemble.kind == "snapshot" else 1,
            monitor_every=_steps(config.monitor.every_epochs, steps_per_epoch),
            save_every=_steps(config.checkpoint.every_epochs, steps_per_epoch),
            log_every=config.log_every_steps,
        )

    @property
    def cycle(self) -> int:
        """Steps of a cycle of the learning rate."""
        return self.total_steps // self.cycles

    def is_due(self, step: int, every: int) -> bool:
        """Whether something that happens every so many steps, and at the end, happens now."""
        return every > 0 and (step % every == 0 or step == self.total_steps)


def _steps(epochs: float, steps_per_epoch: int) -> int:
    """A time in whole steps: 0 stays 0, all else is at least one."""
    return max(1, round(epochs * steps_per_epoch)) if epochs else 0
