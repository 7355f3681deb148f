"""Settings of runs that are worth a name: `tfvmf train --config=NAME` takes `NAME.py`."""
