# SPDX-License-Identifier: Apache-2.0
"""What every test shares: no example of hypothesis is too slow on a shared machine."""

from hypothesis import settings

settings.register_profile("packserve", deadline=None)
settings.load_profile("packserve")
