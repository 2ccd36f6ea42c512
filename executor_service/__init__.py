# SPDX-License-Identifier: Apache-2.0
"""The executor service: weights, cache and the engine. Knows ids, never text."""

import os

# How long OpenMP's threads spin at a barrier before they sleep, read when torch is loaded. The default is for machines
# of one's own: where other processes share the cores, a thread that spins keeps the one it waits for from running.
os.environ.setdefault("GOMP_SPINCOUNT", "20000")
