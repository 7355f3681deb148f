"""All fuzzers by name: seeded changes of what may come from strangers."""

import functools

from fuzz import arrays, pictures, runs

FUZZERS = {
    "images": pictures.fuzz_images,
    "npz": arrays.fuzz_npz,
    "served": pictures.fuzz_served,
    **{
        kind: functools.partial(runs.fuzz, kind)
        for kind in ("config", "metrics", "checkpoint", "judge")
    },
}
