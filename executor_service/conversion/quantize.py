# SPDX-License-Identifier: Apache-2.0
"""A Hugging Face directory written again as W8A8: int8 for the weights of the layers' products, all else as it was.

``python -m executor_service.conversion.quantize SOURCE TARGET``, which is what ``packserve quantize`` runs. Holds one
shard in memory. Does not know what a model does with its weights.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from executor_service.models.checkpoint import (
    INDEX_FILE,
    OTHER_FORMATS,
    SINGLE_FILE,
    StoredTensor,
    opened,
    read_checkpoint,
)
from executor_service.models.config_value import shown
from executor_service.models.model_config import ModelConfig, load_model_config
from executor_service.models.quantization import CONFIG, NONE
from executor_service.models.weight_names import PRODUCTS, layer_parts, scale_parts
from executor_service.models.weights import check_rows, fitting
from kernels.reference.int8_linear import quantize_rows
from protos.errors import ConfigError
from protos.vocabulary import read_json

MAX_SHARD_BYTES = 4 << 30
SCALE_BYTES = 4
# Written anew, or weights that nobody reads here.
NOT_COPIED = ("config.json", "*.safetensors", INDEX_FILE, *OTHER_FORMATS)
# Called with the source's bytes done and all of them.
Report = Callable[[int, int], None]


def quantize(source: Path, target: Path, report: Report = lambda done, total: None) -> None:
    """target appears whole or not at all. Raises ConfigError naming what in the way is wrong."""
    config = load_model_config(source)
    config_json = read_json(source / "config.json")
    if config.quantization != NONE:
        raise ConfigError(f"{source}: quantized already: {shown(config_json['quantization_config'])}")
    target = new_directory(target)
    stored = fitting(read_checkpoint(source), config)
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{target.name}.partial-", dir=target.parent) as directory:
        work = Path(directory) / target.name
        work.mkdir()
        write_weights(stored, product_names(config), work, report)
        write_json(work / "config.json", config_json | {"quantization_config": CONFIG})
        for path in source.iterdir():
            if path.is_file() and not any(path.match(pattern) for pattern in NOT_COPIED):
                shutil.copyfile(path, work / path.name)
        work.rename(target)


def new_directory(path: Path) -> Path:
    """Where links lead, and a directory can appear. Raises ConfigError where something is in its place."""
    path = Path(os.path.realpath(path))
    if path.is_symlink():
        raise ConfigError(f"{path}: is a symbolic link that leads to itself")
    if path == Path.cwd():
        raise ConfigError(f"{path}: is the current directory, name one in it")
    if path.is_mount():
        raise ConfigError(f"{path}: is a mount point, name a directory in it")
    if path.exists() and not (path.is_dir() and not any(path.iterdir())):
        raise ConfigError(f"{path}: exists and is no empty directory")
    return path


def write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def product_names(config: ModelConfig) -> set[str]:
    """The tensors that become int8."""
    layers = [layer_parts(config, layer) for layer in range(len(config.layers))]
    return {name for fields in layers for field in PRODUCTS for name in fields[field]}


def write_weights(stored: dict[str, StoredTensor], products: set[str], directory: Path, report: Report) -> None:
    sizes = {name: written_bytes(tensor, name in products) for name, tensor in stored.items()}
    shards = split(sizes)
    num_read, total = 0, sum(tensor.num_bytes for tensor in stored.values())
    weight_map: dict[str, str] = {}
    for place, names in enumerate(shards, start=1):
        file_name = SINGLE_FILE if len(shards) == 1 else f"model-{place:05}-of-{len(shards):05}.safetensors"
        tensors: dict[str, Tensor] = {}
        for name in names:
            tensors |= converted(name, stored[name], name in products)
            num_read += stored[name].num_bytes
            report(num_read, total)
        write_shard(tensors, directory / file_name)
        weight_map |= dict.fromkeys(tensors, file_name)
    if len(shards) > 1:
        write_json(directory / INDEX_FILE, {"metadata": {"total_size": sum(sizes.values())}, "weight_map": weight_map})


def write_shard(tensors: dict[str, Tensor], path: Path) -> None:
    try:
        save_file(tensors, path, {"format": "pt"})
    except SafetensorError as error:  # what the system says is in its text
        raise ConfigError(f"{path.name}: {error}") from error
    path.chmod(0o644)  # safetensors writes for the owner alone


def written_bytes(tensor: StoredTensor, is_product: bool) -> int:
    num_values, num_outputs = math.prod(tensor.shape), tensor.shape[0]
    return num_values + SCALE_BYTES * num_outputs if is_product else tensor.num_bytes


def split(sizes: dict[str, int]) -> list[list[str]]:
    """Names in their order, of at most MAX_SHARD_BYTES together, but for a tensor that is larger alone."""
    shards: list[list[str]] = []
    room = 0
    for name, size in sizes.items():
        if size > room:
            shards.append([])
            room = MAX_SHARD_BYTES
        shards[-1].append(name)
        room -= size
    return shards


def converted(name: str, tensor: StoredTensor, is_product: bool) -> dict[str, Tensor]:
    with opened(tensor.path) as file:
        values = file.get_tensor(name)
    lowest, highest = values.reshape(len(values), -1).aminmax(dim=1)
    check_rows(tensor.path, name, lowest.isfinite() & highest.isfinite(), "finite")
    if not is_product:
        return {name: values}
    (scale_name,) = scale_parts({name: tensor.shape})
    values, scale = quantize_rows(values)
    return {name: values, scale_name: scale[:, None]}


@click.command()
@click.argument("source", type=click.Path(path_type=Path))
@click.argument("target", type=click.Path(path_type=Path))
def main(source: Path, target: Path) -> None:
    """Write the model SOURCE as W8A8 into TARGET."""
    columns = SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()
    try:
        with Progress(*columns, console=Console(stderr=True)) as progress:
            task = progress.add_task(f"quantizing {source.name}", total=None)
            quantize(source, target, lambda done, total: progress.update(task, completed=done, total=total))
    except (ConfigError, OSError) as error:
        raise click.ClickException(str(error)) from error
    click.echo(target)


if __name__ == "__main__":
    main()
