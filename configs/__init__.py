"""Named settings of runs: `tfvmf train --config=NAME` uses `NAME.py`."""
