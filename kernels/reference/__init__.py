# SPDX-License-Identifier: Apache-2.0
"""The definition of each operation in plain torch, written to be read.

On CPU in float32 a row's result has the same bits alone, in any batch, in any chunking and with any number of threads.
"""

from kernels.reference.attention import attention, store_kv
from kernels.reference.attention_plan import attention_plan
from kernels.reference.linear import linear
from kernels.reference.rowwise import embed, gelu_tanh_mul, rms_norm, rope, silu_mul, soft_cap

__all__ = [
    "attention",
    "attention_plan",
    "embed",
    "gelu_tanh_mul",
    "linear",
    "rms_norm",
    "rope",
    "silu_mul",
    "soft_cap",
    "store_kv",
]
