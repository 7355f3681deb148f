"""TFDS data sets that tests write for themselves."""


def prepare(data_dir, examples, features, *, name="tiny", version="1.0.0", file_format="tfrecord"):
    """Writes a TFDS data set of several shards, in the order of the examples."""
    import tensorflow_datasets as tfds

    path = data_dir / name / version
    path.mkdir(parents=True)
    identity = tfds.core.DatasetIdentity(
        name=name.split("/")[0], version=version, data_dir=str(path), module_name="tests"
    )
    info = tfds.core.DatasetInfo(builder=identity, features=tfds.features.FeaturesDict(features))
    writer = tfds.core.SequentialWriter(info, max_examples_per_shard=4, file_format=file_format)
    writer.initialize_splits(list(examples))
    writer.add_examples(examples)
    writer.close_all()
    return path


def image_features(shape=(16, 16, 3), **others):
    import tensorflow_datasets as tfds

    return {"image": tfds.features.Image(shape=shape), **others}
