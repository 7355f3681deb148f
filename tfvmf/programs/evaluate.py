"""Measures a trained run and writes tables and plots to <workdir>/eval.

  tfvmf evaluate runs/digits-simclr_vmf
  tfvmf evaluate runs/mine --suite=cifar10c --data_dir=DIR
  tfvmf evaluate runs/mine --suite=cifar10c --max_images=1000
  tfvmf evaluate runs/mine folder:/labeled/images
  tfvmf evaluate runs/mine --suite=ood --in_source=cifar10 --ood_sources=cifar100,mnist
  tfvmf evaluate runs/mine --suite=agreement --max_images=1000 --ood_sources=mnist

MODEL, or --workdir, is the run; DATA is labeled data to measure it on, the run's own by default.

Suites: curves (how training went), probe (what the features know), failure (is kappa lower where
the probe errs?), ood (is it lower on foreign images? needs --ood_sources), cifar10c (does it fall
as corruption grows?), projector (what lies near what?), agreement (how far is kappa from the
agreement of views that it estimates? slow, not among all).
"""

from typing import Any

from absl import flags

from tfvmf.errors import UserError
from tfvmf.programs import cli

ARGUMENTS = ("model", "data")


def define(values: flags.FlagValues, argv: list[str]) -> None:
    """Defines the flags."""
    del argv
    cli.define_shared(
        values,
        "checkpoint",
        "trust_model",
        model="directory of a trained run; --workdir says the same",
        workdir=f"directory of a trained run; {cli.DEFAULT_RUN} by default",
        data="labeled data to measure on; what the run is judged on by default",
        data_dir="where TFDS finds prepared data sets, if not where the run found them",
        max_images="how many test images, for a quick look; 0 for all",
    )
    flags.DEFINE_string(
        "suite", "all", "suites, separated by commas, or all (but agreement)", flag_values=values
    )
    flags.DEFINE_string(
        "score",
        "",
        "measures of uncertainty, separated by commas, the main one first: kappa, feature_norm, "
        "agreement, ensemble, dropout; what suits the run by default",
        flag_values=values,
    )
    flags.DEFINE_integer(
        "num_passes",
        16,
        "forward passes of --score=dropout",
        lower_bound=2,
        flag_values=values,
    )
    flags.DEFINE_integer(
        "num_views",
        8,
        "views of --score=agreement and --suite=agreement",
        lower_bound=2,
        flag_values=values,
    )
    flags.DEFINE_string(
        "corruptions",
        "generate",
        "cifar10c: generate, or tfds for cifar10_corrupted in --data_dir",
        flag_values=values,
    )
    flags.DEFINE_string(
        "corrupted_dir",
        "",
        "cifar10c: directory of CIFAR-10-C's .npy files to read instead",
        flag_values=values,
    )
    flags.DEFINE_bool(
        "cache_corrupted",
        False,
        "cifar10c: generate what --corrupted_dir lacks, and keep it there",
        flag_values=values,
    )
    flags.DEFINE_string(
        "in_source", "", "ood: familiar data; the run's own by default", flag_values=values
    )
    flags.DEFINE_list(
        "ood_sources",
        [],
        "ood, agreement: foreign data, separated by commas, like cifar100,mnist",
        flag_values=values,
    )
    flags.DEFINE_string(
        "supervised_workdir",
        "",
        "ood: a run of --method=supervised, for the scores with F_res",
        flag_values=values,
    )
    flags.DEFINE_bool(
        "all_checkpoints",
        False,
        "run the suite cifar10c along training, at every kept checkpoint",
        flag_values=values,
    )


def main(values: flags.FlagValues) -> None:
    """Runs the suites, prints their headlines."""
    if values.model and values.workdir:
        raise UserError(f"--workdir={values.workdir}: the run is already named, {values.model}")
    from tfvmf import evaluation

    evaluation.check_names(values.suite)  # before TensorFlow, which takes seconds to import
    cli.import_tensorflow()
    options = evaluation.Options(
        max_images=values.max_images,
        scores=cli.listed(values.score),
        num_passes=values.num_passes,
        num_views=values.num_views,
        corruptions=values.corruptions,
        corrupted_dir=values.corrupted_dir,
        cache_corrupted=values.cache_corrupted,
        in_source=values.in_source,
        ood_sources=cli.listed(",".join(values.ood_sources)),
        supervised=_load_supervised(values),
    )
    subject = evaluation.subject_from_run(
        values.model or values.workdir or cli.DEFAULT_RUN,
        checkpoint=values.checkpoint,
        data=values.data,
        data_dir=values.data_dir,
        trust_model=values.trust_model,
    )
    if values.all_checkpoints:
        evaluation.along_training(subject, options)
    else:
        evaluation.evaluate(subject, values.suite, options)


def _load_supervised(values: flags.FlagValues) -> Any:
    """The subject that --supervised_workdir names, if it does."""
    if not values.supervised_workdir:
        return None
    from tfvmf import evaluation

    try:
        return evaluation.subject_from_run(
            values.supervised_workdir, data_dir=values.data_dir, trust_model=values.trust_model
        )
    except UserError as error:
        raise UserError(f"--supervised_workdir: {error}") from error
