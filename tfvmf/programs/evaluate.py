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
    cli.import_tensorflow()
    from tfvmf import evaluation

    names = evaluation.suites_by_name(values.suite)
    run = evaluation.load(
        values.model or values.workdir or cli.DEFAULT_RUN,
        checkpoint=values.checkpoint,
        data=values.data,
        data_dir=values.data_dir,
        images=values.max_images,
        scores=cli.listed(values.score),
        passes=values.num_passes,
        views=values.num_views,
        corruptions=values.corruptions,
        corrupted_dir=values.corrupted_dir,
        cache_corrupted=values.cache_corrupted,
        in_source=values.in_source,
        out_sources=cli.listed(",".join(values.ood_sources)),
        supervised_workdir=values.supervised_workdir,
    )
    suites = {name: evaluation.SUITES[name] for name in names}
    if values.all_checkpoints:
        suites = {"cifar10c": evaluation.along_training.run}
    measured = {}
    for name, suite in suites.items():
        try:
            results = suite(run)
        except evaluation.NotApplicable as error:
            if values.suite != "all":
                raise
            print(f"\n{name}: left out, {error}")
            continue
        measured[name] = results
        print(f"\n{name}: {run.directory(name)}")
        for key, value in results.items():
            if isinstance(value, float):
                small = 0.0 < abs(value) < 1e-4
                print(f"  {key:20} {value:{'.2e' if small else '.4f'}}")
            elif isinstance(value, int | str):
                print(f"  {key:20} {value}")
    if values.suite == "all" and not values.all_checkpoints:
        print(f"\nreport: {evaluation.report.write(run, measured)}")
