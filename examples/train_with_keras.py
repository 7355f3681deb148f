"""Trains simclr_vmf, the default method, on a Keras network; with --replicas on two devices."""

import subprocess
import sys

import keras
import tensorflow as tf

import tfvmf

devices = [tf.config.LogicalDeviceConfiguration()] * (2 if "--replicas" in sys.argv else 1)
tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], devices)
images = tfvmf.data.load_source("digits", "train", image_size=32).images(0, 1280)
with tf.distribute.MirroredStrategy([f"/cpu:{i}" for i in range(len(devices))]).scope():
    network = keras.applications.MobileNetV3Small(weights=None, include_top=False, pooling="avg")
    for layer in network.layers:  # batch norms that remember 1000 steps; this takes 100
        layer.momentum = 0.9
    encoder = tfvmf.models.build_encoder(network, dimension=64)
    model = tfvmf.Contrastive(encoder, augmentation=tfvmf.data.Augmentation(flip_probability=0.0))
    model.compile(keras.optimizers.Adam(1e-3))
model.fit(images, batch_size=128, epochs=10, callbacks=[tfvmf.callbacks.KappaMonitor(images)])
model.save("model.keras")
show = """import tfvmf; source = tfvmf.data.load_source("digits", "test", image_size=32)
print("kappa", tfvmf.load("model.keras").embed(source)["concentration"][:8])"""
subprocess.run([sys.executable, "-c", show], check=True)
