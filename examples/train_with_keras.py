"""Trains simclr_vmf on a network of Keras with compile and fit; `--replicas` on two devices."""

import subprocess
import sys

import keras
import tensorflow as tf

import tfvmf

devices = [tf.config.LogicalDeviceConfiguration()] * (2 if "--replicas" in sys.argv else 1)
tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], devices)
source = tfvmf.data.load_source("digits", "train", image_size=32)
dataset = source.as_dataset(128, seed=0, drop_remainder=True)
with tf.distribute.MirroredStrategy([f"/cpu:{i}" for i in range(len(devices))]).scope():
    network = keras.applications.MobileNetV3Small(weights=None, include_top=False, pooling="avg")
    encoder = tfvmf.models.build_encoder(network, dimension=64)
    views = tfvmf.data.Augmentation(size=32, flip_probability=0.0)
    model = tfvmf.Contrastive(encoder, method="simclr_vmf", augmentation=views)
    model.compile(keras.optimizers.Adam(1e-3))
model.fit(dataset, epochs=5, callbacks=[tfvmf.callbacks.KappaMonitor(source, max_images=200)])
model.save("model.keras")
show = """import tfvmf; source = tfvmf.data.load_source("digits", "test", image_size=32)
print("kappa", tfvmf.load("model.keras").embed(source)["concentration"][:8])"""
subprocess.run([sys.executable, "-c", show], check=True)
