"""Settings: their default, bounds and meaning. Nothing here needs TensorFlow."""

import dataclasses
import difflib
from collections.abc import Callable
from typing import Any

from ml_collections import ConfigDict

from tfvmf.errors import UserError

# Backbones by name: the module whose `build_backbone(name, ...)` builds them. A new one is a module
# and a line here.
BACKBONES = {
    "resnet10": "tfvmf.models.resnet",
    "resnet18": "tfvmf.models.resnet",
    "resnet34": "tfvmf.models.resnet",
    "resnet50": "tfvmf.models.resnet",
    "convnet8": "tfvmf.models.resnet",
}
# Other networks, by the prefix of a spec.
PREFIXES = {
    "applications": "applications:NAME (Keras Applications)",
    "hub": "hub:PRESET (KerasHub)",
    "keras": "keras:/path/model.keras",
}
# Pixel ranges of networks: from and to, or None for one of Keras's own conversions.
INPUT_RANGES = {
    "0..1": (0.0, 1.0),
    "-1..1": (-1.0, 1.0),
    "0..255": (0.0, 255.0),
    "caffe": None,
    "torch": None,
}
MAX_PIXELS = 2**26  # default limit for an image: 64 megapixels
# Choices of settings whose modules need TensorFlow.
AGGREGATIONS = ("mean_log", "logmeanexp")
LEVELS = ("last", "all")
REGULARIZERS = ("l2", "vmf")
STEMS = ("cifar", "imagenet")


@dataclasses.dataclass(frozen=True)
class Setting:
    """One setting of a run."""

    default: Any  # used unless a config or a flag sets it; also gives the type
    meaning: str = ""
    _: dataclasses.KW_ONLY
    low: float | None = None  # the minimum
    above: float | None = None  # a bound that the value must exceed
    below: float | None = None  # a bound that the value must stay under
    choices: tuple[str, ...] = ()  # all allowed values, if limited
    parse: Callable[[str], object] | None = None  # raises a UserError that begins with the value

    def check(self, key: str, value: Any) -> None:
        """Raises UserError if `value` is invalid; `key` is the setting's dotted name."""
        kind, problem = type(self.default), ""
        limit = 1e15 if kind is float else 2**31
        # Negated comparisons also reject NaN. Larger numbers would overflow when scaled.
        if type(value) is not kind and not (kind is float and type(value) is int):
            problem = f"is of the wrong type: expected {kind.__name__}"
        elif kind is str and "\0" in value:
            raise UserError(f"--config.{key} holds a NUL character: expected text")
        elif kind is not str and not abs(value) < limit:
            problem = f"must be a finite number below {limit:,.0f}"
        elif self.choices and value not in self.choices:
            problem = f"is unknown: use one of {', '.join(self.choices)}"
        elif self.low is not None and not value >= self.low:
            problem = f"is too small: use at least {self.low}"
        elif self.above is not None and not value > self.above:
            problem = f"must be above {self.above} (default: {self.default})"
        elif self.below is not None and not value < self.below:
            problem = f"must be below {self.below}"
        if problem:
            raise UserError(f"--config.{key}={value} {problem}")
        if self.parse is not None:
            try:
                self.parse(value)
            except UserError as error:
                raise UserError(f"--config.{key}={error}") from error


def parse_backbone(spec: str) -> tuple[str, str]:
    """The kind of a backbone (`built_in` or a prefix), and its name or path."""
    kind, _, name = spec.partition(":")
    if spec in BACKBONES:
        return "built_in", spec
    if kind in PREFIXES and name:
        return kind, name
    if spec.endswith(".keras"):
        return "keras", spec
    near = difflib.get_close_matches(spec, BACKBONES, n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    known = ", ".join([*BACKBONES, *PREFIXES.values()])
    raise UserError(f"{spec} is unknown: {hint}use one of {known}")


def flatten(config: ConfigDict | dict[str, Any], prefix: str = "") -> dict[str, object]:
    """All settings of a configuration as {dotted key: value}."""
    flat: dict[str, object] = {}
    for key, value in config.items():
        if isinstance(value, ConfigDict | dict):
            flat.update(flatten(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def differences(old: ConfigDict, new: ConfigDict) -> dict[str, tuple[object, object]]:
    """Settings in which two configurations differ: {dotted key: (old, new)}."""
    flat_old, flat_new = flatten(old), flatten(new)
    return {
        key: (flat_old.get(key), flat_new.get(key))
        for key in sorted({*flat_old, *flat_new})
        if flat_old.get(key) != flat_new.get(key)
    }
