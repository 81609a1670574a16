"""What a doctor installs in the processes that it watches: it times, counts and samples, and changes nothing.

It may have to work in an environment in which Stoker is not installed. So nothing here needs more than the standard
library, `stoker.foundation.machine` and `stoker.foundation.trees`; torch is taken from where the process has it.
"""

from __future__ import annotations
