# SPDX-License-Identifier: Apache-2.0
"""The suite runs in an environment of its own, which test_stub_suite.py makes: nothing here may import torch_npu."""

collect_ignore = ["suite"]
