from protos.packserve.v1 import batch_pb2 as _batch_pb2
from protos.packserve.v1 import sampling_pb2 as _sampling_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ExecuteRequest(_message.Message):
    __slots__ = ("hello", "batch", "rows", "cancelled_request_ids")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    CANCELLED_REQUEST_IDS_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    batch: _batch_pb2.TokenBatch
    rows: _containers.RepeatedCompositeFieldContainer[Row]
    cancelled_request_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., batch: _Optional[_Union[_batch_pb2.TokenBatch, _Mapping]] = ..., rows: _Optional[_Iterable[_Union[Row, _Mapping]]] = ..., cancelled_request_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("protocol_version", "instance_id", "vocabulary_sha256")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    VOCABULARY_SHA256_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    instance_id: str
    vocabulary_sha256: str
    def __init__(self, protocol_version: _Optional[int] = ..., instance_id: _Optional[str] = ..., vocabulary_sha256: _Optional[str] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("protocol_version", "instance_id", "fingerprint", "model")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_ID_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    instance_id: str
    fingerprint: ModelFingerprint
    model: ExecutorModel
    def __init__(self, protocol_version: _Optional[int] = ..., instance_id: _Optional[str] = ..., fingerprint: _Optional[_Union[ModelFingerprint, _Mapping]] = ..., model: _Optional[_Union[ExecutorModel, _Mapping]] = ...) -> None: ...

class ModelFingerprint(_message.Message):
    __slots__ = ("config_sha256", "weights_sha256", "vocabulary_sha256", "dtype", "quantization")
    CONFIG_SHA256_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_SHA256_FIELD_NUMBER: _ClassVar[int]
    VOCABULARY_SHA256_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    QUANTIZATION_FIELD_NUMBER: _ClassVar[int]
    config_sha256: str
    weights_sha256: str
    vocabulary_sha256: str
    dtype: str
    quantization: str
    def __init__(self, config_sha256: _Optional[str] = ..., weights_sha256: _Optional[str] = ..., vocabulary_sha256: _Optional[str] = ..., dtype: _Optional[str] = ..., quantization: _Optional[str] = ...) -> None: ...

class ExecutorModel(_message.Message):
    __slots__ = ("name", "vocabulary_size", "max_context_tokens", "eos_token_ids", "defaults", "block_tokens", "num_blocks", "architecture")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VOCABULARY_SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_CONTEXT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    EOS_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    DEFAULTS_FIELD_NUMBER: _ClassVar[int]
    BLOCK_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    ARCHITECTURE_FIELD_NUMBER: _ClassVar[int]
    name: str
    vocabulary_size: int
    max_context_tokens: int
    eos_token_ids: _containers.RepeatedScalarFieldContainer[int]
    defaults: _sampling_pb2.SamplingParameters
    block_tokens: int
    num_blocks: int
    architecture: str
    def __init__(self, name: _Optional[str] = ..., vocabulary_size: _Optional[int] = ..., max_context_tokens: _Optional[int] = ..., eos_token_ids: _Optional[_Iterable[int]] = ..., defaults: _Optional[_Union[_sampling_pb2.SamplingParameters, _Mapping]] = ..., block_tokens: _Optional[int] = ..., num_blocks: _Optional[int] = ..., architecture: _Optional[str] = ...) -> None: ...

class Row(_message.Message):
    __slots__ = ("sampling", "choice_index", "num_output_known", "timeout_ms", "priority", "tenant", "cache_salt", "traceparent", "tracestate", "caller_request_id", "continues")
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    CHOICE_INDEX_FIELD_NUMBER: _ClassVar[int]
    NUM_OUTPUT_KNOWN_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    CACHE_SALT_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    TRACESTATE_FIELD_NUMBER: _ClassVar[int]
    CALLER_REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    CONTINUES_FIELD_NUMBER: _ClassVar[int]
    sampling: _sampling_pb2.SamplingParameters
    choice_index: int
    num_output_known: int
    timeout_ms: int
    priority: int
    tenant: str
    cache_salt: bytes
    traceparent: str
    tracestate: str
    caller_request_id: str
    continues: bool
    def __init__(self, sampling: _Optional[_Union[_sampling_pb2.SamplingParameters, _Mapping]] = ..., choice_index: _Optional[int] = ..., num_output_known: _Optional[int] = ..., timeout_ms: _Optional[int] = ..., priority: _Optional[int] = ..., tenant: _Optional[str] = ..., cache_salt: _Optional[bytes] = ..., traceparent: _Optional[str] = ..., tracestate: _Optional[str] = ..., caller_request_id: _Optional[str] = ..., continues: _Optional[bool] = ...) -> None: ...

class ExecuteResponse(_message.Message):
    __slots__ = ("welcome", "step", "load")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    step: StepOutput
    load: Load
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., step: _Optional[_Union[StepOutput, _Mapping]] = ..., load: _Optional[_Union[Load, _Mapping]] = ...) -> None: ...

class StepOutput(_message.Message):
    __slots__ = ("step", "batch", "first_positions", "starts", "logprobs", "prompt_logprobs", "terminals")
    STEP_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    FIRST_POSITIONS_FIELD_NUMBER: _ClassVar[int]
    STARTS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    PROMPT_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    TERMINALS_FIELD_NUMBER: _ClassVar[int]
    step: int
    batch: _batch_pb2.TokenBatch
    first_positions: _containers.RepeatedScalarFieldContainer[int]
    starts: _containers.RepeatedCompositeFieldContainer[RowStart]
    logprobs: _containers.RepeatedCompositeFieldContainer[RowLogprobs]
    prompt_logprobs: _containers.RepeatedCompositeFieldContainer[PromptLogprobs]
    terminals: _containers.RepeatedCompositeFieldContainer[Terminal]
    def __init__(self, step: _Optional[int] = ..., batch: _Optional[_Union[_batch_pb2.TokenBatch, _Mapping]] = ..., first_positions: _Optional[_Iterable[int]] = ..., starts: _Optional[_Iterable[_Union[RowStart, _Mapping]]] = ..., logprobs: _Optional[_Iterable[_Union[RowLogprobs, _Mapping]]] = ..., prompt_logprobs: _Optional[_Iterable[_Union[PromptLogprobs, _Mapping]]] = ..., terminals: _Optional[_Iterable[_Union[Terminal, _Mapping]]] = ...) -> None: ...

class RowStart(_message.Message):
    __slots__ = ("request_id", "num_cached_tokens", "queued_us", "elapsed_us")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    NUM_CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    QUEUED_US_FIELD_NUMBER: _ClassVar[int]
    ELAPSED_US_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    num_cached_tokens: int
    queued_us: int
    elapsed_us: int
    def __init__(self, request_id: _Optional[int] = ..., num_cached_tokens: _Optional[int] = ..., queued_us: _Optional[int] = ..., elapsed_us: _Optional[int] = ...) -> None: ...

class RowLogprobs(_message.Message):
    __slots__ = ("row", "logprobs", "num_top", "top_token_ids", "top_logprobs")
    ROW_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    NUM_TOP_FIELD_NUMBER: _ClassVar[int]
    TOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    row: int
    logprobs: bytes
    num_top: int
    top_token_ids: bytes
    top_logprobs: bytes
    def __init__(self, row: _Optional[int] = ..., logprobs: _Optional[bytes] = ..., num_top: _Optional[int] = ..., top_token_ids: _Optional[bytes] = ..., top_logprobs: _Optional[bytes] = ...) -> None: ...

class PromptLogprobs(_message.Message):
    __slots__ = ("request_id", "first_position", "logprobs", "num_top", "top_token_ids", "top_logprobs")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    FIRST_POSITION_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    NUM_TOP_FIELD_NUMBER: _ClassVar[int]
    TOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    first_position: int
    logprobs: bytes
    num_top: int
    top_token_ids: bytes
    top_logprobs: bytes
    def __init__(self, request_id: _Optional[int] = ..., first_position: _Optional[int] = ..., logprobs: _Optional[bytes] = ..., num_top: _Optional[int] = ..., top_token_ids: _Optional[bytes] = ..., top_logprobs: _Optional[bytes] = ...) -> None: ...

class Terminal(_message.Message):
    __slots__ = ("request_id", "finished", "error", "cancelled")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    CANCELLED_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    finished: Finished
    error: RowError
    cancelled: Cancelled
    def __init__(self, request_id: _Optional[int] = ..., finished: _Optional[_Union[Finished, _Mapping]] = ..., error: _Optional[_Union[RowError, _Mapping]] = ..., cancelled: _Optional[_Union[Cancelled, _Mapping]] = ...) -> None: ...

class Finished(_message.Message):
    __slots__ = ("reason", "stop_token_id")
    REASON_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    reason: _sampling_pb2.FinishReason
    stop_token_id: int
    def __init__(self, reason: _Optional[_Union[_sampling_pb2.FinishReason, str]] = ..., stop_token_id: _Optional[int] = ...) -> None: ...

class RowError(_message.Message):
    __slots__ = ("code", "detail")
    CODE_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    code: int
    detail: str
    def __init__(self, code: _Optional[int] = ..., detail: _Optional[str] = ...) -> None: ...

class Cancelled(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Load(_message.Message):
    __slots__ = ("num_running", "num_waiting", "num_free_blocks", "num_blocks", "is_draining", "step_age_ms")
    NUM_RUNNING_FIELD_NUMBER: _ClassVar[int]
    NUM_WAITING_FIELD_NUMBER: _ClassVar[int]
    NUM_FREE_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    NUM_BLOCKS_FIELD_NUMBER: _ClassVar[int]
    IS_DRAINING_FIELD_NUMBER: _ClassVar[int]
    STEP_AGE_MS_FIELD_NUMBER: _ClassVar[int]
    num_running: int
    num_waiting: int
    num_free_blocks: int
    num_blocks: int
    is_draining: bool
    step_age_ms: int
    def __init__(self, num_running: _Optional[int] = ..., num_waiting: _Optional[int] = ..., num_free_blocks: _Optional[int] = ..., num_blocks: _Optional[int] = ..., is_draining: _Optional[bool] = ..., step_age_ms: _Optional[int] = ...) -> None: ...
