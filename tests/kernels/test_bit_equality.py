# SPDX-License-Identifier: Apache-2.0
"""Each operation gives a row the same bits alone, among others, in any chunking and with one or two threads."""

from collections.abc import Callable, Iterator
from functools import partial

import pytest
import torch
from torch import Tensor

from kernels import reference as ops
from kernels.reference.rowwise import rope
from tests.fixtures.paged import Context, attend


@pytest.fixture(autouse=True, params=[1, 2], ids=["1-thread", "2-threads"])
def num_threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    torch.manual_seed(0)
    yield request.param
    torch.set_num_threads(before)


def assert_rows_equal(operation: Callable[[Tensor], Tensor], x: Tensor) -> None:
    expected = operation(x)
    for start, end in [(0, 1), (5, 6), (3, 5), (1, 10), (0, 16), (7, 24), (0, 31), (0, 64), (2, 131), (9, 200)]:
        assert torch.equal(operation(x[start:end]), expected[start:end]), (start, end)


SHAPES = [(960, 576), (576, 1536), (3072, 576), (64, 64), (320, 64), (33, 50), (1, 16), (4096, 320), (50, 1024)]


@pytest.mark.parametrize("shape", SHAPES)
def test_linear(shape: tuple[int, int]) -> None:
    weight, bias = torch.randn(shape), torch.randn(shape[0])
    assert_rows_equal(lambda x: ops.linear(x, weight, bias), torch.randn(256, shape[1]))


def test_linear_has_the_bits_of_one_thread() -> None:
    weight, x = torch.randn(960, 576), torch.randn(150, 576)
    with_these = ops.linear(x, weight, None)
    torch.set_num_threads(1)
    assert torch.equal(ops.linear(x, weight, None), with_these)


@pytest.mark.parametrize("size", [17, 64, 576, 1537])
def test_rms_norm(size: int) -> None:
    weight = torch.randn(size)
    assert_rows_equal(lambda x: ops.rms_norm(x, weight, 1e-6), torch.randn(256, size))
    assert_rows_equal(lambda x: ops.rms_norm(x, weight, 1e-6), torch.randn(256, 5, size))


@pytest.mark.parametrize("size", [16, 50, 1536, 3001])
def test_activations(size: int) -> None:
    x = torch.randn(256, 2 * size) * 8
    for operation in (ops.silu_mul, ops.gelu_tanh_mul, partial(ops.soft_cap, cap=5.0)):
        assert_rows_equal(operation, x)


def test_rope() -> None:
    angles = torch.randn(256, 16)
    both = torch.cat((torch.randn(256, 48), angles), 1)
    assert_rows_equal(lambda x: rope(x[:, :48].view(-1, 3, 16), x[:, 48:].cos(), x[:, 48:].sin()), both)


HEADS = [(9, 3, 64), (4, 2, 16), (4, 4, 16), (8, 1, 128), (1, 1, 16)]


# (window, cap). A query of a chunk may see nothing of the first tile that the chunk reads.
PLAIN, *WINDOWS = [(None, None), (48, None), (1, 0.5), (256, None), (290, 5.0)]
CASES = [*((heads, PLAIN) for heads in HEADS), *(((4, 2, 16), case) for case in WINDOWS)]


@pytest.mark.parametrize(("heads", "case"), CASES)
def test_attention_in_chunks_and_company(heads: tuple[int, int, int], case: tuple[int | None, float | None]) -> None:
    window, cap = case
    seen = partial(attend, window=window, cap=cap)
    context, *others = [Context(num_tokens, *heads) for num_tokens in (300, 40, 257, 700, 3, 256, 64, 1, 90)]
    (expected,) = seen([(context, 0, 300)])
    assert not expected.isnan().any()
    for chunk in (31, 32, 33, 64, 129):
        for start in range(0, 300, chunk):
            end = min(start + chunk, 300)
            assert torch.equal(seen([(context, start, end)])[0], expected[start:end]), (start, end)
    for token in (0, 15, 254, 255, 256, 299):
        for num_others in (0, 1, 4, 8):
            decode = [(other, len(other) - 1, len(other)) for other in others[:num_others]]
            got = seen([*decode, (context, token, token + 1)])[-1]
            assert torch.equal(got, expected[token : token + 1]), (token, num_others)
    mixed = seen([(others[0], 0, 40), (context, 100, 140), (others[2], 699, 700), (others[1], 200, 240)])
    assert torch.equal(mixed[1], expected[100:140])


def test_a_tile_that_is_hidden_as_a_whole_changes_nothing() -> None:
    """A chunk's first queries see the first tile, its last ones start two tiles later when they are alone."""
    context = Context(600, 4, 2, 16)
    (together,) = attend([(context, 200, 600)], window=20)
    (alone,) = attend([(context, 560, 600)], window=20)
    assert torch.equal(together[360:], alone)


@pytest.mark.parametrize("block_tokens", [1, 7, 64, 512])
@pytest.mark.parametrize("window", [None, 48])
def test_attention_does_not_depend_on_the_block_size(block_tokens: int, window: int | None) -> None:
    context = Context(600, 4, 2, 16)
    expected = attend([(context, 400, 600)], window=window)[0]
    assert torch.equal(attend([(context, 400, 600)], block_tokens, window)[0], expected)
