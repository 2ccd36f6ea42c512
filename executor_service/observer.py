# SPDX-License-Identifier: Apache-2.0
"""What the engine's thread tells: series move, news go to their streams.

Runs on the engine's thread between two steps. Does not know the model.
"""

from __future__ import annotations

from dataclasses import dataclass

from executor_service.metrics import Metrics
from executor_service.scheduling.step import RowOutput, Step
from executor_service.wire.streams import Streams


@dataclass(frozen=True)
class EngineObserver:
    streams: Streams
    metrics: Metrics

    def step_done(self, step: Step, seconds: float) -> None:
        self.metrics.observe_step(step, seconds)

    def publish(self, outputs: list[RowOutput], step: int) -> None:
        self.metrics.observe_outputs(outputs)
        self.streams.publish(outputs, step)
