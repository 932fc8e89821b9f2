"""Anything cheaper than measuring a plan's loss.

- *Sensitivities*: :mod:`~tightfit.proxies.prescreen` scores every option from one backward pass,
  :mod:`~tightfit.proxies.marginals` measures a few alone, :mod:`~tightfit.proxies.calibration` brings
  the first to the scale of the second.
- *Loss models*: :mod:`~tightfit.proxies.additive` predicts a plan as g(Σ scores) with a link g of
  :mod:`~tightfit.proxies.links`; :mod:`~tightfit.proxies.fitting` fits both to plans near the budget.
  :mod:`~tightfit.proxies.coupling` adds what decisions of one block lose together. In
  :mod:`~tightfit.proxies.pools` weights and caches have a link each, and
  :mod:`~tightfit.proxies.pool_fitting` says whether that predicts better.
- *Certificates*: :mod:`~tightfit.proxies.certificate` says out of sample how far a model may be
  trusted, over plans that :mod:`~tightfit.proxies.sampling` draws.

Proxies measure through a callable they are given, never through workers. The names below need no
torch; what does (the pre-screen) is imported from its own module. To add a link, write its class and
name it in :data:`LINKS`.
"""

from tightfit.proxies.additive import LinkAdditive, synergy
from tightfit.proxies.calibration import calibrate_prescreen, split_half_tau
from tightfit.proxies.certificate import (
    BandCertificate,
    VarianceCertificate,
    band_certificate,
    paired_ses,
    unexplained_variance,
)
from tightfit.proxies.coupling import Coupling, measured_excess
from tightfit.proxies.fitting import Fit, LinkScore, fit_link_additive
from tightfit.proxies.links import LINKS, Amplifying, Coverage, Identity, Isotonic, Link, get_link
from tightfit.proxies.pool_fitting import Choice, PoolFit, choose_model, fit_pools
from tightfit.proxies.pools import PooledModel, read_model
from tightfit.proxies.resampling import Interval
from tightfit.proxies.sampling import distribution_text, sample, sample_band, tilted
from tightfit.proxies.score_fitting import Ridge

__all__ = [
    "LINKS",
    "Amplifying",
    "BandCertificate",
    "Choice",
    "Coupling",
    "Coverage",
    "Fit",
    "Identity",
    "Interval",
    "Isotonic",
    "Link",
    "LinkAdditive",
    "LinkScore",
    "PoolFit",
    "PooledModel",
    "Ridge",
    "VarianceCertificate",
    "band_certificate",
    "calibrate_prescreen",
    "choose_model",
    "distribution_text",
    "fit_link_additive",
    "fit_pools",
    "get_link",
    "measured_excess",
    "paired_ses",
    "read_model",
    "sample",
    "sample_band",
    "split_half_tau",
    "synergy",
    "tilted",
    "unexplained_variance",
]
