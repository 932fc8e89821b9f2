"""The app that shows runs: a view over a run's store.

It starts and watches runs, and draws with the figures of :mod:`tightfit.search`; it computes
nothing of its own and measures no plan. It may import ``search``, ``exporters`` and ``spaces``.
Everything a page shows comes from the store of a run.
"""

import os
import sys

# Gradio looks for Hugging Face's package of the same name with `import spaces`, and started from
# the root of a clone it would find our folder there and break. None makes that import fail, which
# Gradio expects; only on their ZeroGPU machines does it need the real one.
if "SPACES_ZERO_GPU" not in os.environ:
    sys.modules.setdefault("spaces", None)  # type: ignore[arg-type]
