"""`python -m tfvmf VERB ...`: the command `tfvmf`."""

import sys

from tfvmf.programs import main

sys.exit(main())
